"""Mining F1 against the published algorithms, written out with plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data.prepared import EvalTask
from babeltune.errors import TrainingError
from babeltune.evaluation import mining_f1
from babeltune.evaluation.evaluate import evaluate


def corpora(n=30, m=40, gold=20, dim=8, noise=0.6, seed=0):
    """Two sides of vectors and the pairs of rows that are translations."""
    generator = np.random.default_rng(seed)
    left, right = generator.normal(size=(n, dim)), generator.normal(size=(m, dim))
    places = generator.permutation(m)[:gold]
    right[places] = left[:gold] + noise * generator.normal(size=(gold, dim))
    sides = ((side + 0.7).astype(np.float32) for side in (left, right))  # so that no mean cosine is near zero
    return *sides, [(i, int(j)) for i, j in enumerate(places)]


def laser_candidates(x, y, k):
    """LASER's mine_bitexts.py and sentence-transformers' bitext_mining.py: exact search, ratio margin."""
    x, y = (side.astype(np.float64) / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
    cosine = x @ y.T
    n, m = cosine.shape
    mean_x = [np.mean(sorted(cosine[i], reverse=True)[: min(k, m)]) for i in range(n)]
    mean_y = [np.mean(sorted(cosine[:, j], reverse=True)[: min(k, n)]) for j in range(m)]

    def score(i, j):
        return cosine[i, j] / ((mean_x[i] + mean_y[j]) / 2)

    forward = [(i, max(np.argsort(-cosine[i])[:k], key=lambda j, i=i: score(i, j))) for i in range(n)]
    backward = [(max(np.argsort(-cosine[:, j])[:k], key=lambda i, j=j: score(i, j)), j) for j in range(m)]
    taken_x, taken_y, best = set(), set(), []
    for i, j in sorted([*forward, *backward], key=lambda pair: -score(*pair)):
        if i not in taken_x and j not in taken_y:
            taken_x.add(i)
            taken_y.add(j)
            best.append((i, j))
    chosen = {
        "forward": forward,
        "backward": backward,
        "intersection": set(forward) & set(backward),
        "union": set(forward) | set(backward),
        "max": best,
    }
    return {how: {(int(i), int(j)): score(i, j) for i, j in pairs} for how, pairs in chosen.items()}


@pytest.mark.trap(26)
@pytest.mark.parametrize(("k", "seed"), [(1, 0), (4, 1), (4, 2), (100, 3)])
def test_candidates_and_scores_are_those_of_the_published_algorithm(k, seed):
    """D26: k may be larger than either side."""
    left, right, _ = corpora(seed=seed)
    found, expected = mining_f1.candidates(left, right, k), laser_candidates(left, right, k)
    for how in mining_f1.RETRIEVALS:
        assert found[how].keys() == expected[how].keys(), how
        assert found[how] == pytest.approx(expected[how], rel=1e-4)
    assert len(found["intersection"]) <= len(found["max"]) < len(found["union"])


def best_f1(pairs, gold):
    """Every cut, tried."""
    cuts = [*set(pairs.values()), math.inf]
    return max(mining_f1.mining_f1(pairs, gold, cut) for cut in cuts)


SCORED = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.sampled_from([0.5, 1.0, 1.25, 2.0]))


@pytest.mark.trap(28)
@settings(max_examples=100, deadline=None)
@given(SCORED, st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1))
def test_the_threshold_gives_the_highest_f1_of_all_cuts_with_equal_scores_together(pairs, gold):
    threshold = mining_f1.fitted_threshold(pairs, list(gold))
    assert mining_f1.mining_f1(pairs, list(gold), threshold) == pytest.approx(best_f1(pairs, list(gold)))


@pytest.mark.trap(28)
def test_the_threshold_is_halfway_to_the_next_score_or_the_last_score():
    """D28: the published code reads beyond the last item."""
    pairs = {(0, 0): 3.0, (1, 1): 2.0, (2, 5): 1.0}
    assert mining_f1.fitted_threshold(pairs, [(0, 0), (1, 1)]) == 1.5
    assert mining_f1.fitted_threshold(pairs, [(0, 0), (1, 1), (2, 5)]) == 1.0
    assert mining_f1.mining_f1(pairs, [(0, 0), (1, 1), (2, 5)], 1.0) == 1.0


def test_where_no_pair_is_right_nothing_is_kept():
    threshold = mining_f1.fitted_threshold({(0, 1): 2.0}, [(0, 0)])
    assert threshold == math.inf
    assert mining_f1.mining_f1({(0, 1): 2.0}, [(0, 0)], threshold) == 0
    assert math.isnan(mining_f1.mining_f1({}, [], 0.0))


def test_an_empty_side_has_no_candidates():
    left, _, _ = corpora()
    assert not any(mining_f1.candidates(left, left[:0]).values())


# Through the task.


def task_of(table, seed, **more):
    """A mining task on new rows of the table."""
    left, right, gold = corpora(seed=seed)
    first = len(table)
    table.extend([*left, *right])
    ids = range(first, first + len(left)), range(first + len(left), len(table))
    sides = {"left": tuple(ids[0]), "right": tuple(ids[1])}
    return EvalTask(name="bucc", kind="mining", subset="fra-eng", gold=tuple(gold), **{**sides, **more})


def scores_of(table, task):
    return evaluate([task], lambda ids: np.asarray(table, np.float32)[ids])


@pytest.mark.trap(28)
def test_the_threshold_of_the_fit_is_applied_to_the_test():
    """D28: fitted on what it is scored on, it stands under another name."""
    table = []
    fit = task_of(table, seed=5)
    task = task_of(table, seed=6, fit=fit)
    scores = scores_of(table, task)
    vectors = np.asarray(table, np.float32)
    own, other = (mining_f1.candidates(vectors[list(t.left)], vectors[list(t.right)]) for t in (task, fit))
    for how in mining_f1.RETRIEVALS:
        threshold = mining_f1.fitted_threshold(other[how], fit.gold)
        fitted = scores[f"dev/bucc/fra-eng/f1_{how}"]
        assert fitted == mining_f1.mining_f1(own[how], task.gold, threshold)
        assert fitted <= scores[f"dev/bucc/f1_{how}_oracle"] == pytest.approx(best_f1(own[how], task.gold))
    assert any(scores[f"dev/bucc/f1_{how}"] < scores[f"dev/bucc/f1_{how}_oracle"] for how in mining_f1.RETRIEVALS)


@pytest.mark.trap(28)
def test_without_a_fit_there_are_oracles_only():
    """D28: a threshold that was fitted on what it scores has no plain name."""
    table = []
    named = {name.rpartition("/")[2] for name in scores_of(table, task_of(table, seed=1))} - {"mean_cosine"}
    assert named == {f"f1_{how}_oracle" for how in mining_f1.RETRIEVALS}


@pytest.mark.trap(29)
def test_a_repeated_sentence_is_no_candidate_and_takes_no_place_among_the_neighbours():
    """D29: no id could be given to it; gold keeps its pairs, which count as missed."""
    table = []
    task = task_of(table, seed=2)
    whole = scores_of(table, task)["dev/bucc/f1_max_oracle"]
    repeated = EvalTask(**{**vars(task), "right": (*task.right, task.right[task.gold[0][1]])})
    vectors = np.asarray(table, np.float32)
    distinct = mining_f1.candidates(vectors[list(task.left)], vectors[list(task.right)])["max"]
    kept = {pair: score for pair, score in distinct.items() if pair[1] != task.gold[0][1]}
    found = scores_of(table, repeated)["dev/bucc/f1_max_oracle"]
    assert found == pytest.approx(best_f1(kept, task.gold))
    assert found < whole


def test_vectors_that_are_not_finite_have_no_score():
    table = []
    task = task_of(table, seed=3)
    table[4] = np.full(8, np.nan)
    with pytest.raises(TrainingError, match="not finite"):
        scores_of(table, task)
