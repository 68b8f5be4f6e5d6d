"""Reads a large file in parts, as tasks of a cluster that has several nodes. Used by `sources`.

The driver cuts the file at the ends of its lines and digests it. A task makes columns of a part. It calls the functions
that the driver's process calls for a small file, so rows, faults and their places do not depend on who reads. A node
need not see the file: the part lies in the storage, or travels with the task. The driver unpacks compressed files, and
cuts Parquet between rows. Tables with quoted fields and data sets of the hub are read by the driver alone."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from babeltune.data import text_shards
from babeltune.data.arrow_readers import arrow_rows, parquet_batches
from babeltune.data.file_readers import (
    NO_TEXT_BYTES,
    SKIPPED_BYTES,
    TITLE_ROWS,
    Digest,
    Fault,
    Lines,
    Row,
    line_rows,
    lines_in,
    no_text,
    numbered_lines,
    where_takes,
)
from babeltune.data.quotation_marks import QuotedColumns, Quotes
from babeltune.data.shards import count_all
from babeltune.data.text_shards import TextShards
from babeltune.data.text_streams import UNREADABLE, unpacked
from babeltune.data.texts import TableWriter, Texts, read_all, save_all
from babeltune.files import plain
from babeltune.schema.records import Source
from babeltune.stages import uncounted

PART_BYTES = 8 << 20  # bytes of a part. Reading it takes about 0.4 CPU seconds.
MANY_BYTES = 64 << 20
"""No more bytes are read in the driver's process: starting processes on other nodes takes seconds, too."""


@dataclass(frozen=True)
class Form:
    """How the rows of a file are read. It travels with the tasks."""

    source: Source
    path: Path
    names: tuple[str, ...]  # the columns
    longest: int  # bytes of a line

    @property
    def watches_quotes(self) -> bool:
        return self.source.format == "tsv" and self.source.quoted is None

    @property
    def has_head(self) -> bool:
        """Whether the first line says which columns there are."""
        return self.source.format == "tsv"


@dataclass(frozen=True)
class Part:
    """The rows that a task has read."""

    first: int  # the line of the first row
    rows: int  # rows that were read, broken or not
    columns: list[Texts]  # the values of the rows that are kept
    faults: dict[int, Fault]  # broken rows, by their place among all

    def stream(self) -> Iterator[Row]:
        """The rows in order, if all that are not broken were kept."""
        whole = zip(*self.columns, strict=True)
        for place in range(self.rows):
            yield self.first + place, self.faults.get(place) or list(next(whole))


def is_cut(source: Source, path: Path) -> bool:
    """Whether the file is large, and can be cut."""
    by_rows = source.format in ("jsonl", "moses", "parquet") or (source.format == "tsv" and not source.quoted)
    return by_rows and path.stat().st_size > MANY_BYTES


def parts_of(form: Form, content: Digest, shards: TextShards) -> Iterator[Part]:
    """The file in parts, in order; a part ends at the first fault, unless the source drops broken rows."""
    quotes = QuotedColumns(form.names)
    head = head_of(form) if form.has_head else (1, b"")
    with shards.work() as work:
        cuts = (cut_rows if form.source.format == "parquet" else cut_lines)(form, content, work)
        while window := list(itertools.islice(cuts, text_shards.WINDOW)):
            arguments = [(str(path), form, first, head) for path, first in window]
            count_all(shards.run(read_part, arguments), len(window), uncounted, "read")
            for path, _ in window:
                yield _part(path, quotes)
                for place in (path, path.with_suffix(".arrow"), path.with_suffix(".json")):
                    place.unlink()
    if form.watches_quotes:
        quotes.refuse(form.path)


def head_of(form: Form) -> tuple[int, bytes | Fault]:
    """The line that names the columns, which may stand below a title, and its number; the first line if none does."""
    lines = numbered_lines(form.path, hashlib.sha256(), form.longest, form.source.codec)
    first = next(lines)
    for number, line in [first, *itertools.islice(lines, TITLE_ROWS)] if form.source.header else []:
        names = [] if isinstance(line, Fault) else line.decode(errors="replace").split("\t")
        if set(form.names) <= {name.strip() for name in names}:
            return number, line
    return first


