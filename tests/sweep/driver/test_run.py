"""A real sweep on a worker group of two gloo workers: what it leaves, and how it is continued; and two worker groups of
two."""

import contextlib
import functools
import json
import math
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
import optuna
import psutil
import pyarrow.parquet as pq
import pytest
import ray
import torch

from babeltune.data.prepared import read_prepared, write_prepared
from babeltune.errors import ClusterError, SpecError, SweepError
from babeltune.evaluation.metric_names import SPEED
from babeltune.files import plain, sha256_of
from babeltune.planning.recorded import sweep_from, sweep_id
from babeltune.planning.space import suggest
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report
from babeltune.signals import StopSignal, end_when_asked, interrupts
from babeltune.sweep.driver import attempt as driver
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import Recorder, _beginning
from babeltune.sweep.driver.run import folder_in, submit
from babeltune.sweep.search.study import write_study
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import leaderboard, trial_row, winner
from babeltune.sweep.state.lease import only_driver, this_driver
from babeltune.sweep.state.log import Ledger
from babeltune.sweep.state.messages import ReportMessage, TrialEnd
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.state.provenance import check_unchanged, deciding_facts
from babeltune.sweep.state.rebuild import MADE_AGAIN
from babeltune.training.checkpoint import (
    best_report,
    checkpoint_folder,
    read_reports,
    read_state,
    save_checkpoint,
    stopped_folder,
    write_reports,
)
from made_sweeps import rewrite_ledger
from notified import events_in, teller
from processes import command_line
from replays import trials_in
from toy_trials import next_message, pool_of
from waiting import PATIENCE_S, when

pytestmark = pytest.mark.usefixtures("ray_cluster")


def runs_of(folder):
    """The MLflow runs of a sweep: the parent, and the children by the tag that names them."""
    client = mlflow.MlflowClient(f"sqlite:///{folder.path.parents[1]}/mlflow.db")
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`babeltune.sweep` = '{folder.id}'")
    parent = next(r for r in runs if r.data.tags["babeltune.role"] == "sweep")
    return client, parent, {r.data.tags["babeltune.trial"]: r for r in runs if "babeltune.trial" in r.data.tags}


def ends(folder):
    lines = (folder.path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["number"] for event in map(json.loads, lines) if event["event"] == "end"]


def on_one_worker(sweep, cluster):
    """The same sweep where worker groups start fastest."""
    return replace(sweep, budget=replace(sweep.budget, workers=1)), replace(cluster, worker_groups=1)


def with_trials(sweep, trials):
    return replace(sweep, budget=replace(sweep.budget, trials=trials))


def test_the_sweep_finishes_with_the_trials_asked_for(searched):
    _, folder = searched
    assert folder.state() == "finished"
    assert sorted(ends(folder)) == [0, 1, 2, 3]
    assert not is_driven(folder)


def study_trials(folder):
    return trials_in(folder.path, folder.sweep(), functools.partial(suggest, folder.sweep().parameters))


def test_a_trial_with_an_infinite_loss_fails_with_a_reason_and_the_sweep_goes_on(searched):
    _, folder = searched
    rows = {row.name: row for row in leaderboard(folder)}
    assert rows["t0001"].state == "failed"
    assert re.match(r"step \d+: loss is (nan|inf); lower training.learning_rate", rows["t0001"].reason)
    assert [rows[name].state for name in ("t0000", "t0002", "t0003")] == ["finished"] * 3
    assert [trial.state.name for trial in study_trials(folder)] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]


def test_the_untrained_student_and_the_teacher_stand_in_the_leaderboard(searched):
    _, folder = searched
    rows = {row.name: row for row in leaderboard(folder)}
    assert rows["teacher"].metrics["dev/sts/spearman"] > 0.7
    assert rows["untrained"].metrics["dev/everyday/accuracy"] < winner(folder).metrics["dev/everyday/accuracy"]


