"""The test kit for methods: each of its checks accepts a sound method, and finds the one that breaks its promise."""

import re

import pytest

import broken_methods
from babeltune import testing
from broken_methods import Sound

BROKEN = {
    testing.check_gradients: (broken_methods.AsksTheTeacher, "the teacher's vectors get a gradient; detach them"),
    testing.check_learns: (broken_methods.Unlearns, "five steps took the loss from"),
    testing.check_gradient_caching: (broken_methods.KnowsChunks, "Tensor-likes are not close"),
    testing.check_saved_continues: (broken_methods.Forgets, "register what changes as a buffer"),
    testing.check_nan_shows: (broken_methods.HidesNan, "a vector of the teacher is NaN and the loss is"),
    testing.check_batch_unchanged: (broken_methods.ChangesItsBatch, "the loss changes batch.teacher_source"),
    testing.check_no_scalar_parameter: (broken_methods.LearnsItsScale, "scale is a single number"),
    testing.check_spare_tokens: (broken_methods.CountsSpareTokens, "Scalars are not close"),
    testing.check_single_pair: (broken_methods.AcceptsOnePair, "raise TrainingError: no negatives"),
}


def test_every_check_has_a_method_that_breaks_it():
    assert set(BROKEN) == set(testing.CHECKS)


@pytest.mark.parametrize("check", testing.CHECKS, ids=testing.name_of)
def test_a_sound_method_keeps_the_contract(check):
    check(testing.Case(Sound))


@pytest.mark.parametrize("check", testing.CHECKS, ids=testing.name_of)
def test_a_check_finds_the_method_that_breaks_its_promise(check):
    method, words = BROKEN[check]
    with pytest.raises(AssertionError, match=re.escape(words)):
        check(testing.Case(method))


@pytest.mark.slow
def test_a_loss_that_depends_on_the_number_of_ranks_is_found(tmp_path):
    with pytest.raises(AssertionError, match=r"rank 0 of 2: 1-sound/7/loss differs .*divide by batch.total"):
        testing.check_ranks([testing.Case(Sound), testing.Case(broken_methods.CountsItsOwnRows)], tmp_path, worlds=(2,))
