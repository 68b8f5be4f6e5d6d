"""Reads the named columns of one file or data set, row by row: what `sources.py` joins and checks.

Each reader yields a line number from 1 and the row's texts, or what is wrong with the row. What makes a whole file
unreadable raises `DataError`."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar

from babeltune.data.text_streams import UNREADABLE, text_name, unpacked
from babeltune.errors import DataError, check_all, list_of, nearest, nearest_file, plural, shortened
from babeltune.schema.records import AnySource, JsonLinesSource, MosesSource, Source

TAB = "\t"
NumberedLine = TypeVar("NumberedLine", bound=tuple[int, *tuple[Any, ...]])
OTHER = r"(?!md|py|sh|so|db|js|log|yml|toml|yaml|json\b|html|bin|png|pdf)"
TEXT_FILE = re.compile(rf".*\.{OTHER}([a-z]{{2,5}}|parquet)(_[A-Z]\w+)?(\.(gz|bz2|xz|zst|zip))?", re.DOTALL)
"""Names of files that may be text, also by a language's code at their end, as in `talks.fra`."""
MAX_LINE_BYTES = 1 << 20
"""Bytes of a line, a row of quoted text, or a text in a Parquet file. What is longer is no sentence."""
MAX_BROKEN = AnySource.max_dropped  # the share of rows that may be broken if nobody says otherwise
SKIPPED_BYTES = 1 << 16  # bytes of a line that is too long are read and thrown away in pieces of this size
NO_TEXT_BYTES = 1 << 30
"""A line of more bytes than this is not read to its end: the file is no text, or was packed to fill a disk."""
BLANK = re.compile(
    r"[\s\x00-\x1f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0]*"
)
"""Text that nobody can see: blanks, zero-width characters, direction marks, fillers and variation selectors."""


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be used."""

    reason: str  # the name under which such rows are counted
    words: str  # the fault in words, for an error
    kind: Literal["row", "encoding", "unused", "left out"] = "row"
    """The place to mend: this row, or how the whole file is encoded. `unused`: nothing, but the row is not what was
    asked for. `left out`: the same, and no file is refused for it, such as a unit without a translation."""
    values: tuple[str, ...] = ()  # the row, if it could be read: a source's `where` may leave it out


EMPTY_SIDE = "empty side"  # the reason of a row that lacks the text of a column
ZERO_BYTE = Fault("zero byte", "text has no zero byte")
Row = tuple[int, list[str] | Fault]  # line (or row) from 1, and its fields: all, or those of the columns asked for
SEPARATOR = re.compile(rb'"?sep=([^"\x80-\xff])"?', re.IGNORECASE)
"""Excel's first line of a CSV file, before the header: it names the delimiter."""
Lines = Iterable[tuple[int, bytes | Fault]]  # numbers from 1, and lines without their ends


class Digest(Protocol):
    """A running checksum of what was read."""

    def update(self, data: bytes, /) -> None: ...


def below(path: str, root: Path) -> Path:
    """Where a source's path leads. `DataError` for a relative one that links lead out of `root`."""
    full = root / path
    end = Path(os.path.realpath(full))  # `Path.resolve` raises for links that form a circle
    if not Path(path).is_absolute() and not end.is_relative_to(os.path.realpath(root)):
        raise DataError(f"{full} is a link out of data.root, to {end}; give that whole path, or change data.root")
    return full


