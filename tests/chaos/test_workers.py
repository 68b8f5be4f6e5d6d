"""Faults of the processes that train: killed, hanging, out of memory, and their worker group lost."""

import os
import signal
import time
from collections import Counter

import pytest

from babeltune.sweep.workers import ray_train

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]


TWO_GROUPS = {"cluster": {"worker_groups": 2}}
ASHA = {"scheduler": {"kind": "asha", "grace": 1, "reduction": 2}}


def reasons(arena):
    return [row["reason"] for row in arena.rows() if row["state"] == "failed"]


def test_a_killed_worker_is_replaced_and_its_trial_goes_on_from_its_checkpoint(arena, note):
    arena.order("kill", at=50)
    arena.submit()
    arena.check()
    (killed,) = arena.injected()
    assert arena.repeated() == 10
    note(arena, "worker SIGKILL at step 50", seconds=arena.recovered(killed), most=20)


def test_one_rank_of_two_is_killed_and_both_go_on(make_arena, note):
    arena = make_arena(budget__workers=2)
    arena.order("kill", at=50, rank=1)
    arena.submit()
    arena.check(alike=False)
    (killed,) = arena.injected()
    assert 9 <= arena.repeated() <= 10, "the other rank may still have made the step, or not"
    note(arena, "one of two workers SIGKILL at step 50", seconds=arena.recovered(killed), most=20)


def test_a_trial_fails_after_killing_its_worker_three_times_without_progress(arena, note):
    arena.order("kill", at=50, times=99)
    arena.submit()
    arena.check(failed=1)
    assert len(arena.injected()) == 4
    (reason,) = reasons(arena)
    assert "given up after 3 restarts without a new report" in reason
    last = arena.injected()[-1]
    lost = "that trial, its last checkpoint kept"
    note(
        arena,
        "the same trial kills its worker four times",
        seconds=arena.recovered(last, by="mark"),
        most=30,
        lost=lost,
    )
    assert arena.repeated() == 30


def test_a_worker_that_hangs_is_replaced(make_arena, note, monkeypatch):
    monkeypatch.setitem(ray_train.ENVIRONMENT, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "5")
    arena = make_arena(budget__workers=2)
    arena.order("hang", at=50, rank=1)
    arena.submit()
    arena.check(alike=False)
    (hung,) = arena.injected()
    seconds = arena.recovered(hung)
    assert arena.repeated() == 10, "since the report at step 40"
    note(arena, "worker SIGSTOP (noticed after 5 s here, 120 s by default)", seconds=seconds, most=20)


def test_a_training_thread_that_hangs_is_replaced(make_arena, note):
    arena = make_arena(cluster={"progress_timeout": 15.0})
    arena.order("stall", at=50)
    arena.submit()
    arena.check()
    seconds = arena.recovered(arena.injected()[0])
    assert arena.repeated() == 10, "since the report at step 40"
    note(arena, "training hangs (`progress_timeout: 15`; 1800 by default)", seconds=seconds, most=20)


@pytest.mark.parametrize(
    ("kind", "name", "words", "more"),
    [
        ("gpu_memory", "out of memory on the device", "OutOfMemoryError: CUDA out of memory", {}),
        ("host_memory", "out of memory on the host (RLIMIT_AS), two worker groups", "DefaultCPUAllocator", TWO_GROUPS),
        ("raise", "a bug of the method, under ASHA", "ValueError: a bug of the method", ASHA),
    ],
)
def test_a_trial_that_cannot_go_on_fails_with_its_reason_and_the_others_are_trained(
    make_arena, note, kind, name, words, more
):
    arena = make_arena(**more)
    arena.order(kind, at=50)
    arena.submit()
    arena.check(failed=1)
    (reason,) = reasons(arena)
    assert words in reason
    note(
        arena,
        name,
        seconds=arena.recovered(arena.injected()[0], by="mark"),
        lost="that trial, its last checkpoint kept",
    )


def test_a_worker_group_that_is_killed_between_trials_is_started_again(make_arena, note):
    """The worker that has ended a trial, before it has made a step of the next one."""
    arena = make_arena(pause=0.02)
    killed = []

    def kill():
        killed.append((arena.steps()[-1]["pid"], time.time()))
        os.kill(killed[0][0], signal.SIGKILL)

    with arena.meanwhile(lambda: arena.steps() and any(row["state"] == "finished" for row in arena.rows()), kill):
        arena.submit()
    arena.check()
    ((pid, at),) = killed
    assert list(Counter(step["mark"] for step in arena.steps() if step["pid"] == pid).values()) == [100], (
        "one whole trial"
    )
    assert arena.repeated() == 0
    note(arena, "worker group crash between trials", seconds=arena.recovered(at))
