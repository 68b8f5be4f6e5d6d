"""Faults of trials: losses and metrics that are no numbers, or not there, and sweeps in which nothing trains."""

from dataclasses import replace

import pytest

from babeltune.sweep.driver import attempt as engine
from babeltune.sweep.workers.pool import WorkerPool
from chaos.invariants import check

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]


FAULTS = {
    "a metric that is NaN": "is NaN",
    "a metric that is missing": "objective dev/everyday/accuracy is None at report 2",
    "a metric that is infinite": "objective dev/everyday/accuracy is inf at report 2",
    "a loss that is NaN": "step 50: loss is nan",
}
"""Of one trial each, in their order, with its reason."""


def test_each_trial_that_cannot_go_on_fails_alone_with_its_reason(make_arena, note, monkeypatch):
    """Each order is followed by the first trial that reaches its step, which ends there."""
    arena = make_arena(budget__trials=len(FAULTS) + 1)
    arena.order("nan_metric", at=40)
    (arena.orders / "objectives").write_text("null\nInfinity\n", encoding="utf-8")
    arena.order("nan_loss", at=50)
    monkeypatch.setattr(engine, "WorkerPool", forgetful)
    arena.submit()
    arena.check(len(FAULTS) + 1, failed=len(FAULTS))
    failed = sorted((row["name"], row["reason"]) for row in arena.rows() if row["state"] == "failed")
    for (name, words), (_, reason) in zip(FAULTS.items(), failed, strict=True):
        assert words in reason
        note(arena, name, lost="that trial, its last checkpoint kept")


def forgetful(settings, **listeners):
    """The worker groups, two of whose trials have lost their objective at their second report."""
    assert settings.run_trial == "babeltune.sweep.workers.run_trial:run"
    return WorkerPool(replace(settings, run_trial="chaos.silent:run"), **listeners)


def test_a_sweep_of_failing_trials_ends_early_with_the_three_commonest_reasons(make_arena, note):
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
