"""All sweeps in a list, and a sweep's trials by the values of a setting."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from babeltune.cli.inspect import show_sweeps
from babeltune.errors import UnknownNameError
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.by_setting import by_setting
from babeltune.sweep.state.overview import SweepLine, sweep_line, with_differences
from made_sweeps import add_trial, make_sweep


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    return tmp_path


def shown(lines, width):
    console = Console(file=io.StringIO(), width=width)
    show_sweeps(lines, console)
    return console.file.getvalue()


def test_sweeps_of_one_name_show_in_what_they_differ(command, storage, tiny_file):
    small = read_sweep(tiny_file)
    large = read_sweep(tiny_file, assignments=["training.pairs=1280", "parameters.temperature={const: 0.1}"])
    other = read_sweep(tiny_file, assignments=["name=other", "training.pairs=960"])
    for when, sweep in enumerate((small, large, other), 1):
        folder = make_sweep(storage, sweep, when=when)
        add_trial(folder, 0, [0.1, 0.3], "finished", temperature=0.1)
        add_trial(folder, 1, [0.2], "failed", reason="why", temperature=0.1)
    code, out, err = command("runs", "--json")
    assert (code, err) == (0, "")
    found = {line["sweep"]: line for line in json.loads(out)}
    assert len(found) == 3
    by_pairs = {line["differs"][-1]: line for line in found.values() if line["name"] == "tiny"}
    assert by_pairs.keys() == {"training.pairs=640", "training.pairs=1280"}
    assert by_pairs["training.pairs=1280"]["differs"][0] == "temperature={const:0.1}"
    (alone,) = (line for line in found.values() if line["name"] == "other")
    assert alone["differs"] == [], "there is no other sweep of its name"
    assert (alone["ended"], alone["budget"], alone["best"], alone["score"]) == (2, 2, "t0000", 0.3)
    assert alone["leaderboard"], "what it said before is still there"
    out = command.prints("runs")
    assert out.count("training.pairs=") == 2
    assert out.count("t0000 0.3000") == 3


@pytest.mark.parametrize("width", [80, 110, 160])
def test_a_list_of_sweeps_folds_no_number_and_no_setting(width):
    line = SweepLine(
        sweep="soft_contrastive-0123456789",
        name="soft_contrastive",
        begun=1_795_616_631.0,
        state="interrupted",
        ended=117,
        budget=1000,
        objective="dev/everyday/accuracy",
        best="t0042",
        score=0.8125,
        data="12 sources, 37 language pairs, 12,345,678 pairs",
        differs=("student.width=512", "training.learning_rate=0.0025"),
    )
    text = shown([line, replace(line, sweep="soft_contrastive-9876543210", best=None, score=None)], width)
    assert max(map(len, text.splitlines())) <= width
    words = text.replace(";", "").split()
    for whole in ("soft_contrastive-0123456789", "interrupted", "117/1000", "0.8125", "12,345,678"):
        assert whole in words or f"{whole}:" in words
    assert words.count("training.learning_rate=0.0025") == 2


def test_without_a_sweep_the_list_says_how_to_start_one():
    assert "babeltune submit search_spaces/quickstart.yaml" in shown([], 80)


def test_a_long_list_of_differences_is_counted(storage, tiny_file):
    sweeps = [
        read_sweep(tiny_file, assignments=[f"{key}={value}" for key, value in given.items()])
        for given in (
            {"seed": 1, "student.width": 64, "student.layers": 2, "training.reports": 1, "training.clip": 2.0},
            {"seed": 2, "student.width": 32, "student.layers": 1, "training.reports": 2, "training.clip": 1.0},
        )
    ]
    folders = [make_sweep(storage, sweep) for sweep in sweeps]
    lines = with_differences([*map(sweep_line, folders)], {each.id: each.read("sweep.json") for each in folders})
    assert lines[0].differs == ("seed=1", "student.layers=2", "student.width=64", "training.clip=2.0", "and 1 more")


@pytest.fixture
def folder(storage, tiny_file):
    """A sweep over a range and a choice, with trials at known places."""
    given = ["parameters={temperature: {log_float: [0.01, 0.08]}, training.global_batch: {choice: [32, 64]}}"]
    return make_sweep(storage, read_sweep(tiny_file, assignments=given))


def test_a_range_is_cut_into_thirds_of_its_own_scale(command, folder):
    for number, (temperature, score) in enumerate([(0.011, 0.1), (0.019, 0.3), (0.03, 0.5), (0.08, 0.2)]):
        add_trial(folder, number, [score], "finished", temperature=temperature)
    add_trial(folder, 4, [], "failed", reason="why", temperature=0.07)
    add_trial(folder, 5, [0.9], "finished", **{"training.global_batch": 32})
    table = command.document("runs", folder.id, "--by", "temperature")
    found = [tuple(level.values()) for level in table["levels"]]
    assert found == [
        ("0.01 to 0.02", 2, 2, 0.3, "t0001", pytest.approx(0.2)),
        ("0.02 to 0.04", 1, 1, 0.5, "t0002", 0.5),
        ("0.04 to 0.08", 2, 1, 0.2, "t0003", 0.2),
        ("not set", 1, 1, 0.9, "t0005", 0.9),
    ]
    out = command.prints("runs", folder.id, "--by", "temperature")
    assert out.splitlines()[0] == "everyday/accuracy by temperature, maximize"
    assert out.splitlines()[2].split() == ["0.01", "to", "0.02", "2", "2", "0.3000", "t0001", "0.2000"]


def test_the_thirds_of_a_narrow_range_have_names_of_their_own(storage, tiny_file):
    given = ["parameters={training.global_batch: {int: [1000, 1004]}}", "training.pairs=20000"]
    folder = make_sweep(storage, read_sweep(tiny_file, assignments=given))
    for number in range(5):
        add_trial(folder, number, [0.1 * number], "finished", **{"training.global_batch": 1000 + number})
    table = by_setting(folder, "global_batch")
    assert [level.label for level in table.levels] == ["1000 to 1001", "1001 to 1003", "1003 to 1004"]
    assert [level.trials for level in table.levels] == [2, 1, 2]


def test_a_choice_has_a_row_for_each_value_and_a_short_name_is_enough(folder):
    for number, (batch, score) in enumerate([(64, 0.4), (32, 0.1), (64, 0.2)]):
        add_trial(folder, number, [score], "finished", **{"training.global_batch": batch})
    table = by_setting(folder, "global_batch")
    assert table.setting == "training.global_batch"
    assert [(level.label, level.trials, level.best) for level in table.levels] == [("32", 1, 0.1), ("64", 2, 0.4)]


def test_a_setting_that_is_not_searched_is_refused_with_the_nearest(command, folder):
    with pytest.raises(UnknownNameError, match=r"searches no 'temperatur'; known: .*; did you mean 'temperature'"):
        by_setting(folder, "temperatur")
    assert "--by" in command.refuses("runs", folder.id, "--by", "temperature", "--front")
