"""Thresholds that leave no trial enough pairs are refused before anything is trained."""

import numpy as np
import pytest

from babeltune.data.thresholds import THRESHOLDS
from babeltune.errors import SpecError
from babeltune.planning.plan import make_plan
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.thresholds import mildest, pairs_left
from babeltune.schema.records import Sampling

FEW = "parameters={training.learning_rate: {const: 0.01}}"
TEXT = "data.train=[{name: natural, path: natural_train.tsv, columns: {eng: eng, fra: fra, kor: kor}, cap: 30}]"
KNOWS = "teacher.languages=[eng, fra, kor]"  # so that margins mean something
BETWEEN = "parameters.data.sampling.least_characters={int: [900, 2000]}"
CROSSED = (
    "parameters.data.sampling.least_characters={int: [25, 40]}",
    "parameters.data.sampling.most_characters={int: [10, 24]}",
)


def test_the_mildest_value_of_a_range_is_the_end_that_leaves_out_least(tiny_file):
    searched = (
        "parameters.data.sampling.least_characters={int: [3, 9]}",
        "parameters.data.sampling.most_symbols={choice: [0.2, 0.6, 0.4]}",
        "parameters.data.sampling.most_pairs={const: 70}",
        "data.sampling.most_characters=200",
    )
    sampling = mildest(read_sweep(tiny_file, assignments=[FEW, *searched]))
    wanted = Sampling(least_characters=3, most_symbols=0.6, most_pairs=70, most_characters=200)
    assert [getattr(sampling, name) for name in THRESHOLDS] == [getattr(wanted, name) for name in THRESHOLDS]


def test_a_threshold_that_is_searched_under_a_condition_leaves_out_nothing_elsewhere(tiny_file):
    only = "parameters.data.sampling.least_characters={int: [900, 2000], when: {seed: 1}}"
    searched = ("parameters.seed={choice: [0, 1]}", only)
    assert mildest(read_sweep(tiny_file, assignments=[FEW, *searched])).least_characters == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.sampling.least_characters=900"], r"least_characters 900 leaves 0 of \d+ pairs, and a batch needs two"),
        (["data.sampling.most_pairs=1"], r"most_pairs 1 leaves \d of \d+ pairs, and a batch needs two of one language"),
        (
            [BETWEEN],
            r"least_characters 900 leaves 0 of [\d,]+ pairs, at the mildest that is searched, .* another value",
        ),
        (CROSSED, r"least_characters 25, most_characters 24 leave 0 of .*; give other values"),
    ],
    ids=["one value", "one pair", "a range", "ranges that exclude one another"],
)
def test_a_plan_refuses_thresholds_that_leave_nothing(tiny_file, settings, words):
    sweep = read_sweep(tiny_file, assignments=[FEW, "data.train.0.cap=40", *settings])
    with pytest.raises(SpecError, match=words):
        make_plan(sweep)


@pytest.mark.slow
def test_a_sweep_is_refused_by_margins_that_only_its_preparation_knows(tiny_file, tmp_path):
    margins = "parameters.data.sampling.least_margin={float: [900, 1000]}"
    sweep = read_sweep(tiny_file, assignments=[FEW, TEXT, KNOWS, margins])
    with pytest.raises(SpecError, match=r"least_margin 900\.0 leaves 0 of \d+ pairs, at the mildest that is searched"):
        prepare(sweep, tmp_path)


def test_a_plan_counts_the_pairs_that_the_mildest_thresholds_leave(tiny_file):
    plan = make_plan(read_sweep(tiny_file, assignments=[FEW, "data.sampling.most_pairs=5"]))
    assert plan.pairs_left == sum(min(5, count) for count in plan.pairs.values()) < plan.total_pairs
    plan = make_plan(read_sweep(tiny_file, assignments=[FEW]))
    assert plan.pairs_left == plan.total_pairs


def test_two_pairs_of_one_language_pair_are_enough(tiny_file):
    sweep = read_sweep(tiny_file, assignments=[FEW, "data.sampling.least_characters=5"])
    characters = np.array([5, 4, 9, 9])
    assert pairs_left(sweep, np.array([0, 0, 1, 1]), lambda _: characters) == 3
    with pytest.raises(SpecError, match="leaves 2 of 4 pairs"):
        pairs_left(sweep, np.array([0, 0, 1, 1]), lambda _: np.array([5, 4, 4, 9]))