def test_the_leaderboard_is_sorted_by_the_asked_metric_with_unscored_rows_last(searched):
    _, folder = searched
    for metric in (None, "dev/sts/spearman", "dev/everyday/xsim_error"):
        rows = leaderboard(folder, metric)
        name = metric or "dev/everyday/accuracy"
        values = [row.metrics[name] for row in rows if name in row.metrics]
        assert values == sorted(values, reverse="error" not in name)
        assert [row.name for row in rows if name not in row.metrics] == ["t0001"]


def test_mlflow_has_a_parent_with_a_child_per_trial_and_baseline(searched):
    sweep, folder = searched
    _, parent, children = runs_of(folder)
    assert parent.info.status == "FINISHED"
    assert parent.data.params["method"] == sweep.method
    assert set(children) == {*(f"t000{n}" for n in range(4)), "teacher", "untrained"}
    assert {r.data.tags["mlflow.parentRunId"] for r in children.values()} == {parent.info.run_id}
    assert {children[k].info.status for k in ("t0000", "t0002", "t0003", "teacher", "untrained")} == {"FINISHED"}
    assert children["t0001"].info.status == "FAILED"
    assert "loss is" in children["t0001"].data.tags["reason"]
    assert [children[k].data.tags["state"] for k in ("t0000", "t0001", "teacher")] == ["finished", "failed", "baseline"]
    assert all(run.info.run_name == name for name, run in children.items())


def test_the_sweeps_run_has_the_best_value_counts_cost_description_and_data(searched):
    sweep, folder = searched
    _, parent, children = runs_of(folder)
    best = next(row for row in leaderboard(folder) if row.name.startswith("t0"))
    totals = parent.data.metrics
    assert totals["best/dev/everyday/accuracy"] == best.metrics[sweep.objectives[0].metric]
    counts = {name: value for name, value in totals.items() if name.startswith("trials/")}
    assert {name: value for name, value in counts.items() if value} == {"trials/finished": 3, "trials/failed": 1}
    assert counts["trials/running"] == 0, "it was above that before"
    assert totals["cost/trial_seconds"] > 0
    note = parent.data.tags["mlflow.note.content"]
    page = f"#/experiments/{parent.info.experiment_id}/runs"
    assert f"**[{best.name}]({page}/{children[best.name].info.run_id})** is the best trial" in note
    shown = re.findall(r"^\| \[(\w+)\]\(#/experiments/\d+/runs/(\w+)\) \|", note, re.MULTILINE)
    assert shown == [(row.name, children[row.name].info.run_id) for row in leaderboard(folder)]
    assert f"The [report]({page}/{parent.info.run_id}/artifacts/report.html)" in note
    assert f"babeltune promote {folder.id}" in note
    assert parent.data.tags["state"] == "finished"
    assert {"training", "dev"} <= {each.tags[0].value for each in parent.inputs.dataset_inputs}
    assert children["t0000"].inputs.dataset_inputs
    for name, words in (("untrained", "the student before training"), ("teacher", "the teacher itself")):
        inputs = children[name].inputs.dataset_inputs
        assert {(each.dataset.name[:4], each.tags[0].value) for each in inputs} == {("dev/", "dev")}
        assert words in children[name].data.tags["mlflow.note.content"]


def test_a_run_has_forty_metrics_and_a_file_with_all(searched):
    _, folder = searched
    client, _, children = runs_of(folder)
    run = children["t0000"]
    logged, every = run.data.metrics, {n for r in read_reports(folder.trial(0)) for n in r.metrics}
    assert len(logged) <= 40
    assert {"best/dev/everyday/accuracy", "dev/everyday/accuracy", "train/loss"} <= set(logged)
    files = [f.path for f in client.list_artifacts(run.info.run_id)]
    assert ("metrics.parquet" in files) == bool(every - set(logged))
    if "metrics.parquet" in files:
        table = pq.read_table(client.download_artifacts(run.info.run_id, "metrics.parquet")).to_pylist()
        assert {row["metric"] for row in table} >= every


