"""The arrays of a store, mapped into memory: rows of one width, and rows of any length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np

from babeltune.data.store import Array, read_store
from babeltune.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.generic]
    """Values of whatever type a store has."""
    Ids = NDArray[np.integer]
    """Numbers of rows."""

Value = TypeVar("Value", bound=np.generic)
SMALL = 16 << 20
"""Bytes up to which the shards of tokens are joined in memory: then a batch is read in one step, 0.1 ms faster."""


class Matrix:
    """Rows of one width, each found by its number."""

    def __init__(self, parts: list[Numbers], order: Ids | None) -> None:
        self._parts = parts
        self._starts = np.cumsum([0] + [len(part) for part in parts])
        self._order = order
        self.width = int(parts[0].shape[1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, ids: Ids) -> Numbers:
        """[len(ids), width] in the order of `ids`, a copy in memory. `StoreError` for a row that does not exist."""
        _check_range(ids, len(self))
        places: Ids = ids if self._order is None else self._order[ids]
        if len(self._parts) == 1:
            return np.take(self._parts[0], places, axis=0)
        rows: Numbers = np.empty((len(places), self.width), self._parts[0].dtype)
        shard = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(shard):
            where = np.flatnonzero(shard == number)
            rows[where] = self._parts[number][places[where] - self._starts[number]]
        return rows


class Ragged(Generic[Value]):
    """Rows of any length, in shards: each has its values end to end, and where each of its rows starts."""

    def __init__(self, *shards: tuple[NDArray[Value], Ids]) -> None:
        """Each shard is (values, offsets); of n rows there are n + 1 offsets."""
        self._shards = shards
        self._starts = np.cumsum([0] + [len(offsets) - 1 for _, offsets in shards])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self, ids: Ids | None = None) -> NDArray[np.int64]:
        """The length of every row, or of these."""
        if ids is None:
            return np.concatenate([np.diff(offsets) for _, offsets in self._shards]).astype(np.int64, copy=False)
        lengths = np.empty(len(ids), np.int64)
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        for shard in np.unique(shards):
            where, offsets = np.flatnonzero(shards == shard), self._shards[shard][1]
            rows = np.asarray(ids)[where] - self._starts[shard]
            lengths[where] = offsets[rows + 1] - offsets[rows]
        return lengths

    def take(self, ids: Ids) -> tuple[NDArray[Value], NDArray[np.int64]]:
        """These rows' values end to end, and their lengths; `StoreError` for a row that does not exist."""
        _check_range(ids, len(self))
        if len(self._shards) == 1:
            return _take(*self._shards[0], ids)
        # Rows of a batch are drawn at random: of many shards, each has one or none.
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        rows = []
        for shard, row in zip(shards.tolist(), (ids - self._starts[shards]).tolist(), strict=True):
            values, offsets = self._shards[shard]
            rows.append(values[offsets[row] : offsets[row + 1]])
        together = np.concatenate(rows) if rows else self._shards[0][0][:0]
        return together, np.fromiter(map(len, rows), np.int64, len(rows))


def _take(values: NDArray[Value], offsets: Ids, rows: Ids) -> tuple[NDArray[Value], NDArray[np.int64]]:
    """`Ragged.take` of one shard."""
    starts = offsets[rows]
    lengths = offsets[np.asarray(rows) + 1] - starts
    ends = np.cumsum(lengths)
    shift = np.repeat(starts - ends + lengths, lengths)
    return values[shift + np.arange(len(shift))], lengths.astype(np.int64, copy=False)


def open_matrix(*folders: Path, verify: bool = False) -> Matrix:
    """The arrays `rows` of stores end to end; of one store with `order`, the place of each row, in that order.

    Costs no copy; pages are read when rows are. Raises `StoreError` for a store that is missing or altered."""
    stores = {folder: read_store(folder, verify=verify).arrays for folder in folders}
    orders = [cast("Ids", _parts(folder, each["order"])[0]) for folder, each in stores.items() if "order" in each]
    parts = [part for folder, each in stores.items() for part in _parts(folder, each["rows"])]
    return Matrix(parts, orders[0] if orders else None)


def open_ragged(folder: Path) -> Ragged[np.integer]:
    """The arrays `values` and `offsets` of a store, shard by shard; raises as `open_matrix` does."""
    arrays = read_store(folder).arrays
    values, offsets = (cast("list[Ids]", _parts(folder, arrays[name])) for name in ("values", "offsets"))
    if len(values) > 1 and sum(part.nbytes for part in values + offsets) <= SMALL:
        lengths = np.concatenate([np.diff(part) for part in offsets])
        return Ragged((np.concatenate(values), np.cumsum(np.concatenate([[0], lengths]))))
    return Ragged(*zip(values, offsets, strict=True))


def _parts(folder: Path, array: Array) -> list[Numbers]:
    dtype, width = np.dtype(array.dtype), array.width
    if dtype.hasobject:  # its bytes would be taken for addresses in memory
        raise StoreError(
            f"the store {folder} holds objects ({dtype}), which are never read; remove it, then submit again"
        )
    parts: list[Numbers] = []
    for name, rows in array.shards:
        if Path(name).name != name:
            raise StoreError(f"the store {folder} names {name!r}, which is no file of it; remove it, then submit again")
        shape = (rows, width) if width else (rows,)
        # An empty file cannot be mapped; the view drops the memmap class, whose indexing is slower.
        part = np.memmap(folder / name, dtype, "r", shape=shape).view(np.ndarray) if rows else np.empty(shape, dtype)
        parts.append(part)
    return parts


def _check_range(ids: Ids, rows: int) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= rows):
        raise StoreError(
            f"row {ids.min() if ids.min() < 0 else ids.max()} is not among the store's rows 0 to {rows - 1}"
        )
