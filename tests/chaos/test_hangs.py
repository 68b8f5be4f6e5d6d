"""Faults in which nothing dies and nothing answers: processes that are stopped, storage that hangs."""

import os
import signal
import time
from contextlib import contextmanager

import pytest

from babeltune.errors import ClusterError
from babeltune.sweep.state.fencing import LeaseExpiredError
from babeltune.sweep.workers import dispatcher_client, worker_groups
from chaos.faults import actor, slow_disk
from chaos.invariants import nothing_is_left

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]

NEVER = 100_000.0  # seconds that a file takes to open while the storage hangs


def test_a_dispatcher_that_is_stopped_ends_the_sweep_in_words(make_arena, note, monkeypatch):
    monkeypatch.setattr(dispatcher_client, "DISPATCHER_TIMEOUT_S", 5.0)
    arena = make_arena(pause=0.02)
    refusal = pytest.raises(ClusterError, match=r"dispatcher has not answered for 5 s.*`babeltune resume` goes on")
    with refusal, arena.meanwhile(arena.trained(130), lambda: actor("TrialDispatcher").suspend()):
        arena.submit()
    began = time.time()
    arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    words = "dispatcher SIGSTOP (noticed after 5 s here, 60 s by default), then resume"
    note(arena, words, seconds=arena.recovered(began), most=20)


def test_a_controller_that_is_stopped_is_replaced(make_arena, note, monkeypatch):
    monkeypatch.setattr(worker_groups, "UNANSWERED_SURVEYS", 1)
    arena = make_arena(pause=0.1)
    stopped = []

    def stop():
        actor("_Controller").suspend()
        stopped.append(time.time())

    with arena.meanwhile(arena.trained(50), stop):
        arena.submit()
    arena.check()
    assert 0 < arena.repeated() <= 20, "the group is started again"
    words = "controller of Ray Train SIGSTOP (noticed after 10 s here, 5 min by default)"
    note(arena, words, seconds=arena.recovered(*stopped), most=20)


def test_a_controller_that_is_stopped_is_not_missed_until_its_worker_dies(make_arena, note):
    arena = make_arena(pause=0.02, cluster={"progress_timeout": 15.0})
    killed = []

    def stop_and_kill():
        actor("_Controller").suspend()
        arena.until(arena.trained(150))
        killed.append(time.time())
        os.kill(arena.steps()[-1]["pid"], signal.SIGKILL)

    with arena.meanwhile(arena.trained(50), stop_and_kill):
        arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    words = "controller of Ray Train SIGSTOP, then its worker SIGKILL (`progress_timeout: 15`)"
    note(arena, words, seconds=arena.recovered(*killed), most=20)


def test_a_driver_that_is_stopped_for_a_while_goes_on(make_arena, note):
    arena = make_arena(pause=0.02)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    os.kill(driver.process.pid, signal.SIGSTOP)
    seconds = 10.0
    time.sleep(seconds)  # so long is the fault
    os.kill(driver.process.pid, signal.SIGCONT)
    assert driver.wait() == 0, driver.words()
    arena.check(marked=driver.mark)
    assert arena.repeated() == 0
    note(arena, f"driver SIGSTOP for {seconds:g} s", seconds=arena.pause())


@contextmanager
def hanging(arena, disk, seconds):
    """The storage hangs for so long once workers have trained for a while; a list gets the time of its end."""
    ended = []

    def hang():
        with slow_disk(disk, seconds=NEVER):
            time.sleep(seconds)  # so long is the fault
        ended.append(time.time())

    with arena.meanwhile(arena.trained(130), hang):
        yield ended


def test_a_storage_that_hangs_for_a_while_costs_that_time(disk, make_arena, note):
    arena = make_arena(pause=0.02)
    with hanging(arena, disk, 30.0) as ended:
        arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    seconds = min(s["time"] for s in arena.steps() if s["time"] > ended[0]) - ended[0]
    note(arena, "storage hangs for 30 s (fanotify)", seconds=seconds, most=20)


def test_a_storage_that_hangs_for_longer_than_a_lease_ends_the_sweep_in_words(disk, make_arena, note):
    arena = make_arena(pause=0.02)
    with pytest.raises(LeaseExpiredError, match="ends before another machine may go on"), hanging(arena, disk, 60.0):
        arena.submit()
    began = time.time()
    arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    note(arena, "storage hangs for 60 s, then resume (fanotify)", seconds=arena.recovered(began), most=20)


def test_a_bucket_that_hangs_for_a_while_loses_nothing(s3, make_arena, tmp_path, note):
    """It takes connections and answers none. What was sent meanwhile arrives late."""
    bucket = {"storage": f"{s3.uri}/chaos", "cache": str(tmp_path / "cache"), "mlflow": f"sqlite:///{tmp_path}/m.db"}
    arena = make_arena(pause=0.02, cluster=bucket)
    with arena.meanwhile(arena.trained(130), lambda: s3.door.hang(60.0)):
        arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "bucket hangs for 60 s", seconds=arena.pause())


def test_a_second_interrupt_ends_a_driver_whose_storage_hangs(disk, make_arena, note):
    arena = make_arena(pause=0.02)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    with slow_disk(disk, seconds=NEVER):
        os.killpg(driver.process.pid, signal.SIGINT)
        time.sleep(2)  # a person notices that nothing happens
        os.killpg(driver.process.pid, signal.SIGINT)
        began = time.time()
        code = driver.wait()
        seconds = time.time() - began
    assert code == 130, driver.words()
    assert "Traceback" not in driver.words()
    nothing_is_left(driver.mark)
    again = arena.start("resume")
    assert again.wait() == 0, again.words()
    arena.check(marked=again.mark)
    note(arena, "storage hangs, second Ctrl-C, then resume", seconds=seconds, most=20)
