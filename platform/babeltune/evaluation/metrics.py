"""Scores of sentence vectors: bitext retrieval, xSIM and Spearman, as mteb, LASER and scipy define them.

Pure functions of arrays. Similarities are fp32 cosines with autocast and TF32 off, computed in blocks of rows, so
that memory grows with the number of candidates and not with its square. Ties are decided by the lowest index; bit-equal
vectors always tie, wherever they stand. Inputs are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import ArrayLike, NDArray

    Vectors = NDArray[np.float32] | Tensor

BLOCK = 1 << 24
"""Similarities held at once (fp32: 64 MB)."""

Margin = Literal["ratio", "distance", "absolute"]


@dataclass(frozen=True)
class Neighbours:
    """The k candidates most similar to each query, best first, lowest index first where equal."""

    cosine: Float[Tensor, "queries k"]
    index: Int[Tensor, "queries k"]


@dataclass(frozen=True)
class Matches:
    """Neighbours in both directions of a bitext: all that accuracy, F1 and xSIM need."""

    forward: Neighbours
    """For each left sentence, among the right ones."""
    backward: Neighbours
    """For each right sentence, among the left ones."""

    def turned(self) -> Matches:
        """The same matches with left and right exchanged."""
        return Matches(self.backward, self.forward)


def match(left: Vectors, right: Vectors, k: int = 4) -> Matches:
    """The matches of `left` [n, d] and `right` [n, d], with k = min(k, n) neighbours."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left and {len(right)} right vectors: a bitext has as many of each")
    return Matches(neighbours(left, right, k), neighbours(right, left, k))


