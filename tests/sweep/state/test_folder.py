"""A sweep's folder as other processes read it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.errors import SpecError, SweepError, UnknownNameError
from babeltune.files import write_json
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Objective, Report
from babeltune.sweep.state.folder import SweepFolder, find_run, find_sweep
from babeltune.sweep.state.leaderboard import front, leaderboard, trial_row, winner
from babeltune.sweep.state.log import Ledger, SweepLog
from babeltune.sweep.state.messages import TrialEnd
from babeltune.sweep.state.progress import is_driven, standing, sweep_document
from made_sweeps import log_trial

METRIC = "dev/everyday/accuracy"


@pytest.fixture
def sweep(tiny_file):
    return read_sweep(tiny_file)


def make(storage, sweep, name, when=0):
    folder = SweepFolder(storage / "sweeps" / name)
    folder.path.mkdir(parents=True)
    folder.write("sweep.json", sweep)
    os.utime(folder.path / "sweep.json", (when, when))
    return folder


def add(folder, sweep, number, scores, state=None, metrics=None, **params):
    """A trial with a report for each score; `metrics` replaces what the reports say."""
    place = folder.trial(number)
    place.mkdir(parents=True)
    write_json(place / "trial.json", make_trial(sweep, number, params))
    reports = []
    for i, s in enumerate(scores, 1):
        counts = {"index": i, "step": 10 * i, "pairs": 100 * i, "seconds": i}
        last = state == "finished" and i == len(scores)
        reports.append(Report(**counts, metrics=metrics or {METRIC: s, "dev/sts/spearman": 1 - s}, last=last))
    log_trial(folder, number, params, reports, state, "why" if state == "failed" else "")


def test_a_sweep_is_found_by_id_by_name_and_as_the_latest(tmp_path, sweep):
    make(tmp_path, sweep, "first-0123456789", when=1)
    make(tmp_path, sweep, "second-one-0123456789", when=3)
    make(tmp_path, sweep, "first-9876543210", when=2)
    assert find_sweep(tmp_path, None).id == "second-one-0123456789"
    assert find_sweep(tmp_path, "first").id == "first-9876543210", "the latest of that name"
    assert find_sweep(tmp_path, "first-0123456789").id == "first-0123456789"
    assert find_sweep(tmp_path, "second-one").id == "second-one-0123456789"
    assert find_sweep(tmp_path, "second-one-01").id == "second-one-0123456789", "the beginning of one id"
    words = "'first-' begins 2 sweeps: first-9876543210, first-0123456789; write more"
    with pytest.raises(UnknownNameError, match=words):
        find_sweep(tmp_path, "first-")


def test_a_name_that_fits_several_sweeps_says_which_was_taken(tmp_path, sweep, caplog):
    for when, name in enumerate(("mine-0000000001", "mine-0000000002", "other-0000000003")):
        make(tmp_path, sweep, name, when=when)
    assert find_sweep(tmp_path, "mine").id == find_sweep(tmp_path, "mine").id == "mine-0000000002"
    assert find_sweep(tmp_path, "OTH").id == find_sweep(tmp_path, "other-0000000003/").id == "other-0000000003"
    assert caplog.messages == [
        "'mine' fits 2 sweeps; this is the latest, mine-0000000002; the others: mine-0000000001",
        "'OTH' is taken for other-0000000003",
    ], "once each, and not for a whole name or id"


def test_an_unknown_sweep_names_the_nearest_and_where_it_looked(tmp_path, sweep):
    with pytest.raises(UnknownNameError, match="babeltune submit"):
        find_sweep(tmp_path, None)
    make(tmp_path, sweep, "quickstart-0123456789")
    with pytest.raises(UnknownNameError, match="did you mean 'quickstart'") as caught:
        find_sweep(tmp_path, "quickstrat")
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_trial_is_found_by_its_folder_or_its_number(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    add(folder, sweep, 7, [0.5])
    assert find_run(tmp_path, "s/t0007") == (folder, 7)
    assert find_run(tmp_path, "s/7") == (folder, 7)
    assert find_run(tmp_path, "s") == (folder, None)
    with pytest.raises(UnknownNameError, match="trials: t0007"):
        find_run(tmp_path, "s/t0008")
    for odd in ("t²", "²", "t٧", "t-7", "t" + "9" * 5000, "tt7", "t7/"):
        with pytest.raises(UnknownNameError, match=r"has no trial .*; trials: t0007") as refused:
            find_run(tmp_path, f"s/{odd}")
        assert len(str(refused.value)) < 200


def test_a_row_shows_the_best_report_and_how_far_the_trial_is(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    add(folder, sweep, 0, [0.2, 0.6, 0.4], temperature=0.1)
    row = trial_row(folder.trial(0), sweep.objectives[0])
    assert (row.best, row.reports, row.step, row.pairs, row.state) == (2, 3, 30, 300, "running")
    assert row.metrics[METRIC] == 0.6
    assert row.params == {"temperature": 0.1}
    assert trial_row(folder.trial(0), Objective(metric=METRIC, goal="minimize")).best == 1


def test_the_ledger_is_read_once_and_no_file_of_an_ended_trial(tmp_path, sweep, monkeypatch):
    folder, read, opened = make(tmp_path, sweep, "a-0123456789"), [], []
    for number in range(30):
        add(folder, sweep, number, [0.1, 0.3], "finished")
    add(folder, sweep, 30, [0.2])
    lines = (folder.path / "results.jsonl").read_bytes().count(b"\n")
    take, plainly = SweepLog.take, Path.open
    monkeypatch.setattr(SweepLog, "take", lambda log, line: read.append(line) or take(log, line))
    monkeypatch.setattr(Path, "open", lambda path, *mode, **more: opened.append(path) or plainly(path, *mode, **more))
    first = [sweep_document(folder).leaderboard for _ in range(3)]
    assert first[0] == first[1] == first[2]
    assert len(read) == lines, "each line once, whoever asks and how often"
    assert {path.parent.name for path in opened if "trials" in path.parts} <= {"t0030"}, "only the one that runs"
    Ledger(folder.path / "results.jsonl").add_end(30, "PRUNED", None, TrialEnd("pruned"))
    assert {row.name: row.state for row in sweep_document(folder).leaderboard}["t0030"] == "pruned"
    assert len(read) == lines + 1, "and only what it has gained"


def test_a_ledger_that_was_exchanged_is_read_anew(tmp_path, sweep):
    folder = make(tmp_path, sweep, "a-0123456789")
    add(folder, sweep, 0, [0.1], "finished")
    before = folder.path / "results.jsonl"
    (whole,), content = leaderboard(folder), before.read_bytes()
    before.write_bytes(content + b'{"event": "propose", "numb')
    assert leaderboard(folder) == [whole], "a line that is cut off waits for its end"
    before.write_bytes(content.replace(b'"number": 0', b'"number": 7'))
    assert [row.name for row in leaderboard(folder)] == ["t0007"]
    before.unlink()
    assert leaderboard(folder) == []


def test_a_trial_that_is_lost_is_one_row_and_the_others_are_as_before(tmp_path, sweep):
    folder = make(tmp_path, sweep, "a-0123456789")
    add(folder, sweep, 0, [0.1], "finished")
    add(folder, sweep, 1, [0.2], "finished")
    (folder.path / "owner.json").write_bytes(b"5")
    ledger = folder.path / "results.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(line for line in lines if b'"propose", "number": 1' not in line))
    assert not is_driven(folder)
    whole, cut = standing(folder)
    assert (whole.name, whole.state, cut.name, cut.state) == ("t0000", "finished", "t0001", "damaged")
    assert "results.jsonl does not say what was searched in t0001; restore it from a copy" in cut.warning
    assert winner(folder).name == "t0000"


@pytest.mark.parametrize("name", ["facts.json", "baselines.json"])
def test_what_no_trial_wrote_may_be_damaged_and_hides_none(tmp_path, sweep, name):
    folder = make(tmp_path, sweep, "a-0123456789")
    folder.set_state("finished")
    add(folder, sweep, 0, [0.1], "finished")
    (folder.path / name).write_bytes(b"")
    rows = {row.name: row for row in sweep_document(folder).leaderboard}
    assert (rows["t0000"].state, rows[name].state) == ("finished", "damaged")
    assert f"{name} is damaged" in rows[name].warning
    assert winner(folder).name == "t0000"


def test_a_lost_spec_is_one_line_that_says_how_to_go_on(tmp_path, sweep):
    folder = make(tmp_path, sweep, "a-0123456789")
    (folder.path / "sweep.json").write_bytes(b"")
    with pytest.raises(SweepError, match=r"sweep.json is damaged .*`babeltune resume a-0123456789 --spec FILE`"):
        folder.sweep()


def test_how_far_a_trial_is_may_be_damaged(tmp_path, sweep):
    folder = make(tmp_path, sweep, "a-0123456789")
    add(folder, sweep, 0, [0.1], "finished")
    (folder.trial(0) / "progress.json").write_bytes(b"")
    (row,) = leaderboard(folder)
    assert (row.state, row.steps) == ("finished", None)


def test_a_finished_trial_without_its_reports_says_so(tmp_path, sweep):
    folder = make(tmp_path, sweep, "a-0123456789")
    add(folder, sweep, 0, [0.1, 0.2], "finished")
    ledger = folder.path / "results.jsonl"
    for count in (1, 0):
        lines = ledger.read_bytes().splitlines(keepends=True)
        ledger.write_bytes(b"".join(line for line in lines if f'"index": {count + 1}'.encode() not in line))
        (row,) = leaderboard(folder)
        assert (row.reports, row.warning) == (count, "its last report is lost")


def test_the_leaderboard_sorts_by_any_metric_and_the_winner_has_finished(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    add(folder, sweep, 0, [0.3], "finished")
    add(folder, sweep, 1, [0.9], "pruned")
    add(folder, sweep, 2, [], "failed")
    add(folder, sweep, 3, [0.5, 0.4], "finished")
    folder.write("baselines.json", {"data": "", "scores": {"teacher": {METRIC: 0.7}}})
    assert [r.name for r in leaderboard(folder)] == ["t0001", "teacher", "t0003", "t0000", "t0002"]
    assert leaderboard(folder, "dev/sts/spearman")[0].name == "t0000"
    assert (winner(folder).name, winner(folder).best) == ("t0003", 1)
    with pytest.raises(UnknownNameError, match="did you mean 'dev/sts/spearman'"):
        leaderboard(folder, "dev/sts/spaerman")


def test_a_sweep_without_a_finished_trial_has_no_winner_and_says_how_to_go_on(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    with pytest.raises(SweepError, match="no trials"):
        winner(folder)
    add(folder, sweep, 0, [0.3], "pruned")
    with pytest.raises(SweepError, match=r"t0000.*pruned.*babeltune resume s-0123456789"):
        winner(folder)


def test_a_half_written_line_of_reports_is_passed_over(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    add(folder, sweep, 0, [0.3, 0.4])
    path = folder.trial(0) / "reports.jsonl"
    lines = path.read_text(encoding="utf-8")
    path.write_text(lines + lines.splitlines()[1][:40], encoding="utf-8")
    assert trial_row(folder.trial(0), sweep.objectives[0]).reports == 2


def test_the_sweep_is_read_back_as_it_was_written(tmp_path, sweep):
    folder = make(tmp_path, sweep, "s-0123456789")
    assert folder.sweep() == sweep
    assert folder.state() == "new"
    folder.set_state("failed", reason="x")
    assert folder.state() == "failed"
    assert json.loads((folder.path / "state.json").read_text(encoding="utf-8"))["reason"] == "x"
    with pytest.raises(SweepError, match=r"no sweep\.json"):
        SweepFolder(tmp_path).sweep()


def test_the_front_holds_the_trials_that_no_other_one_dominates(tmp_path, sweep):
    both = replace(sweep, objectives=(Objective(metric=METRIC), Objective(metric="dev/sts/spearman")))
    folder = make(tmp_path, both, "two-0123456789")
    for number, score in ((0, 0.2), (2, 0.4), (3, 0.7)):  # the second objective is one minus the first
        add(folder, both, number, [score], "finished")
    beaten = {METRIC: 0.6, "dev/sts/spearman": 0.3}  # t0003 has more of one and as much of the other
    add(folder, both, 1, [0.6], "finished", metrics=beaten)
    assert {row.name for row in leaderboard(folder) if row.front} == {"t0000", "t0002", "t0003"}
    assert winner(folder).front
    folder.write("sweep.json", sweep)
    assert not any(row.front for row in leaderboard(folder)), "with one objective the order says it all"


def test_a_front_may_be_of_size_and_speed_too(tmp_path, sweep):
    folder = make(tmp_path, sweep, "costs-0123456789")
    costs = [(0.5, 100, 9.0), (0.6, 200, 8.0), (0.6, 300, 8.0), (0.4, 110, 12.0), (0.4, 100, 9.0)]
    for number, (score, size, speed) in enumerate(costs):
        metrics = {METRIC: score, "model/parameters": size, "model/sentences_per_second": speed}
        add(folder, sweep, number, [score], "finished", metrics=metrics)
    add(folder, sweep, 5, [0.9], "pruned")
    noisy = {METRIC: 0.55, "model/parameters": 200, "model/sentences_per_second": 8.9}
    add(folder, sweep, 6, [0.55], "finished", metrics=noisy)
    folder.write("baselines.json", {"scores": {"teacher": {METRIC: 1.0}}})
    metrics, rows = front(folder)
    assert metrics == (METRIC, "model/parameters", "model/sentences_per_second")
    assert [row.name for row in rows] == ["t0001", "t0000", "t0003"], "the larger is the same at a higher cost"
    assert [row.name for row in front(folder, [METRIC])[1]] == ["t0001", "t0002"]
    assert [row.name for row in front(folder, ["model/parameters", METRIC])[1]] == ["t0000", "t0001"]
    with pytest.raises(UnknownNameError, match=r"no metric 'model/parameter' in .*did you mean 'model/parameters'"):
        front(folder, ["model/parameter"])
    add(folder, sweep, 7, [0.5], "finished", metrics={METRIC: 0.5, "train/loss": 0.1})
    with pytest.raises(SpecError, match="'train/loss' is of the training"):
        front(folder, ["train/loss"])


def test_a_running_trial_shows_the_step_between_its_reports(tmp_path, sweep):
    folder = make(tmp_path, sweep, "now-0123456789")
    add(folder, sweep, 0, [0.2])
    (reported,) = leaderboard(folder)
    now = {"step": 17, "steps": 40, "loss": 0.5, "seconds": reported.seconds + 9}
    write_json(folder.trial(0) / "progress.json", now)
    (row,) = leaderboard(folder)
    assert (row.step, row.steps, row.loss, row.seconds) == (17, 40, 0.5, reported.seconds + 9)
    write_json(folder.trial(0) / "progress.json", {"step": "17", "steps": None, "loss": [], "seconds": "long"})
    assert leaderboard(folder)[0] == replace(reported, steps=None, loss=None), "of a damaged one nothing is shown"
    write_json(folder.trial(0) / "progress.json", now)
    ledger = Ledger(folder.path / "results.jsonl")
    for end, seconds in ((("stop", 0), row.seconds), (("end", 0), reported.seconds)):
        ledger.add(*end, **({"state": "PRUNED", "values": None, "kind": "pruned"} if end[0] == "end" else {}))
        (ended,) = leaderboard(folder)
        assert (ended.loss, ended.seconds) == (None, seconds)
