"""Two drivers of one sweep on one Ray, which see other storages or whose lock does not hold."""

import json
import os
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

from babeltune.engine import lease as leases
from babeltune.engine.lease import heard, leased, only_driver, refuse_heard
from babeltune.engine.sweep import folder_in, submit
from babeltune.errors import SweepError
from babeltune.spec.sweep_file import sweep_id
from babeltune.sweeps.board import is_driven
from babeltune.sweeps.folder import SweepFolder, read_outcome
from babeltune.sweeps.places import OWNER

pytestmark = pytest.mark.timeout(600)

HOLD = """
import sys
import ray
from babeltune.engine.lease import leased
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
with leased(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_driver(ray_cluster):
    """Starts another process that holds a sweep's lease on the same Ray."""
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


def test_a_second_driver_with_another_storage_learns_who_runs_the_sweep_and_changes_nothing(other_driver, copied):
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
    first.wait(60)
    assert submit(sweep, cluster).state() == "finished"


def test_a_driver_whose_lock_another_machine_does_not_see_is_heard_there(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.05)
    folder = SweepFolder(tmp_path)
    with heard(folder, "10.0.0.1:6379"):
        first = folder.read(OWNER)["beat"]
        assert not is_driven(folder), "on its own machine the lock counts"
        monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        assert is_driven(folder)
        with pytest.raises(SweepError, match=r"is being run by another process.*where that machine is gone, try again"):
            refuse_heard(folder)
        with pytest.raises(SweepError, match=r"is being run by another process"):
            refuse_heard(folder, "10.0.0.2:6379")
        refuse_heard(folder, "10.0.0.1:6379")  # the lease of that Ray has fallen
        deadline = time.monotonic() + 60
        while folder.read(OWNER)["beat"] == first:
            assert time.monotonic() < deadline, "it is heard once only"
            time.sleep(0.05)
        monkeypatch.undo()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    assert not is_driven(folder), "it ended"
    folder.write(OWNER, {**folder.read(OWNER), "ended": False})
    assert is_driven(folder)
    folder.write(OWNER, {**folder.read(OWNER), "beat": time.time() - 61})
    assert not is_driven(folder), "it was killed a minute ago"


def test_of_two_drivers_that_do_not_see_one_anothers_lock_one_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.1)
    folder = SweepFolder(tmp_path)
    with heard(folder) as first, heard(folder) as second:
        deadline = time.monotonic() + 60
        ended = []
        while not ended:
            assert time.monotonic() < deadline, "both go on"
            for check in (first, second):
                try:
                    check()
                except SweepError as error:
                    ended.append((check, str(error)))
            time.sleep(0.05)
        ((loser, words),) = ended
        assert f"is being run on {socket.gethostname()}, too" in words
        time.sleep(0.5)
        (second if loser is first else first)()
    assert folder.read(OWNER)["ended"], "the other one said the last word"


def test_a_word_that_is_gone_damaged_or_of_an_earlier_driver_is_no_other_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.05)
    folder = SweepFolder(tmp_path)
    word = folder.path / OWNER

    def said_again():
        deadline = time.monotonic() + 60
        while not word.exists() or json.loads(word.read_text() or "{}").get("pid") == "stale":
            assert time.monotonic() < deadline, "the driver says no more that it lives"
            time.sleep(0.02)

    stale = {"host": "far", "pid": "stale", "session": "x", "beat": 0, "ended": False}
    folder.write(OWNER, stale)
    written = leases.SweepFolder.write

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "write", full)
    with heard(folder) as check:
        time.sleep(0.3)
        check()
        assert json.loads(word.read_text()) == stale
        monkeypatch.setattr(SweepFolder, "write", written)
        said_again()
        word.unlink()
        said_again()
        word.write_bytes(b"")
        time.sleep(0.3)
        check()
        assert json.loads(word.read_text())["session"], "it stands there again"
        folder.write(OWNER, stale)
        time.sleep(0.3)
        with pytest.raises(SweepError, match="is being run on far, too"):
            check()


def test_a_driver_that_slept_while_another_ran_the_sweep_to_its_end_does_not_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.05)
    folder = SweepFolder(tmp_path)
    last = {"host": "far", "session": "x", "beat": 0, "ended": True}
    with heard(folder) as check:
        time.sleep(0.2)
        check()
        folder.write(OWNER, last)
        time.sleep(0.3)
        with pytest.raises(leases.OvertakenError, match=r"was run on far meanwhile; .* `babeltune resume .* goes on"):
            check()
    assert folder.read(OWNER) == last, "the other's word stands"


def test_the_last_word_of_a_driver_is_not_said_over_anothers(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 60)
    folder = SweepFolder(tmp_path)
    with heard(folder):
        folder.write(OWNER, word := {"host": "far", "session": "x", "beat": 0, "ended": False})
    assert folder.read(OWNER) == word


@pytest.mark.long
def test_a_driver_that_hears_of_another_ends_its_sweep_and_keeps_its_trials(copied, monkeypatch):
    sweep, _, cluster = copied
    monkeypatch.setattr(leases, "BEAT", 0.2)
    longer = replace(sweep, budget=replace(sweep.budget, trials=6), training=replace(sweep.training, pairs=38400))

    def another(board):
        def come():
            while board.searching is None:
                time.sleep(0.1)
            folder_in(cluster, sweep_id(longer)).write(OWNER, {"host": "far", "session": "x", "beat": time.time()})

        threading.Thread(target=come, daemon=True).start()

    with pytest.raises(SweepError, match="is being run on far, too, which said so last; this driver ends"):
        submit(longer, cluster, watch=another)
    folder = folder_in(cluster, sweep_id(longer))
    assert folder.state() == "running", "as the other one left it"
    assert [read_outcome(path) for path in folder.trials()] == ["running"], "and so is the trial"
    client = MlflowClient(cluster.mlflow)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    mine = [run for run in runs if run.data.tags.get("babeltune.sweep") == folder.id]
    assert mine, runs
    assert {run.info.status for run in mine if "babeltune.baseline" not in run.data.tags} == {"RUNNING"}