def neighbours(queries: Vectors, candidates: Vectors, k: int) -> Neighbours:
    """The k = min(k, candidates) nearest `candidates` [m, d] of each of the `queries` [n, d] by cosine."""
    unique_queries, query_of = _distinct(_unit(queries))
    unique_candidates, candidate_of = _distinct(_unit(candidates))
    k = min(k, len(candidate_of))
    repeated = len(unique_candidates) < len(candidate_of)
    cosines, indices = [], []
    with full_precision(unique_queries.device.type):
        for block in torch.split(unique_queries, max(1, BLOCK // max(1, len(candidate_of)))):
            similarity = block @ unique_candidates.T
            cosine, index = _first_largest(similarity[:, candidate_of] if repeated else similarity, k)
            cosines.append(cosine)
            indices.append(index)
    return Neighbours(torch.cat(cosines)[query_of], torch.cat(indices)[query_of])


def bitext_accuracy(left: Vectors, right: Vectors) -> tuple[float, float]:
    """Share of sentences whose nearest neighbour by cosine is the one of the same row: left to right, right to left.

    The first number is the `accuracy` of mteb's bitext mining. Rows are compared, not texts, so a repeated sentence
    counts as right only in its first row.
    """
    matches = match(left, right, k=1)
    return accuracy(matches.forward), accuracy(matches.backward)


def bitext_f1(left: Vectors, right: Vectors) -> tuple[float, float]:
    """mteb's main score for bitext mining, both directions: F1 with the predicted row as class, weighted by support."""
    matches = match(left, right, k=1)
    return weighted_f1(matches.forward), weighted_f1(matches.backward)


def accuracy(found: Neighbours) -> float:
    """Share of queries whose nearest neighbour has the query's own index."""
    best = found.index[:, 0]
    return _or_nan(found, (best == torch.arange(len(best), device=best.device)).double().mean())


def weighted_f1(found: Neighbours) -> float:
    """Every row is a class with one true member, so a class found right and predicted c times scores 2 / (1 + c)."""
    best = found.index[:, 0]
    right = best == torch.arange(len(best), device=best.device)
    predicted = torch.bincount(best, minlength=len(best)).double()
    return _or_nan(found, (right * 2 / (1 + predicted)).mean())


def xsim_error(
    left: Vectors,
    right: Vectors,
    k: int = 4,
    *,
    texts: tuple[Sequence[int], Sequence[int]] | None = None,
    margin: Margin = "ratio",
) -> tuple[float, float]:
    """xSIM error rates (0 to 1), left to right and back; see `xsim`. `texts` are the text ids of both sides."""
    matches = match(left, right, k)
    left_texts, right_texts = texts or (None, None)
    return xsim(matches, right_texts, margin), xsim(matches.turned(), left_texts, margin)


def xsim(matches: Matches, texts: Sequence[int] | None = None, margin: Margin = "ratio") -> float:
    """LASER's xSIM (source/xsim.py), left to right: share of rows whose best-scored candidate is not their translation.

    Candidates are the k right neighbours by cosine. They are scored again by a margin against the mean cosine to the
    neighbourhoods of both sentences (Artetxe & Schwenk 2019, section 3.2); the first of equal scores wins.
    With the right side's text ids in `texts`, an equal text at another row counts as right (LASER's default);
    without, only the row itself does (`--index-comparison`).
    """
    found = matches.forward
    choice = candidate_scores(matches, margin).argmax(dim=1, keepdim=True)
    best = found.index.gather(1, choice)[:, 0]
    ids = torch.arange(len(best)) if texts is None else torch.as_tensor(np.asarray(texts))
    ids = ids.to(best.device)
    return _or_nan(found, (ids[best] != ids).double().mean())


def pair_margins(
    left: Vectors,
    right: Vectors,
    k: int = 4,
    margin: Margin = "ratio",
    *,
    pairs: tuple[Sequence[int], Sequence[int]] | None = None,
) -> NDArray[np.float64]:
    """Scores of given pairs by margin (Artetxe & Schwenk 2019, section 3.2), as LASER's `mine_bitexts --mode score`.

    The cosine of a pair is set against the mean cosine of its left sentence to its k nearest of `right` [m, d], and of
    its right one to its k nearest of `left` [n, d], averaged. `pairs` are the rows of the pairs, in `left` and in
    `right` (n = m and the same rows where absent): with each distinct sentence in one row, repetitions do not fill a
    neighbourhood. NaN where a ratio's neighbourhoods have no positive mean cosine, since it would order backwards.
    """
    if pairs is None and len(left) != len(right):
        raise ValueError(f"{len(left)} left and {len(right)} right vectors: without `pairs`, as many of each")
    rows, columns = (np.arange(len(left)),) * 2 if pairs is None else (np.asarray(side, np.int64) for side in pairs)
    x, y = _unit(left), _unit(right)
    cosine = (x[rows].double() * y[columns].double()).sum(dim=1)
    if margin == "absolute":
        return cosine.cpu().numpy()
    forward, backward = (neighbours(a, b, k).cosine.double().mean(dim=1) for a, b in ((x, y), (y, x)))
    around = (forward[rows] + backward[columns]) / 2
    scores = cosine - around if margin == "distance" else (cosine / around).where(around > 0, float("nan"))
    return scores.cpu().numpy()


def share_of_flipped_margins(matches: Matches) -> float:
    """Share of candidates whose neighbourhoods' mean cosine is not positive: there a ratio margin orders backwards."""
    return float((_neighbourhood(matches) <= 0).double().mean())


def paired_cosine(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    """[n] cosine of each row of `left` with the same row of `right`; exactly 1 for equal vectors, as scikit-learn's."""
    x, y = _unit(left).double(), _unit(right).double()
    result: NDArray[np.float64] = (1 - 0.5 * (x - y).square().sum(dim=1)).cpu().numpy()
    return result


def mean_cosine(vectors: Vectors) -> float:
    """The mean cosine of all pairs of different rows of [n, d], near 1 after a collapse; 0 for one row."""
    count, total = len(vectors), _unit(vectors).double().sum(dim=0).square().sum()
    return float((total - count) / (count * (count - 1))) if count > 1 else 0.0


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation with tie-averaged ranks, as `scipy.stats.spearmanr`.

    NaN where it is undefined: fewer than two values, a constant input, or a NaN among them.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"shapes {a.shape} and {b.shape}: a rank correlation compares two rows of equal length")
    if len(a) < 2 or np.isnan(a).any() or np.isnan(b).any():
        return float("nan")
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    ranks_a, ranks_b = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean()
    scale = float(np.sqrt((ranks_a @ ranks_a) * (ranks_b @ ranks_b)))
    return float(ranks_a @ ranks_b) / scale if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] ranks from 1, equal values sharing the mean of theirs."""
    _, where, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[where]
    return ranks


def _neighbourhood(matches: Matches) -> Float[Tensor, "queries k"]:
    """Mean cosine of the query to its neighbours and of each candidate to its own, averaged."""
    means = matches.backward.cosine.mean(dim=1)[matches.forward.index]
    return (matches.forward.cosine.mean(dim=1, keepdim=True) + means) / 2


def candidate_scores(matches: Matches, margin: Margin) -> Float[Tensor, "queries k"]:
    """The margin of each left sentence with its k neighbours."""
    return margin_scores(matches.forward.cosine, _neighbourhood(matches), margin)


def margin_scores(cosine: Tensor, around: Tensor, margin: Margin) -> Tensor:
    """The cosines against the mean cosine `around` them (Artetxe & Schwenk 2019, section 3.2), elementwise."""
    if margin == "absolute":
        return cosine
    return cosine / around if margin == "ratio" else cosine - around


def _unit(vectors: Vectors) -> Float[Tensor, "n dim"]:
    """The rows at length 1, in fp32, in memory of their own."""
    rows = torch.as_tensor(vectors).detach().float()
    return torch.nn.functional.normalize(rows, dim=1)


def _distinct(rows: Float[Tensor, "n dim"]) -> tuple[Float[Tensor, "distinct dim"], Int[Tensor, "n"]]:
    """The bit-different rows in order of appearance, and which of them each row is.

    A matrix product may give equal rows results that differ in the last bit by position; multiplying each row once
    keeps their ties exact.
    """
    first: dict[bytes, int] = {}
    number = [first.setdefault(row.tobytes(), len(first)) for row in rows.cpu().numpy()]
    where = torch.tensor(number, dtype=torch.long, device=rows.device)
    if len(first) == len(rows):
        return rows, where
    _, places = np.unique(np.asarray(number), return_index=True)
    return rows[torch.as_tensor(places, device=rows.device)], where


def _first_largest(
    values: Float[Tensor, "rows columns"], k: int
) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """`torch.topk` with the lowest index first among equals, which topk leaves open."""
    more = min(k + 1, values.shape[1])
    top, index = values.topk(more, dim=1)
    top, index = top[:, :k], index[:, :k]
    by_index = index.argsort(dim=1)
    top, index = top.gather(1, by_index), index.gather(1, by_index)
    top, order = top.sort(dim=1, descending=True, stable=True)
    index = index.gather(1, order)
    if more > k:
        tied = (values >= top[:, -1:]).sum(dim=1) > k
        if tied.any():
            again, where = values[tied].sort(dim=1, descending=True, stable=True)
            top[tied], index[tied] = again[:, :k], where[:, :k]
    return top, index


def _or_nan(found: Neighbours, score: Tensor) -> float:
    """The score, or NaN where there was nothing to score or a vector was not finite."""
    return float(score) if len(found.cosine) and bool(found.cosine.isfinite().all()) else float("nan")


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Matrix products in fp32, whatever the caller trains with."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
