"""The ids of large dev sets are in a file of what is prepared, and what reads the record finds the same sets."""

import json
from dataclasses import replace

import numpy as np
import pytest

from babeltune.data import prepared as records
from babeltune.data.prepared import Ids, ids_in, read_prepared, sides_of, with_files, write_ids, write_prepared
from babeltune.errors import StoreError
from babeltune.evaluation.evaluate import evaluate
from babeltune.files import plain
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import read_sweep

SIDES = [tuple(range(5)), (7, 3, 9), tuple(range(20, 30))]


@pytest.fixture
def tiny_sweep(tiny_file):
    return read_sweep(tiny_file)


@pytest.fixture
def some(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MANY_IDS", 5)
    write_ids(tmp_path, SIDES)
    return ids_in(tmp_path, SIDES)


def test_large_sides_are_parts_of_a_file_and_small_ones_stay(some):
    assert [type(side) for side in some] == [Ids, tuple, Ids]
    assert [tuple(side) for side in some] == SIDES
    assert [len(side) for side in some] == [5, 3, 10]


def test_a_part_is_a_sequence_of_integers(some):
    side = some[2]
    assert (side[0], side[-1], type(side[1])) == (20, 29, int)
    assert tuple(side[2:5]) == SIDES[2][2:5]
    assert tuple(side[8:99]) == SIDES[2][8:]
    assert len(side[5:3]) == 0
    assert np.asarray(side, np.int32).tolist() == list(SIDES[2])
    assert {side: 1}[Ids(side.file, side.start, side.size)] == 1
    assert plain(side) == list(SIDES[2])
    with pytest.raises(IndexError, match="10 of 10 text ids"):
        side[10]
    with pytest.raises(ValueError, match="a step of 2"):
        side[::2]


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"gone\.npy is damaged or gone .*`babeltune resume` makes it again"):
        list(Ids(str(tmp_path / "gone.npy"), 0, 1))


@pytest.mark.slow
def test_a_record_names_the_file_and_its_sets_score_the_same(tiny_sweep, tmp_path, monkeypatch):
    small = prepare(tiny_sweep, tmp_path / "small")
    monkeypatch.setattr(records, "MANY_IDS", 4)
    large = prepare(tiny_sweep, tmp_path / "large")
    assert all(isinstance(side, Ids) for side in sides_of(large.tasks) if len(side) >= 4)
    assert any(isinstance(side, Ids) for side in sides_of(large.tasks))
    assert large.digest == small.digest
    for name, record in (("small", small), ("large", large)):
        write_prepared(record, tmp_path / f"{name}.json")
    read = {name: read_prepared(tmp_path / f"{name}.json") for name in ("small", "large")}
    assert read["large"] == large
    assert list(map(tuple, sides_of(read["large"].tasks))) == list(map(tuple, sides_of(read["small"].tasks)))

    def embed(texts):
        return np.random.default_rng(0).normal(size=(small.texts, 8))[texts]

    assert evaluate(read["large"].tasks, embed) == evaluate(read["small"].tasks, embed)
    first, *_ = json.loads((tmp_path / "large.json").read_text())["tasks"]
    assert first["left"] == []
    assert first["in_file"]["left"] == [0, len(large.tasks[0].left)]


@pytest.mark.slow
def test_what_a_mining_set_is_fitted_on_is_in_the_file_too(tiny_sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MANY_IDS", 4)
    task, *_ = prepare(tiny_sweep, tmp_path).tasks
    plain_sides = replace(task, left=tuple(task.left), right=tuple(task.right))
    nested = replace(plain_sides, fit=replace(plain_sides, left=tuple(task.right), right=tuple(task.left)))
    write_ids(tmp_path, list(sides_of([nested])))
    (stored,) = with_files((nested,), tmp_path)
    assert isinstance(stored.fit.left, Ids)
    assert list(map(tuple, sides_of([stored]))) == list(map(tuple, sides_of([nested])))
