"""Two drivers of one sweep on one Ray, which see other storages or whose lock does not hold."""

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import ray
from mlflow import MlflowClient

from babeltune.errors import SweepError
from babeltune.planning.sweep_file import sweep_id
from babeltune.sweep.driver.run import folder_in, submit
from babeltune.sweep.state import lease as leases
from babeltune.sweep.state.folder import SweepFolder, read_outcome
from babeltune.sweep.state.heartbeat import OWNER
from babeltune.sweep.state.lease import heartbeats, leased, only_driver, refuse_if_driven
from babeltune.sweep.state.progress import is_driven
from waiting import PATIENCE_S, wait_until, when

HOLD = """
import sys
import ray
from babeltune.sweep.state.lease import leased
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
with leased(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_driver(ray_cluster, monkeypatch):
    """Starts another process that holds a sweep's lease on the same Ray, which may be slow to let it fall."""
    monkeypatch.setattr(leases, "LEASE_TIMEOUT_S", PATIENCE_S)
    started = []

    def start(sweep):
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-c", HOLD, address, sweep]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_second_driver_with_another_storage_learns_who_runs_the_sweep(other_driver, copied):
    sweep, folder, cluster = copied
    first = other_driver(folder.id)
    elsewhere = replace(cluster, storage=f"{cluster.storage}-of-another-host")
    said = rf"is being run by process {first.pid} on {socket.gethostname()} since 20.*`babeltune stop {folder.id}` ends"
    with pytest.raises(SweepError, match=said):
        submit(sweep, elsewhere)
    assert [path.name for path in folder_in(elsewhere, folder.id).path.iterdir()] == ["driver.lock"]
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(SweepError, match=said):
        submit(replace(sweep, budget=replace(sweep.budget, trials=9)), cluster)
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file() and path in before} == before
    with leased("another-sweep"):
        pass
    first.send_signal(signal.SIGKILL)
    assert submit(sweep, cluster).state() == "finished", "the lease falls with its driver"
    with leased(folder.id), pytest.raises(SweepError, match=f"process {os.getpid()} on"), leased(folder.id):
        pass


def test_a_lock_that_does_not_hold_leaves_the_lease(other_driver, copied):
    sweep, folder, cluster = copied
    with only_driver(folder):
        (folder.path / "driver.lock").unlink()  # so that another one can be taken, as where locks are only advice
        first = other_driver(folder.id)
        with pytest.raises(SweepError, match=f"is being run by process {first.pid}"):
            submit(sweep, cluster)
    first.stdin.close()
    first.wait(PATIENCE_S)
    assert submit(sweep, cluster).state() == "finished"


def test_a_driver_whose_lock_another_machine_does_not_see_is_noticed_there(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.05)
    folder = SweepFolder(tmp_path)
    with heartbeats(folder, "10.0.0.1:6379"):
        first = folder.read(OWNER)["beat"]
        assert not is_driven(folder), "on its own machine the lock counts"
        monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        assert is_driven(folder)
        with pytest.raises(SweepError, match=r"is being run by another process.*where that machine is gone, try again"):
            refuse_if_driven(folder)
        with pytest.raises(SweepError, match=r"is being run by another process"):
            refuse_if_driven(folder, "10.0.0.2:6379")
        refuse_if_driven(folder, "10.0.0.1:6379")  # the lease of that Ray has fallen
        wait_until(lambda: folder.read(OWNER)["beat"] != first)
        monkeypatch.undo()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    assert not is_driven(folder), "it ended"
    folder.write(OWNER, {**folder.read(OWNER), "ended": False})
    assert is_driven(folder)
    folder.write(OWNER, {**folder.read(OWNER), "beat": time.time() - 61})
    assert not is_driven(folder), "it was killed a minute ago"


def refused(*checks):
    """The first of them that raises since its driver has read another's heartbeat, and the error's text."""
    for check in checks:
        try:
            check()
        except SweepError as error:
            return check, str(error)
    return None


