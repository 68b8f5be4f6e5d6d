"""A folder in which a model finds texts: `babeltune index MODEL FILES --out FOLDER`, `babeltune search FOLDER QUERY`.

The folder has unit vectors as faiss writes them (`IndexFlatIP`), the texts with their files and lines, the canary
vectors of the model, and a record that names it. Texts and vectors are on disk, and read in blocks. A search compares
the canary vectors of its model with those of the index first. It maps the vectors as numbers: no file is trusted to
faiss's reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.mining.index import load_faiss
from babeltune.apps.mining.mine import Encoding, working
from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.sentences import Lines, Sentences, read_files
from babeltune.apps.mining.vectors import EncodingModel, embed
from babeltune.data.arrays import parts
from babeltune.data.stored_arrays import open_matrix
from babeltune.errors import DataError, MisfitError, SpecError
from babeltune.files import write_json
from babeltune.models.hub import routes_of
from babeltune.promotion.canary import CANARY, LEAST, Canary, Fit, canary_by, fit_of, read_canary, write_canary
from babeltune.promotion.model_files import check_free, write_folder
from babeltune.promotion.readers import is_export
from babeltune.schema.base import from_plain

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from babeltune.stages import Progress

VECTORS, TEXTS, RECORD = "index.faiss", "texts.arrow", "index.json"
"""The files of the folder, besides the canary vectors."""
FORMAT = 1
FLAT = b"IxFI"  # how faiss's file of an `IndexFlatIP` begins; it ends with the vectors
BLOCK = 8_192  # texts in memory at a time, and in a batch of the file of texts


@dataclass(frozen=True, kw_only=True)
class Record:
    """The contents of `index.json`: which model made the vectors and how, and what must be in the other files."""

    model: str
    """The model as it was named; a folder by its whole path."""
    folder: str
    """The folder of its files, which stays if an alias moves."""
    digest: str
    """SHA-256 over the model's files."""
    prompt: str | None
    language: str | None
    rows: int
    dim: int
    bytes: int
    """The size of the faiss index: a shorter file was cut."""
    files: tuple[str, ...]
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class Indexed(Record):
    """The outcome of `index`."""

    out: str
    zero_vectors: int
    """Texts that are not in the index."""
    lines: tuple[Lines, ...]
    """Counts of the lines of each file."""


@dataclass(frozen=True)
class TextIndex:
    """An index that is open."""

    folder: Path
    record: Record
    canary: Canary
    vectors: NDArray[np.float32]  # [rows, dim] the unit vectors, mapped
    texts: pa.RecordBatchFileReader


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A text that a search finds."""

    score: float
    """The cosine with the query."""
    text: str
    file: str
    line: int
    """The first line with the text, from 1; in a table the row."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The outcome of `search`."""

    index: str
    model: str
    by_adapter: bool
    """Whether the model is an adapter for the index."""
    texts: tuple[Hit, ...]
    """The nearest first."""


def build_index(model: EncodingModel, name: str, files: Sequence[Path], out: Path, encoding: Encoding) -> Indexed:
    """Writes the folder, and returns what was done. `name` is what the model was called.

    A text that stands in several places is one. A text with a zero vector has no cosine: it is left out and counted.
    Vectors stay in the storage until the index is there, so that an interrupted command goes on.

    Raises:
        DataError: a file cannot be read or holds nothing, or there is no faiss.
        SpecError: there is something at `out`."""
    check_free(out)
    load_faiss()
    column = encoding.columns and encoding.columns[0]
    with working(encoding.storage) as work:
        encoding.progress("reading", 0, 1)
        texts, ids, places, lines = read_files(files, work / "texts.txt", encoding.codec, column)
        encoding.progress("reading", 1, 1)
        first = places[np.unique(ids, return_index=True)[1]]
        tell = partial(encoding.progress, "encoding texts")
        rows = UnitRows(open_matrix(*embed(texts, model, encoding.storage / "vectors", work, progress=tell)))
        record = Record(
            model=model.folder if Path(name).is_dir() else name,
            folder=model.folder,
            digest=model.digest,
            prompt=model.prompt,
            language=model.language,
            rows=0,
            dim=rows.dim,
            bytes=0,
            files=tuple(map(str, files)),
        )
        records: list[Record] = []

        def write(draft: Path) -> None:
            complete = _fill(draft, record, rows, texts, first, encoding.progress)
            write_canary(canary_by(model.encode), draft / CANARY)
            write_json(draft / RECORD, complete)
            records.append(complete)

        write_folder(write, out, {".faiss", ".arrow", ".json"})
    zeros = len(texts) - records[0].rows
    return Indexed(out=str(out), zero_vectors=zeros, lines=tuple(lines), **vars(records[0]))


