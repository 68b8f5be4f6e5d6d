"""Rules that stop trials: PASHA and expected regret, by hand-made curves and through the platform's scheduler."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from babeltune.schema import search
from babeltune.schema.records import Halving, Objective, Training
from babeltune.sweep.search.stopping import Pasha, RegretRule, expected_improvement, predicted
from babeltune.sweep.search.tune_run import prime, scheduler_for
from toy_methods import toy_sweep


def shown(rule, curves):
    """Shows the rule each curve to its end or until it stops it; the number of reports that each made."""
    reports = []
    for number, curve in enumerate(curves):
        report = 0
        for report, value in enumerate(curve, 1):
            if rule.stops(number, report, value):
                break
        reports.append(report)
    return reports


def test_pasha_moves_its_last_rung_up_only_when_rankings_differ():
    steady = [[level * report for report in range(1, 10)] for level in (0.5, 0.6, 0.7)]
    assert shown(Pasha(grace=1, reduction=3, reports=9), steady) == [3, 3, 3]
    crossing = [[0.1, 0.2, 0.9, *[0.9] * 6], [0.2, 0.3, 0.4, *[0.5] * 6], [0.3, 0.4, 0.95, *[0.99] * 6]]
    rule = Pasha(grace=1, reduction=3, reports=9)
    assert rule.rungs == [1, 3, 9]
    assert shown(rule, crossing) == [3, 3, 9], "the second trial was ahead at report 1 and is behind at report 3"


def test_pasha_stops_below_its_rung_what_is_not_among_the_best():
    curves = [[0.5] * 9, [0.1] * 9, [0.9] * 9]
    assert shown(Pasha(grace=1, reduction=3, reports=9), curves) == [3, 1, 3]


def a_curve(last):
    return [last * (1 - 0.5**report) for report in range(1, 6)]


def test_expected_regret_stops_a_trial_that_cannot_gain():
    rule = RegretRule(reports=5, grace=1, regret=0.001)
    assert shown(rule, map(a_curve, (0.5, 0.2, 0.6, 0.1, 0.61, 0.9))) == [5, 5, 5, 1, 5, 5]
    assert shown(RegretRule(5, 3, 0.001), map(a_curve, (0.5, 0.2, 0.6, 0.1)))[-1] == 3, "grace"
    assert shown(RegretRule(5, 1, 0.001, 5), map(a_curve, (0.5, 0.2, 0.6, 0.1)))[-1] == 5, "startup"


def test_a_trial_whose_report_comes_twice_is_judged_the_same():
    for rule in (Pasha(grace=1, reduction=3, reports=5), RegretRule(reports=5, grace=1, regret=0.001)):
        shown(rule, map(a_curve, (0.5, 0.6, 0.7)))
        assert rule.stops(3, 1, 0.1) == rule.stops(3, 1, 0.1)


def test_the_expected_improvement_is_that_of_a_normal_value():
    draws = norm(0.4, 0.2).ppf((np.arange(200_000) + 0.5) / 200_000)
    assert expected_improvement(0.4, 0.2, 0.5) == pytest.approx(np.maximum(draws - 0.5, 0).mean(), rel=1e-3)
    assert [expected_improvement(mean, 0.0, 0.5) for mean in (0.4, 0.75)] == [0, 0.25]


def test_where_a_report_leads_is_a_line_of_at_most_the_slope_of_one():
    early = np.array([0.1, 0.2, 0.3, 0.4])
    mean, deviation = predicted(early, 0.5 * early + 0.3, 0.6)
    assert (mean, deviation) == (pytest.approx(0.6), pytest.approx(0, abs=1e-9))
    steep, spread = predicted(early, 3 * early, 0.25)
    assert steep == pytest.approx(0.75)
    assert spread == pytest.approx(math.sqrt(sum((2 * (e - 0.25)) ** 2 for e in early) / 2))


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
@pytest.mark.parametrize("scheduler", [Halving(kind="pasha"), search.ExpectedRegret()])
def test_a_primed_scheduler_follows_the_rule_of_its_kind(scheduler, goal):
    objective = Objective(metric="dev/score", goal=goal)
    fields = {"parameters": {}, "training": Training(reports=5), "scheduler": scheduler}
    sweep = toy_sweep(objectives=(objective,), **fields)
    sign = 1 if goal == "maximize" else -1

    def lines(number, last, reports=5):
        yield {"event": "propose", "number": number}
        for index, value in enumerate(a_curve(last)[:reports], 1):
            yield {"event": "report", "number": number, "index": index, "values": [sign * value]}

    earlier = [line for number, last in enumerate((0.5, 0.6, 0.7)) for line in lines(number, last)]
    scheduler = scheduler_for(sweep)
    prime(scheduler, earlier)
    for number, last, verdict in ((3, 0.1, "STOP"), (4, 0.9, "CONTINUE")):
        trial = SimpleNamespace(trial_id="late", config={"number": number})
        scheduler.on_trial_add(None, trial)
        result = {"reports": 1, "objective": sign * a_curve(last)[0]}
        assert scheduler.on_trial_result(None, trial, result) == verdict
