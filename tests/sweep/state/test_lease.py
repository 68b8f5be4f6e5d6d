"""Two drivers of one sweep on one Ray, which see other storages or whose lock does not hold."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from mlflow import MlflowClient

from babeltune.errors import FencedError, SweepError
from babeltune.files import write_json
from babeltune.machine import lives
from babeltune.planning.recorded import sweep_id
from babeltune.sweep.driver.run import folder_in, submit
from babeltune.sweep.state import fencing
from babeltune.sweep.state import lease as leases
from babeltune.sweep.state.fencing import (
    OWNER,
    Clock,
    DrivenError,
    FileLease,
    Lease,
    LeaseExpiredError,
    OvertakenError,
    acquire,
)
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.lease import folder_lease, leased, only_driver
from babeltune.sweep.state.progress import is_driven
from babeltune.training.checkpoint import PROGRESS, write_reports
from made_sweeps import states
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
    monkeypatch.setattr(leases, "RAY_LEASE_TIMEOUT_S", PATIENCE_S)
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


@pytest.mark.long
def test_a_second_driver_with_another_storage_learns_who_runs_the_sweep(other_driver, copied):
    sweep, folder, cluster = copied
    first = other_driver(folder.id)
    elsewhere = replace(cluster, storage=f"{cluster.storage}-of-another-host")
    message = (
        rf"is being run by process {first.pid} on {socket.gethostname()} since 20.*`babeltune stop {folder.id}` ends"
    )
    with pytest.raises(SweepError, match=message):
        submit(sweep, elsewhere)
    assert [path.name for path in folder_in(elsewhere, folder.id).path.iterdir()] == ["driver.lock"]
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(SweepError, match=message):
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


@pytest.fixture
def quick(monkeypatch):
    """Leases are renewed often."""
    monkeypatch.setattr(fencing, "RENEWAL_INTERVAL_S", 0.05)


def far_lease(folder, **more):
    """Writes the lease of a driver on another machine, and returns it."""
    lease = fencing.Lease(host="far", folder="/x", **more)
    write_json(folder.path / OWNER, lease)
    return lease


def refused(check):
    """The error's text once the check raises that another driver has the lease."""
    try:
        check()
    except SweepError as error:
        return str(error)
    return None


@contextlib.contextmanager
def overtaking(folder, ray_at=""):
    """Takes the lease of a driver that is known to be dead, although it still renews it.

    A renewal between the taker's look and its write is refused, and rightly: it is tried again."""

    def tried():
        with contextlib.suppress(DrivenError):
            return stack.enter_context(folder_lease(folder, ray_at))

    with contextlib.ExitStack() as stack:
        yield wait_until(tried)


def test_a_driver_whose_lock_another_machine_does_not_see_is_noticed_there(tmp_path, quick, monkeypatch):
    folder = SweepFolder(tmp_path)
    with folder_lease(folder, "10.0.0.1:6379") as lease:
        first = folder.read(OWNER)["renewals"]
        assert not is_driven(folder), "on its own machine the lock counts"
        monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        assert is_driven(folder)
        for ray_at in ("", "10.0.0.2:6379"):
            with pytest.raises(DrivenError, match=r"is being run on .*, whose last heartbeat was"):
                folder_lease(folder, ray_at).__enter__()
        with overtaking(folder, "10.0.0.1:6379") as second:  # the lease of that Ray has fallen
            assert second.token == lease.token + 1
            assert "taken over by another-host" in wait_until(lambda: refused(lease.check))
        assert folder.read(OWNER)["renewals"] != first
    assert not is_driven(folder), "it ended"
    far_lease(folder, beat=time.time())
    assert is_driven(folder)
    far_lease(folder, beat=time.time() - 61)
    assert not is_driven(folder), "it was killed a minute ago"


def test_a_holder_that_renews_after_the_last_look_is_running_the_sweep(tmp_path):
    record, now = FileLease(tmp_path), iter(range(100))
    holder = far_lease(SweepFolder(tmp_path), expiry_s=2)
    swap = record.swap

    def late(lease, expected, *, takeover=False):
        far_lease(SweepFolder(tmp_path), session=holder.session, renewals=1)
        return swap(lease, expected, takeover=takeover)

    record.swap = late
    with pytest.raises(DrivenError, match="is being run on far, whose last heartbeat was"):
        acquire(record, Lease(), clock=Clock(lambda: next(now), lambda _: None))


