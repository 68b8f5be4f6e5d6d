"""A sweep, or one of its trials, that is paused and continued while its driver lives."""

import json
import threading

import pytest
import ray

from audits import read_audit
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, log_of
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


@pytest.fixture
def running(long_sweep, with_stores, tmp_path, monkeypatch):
    """The sweep while a thread drives it: its folder, and what waits for its end."""
    monkeypatch.setenv("BABELTUNE_HOME", str(with_stores(tmp_path)))
    folder = SweepFolder(tmp_path / "sweeps" / sweep_id(long_sweep))
    thread = threading.Thread(target=submit, args=(long_sweep, cluster_at(tmp_path)), daemon=True)
    thread.start()
    wait_until(lambda: read_reports(folder.trial(0)))
    yield folder, lambda: thread.join(PATIENCE_S)
    folder.stop_request.touch()
    thread.join(PATIENCE_S)


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


def same_as(folder, other):
    """Whether all reports have the same scores and the last checkpoints the same bytes."""
    for number in range(2):
        ours, theirs = (list(map(scores, read_reports(each.trial(number)))) for each in (folder, other))
        assert ours == theirs
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