@pytest.mark.trap(7)
def test_each_run_records_world_size_backend_and_effective_negatives(searched):
    _, folder = searched
    _, _, children = runs_of(folder)
    for number in range(4):  # 1 failed before its first report
        tags = children[f"t000{number}"].data.tags
        assert tags["fact.world_size"] == "2"
        assert tags["fact.backend"] == "gloo"
        assert tags["fact.effective_negatives"] == "31"


@pytest.mark.trap(21, 22, 30)
def test_the_runs_record_settings_data_digests_overlaps_and_versions(searched):
    sweep, folder = searched
    client, parent, children = runs_of(folder)
    prepared = folder.read("prepared.json")
    trial = json.loads((folder.trial(2) / "trial.json").read_text(encoding="utf-8"))
    assert children["t0002"].data.params["temperature"] == "0.05"
    assert not [
        name for name in children["t0002"].data.params if name.startswith("search.") or name == "config.temperature"
    ]
    assert children["t0002"].data.params["training.learning_rate"] == "0.001"
    assert children["t0002"].data.params["seed"] == str(trial["seed"])
    assert children["t0002"].data.params["student.max_tokens"] == "32"
    assert children["t0002"].data.params["teacher.max_tokens"] == str(sweep.teacher.max_tokens)
    for run in (parent, children["t0002"]):
        assert run.data.tags["data"] == prepared["digest"]
    assert json.loads(parent.data.tags["babeltune.digests"]) == prepared["digests"]
    artifact = Path(client.download_artifacts(parent.info.run_id, "corpus.json"))
    corpus = json.loads(artifact.read_text(encoding="utf-8"))
    assert corpus["overlap"]["natural"].keys() == prepared["counts"]["overlap"]["natural"].keys()
    assert corpus["rows"] == prepared["counts"]["rows"]
    assert len(parent.data.tags) < 60, "more sets of text bring no more tags"
    assert sweep_from(json.loads(parent.data.tags["babeltune.spec"])) == sweep
    assert corpus["teacher"]["forwarded"] > 300
    assert corpus["teacher"]["truncated"] == 0
    (cut,) = corpus["truncated"].values()
    assert cut == next(iter(prepared["tokens"].values()))["truncated"] > 0, "a vocabulary of 1,000 makes long rows"
    assert any("torch" in key or "torch" in value for key, value in parent.data.tags.items())
    assert sweep.name == "searched"


def test_dev_metrics_stand_at_the_pairs_of_their_reports(searched):
    _, folder = searched
    client, _, children = runs_of(folder)
    run = children["t0000"].info.run_id
    reports = [json.loads(s) for s in (folder.trial(0) / "reports.jsonl").read_text(encoding="utf-8").splitlines()]
    history = sorted(client.get_metric_history(run, "dev/everyday/accuracy"), key=lambda m: m.step)
    expected = [(r["pairs"], r["metrics"]["dev/everyday/accuracy"]) for r in reports]
    assert [(m.step, m.value) for m in history] == expected
    batch = reports[0]["pairs"] // reports[0]["step"]
    assert [m.step for m in history] == [60 * batch, 120 * batch]
    losses = client.get_metric_history(run, "train/loss")
    assert len(losses) >= 20
    assert all(math.isfinite(m.value) for m in losses)
    memory = client.get_metric_history(run, "system/process_memory_usage_megabytes")
    assert [m.step for m in memory] == [60 * batch, 120 * batch]
    assert all(100 < m.value < 100_000 for m in memory)


def test_the_optuna_trial_names_its_run_and_checkpoint(searched, tmp_path):
    sweep, folder = searched
    _, _, children = runs_of(folder)
    write_study(sweep, folder.path, tmp_path / "study.db")
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db")
    attributes = study.get_trials()[3].user_attrs
    assert attributes["checkpoint"].endswith("t0003/checkpoints/000002")
    assert attributes["mlflow_run"] == children["t0003"].info.run_id


def test_submitting_a_finished_sweep_again_adds_nothing(copied):
    sweep, folder, cluster = copied
    before = (folder.path / "results.jsonl").read_bytes()
    assert submit(sweep, cluster).state() == "finished"
    assert (folder.path / "results.jsonl").read_bytes() == before