def _part(path: Path, quotes: QuotedColumns) -> Part:
    """The rows that `read_part` wrote; its quotation marks are added."""
    record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    for column, more in zip(quotes.columns, record["quotes"], strict=True):
        column.add(Quotes(**more))
    faults = {place: Fault(*fault) for place, fault in record["faults"]}
    return Part(record["first"], record["rows"], read_all(path.with_suffix(".arrow").read_bytes()), faults)


# --- In the driver -------------------------------------------------------------------------------------------------


def cut_lines(form: Form, content: Digest, work: Path) -> Iterator[tuple[Path, int]]:
    """Files of consecutive lines, and the number of the first line of each."""
    line = 1
    try:
        with unpacked(form.path, form.source.codec) as stream:
            while block := stream.read(PART_BYTES):
                path, first = work / f"{line:016}", line
                with path.open("wb") as part:
                    while block:
                        content.update(block)
                        part.write(block)
                        if part.tell() > NO_TEXT_BYTES:
                            raise no_text(f"{form.path}:{line}")
                        line += block.count(b"\n")
                        block = b"" if block.endswith(b"\n") else stream.readline(SKIPPED_BYTES)
                yield path, first
    except UNREADABLE:
        for _ in numbered_lines(form.path, hashlib.sha256(), form.longest, form.source.codec):
            """Says which line cannot be read, if it is that."""
        raise


def cut_rows(form: Form, content: Digest, work: Path) -> Iterator[tuple[Path, int]]:
    """Files of consecutive rows of a Parquet file, and the number of the first row of each."""
    import pyarrow as pa

    first, size, batches = 1, 0, list[pa.RecordBatch]()

    def written() -> tuple[Path, int]:
        path = work / f"{first:016}"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return path, first

    for batch in parquet_batches(form.path, form.names, content):
        batches.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES:
            yield written()
            first, size, batches = first + sum(each.num_rows for each in batches), 0, []
    if batches:
        yield written()


# --- In a task -----------------------------------------------------------------------------------------------------


def read_part(path: str, form: Form, first: int, head: tuple[int, bytes | Fault]) -> int:
    """Writes the columns, the faults and the counts of quotation marks of a part that begins at this line; gives 1.

    `head` is what `head_of` gives."""
    drop, count, begin, faults = form.source.on_error == "drop", 0, first, []
    table, quotes = TableWriter(len(form.names)), QuotedColumns(form.names)
    rows = rows_in(Path(path), form, first, head)
    for line, values in quotes.see(rows) if form.watches_quotes else rows:
        begin = begin if count else line
        count += 1
        if isinstance(values, Fault):
            if not where_takes(form.source, values.values):
                continue
            faults.append((count - 1, astuple(replace(values, words="" if drop else values.words, values=()))))
            if not drop and values.kind != "left out":
                break
        elif where_takes(form.source, values):
            table.add(values)
    save_all(table.done(), Path(f"{path}.arrow"))
    record = {"first": begin, "rows": count, "faults": faults, "quotes": plain(quotes.columns)}
    Path(f"{path}.json").write_text(json.dumps(record), encoding="utf-8")
    return 1


def rows_in(path: Path, form: Form, first: int, head: tuple[int, bytes | Fault]) -> Iterator[Row]:
    """The rows of a part that begins at this line."""
    if form.source.format == "parquet":
        yield from parquet_part(path, form, first)
        return
    with path.open("rb") as stream:
        lines: Lines = lines_in(stream, form.path, hashlib.sha256(), form.longest, first)
        if not form.has_head or (first == 1 and not form.source.header):
            yield from line_rows(form.source, form.path, form.names, lines)
            return
        below = (line for line in lines if line[0] > head[0])
        rows = line_rows(form.source, form.path, form.names, itertools.chain([head], below))
        yield from rows if form.source.header else itertools.islice(rows, 1, None)


def parquet_part(path: Path, form: Form, first: int) -> Iterator[Row]:
    """The rows of a part of a Parquet file."""
    import pyarrow as pa

    with pa.ipc.open_stream(path.read_bytes()) as batches:
        yield from arrow_rows(batches, form.names, form.source.id, form.longest, first)
