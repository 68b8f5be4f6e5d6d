"""Arrays and files of any size in bounded memory, for the steps that clean a corpus.

A large array lies in a file that has no name and is mapped into memory. The kernel writes its pages out when memory is
short, and frees the file when its process ends, however that ends. So nothing is left to clean up. Small arrays stay in
memory. Every function here works on `PART` values at a time."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np

from babeltune.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Value = TypeVar("Value", bound=np.generic)
LARGE_ARRAY_BYTES = 1 << 20  # bytes above which an array lies in a file
PART = 1 << 20  # values that are worked on at a time
SEGMENT = 1 << 28  # bytes of a file, which holds many arrays. It is freed with the last of them.


class _Arena:
    """Gives arrays room in the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._segment: weakref.ref[mmap.mmap] | None = None
        self._used = 0

    def bytes(self, size: int) -> NDArray[np.uint8]:
        """An array of zeros. The segment lives as long as one of its arrays."""
        with self._lock:
            segment = None if self._segment is None else self._segment()
            if segment is None or self._used + size > len(segment):
                segment = ScratchFile(self.folder).mapped(max(SEGMENT, size))
                self._segment, self._used = weakref.ref(segment), 0
            start, self._used = self._used, self._used + -(-size // 64) * 64
            return np.frombuffer(segment, np.uint8, size, start)


_anywhere = _Arena(Path(tempfile.gettempdir()))
_arena: ContextVar[_Arena] = ContextVar("arena", default=_anywhere)


@contextmanager
def scratch_in(folder: Path) -> Iterator[None]:
    """While the body runs, large arrays lie on the disk of this folder, not on that of temporary files."""
    token = _arena.set(_Arena(folder))
    try:
        yield
    finally:
        _arena.reset(token)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write temporary data of the corpus in {folder}: {error.strerror or error}; free space or choose "
            "another storage folder, then submit again"
        ) from error


class ScratchFile:
    """A file without a name that is written from its beginning to its end, then mapped into memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _arena.get().folder
        with _disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (a map outlives the block)

    def write(self, data: memoryview) -> None:
        """Appends the bytes."""
        with _disk_errors(self.folder):
            self._file.write(data)

    def mapped(self, size: int | None = None) -> mmap.mmap:
        """Maps the file into memory: what was written, or `size` bytes. Reserves that room on the disk first."""
        with _disk_errors(self.folder), self._file as file:
            size = size or max(1, file.tell())
            file.flush()
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and no SIGBUS later
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)


def zeros(shape: int | tuple[int, ...], dtype: type[Value] | np.dtype[Value]) -> NDArray[Value]:
    """An array of zeros."""
    kind: np.dtype[Value] = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    if size <= LARGE_ARRAY_BYTES:
        return np.zeros(shape, kind)
    return _arena.get().bytes(size).view(kind).reshape(shape)


NARROW = (1 << 31) - 1  # up to this count, numbers have 32 bits, which hold -1 and the number after the last one, too


def number_type(count: int) -> type[np.signedinteger[Any]]:
    """The type of numbers below `count`, and of -1. 32 bits if they suffice, so that stores keep their bytes."""
    return np.int32 if count <= NARROW else np.int64


def parts(count: int, size: int | None = None) -> Iterator[slice]:
    """Consecutive slices of this length."""
    step = size or PART
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def rows_where(array: NDArray[Value], mask: NDArray[np.bool_]) -> NDArray[Value]:
    """The rows of the array where the mask is true."""
    out: NDArray[Value] = zeros((int(np.count_nonzero(mask)), *array.shape[1:]), array.dtype)
    end = 0
    for part in parts(len(array)):
        some = array[part][mask[part]]
        out[end : end + len(some)] = some
        end += len(some)
    return out


def rows_at(array: NDArray[Value], where: NDArray[np.integer]) -> NDArray[Value]:
    """The rows of the array at these places."""
    out: NDArray[Value] = zeros((len(where), *array.shape[1:]), array.dtype)
    for part in parts(len(where)):
        out[part] = array[where[part]]
    return out


def numbered(count: int) -> NDArray[np.int64]:
    """The numbers from 0 to `count` - 1."""
    out = zeros(count, np.int64)
    for part in parts(count):
        out[part] = np.arange(part.start, part.stop)
    return out


def inverted(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True where the mask is false."""
    return np.logical_not(mask, out=zeros(len(mask), np.bool_))


def histogram(values: NDArray[np.integer], least: int = 0) -> NDArray[np.int64]:
    """How often each of 0, 1, 2 and so on occurs, for few different values; at least `least` counts."""
    totals = np.zeros(least, np.int64)
    for part in parts(len(values)):
        counts = np.bincount(values[part], minlength=len(totals))
        counts[: len(totals)] += totals
        totals = counts
    return totals


def end_to_end(arrays: Sequence[NDArray[Value]]) -> NDArray[Value]:
    """The arrays end to end; there is at least one."""
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    out: NDArray[Value] = zeros(shape, arrays[0].dtype)
    end = 0
    for array in arrays:
        out[end : end + len(array)] = array
        end += len(array)
    return out


def repeated(values: Sequence[float], times: Sequence[int], dtype: type[Value]) -> NDArray[Value]:
    """Each value as often as its count says, end to end."""
    out = zeros(sum(times), dtype)
    end = 0
    for value, count in zip(values, times, strict=True):
        out[end : end + count] = value
        end += count
    return out