@pytest.mark.long
def test_resume_makes_again_what_is_said_to_be_made_again(copied):
    sweep, folder, cluster = copied

    def rows():
        shown = [plain(replace(row, steps=None)) for row in leaderboard(folder)]
        return [row | {"metrics": {k: v for k, v in row["metrics"].items() if k != SPEED}} for row in shown]

    before = rows()
    for place in (folder.path, folder.trial(0)):
        for name in MADE_AGAIN:
            (place / name).unlink(missing_ok=True)
    assert not folder.has_all_trials(sweep)
    assert submit(sweep, cluster).state() == "finished"
    assert folder.has_all_trials(sweep)
    assert rows() == before


def key_of(place, report):
    """The name of a checkpoint in a storage that is a folder."""
    return f"sweeps/{place.parents[1].name}/trials/{place.name}/checkpoints/{report:06d}"


def run_in(store, trial):
    """The client of a store, and the run of a trial in it."""
    client = mlflow.MlflowClient(store)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (run,) = [run for run in runs if run.data.tags.get("babeltune.trial") == trial]
    return client, run


def test_what_a_driver_recorded_and_did_not_send_is_sent_by_the_next_one(copied, tmp_path):
    """It died between its log and MLflow; the last report and the end of a trial are in MLflow all the same, once."""
    sweep, folder, _ = copied
    ledger, store = folder.path / "results.jsonl", f"sqlite:///{tmp_path}/other.db"
    lines = ledger.read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    last = max(at for at, event in enumerate(events) if (event["event"], event.get("number")) == ("report", 3))
    ledger.write_bytes(b"".join(lines[:last]))
    assert track(store, folder, sweep.name, key_of).close(PATIENCE_S)
    client, run = run_in(store, "t0003")
    pairs = [r.pairs for r in read_reports(folder.trial(3))]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "dev/everyday/accuracy")] == pairs[:-1]
    ledger.write_bytes(b"".join(lines))
    for _ in range(2):
        tracker = track(store, folder, sweep.name, key_of)
        with Recorder(sweep, folder, read_prepared(folder.prepared), tracker, {}, Cluster()) as recorder:
            recorder.complete = True
        assert (tracker.waiting(), tracker.refused) == (0, 0)
    client, run = run_in(store, "t0003")
    assert (run.info.status, run.data.tags["state"]) == ("FINISHED", "finished")
    for name in ("dev/everyday/accuracy", "best/dev/everyday/accuracy"):
        assert sorted(m.step for m in client.get_metric_history(run.info.run_id, name)) == pairs
    losses = [point.step for r in read_reports(folder.trial(3)) for point in r.points if "train/loss" in point.values]
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == len(losses)


def test_another_store_gets_what_the_first_one_has(copied, tmp_path):
    sweep, folder, _ = copied
    store = f"sqlite:///{tmp_path}/other.db"
    tracker = track(store, folder, sweep.name, key_of)
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 0

    def contents(uri):
        client = mlflow.MlflowClient(uri)
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        return {run.info.run_name: contents_of(client, run) for run in runs}

    def contents_of(client, run):
        id_, of_store = run.info.run_id, ("mlflow.note.content", "mlflow.parentRunId")
        tags = {key: value for key, value in run.data.tags.items() if key not in of_store}
        histories = {name: client.get_metric_history(id_, name) for name in run.data.metrics}
        values = {name: sorted((m.step, m.timestamp, m.value) for m in points) for name, points in histories.items()}
        files = {each.path for each in client.list_artifacts(id_)} & {"corpus.json", "metrics.parquet"}
        return run.info.status, run.data.params, tags, values, files

    first, second = contents(f"sqlite:///{folder.path.parents[1]}/mlflow.db"), contents(store)
    assert second == first
    assert {"t0000", "t0001", "untrained", folder.id} <= set(second)