OPENED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""A pipe that a shell has opened for a command, such as `<(zcat corpus.gz)`: it has a writer. A named pipe may have
none."""


def file_at(path: str, root: Path | None = None, *, once: bool = False) -> Path:
    """The file that a source below `root` names, or the user; `DataError` when there is none, with the nearest name.

    `once`: it is read once, so that it may be a pipe that the shell has opened."""
    full = Path(path) if root is None else below(path, root)
    try:
        full.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            words = f"{shortened(str(full), 120)} cannot be read: {error.strerror}"
            raise DataError(f"{words}; correct the path or its permissions") from error
    if full.is_dir():
        inside = ", ".join(sorted(path.name for path in full.glob("[!.]*.*") if TEXT_FILE.fullmatch(path.name))[:5])
        raise DataError(f"{full} is a folder; name a file{f', such as {inside}' if inside else ' of text'}")
    if full.exists():
        if not full.is_file() and not (once and path.startswith(OPENED)):
            raise DataError(f"{full} is a pipe, socket or device, not a file; write what it gives into a file")
        return full
    missing, folder = full, full.parent
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    if missing.is_symlink():
        raise DataError(f"{missing} is a link that leads to no file ({missing.readlink()}); correct it")
    where = "; correct the path" if root is None else "; correct the path or `root`"
    near = nearest_file(missing.name, sorted(path.name for path in folder.glob("[!.]*")))
    raise DataError(f"{full} does not exist: {folder} holds no {missing.name!r}{near or where}")


def numbered_lines(
    path: Path, content: Digest, longest: int = MAX_LINE_BYTES, encoding: str | None = None
) -> Iterator[tuple[int, bytes | Fault]]:
    """The lines of a file with their numbers from 1, without their ends, as `text_streams` decodes them."""

    def lines() -> Iterator[tuple[int, bytes | Fault]]:
        with unpacked(path, encoding) as stream:
            yield from lines_in(stream, path, content, longest)

    return readable(lines, path)


def readable(lines: Callable[[], Iterable[NumberedLine]], name: object) -> Iterator[NumberedLine]:
    """The lines, each with its number first. Raises `DataError`, with the number, for one that cannot be read."""
    number = 0
    try:
        for line in lines():
            number = line[0]
            yield line
    except UNREADABLE as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{name}:{number + 1}: cannot be read: {words}; fetch or pack the file again") from error


def lines_in(
    stream: IO[bytes], path: object, content: Digest, longest: int, first: int = 1
) -> Iterator[tuple[int, bytes | Fault]]:
    """The lines of a stream with their numbers, which begin at `first`. The stream is `path` from that line on.

    A line of more than `longest` bytes is a fault, and is never in memory as a whole. One that does not end within
    `NO_TEXT_BYTES` raises `DataError`."""
    for number, line, skipped in bounded_lines(stream, path, content, longest, first):
        yield number, too_long(len(line) + skipped, longest) if skipped is not None else line.rstrip(b"\r\n")


def bounded_lines(
    stream: IO[bytes], path: object, content: Digest, longest: int, first: int = 1
) -> Iterator[tuple[int, bytes, int | None]]:
    """Numbers, lines of at most `longest` bytes, and the bytes that were left out of a longer one."""
    number = first - 1
    while line := stream.readline(longest + 1):
        number += 1
        content.update(line)
        cut = len(line) > longest and not line.endswith(b"\n")
        skipped = skip_line(stream, f"{path}:{number}", content) if cut else None
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, skipped


def skip_line(stream: IO[bytes], place: str, content: Digest) -> int:
    """Reads to the end of the line, and returns its bytes."""
    skipped = 0
    while part := stream.readline(SKIPPED_BYTES):
        content.update(part)
        skipped += len(part)
        if part.endswith(b"\n"):
            break
        if skipped > NO_TEXT_BYTES:
            raise no_text(place)
    return skipped


def no_text(place: str) -> DataError:
    """The error of a line that does not end within `NO_TEXT_BYTES`."""
    return DataError(f"{place}: {NO_TEXT_BYTES >> 20:,} MB without the end of a line; give text, a row a line")


def too_long(length: int, longest: int) -> Fault:
    """The fault of a line or text of more bytes than are read."""
    return Fault("too long", f"{plural(length, 'byte')}, and a line has at most {longest:,} (data.max_line_bytes)")


def tsv_rows(
    path: Path, names: Sequence[str], content: Digest, *, header: bool, longest: int = MAX_LINE_BYTES
) -> Iterator[Row]:
    """Columns of a tab-separated file without quoting, by name or (no header) by number from 0."""
    return tab_rows(path, names, numbered_lines(path, content, longest), header=header)


def tab_rows(path: Path, names: Sequence[str], lines: Lines, *, header: bool) -> Iterator[Row]:
    """Columns of tab-separated lines without quoting, as `tsv_rows` reads them of a file."""
    fields = ((line, raw if isinstance(raw, Fault) else split_line(raw)) for line, raw in lines)
    return table_rows(path, names, fields, header=header)


def line_rows(source: Source, path: Path, names: Sequence[str], lines: Lines) -> Iterator[Row]:
    """The named columns of a file in which every line is a row, by its lines."""
    if isinstance(source, JsonLinesSource):
        return jsonl_rows(names, source.id, lines)
    if isinstance(source, MosesSource):
        return ((line, raw if isinstance(raw, Fault) else cells([raw], ["text"])) for line, raw in lines)
    return tab_rows(path, names, lines, header=source.header)


def split_line(raw: bytes, delimiter: str = TAB) -> list[str] | Fault:
    """The fields between the delimiters of a line."""
    try:
        return raw.decode().split(delimiter)
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)


def csv_rows(source: Source, path: Path, names: Sequence[str], lines: Lines, longest: int) -> Iterator[Row]:
    """Columns of a file that quotes its fields as Python's `csv` reads them, by name or by number from 0. With
    `quoted: false` the marks are text, and every line is a row. A first line `sep=;` names the delimiter.

    A field in quotation marks may hold the delimiter, line breaks and doubled quotation marks. A row of more than
    `longest` bytes, such as one whose last quotation mark is missing, is a fault. The lines after its first one are
    then read as rows of their own, so that a broken row never hides others."""
    csv.field_size_limit(max(csv.field_size_limit(), longest))
    written, lines = named_delimiter(lines)
    delimiter = written or source.delimiter
    if source.quoted is False:
        rows = ((line, raw if isinstance(raw, Fault) else split_line(raw, delimiter)) for line, raw in lines if raw)
        return table_rows(path, names, rows, header=source.header)
    return table_rows(path, names, QuotedLines(iter(lines), longest).rows(delimiter), header=source.header)


def named_delimiter(lines: Lines) -> tuple[str, Lines]:
    """The separator in Excel's line `sep=;` before a table, and the lines after it; nothing and all lines without
    one."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        return "", ()
    match = SEPARATOR.fullmatch(first[1]) if isinstance(first[1], bytes) else None
    return (match[1].decode("latin-1"), lines) if match else ("", itertools.chain([first], lines))


