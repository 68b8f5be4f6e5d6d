"""Joins rows by 64-bit keys, in bounded memory: files on an id, and two sources on a pivot. Used by `sources`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.arrays import Grouped, end_to_end, first_places, is_first, numbers, parts, residues, zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray


def matching(keys: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[keys] the place of the equal key among the `others`, which all differ; -1 if there is none."""
    out: NDArray[np.int64] = zeros(len(keys), np.int64)
    for here, those in residues(keys, others):
        order = those[np.argsort(others[those])]
        place = np.minimum(np.searchsorted(others[order], keys[here]), max(0, len(order) - 1))
        out[here] = np.where(others[order[place]] == keys[here], order[place], -1) if len(order) else -1
    return out


def paired_in_turn(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
    """[rows, 2] the places on the left and on the right that are joined, and how many combinations there are.

    A key that occurs m times on the left and n times on the right gives max(m, n) rows. The i-th is joined with the
    i-th, and the shorter side starts over. Keys come by their first place on the left."""
    keys = end_to_end([left, right])
    first = first_places(keys)
    number = numbers(first, is_first(first))
    count = max((int(number[part].max()) + 1 for part in parts(len(number))), default=0)
    sides = [Grouped(some, count) for some in (number[: len(left)], number[len(left) :])]
    sizes, combinations = zeros(count, np.int64), 0
    for part in parts(count):
        lefts, rights = (side.sizes[part] for side in sides)
        combinations += int((lefts * rights).sum())
        sizes[part] = np.where(lefts * rights > 0, np.maximum(lefts, rights), 0)
    rows: NDArray[np.int64] = zeros((sum(int(sizes[part].sum()) for part in parts(count)), 2), np.int64)
    end = 0
    for part in parts(count):
        key = np.repeat(np.arange(part.start, part.stop), sizes[part])
        turn = np.arange(len(key)) - np.repeat(np.cumsum(sizes[part]) - sizes[part], sizes[part])
        for column, side in enumerate(sides):
            rows[end : end + len(key), column] = side.place(key, turn)
        end += len(key)
    return rows, combinations
