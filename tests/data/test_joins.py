import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import arrays
from babeltune.data.joins import matching, paired_in_turn

KEYS = st.lists(st.integers(0, 9), max_size=30)


@pytest.fixture(scope="module", autouse=True)
def _tiny_parts():
    before = arrays.PART
    arrays.PART = 4
    yield
    arrays.PART = before


def keys_of(values):
    return np.array(values, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def in_turn(left, right):
    """Every row of a key on either side once or more, written with dictionaries."""
    places = {}
    for side, keys in enumerate((left, right)):
        for place, key in enumerate(keys):
            places.setdefault(key, ([], []))[side].append(place)
    both = [(ours, theirs) for ours, theirs in places.values() if ours and theirs]
    rows = [
        (ours[turn % len(ours)], theirs[turn % len(theirs)])
        for ours, theirs in both
        for turn in range(max(len(ours), len(theirs)))
    ]
    return rows, sum(len(ours) * len(theirs) for ours, theirs in both)


@pytest.mark.slow
@given(left=KEYS, right=KEYS)
@settings(max_examples=200, deadline=None)
def test_a_pivot_joins_the_rows_that_plain_dictionaries_join(left, right):
    rows, combinations = paired_in_turn(keys_of(left), keys_of(right))
    assert (list(map(tuple, rows.tolist())), combinations) == in_turn(left, right)


@pytest.mark.slow
@given(keys=KEYS, others=st.lists(st.integers(0, 9), unique=True))
@settings(max_examples=200, deadline=None)
def test_a_key_is_found_at_its_place_among_the_others(keys, others):
    expected = [others.index(key) if key in others else -1 for key in keys]
    assert matching(keys_of(keys), keys_of(others)).tolist() == expected


@given(values=st.lists(st.integers(0, 5), max_size=40), least=st.integers(0, 8))
@settings(max_examples=50, deadline=None)
def test_values_are_counted_part_by_part_as_at_once(values, least):
    found = arrays.histogram(np.array(values, np.int16), least)
    assert found.tolist() == np.bincount(np.array(values, np.int64), minlength=least).tolist()


def test_a_mask_is_inverted_and_places_are_taken():
    mask = np.array([True, False] * 7)
    assert np.array_equal(arrays.inverted(mask), ~mask)
    rows = np.arange(28).reshape(14, 2)
    assert np.array_equal(arrays.rows_at(rows, np.flatnonzero(mask)), rows[mask])
    assert list(itertools.chain.from_iterable(arrays.rows_at(rows, np.array([3])).tolist())) == [6, 7]