class QuotedLines:
    """Gives Python's `csv` the lines of a file, and its rows the number of their first line."""

    def __init__(self, lines: Iterator[tuple[int, bytes | Fault]], longest: int) -> None:
        self._lines, self._longest = lines, longest
        self._row: list[tuple[int, bytes | Fault]] = []
        """The lines of the row that is being read."""
        self._again: deque[tuple[int, bytes | Fault]] = deque()
        """Lines of a broken row but its first, to be read as rows."""
        self._bytes = 0
        self._fault: Fault | None = None

    def rows(self, delimiter: str) -> Iterator[tuple[int, list[str] | Fault]]:
        """The first line and the fields of every row, or what is wrong with it."""
        reader = csv.reader(self, delimiter=delimiter, strict=True)
        while True:
            self._row, self._bytes, self._fault = [], 0, None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except (csv.Error, _RowTooLongError) as error:
                self._fault = self._fault or Fault("not CSV", f"{error}; quote fields as RFC 4180 says")
                self._again.extendleft(reversed(self._row[1:]))
                reader = csv.reader(self, delimiter=delimiter, strict=True)  # the old one is within a field
                fields = []
            yield self._row[0][0], self._fault or fields

    def __iter__(self) -> QuotedLines:
        return self

    def __next__(self) -> str:
        line, raw = self._again.popleft() if self._again else next(self._lines)
        self._row.append((line, raw))
        if isinstance(raw, Fault):
            self._fault = raw
            raise _RowTooLongError
        self._bytes += len(raw) + 1
        if self._bytes > self._longest + 1:
            self._fault = too_long(self._bytes, self._longest)
            raise _RowTooLongError
        try:
            return raw.decode() + "\n"
        except UnicodeDecodeError as error:
            self._fault = self._fault or not_utf8(raw, error)
            return raw.decode(errors="replace") + "\n"