def test_a_driver_that_another_one_overtook_writes_nothing_more(tmp_path, quick):
    folder = SweepFolder(tmp_path)
    with folder_lease(folder) as first:
        driven = replace(folder, guard=first.guard)
        driven.write("state.json", {"state": "first"})
        with overtaking(folder) as second:  # whose lock does not see the first one's
            with pytest.raises(OvertakenError, match="was taken over by"):
                driven.write("state.json", {"state": "late"})
            driven.note("nor a line in the log")
            assert not folder.log.exists()
            assert folder.state() == "first"
            second.check()
    assert folder.read(OWNER)["token"] == second.token
    assert folder.read(OWNER)["ended"], "the other one gave it back"


def test_a_lease_is_taken_once_its_holder_was_silent_for_as_long_as_it_says(tmp_path, quick):
    folder = SweepFolder(tmp_path)
    lease = far_lease(folder, token=7, beat=time.time() + 3600, expiry_s=0.4)
    with folder_lease(folder) as new_lease:
        assert new_lease.token == 8
        assert f"waiting for the lease of {lease.host}" in folder.log.read_text()


def test_a_worker_of_an_earlier_driver_writes_nothing_more(tmp_path, quick):
    folder = SweepFolder(tmp_path)
    with folder_lease(folder) as first:
        fence = fencing.FolderFence(folder.path, first.token)
        with fence():
            write_reports(folder.trial(0), [])
        far_lease(folder, token=first.token + 1)
        with (
            pytest.raises(FencedError, match=r"taken over by far \(token 2, this trial has 1\); nothing more"),
            fence(),
        ):
            write_reports(folder.trial(1), [])
    assert not folder.trial(1).exists()
    assert Lease.read((tmp_path / OWNER).read_bytes()).host == "far", "the other's lease stands"


def test_a_driver_whose_disk_is_full_keeps_its_lease(tmp_path, quick, monkeypatch):
    folder, tried = SweepFolder(tmp_path), []

    def full(*_, **__):
        tried.append("it")
        raise OSError(28, "No space left on device")

    with folder_lease(folder) as lease:
        changed = (tmp_path / OWNER).stat().st_mtime_ns
        monkeypatch.setattr(fencing, "write_whole", full)
        wait_until(lambda: len(tried) > 3)
        lease.check()
        assert (tmp_path / OWNER).stat().st_mtime_ns > changed, "others see that it lives"
        monkeypatch.undo()


def test_a_lease_that_is_gone_or_damaged_is_written_again_by_its_holder(tmp_path, quick):
    folder, path = SweepFolder(tmp_path), tmp_path / OWNER
    with folder_lease(folder) as lease:
        for damage in (path.unlink, lambda: path.write_bytes(b"")):
            damage()
            wait_until(
                lambda: path.exists() and (written_lease := Lease.read(path.read_bytes())) and written_lease.token == 1
            )
            assert not refused(lease.check), "the holder still holds it"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["lost", "empty"])
def test_a_token_is_given_once_although_the_lease_is_lost_or_empty(tmp_path, damage):
    """A power loss may leave it empty, and a worker of the earlier driver may live on."""
    folder = SweepFolder(tmp_path)
    acquire(FileLease(tmp_path), Lease(host="far"))
    worker = fencing.FolderFence(tmp_path, 1)
    damage(tmp_path / OWNER)
    with folder_lease(folder) as second:
        assert second.token == 2
        with pytest.raises(FencedError, match="taken over by"), worker():
            pass


def test_a_driver_that_was_overtaken_does_not_take_the_lease_back(tmp_path):
    folder = SweepFolder(tmp_path)
    lease = acquire(FileLease(tmp_path), Lease())
    other = far_lease(folder, token=2)
    for late in (lease.renew, lease.renew, lease.refuse_if_late, lease.before_write):
        with pytest.raises(OvertakenError, match="was taken over by far"):
            late()
    lease.end()
    assert Lease.read((tmp_path / OWNER).read_bytes()) == other


def test_a_lease_that_was_given_back_stays_so(tmp_path):
    lease = acquire(FileLease(tmp_path), Lease())
    lease.renew(ended=True)
    lease.renew()  # by a thread that had begun before
    assert Lease.read((tmp_path / OWNER).read_bytes()).ended


def test_a_driver_that_slept_while_another_ran_the_sweep_to_its_end_does_not_go_on(tmp_path, quick):
    folder = SweepFolder(tmp_path)
    with folder_lease(folder) as lease:
        lease.check()
        last = far_lease(folder, token=2, ended=True)
        words = wait_until(lambda: refused(lease.check))
        assert re.search(r"was run on far meanwhile; .* `babeltune resume .* goes on", words)
        with pytest.raises(OvertakenError):
            lease.check()
    assert Lease.read((tmp_path / OWNER).read_bytes()) == last, "the other's word stands"


