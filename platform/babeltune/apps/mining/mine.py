"""Text files in, scored pairs out: reads, encodes to disk, searches, scores, writes the result whole or not at all."""

from __future__ import annotations

import codecs
import functools
import hashlib
import io
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch

from babeltune.apps.mining.index import Index, load_faiss, through_index
from babeltune.apps.mining.margin import Retrieval, flipped, pair_scores, retrieve
from babeltune.apps.mining.resumable_search import ResumableSearch, both_ways_resumable
from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.sentences import LONGEST, Lines, Sentences, read_pairs, read_sentences
from babeltune.apps.mining.tiles import Precision
from babeltune.apps.mining.vectors import EncodingModel, Texts, embed
from babeltune.data.file_readers import bounded_lines, readable, refuse_broken
from babeltune.data.shards import RunShards, run_here
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.text_streams import text_stream
from babeltune.errors import DataError, plural
from babeltune.evaluation.bitext import Margin
from babeltune.evaluation.knn import UNDEFINED, Matches
from babeltune.evaluation.sts import paired_cosine
from babeltune.files import check_place, draft_of, remove_left, written_whole
from babeltune.schema.cluster import Cluster
from babeltune.stages import Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray


BATCH = 1_024  # sentences of `encode` in memory at a time; pairs of `score`, too

Line = tuple[int, bytes, int | None]  # the number of a line, its beginning, and the bytes that were left out


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """How pairs are scored."""

    k: int = 4
    """Neighbours of each sentence (Artetxe & Schwenk 2019)."""
    margin: Margin = "ratio"
    precision: Precision = "fp32"
    index: Index = "exact"