class _RowTooLongError(Exception):
    """Ends the reading of a row."""


def table_rows(path: Path, names: Sequence[str], rows: Iterable[Row], *, header: bool) -> Iterator[Row]:
    """The named columns of rows of fields; the first row names the columns or, without a header, counts them. A header
    may stand below a title, and stand again further down. A name that no column has is that of one with blanks around
    it."""
    rows = iter(rows)
    first = next((row for row in rows if row[1]), None)
    if header and first is not None:
        first = below_title(first, rows, names)
    elif first is not None:
        first, rows = widest_agreed(first, rows)
    if first is None:
        raise DataError(
            f"{path} is empty; a table has a header or at least one row; put rows in it, or leave the source out"
        )
    top, head = first
    if isinstance(head, Fault):
        todo = "save the file as UTF-8, or name its encoding" if head.kind == "encoding" else FIRST_LINE
        raise DataError(f"{path}:{top}: {head.reason}: {head.words}; {todo}")
    stripped = [name.strip() for name in head]
    titles = head if header else [str(index) for index in range(len(head))]
    of_name = {name: titles if name in titles or name not in stripped else stripped for name in names}
    repeats = header and len(head) > 1
    check_all(*(partial(check_column, path, name, of_name[name]) for name in names))
    places = [of_name[name].index(name) for name in names]
    for line, fields in rows:
        if not fields and len(head) > 1:
            continue  # a blank line of CSV; of one column it is a row, whose place counts where lines are joined
        fields = fields or [""]
        if isinstance(fields, Fault):
            yield line, fields
        elif repeats and fields[0].strip() == stripped[0] and [name.strip() for name in fields] == stripped:
            yield line, Fault("repeated header", "the names of the columns again", "left out")
        elif len(fields) == len(head):
            yield line, cells([fields[place] for place in places], names)
        else:
            row = shortened(" | ".join(fields))
            words = f"{plural(len(fields), 'column')} in {row}, where line {top} has {len(head)}"
            if any(field.count('"') % 2 for field in fields):
                words += "; if quotation marks hold line breaks or tabs here, say `quoted: true`"
            yield line, Fault("column count", words)


WIDTH_ROWS = 20
"""Rows at the begin of a table without a header that count its columns. A broken first row decides nothing."""


def widest_agreed(first: Row, rows: Iterator[Row]) -> tuple[Row, Iterator[Row]]:
    """The first of the rows that have as many columns as most, and all rows again."""
    begin = [first, *itertools.islice(rows, WIDTH_ROWS - 1)]
    whole = [row for row in begin if row[1] and not isinstance(row[1], Fault)]
    widths = Counter(len(fields) for _, fields in whole if not isinstance(fields, Fault))
    if widths:
        width = widths.most_common(1)[0][0]
        first = next(row for row in whole if not isinstance(row[1], Fault) and len(row[1]) == width)
    return first, itertools.chain(begin, rows)


TITLE_ROWS = 10  # rows above a header, such as a title, among which it is sought


def below_title(first: Row, rows: Iterator[Row], names: Sequence[str]) -> Row:
    """The row that has the names of the columns, if only rows with at most one cell of text stand above it."""
    row: Row | None = first
    for _ in range(TITLE_ROWS):
        if row is None or isinstance(row[1], Fault) or set(names) <= {name.strip() for name in row[1]}:
            return row or first
        if not is_title(row[1]):
            return first
        row = next(rows, None)
    return first


