"""Two promotions of one sweep at once."""

import json
import shutil

import pytest
import yaml

from babeltune.tracking.registry import champion_of
from chaos.arena import CLUSTER, opened

pytestmark = pytest.mark.chaos


def test_of_two_promotions_at_once_the_second_finds_its_own_champion(undisturbed, tmp_path, note):
    place = tmp_path / "arena"
    shutil.copytree(undisturbed.place, place)
    values = yaml.safe_load((place / CLUSTER).read_text(encoding="utf-8"))
    (place / CLUSTER).write_text(yaml.safe_dump({**values, "storage": str(place / "storage")}), encoding="utf-8")
    arena = opened(place)
    drivers = [arena.start("promote", "chaos", "--json") for _ in range(2)]
    codes = [driver.wait() for driver in drivers]
    assert codes == [0, 0], [driver.words() for driver in drivers]
    decisions = [json.loads(text[text.index("{") :]) for text in (d.said.read_text() for d in drivers)]
    assert sorted(decision["verdict"] for decision in decisions) == ["promote", "tie"]
    (winner,) = [decision for decision in decisions if decision["verdict"] == "promote"]
    champion = champion_of(arena.cluster.mlflow, "chaos", "champion")
    assert champion.version == "1"
    assert "(version 1)" in winner["registered"]
    for driver in drivers:
        arena.check(alike=False, marked=driver.mark)
    note(arena, "two promotions at once", seconds=None)
