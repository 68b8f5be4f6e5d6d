"""Faults of trials: losses and metrics that are no numbers, or not there, and sweeps in which nothing trains."""

import functools

import pytest

from babeltune.engine import sweep as engine
from babeltune.workers.lanes import Lanes
from chaos.invariants import check

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(900), pytest.mark.chaos]


def the_reason(arena):
    (reason,) = [row["reason"] for row in arena.rows() if row["state"] == "failed"]
    return reason


@pytest.mark.parametrize(
    ("kind", "at", "name", "words"),
    [
        ("nan_loss", 50, "a loss that is NaN", "step 50: loss is nan"),
        ("nan_metric", 40, "a metric that is NaN", "nan"),
    ],
)
def test_a_trial_of_which_a_number_is_none_fails_alone(arena, note, kind, at, name, words):
    arena.order(kind, at=at)
    arena.submit()
    arena.check(failed=1)
    assert words in the_reason(arena).lower()
    note(arena, name, lost="that trial, its last checkpoint kept")


@pytest.mark.parametrize(
    ("objective", "name"), [("null", "a metric that is missing"), ("Infinity", "a metric that is infinite")]
)
def test_a_trial_whose_objective_is_no_number_fails_alone(arena, note, monkeypatch, objective, name):
    (arena.orders / "objective").write_text(objective)
    monkeypatch.setattr(engine, "Lanes", functools.partial(Forgetful, Lanes))
    arena.submit()
    arena.check(failed=1)
    said = {"null": "None", "Infinity": "inf"}[objective]
    assert f"objective dev/everyday/accuracy is {said} at report 2" in the_reason(arena)
    note(arena, name, lost="that trial, its last checkpoint kept")


def Forgetful(kind, *, run_trial, **settings):  # noqa: N802
    """The lanes, whose first trial forgets its objective at its second report."""
    assert run_trial == "babeltune.workers.trial:run"
    return kind(run_trial="chaos.silent:run", **settings)


def test_a_sweep_in_which_every_trial_fails_ends_early_with_the_three_commonest_reasons(make_arena, note):
    arena = make_arena(budget__trials=40)
    for at, kind in ((3, "raise"), (5, "gpu_memory"), (7, "nan_loss")):
        arena.order(kind, at=at, times=2 if at < 7 else 99, any=True)
    driver = arena.start("submit", file=True)
    assert driver.wait() == 1
    words = driver.words()
    assert "all of the first 5 trials failed" in words
    assert "2× ValueError: a bug of the method" in words
    assert "2× OutOfMemoryError" in words
    assert "1× step 7: loss is nan" in words
    assert "Traceback" not in words
    assert len(arena.rows()) == 5
    check(arena.folder, arena.cluster, 5, failed=5, marked=driver.mark, state="failed")
    note(arena, "every trial fails", lost="the five trials; the other 35 were not begun")