def test_a_driver_that_cannot_renew_its_lease_ends_before_another_may_take_it(tmp_path, monkeypatch):
    now = [0.0]
    record = FileLease(tmp_path)
    lease = acquire(record, Lease(), clock=Clock(lambda: now[0]))
    now[0] = fencing.EXPIRY_S - fencing.MARGIN_S - 1
    lease.refuse_if_late()
    now[0] += 2
    monkeypatch.setattr(FileLease, "swap", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "the storage is gone")))
    with pytest.raises(LeaseExpiredError, match=r"could not be renewed for 46 s .*`babeltune resume .* goes on"):
        lease.refuse_if_late()
    monkeypatch.undo()
    lease.refuse_if_late()  # nobody took it meanwhile


STOPPED = """
import sys
from pathlib import Path
from babeltune.files import write_json
from babeltune.sweep.state.fencing import FileLease, Lease, acquire, renewed, written_under
place = Path(sys.argv[1])
record = FileLease(place)
lease = acquire(record, Lease())
with renewed(lease):
    while True:
        with written_under(record, lease):
            write_json(place / "state.json", {"state": "first"})
        print("wrote", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_driver_that_was_stopped_for_too_long_writes_nothing_when_it_wakes(tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path)
    monkeypatch.setattr(fencing, "RENEWAL_INTERVAL_S", 0.1)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], text=True, **pipes)
    try:
        assert first.stdout.readline() == "wrote\n"
        first.send_signal(signal.SIGSTOP)
        lease = Lease.read((tmp_path / OWNER).read_bytes())
        write_json(tmp_path / OWNER, replace(lease, host="far", expiry_s=0.5))  # as of another machine, and brief
        with folder_lease(folder) as second:
            assert second.token == lease.token + 1
            replace(folder, guard=second.guard).write("state.json", {"state": "second"})
            first.send_signal(signal.SIGCONT)
            words = first.communicate("\n", timeout=PATIENCE_S)[1]
            assert "OvertakenError" in words
            assert folder.state() == "second"
            second.check()
    finally:
        first.kill()
        first.wait()


@pytest.mark.long
def test_a_driver_that_hears_of_another_ends_its_sweep_and_keeps_its_trials(copied, quick):
    sweep, _, cluster = copied
    longer = replace(sweep, budget=replace(sweep.budget, trials=6), training=replace(sweep.training, pairs=38400))

    def another(board):
        place = folder_in(cluster, sweep_id(longer))
        trains = place.trial(0) / PROGRESS
        when(trains.exists, lambda: far_lease(place, token=99, beat=time.time()))

    with pytest.raises(SweepError, match="was taken over by far"):
        submit(longer, cluster, watch=another)
    folder = folder_in(cluster, sweep_id(longer))
    assert folder.state() == "running", "as the other one left it"
    assert states(folder) == ["running"], "and so is the trial"
    client = MlflowClient(cluster.mlflow)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    sweep_runs = [run for run in runs if run.data.tags.get("babeltune.sweep") == folder.id]
    assert sweep_runs, runs
    assert {run.info.status for run in sweep_runs if "babeltune.baseline" not in run.data.tags} == {"RUNNING"}


def test_a_process_that_got_the_number_of_a_dead_driver_is_not_taken_for_it():
    driver = leases.this_driver()
    assert lives(driver["process"])
    machine, number, started = driver["process"].split("-")
    assert not lives(f"{machine}-{number}-{int(started) + 1}")
    assert not lives(f"elsewhere-{number}-{started}")


def test_a_late_driver_whose_storage_gives_no_answer_ends_all_the_same(monkeypatch):
    """A renewal that hangs holds the lease's lock, and another would hang, too."""
    monkeypatch.setattr(fencing, "ANSWER_S", 0.1)
    clock, request, never = [0.0], threading.Event(), threading.Event()

    class Hangs:
        sweep = "s"

        def swap(self, lease, expected):
            request.set()
            never.wait(PATIENCE_S)
            return "2"

    own_lease = fencing.HeldLease(Hangs(), fencing.Lease(token=1), "1", 0.0, lambda: clock[0])
    threading.Thread(target=own_lease.renew, daemon=True).start()
    assert request.wait(PATIENCE_S)
    own_lease.refuse_if_late()
    clock[0] = 1_000.0
    with pytest.raises(LeaseExpiredError, match=r"1000 s \(the storage gives no answer within 0\.1 s\); this driver"):
        own_lease.refuse_if_late()
    never.set()
