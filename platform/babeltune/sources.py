"""Reads text that lies side by side in some languages: the first step of the flow, from files to columns of sentences.

Files are read as streams and strictly. A broken row stops the run with its file and line, or is left out and counted
by reason, as the source's `on_error` says. What cannot be read at all (no such file, column or data set) is always an
error.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from babeltune.errors import DataError, nearest
from babeltune.records import Source

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_ROWS = 10_000
"""Rows of a Parquet file or data set that are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a source: `columns[language][i]` for all languages `i` says the same thing."""

    columns: dict[str, list[str]]
    """Language code -> sentences, stripped and never empty; all lists are equally long."""
    ids: list[str]
    """What the source calls its rows; empty where it names no id column."""
    digest: str
    """SHA-256 of the content read (of what was compressed, not of the archive)."""
    dropped: dict[str, int]
    """Rows left out by reason."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be used: the reason under which it is counted, and the words for an error."""

    reason: str
    words: str


Row = tuple[int, list[str] | Fault]
"""Line (or row) from 1, and the values of the columns asked for."""


@dataclass
class Refusals:
    """What is done about broken rows: an error at the first, or a count by reason."""

    source: str
    drop: bool
    counts: Counter[str] = field(default_factory=Counter)

    def refuse(self, place: str, fault: Fault) -> None:
        """Counts the row, or raises `DataError` that names its place."""
        if not self.drop:
            way_out = f"correct it, or leave such rows out with `on_error: drop` in source {self.source!r}"
            raise DataError(f"{place}: {fault.reason}: {fault.words}; {way_out}")
        self.counts[fault.reason] += 1


def read_source(source: Source, root: Path, *, others: Mapping[str, Rows]) -> Rows:
    """Reads a source; relative paths start at `root`, and `others` holds the rows that a pivot joins, by name.

    Raises `DataError` for a file, column or data set that is not there, and for the first broken row unless the source
    drops these.
    """
    refusals = Refusals(source.name, source.on_error == "drop")
    if source.format == "pivot":
        rows = join_pivot(source, others)
    elif source.paths is not None:
        rows = read_files(source, source.paths, root, refusals)
    else:
        rows = read_table(source, root, refusals)
    if not len(rows):
        reasons = ", ".join(f"{count} {reason}" for reason, count in rows.dropped.items())
        raise DataError(f"source {source.name!r} has no rows{f' left; dropped: {reasons}' if reasons else ''}")
    return rows


# --- One table, several columns ----------------------------------------------------------------------------------


def read_table(source: Source, root: Path, refusals: Refusals) -> Rows:
    """One file or data set that has a column for each language."""
    columns = source.columns or {}
    names = [*columns.values(), *([source.id] if source.id else [])]
    content = hashlib.sha256()
    if source.format == "hub":
        place, table = f"{source.dataset}[{source.split}]", read_dataset(source, root, names, content)
    else:
        path = located(source.path or "", root)
        place, table = str(path), read_file(source, path, names, content)
    kept = []
    for line, values in table:
        if isinstance(values, Fault):
            refusals.refuse(f"{place}:{line}", values)
        else:
            kept.append(values)
    by_column: list[list[str]] = [list(column) for column in zip(*kept, strict=True)] or [[] for _ in names]
    texts = dict(zip(columns, by_column[: len(columns)], strict=True))
    ids = by_column[-1] if source.id else []
    return Rows(columns=texts, ids=ids, digest=content.hexdigest(), dropped=dict(refusals.counts))


def read_file(source: Source, path: Path, names: Sequence[str], content: Digest) -> Iterator[Row]:
    """The named columns of a file in the source's format."""
    if source.format == "jsonl":
        return jsonl_rows(path, names, source.id, content)
    if source.format == "parquet":
        return parquet_rows(path, names, content)
    if source.format == "moses":
        return moses_rows(path, content)
    return tsv_rows(path, names, content, header=source.header)


# --- Several files, one column each ------------------------------------------------------------------------------


