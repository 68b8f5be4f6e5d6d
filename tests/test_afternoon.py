"""The afternoon of the tutorial: its files, its commands, and its table."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from babeltune.apps.own_files.tables import read_table
from babeltune.data.prepared import TextTask
from benchmarks import afternoon, exports, months, openvino
from corpora import DATA, needs_data


def test_the_table_of_the_tutorial_is_the_records():
    record = afternoon.FIGURES.read()
    assert afternoon.FIGURES.is_shown()
    installed = f"pip install 'babeltune[{afternoon.EXTRAS}]'"
    commands = [installed, *(step.command for step in afternoon.commands(" --trials 4"))]
    assert [step["command"] for step in record["steps"]] == commands
    for name in ("init", "submit", "promote", "export", "index", "search", "serve", "push", "check"):
        assert any(command.startswith(f"babeltune {name} ") for command in commands)


def test_the_table_of_forms_is_the_records_and_their_goals_hold():
    page, record = exports.FIGURES.page.read_text(encoding="utf-8"), exports.FIGURES.read()
    assert exports.FIGURES.is_shown()
    static = next(row for row in record["rows"] if (row["model"], row["bits"]) == ("static", 8))
    assert static["sizes"][1] <= 0.27 * static["sizes"][0]
    assert [name for name in ("bitext", "sts", "retrieval") if not any(name in mean for mean in static["lost"])] == []
    assert max(static["lost"].values()) <= 0.002
    assert record["adapter"]["kept"] >= 0.95
    eight = next(row for row in record["rows"] if (row["model"], row["bits"]) == ("Transformer", 8))
    slow, fast = eight["rates"]["1"]
    reached = fast / slow >= exports.GOAL[0] and max(eight["lost"].values()) <= exports.GOAL[1]
    assert ("is reached" if reached else "is missed") in page, "a missed goal is said to be missed"


def test_the_table_of_months_is_the_records_and_a_high_confidence_is_never_wrong():
    record = months.FIGURES.read()
    assert months.FIGURES.is_shown()
    assert [row["kind"] for row in record["rows"]] == [*months.CHALLENGERS]
    assert all(row["promoted"][-1] == 0 for row in record["rows"] if row["gain"] <= 0)


def test_a_month_promotes_a_challenger_that_is_clearly_better_and_no_worse_one():
    random = np.random.default_rng(0)
    cells = [f"test/news/{pair}/accuracy" for pair in ("fra-eng", "deu-eng")]
    worse, better = (
        {cell: {side: (random.random(300) < right).tolist() for side in ("forward", "backward")} for cell in cells}
        for right in (0.5, 0.95)
    )
    tasks = [TextTask(name="news", kind="bitext", subset=cell.split("/")[2], left=[""] * 300) for cell in cells]
    assert months.decided(tasks, (worse, better), 1.0, 400, 0) == [True] * 3
    assert months.decided(tasks, (worse, better), 0.0, 400, 0) == [False] * 3
    rows, coins = np.arange(300)[::-1], np.arange(300) < 100
    for cell in cells:
        mixed = months.answers((worse, better), rows, coins)[cell]["forward"]
        assert mixed[:100] == better[cell]["forward"][::-1][:100]
        assert mixed[100:] == worse[cell]["forward"][::-1][100:]


def test_the_sentence_about_openvino_is_the_records():
    assert openvino.FIGURES.is_shown()


def test_the_files_are_as_messy_as_the_page_says(tmp_path):
    rows = [("DE", f"Ein Satz mit der Nummer {n}.", f"A sentence; number {n}.") for n in range(300)]
    afternoon.write_table(tmp_path / "kunden.csv", rows)
    text = (tmp_path / "kunden.csv").read_bytes().decode("cp1252")
    assert text.splitlines()[1] == "Nr;Sprache;Ausgangstext;Übersetzung (Englisch);Geprüft"
    assert len(text.splitlines()) == 2 + 300 + 15
    assert "\r\n9;DE\r\n159;DE" not in text
    assert "\r\n9;DE\r\n" in text
    assert '7;DE;"A sentence; number 7.";' in text
    assert read_table(str(tmp_path / "kunden.csv")).columns[1] == "Sprache"
    afternoon.write_memory(tmp_path / "memory.tmx", [(f"犬 {n}", f"A dog & {n}") for n in range(90)])
    units = (tmp_path / "memory.tmx").read_text(encoding="utf-8")
    assert (units.count("<tu "), units.count('xml:lang="ja"')) == (93, 90)


@needs_data
@pytest.mark.long
def test_an_afternoon_ends_as_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["afternoon", "--data", str(DATA), "--rows", "300", "--submit", " --trials 1"])
    more = ["--python", sys.executable, "--json", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", [*sys.argv, *more])
    afternoon.main()
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert [step["exit"] for step in record["steps"]] == [0] * 11 + [4]
    assert record["accuracy"] > 2 * record["untrained"]
    assert record["sizes"][1] < 0.3 * record["sizes"][0]
    assert record["lost"] <= 0.01