def test_scores_of_a_report_whose_points_are_lost_are_sent_from_the_log(copied, tmp_path):
    sweep, folder, _ = copied
    reports = read_reports(folder.trial(3))
    (folder.trial(3) / "reports.jsonl").unlink()
    store = f"sqlite:///{tmp_path}/other.db"
    tracker = track(store, folder, sweep.name, key_of)
    assert tracker.close(PATIENCE_S)
    assert tracker.refused == 0
    client, run = run_in(store, "t0003")
    scores = client.get_metric_history(run.info.run_id, "dev/everyday/accuracy")
    assert sorted((m.step, m.value) for m in scores) == [(r.pairs, r.metrics["dev/everyday/accuracy"]) for r in reports]
    assert (run.info.status, "train/loss" in run.data.metrics) == ("FINISHED", False)


def test_mlflow_has_no_score_of_a_report_that_the_search_did_not_take(copied, tmp_path):
    """The trial failed at its second report, whose checkpoint and line are in its folder all the same."""
    sweep, folder, _ = copied
    reports = read_reports(folder.trial(3))
    assert best_report(reports, *sweep.objectives).index > 1

    def until_it_failed(line):
        of_others = line.get("number") != 3
        return line if of_others or (line["event"] != "end" and line.get("index", 1) == 1) else None

    rewrite_ledger(folder, until_it_failed)
    end = TrialEnd("objective", text="objective is None at report 2")
    Ledger(folder.path / "results.jsonl").add_end(3, "FAIL", None, end)
    store = f"sqlite:///{tmp_path}/other.db"
    assert track(store, folder, sweep.name, key_of).close(PATIENCE_S)
    client, run = run_in(store, "t0003")
    assert [m.step for m in client.get_metric_history(run.info.run_id, "dev/everyday/accuracy")] == [reports[0].pairs]
    assert (run.info.status, run.data.tags["reason"]) == ("FAILED", end.text)


@pytest.mark.long
def test_a_sweep_with_more_trials_goes_on_and_one_that_was_stopped_resumes(copied):
    sweep, folder, cluster = copied
    sweep, cluster = on_one_worker(with_trials(sweep, 6), cluster)
    began = folder.trial(4) / "trial.json"
    folder.write("baselines.json", {"data": "another digest", "scores": {"teacher": {"dev/sts/spearman": 0.0}}})
    stopper = when(began.exists, folder.stop_request.touch)
    submit(sweep, cluster)
    stopper.join(PATIENCE_S)
    assert folder.state() == "stopped"
    assert runs_of(folder)[1].info.status == "KILLED"
    assert len(ends(folder)) < 6
    folder.write("driver.json", this_driver())
    refusal = rf"is being run by process {os.getpid()} on .* since 20.*`babeltune stop {folder.id}` ends it"
    with pytest.raises(SweepError, match=refusal), only_driver(folder):
        submit(sweep, cluster)
    submit(sweep, cluster)
    assert folder.state() == "finished"
    assert sorted(ends(folder)) == [0, 1, 2, 3, 4, 5], "each trial ends exactly once"
    assert folder.baselines()["teacher"]["dev/sts/spearman"] > 0.7, "scores of other data were made again"
    assert {path.name for path in folder.trials()} == {f"t{n:04d}" for n in range(6)}
    assert all(trial_row(p, sweep.objectives[0]).state in ("finished", "failed") for p in folder.trials())
    _, parent, children = runs_of(folder)
    assert parent.info.status == "FINISHED"
    assert set(children) == {*(f"t000{n}" for n in range(6)), "teacher", "untrained"}


def test_changed_code_or_packages_are_refused_with_a_diff_and_accepted_on_request(copied):
    sweep, folder, cluster = copied
    facts = deciding_facts()
    folder.write("facts.json", {**facts, "torch": "1.0"})
    with pytest.raises(SweepError, match=r"\n  torch: 1\.0 → 2.*\n.*--accept-changes"):
        submit(with_trials(sweep, 9), cluster)
    assert folder.sweep().budget.trials == 4, "a refused submission leaves the folder as it was"
    assert submit(sweep, cluster, accept_changes=True).state() == "finished"
    (entry,) = folder.accepted()
    (change,), begun = entry["changes"], entry["begun"]
    assert (change["key"], change["before"], change["after"]) == ("torch", "1.0", facts["torch"])
    assert begun == [0, 1, 2, 3]
    assert folder.read("facts.json") == facts
    check_unchanged(folder, facts, accept=False)