def read_files(source: Source, paths: Mapping[str, str], root: Path, refusals: Refusals) -> Rows:
    """One file per language, joined line by line or on an id."""
    files = {language: located(path, root) for language, path in paths.items()}
    contents = {language: hashlib.sha256() for language in files}
    by_id = source.format != "moses" and source.join == "id"
    id_names = [source.id or "id"] if by_id else []
    tables = {
        language: read_file(source, path, [source.column, *id_names], contents[language])
        for language, path in files.items()
    }
    if by_id:
        columns, ids = join_ids(files, tables, refusals)
    else:
        columns, ids = join_lines(files, tables, refusals), []
    digests = {language: content.hexdigest() for language, content in contents.items()}
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
    return Rows(columns=columns, ids=ids, digest=digest, dropped=dict(refusals.counts))


def join_lines(files: Mapping[str, Path], tables: Mapping[str, Iterator[Row]], refusals: Refusals) -> dict[str, Any]:
    """Line i of every file is one row; all files must be equally long."""
    kept = []
    last = dict.fromkeys(files, 0)
    for line in itertools.zip_longest(*tables.values()):
        row = dict(zip(files, line, strict=True))
        ended = [language for language, cell in row.items() if cell is None]
        last |= {language: cell[0] for language, cell in row.items() if cell is not None}
        if ended:
            longer = next(language for language in files if language not in ended)
            words = f"{files[ended[0]]} ends after line {last[ended[0]]}; files joined by line are equally long"
            refusals.refuse(f"{files[longer]}:{last[longer]}", Fault("unequal line counts", words))
            continue
        faults = [(language, cell) for language, cell in row.items() if isinstance(cell[1], Fault)]
        if faults:
            language, (number, fault) = faults[0]
            refusals.refuse(f"{files[language]}:{number}", fault)
        else:
            kept.append([cell[1][0] for cell in line])
    by_column = [list(column) for column in zip(*kept, strict=True)] or [[] for _ in files]
    return dict(zip(files, by_column, strict=True))


def join_ids(
    files: Mapping[str, Path], tables: Mapping[str, Iterator[Row]], refusals: Refusals
) -> tuple[dict[str, Any], list[str]]:
    """The rows whose id is in every file, in the first file's order; others are left out and counted."""
    texts: dict[str, dict[str, str]] = {}
    for language, table in tables.items():
        texts[language] = seen = {}
        for line, values in table:
            if isinstance(values, Fault):
                refusals.refuse(f"{files[language]}:{line}", values)
                continue
            text, name = values
            if name in seen:
                words = f"{shortened(name)} names an earlier row too; an id that joins files is unique in each"
                refusals.refuse(f"{files[language]}:{line}", Fault("duplicate id", words))
            else:
                seen[name] = text
    first, *others = texts.values()
    ids = [name for name in first if all(name in other for other in others)]
    if unmatched := len(set(itertools.chain.from_iterable(texts.values()))) - len(ids):
        refusals.counts["id not in every file"] += unmatched
    return {language: [by_id[name] for name in ids] for language, by_id in texts.items()}, ids


# --- Two sources through a pivot ---------------------------------------------------------------------------------


def join_pivot(source: Source, others: Mapping[str, Rows]) -> Rows:
    """Rows of two sources that agree in a language's text (by `text_key`) or in their id.

    A key that occurs m times on the left and n times on the right gives max(m, n) rows, the i-th with the i-th and the
    shorter side starting over, so that every row is used and common sentences do not explode; the other combinations
    are counted as left out. Where both sources hold a language, its text is the left one's.
    """
    left, right = (others[name] for name in (source.left or "", source.right or ""))
    places: dict[str, tuple[list[int], list[int]]] = {}
    for side, rows in enumerate((left, right)):
        for index, key in enumerate(pivot_keys(source, rows, side)):
            places.setdefault(key, ([], []))[side].append(index)
    joined: list[tuple[int, int]] = []
    combinations = 0
    for ours, theirs in places.values():
        if ours and theirs:
            combinations += len(ours) * len(theirs)
            for index in range(max(len(ours), len(theirs))):
                joined.append((ours[index % len(ours)], theirs[index % len(theirs)]))
    columns = {language: [texts[j] for _, j in joined] for language, texts in right.columns.items()}
    columns |= {language: [texts[i] for i, _ in joined] for language, texts in left.columns.items()}
    ordered = {language: columns[language] for language in dict.fromkeys([*left.columns, *right.columns])}
    left_out = combinations - len(joined)
    return Rows(
        columns=ordered,
        ids=[left.ids[i] for i, _ in joined] if left.ids else [],
        digest=hashlib.sha256(json.dumps([left.digest, right.digest, source.join]).encode()).hexdigest(),
        dropped={"further combinations of a repeated key": left_out} if left_out else {},
    )


