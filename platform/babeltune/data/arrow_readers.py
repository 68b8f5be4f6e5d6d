"""Reads the named columns of Parquet files and of Hugging Face data sets, as `file_readers.py` reads text files."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from babeltune.data import read_progress
from babeltune.data.file_readers import MAX_LINE_BYTES, Digest, Fault, Row, below, cells, too_long
from babeltune.data.watched_process import exit_of, watched
from babeltune.errors import DataError, list_of, nearest, plural, shortened
from babeltune.schema.addresses import INSIDE, PLACE, is_inside, is_place
from babeltune.schema.records import BeirSource, HubSource

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

Batch = TypeVar("Batch", "pa.Table", "pa.RecordBatch")
LONGEST_CAUSE = 300  # characters of what a library says of a data set
ARROW_ROWS = 10_000  # rows of a Parquet file or data set that are in memory at a time, at most
ARROW_BYTES = 1 << 26  # bytes of a Parquet file that are in memory at a time, if its rows are alike
PARQUET_MEMORY = 1 << 29
"""Bytes of memory that the process may take which reads a Parquet file. Pages of 1 MB, as usual, take 150 MB in all."""
TOO_LARGE = 3  # exit code of `parquet_process` if the file holds too much text
PARQUET_BYTES, PARQUET_RATIO = 1 << 28, 200
"""Bytes of text that any Parquet file may hold, and in a larger one times its own bytes. Text is packed to a thirtieth
at most; columns of few values are small beside it."""


def parquet_rows(
    path: Path, names: Sequence[str], id_name: str | None, content: Digest, longest: int = MAX_LINE_BYTES
) -> Iterator[Row]:
    """Columns of a Parquet file; `translation.en` reaches into a structure. Raises `DataError` as `parquet_batches`."""
    yield from arrow_rows(parquet_batches(path, names, content), names, id_name, longest)


def parquet_schema(path: Path) -> pa.Schema:
    """The columns of a Parquet file. Raises `DataError` for what cannot be read as Parquet."""
    with parquet_process(path) as process:
        return _first_stream(process)


@contextmanager
def parquet_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `parquet_process.py`. Raises `DataError` for what it cannot read, and for a file that takes more
    than `PARQUET_MEMORY` or holds more text than it may."""
    import pyarrow as pa

    cause: Exception | None = None
    with watched("parquet_process.py", str(path), memory=PARQUET_MEMORY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process
            process.stdin.close()
        except (OSError, pa.ArrowException) as error:
            cause = error
        process.stdout.close()
        code, words = exit_of(process)
    if code or cause is not None:  # Arrow takes a stream that a killed process cut off for a whole one
        raise _refusal(path, code, words.strip() or str(cause)) from cause


def _refusal(path: Path, code: int, cause: str) -> DataError:
    """The error of a process that ended with a code, and what it said."""
    if code < 0:
        words = f"{path} takes more than {PARQUET_MEMORY >> 20} MB to read"
        return DataError(f"{words}; write it again with smaller row groups")
    if code == TOO_LARGE:
        words = f"{path} holds {int(cause) >> 20:,} MB of text and more in {plural(path.stat().st_size, 'byte')}"
        return DataError(f"{words}; no text is packed so far, and it would fill the memory; leave it out")
    words = cause[:LONGEST_CAUSE]
    return DataError(f"{path} cannot be read as Parquet: {words}; correct `format` or write it again")


def _first_stream(process: subprocess.Popen[bytes]) -> pa.Schema:
    import pyarrow as pa

    with pa.ipc.open_stream(process.stdout) as stream:
        for _ in stream:
            """It has no batches; its end is read."""
        return stream.schema


def parquet_batches(path: Path, names: Sequence[str], content: Digest) -> Iterator[pa.RecordBatch]:
    """The outermost columns of a Parquet file that hold the named ones, some rows at a time.

    Raises `DataError` for a name that the file lacks, for a file that `parquet_process` refuses, and for one that
    changes meanwhile."""
    import pyarrow as pa

    with read_progress.unchanged(path), parquet_process(path) as process:
        with path.open("rb") as raw:
            while block := raw.read(1 << 20):
                content.update(block)
        schema = _first_stream(process)
        roots, types = arrow_roots(str(path), schema, names), leaves(schema)
        request = {
            "columns": roots,
            "texts": [name for name in names if is_text(types[name])],
            "rows": ARROW_ROWS,
            "bytes": ARROW_BYTES,
            "most": max(PARQUET_BYTES, PARQUET_RATIO * path.stat().st_size),
        }
        if not (rows := int(schema.metadata[b"rows"])):
            return
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        with pa.ipc.open_stream(process.stdout) as batches:
            yield from _count_bytes(batches, path.stat().st_size, rows)


def dataset_rows(
    source: HubSource, root: Path, names: Sequence[str], content: Digest, longest: int = MAX_LINE_BYTES
) -> Iterator[Row]:
    """Columns of a Hugging Face data set, by hub id or saved folder. Its digest is that of the values read."""
    dataset = load_dataset(source, root)
    place = f"data set {source.dataset!r}"
    roots = arrow_roots(place, dataset.features.arrow_schema, names)
    chosen = dataset.select_columns(roots)
    read_progress.count(0, of=chosen.data.nbytes)  # the hub did not say before
    batches = _count_bytes(chosen.with_format("arrow").iter(ARROW_ROWS), chosen.data.nbytes, len(chosen))
    for line, values in arrow_rows(batches, names, source.id, longest):
        content.update(json.dumps(values.reason if isinstance(values, Fault) else values).encode() + b"\n")
        yield line, values


def _count_bytes(batches: Iterable[Batch], size: int, rows: int) -> Iterator[Batch]:
    """The same batches; each counts its share of the bytes once its rows have been read."""
    for batch in batches:
        yield batch
        read_progress.count(size * batch.num_rows // max(1, rows))


def load_dataset(source: HubSource | BeirSource, root: Path) -> datasets.Dataset:
    """The split that the source names, from a folder that `save_to_disk` wrote or as `datasets.load_dataset` finds it.

    Raises `DataError` when it cannot be found, reached or loaded."""
    name = source.dataset or ""
    folder = below(name, root)
    check_inside(source, folder, root)
    import datasets

    datasets.disable_progress_bars()  # ours says what is read
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists():
            loaded = datasets.load_from_disk(str(folder))
        else:
            place, cache = (without_patterns(folder), folder_cache(folder)) if folder.is_dir() else (name, None)
            files = {source.split: source.subset} if "/" in (source.subset or "") else None
            subset = None if files else source.subset
            loaded = datasets.load_dataset(
                place, subset, data_files=files, split=source.split, revision=source.revision, cache_dir=cache
            )
    except Exception as error:  # the library, its hub client and its file readers share no error class
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # the library wraps what its readers say
        words = " ".join((str(cause).strip() or type(cause).__name__).split())[:LONGEST_CAUSE]
        todo = "check its id, `subset`, `split` and `revision`, that the hub can be reached, or give a folder that "
        todo += "`save_to_disk` wrote"
        if folder.is_dir():
            todo = "correct its files, or name one of them with its own `format`"
            if words.endswith("to null"):
                todo = f"a column of its first file has no text; {todo}"
        raise DataError(f"data set {name!r} of source {source.name!r} cannot be loaded: {words}; {todo}") from error
    if isinstance(loaded, datasets.Dataset):
        return loaded
    if source.split not in loaded:
        raise DataError(
            f"data set {name!r} has no split {source.split!r}; "
            f"splits: {', '.join(loaded)}{nearest(source.split, loaded)}"
        )
    return loaded[source.split]


def without_patterns(folder: Path) -> str:
    """The folder's path for `datasets`, which takes `[`, `*` and `?` in it for patterns: then that of a folder of links
    to its files."""
    if not glob.has_magic(os.path.realpath(folder)):
        return str(folder)
    mirror = Path(folder_cache(folder)) / "links" / "files"  # `datasets` writes to `files` in the cache
    for file in (each for each in folder.rglob("*") if each.is_file()):
        link = mirror / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(os.path.realpath(file))
    return str(mirror)


def folder_cache(folder: Path) -> str:
    """Where the tables of a folder are cached."""
    import datasets

    # `datasets` names a cache by the folder's last name and its card, so that another folder, or the same one with
    # other files, would be answered from it.
    stats = ((file, file.stat()) for file in sorted(folder.rglob("*")) if file.is_file())
    content = [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]
    return str(Path(datasets.config.HF_DATASETS_CACHE) / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16])


def check_inside(source: HubSource | BeirSource, folder: Path, root: Path) -> None:
    """Raises `DataError` if a data set's name, or a name within it, would be taken for an address or leads out.
    The source, a link among its files, or the card in its own folder may name it."""
    place = f"source {source.name!r}"
    for key in ("subset", "split", "revision"):
        if not is_inside(getattr(source, key) or ""):
            raise DataError(f"{place}: {key} {getattr(source, key)!r} must be {INSIDE}")
    if not is_place(source.dataset or ""):
        raise DataError(f"{place}: dataset {source.dataset!r} must be {PLACE}")
    for name in card_files(folder / "README.md"):
        if not is_inside(name):
            raise DataError(f"{folder / 'README.md'}: it names {name!r}, which leads out of the folder; correct it")
    for file in folder.rglob("*") if folder.is_dir() and not Path(source.dataset or "").is_absolute() else ():
        below(str(file.relative_to(root)), root)


def card_files(card: Path) -> list[str]:
    """Every text under `configs` in the head of a data set's card: its files are among them."""
    import yaml

    if not card.is_file():
        return []
    begin, _, rest = card.read_text(encoding="utf-8", errors="replace").partition("---")
    try:
        head = yaml.safe_load(rest.partition("\n---")[0]) if not begin.strip() else None
    except yaml.YAMLError as error:
        raise DataError(f"{card}: its head is not YAML ({' '.join(str(error).split())[:100]}); correct it") from error
    waiting, names = [head.get("configs")] if isinstance(head, dict) else [], list[str]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            names.append(value)
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return names


def leaves(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each column that is no structure; `translation.en` is within one."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}

    def collect(prefix: str, fields: Iterable[pa.Field]) -> None:
        for column in fields:
            if pa.types.is_struct(column.type):
                collect(f"{prefix}{column.name}.", [column.type.field(i) for i in range(column.type.num_fields)])
            else:
                types[prefix + column.name] = column.type

    collect("", schema)
    return types


def arrow_roots(place: str, schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The outermost columns that hold the named ones; raises `DataError` for a name that the schema lacks."""
    columns = leaves(schema)
    for name in names:
        if name not in columns:
            raise DataError(
                f"{place}: no column {shortened(name)}; columns: {list_of(columns)}{nearest(name, columns)}"
            )
    return list(dict.fromkeys(name if name in schema.names else name.split(".")[0] for name in names))


def is_text(type_: pa.DataType, *, raw: bool = True) -> bool:
    """Whether a column holds strings or, if they are asked for, bytes: in a dictionary, as views, or plain."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return type_ in strings or (raw and type_ in (pa.binary(), pa.large_binary(), pa.binary_view()))


def arrow_rows(
    tables: Iterable[pa.Table | pa.RecordBatch], names: Sequence[str], id_name: str | None, longest: int, first: int = 1
) -> Iterator[Row]:
    """The named columns of record batches or tables, row by row; the first has the number `first`."""
    line = first - 1
    for table in tables:
        for values in zip(*(arrow_values(table, name) for name in names), strict=True):
            line += 1
            length = max(map(size_of, values), default=0)
            yield line, too_long(length, longest) if length > longest else cells(values, names, id_name)


def arrow_values(table: pa.Table | pa.RecordBatch, name: str) -> list[object]:
    """The values of a column, one after another."""
    import pyarrow as pa
    import pyarrow.compute as compute

    if name in table.schema.names:
        column = table.column(name)
    else:
        root, *path = name.split(".")
        column = compute.struct_field(table.column(root), path)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in chunk_values(chunk)]


def chunk_values(chunk: pa.Array) -> list[object]:
    """An array as strings; as bytes if it is not UTF-8, for `cells` to find the row."""
    import pyarrow as pa

    if pa.types.is_dictionary(chunk.type):
        different = chunk_values(chunk.dictionary)
        return [None if index is None else different[index] for index in chunk.indices.to_pylist()]
    try:
        values: list[object] = chunk.to_pylist()
    except UnicodeDecodeError:
        values = chunk.cast(pa.binary()).to_pylist()
    return values


def size_of(value: object) -> int:
    """The bytes of a text; 0 of anything else."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
    return len(value) if isinstance(value, bytes) else 0
