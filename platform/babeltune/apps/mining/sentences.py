"""Sentences from text files of any size: broken lines are counted, repeats stand once, and the text stays on disk."""

from __future__ import annotations

import hashlib
import mmap
import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from babeltune.apps.pair_files import Columns, file_named, only_column, pair_rows
from babeltune.data.file_readers import BLANK, EMPTY_SIDE, ZERO_BYTE, Fault, not_utf8, numbered_lines, refuse_broken
from babeltune.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST = 20_000  # bytes of a line; a longer one is no sentence
PIPE_WARNING_S = 3.0  # seconds for which a pipe may give nothing before its reader says what it waits for
SENTENCES, PAIRS = "one sentence a line", "a source and a target in each row"  # the columns of a file of text
NONE = -1  # in place of a sentence's number
BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Characters that would end a field or a line of the output: each becomes a blank."""
EMPTY = "empty"  # the reason of a line without text


@dataclass
class Lines:
    """Counts of the lines of a file."""

    read: int = 0
    usable: int = 0
    """Sentences, or pairs, that are used."""
    repeated: int = 0
    """Lines whose sentence stood before; it is one candidate."""
    empty: int = 0
    """Lines without text, and pairs without text on a side."""
    broken: dict[str, int] = field(default_factory=dict)
    """Reason -> lines that are no text, and rows that are no pair."""
    first: dict[str, int] = field(default_factory=dict)
    """Reason -> the number of the first such line in the file."""
    number: int = 0
    """The number of the latest line in the file."""

    def drop(self, fault: Fault | None = None) -> None:
        """Counts the latest line as left out; as empty without a fault."""
        # a unit without a translation is empty, too
        reason = EMPTY if fault is None or fault.reason == EMPTY_SIDE or fault.kind == "left out" else fault.reason
        self.first.setdefault(reason, self.number)
        if reason == EMPTY:
            self.empty += 1
        else:
            self.broken[reason] = self.broken.get(reason, 0) + 1

    def faults(self) -> str:
        """Such as `3 empty (first line 7), 1 not UTF-8 (line 9)`; nothing when every line was fine."""
        counts = {"repeated": self.repeated, EMPTY: self.empty, **self.broken}
        return ", ".join(f"{count} {reason}{self._place(reason, count)}" for reason, count in counts.items() if count)

    def _place(self, reason: str, count: int) -> str:
        if reason not in self.first:
            return ""
        return f" ({'first ' if count > 1 else ''}line {self.first[reason]})"


class Sentences:
    """Different sentences, by their numbers; their text is a file."""

    def __init__(self, path: Path, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._starts, self._ends = starts, ends
        with path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if len(starts) else b""

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    @overload
    def __getitem__(self, which: int) -> str: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        return self._text[int(self._starts[which]) : int(self._ends[which])].decode("utf-8")


class Collector:
    """Writes sentences to a file, and reports at the end which are different.

    Sentences are distinguished by 64 bits of their digest: among 10^7, two are confused with a probability of 3e-6."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._ends, self._digests = array("q"), array("Q")

    def add(self, text: str) -> None:
        data = text.encode("utf-8")
        self._file.write(data)
        self._ends.append(self._file.tell())
        self._digests.append(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little"))

    def finish(self) -> tuple[Sentences, NDArray[np.int64]]:
        """The different sentences in order of appearance, and which of them each that was added is."""
        self._file.close()
        ends = np.frombuffer(self._ends, np.int64) if self._ends else np.empty(0, np.int64)
        digests = np.frombuffer(self._digests, np.uint64) if self._digests else np.empty(0, np.uint64)
        _, first, place = np.unique(digests, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(first), np.int64)
        number[order] = np.arange(len(first))
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends
        distinct = first[order]
        return Sentences(self._path, starts[distinct], ends[distinct]), number[place]


def read_sentences(
    path: Path, spill: Path, codec: str | None = None, column: str | None = None
) -> tuple[Sentences, Lines]:
    """The different sentences of a text file, packed or not, one a line, or of a column; their text is copied to
    `spill`. `codec`: its code page; None: it is in Unicode.

    Raises:
        DataError: the file cannot be read, or holds no sentence."""
    sentences, _, lines = read_lines(path, spill, codec, column)
    return sentences, lines


def read_lines(
    path: Path, spill: Path, codec: str | None = None, column: str | None = None
) -> tuple[Sentences, NDArray[np.int64], Lines]:
    """As `read_sentences`, and which of the sentences each line of the file is: `NONE` for one that holds none."""
    sentences, ids, places, (lines,) = read_files([path], spill, codec, column)
    numbers = np.full(lines.read, NONE)
    numbers[places[:, 1] - 1] = ids
    return sentences, numbers, lines


def read_files(
    paths: Sequence[Path], spill: Path, codec: str | None = None, column: str | None = None
) -> tuple[Sentences, NDArray[np.int64], NDArray[np.int64], list[Lines]]:
    """The different sentences of several files, and what became of the lines of each.

    Between them, for each line that holds a sentence: which it is [lines], and its place, the number of the file and
    that of the line from 1 [lines, 2].

    Raises as `read_sentences` does."""
    collector, files, numbers, counts = Collector(spill), array("q"), array("q"), []
    for number, path in enumerate(paths):
        lines = Lines()
        for line in _text_lines(path, lines, codec, column):
            if text := _clean(line, lines):
                collector.add(text)
                files.append(number)
                numbers.append(lines.read)
                lines.usable += 1
        _check_some(path, lines)
        counts.append(lines)
    sentences, ids = collector.finish()
    places = np.stack([np.frombuffer(each, np.int64) for each in (files, numbers)], axis=1)
    first = places[np.unique(ids, return_index=True)[1], 0]
    for number, lines in enumerate(counts):
        different = int((first == number).sum())
        lines.usable, lines.repeated = different, lines.usable - different
    return sentences, ids, places, counts


def check_text(path: Path, codec: str | None, column: str | None) -> None:
    """Raises `DataError` for a file that cannot be read, or has no text or no such column. A pipe is not read."""
    if file_named(str(path)).is_file():
        lines = Lines()
        if next(_text_lines(path, lines, codec, column), None) is None:
            _check_some(path, lines)


def read_gold(path: Path, codec: str | None = None) -> list[str]:
    """Every line of a text file, cleaned as sentences are; one that cannot be read is empty."""
    lines = Lines()
    answers: list[str] = []
    for line in _text_lines(path, lines, codec):
        answers += [""] * (lines.read - len(answers) - 1)  # lines that are no text
        answers.append(_clean(line))
    return answers + [""] * (lines.read - len(answers))


@dataclass(frozen=True)
class PairsOfText:
    """Pairs in the order of their file, by the numbers of their sentences."""

    source: Sentences
    target: Sentences
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    lines: Lines


def read_pairs(path: Path, spill: Path, columns: Columns | None = None, codec: str | None = None) -> PairsOfText:
    """The pairs of a file, as `pair_rows` reads them; their text is copied to files beside `spill`.

    Raises:
        DataError: the file cannot be read, has no such columns, or holds no pair."""
    lines = Lines()
    sides = [Collector(spill.with_name(f"{spill.name}.{side}")) for side in ("source", "target")]
    with warned_while_waiting(path) as begun:
        for lines.number, row in pair_rows(str(path), columns, hashlib.sha256(), codec, LONGEST):
            begun()
            lines.read += 1
            if isinstance(row, Fault):
                lines.drop(row)
                continue
            for side, text in zip(sides, row, strict=True):
                side.add(_clean(text))
    (source, sources), (target, targets) = (side.finish() for side in sides)
    lines.usable = len(sources)
    _check_some(path, lines, PAIRS)
    return PairsOfText(source, target, sources, targets, lines)


def _check_some(path: Path, lines: Lines, encodings: str = SENTENCES) -> None:
    if not lines.usable:
        why = f"{lines.read} lines: {lines.faults()}" if lines.read else "the file is empty"
        raise DataError(f"{path} holds nothing to encode ({why}); give UTF-8 text, or name its --encoding: {encodings}")
    rule = "5% that may be; correct the file, or name its --encoding"
    refuse_broken(str(path), sum(lines.broken.values()), lines.read, lines.broken, word="lines", rule=rule)


def _text_lines(path: Path, lines: Lines, codec: str | None, column: str | None = None) -> Iterator[str]:
    """The lines of the file that are text, or the texts of its column; all are counted."""
    column = column or only_column(str(path), codec)
    with warned_while_waiting(path) as begun:
        rows: Iterator[tuple[int, Any]] = numbered_lines(path, hashlib.sha256(), LONGEST, codec)
        if column is not None:
            rows = pair_rows(str(path), (column,), hashlib.sha256(), codec, LONGEST)
        for lines.number, raw in rows:
            begun()
            lines.read += 1
            text = _decoded(raw[0] if isinstance(raw, list) else raw)
            if isinstance(text, Fault):
                lines.drop(text)
            else:
                yield text


def _decoded(raw: bytes | str | Fault) -> str | Fault:
    if isinstance(raw, Fault):
        return raw
    if isinstance(raw, str):
        return ZERO_BYTE if "\0" in raw else raw
    try:
        return ZERO_BYTE if b"\0" in raw else raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)


@contextmanager
def warned_while_waiting(path: Path) -> Iterator[Callable[[], None]]:
    """Says on standard error that a pipe gives nothing, unless the yielded function is called within `PIPE_WARNING_S`.

    A pipe that the shell opened and nobody writes blocks its reader without end."""
    words = f"waiting for somebody to write to {path}, which is a pipe; Ctrl-C ends it"
    timer = threading.Timer(PIPE_WARNING_S, print, [words], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if path.is_fifo():
        timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def in_a_field(text: str) -> str:
    """The text as a field of a line."""
    return BREAKS.sub(" ", text)


def _clean(text: str, lines: Lines | None = None) -> str:
    cleaned = in_a_field(text.removeprefix("\ufeff")).strip()
    if not BLANK.fullmatch(cleaned):
        return cleaned
    if lines is not None:
        lines.drop()
    return ""
