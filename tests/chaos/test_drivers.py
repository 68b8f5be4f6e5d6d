"""Faults of the process that drives a sweep, and of what it left behind: killed, stopped, doubled, unreadable."""

import contextlib
import os
import pickle
import signal
import subprocess
import time

import pytest

from chaos.faults import DAY, clock_jump, truncate
from chaos.invariants import nothing_is_left

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]


def test_a_driver_that_is_killed_leaves_nothing_running_and_is_resumed(make_arena, note):
    arena = make_arena(pause=0.02)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(150))
    driver.kill()
    nothing_is_left(driver.mark)
    began = time.time()
    again = arena.start("resume")
    assert again.wait() == 0, again.words()
    arena.check(marked=again.mark)
    repeated = arena.repeated()
    assert repeated <= 20
    note(arena, "driver SIGKILL, then resume", seconds=arena.recovered(began), most=20)


def stop(arena, driver):
    stop = arena.start("stop")
    arena.until(arena.folder.stop_request.exists)
    arena.release()
    assert (stop.wait(), driver.wait()) == (0, 0), driver.words()
    assert "stopped; nothing is lost" in driver.words()
    assert arena.folder.state() == "stopped"


def interrupt(arena, driver):
    os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does: the driver, and whatever it has started
    arena.until(lambda: "saving every trial's step" in arena.folder.log.read_text(encoding="utf-8"))
    arena.release()
    assert driver.wait() == 130
    assert f"interrupted; `babeltune resume {arena.folder.id}" in driver.words()
    assert "Traceback" not in driver.words()
    assert arena.folder.state() == "interrupted"


GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL where a machine is taken away: Kubernetes' default, and less than a cloud's."""


def preempt(arena, driver):
    os.kill(driver.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    arena.until(lambda: "saving every trial's step" in arena.folder.log.read_text(encoding="utf-8"))
    arena.release()
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.process.wait(max(0.0, deadline - time.monotonic()))
    driver.process.kill()  # if it is still there
    driver.wait()


ENDS = [(stop, "`stop`"), (interrupt, "Ctrl-C"), (preempt, "driver SIGTERM and, 30 s later, SIGKILL")]


@pytest.mark.parametrize(("end", "name"), ENDS)
def test_a_sweep_that_is_stopped_in_mid_run_goes_on_without_repeating_a_step(make_arena, note, end, name):
    arena = make_arena()
    arena.order("hold", at=50)
    driver = arena.start("submit", file=True)
    arena.until(arena.injected)
    end(arena, driver)
    nothing_is_left(driver.mark)
    began = time.time()
    again = arena.start("resume")
    assert again.wait() == 0, again.words()
    arena.check(marked=again.mark)
    assert arena.repeated() == 0
    note(arena, f"{name} in mid-run, then resume", seconds=arena.recovered(began))


def test_of_two_submits_at_one_moment_one_drives_and_nothing_is_done_twice(make_arena, note):
    arena = make_arena()
    arena.order("hold", at=50)
    drivers = [arena.start("submit", file=True) for _ in range(2)]
    arena.until(arena.injected)
    third = arena.start("submit", file=True)
    arena.until(lambda: "is running in another process" in third.words())
    arena.release()
    codes = [driver.wait() for driver in (*drivers, third)]
    shown = [driver.words() for driver in (*drivers, third)]
    assert codes[2] == 0
    assert sorted(codes[:2]) in ([0, 0], [0, 1])
    assert any("is running in" in words or "is being run by" in words for words in shown[:2])
    arena.check(marked=drivers[0].mark)
    assert arena.repeated() == 0
    note(arena, "two submits at once, and a third")


def test_a_second_driver_is_refused_and_the_first_goes_on(make_arena, note):
    arena = make_arena(pause=0.02)
    refusals = []
    with arena.meanwhile(arena.trained(30), lambda: refusals.append(arena.refusal())):
        arena.submit()
    arena.check()
    assert "is being run by process" in refusals[0]
    assert arena.repeated() == 0
    note(arena, "two drivers of one sweep")


def test_what_tune_has_pickled_is_never_read(interrupted, note):
    arena = interrupted

    class Trap:
        def __reduce__(self):
            return open, (str(arena.place / "sprung"), "w")

    for name in ("tune", "train"):
        for place in (arena.folder.path / name, arena.folder.path / name / "run-00000000"):
            place.mkdir(parents=True, exist_ok=True)
            for file in ("tuner.pkl", "trainable.pkl", "searcher-state.pkl", "search_gen_state.pkl"):
                (place / file).write_bytes(pickle.dumps(Trap()))
            (place / "experiment_state-of-another-version.json").write_text('{"version": 99}')
    arena.submit()
    arena.check()
    assert not (arena.place / "sprung").exists()
    note(arena, "state that does not unpickle")


def test_a_ledger_that_lost_its_end_is_completed_by_its_trials(interrupted, note):
    arena = interrupted
    truncate(arena.folder.path / "results.jsonl", 0.7)
    arena.submit()
    arena.check()
    assert arena.repeated() <= 20, "at most what was trained since a report"
    note(arena, "end of results.jsonl lost, then resume")


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_jumps_changes_nothing_but_what_clocks_say(make_arena, note, days):
    arena = make_arena(pause=0.02)
    arena.order("clock", at=50, days=days)
    with contextlib.ExitStack() as later:
        jump = clock_jump(days * DAY)
        with arena.meanwhile(arena.trained(130), lambda: later.enter_context(jump)):
            arena.submit()
    arena.check()
    assert len(arena.injected()) == 1, "the worker's clock, too"
    assert arena.repeated() == 0
    note(arena, f"clock {'back' if days < 0 else 'ahead'} by {abs(days)} days in mid-sweep")
