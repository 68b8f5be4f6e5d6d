"""Tables over seeds, from ledgers made by hand."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from babeltune.cli import app
from babeltune.cli.render import show_comparison
from babeltune.errors import UnknownNameError
from babeltune.files import write_json
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Report
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.seed_summary import cells, compare_settings, footnote, markdown
from made_sweeps import log_trial

ACCURACY, ERROR, GRADED = "dev/everyday/accuracy", "dev/everyday/xsim_error", "dev/sts/spearman"
SEARCHED = "parameters={temperature: {choice: [0.05, 0.1]}, tcm: {choice: [true, false]}, seed: {choice: [0, 1, 2]}}"
SCORES = {0.05: [0.5, 0.7, 0.6], 0.1: [0.9, 0.7, 0.8]}


@pytest.fixture
def sweep(tiny_file):
    return read_sweep(tiny_file, assignments=[SEARCHED])


def add(folder, sweep, number, scores, state="finished", **params):
    """A trial whose accuracy at each report is the score, and whose other metrics follow from it."""
    place = folder.trial(number)
    place.mkdir(parents=True)
    write_json(place / "trial.json", make_trial(sweep, number, params))
    reports = []
    for i, s in enumerate(scores, 1):
        metrics = {ACCURACY: s, ERROR: 1 - s, GRADED: s / 2, "dev/everyday/fra-eng/accuracy": s}
        reports.append(Report(index=i, step=i, pairs=i, seconds=i, metrics=metrics))
    log_trial(folder, number, params, reports, None if state == "running" else state)


@pytest.fixture
def folder(tmp_path, sweep):
    """Two temperatures, three seeds each; and what must not be averaged in."""
    sweep_folder = SweepFolder(tmp_path / "sweeps" / "tiny-0123456789")
    sweep_folder.path.mkdir(parents=True)
    sweep_folder.write("sweep.json", sweep)
    sweep_folder.write(
        "baselines.json", {"scores": {"untrained": {ACCURACY: 0.1, GRADED: 0.2}, "teacher": {ACCURACY: 0.65}}}
    )
    number = 0
    for temperature, scores in SCORES.items():
        for seed, score in enumerate(scores):
            add(sweep_folder, sweep, number, [0.0, score, score - 0.1], temperature=temperature, tcm=True, seed=seed)
            number += 1
    add(sweep_folder, sweep, 6, [1.0], "pruned", temperature=0.1, tcm=True, seed=3)
    add(sweep_folder, sweep, 7, [], "failed", temperature=0.1, tcm=True, seed=4)
    add(sweep_folder, sweep, 8, [1.0], "running", temperature=0.1, tcm=True, seed=5)
    add(sweep_folder, sweep, 9, [0.9, 0.9], temperature=0.1, tcm=True, seed=0)
    return sweep_folder


def test_a_group_has_the_mean_and_the_sample_deviation_of_its_seeds_best_reports(folder):
    table = compare_settings(folder, ["seed"])
    assert [group.name or group.settings["temperature"] for group in table.groups] == [
        0.1,
        "teacher",
        0.05,
        "untrained",
    ]
    for group in table.groups:
        if not group.name:
            scores = SCORES[group.settings["temperature"]]
            assert group.settings == {"temperature": group.settings["temperature"], "tcm": True}
            assert group.values[ACCURACY] == pytest.approx(scores)
            assert group.mean[ACCURACY] == pytest.approx(np.mean(scores))
            assert group.deviation[ACCURACY] == pytest.approx(np.std(scores, ddof=1))
            assert group.mean[GRADED] == pytest.approx(np.mean(scores) / 2)
    assert table.groups[1].deviation[ACCURACY] is None


@pytest.mark.trap(31)
def test_what_did_not_finish_and_what_repeats_a_seed_is_named_and_in_no_mean(folder):
    table = compare_settings(folder, ["seed"])
    assert table.left_out == {"pruned": ("t0006",), "failed": ("t0007",), "running": ("t0008",), "repeated": ("t0009",)}
    assert table.groups[0].trials == ("t0003", "t0004", "t0005")
    assert footnote(table) == "left out: 1 pruned (t0006), 1 failed (t0007), 1 running (t0008), 1 repeated (t0009)"


def test_the_columns_are_the_objective_and_the_dev_metrics_over_all_subsets(folder):
    assert compare_settings(folder, ["seed"]).metrics == (ACCURACY, ERROR, GRADED)
    assert compare_settings(folder, ["seed"], [GRADED]).metrics == (ACCURACY, GRADED)
    by_error = compare_settings(folder, ["seed"], sort=ERROR)
    assert by_error.metrics[0] == ERROR
    assert [group.name for group in by_error.groups[:2]] == ["", ""], "those without the metric come last"
    assert by_error.groups[0].settings["temperature"] == 0.1, "an error is the better the lower it is"


def test_several_settings_can_be_averaged_over(folder):
    (one,) = (group for group in compare_settings(folder, ["seed", "temperature"]).groups if not group.name)
    assert one.settings == {"tcm": True}
    assert len(one.trials) == 6
    assert cells(compare_settings(folder, ["seed", "temperature", "tcm"]))[1][0] == "all trials"


def test_a_setting_that_only_some_trials_have_makes_its_own_group(folder, sweep):
    add(folder, sweep, 10, [0.95], temperature=0.1, seed=0)
    table = compare_settings(folder, ["seed"])
    assert table.groups[0].settings == {"temperature": 0.1}
    assert cells(table)[1][:3] == ["temperature=0.1", "1", "0.9500"]
    assert cells(table)[2][0] == "tcm=True temperature=0.1"


def test_an_unknown_setting_or_metric_names_the_nearest(folder):
    with pytest.raises(UnknownNameError, match="searches no 'sed'; known: seed, tcm, temperature; did you mean 'seed'"):
        compare_settings(folder, ["sed"])
    with pytest.raises(UnknownNameError, match=r"has no metric 'dev/sts/spaerman'.*did you mean 'dev/sts/spearman'"):
        compare_settings(folder, ["seed"], ["dev/sts/spaerman"])


def test_the_table_prints_for_people_and_for_github(folder):
    table = compare_settings(folder, ["seed"], [GRADED])
    assert cells(table)[0] == ["settings", "n", "everyday/accuracy", "sts/spearman"]
    assert cells(table)[1] == ["temperature=0.1", "3", "0.8000 ± 0.1000", "0.4000 ± 0.0500"]
    assert cells(table)[2] == ["teacher", "", "0.6500", "–"]
    lines = markdown(table).splitlines()
    assert lines[0] == "| settings | n | everyday/accuracy | sts/spearman |"
    assert lines[1] == "| --- | --: | --: | --: |"
    assert lines[2] == "| temperature=0.1 | 3 | 0.8000 ± 0.1000 | 0.4000 ± 0.0500 |"
    assert lines[-1] == footnote(table)
    console = Console(file=io.StringIO(), width=160)
    show_comparison(table, console)
    assert "0.8000 ± 0.1000" in console.file.getvalue()
    assert "1 pruned (t0006)" in console.file.getvalue()


def test_the_command_gives_the_single_values_as_json(folder, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(folder.path.parents[1]))
    done = CliRunner().invoke(app, ["runs", "tiny", "--over", "seed", "--metric", GRADED, "--json"])
    document = json.loads(done.stdout)
    assert document["groups"][0]["values"][ACCURACY] == SCORES[0.1]
    assert document["groups"][1]["deviation"][ACCURACY] is None
    assert math.isclose(document["groups"][2]["deviation"][ACCURACY], 0.1)
    shown = CliRunner().invoke(app, ["runs", "tiny", "--over", "seed", "--markdown"])
    assert shown.stdout.startswith("| settings | n |")
    wrong = CliRunner().invoke(app, ["runs", "tiny", "--markdown"])
    assert wrong.exit_code == 2
    assert "add --over seed" in " ".join(wrong.output.split())
