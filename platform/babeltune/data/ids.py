"""The text ids of large dev sets, in a file: a worker maps them, instead of reading millions of numbers in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from babeltune.data.arrays import parts
from babeltune.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = "eval_ids.npy"  # the ids of all large dev sets, end to end, in the folder of what is prepared
MANY = 100_000  # ids of one side of a dev set from which on they are in the file


@dataclass(frozen=True)
class Ids(Sequence[int]):
    """A part of such a file, as a sequence of integers. It is opened at first use."""

    file: str
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> int | Ids:
        if isinstance(at, slice):
            first, end, step = at.indices(self.size)
            if step != 1:
                raise ValueError(f"a step of {step}; text ids are cut in their order")
            return Ids(self.file, self.start + first, max(0, end - first))
        if not -self.size <= at < self.size:
            raise IndexError(f"{at} of {self.size} text ids")
        return int(self._array()[at % self.size])

    def __iter__(self) -> Iterator[int]:
        array = self._array()
        for part in parts(self.size):
            yield from array[part].tolist()

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> NDArray[np.integer]:
        return np.array(self._array(), dtype=dtype, copy=copy)

    def _array(self) -> NDArray[np.integer]:
        return _open_ids(self.file)[self.start : self.start + self.size]


@lru_cache(maxsize=8)
def _open_ids(file: str) -> NDArray[np.integer]:
    try:
        array: NDArray[np.integer] = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} is damaged or gone ({error}); `babeltune resume` makes it again") from error
    return array


def write_ids(folder: Path, sides: Sequence[Sequence[int]]) -> None:
    """Writes the large ones of these sides, if there are some."""
    if large := [np.asarray(side, np.int64) for side in sides if len(side) >= MANY]:
        np.save(folder / FILE, np.concatenate(large))


def ids_in(folder: Path, sides: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The sides, those that `write_ids` wrote there as parts of its file."""
    ids: list[Sequence[int]] = []
    start = 0
    for side in sides:
        large = len(side) >= MANY
        ids.append(Ids(str(folder / FILE), start, len(side)) if large else side)
        start += len(side) if large else 0
    return ids