def test_of_two_drivers_that_do_not_see_one_anothers_lock_one_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.1)
    folder = SweepFolder(tmp_path)
    with heartbeats(folder) as first, heartbeats(folder) as second:
        loser, words = wait_until(lambda: refused(first, second))
        assert f"is being run on {socket.gethostname()}, too" in words
        beats = set()
        wait_until(lambda: beats.add(folder.read(OWNER)["beat"]) or len(beats) > 2)
        (second if loser is first else first)()
    assert folder.read(OWNER)["ended"], "the other one said the last word"


STALE = {"host": "far", "pid": "stale", "session": "x", "beat": 0, "ended": False}
"""The word of a driver on another machine."""


def replaced(heartbeat, by):
    """Waits until the driver of this process has written again over what `heartbeat` has now, or that is gone."""

    def written():
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return json.loads(heartbeat.read_text())["session"] != by["session"]

    wait_until(written)


def overruled(folder, check, by):
    """Writes another driver's heartbeat until this one has read it: this driver's own heartbeat may overwrite one."""

    def refused_now():
        folder.write(OWNER, by)
        return refused(check)

    return wait_until(refused_now)[1]


def test_a_driver_whose_disk_is_full_is_not_overtaken_by_an_earlier_word(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.05)
    folder, written, tried = SweepFolder(tmp_path), SweepFolder.write, []
    folder.write(OWNER, STALE)

    def full(*_):
        tried.append("it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "write", full)
    with heartbeats(folder) as check:
        wait_until(lambda: len(tried) > 3)
        check()
        assert folder.read(OWNER) == STALE
        monkeypatch.setattr(SweepFolder, "write", written)
        replaced(folder.path / OWNER, STALE)
        check()


def test_a_driver_whose_own_word_is_gone_or_damaged_says_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.05)
    folder = SweepFolder(tmp_path)
    heartbeat = folder.path / OWNER
    with heartbeats(folder) as check:
        for damage in (heartbeat.unlink, lambda: heartbeat.write_bytes(b"")):
            damage()
            replaced(heartbeat, STALE)
            check()
        assert "is being run on far, too" in overruled(folder, check, STALE)


def test_a_driver_that_slept_while_another_ran_the_sweep_to_its_end_does_not_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.05)
    folder = SweepFolder(tmp_path)
    last = {"host": "far", "session": "x", "beat": 0, "ended": True}
    with heartbeats(folder) as check:
        check()
        words = overruled(folder, check, last)
        assert re.search(r"was run on far meanwhile; .* `babeltune resume .* goes on", words)
        with pytest.raises(leases.OvertakenError):
            check()
    assert folder.read(OWNER) == last, "the other's word stands"


def test_the_last_word_of_a_driver_is_not_said_over_anothers(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 60)
    folder = SweepFolder(tmp_path)
    with heartbeats(folder):
        folder.write(OWNER, heartbeat := {"host": "far", "session": "x", "beat": 0, "ended": False})
    assert folder.read(OWNER) == heartbeat


@pytest.mark.long
def test_a_driver_that_hears_of_another_ends_its_sweep_and_keeps_its_trials(copied, monkeypatch):
    sweep, _, cluster = copied
    monkeypatch.setattr(leases, "HEARTBEAT_INTERVAL_S", 0.2)
    longer = replace(sweep, budget=replace(sweep.budget, trials=6), training=replace(sweep.training, pairs=38400))

    ended = threading.Event()

    def another(board):
        place = folder_in(cluster, sweep_id(longer))
        other = {"host": "far", "session": "x", "beat": time.time()}
        comes = functools.partial(wait_until, lambda: place.write(OWNER, other) or ended.is_set())
        when(lambda: board.searching is not None, comes)

    with pytest.raises(SweepError, match="is being run on far, too, which said so last; this driver ends"):
        submit(longer, cluster, watch=another)
    ended.set()
    folder = folder_in(cluster, sweep_id(longer))
    assert folder.state() == "running", "as the other one left it"
    assert [read_outcome(path) for path in folder.trials()] == ["running"], "and so is the trial"
    client = MlflowClient(cluster.mlflow)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    mine = [run for run in runs if run.data.tags.get("babeltune.sweep") == folder.id]
    assert mine, runs
    assert {run.info.status for run in mine if "babeltune.baseline" not in run.data.tags} == {"RUNNING"}