def is_title(cells: Sequence[str]) -> bool:
    """Whether at most one of the cells has text."""
    return sum(not BLANK.fullmatch(cell) for cell in cells) < 2


FIRST_LINE = "correct the file's first line"


def check_column(path: Path, name: str, head: list[str]) -> None:
    """Raises `DataError` unless one column has this name."""
    if head.count(name) > 1:
        raise DataError(f"{path}:1: {head.count(name)} columns are called {shortened(name)}; rename all but one")
    if name not in head and f'"{name}"' in head:
        raise DataError(f"{path}:1: column {shortened(name)} is in quotation marks; say `quoted: true`")
    if name not in head and all(map(BLANK.fullmatch, head)):
        raise DataError(f"{path}:1: the first line is blank; it must name the columns")
    if name not in head:
        columns = list_of(shortened(each) if each != each.strip() else each for each in head)
        is_numbered = head == [str(index) for index in range(len(head))]
        todo = "; say 0" if is_numbered and len(head) == 1 else f"; say a number from 0 to {len(head) - 1}"
        if not is_numbered:
            todo = "; the first line must name the columns"
            todo += ", or with `header: false` they are numbered from 0" if name.isdigit() else ""
            todo = other_format(path, head) or nearest(name, head) or todo
        raise DataError(f"{path}:1: no column {shortened(name)}; columns: {columns}{todo}")


OTHER_FORMATS = (
    ("{", "JSON lines", "jsonl"),
    ("<tmx", "TMX", "tmx"),
    ("<xliff", "XLIFF", "xliff"),
    ("<?xml", "a translation memory", "tmx` or `format: xliff"),
    ("msgid ", "a gettext catalogue", "po"),
)
"""How files of other formats begin."""


def other_format(path: Path, head: list[str]) -> str:
    """Which `format` or `delimiter` the source may lack, by the first line; empty if nothing speaks for another, such
    as several columns."""
    only, *more = head
    for begin, name, format_ in OTHER_FORMATS:
        if only.removeprefix("\ufeff").lstrip().startswith(begin):
            return f"; if this is {name}, say `format: {format_}`"
    common = max(DELIMITERS, key=only.count)
    if more or not (common in only or text_name(path).lower().endswith(".csv")):
        return ""
    if common in only and common != ",":
        return f'; if {DELIMITERS[common]} stands between the columns, say `format: csv` and `delimiter: "{common}"`'
    return "; if this is CSV, say `format: csv`, and with another character between the columns `delimiter`"


DELIMITERS = {",": "a comma", ";": "a semicolon", "|": "a bar"}
"""Separators of columns besides a tab; the likeliest first."""


def jsonl_rows(names: Sequence[str], id_name: str | None, lines: Lines) -> Iterator[Row]:
    """Keys of the JSON objects of a file, one per line; `translation.en` reaches into an inner object."""
    for line, raw in lines:
        record = raw if isinstance(raw, Fault) else json_object(raw)
        if isinstance(record, Fault):
            yield line, record
            continue
        values = [reached(record, name) for name in names]
        faults = [value for value in values if isinstance(value, Fault)]
        escaped = isinstance(raw, bytes) and b"\\u" in raw
        yield line, faults[0] if faults else cells(values, names, id_name, surrogates=escaped)


