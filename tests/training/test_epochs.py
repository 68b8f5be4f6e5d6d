import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.training.epochs import Permutation


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_number_stands_at_one_place(size, seed):
    assert sorted(Permutation(size, (seed,))(np.arange(size)).tolist()) == list(range(size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5, 6, 17])
def test_every_number_is_as_likely_at_every_place(size):
    orders = np.stack([Permutation(size, (7, seed))(np.arange(size)) for seed in range(3000)])
    counts = np.stack([np.bincount(column, minlength=size) for column in orders.T])
    assert np.abs(counts / 3000 - 1 / size).max() < 0.04
    followers = np.bincount((orders[:, 1] - orders[:, 0]) % size, minlength=size)[1:]
    assert np.abs(followers / 3000 - 1 / (size - 1)).max() < 0.05


def test_neighbours_in_the_file_are_no_neighbours_in_the_order():
    order = Permutation(100_000, (1, 2))(np.arange(100_000))
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.015
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.015
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 20


def test_another_seed_gives_another_order_and_any_place_is_found_alone():
    one, other = (Permutation(10**12, (1, seed)) for seed in (1, 2))
    places = np.array([0, 1, 10**11, 10**12 - 1])
    assert not np.array_equal(one(places), other(places))
    assert [int(one(places[i : i + 1])[0]) for i in range(4)] == one(places).tolist()
    assert len(set(one(np.arange(10_000)).tolist())) == 10_000
