"""A trial trained again from its record."""

from dataclasses import replace

import pytest

from babeltune.errors import SpecError
from babeltune.files import plain
from babeltune.promotion.candidate import find_candidate
from babeltune.promotion.reproduce import compared, device_of, reproduce
from babeltune.schema.records import Report
from babeltune.training.checkpoint import read_reports


@pytest.mark.long
def test_a_trial_of_two_ranks_comes_out_equal_to_the_last_bit(copied):
    _, folder, cluster = copied
    comparison = reproduce(f"{folder.id}/t0000", cluster)
    assert comparison.verdict == "identical", plain(comparison)
    assert comparison.weights == "equal"
    assert comparison.reports == len(read_reports(folder.trial(0)))
    assert comparison.scores == sum(
        name.startswith("dev/") for r in read_reports(folder.trial(0)) for name in r.metrics
    )
    assert comparison.largest is None
    assert not comparison.changed
    assert not list((folder.path.parents[1] / "reproductions").iterdir())


@pytest.mark.parametrize(
    ("facts", "here", "device"),
    [
        ({"device": "cuda", "world_size": 1}, True, "cuda"),
        ({"device": "cuda", "world_size": 1}, False, "cpu"),
        ({"device": "cuda", "world_size": 2}, True, "cpu"),
        ({"device": "cpu", "world_size": 1}, True, "cpu"),
    ],
)
def test_a_trial_is_trained_again_on_the_device_that_it_had(monkeypatch, facts, here, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: here)
    assert device_of(Report(index=1, step=1, pairs=1, seconds=1.0, metrics={}, facts=facts)) == device


@pytest.mark.parametrize(("change", "verdict"), [(1e-4, "within"), (0.9, "beyond")])
def test_a_difference_is_judged_by_the_interval_of_the_objective(copied, change, verdict):
    _, folder, _ = copied
    candidate = find_candidate(f"{folder.id}/t0000", folder.path.parents[1])
    recorded, metric = read_reports(folder.trial(0)), candidate.sweep.objectives[0].metric
    last = replace(recorded[-1], metrics={**recorded[-1].metrics, metric: recorded[-1].metrics[metric] - change})
    comparison = compared(candidate, recorded, [*recorded[:-1], last], "differ", ())
    assert comparison.verdict == verdict
    assert comparison.largest.metric == metric
    assert comparison.interval > 0


def test_a_sweep_in_place_of_a_trial_is_refused(copied):
    _, folder, cluster = copied
    with pytest.raises(SpecError, match="name one of its trials"):
        reproduce(folder.id, cluster)