def json_object(raw: bytes) -> dict[str, object] | Fault:
    """The JSON object of a line, or why there is none."""
    try:
        record = json.loads(raw.decode(), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        return not_utf8(raw, error)
    except _RepeatedKeyError as error:
        return Fault("repeated key", f"{shortened(str(error))} occurs twice in an object; give each key once")
    except RecursionError:
        return Fault("not JSON", f"{shortened(raw.decode())} is nested too deeply; each line is one flat JSON object")
    except ValueError as error:
        way = jq_words(raw.decode().strip(), several="Extra data" in str(error))
        return Fault("not JSON", f"{shortened(raw.decode())}: {error}; each line is one JSON object{way}")
    if not isinstance(record, dict):
        way = jq_words(raw.decode().strip(), several=False)
        return Fault("not JSON", f"{shortened(raw.decode())} is not an object; each line is one JSON object{way}")
    return record


def jq_words(text: str, *, several: bool) -> str:
    """How a line of another kind of JSON becomes lines with an object each."""
    if text.startswith("["):
        return "; of a list, `jq -c '.[]' FILE` makes them"
    return "; `jq -c . FILE` gives each object a line" if several or text == "{" else ""


class _RepeatedKeyError(Exception):
    """A key that an object has twice."""


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these keys and values."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKeyError(next(key for key in keys if keys.count(key) > 1))
    return values


def reached(record: Mapping[str, object], name: str) -> object:
    """The value under a key, or under a path of keys joined by dots."""
    if name in record:
        return record[name]
    key, dot, rest = name.partition(".")
    inner = record.get(key)
    if dot and isinstance(inner, dict):
        return reached(inner, rest)
    return Fault("missing column", f"no key {shortened(name)}; keys: {list_of(record)}{nearest(name, record)}")


def cells(
    values: Sequence[object], names: Sequence[str], id_name: str | None = None, *, surrogates: bool = False
) -> list[str] | Fault:
    """The row's values as stripped text, or what is wrong with the first broken one. An id may be a number."""
    texts = []
    for name, value in zip(names, values, strict=True):
        try:
            if isinstance(value, str):
                text = value.strip()
                if surrogates:
                    text.encode()
            elif isinstance(value, bytes):
                text = value.decode().strip()
            elif value is None or (name == id_name and type(value) in (int, float)):
                text = "" if value is None else str(value)
            else:
                words = f"{name!r} is {shortened(str(value))}, of type {type(value).__name__}"
                return Fault("not text", words, values=_as_text(values))
        except UnicodeDecodeError as error:
            return not_utf8(error.object, error)
        except UnicodeEncodeError as error:
            return Fault("not UTF-8", f"{name!r} holds half a surrogate pair at character {error.start}")
        if not "!" <= text[:1] <= "~" and BLANK.fullmatch(text):
            words = f"nothing in {name!r}; every column that is read must have text"
            return Fault(EMPTY_SIDE, words, values=_as_text(values))
        if "\0" in text:
            return ZERO_BYTE
        texts.append(text)
    return texts


def where_takes(source: Source, values: Sequence[str]) -> bool:
    """Whether the source's `where` takes the row, by the values after those of its languages; or may, if the row is
    broken and they are not known."""
    if not source.where or not values:
        return True
    begin = len(source.columns or ())
    return [*values[begin : begin + len(source.where)]] == [*source.where.values()]


def _as_text(values: Sequence[object]) -> tuple[str, ...]:
    """The values of a broken row as a `where` compares them."""
    return tuple(value.strip() if isinstance(value, str) else "" for value in values)


def not_utf8(raw: bytes, error: UnicodeDecodeError) -> Fault:
    """The fault of bytes that are not UTF-8."""
    words = f"{shortened(raw.decode(errors='backslashreplace'))} at byte {error.start} ({error.reason})"
    return Fault("not UTF-8", words, "encoding")


def refuse_broken(
    place: str,
    broken: int,
    rows: int,
    reasons: Mapping[str, int],
    *,
    word: str = "rows",
    most: float = MAX_BROKEN,
    rule: str = "",
) -> None:
    """Raises `DataError` if more than the share `most` of the rows are broken: the file is then misread. `word` is the
    error's word for rows."""
    if broken > most * rows:
        words = ", ".join(f"{count:,} {reason}" for reason, count in Counter(reasons).most_common() if count)
        rule = rule or f"{most:.0%} that may be; correct the file, or what it is read as"
        raise DataError(f"{place}: {broken:,} of {rows:,} {word} are broken ({words}), more than {rule}")
