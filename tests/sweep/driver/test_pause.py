"""A sweep, or one of its trials, that is paused and continued while its driver lives."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import ray

from audits import read_audit
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.cluster import read_cluster
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.sync.view import StorageView
from babeltune.training.checkpoint import checkpoint_folder, read_reports
from conftest import cluster_at
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def long_sweep(tiny_file):
    """Two trials of some seconds each, one after the other."""
    return read_sweep(tiny_file, assignments=["name=long", "training.pairs=25600", "training.reports=4"])


@pytest.fixture(scope="module")
def undisturbed(long_sweep, with_stores, tmp_path_factory, ray_cluster):
    """The folder of the sweep that nobody paused."""
    return submit(long_sweep, cluster_at(with_stores(tmp_path_factory.mktemp("undisturbed"))))


@contextmanager
def driven(sweep, cluster, storage):
    """The sweep while a thread drives it, once its first trial has reported: its folder, and what waits for its end."""
    folder = SweepFolder(storage / "sweeps" / sweep_id(sweep))
    thread = threading.Thread(target=submit, args=(sweep, cluster), daemon=True)
    thread.start()
    try:
        wait_until(lambda: read_reports(folder.trial(0)))
        yield folder, lambda: thread.join(PATIENCE_S)
    finally:
        folder.stop_request.touch()
        thread.join(PATIENCE_S)


@pytest.fixture
def running(long_sweep, with_stores, tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(with_stores(tmp_path)))
    with driven(long_sweep, cluster_at(tmp_path), tmp_path) as running:
        yield running


def events(folder, *kinds):
    lines = map(json.loads, (folder.path / LEDGER).read_text(encoding="utf-8").splitlines())
    return [(line["event"], line.get("number")) for line in lines if line["event"] in kinds]


def free_cpus():
    return ray.available_resources().get("CPU", 0)


def weights(folder, number):
    last = read_reports(folder.trial(number))[-1].index
    return (checkpoint_folder(folder.trial(number), last) / "student.safetensors").read_bytes()


def scores(report):
    """All of a report that is no measured time."""
    return report.index, report.step, report.pairs, {k: v for k, v in report.metrics.items() if k.startswith("dev/")}


def same_as(folder, other, trials=2):
    """Whether all reports have the same scores and the last checkpoints the same bytes."""
    for number in range(trials):
        ours, others = (list(map(scores, read_reports(each.trial(number)))) for each in (folder, other))
        assert ours == others
        assert weights(folder, number) == weights(other, number)
    return True


def test_a_paused_sweep_gives_its_workers_back_and_goes_on_bit_by_bit(running, command, undisturbed):
    folder, end = running
    busy = free_cpus()
    assert command("pause", "long")[0] == 0
    wait_until(lambda: folder.state() == "paused")
    wait_until(lambda: free_cpus() > busy)
    assert not log_of(folder.path).trials[0].end, "it was in the middle of a trial"
    assert "paused" in command("status", "long")[1]
    assert command("pause", "long") == (1, "", f"error: sweep {folder.id} is paused already\n")
    assert command("continue", "long")[0] == 0
    end()
    assert folder.state() == "finished"
    assert events(folder, "start", "stop", "pause", "continue", "end") == [
        *[("start", 0), ("pause", None), ("stop", 0), ("continue", None), ("start", 0), ("end", 0)],
        *[("start", 1), ("end", 1)],
    ]
    assert same_as(folder, undisturbed)
    actions = [(line.action, line.subject) for line in read_audit(folder.path.parents[1])]
    assert actions[1:] == [("pause", folder.id), ("continue", folder.id)]


def test_a_paused_trial_lets_the_next_one_train_and_goes_on_bit_by_bit(running, command, undisturbed):
    folder, end = running
    assert command("pause", "long/t0000")[0] == 0
    wait_until(lambda: read_reports(folder.trial(1)))
    wait_until(lambda: folder.state() == "paused")  # nothing is left but the paused trial
    assert log_of(folder.path).trials[1].state == "finished"
    code, _, err = command("pause", "long", "t0001")
    assert (code, err) == (1, f"error: {folder.id}/t0001 has ended: finished\n")
    assert command("continue", "long", "0")[0] == 0
    end()
    assert folder.state() == "finished"
    assert events(folder, "stop", "end") == [("stop", 0), ("end", 1), ("end", 0)]
    assert same_as(folder, undisturbed)


def test_a_paused_sweep_can_be_stopped_and_resuming_continues_it(running, command, long_sweep, undisturbed):
    folder, end = running
    assert command("pause", "long")[0] == 0
    wait_until(lambda: folder.state() == "paused")
    folder.stop_request.touch()
    end()
    assert folder.state() == "stopped"
    code, _, err = command("continue", "long")
    assert (code, err.count("\n")) == (1, 1)
    assert f"does not run, it is stopped; `babeltune resume {folder.id}` goes on" in err
    submit(long_sweep, cluster_at(folder.path.parents[1]))
    assert folder.state() == "finished"
    assert same_as(folder, undisturbed)


HALVING = """
name: halving
parameters: {training.learning_rate: {choice: [3.0e-3, 1.0e-4, 1.0e-5]}}
training: {pairs: 12800, reports: 4}
sampler: {kind: random, points: [{training.learning_rate: 3.0e-3}, {training.learning_rate: 1.0e-4},
  {training.learning_rate: 1.0e-5}]}