@dataclass(frozen=True, kw_only=True)
class MiningSettings(ScoreSettings):
    """How pairs are found and scored."""

    retrieval: Retrieval = "max"
    threshold: float | None = None
    """A pair's score must be above it."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The model with which a command encodes, and its device."""

    models: tuple[EncodingModel, EncodingModel]
    """For the sources and the targets: one model, its layers for either language, or two models."""
    storage: Path
    """The folder where vectors stay, and what an exact search has found until it ends. An interrupted run goes on."""
    progress: Progress
    cluster: Cluster | None = None  # encodes and searches as Ray tasks; None: this process does
    codec: str | None = None  # the code page of the files of text; None: they are in Unicode
    columns: tuple[str, str] | None = None
    """The columns of the sources and of the targets. None: what `only_column` and `two_columns` say."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """Warnings about a search."""

    neighbours: tuple[int, int]
    """The neighbours that were used on each side: fewer than `k` if a side has fewer sentences."""
    without_neighbours: tuple[int, int]  # different sentences of each side that have none, as their vector is zero
    flipped: float  # the share of margins that order backwards


@dataclass(frozen=True, kw_only=True)
class MineResult(Searched):
    """The outcome of `mine`."""

    out: str
    pairs: int
    source: Lines
    target: Lines
    settings: MiningSettings


@dataclass(frozen=True, kw_only=True)
class ScoreResult(Searched):
    """The outcome of `score`."""

    out: str
    pairs: int
    undefined: int
    """Pairs without a defined margin, which are left out."""
    mean: float | None
    """The mean margin; None if none is defined."""
    lines: Lines
    settings: ScoreSettings


@dataclass(frozen=True, kw_only=True)
class EncodeResult:
    """The outcome of `encode`."""

    out: str
    rows: int
    dim: int
    replaced: int
    """Lines that were not UTF-8."""
    too_long: int
    zero_vectors: int


def mine(source: Path, target: Path, out: Path, settings: MiningSettings, encoding: Encoding) -> MineResult:
    """Writes the pairs of two files to `out`, the best first: score, source, target. Returns what was done.

    Raises:
        DataError: a file cannot be read or holds nothing, or both hold the same sentences.
        StoreError: the disk is full."""
    if settings.index != "exact":
        load_faiss()  # before hours of encoding
    check_place(out)
    progress = encoding.progress
    with working(encoding.storage) as work, _runner(encoding.cluster) as run_shards:
        progress("reading", 0, 2)
        left, right = encoding.columns or (None, None)
        sources, source_lines = read_sentences(source, work / "source.txt", encoding.codec, left)
        targets, target_lines = read_sentences(target, work / "target.txt", encoding.codec, right)
        progress("reading", 2, 2)
        if len(sources) == len(targets) and sum_of_hashes(sources) == sum_of_hashes(targets):
            same = f"{source} and {target} hold the same sentences, so each would find itself"
            raise DataError(f"{same}; give text in two languages")
        folders = embed_sides((sources, targets), encoding, work, run_shards)
        matches = _search(folders, settings, encoding)
        pairs = retrieve(matches, settings.margin, settings.retrieval, settings.threshold)
        with whole_file(out) as file:
            for score, left, right in zip(pairs.score, pairs.left, pairs.right, strict=True):
                file.write(f"{score:.6f}\t{sources[int(left)]}\t{targets[int(right)]}\n")
    count, search = len(pairs), vars(_searched(matches, settings))
    return MineResult(out=str(out), pairs=count, source=source_lines, target=target_lines, settings=settings, **search)


def score(pairs_file: Path, out: Path, settings: MiningSettings, encoding: Encoding) -> ScoreResult:
    """Writes the pairs of a file with their margin before them, in order, and returns what was done.

    The neighbourhoods are the file's own: each source among all its targets, and back. Broken lines, and pairs without
    a defined margin, are left out and counted. Raises as `mine` does."""
    check_place(out)
    with working(encoding.storage) as work:
        pairs = read_pairs(pairs_file, work / "pairs", encoding.columns, encoding.codec)
        texts, numbers = (pairs.source, pairs.target), (pairs.sources, pairs.targets)
        matches, scores = margins(texts, numbers, settings, encoding, work)
        defined = scores != UNDEFINED
        with whole_file(out) as file:
            for value, i, j in zip(scores[defined], pairs.sources[defined], pairs.targets[defined], strict=True):
                file.write(f"{value:.6f}\t{pairs.source[int(i)]}\t{pairs.target[int(j)]}\n")
    return ScoreResult(
        out=str(out),
        pairs=int(defined.sum()),
        undefined=int((~defined).sum()),
        mean=float(scores[defined].mean(dtype=np.float64)) if defined.any() else None,
        lines=pairs.lines,
        settings=ScoreSettings(**{each.name: getattr(settings, each.name) for each in fields(ScoreSettings)}),
        **vars(_searched(matches, settings)),
    )


def margins(
    sentences: tuple[Texts, Texts],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    settings: MiningSettings,
    encoding: Encoding,
    work: Path,
) -> tuple[Matches, NDArray[np.float32]]:
    """The neighbours of different sentences, and [pairs] margins, `UNDEFINED` for some; `pairs` are the numbers of
    their sentences.

    `work` is for texts on their way."""
    folders = embed_sides(sentences, encoding, work)
    matches = _search(folders, settings, encoding)
    x, y = (UnitRows(open_matrix(*side)) for side in folders)
    scores = np.empty(len(pairs[0]), np.float32)
    for start in range(0, len(scores), BATCH):
        left, right = (torch.from_numpy(side[start : start + BATCH]) for side in pairs)
        cosine = torch.from_numpy(paired_cosine(x.take(left), y.take(right))).float()
        scores[start : start + BATCH] = pair_scores(matches, left, right, cosine, settings.margin)
    return matches, scores


def encode(
    lines: IO[bytes], model: EncodingModel, out: Path, progress: Progress, codec: str | None = None
) -> EncodeResult:
    """Writes the vectors of the lines, fp32 [n, dim], to a `.npy` file as they come; line i has row i.

    A dropped line would shift the rows after it. So invalid UTF-8 is replaced, a line of more than `LONGEST` bytes is
    cut, and both are counted. Zero vectors are counted, too. Raises `DataError` for a vector that is not finite, and
    if more than 5 % of the lines so far are replaced or cut."""
    check_place(out)
    rows, replaced, too_long, zeros = 0, 0, 0, 0
    with written_bytes(out) as file:
        dim = model.width
        _header(file, 0, dim)
        name = "standard input"

        def read() -> Iterator[Line]:
            yield from bounded_lines(text_stream(lines, name, codec), name, hashlib.sha256(), LONGEST)

        source = iter(readable(read, name))
        while batch := list(itertools.islice(source, BATCH)):
            texts = [_beginning(line, skipped is not None) for _, line, skipped in batch]
            replaced += sum("\ufffd" in text for text in texts)
            too_long += sum(skipped is not None for *_, skipped in batch)
            broken = {"not UTF-8": replaced, "too long": too_long}
            refuse_broken(name, replaced + too_long, rows + len(texts), broken, word="lines")
            vectors = model.encode(texts)
            if not (finite := np.isfinite(vectors).all(axis=1)).all():
                line = rows + int(finite.argmin()) + 1
                raise DataError(f"line {line}: its vector is not finite; the model {model.folder} is broken")
            zeros += int((~vectors.any(axis=1)).sum())
            file.write(vectors.astype("<f4").tobytes())
            rows += len(texts)
            progress("encoding", rows, 0)
        file.seek(0)
        _header(file, rows, dim)
    return EncodeResult(out=str(out), rows=rows, dim=dim, replaced=replaced, too_long=too_long, zero_vectors=zeros)


def _header(file: IO[bytes], rows: int, dim: int) -> None:
    """numpy leaves room for the number of rows to grow, so the header keeps its length."""
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})


def _beginning(line: bytes, cut: bool) -> str:
    """A line as text; what is not UTF-8 is replaced. Of a line that is cut, no part of a letter is left."""
    return codecs.utf_8_decode(line[:LONGEST] if cut else line, "replace", not cut)[0].rstrip("\r\n")


def embed_sides(
    sentences: tuple[Texts, Texts],
    encoding: Encoding,
    work: Path,
    run_shards: RunShards = run_here,
    *,
    names: tuple[str, str] = ("sources", "targets"),
) -> list[list[Path]]:
    """Encodes both sides. Returns the shard folders of each side."""
    folders = []
    for name, side, model in zip(names, sentences, encoding.models, strict=True):
        tell = functools.partial(encoding.progress, f"encoding {name}")
        folders.append(embed(side, model, encoding.storage / "vectors", work, run_shards=run_shards, progress=tell))
    return folders


def _search(folders: list[list[Path]], settings: MiningSettings, encoding: Encoding) -> Matches:
    progress = functools.partial(encoding.progress, "searching")
    if settings.index != "exact":
        left, right = (open_matrix(*side) for side in folders)
        return through_index(left, right, settings.k, settings.index, progress)
    resumable = ResumableSearch(encoding.storage, (folders[0], folders[1]), settings.k, settings.precision)
    if encoding.cluster is not None:
        from babeltune.apps.mining.ray_search import both_ways_by_ray

        return both_ways_by_ray(resumable, (folders[0], folders[1]), progress, encoding.cluster.progress_timeout)
    return both_ways_resumable(resumable, progress)


def _searched(matches: Matches, settings: MiningSettings) -> Searched:
    used, other = (side.index.shape[1] for side in (matches.forward, matches.backward))
    sources, targets = matches.alone
    flips = flipped(matches, settings.margin)
    return Searched(neighbours=(used, other), without_neighbours=(sources, targets), flipped=flips)


def warnings_about(done: MineResult | ScoreResult) -> Iterator[str]:
    """Warnings about the result of `mine` or `score`, such as fewer neighbours than `k`."""
    if min(done.neighbours) < done.settings.k:
        few = f"one side has only {plural(min(done.neighbours), 'different sentence')}"
        yield f"k is {done.settings.k}, but {few}: that many neighbours were used"
    if any(done.without_neighbours):
        sources, targets = done.without_neighbours
        yield f"{sources} sources and {targets} targets have no neighbours, as a vector is zero: they are in no pair"
    if isinstance(done, ScoreResult) and done.undefined:
        yield f"{done.undefined} pairs have no defined margin, so they are left out of the file and of the mean"
    if done.flipped:
        around = f"the mean cosine around {done.flipped:.1%} of the candidates is not positive"
        yield f"{around}, where the ratio orders backwards: use --margin distance"
    if not done.pairs and isinstance(done, MineResult) and done.settings.threshold is not None:
        yield f"no pair has a score above {done.settings.threshold}; lower --threshold"


def sum_of_hashes(sentences: Sentences) -> int:
    """A number that is the same for the same sentences in any order."""
    return sum(hash(sentences[place]) for place in range(len(sentences)))


@contextmanager
def whole_file(out: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name when it is complete."""
    with written_bytes(out) as file, io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
        yield text


@contextmanager
def written_bytes(out: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is complete, as `written_whole` makes it. Raises `DataError`."""
    remove_left(out)
    try:
        with written_whole(out) as file:
            yield file
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error


@contextmanager
def working(storage: Path) -> Iterator[Path]:
    """A folder for text on its way, beside the vectors, where a cluster's workers see it."""
    work = draft_of(storage / "mining")
    work.mkdir(parents=True)  # not tempfile's, which another user of the cluster's nodes could not enter
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _runner(cluster: Cluster | None) -> Iterator[RunShards]:
    """The runner of shards: this process, or the cluster's tasks."""
    if cluster is None:
        yield run_here
        return
    from babeltune.sweep.workers.connection import connected
    from babeltune.sweep.workers.tasks import ray_shards

    with connected(cluster):
        yield functools.partial(ray_shards, share=cluster.gpus, progress_timeout=cluster.progress_timeout)