def pivot_keys(source: Source, rows: Rows, side: int) -> Iterable[str]:
    """What a row of the left (0) or right (1) source is joined on."""
    name = (source.left, source.right)[side]
    if source.join == "id":
        if not rows.ids:
            raise DataError(f"source {name!r} has no ids; name its `id` column, or join {source.name!r} on a language")
        return rows.ids
    if source.join not in rows.columns:
        allowed = ["id", *rows.columns]
        raise DataError(
            f"pivot {source.name!r} joins on {source.join!r}, which {name!r} does not hold; "
            f"allowed: {', '.join(allowed)}{nearest(source.join, allowed)}"
        )
    return map(text_key, rows.columns[source.join])


# --- Files ---------------------------------------------------------------------------------------------------------


class Digest(Protocol):
    """A running checksum of what was read."""

    def update(self, data: bytes, /) -> None: ...


def located(path: str, root: Path) -> Path:
    """The file that a source names; raises `DataError` when there is none, with the nearest name there is."""
    full = root / path
    if full.is_dir():
        inside = sorted(entry.name for entry in full.iterdir())[:5]
        raise DataError(f"{full} is a folder; name a file, such as {', '.join(inside) or 'one that is not empty'}")
    if full.exists():
        return full
    missing, folder = full, full.parent
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    near = nearest(missing.name, sorted(entry.name for entry in folder.iterdir()))
    raise DataError(
        f"{full} does not exist: {folder} holds no {missing.name!r}{near or '; correct the path or `root`'}"
    )


def lines_of(path: Path, content: Digest) -> Iterator[bytes]:
    """Lines without their ends and without a byte order mark; gzip is recognised by its first bytes."""
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = io.BufferedReader(gzip.open(raw), 1 << 16) if packed else raw  # type: ignore[type-var]
            for number, line in enumerate(stream, 1):  # noqa: B007
                content.update(line)
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                yield line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}:{number + 1}: cannot be read: {error}; fetch or pack the file again") from error


def tsv_rows(path: Path, names: Sequence[str], content: Digest, *, header: bool) -> Iterator[Row]:
    """Columns of a tab-separated file without quoting, by name or (no header) by number from 0."""
    lines = lines_of(path, content)
    first = next(lines, None)
    if first is None:
        raise DataError(f"{path} is empty; a table has a header or at least one row")
    try:
        head = first.decode().split("\t")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:1: not UTF-8: {error}; convert the file to UTF-8") from error
    places = [position(path, name, head if header else [str(index) for index in range(len(head))]) for name in names]
    width = len(head)
    for line, raw in enumerate(lines if header else itertools.chain([first], lines), 2 if header else 1):
        try:
            fields = raw.decode().split("\t")
        except UnicodeDecodeError as error:
            yield line, not_utf8(raw, error)
            continue
        if len(fields) == width:
            yield line, cells([fields[place] for place in places], names)
        else:
            words = f"{len(fields)} columns in {shortened(raw.decode())}, where line 1 has {width}"
            yield line, Fault("column count", words)


def position(path: Path, name: str, head: list[str]) -> int:
    """Where the named column is."""
    if head.count(name) > 1:
        raise DataError(f"{path}:1: {head.count(name)} columns are called {name!r}; rename all but one")
    if name not in head:
        raise DataError(f"{path}:1: no column {name!r}; columns: {', '.join(head)}{nearest(name, head)}")
    return head.index(name)


def moses_rows(path: Path, content: Digest) -> Iterator[Row]:
    """A file of one sentence per line."""
    for line, raw in enumerate(lines_of(path, content), 1):
        yield line, cells([raw], ["text"])