@pytest.fixture
def heeded_hangup():
    """A process that heeds SIGHUP, also if the tests were started with `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeded_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_to_be_asked_to_end_is_ctrl_c(number):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        end_when_asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_who_started_it_with_nohup_may_leave():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end_when_asked()
        stop = StopSignal()
        with interrupts(stop, lambda: None):
            signal.raise_signal(signal.SIGHUP)
            assert not stop.stops()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeded_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_ctrl_c_is_a_request_and_the_second_ends_at_once(number):
    handler, noticed, ended = signal.getsignal(number), [], []

    def block(times):
        stop = StopSignal()
        with interrupts(stop, lambda: noticed.append(times)):
            for _ in range(times):
                signal.raise_signal(number)
            assert stop.stops() == (times > 0)
            ended.append(times)

    block(0)
    block(1)
    with pytest.raises(KeyboardInterrupt):
        block(2)
    assert ended == [0, 1], "the second cuts it off"
    assert noticed == [1, 2]
    assert signal.getsignal(number) is handler


def test_a_sweep_that_does_not_fit_is_refused_before_anything_is_prepared(copied, tmp_path):
    sweep, _, cluster = copied
    cluster = replace(cluster, notify=(teller(tmp_path / "events"),))
    large = replace(sweep, seed=9, budget=replace(sweep.budget, workers=64))
    with pytest.raises(ClusterError, match=r"a worker group of 64 workers .* does not fit"):
        submit(large, cluster)
    assert not SweepFolder(cluster.folder / "sweeps" / sweep_id(large)).prepared.exists()
    ((event, text),) = events_in(tmp_path / "events")
    assert event == "failure"
    assert text.startswith(f"sweep {sweep_id(large)} failed: a worker group of 64 workers")


def test_the_log_says_from_which_checkpoint_a_trial_goes_on(tmp_path):
    def saved(place):
        save_checkpoint(place, {"student": {"w": torch.ones(5)}}, {"reports": 1})

    assert _beginning(tmp_path) == "begins"
    saved(stopped_folder(tmp_path))
    assert _beginning(tmp_path) == "goes on after 0 reports"
    saved(checkpoint_folder(tmp_path, 1))
    report = Report(index=1, step=1, pairs=1, seconds=1.0, metrics={})
    write_reports(tmp_path, [report])
    assert _beginning(tmp_path) == "goes on after 1 report"
    (checkpoint_folder(tmp_path, 1) / "student.safetensors").write_bytes(b"")
    damaged = f"goes on without its latest checkpoint, which is damaged: {checkpoint_folder(tmp_path, 1)}"
    assert _beginning(tmp_path) == damaged


def test_a_stop_during_preparation_is_noticed(copied, tmp_path):
    sweep, folder, cluster = copied
    cluster = replace(cluster, notify=(teller(tmp_path / "events"),))
    sweep, cluster = on_one_worker(replace(with_trials(sweep, 1), seed=7), cluster)
    stopped = submit(sweep, cluster, watch=lambda board: board.folder.stop_request.touch())
    assert stopped.id != folder.id
    assert stopped.state() == "stopped"
    assert not stopped.prepared.exists()
    assert events_in(tmp_path / "events") == [("end", f"sweep {stopped.id} is stopped after 0 trials")]


def test_a_stop_is_noticed_by_a_driver_that_is_starting(copied, monkeypatch):
    sweep, folder, cluster = copied
    connect = driver.connected
    starting = replace(with_trials(sweep, 1), seed=8)
    started = folder_in(cluster, sweep_id(starting))

    def slowly(*arguments, **options):
        assert is_driven(started)
        started.stop_request.touch()
        return connect(*arguments, **options)

    monkeypatch.setattr(driver, "connected", slowly)
    assert submit(starting, cluster).id == started.id != folder.id
    assert started.state() == "stopped"
    assert not started.trials()


@contextlib.contextmanager
def all_cpus_held():
    """As another sweep holds them."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import this file
    holder = ray.remote(num_cpus=4)(LeaseActor).remote()
    ray.get(holder.ready.remote())
    try:
        yield
    finally:
        ray.kill(holder)


