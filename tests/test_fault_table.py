"""The table of the fault matrix keeps what another run has measured."""

import json

from chaos.table import write


def test_a_part_of_the_faults_takes_the_place_of_its_own_rows(tmp_path):
    path = tmp_path / "faults.json"

    def rows():
        return json.loads(path.read_text(encoding="utf-8"))["rows"]

    write(path, [("a", "1.0", "0", "nothing"), ("b", "2.0", "0", "nothing")], "first", whole=True)
    write(path, [("b", "3.0", "10", "nothing")], "second", whole=False)
    assert rows() == [["a", "1.0", "0", "nothing", "first"], ["b", "3.0", "10", "nothing", "second"]]
    write(path, [("b", "4.0", "0", "nothing")], "third", whole=True)
    assert rows() == [["b", "4.0", "0", "nothing", "third"]]
