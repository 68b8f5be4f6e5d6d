"""One speed for each shape of students; what clocks cannot tell apart decides nothing."""

import random
from dataclasses import replace

from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.schema.records import Objective
from babeltune.sweep.state.leaderboard import SPEED_NOISE, Row, one_speed, pareto_front

AIMS = (Objective(metric="dev/a/accuracy"), Objective(metric=SPEED))


def row(name, accuracy, speed, *, shape="a", parameters=100.0):
    metrics = {"dev/a/accuracy": accuracy, SPEED: speed, PARAMETERS: parameters}
    return Row(name=name, state="finished", metrics=metrics, best=1, shape=shape)


def test_equal_students_have_one_speed_and_the_better_one_alone_is_on_the_front():
    rows = [row("t0", 0.9, 120_786.0), row("t1", 0.8, 260_467.0)]
    assert pareto_front(rows, AIMS) == {"t0", "t1"}, "as measured, while trials disturbed one another"
    rows = one_speed(rows, {})
    assert [each.metrics[SPEED] for each in rows] == [260_467.0, 260_467.0]
    assert pareto_front(rows, AIMS) == {"t0"}


def test_the_speed_of_a_sweep_with_one_shape_is_that_before_its_trials():
    untrained = {SPEED: 250_000.0, PARAMETERS: 100.0}
    rows = one_speed([row("t0", 0.9, 120_786.0), row("t1", 0.8, 260_467.0)], untrained)
    assert [each.metrics[SPEED] for each in rows] == [250_000.0, 250_000.0]
    others = one_speed([row("t0", 0.9, 100.0), row("t1", 0.8, 300.0, shape="b", parameters=50.0)], untrained)
    assert [each.metrics[SPEED] for each in others] == [100.0, 300.0]


def test_a_faster_shape_is_on_the_front_only_beyond_the_spread_of_measurements():
    slow = [row("t0", 0.9, 100.0), row("t1", 0.7, 60.0)]
    for speed, front in ((150.0, {"t0"}), (200.0, {"t0", "t2"})):
        rows = one_speed([*slow, row("t2", 0.8, speed, shape="b", parameters=90.0)], {})
        assert rows[0].speed_spread == 0.4
        assert pareto_front(rows, AIMS) == front
    assert one_speed([Row(name="t9", state="running")], {}) == [Row(name="t9", state="running")]


def beats(one, other):
    """Whether it is as good in both objectives, and better in one, beyond what clocks tell."""
    noise = max(SPEED_NOISE, one.speed_spread, other.speed_spread) * other.metrics[SPEED]
    gains = [one.metrics[aim.metric] - other.metrics[aim.metric] for aim in AIMS]
    return gains[0] >= 0 and gains[1] >= -noise and (gains[0] > 0 or gains[1] > noise)


def test_the_front_is_what_no_trial_beats_whatever_the_spreads():
    chance = random.Random(0)
    for _ in range(100):
        rows = [
            replace(row(f"t{number}", chance.randrange(8) / 8, chance.uniform(50, 150)), speed_spread=spread)
            for number, spread in enumerate(chance.choices([0.0, 0.1, 0.2, 0.4], k=30))
        ]
        assert pareto_front(rows, AIMS) == {one.name for one in rows if not any(beats(each, one) for each in rows)}