class LeaseActor:
    def ready(self):
        return True


@pytest.mark.long
def test_a_stop_is_noticed_while_another_sweep_holds_the_cluster(copied, monkeypatch):
    """By the tasks of the preparation, and by the worker groups that cannot open."""
    monkeypatch.setattr("babeltune.sweep.workers.pool.NO_ROOM_NOTICE_S", 0.5)
    sweep, _, cluster = copied
    sweep, cluster = on_one_worker(with_trials(sweep, 5), cluster)
    for seed, waiting in ((7, "scoring the untrained student"), (sweep.seed, "the cluster has no room")):
        second = replace(sweep, seed=seed)
        folder = SweepFolder(cluster.folder / "sweeps" / sweep_id(second))
        noticed = functools.partial(lambda folder, words: words in read_log(folder), folder, waiting)
        with all_cpus_held():
            stopping = when(noticed, folder.stop_request.touch)
            assert submit(second, cluster).state() == "stopped"
        stopping.join(PATIENCE_S)
    _, parent, _ = runs_of(folder)
    assert parent.info.status == "KILLED"
    assert "a worker wants 1 CPUs and 0 GPUs, and 0 and 0 are free; waiting" in read_log(folder)


def test_a_sweep_whose_nodes_do_not_come_is_stopped_or_ends_in_words(copied):
    sweep, folder, cluster = copied
    more = replace(sweep, budget=replace(sweep.budget, trials=5, workers=64))

    line = "waiting for nodes: asked for 64 × {CPU: 1}"
    stopping = when(lambda: line in read_log(folder), folder.stop_request.touch)
    submit(more, replace(cluster, nodes_within=600.0))
    stopping.join()
    assert folder.state() == "stopped"
    words = r"no nodes have come within 0.5 s \(`nodes_within`\), asked for 64 × {CPU: 1}"
    with pytest.raises(ClusterError, match=words):
        submit(more, replace(cluster, nodes_within=0.5))
    assert folder.state() == "failed"
    assert not [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]


def test_a_storage_that_cannot_be_written_is_an_error_in_words(copied, tmp_path):
    sweep, _, cluster = copied
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SpecError, match=r"file is not a folder; set BABELTUNE_HOME"):
        submit(sweep, replace(cluster, storage=str(tmp_path / "file")))
    with pytest.raises(ClusterError, match=r"below cannot be written \(Not a directory\); set BABELTUNE_HOME"):
        submit(sweep, replace(cluster, storage=str(tmp_path / "file" / "below")))


def test_a_warm_start_that_cannot_be_had_is_refused_before_preparation(copied):
    sweep, _, cluster = copied
    sweep = replace(sweep, seed=8, sampler=replace(sweep.sampler, warm_start="searched", points=()))
    other = replace(sweep, objectives=(replace(sweep.objectives[0], metric="dev/sts/spearman"),))
    boards = []
    with pytest.raises(SpecError, match=r"sampler\.warm_start: sweep searched-\w+ has other objectives"):
        submit(other, cluster, watch=boards.append)
    assert [board.stage for board in boards] == ["starting"]


