"""The nearest of millions of candidates for each query, out of core, and the precision at 1 if they are known.

Retrieval as on the United Nations corpus (Yang et al. 2019, section 5.2): every sentence of one side is looked for
among all of the other."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.mining.margin import precision_at_1
from babeltune.apps.mining.mine import Encoding, embed_sides, whole_file, working
from babeltune.apps.mining.resumable_search import ResumableSearch, one_way_resumable
from babeltune.apps.mining.sentences import NONE, Lines, Sentences, read_gold, read_lines
from babeltune.apps.mining.tiles import Precision
from babeltune.errors import DataError, plural
from babeltune.evaluation.knn import Neighbours
from babeltune.files import check_place

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Retrieved:
    """The outcome of `retrieve`."""

    out: str
    queries: Lines
    candidates: Lines
    neighbours: int
    """Candidates of each query: fewer than `k` if there are fewer."""
    without_neighbours: int
    """Different queries that have none, as a vector is zero."""
    k: int
    precision: Precision
    precision_at_1: float | None
    """None if nobody says what is right."""


def retrieve(
    queries: Path,
    candidates: Path,
    out: Path,
    encoding: Encoding,
    *,
    gold: Path | None = None,
    k: int = 1,
    precision: Precision = "fp32",
) -> Retrieved:
    """Writes the k nearest candidates of each different query to `out`, best first: cosine, query, candidate.

    Line i of `gold` says what is right for line i of the queries: the
    number of a candidate's line, from 1, in every line, or else its text. A candidate that stands on several lines is
    right on each; every line of the queries that holds a sentence counts.

    Raises:
        DataError: a file cannot be read or holds nothing, or the gold does not fit the files.
        StoreError: the disk is full."""
    check_place(out)
    progress = encoding.progress
    with working(encoding.storage) as work:
        progress("reading", 0, 2)
        left, right = encoding.columns or (None, None)
        query_texts, query_of, query_lines = read_lines(queries, work / "queries.txt", encoding.codec, left)
        texts, candidate_of, candidate_lines = read_lines(candidates, work / "candidates.txt", encoding.codec, right)
        relevant = None if gold is None else gold_of(gold, query_of, (candidates, texts, candidate_of), encoding.codec)
        progress("reading", 2, 2)
        folders = embed_sides((query_texts, texts), encoding, work, names=("queries", "candidates"))
        search = ResumableSearch(encoding.storage, (folders[0], folders[1]), k, precision, both=False)
        nearest = one_way_resumable(search, functools.partial(progress, "searching"))
        with whole_file(out) as file:
            for number in range(len(query_texts)):
                for cosine, index in zip(nearest.cosine[number].tolist(), nearest.index[number].tolist(), strict=True):
                    if index >= 0:
                        file.write(f"{cosine:.6f}\t{query_texts[number]}\t{texts[index]}\n")
    score = None
    if relevant is not None:
        asking = query_of[query_of != NONE]
        score = precision_at_1(Neighbours(nearest.cosine[asking], nearest.index[asking]), relevant)
    return Retrieved(
        out=str(out),
        queries=query_lines,
        candidates=candidate_lines,
        neighbours=nearest.index.shape[1],
        without_neighbours=int((nearest.index[:, 0] < 0).sum()),
        k=k,
        precision=precision,
        precision_at_1=score,
    )


def gold_of(
    gold: Path, query_of: NDArray[np.int64], among: tuple[Path, Sentences, NDArray[np.int64]], codec: str | None = None
) -> NDArray[np.int64]:
    """The right candidate of each line of the queries that holds a sentence, by its number among the different ones."""
    path, candidates, candidate_of = among
    lines = read_gold(gold, codec)
    if len(lines) != len(query_of):
        words = f"{gold} has {plural(len(lines), 'line')} and the queries {len(query_of)}"
        raise DataError(f"{words}; give one line for each query")
    numbered = [(number, lines[number - 1]) for number in range(1, len(lines) + 1) if query_of[number - 1] != NONE]
    right = []
    for number, text in numbered:
        if not text:
            raise DataError(f"{gold}, line {number} is empty, but the query there is not; say what is right for it")
    if all(text.isascii() and text.isdigit() for _, text in numbered):
        for number, text in numbered:
            line = int(text[:19])  # beyond any file; int() refuses more than 4,300 digits
            if not 1 <= line <= len(candidate_of):
                raise DataError(f"{gold}, line {number}: {path} has lines 1 to {len(candidate_of)}, not {line}")
            if candidate_of[line - 1] == NONE:
                raise DataError(f"{gold}, line {number}: line {line} of {path} holds no sentence; name another")
            right.append(int(candidate_of[line - 1]))
        return np.array(right, np.int64)
    named_texts = {text for _, text in numbered}
    place = {text: number for number in range(len(candidates)) if (text := candidates[number]) in named_texts}
    for number, text in numbered:
        if text not in place:
            todo = "give line numbers, or the candidates' text"
            raise DataError(f"{gold}, line {number}: {text[:80]!r} is no line of {path}; {todo}")
        right.append(place[text])
    return np.array(right, np.int64)


def warnings_about(done: Retrieved) -> Iterator[str]:
    """Warnings about the result of `retrieve`, such as fewer candidates than `k`."""
    if done.neighbours < done.k:
        yield f"k is {done.k}, but the number of different candidates is {done.neighbours}: that many are listed"
    if alone := done.without_neighbours:
        yield f"{alone} queries have no neighbours, as a vector is zero: they are not in the file, and count as wrong"