scheduler: {kind: asha, grace: 1, reduction: 2}
budget: {trials: 3}
"""
"""The second and the third trial are stopped early, for what the first one has reported."""


def ends(folder):
    """How each trial ended, after how many reports."""
    return {trial.number: (trial.state, len(trial.reports)) for trial in log_of(folder.path).trials.values()}


def test_asha_stops_the_same_trials_after_a_pause(command, tiny_file, with_stores, tmp_path, monkeypatch, ray_cluster):
    overlay = tmp_path / "halving.yaml"
    overlay.write_text(HALVING, encoding="utf-8")
    sweep = read_sweep(tiny_file, overlays=[overlay])
    undisturbed = submit(sweep, cluster_at(with_stores(tmp_path / "undisturbed")))
    assert [state for state, _ in ends(undisturbed).values()] == ["finished", "pruned", "pruned"]
    storage = with_stores(tmp_path / "paused")
    monkeypatch.setenv("BABELTUNE_HOME", str(storage))
    with driven(sweep, cluster_at(storage), storage) as (folder, end):
        assert command("pause", "halving/t0000")[0] == 0  # its rungs are what the next trials are compared with
        wait_until(lambda: read_reports(folder.trial(1)))
        assert command("pause", "halving")[0] == 0
        wait_until(lambda: folder.state() == "paused")
        assert command("continue", "halving")[0] == 0
        assert command("continue", "halving/t0000")[0] == 0
        end()
        assert folder.state() == "finished"
        assert ends(folder) == ends(undisturbed)
        assert same_as(folder, undisturbed, trials=3)


def test_a_sweep_of_two_ranks_in_a_bucket_is_paused_on_another_machine_and_goes_on(
    command, long_sweep, tmp_path, s3, ray_cluster
):
    sweep = replace(long_sweep, budget=replace(long_sweep.budget, workers=2))
    machines = {}
    for name in ("one", "two"):
        machines[name] = tmp_path / f"{name}.yaml"
        machines[name].write_text(
            f"version: 1\nstorage: {s3.uri}/{tmp_path.name}\ncache: {tmp_path}/{name}\nworkers: 2\n"
            f"mlflow: sqlite:///{tmp_path}/mlflow.db\nworker_groups: 1\n"
        )
    cluster = read_cluster(machines["one"])
    with driven(sweep, cluster, StorageView(cluster).folder) as (folder, end):
        busy = free_cpus()
        assert command("pause", "long", "--cluster", machines["two"])[0] == 0
        wait_until(lambda: folder.state() == "paused")
        wait_until(lambda: free_cpus() >= busy + 2)
        wait_until(lambda: ": paused" in command("status", "long", "--cluster", machines["two"])[1])
        assert command("continue", "long", "--cluster", machines["two"])[0] == 0
        end()
        assert folder.state() == "finished"
        assert events(folder, "pause", "stop", "continue") == [("pause", None), ("stop", 0), ("continue", None)]
        assert [state for state, _ in ends(folder).values()] == ["finished"] * 2