def places(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The places where the mask is true."""
    out: NDArray[np.int64] = zeros(int(np.count_nonzero(mask)), np.int64)
    end = 0
    for part in parts(len(mask)):
        some = np.flatnonzero(mask[part]) + part.start
        out[end : end + len(some)] = some
        end += len(some)
    return out


def in_sorted(values: NDArray[Value], table: NDArray[Value]) -> NDArray[np.bool_]:
    """Which values are among the known ones, which ascend."""
    if not len(table):
        return np.zeros(len(values), np.bool_)
    is_member: NDArray[np.bool_] = table[np.minimum(np.searchsorted(table, values), len(table) - 1)] == values
    return is_member


def where_in(values: NDArray[Value], table: NDArray[Value]) -> NDArray[np.bool_]:
    """`in_sorted` of many values."""
    out = zeros(len(values), np.bool_)
    for part in parts(len(values)):
        out[part] = in_sorted(values[part], table)
    return out


# --- Keys ----------------------------------------------------------------------------------------------------------


def _of_residue(keys: NDArray[np.uint64], count: int, residue: int) -> NDArray[np.int64]:
    """The places of the keys that leave this residue."""
    if count == 1:
        return np.arange(len(keys))
    divisor = np.uint64(count)
    chunks = [np.flatnonzero(keys[part] % divisor == residue) + part.start for part in parts(len(keys))]
    return np.concatenate([np.empty(0, np.int64), *chunks])


def residues(*sides: NDArray[np.uint64]) -> Iterator[list[NDArray[np.int64]]]:
    """The places of the keys of each side that leave the same residue, about `PART` at a time."""
    count = max(1, -(-sum(map(len, sides)) // PART))
    return ([_of_residue(keys, count, residue) for keys in sides] for residue in range(count))


def first_places(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[keys] the place of the first equal key. Keys are compared within those of one residue at a time."""
    out: NDArray[np.int64] = zeros(len(keys), np.int64)
    for (where,) in residues(keys):
        _, first, inverse = np.unique(keys[where], return_index=True, return_inverse=True)
        out[where] = where[first[inverse]]
    return out


def is_first(first: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places are the first of their key, by what `first_places` gave."""
    out: NDArray[np.bool_] = zeros(len(first), np.bool_)
    for part in parts(len(first)):
        out[part] = first[part] == np.arange(part.start, part.stop)
    return out


def numbers(first: NDArray[np.int64], new: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[keys] the number of each key by first appearance, by what `first_places` and `is_first` gave."""
    totals: NDArray[np.int64] = zeros(len(new), np.int64)
    out: NDArray[np.int64] = zeros(len(new), np.int64)
    total = 0
    for part in parts(len(new)):
        totals[part] = total - 1 + np.cumsum(new[part])
        total += int(np.count_nonzero(new[part]))
    for part in parts(len(new)):
        out[part] = totals[first[part]]
    return out


def unseen(keys: NDArray[np.uint64], earlier: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Which keys are the first of their kind, here and among the earlier ones."""
    out: NDArray[np.bool_] = zeros(len(keys), np.bool_)
    for where, *known_places in residues(keys, *earlier):
        before = [each[places] for each, places in zip(earlier, known_places, strict=True)]
        earlier_keys = np.sort(np.concatenate([keys[:0], *before]))
        different, first = np.unique(keys[where], return_index=True)
        out[where] = False
        out[where[first[~in_sorted(different, earlier_keys)]]] = True
    return out


class Grouped:
    """The places of each number, in order, for numbers from 0 up to `count` or the largest."""

    def __init__(self, numbers: NDArray[np.int64], count: int | None = None) -> None:
        if count is None:
            count = max((int(numbers[part].max()) + 1 for part in parts(len(numbers))), default=0)
        self.sizes: NDArray[np.int64] = zeros(count, np.int64)
        self.places: NDArray[np.int64] = zeros(len(numbers), np.int64)
        """The places, by their number."""
        self._starts: NDArray[np.int64] = zeros(count, np.int64)
        for part in parts(len(numbers)):
            np.add.at(self.sizes, numbers[part], 1)
        end = 0
        for part in parts(count):
            self._starts[part] = end + np.cumsum(self.sizes[part]) - self.sizes[part]
            end += int(self.sizes[part].sum())
        filled: NDArray[np.int64] = zeros(count, np.int64)
        for part in parts(len(numbers)):
            order = np.argsort(numbers[part], kind="stable")
            groups_here = numbers[part][order]
            begin = np.flatnonzero(np.diff(groups_here, prepend=-1))
            turn = np.arange(len(groups_here)) - np.repeat(begin, np.diff(begin, append=len(groups_here)))
            self.places[self._starts[groups_here] + filled[groups_here] + turn] = part.start + order
            np.add.at(filled, groups_here, 1)

    def place(self, number: NDArray[np.int64], turn: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the `turn`-th occurrence of each number, which starts over after the last."""
        return self.places[self._starts[number] + turn % self.sizes[number]]


BINS = 1 << 16  # values of the leading bits of a rank


def leading(ranks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The leading bits of each rank, which sort as ranks do."""
    return (ranks >> np.uint64(48)).astype(np.int64)


def smallest(ranks: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
    """Which are the `count` smallest ranks; of equal ones the first."""
    sizes = np.zeros(BINS, np.int64)
    for part in parts(len(ranks)):
        sizes += np.bincount(leading(ranks[part]), minlength=BINS)
    below = np.cumsum(sizes)
    last = int(np.searchsorted(below, count))
    out: NDArray[np.bool_] = zeros(len(ranks), np.bool_)
    ties = []
    for part in parts(len(ranks)):
        bins = leading(ranks[part])
        out[part] = bins < last
        ties.append(np.flatnonzero(bins == last) + part.start)
    tied = np.concatenate([np.empty(0, np.int64), *ties])
    missing = count - int(below[last - 1]) if last else count
    out[tied[np.argsort(ranks[tied], kind="stable")[:missing]]] = True
    return out


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
