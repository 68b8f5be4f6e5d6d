"""One trial on one page: `babeltune status SWEEP/t0003`, for people and as JSON."""

import json

import pytest

from babeltune.cli.words import settings_words, sparkline
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.state.housekeeping import REMOVED
from babeltune.sweep.state.trial_page import trial_page
from babeltune.tracking.sweep_runs import sent_runs
from babeltune.training.checkpoint import checkpoint_folder
from benchmarks.event_log import EventLog
from made_sweeps import add_trial, make_sweep, whole_sweep
from waiting import PATIENCE_S

REASON = "step 2: loss is nan; lower training.learning_rate or raise the temperature, and look at the data " * 3


@pytest.fixture
def home(tiny_file, tmp_path, monkeypatch):
    """A storage with a sweep of a finished, a failed and a running trial."""
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    folder = make_sweep(tmp_path, read_sweep(tiny_file), state="running")
    add_trial(folder, 0, [0.2, 0.6, 0.4], "finished", temperature=0.1)
    add_trial(folder, 1, [], "failed", reason=REASON.strip(), temperature=0.05)
    add_trial(folder, 2, [0.3], temperature=0.07)
    return folder


def test_a_trial_is_a_page_with_curve_scores_settings_and_cost(command, home):
    code, out, err = command("status", f"{home.id}/t0000")
    assert (code, err) == (0, "")
    assert out.startswith(f"trial {home.id}/t0000: finished\n")
    assert "everyday/accuracy ▁█▅ first 0.2000 · best 0.6000 (report 2) · last 0.4000" in out
    lines = {
        tuple(line.split()[:2]): line.split()[2:] for line in out.splitlines() if line.startswith(("every", "sts"))
    }
    assert lines["everyday", "mean"] == ["accuracy", "0.6000"]
    assert lines["everyday", "fra-eng"] == ["accuracy", "0.7000"]
    assert lines["sts", "eng"] == ["spearman", "0.4000"], "a set of one language has no mean besides"
    assert "temperature=0.1" in out
    assert "960 pairs in 0:21" in out
    assert f"babeltune promote {home.id}/t0000" in out


def test_a_removed_checkpoint_is_said_and_not_offered(command, home):
    (home.trial(0) / REMOVED).write_text(json.dumps({"rule": "clean --top 1"}), encoding="utf-8")
    _, out, _ = command("status", f"{home.id}/t0000")
    assert "removed (`clean --top 1`); the scores stay" in out
    assert "babeltune promote" not in out
    assert f"babeltune refit {home.id}" in out
    _, table, _ = command("status", home.id)
    assert "checkpoints removed for good: t0000; their scores stay" in table


@pytest.mark.parametrize("words", [["show", "t0001"], ["runs", "t0001"], ["compare", "t0001", "t0002"]])
def test_a_trial_without_its_sweep_is_refused_with_how_it_is_named(command, home, words):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert " ".join(err.split()) == (
        f"error: 't0001' is a trial without its sweep; write SWEEP/t0001, such as {home.id}/t0001"
    )


def test_a_word_that_is_an_option_is_refused_with_the_option(command):
    assert "No such command 'version' (did you mean '--version'?);" in command.refuses("version")


def test_a_failed_trials_reason_is_whole(command, home):
    out = command.prints("status", f"{home.id}/1")
    assert REASON.strip() in out
    assert "no report yet" in out


def test_a_trial_as_json_has_all_that_the_page_has(command, home):
    page = command.document("status", f"{home.id}/t0000")
    assert [point["value"] for point in page["curve"]] == [0.2, 0.6, 0.4]
    assert (page["best"], page["row"]["state"], page["trial"]["params"]) == (2, "finished", {"temperature": 0.1})
    assert page["checkpoint"] is None
    code, again, _ = command("runs", f"{home.id}/t0000", "--json")
    assert (code, json.loads(again)) == (0, page), "`runs` shows the same page"


def test_an_unknown_trial_names_the_nearest_in_one_line(command, home):
    code, out, err = command("status", f"{home.id}/t0042")
    assert (code, out) == (2, "")
    assert err == (f"error: sweep {home.id} has no trial 't0042'; trials: t0000, t0001, t0002; the nearest is t0002\n")
    for number in range(3, 20):
        add_trial(home, number, [0.1], "finished")
    assert "trials: 20 from t0000 to t0019; the nearest is t0019" in command("status", f"{home.id}/t0042")[2]


def test_a_table_of_a_sweep_is_not_asked_of_a_trial(command, home):
    for arguments in (("runs", "--front"), ("runs", "--sort", "dev/sts/spearman"), ("status", "--follow")):
        assert arguments[1] in command.refuses(*arguments, f"{home.id}/t0000")


def test_a_saved_trial_has_its_checkpoint_and_its_run_once_mlflow_took_it(
    tmp_path, tiny_file, tiny_stores, monkeypatch, command
):
    storage = tmp_path / "storage"
    monkeypatch.setenv("BABELTUNE_HOME", str(storage))
    saved = whole_sweep(storage, tiny_file, tiny_stores)
    out = command.prints("status", "saved/t0001")
    assert str(checkpoint_folder(saved.trial(1), 1)) in out.replace("\n", "")
    assert "MLflow" not in out
    tracker = EventLog(f"sqlite:///{storage}/mlflow.db", saved.path / "events.jsonl", "saved")
    tracker.start_sweep(saved.id, {}, {})
    tracker.start_trial(1, {}, {})
    assert tracker.close(PATIENCE_S)
    run = sent_runs(saved.path)["1"]
    assert run.experiment
    assert f"run {run.id}; `babeltune ui {saved.id}` serves it" in command("status", "saved/t0001")[1]


def test_a_trial_that_has_not_reported_has_a_page(home):
    add_trial(home, 7, [])
    page = trial_page(home, 7)
    assert (page.curve, page.best, page.scores, page.checkpoint) == ((), None, (), None)


def test_a_sparkline_keeps_the_ends_and_the_order_of_a_curve():
    assert sparkline([]) == ""
    assert sparkline([0.5]) == "▄"
    assert sparkline([0, 1]) == "▁█"
    assert sparkline([3, 2, 1]) == "█▅▁"
    long = sparkline([index / 99 for index in range(100)], 8)
    assert long == "▁▂▃▄▅▆▇█"


def test_settings_are_cut_between_values_and_never_within_one():
    params = {"temperature": 0.123456, "learning_rate": 3e-3, "queue": 4096}
    assert settings_words(params) == "temperature=0.1235 learning_rate=0.003 queue=4096"
    for width in range(60):
        words = settings_words(params, width)
        assert len(words) <= max(width, 1)
        kept = words.removesuffix("…").split()
        assert kept == settings_words(params).split()[: len(kept)]
