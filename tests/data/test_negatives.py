"""Mined hard negatives against a search with plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import negatives
from babeltune.data.negatives import mine_negatives

# Unit vectors whose cosines (0, ±0.5, ±1) are exact in float32, so that ties are ties.
UNITS = np.array([[a, b, c, d] for a in (1, -1) for b in (1, -1) for c in (1, -1) for d in (1, -1)], np.float32) / 2


def search(vectors, anchors, targets, groups, k, below):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = np.full((len(targets), k), -1)
    for i in range(len(targets)):
        translations = {targets[j] for j in range(len(targets)) if anchors[j] == anchors[i] and groups[j] == groups[i]}
        best = {}
        for j in range(len(targets)):
            if groups[j] == groups[i] and targets[j] not in translations:
                best[targets[j]] = max(best.get(targets[j], -2), float(unit[i] @ unit[j]))
        # dictionaries keep the order of first sight, and the sort is stable
        ranked = sorted((t for t in best if best[t] < below), key=lambda t: -best[t])[:k]
        nearest[i, : len(ranked)] = ranked
    return nearest


@pytest.mark.slow
@pytest.mark.trap(27)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 1)), min_size=1, max_size=25),
    st.lists(st.integers(0, 15), min_size=10, max_size=10),
    st.integers(1, 4),
    st.sampled_from([2.0, 1.0, 0.75, 0.5, 0.0]),
    st.sampled_from([1, 30, negatives.TILE]),
)
def test_mining_equals_a_search_with_plain_loops(pairs, unit_of, k, below, tile):
    anchors, targets, groups = (np.array(column) for column in zip(*pairs, strict=True))
    vectors = UNITS[np.array(unit_of)[anchors]] * (1 + anchors[:, None] % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(negatives, "TILE", tile)
        mined = mine_negatives(vectors, np.column_stack([anchors, targets + 100]), groups, k=k, below=below)
    assert mined.dtype == anchors.dtype
    assert mined.tolist() == search(vectors, anchors, targets + 100, groups, k, below).tolist()


def test_half_precision_vectors_are_mined_as_they_are_stored():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((200, 8)).astype(np.float16)
    ids, group = np.arange(200), np.zeros(200, int)
    exact = search(vectors.astype(np.float64), ids, ids, group, 3, 0.9)
    assert (mine_negatives(vectors, np.column_stack([ids, ids]), group, k=3, below=0.9) == exact).mean() > 0.99


def test_a_big_group_is_searched_in_seeded_pools_that_keep_an_anchor_together():
    rng = np.random.default_rng(0)
    anchors = np.repeat(np.arange(150), 2)
    vectors, targets = rng.standard_normal((150, 8))[anchors], np.arange(300)
    arguments = (vectors, np.column_stack([anchors, targets]), np.zeros(300, int))
    first = mine_negatives(*arguments, k=2, pool=64, seed=1)
    assert np.array_equal(first, mine_negatives(*arguments, k=2, pool=64, seed=1))
    assert not np.array_equal(first, mine_negatives(*arguments, k=2, pool=64, seed=2))
    assert not np.array_equal(first, mine_negatives(*arguments, k=2, pool=300))
    assert (first >= 0).all()
    assert (anchors[first] != anchors[:, None]).all()


def test_a_pair_alone_in_its_language_pair_has_no_negative():
    mined = mine_negatives(UNITS[:3], np.column_stack([np.arange(3)] * 2), np.array([0, 1, 1]), k=2)
    assert mined.tolist() == [[-1, -1], [2, -1], [1, -1]]


def test_no_pairs_give_no_rows():
    assert mine_negatives(UNITS[:0], np.empty((0, 2), int), np.array([], int), k=3).shape == (0, 3)