def _fill(
    draft: Path, record: Record, rows: UnitRows, texts: Sentences, first: NDArray[np.int64], progress: Progress
) -> Record:
    """Writes the vectors and the texts, those with a zero vector left out, and returns the record with the sizes."""
    import pyarrow as pa

    faiss = load_faiss()
    index = faiss.IndexFlatIP(rows.dim)
    schema = pa.schema({"text": pa.large_string(), "file": pa.int32(), "line": pa.int64()})
    with pa.ipc.new_file(str(draft / TEXTS), schema) as file:
        for start in range(0, len(rows), BLOCK):
            block = rows.block(start, min(start + BLOCK, len(rows))).numpy()
            numbers = start + np.flatnonzero(block.any(axis=1))
            index.add(block[numbers - start])
            text = [texts[int(number)] for number in numbers]
            places = first[numbers].T
            file.write_batch(pa.record_batch([text, places[0].astype(np.int32), places[1]], schema=schema))
            progress("indexing", start + len(block), len(rows))
    if not index.ntotal:
        raise DataError(f"the model {record.model} gives each text a zero vector: nothing can be found by it")
    faiss.write_index(index, str(draft / VECTORS))
    return replace(record, rows=index.ntotal, bytes=(draft / VECTORS).stat().st_size)


def open_index(folder: Path) -> TextIndex:
    """The index of a folder. Raises `DataError` for another folder, and for files that are gone, cut or altered."""
    import pyarrow as pa

    try:
        record = from_plain(Record, json.loads((folder / RECORD).read_bytes()))
        if record.format != FORMAT:
            raise ValueError(f"it is of format {record.format}, and this version reads {FORMAT}")
        if (size := (folder / VECTORS).stat().st_size) != record.bytes:
            raise ValueError(f"{VECTORS} has {size:,} bytes, not {record.bytes:,}")
        shape = record.rows, record.dim
        with (folder / VECTORS).open("rb") as file:
            if file.read(len(FLAT)) != FLAT:
                raise ValueError(f"{VECTORS} is no flat index of faiss")
        vectors = np.memmap(folder / VECTORS, np.float32, "r", size - 4 * record.rows * record.dim, shape)
        texts = pa.ipc.open_file(pa.memory_map(str(folder / TEXTS)))
        rows = sum(texts.get_batch(number).num_rows for number in range(texts.num_record_batches))
        if record.rows != rows:
            raise ValueError(f"{record.rows} rows are not what its files hold")
    except (OSError, ValueError, TypeError, RuntimeError, pa.ArrowException) as error:
        reason = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        todo = "make one: `babeltune index MODEL FILES --out FOLDER`"
        raise DataError(f"{folder} is no index, or a damaged one ({reason}); {todo}") from error
    return TextIndex(folder, record, read_canary(folder / CANARY), vectors, texts)


def check_fit(index: TextIndex, folder: str, name: str) -> Fit:
    """How near the model of a folder is to the one that made the index, by its prompt and language.

    Raises `MisfitError`, which names the next step, if a canary sentence has a lower cosine than `LEAST`."""
    record = index.record
    language = record.language if record.language in routes_of(Path(folder)) else None
    model = EncodingModel(folder, "", record.prompt, language)
    fit = fit_of(index.canary, model.encode, Path(folder))
    if fit.cosine < LEAST:
        old = record.folder if name == record.model else record.model  # an alias may have moved since
        todo = f"make its queries fit, `babeltune adapter {old} {name} --out NEW`, and search with --model NEW"
        if is_export(Path(folder)):  # an export has no layers, so that no adapter is put after it
            todo = f"search with {old}, or index the texts again with {name}"
        words = f"{name} does not fit the index {index.folder} of {old}: {fit.words()} ({LEAST} is needed)"
        raise MisfitError(f"{words}; {todo}")
    return fit


def nearest_texts(index: TextIndex, model: EncodingModel, query: str, top: int) -> list[Hit]:
    """The texts nearest to the query, the best first. Raises `SpecError` for a query whose vector is zero."""
    unit = UnitRows(model.encode([query])).block(0, 1).numpy()
    if not unit.any():
        raise SpecError(f"the query {query!r} has a zero vector: the model knows no word of it; ask with other words")
    scores, numbers = np.zeros(0, np.float32), np.zeros(0, np.int64)
    for block in parts(index.record.rows, BLOCK):
        scores = np.concatenate([scores, index.vectors[block] @ unit[0]])
        numbers = np.concatenate([numbers, np.arange(block.start, block.stop)])
        best = np.argsort(-scores, kind="stable")[:top]
        scores, numbers = scores[best], numbers[best]
    return [_hit(index, score, number) for score, number in zip(scores.tolist(), numbers.tolist(), strict=True)]


def _hit(index: TextIndex, score: float, number: int) -> Hit:
    batch = 0
    while number >= (rows := index.texts.get_batch(batch).num_rows):  # a batch lacks the texts with a zero vector
        number, batch = number - rows, batch + 1
    values = index.texts.get_batch(batch).slice(number, 1).to_pylist()[0]
    return Hit(score=score, text=values["text"], file=index.record.files[values["file"]], line=values["line"])
