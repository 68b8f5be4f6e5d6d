"""Both directions from one product, beside plain sorting."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.evaluation import knn

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 70), st.integers(1, 400), st.integers(0, 99))
TILES = st.tuples(st.integers(1, 30), st.integers(1, 30))


def sorted_cosines(left, right, k):
    """The k nearest by a stable sort, each cosine computed alone so that equal rows tie."""
    x, y = (torch.nn.functional.normalize(torch.from_numpy(side).double(), dim=1) for side in (left, right))
    values, index = (x[:, None] * y).sum(dim=2).sort(dim=1, descending=True, stable=True)
    return values[:, :k], index[:, :k]


@settings(max_examples=60, deadline=None)
@given(SIZES, TILES)
def test_one_product_gives_both_directions_with_duplicates_ties_and_k_beyond_n(sizes, tile):
    n, m, k, block, seed = sizes
    generator = np.random.default_rng(seed)
    pool = generator.normal(size=(50, 6)).astype(np.float32)
    left, right = pool[generator.integers(50, size=n)], pool[generator.integers(50, size=m)]
    before, (knn.BLOCK, knn.TILE) = (knn.BLOCK, knn.TILE), (block, tile)
    try:
        matches = knn.nearest_both_ways(left, right, k)
    finally:
        knn.BLOCK, knn.TILE = before
    for found, sides in ((matches.forward, (left, right)), (matches.backward, (right, left))):
        values, index = sorted_cosines(*sides, k)
        assert found.cosine.shape == values.shape == (len(sides[0]), min(k, len(sides[1])))
        torch.testing.assert_close(found.cosine.double(), values, atol=1e-6, rtol=0)
        assert torch.equal(found.index, index), "bit-equal vectors tie, and the lowest row comes first"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["distinct", "ties", "nan"])
def test_the_largest_of_many_columns_are_a_stable_sorts(kind, transposed):
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(40, 500, generator=generator)
    if kind == "ties":
        values = (values * 100).round()
    values = values.T.contiguous().T if transposed else values
    if kind == "nan":
        values[3, 77] = torch.nan
    found = knn.first_largest(values, 4)
    top, order = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.cosine.nan_to_num(9), top[:, :4].nan_to_num(9))
    assert torch.equal(found.index, order[:, :4])


def test_each_block_of_similarities_is_computed_once(monkeypatch):
    left, right = (np.random.default_rng(seed).normal(size=(50, 4)).astype(np.float32) for seed in (0, 1))
    products = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if "matmul" in function.__name__:
                products.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        knn.nearest_both_ways(left, right)
    assert len(products) == 1


def test_tiles_are_no_smaller_however_many_candidates_there_are():
    """One row of ten million candidates at a time would read all of them for each row."""
    assert knn._tile_of(10_000_000) == knn.TILE
    assert knn._tile_of(4_000) == (knn.BLOCK // 4_000, 4_000)


def test_an_empty_side_has_no_neighbours():
    some, none = np.ones((3, 4), np.float32), np.ones((0, 4), np.float32)
    for left, right in ((some, none), (none, some), (none, none)):
        found = knn.nearest_both_ways(left, right)
        assert (len(found.forward.index), len(found.backward.index)) == (len(left), len(right))
        assert found.forward.index.numel() == found.backward.index.numel() == 0


@pytest.mark.parametrize("collide", [False, True])
def test_equal_rows_have_one_number_by_first_appearance_whatever_their_hashes(monkeypatch, collide):
    if collide:  # a hash that is the sum of a row's numbers
        monkeypatch.setattr(knn.np.random, "default_rng", lambda seed: SumsOnly())
    monkeypatch.setattr(knn, "HASHED", 3)
    rows = np.array([[1, 2], [2, 1], [1, 2], [0, 3], [2, 1], [0.0, 5], [-0.0, 5]], np.float32)
    number, places = knn.numbered_rows(rows)
    assert number.tolist() == [0, 1, 0, 2, 1, 3, 4]
    assert places.tolist() == [0, 1, 3, 5, 6]


class SumsOnly:
    def integers(self, *_, size, dtype):
        return np.ones(size, dtype)
