"""Arrays of any size: the same results in parts as in one piece, on disk as in memory, and nothing left behind."""

import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import arrays
from babeltune.errors import StoreError
from small_parts import tiny_parts
from waiting import PATIENCE_S

KEYS = st.lists(st.integers(0, 12).map(lambda key: key * (2**60 + 9) % 2**64), max_size=60)


def keys_of(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@given(KEYS)
def test_equal_keys_are_numbered_alike_by_first_appearance(values):
    numbers: dict[int, int] = {}
    expected = [numbers.setdefault(value, len(numbers)) for value in values]
    with tiny_parts():
        first = arrays.first_places(keys_of(values))
        new = arrays.is_first(first)
        assert arrays.numbers(first, new).tolist() == expected
    assert first.tolist() == [values.index(value) for value in values]
    assert new.tolist() == [values.index(value) == place for place, value in enumerate(values)]


@given(KEYS, st.lists(KEYS, max_size=3))
def test_repeats_are_found_here_and_in_earlier_keys(values, earlier):
    before = {key for keys in earlier for key in keys}
    expected = [value not in before and values.index(value) == place for place, value in enumerate(values)]
    with tiny_parts():
        assert arrays.unseen(keys_of(values), [keys_of(keys) for keys in earlier]).tolist() == expected


@given(st.lists(st.sampled_from([0, 1, 2**48, 2**48 + 1, 2**63, 2**64 - 1]), min_size=1, max_size=40), st.data())
def test_the_smallest_ranks_are_those_of_a_stable_sort(ranks, data):
    count = data.draw(st.integers(0, len(ranks)))
    expected = np.zeros(len(ranks), bool)
    expected[np.argsort(keys_of(ranks), kind="stable")[:count]] = True
    with tiny_parts():
        assert arrays.smallest(keys_of(ranks), count).tolist() == expected.tolist()


@pytest.mark.slow
@given(st.lists(st.booleans(), max_size=40))
def test_rows_are_kept_and_joined_as_numpy_does_it(mask):
    chosen = np.array(mask, bool)
    rows = np.arange(2 * len(mask)).reshape(-1, 2)
    with tiny_parts():
        assert np.array_equal(arrays.rows_where(rows, chosen), rows[chosen])
        assert np.array_equal(arrays.places(chosen), np.flatnonzero(chosen))
        assert np.array_equal(arrays.end_to_end([rows, rows[:1]]), np.concatenate([rows, rows[:1]]))
        assert np.array_equal(arrays.where_in(rows[:, 0], np.arange(9)), np.isin(rows[:, 0], np.arange(9)))
        assert np.array_equal(arrays.inverted(chosen), ~chosen)
        assert np.array_equal(arrays.rows_at(rows, np.flatnonzero(chosen)), rows[chosen])


@pytest.mark.slow
def test_a_large_array_lies_on_disk_and_leaves_no_file_behind_a_crash(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from babeltune.data import arrays\n"
        "with arrays.scratch_in(Path(sys.argv[1])):\n"
        "    large = arrays.zeros(arrays.LARGE_ARRAY_BYTES, 'int64'); large[-1] = 7\n"
        "    files = [line for line in Path('/proc/self/maps').read_text().splitlines() if sys.argv[1] in line]\n"
        "    print(len(files), large[0], large[-1], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1 0 7\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_one_file_do_not_overlap(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGE_ARRAY_BYTES", 0)
    monkeypatch.setattr(arrays, "SEGMENT", 1000)
    with arrays.scratch_in(tmp_path):
        many = [arrays.zeros((size, 3), np.uint16) for size in range(1, 30)]
    for number, array in enumerate(many):
        assert not array.any()
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(many))


def test_a_disk_that_is_full_is_one_line_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGE_ARRAY_BYTES", 0)
    monkeypatch.setattr(arrays, "SEGMENT", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a write beyond fails as on a full disk
    try:
        with arrays.scratch_in(tmp_path), pytest.raises(StoreError) as array:
            arrays.zeros(8192, np.uint8)
        with arrays.scratch_in(tmp_path), pytest.raises(StoreError) as file:
            arrays.ScratchFile().write(memoryview(bytes(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for error in (array, file):
        assert str(tmp_path) in str(error.value)
        assert "free space or choose another storage folder" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGE_ARRAY_BYTES", 0)
    (tmp_path / "file").touch()
    with arrays.scratch_in(tmp_path / "file"), pytest.raises(StoreError, match=r"file: (Not a directory|File exists)"):
        arrays.zeros(8, np.uint8)


def test_numbers_have_32_bits_as_long_as_these_hold_the_number_after_the_last():
    types = [arrays.number_type(count) for count in (0, arrays.NARROW, arrays.NARROW + 1)]
    assert types == [np.int32, np.int32, np.int64]
    last = np.array([arrays.NARROW - 1], np.int32)
    assert (last + np.int32(1)).item() == arrays.NARROW


JOINED = st.lists(st.integers(0, 9), max_size=30)


def hashed(values):
    return np.array(values, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def in_turn(left, right):
    """Every row of a key on either side once or more, written with dictionaries."""
    places = {}
    for side, keys in enumerate((left, right)):
        for place, key in enumerate(keys):
            places.setdefault(key, ([], []))[side].append(place)
    both = [(ours, others) for ours, others in places.values() if ours and others]
    rows = [
        (ours[turn % len(ours)], others[turn % len(others)])
        for ours, others in both
        for turn in range(max(len(ours), len(others)))
    ]
    return rows, sum(len(ours) * len(others) for ours, others in both)


@pytest.mark.slow
@given(left=JOINED, right=JOINED)
@settings(max_examples=200, deadline=None)
def test_a_pivot_joins_the_rows_that_plain_dictionaries_join(left, right):
    with tiny_parts():
        rows, combinations = arrays.paired_in_turn(hashed(left), hashed(right))
    assert (list(map(tuple, rows.tolist())), combinations) == in_turn(left, right)


@pytest.mark.slow
@given(keys=JOINED, others=st.lists(st.integers(0, 9), unique=True))
@settings(max_examples=200, deadline=None)
def test_a_key_is_found_at_its_place_among_the_others(keys, others):
    expected = [others.index(key) if key in others else -1 for key in keys]
    with tiny_parts():
        assert arrays.matching(hashed(keys), hashed(others)).tolist() == expected


@given(values=st.lists(st.integers(0, 5), max_size=40), least=st.integers(0, 8))
@settings(max_examples=50, deadline=None)
def test_values_are_counted_part_by_part_as_at_once(values, least):
    with tiny_parts():
        counts = arrays.histogram(np.array(values, np.int16), least)
    assert counts.tolist() == np.bincount(np.array(values, np.int64), minlength=least).tolist()