@pytest.mark.long
def test_two_ranks_stop_together_between_reports_and_go_on_at_that_step(ray_cluster, tiny, tmp_path):
    sweep, prepared = tiny
    sweep = replace(sweep, training=replace(sweep.training, pairs=19200, reports=1))
    sweep = replace(sweep, student=replace(sweep.student, dropout=0.1))
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    write_prepared(prepared, folder.prepared)
    trial = assignment(sweep, folder, 0, {})
    run = "babeltune.sweep.workers.run_trial:run"
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    places = {"cut": cut, "again": cut, "whole": whole}
    with pool_of(count=1, workers=2, cpus_per_worker=1, gpus_per_worker=0, run_trial=run, storage=tmp_path) as pool:
        for name, place in places.items():
            place.mkdir(exist_ok=True)
            pool.dispatcher.offer(name, replace(trial, folder=str(place)))
            if name == "cut":
                when((place / "progress.json").exists, lambda: pool.dispatcher.stop("cut"))
                assert next_message(pool, name).end == TrialEnd("stopped")
                step = read_state(stopped_folder(place))["interval"]["step"]
                assert 0 < step < 600
            else:
                assert next_message(pool, name).report.step == 600
                assert next_message(pool, name).end == TrialEnd("finished")
    assert not stopped_folder(cut).exists()
    for tensors in ("student", "optimizer"):
        one, other = (sha256_of(checkpoint_folder(place, 1) / f"{tensors}.safetensors") for place in (cut, whole))
        assert one == other


@pytest.mark.long
def test_a_trial_in_a_used_group_equals_the_same_in_a_fresh_one(ray_cluster, tiny, tmp_path):
    """Bit for bit, although another one came between, which left everything in disorder."""
    sweep, prepared = tiny
    other = replace(
        sweep,
        seed=7,
        student=replace(sweep.student, layers=2, dropout=0.2),
        training=replace(sweep.training, clip=None),
    )
    sweep = replace(sweep, student=replace(sweep.student, dropout=0.1))
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    write_prepared(prepared, folder.prepared)
    fresh, between = assignment(sweep, folder, 0, {}), assignment(other, folder, 1, {})
    trials = {"fresh": fresh, "between": between, "used": fresh}
    run, digests = "toy_trials:train_for_real", {}
    with pool_of(count=1, workers=1, cpus_per_worker=1, gpus_per_worker=0, run_trial=run, storage=tmp_path) as pool:
        for name, trial in trials.items():
            place = tmp_path / name
            place.mkdir()
            pool.dispatcher.offer(name, replace(trial, folder=str(place)))
            assert [next_message(pool, name).report.index for _ in range(2)] == [1, 2]
            assert next_message(pool, name).end == TrialEnd("finished")
            last = checkpoint_folder(place, 2)
            digests[name] = [sha256_of(last / f"{tensors}.safetensors") for tensors in ("student", "optimizer")]
    assert digests["fresh"] == digests["used"] != digests["between"]


@pytest.mark.long
def test_two_groups_of_two_train_the_same_weights_although_a_worker_of_one_is_killed(ray_cluster, tiny, tmp_path):
    sweep, prepared = tiny
    sweep = replace(sweep, training=replace(sweep.training, reports=4), student=replace(sweep.student, dropout=0.1))
    folder = SweepFolder(tmp_path / "sweep")
    folder.path.mkdir()
    write_prepared(prepared, folder.prepared)
    trial = assignment(sweep, folder, 0, {})
    names = ("one", "other")
    places = {name: tmp_path / name for name in names}
    reports = {name: [] for name in names}
    run = "babeltune.sweep.workers.run_trial:run"
    storage = tmp_path / "groups"
    with pool_of(count=2, workers=2, cpus_per_worker=1, gpus_per_worker=0, run_trial=run, storage=storage) as pool:
        for name in names:
            places[name].mkdir()
            pool.dispatcher.offer(name, replace(trial, folder=str(places[name])))
        running = list(names)
        while running:
            for name in list(running):
                message = next_message(pool, name)
                if isinstance(message, ReportMessage):
                    reports[name].append(message.report.index)
                else:
                    assert message.end == TrialEnd("finished")
                    running.remove(name)
            if all(numbers == [1] for numbers in reports.values()):
                children = psutil.Process().children(recursive=True)
                ranks = [p for p in children if command_line(p)[:1] == ["ray::RayTrainWorker"]]
                assert len(ranks) == 4
                ranks[1].kill()
    assert reports == {name: [1, 2, 3, 4] for name in names}
    for tensors in ("student", "optimizer"):
        one, other = (sha256_of(checkpoint_folder(places[name], 4) / f"{tensors}.safetensors") for name in names)
        assert one == other
