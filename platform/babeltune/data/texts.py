"""Many texts as one sequence of strings: an Arrow array, in memory or in a mapped file, that decodes what is read.

A text costs its UTF-8 bytes and 8 more, instead of a Python string. Slices decode many texts at once, so loops go over
slices (`batches`) and not over single places."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from babeltune.data.arrays import ScratchFile, parts, rows_at, zeros
from babeltune.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

BATCH = 10_000  # texts that are strings at a time
LARGE_TEXTS_BYTES = 1 << 24  # bytes of collected texts above which they go to files
COLUMN = "text"  # the column of a file of texts


class Texts(Sequence[str]):
    """A read-only list of texts in an Arrow array, which decodes a text when it is read. With `ids`, a view of some."""

    def __init__(self, array: pa.Array, ids: NDArray[np.integer] | None = None) -> None:
        self._array = array
        self._ids = ids

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Makes `Texts` of any strings. `Texts` are returned unchanged, other sequences are copied."""
        if isinstance(texts, Texts):
            return texts
        return cls(_array(texts))

    @classmethod
    def coded(cls, names: Sequence[str], codes: NDArray[np.int16]) -> Texts:
        """Few different texts: `names[code]` for each code."""
        import pyarrow as pa

        indices = pa.Array.from_buffers(pa.int16(), len(codes), [None, pa.py_buffer(codes)])
        return cls(pa.DictionaryArray.from_arrays(indices, _array(names)))

    @classmethod
    def open(cls, path: Path) -> Texts:
        """The texts that `save` wrote, mapped into memory; `StoreError` for a file that is gone or damaged."""
        import pyarrow as pa

        try:
            return cls(pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0).column(0))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                f"{path} is damaged or gone ({error}); submit the sweep again to rebuild its store"
            ) from error

    @classmethod
    def read(cls, content: bytes) -> Texts:
        """The texts of a file that `save` wrote, from its bytes."""
        return read_all(content)[0]

    def save(self, path: Path) -> None:
        """Writes an Arrow file of one column."""
        save_all([self], path)

    def __len__(self) -> int:
        return len(self._array) if self._ids is None else len(self._ids)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            texts: list[str] = self.part(place).to_pylist()
            return texts
        text: str = self._array[place if self._ids is None else int(self._ids[place])].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for some in self.batches():
            yield from some.to_pylist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({self[:3]}{'' if len(self) <= 3 else f' and {len(self) - 3:,} more'})"

    def part(self, place: slice) -> pa.Array:
        """A slice as an Arrow array."""
        start, stop, step = place.indices(len(self))
        if step != 1:
            return self.at(np.arange(start, stop, step)).part(slice(None))
        if self._ids is None:
            return self._array.slice(start, max(0, stop - start))
        return self._array.take(_numbers(self._ids[start:stop]))

    def batches(self) -> Iterator[pa.Array]:
        """All texts, `BATCH` at a time."""
        return (self.part(place) for place in parts(len(self), BATCH))

    def at(self, ids: NDArray[np.integer]) -> Texts:
        """A view of the texts of these numbers, which copies none."""
        return Texts(self._array, ids if self._ids is None else rows_at(self._ids, ids))

    def names(self) -> list[str]:
        """The different texts by first appearance, if they are few."""
        return list(dict.fromkeys(name for some in self.batches() for name in some.unique().to_pylist()))

    def codes(self, names: Sequence[str]) -> NDArray[np.int16]:
        """[texts] the place of each text among `names`, which are few and have all of them."""
        place = {name: code for code, name in enumerate(names)}
        numbers: NDArray[np.int16] = zeros(len(self), np.int16)
        for part in parts(len(self), BATCH):
            coded = self.part(part).dictionary_encode()
            codes = np.array([place[name] for name in coded.dictionary.to_pylist()], np.int16)
            numbers[part] = codes[np.asarray(coded.indices)]
        return numbers

    def lengths(self) -> NDArray[np.int64]:
        """[texts] the characters of each text."""
        import pyarrow.compute as compute

        lengths: NDArray[np.int64] = zeros(len(self), np.int64)
        for place in parts(len(self), BATCH):
            characters = compute.utf8_length(self.part(place))
            lengths[place] = np.frombuffer(characters.buffers()[1], np.int64)[characters.offset :][: len(characters)]
        return lengths