def jsonl_rows(path: Path, names: Sequence[str], id_name: str | None, content: Digest) -> Iterator[Row]:
    """Keys of the JSON objects of a file, one per line; `translation.en` reaches into an inner object."""
    for line, raw in enumerate(lines_of(path, content), 1):
        try:
            record = json.loads(raw.decode())
        except UnicodeDecodeError as error:
            yield line, not_utf8(raw, error)
            continue
        except ValueError as error:
            yield line, Fault("not JSON", f"{shortened(raw.decode())}: {error}; each line is one JSON object")
            continue
        if not isinstance(record, dict):
            yield line, Fault("not JSON", f"{shortened(raw.decode())} is not an object; each line is one JSON object")
            continue
        values = [reached(record, name) for name in names]
        faults = [value for value in values if isinstance(value, Fault)]
        if id_name is not None and type(values[-1]) is int:
            values[-1] = str(values[-1])
        yield line, faults[0] if faults else cells(values, names, surrogates=b"\\u" in raw)


def reached(record: dict[str, Any], name: str) -> Any:
    """The value under a key, or under a path of keys joined by dots."""
    if name in record:
        return record[name]
    key, dot, rest = name.partition(".")
    inner = record.get(key)
    if dot and isinstance(inner, dict):
        return reached(inner, rest)
    return Fault("missing column", f"no key {name!r}; keys: {', '.join(record)}{nearest(name, record)}")


# --- Arrow: Parquet files and data sets ----------------------------------------------------------------------------


def parquet_rows(path: Path, names: Sequence[str], content: Digest) -> Iterator[Row]:
    """Columns of a Parquet file; `translation.en` reaches into a structure."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with path.open("rb") as raw:
        while block := raw.read(1 << 20):
            content.update(block)
    try:
        with parquet.ParquetFile(path) as file:
            roots = arrow_roots(str(path), file.schema_arrow, names)
            yield from arrow_rows(file.iter_batches(ARROW_ROWS, columns=roots), names)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}; correct `format` or write it again") from error


def read_dataset(source: Source, root: Path, names: Sequence[str], content: Digest) -> Iterator[Row]:
    """Columns of a Hugging Face data set, by hub id or saved folder. Its digest is that of the values read."""
    dataset = load_dataset(source, root)
    place = f"data set {source.dataset!r}"
    roots = arrow_roots(place, dataset.features.arrow_schema, names)
    batches = dataset.select_columns(roots).with_format("arrow").iter(ARROW_ROWS)
    for line, values in arrow_rows(batches, names):
        content.update(json.dumps(values.reason if isinstance(values, Fault) else values).encode() + b"\n")
        yield line, values


def load_dataset(source: Source, root: Path) -> Any:
    """The split that the source names, from a folder that `save_to_disk` wrote or as `datasets.load_dataset` finds it.

    Raises `DataError` when it cannot be found, reached or loaded.
    """
    import datasets

    name = source.dataset or ""
    folder = root / name
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
            found = datasets.load_from_disk(str(folder))
        else:
            place = str(folder) if folder.is_dir() else name
            found = datasets.load_dataset(place, source.subset, revision=source.revision)
    except Exception as error:  # the library, its hub client and its file readers share no error class
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"data set {name!r} of source {source.name!r} cannot be loaded: {words}; check its id, `subset` and "
            f"`revision`, that the hub can be reached, or give a folder that `save_to_disk` wrote"
        ) from error
    if isinstance(found, datasets.Dataset):
        return found
    if source.split not in found:
        raise DataError(
            f"data set {name!r} has no split {source.split!r}; splits: {', '.join(found)}{nearest(source.split, found)}"
        )
    return found[source.split]


def arrow_roots(place: str, schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The outermost columns that hold the named ones; raises `DataError` for a name that the schema lacks."""
    import pyarrow as pa

    leaves: list[str] = []

    def collect(prefix: str, fields: Iterable[Any]) -> None:
        for column in fields:
            if pa.types.is_struct(column.type):
                collect(f"{prefix}{column.name}.", [column.type.field(i) for i in range(column.type.num_fields)])
            else:
                leaves.append(prefix + column.name)

    collect("", schema)
    for name in names:
        if name not in leaves:
            raise DataError(f"{place}: no column {name!r}; columns: {', '.join(leaves)}{nearest(name, leaves)}")
    return list(dict.fromkeys(name if name in schema.names else name.split(".")[0] for name in names))


