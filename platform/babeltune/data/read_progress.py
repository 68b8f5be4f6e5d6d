"""Watches a corpus's files while they are read: their bytes are counted, and a file that changes is refused.

Readers open files by `open_file` within `unchanged`, and `count`. Outside of `counting_bytes` nothing is counted."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import DataError
from babeltune.files import version
from babeltune.schema.records import Data, Source

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER = 1 << 16  # bytes that are read, and counted, at a time


class _Meter:
    def __init__(self, tell: Callable[[int, int], None], of: int) -> None:
        self.tell, self.done, self.of = tell, 0, of
        self.versions: dict[Path, list[int]] = {}  # the version of each file when it was first read

    def count(self, done: int, of: int = 0) -> None:
        self.done, self.of = self.done + done, self.of + of
        self.tell(min(self.done, self.of), self.of)  # some files are read twice


_meter: ContextVar[_Meter | None] = ContextVar("meter", default=None)


@contextmanager
def counting_bytes(data: Data, root: Path, tell: Callable[[int, int], None]) -> Iterator[None]:
    """Within it `tell` hears how many bytes of the data's files have been read, and how many there are."""
    meter = _Meter(tell, sum(map(_size, source_files(data, root))))
    tell(0, meter.of)
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)
    tell(meter.of, meter.of)


def count(done: int, of: int = 0) -> None:
    """`done` more bytes have been read, and `of` more are to be read than was known before."""
    meter = _meter.get()
    if meter is not None:
        meter.count(done, of)


class _Counted(io.FileIO):
    def readinto(self, buffer: WriteableBuffer) -> int | None:
        read = super().readinto(buffer)
        count(read or 0)
        return read


def open_file(path: Path) -> io.BufferedReader:
    """The file, whose bytes are counted as they are read from the disk."""
    return io.BufferedReader(_Counted(path), BUFFER)


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Raises `DataError` if the file has changed since this corpus first read it, or does so within the block."""
    meter, now = _meter.get(), version(path)
    before, cause = meter.versions.setdefault(path, now) if meter else now, None
    try:
        yield
    except Exception as error:  # such as that a packed file is cut off
        cause = error
    if path.is_file() and version(path) != before:  # a pipe changes as it is read
        raise DataError(f"{path} was changed while it was read; let what writes it end, and run this again") from cause
    if cause is not None:
        raise cause


def source_files(data: Data, root: Path) -> Iterator[Path]:
    """The files and folders that the data section names."""
    for source in data.train:
        yield from _of_source(source, root)
    for task in itertools.chain(*data.sets.values()):
        yield from (root / path for _, path in task.files())
        for _, source in task.sources():
            yield from _of_source(source, root)


def _of_source(source: Source, root: Path) -> Iterable[Path]:
    return (root / path for path in (source.path, *(source.paths or {}).values()) if path)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder; 0 of what is not there."""
    with suppress(OSError):
        if path.is_dir():
            return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return path.stat().st_size
    return 0