def save_all(columns: Sequence[Texts], path: Path) -> None:
    """Writes an Arrow file of texts side by side."""
    import pyarrow as pa

    arrays = [(each if each._ids is None else write_texts(each.batches()))._array for each in columns]
    batch = pa.record_batch(arrays, names=[COLUMN + "_" * place for place in range(len(arrays))])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_all(content: bytes) -> list[Texts]:
    """The columns of a file that `save_all` wrote, from its bytes."""
    import pyarrow as pa

    return list(map(Texts, pa.ipc.open_file(pa.py_buffer(content)).get_batch(0).columns))


def _numbers(ids: NDArray[np.integer]) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids, np.int64))])


def _array(texts: Sequence[str]) -> pa.Array:
    """An Arrow array of strings."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=ends[1:])
    # `pyarrow.array` would import pandas, which takes longer than a small corpus.
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def batches(texts: Iterable[str]) -> Iterator[Sequence[str]]:
    """All texts, at most `BATCH` at a time."""
    if isinstance(texts, Sequence):
        yield from (texts[place] for place in parts(len(texts), BATCH))
        return
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class TextWriter:
    """Collects texts. What is more than `LARGE_TEXTS_BYTES` bytes goes to files without a name."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._bytes = 0
        self._rows = 0
        self._end = 0

    def add(self, texts: Sequence[str] | pa.Array) -> None:
        """Appends strings, or an Arrow array of them."""
        import pyarrow as pa

        array = texts if isinstance(texts, pa.Array) else _array(texts)
        self._arrays.append(array)
        self._bytes += array.nbytes
        if self._bytes > LARGE_TEXTS_BYTES:
            self._spill()

    @functools.cached_property
    def _files(self) -> tuple[ScratchFile, ScratchFile]:
        """The texts end to end, and where each begins."""
        files = ScratchFile(), ScratchFile()
        files[1].write(np.zeros(1, np.int64).data)
        return files

    def _spill(self) -> None:
        texts, begins = self._files
        for array in self._arrays:
            _, offset_buffer, values = array.buffers()
            offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
            if len(array):
                texts.write(memoryview(values)[int(offsets[0]) : int(offsets[-1])])
                begins.write((offsets[1:] - offsets[0] + self._end).data)
                self._end += int(offsets[-1] - offsets[0])
                self._rows += len(array)
        self._arrays, self._bytes = [], 0

    def done(self) -> Texts:
        """All texts that were added."""
        import pyarrow as pa

        if "_files" not in vars(self):
            return Texts(pa.concat_arrays([_array([]), *self._arrays]))
        self._spill()
        texts, begins = (pa.py_buffer(file.mapped()) for file in self._files)
        return Texts(pa.LargeStringArray.from_buffers(self._rows, begins, texts))


def write_texts(some: Iterable[Sequence[str] | pa.Array]) -> Texts:
    """The texts of all batches."""
    writer = TextWriter()
    for texts in some:
        writer.add(texts)
    return writer.done()


class TableWriter:
    """Collects rows of texts, column by column."""

    def __init__(self, columns: int) -> None:
        self._writers = [TextWriter() for _ in range(columns)]
        self._rows: list[Sequence[str]] = []
        self._characters = 0

    def add(self, row: Sequence[str]) -> None:
        """Appends a row."""
        self._rows.append(row)
        self._characters += sum(map(len, row))
        if len(self._rows) == BATCH or self._characters > LARGE_TEXTS_BYTES:
            self._flush()

    def _flush(self) -> None:
        for writer, texts in zip(self._writers, zip(*self._rows, strict=True), strict=False):
            writer.add(texts)
        self._rows, self._characters = [], 0

    def done(self) -> list[Texts]:
        """The columns."""
        self._flush()
        return [writer.done() for writer in self._writers]


def text_hashes(texts: Texts, language: str = "") -> NDArray[np.uint64]:
    """[texts] 64 bits of a digest of each text and its language. In forty million different texts, two share them by
    accident once in 25,000 corpora."""
    import pyarrow as pa

    hashes: NDArray[np.uint64] = zeros(len(texts), np.uint64)
    begin = hashlib.blake2b(f"{language}\0".encode(), digest_size=8)

    def digest(text: bytes) -> bytes:
        state = begin.copy()
        state.update(text)
        return state.digest()

    for place in parts(len(texts), BATCH):
        some = texts.part(place).cast(pa.large_binary()).to_pylist()
        hashes[place] = np.frombuffer(b"".join(map(digest, some)), "<u8")
    return hashes