def arrow_rows(tables: Iterable[Any], names: Sequence[str]) -> Iterator[Row]:
    """The named columns of record batches or tables, row by row."""
    line = 0
    for table in tables:
        for values in zip(*(arrow_values(table, name) for name in names), strict=True):
            line += 1
            yield line, cells(values, names)


def arrow_values(table: Any, name: str) -> list[Any]:
    """A column as strings; as bytes where it is not UTF-8, for `cells` to find the row."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if name in table.schema.names:
        column = table.column(name)
    else:
        root, *path = name.split(".")
        column = compute.struct_field(table.column(root), path)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast(pa.binary()).to_pylist()
    return values


# --- Cells ---------------------------------------------------------------------------------------------------------


def cells(values: Sequence[Any], names: Sequence[str], *, surrogates: bool = False) -> list[str] | Fault:
    """The row's values as stripped text, or what is wrong with the first broken one."""
    texts = []
    for name, value in zip(names, values, strict=True):
        text = "" if value is None else value
        try:
            if isinstance(text, bytes):
                text = text.decode()
            elif surrogates and isinstance(text, str):
                text.encode()
        except UnicodeDecodeError as error:
            return not_utf8(value, error)
        except UnicodeEncodeError as error:
            return Fault("not UTF-8", f"{name!r} holds half a surrogate pair at character {error.start}")
        if not isinstance(text, str):
            return Fault("not text", f"{name!r} is {shortened(str(value))}, a {type(value).__name__}")
        text = text.strip()
        if not text:
            return Fault("empty side", f"nothing in {name!r}; every column that is read must have text")
        texts.append(text)
    return texts


def not_utf8(raw: bytes, error: UnicodeDecodeError) -> Fault:
    """The fault of bytes that are not UTF-8."""
    words = f"{shortened(raw.decode(errors='backslashreplace'))} at byte {error.start} ({error.reason})"
    return Fault("not UTF-8", words)


def shortened(value: str, width: int = 60) -> str:
    """The value in quotes, cut to a width."""
    return repr(value if len(value) <= width else value[: width - 1] + "…")


# --- Languages and keys --------------------------------------------------------------------------------------------


def language_pairs(
    source: Source, languages: Sequence[str], anchor_priority: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The language pairs (anchor, other) that a source is read for.

    The anchor is the language that comes first in `anchor_priority`; languages that are not in it come last, in
    alphabetical order, so that a pair has the same anchor in every source. Raises `DataError` for a listed pair that
    is not two of the source's languages.
    """
    ranks = {language: rank for rank, language in enumerate(anchor_priority)}
    ordered = sorted(languages, key=lambda language: (ranks.get(language, len(ranks)), language))
    combinations = list(itertools.combinations(ordered, 2))
    if source.pairs == "all":
        return tuple(combinations)
    if source.pairs == "anchor":
        return tuple((ordered[0], other) for other in languages if other != ordered[0])
    spelled = {f"{a}-{b}": pair for pair in combinations for a, b in (pair, pair[::-1])}
    for pair in source.pairs:
        if pair not in spelled:
            raise DataError(
                f"source {source.name!r} has no pair {pair!r}; its languages are {', '.join(languages)}"
                f"{nearest(pair, spelled)}"
            )
    return tuple(dict.fromkeys(spelled[pair] for pair in source.pairs))


class Kept(dict[int, int | None]):
    """A translation table that deletes punctuation, symbols, blanks and control characters."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        self[code] = None if category[0] in "PSZ" or category in ("Cc", "Cf") else code
        return self[code]


KEPT = Kept()


def text_key(text: str) -> str:
    """What two texts share that differ in case, punctuation, symbols, blanks or Unicode form (NFKC) only.

    A text of nothing but punctuation and symbols keeps these.
    """
    if text.isascii():
        folded = text.lower()
        return folded.translate(KEPT) or "".join(folded.split())
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded.translate(KEPT) or "".join(folded.split()))
