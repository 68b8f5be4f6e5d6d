"""One speed for each shape of students; what clocks cannot tell apart decides nothing."""

import random
from dataclasses import replace

import pytest

from babeltune.evaluation.metric_names import PARAMETERS, SPEED, SPREAD
from babeltune.planning.space import make_trial, shape_of, shapes
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.selection_rule import preferred
from babeltune.schema.records import Objective
from babeltune.sweep.driver.assignment import assignment
from babeltune.sweep.driver.baselines import shape_speeds, untrained_scores
from babeltune.sweep.state.leaderboard import Row, noise_share, pareto_front, speed_words
from babeltune.training.speed import speed_and_spread

AIMS = (Objective(metric="dev/a/accuracy"), Objective(metric=SPEED))


def row(name, accuracy, speed, spread=0.0):
    metrics = {"dev/a/accuracy": accuracy, SPEED: speed, SPREAD: spread, PARAMETERS: 100.0}
    return Row(name=name, state="finished", metrics=metrics, best=1)


def test_a_faster_shape_is_on_the_front_only_beyond_the_spread_of_measurements():
    for speed, front in ((150.0, {"t0"}), (200.0, {"t0", "t2"})):
        rows = [row("t0", 0.9, 100.0, 0.4), row("t1", 0.7, 60.0), row("t2", 0.8, speed)]
        assert pareto_front(rows, AIMS) == front
    assert speed_words(rows[0].metrics) == "100 sentences/s ± 20%"


def test_the_fastest_is_the_best_trial_of_those_that_do_not_differ_in_speed():
    rows = [row("t0", 0.9, 95.0), row("t1", 0.8, 60.0), row("t2", 0.7, 100.0)]
    assert preferred(rows, "max sentences_per_second")[0].name == "t0"
    assert preferred([*rows[1:], row("t3", 0.6, 130.0)], "max sentences_per_second")[0].name == "t3"


def test_a_speed_is_by_the_median_of_its_measurements_whatever_one_of_them_met():
    speed, spread = speed_and_spread(100, [1.0] * 50 + [9.0])
    assert (speed, spread) == (100.0, 0.0)
    assert speed_and_spread(100, [1.0, 2.0, 3.0])[1] == pytest.approx(0.9)


def test_every_shape_that_can_be_proposed_is_measured_before_the_search(tiny_file, tmp_path):
    """Dropout and rates change no speed. More shapes than can be measured are left to their trials."""
    searched = ["parameters.student.width={choice: [32, 64]}", "parameters.student.dropout={choice: [0, 0.1]}"]
    sweep = read_sweep(tiny_file, assignments=searched)
    widths = {trial.student.width for trial in shapes(sweep).values()}
    assert widths == {32, 64, sweep.student.width}
    one, other = (make_trial(sweep, 0, {"student.width": 32, "student.dropout": rate}) for rate in (0, 0.1))
    assert shape_of(one) == shape_of(other) in shapes(sweep)
    many = read_sweep(tiny_file, assignments=[f"parameters.student.width={{choice: {[*range(8, 328, 8)]}}}"])
    assert [trial.student.width for trial in shapes(many).values()] == [sweep.student.width]


def test_a_trial_reports_the_speed_of_its_shape_that_was_measured_before_the_search(tiny, copied):
    trial, prepared = make_trial(tiny[0], 0, {}), tiny[1]
    ((_, (speed, spread)),) = shape_speeds({shape_of(trial): trial}, prepared).items()
    assert speed > 0 <= spread
    scores = untrained_scores(replace(trial, speed=(9.0, 0.5)), prepared)
    assert (scores[SPEED], scores[SPREAD]) == (9.0, 0.5)
    sweep, folder, _ = copied
    baselines = folder.read("baselines.json")
    folder.write("baselines.json", {**baselines, "speeds": {shape_of(make_trial(sweep, 0, {})): [9.0, 0.5]}})
    assert assignment(sweep, folder, 0, {}).trial["speed"] == [9.0, 0.5]


def beats(one, other):
    """Whether it is as good in both objectives, and better in one, beyond what clocks tell."""
    noise = max(noise_share(each, SPEED) for each in (one, other)) * other.metrics[SPEED]
    gains = [one.metrics[aim.metric] - other.metrics[aim.metric] for aim in AIMS]
    return gains[0] >= 0 and gains[1] >= -noise and (gains[0] > 0 or gains[1] > noise)


def test_the_front_is_what_no_trial_beats_whatever_the_spreads():
    chance = random.Random(0)
    for _ in range(100):
        rows = [
            row(f"t{number}", chance.randrange(8) / 8, chance.uniform(50, 150), spread)
            for number, spread in enumerate(chance.choices([0.0, 0.1, 0.2, 0.4], k=30))
        ]
        assert pareto_front(rows, AIMS) == {one.name for one in rows if not any(beats(each, one) for each in rows)}
