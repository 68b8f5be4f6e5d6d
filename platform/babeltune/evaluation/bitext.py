"""Scores of a bitext: retrieval accuracy and F1, xSIM and margins, as mteb and LASER define them.

A sentence with a zero vector finds nothing and is not found: it counts as an error. A margin that is not a finite
number is `UNDEFINED`, and its pair is no candidate.

Pure functions of arrays. Inputs are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from babeltune.evaluation import knn
from babeltune.evaluation.knn import UNDEFINED, DistinctVectors, Matches, Neighbours

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from babeltune.evaluation.knn import AnySide, Candidates

Margin = Literal["ratio", "distance", "absolute"]


def match(left: AnySide, right: AnySide, k: int = 4, candidates: Candidates = "nearest") -> Matches:
    """The matches of the two sides of a bitext, [n, d] each, with k = min(k, n) neighbours."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} left and {len(right)} right vectors: a bitext has as many of each")
    return knn.nearest_both_ways(left, right, k, candidates)


def accuracy(neighbours: Neighbours) -> float:
    """Share of queries whose nearest neighbour has the query's own index."""
    best = neighbours.index[:, 0]
    return _or_nan(neighbours, (best == torch.arange(len(best), device=best.device)).double().mean())


def weighted_f1(neighbours: Neighbours) -> float:
    """mteb's weighted F1 of one direction, queries to candidates.

    Every row is a class with one true member, so a class found right and predicted c times scores 2 / (1 + c)."""
    best = neighbours.index[:, 0]
    right = best == torch.arange(len(best), device=best.device)
    predicted = torch.bincount(best[best >= 0], minlength=len(best)).double()
    return _or_nan(neighbours, (right * 2 / (1 + predicted[best])).mean())


def xsim(matches: Matches, texts: Sequence[int] | None = None, margin: Margin = "ratio") -> float:
    """LASER's xSIM (source/xsim.py), left to right: share of rows whose best-scored candidate is not their translation.

    Candidates are the k right neighbours by cosine, or all right sentences if the matches have `sides` (Tan et al.
    2023, section 3.3). They are scored by a margin against the mean cosine to the neighbourhoods of both sentences
    (Artetxe & Schwenk 2019, section 3.2); the first of equal scores wins.
    With the right side's text ids in `texts`, an equal text at another row counts as right (LASER's default);
    without, only the row itself does (`--index-comparison`). The right side may have more
    sentences after the translations. They are candidates only. With altered translations as candidates this is
    xSIM++ (Chen et al. 2023, section 3)."""
    return _or_nan(matches.forward, xsim_errors(matches, texts, margin).double().mean())


def xsim_errors(
    matches: Matches, texts: Sequence[int] | None = None, margin: Margin = "ratio"
) -> Bool[Tensor, "queries"]:
    """True for each left sentence that `xsim` counts as an error."""
    best, _ = best_scored(matches, margin)
    ids = torch.arange(len(matches.backward.index)) if texts is None else torch.from_numpy(np.array(texts, np.int64))
    ids = ids.to(best.device)
    return (best < 0) | (ids[best] != ids[: len(best)])


def best_scored(matches: Matches, margin: Margin) -> tuple[Int[Tensor, "queries"], Float[Tensor, "queries"]]:
    """Of every left sentence, the candidate of the highest margin score, and that score; the first of equal ones. The
    candidate is -1, and the score `UNDEFINED`, if no margin of the sentence is defined."""
    if matches.sides is None:
        scores, choice = candidate_scores(matches, margin).max(dim=1)
        best = matches.forward.index.gather(1, choice[:, None])[:, 0]
    else:
        scores, best = _best_of_all(*matches.sides, matches, margin)
    return torch.where(scores == UNDEFINED, -1, best), scores


def _best_of_all(
    left: DistinctVectors, right: DistinctVectors, matches: Matches, margin: Margin
) -> tuple[Float[Tensor, "queries"], Int[Tensor, "queries"]]:
    """The highest margin score of every left sentence among all right ones, and its candidate. Never the whole matrix
    is in memory."""
    beside, around = (side.cosine.mean(dim=1) for side in (matches.forward, matches.backward))
    parts = []
    with knn.full_precision(right.distinct.device.type):
        for rows in torch.split(torch.arange(len(left)), max(1, knn.BLOCK // max(1, len(right)))):
            # The product is of distinct vectors, so that equal ones have equal scores.
            cosine = knn.cosines(left.distinct[left.which[rows]], right.distinct)[:, right.which]
            parts.append(margin_scores(cosine, (beside[rows, None] + around) / 2, margin).max(dim=1))
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def share_of_flipped_margins(matches: Matches) -> float:
    """Share of candidates whose neighbourhoods' mean cosine is not positive: there a ratio margin orders backwards."""
    around = _neighbourhood(matches)[matches.forward.index >= 0]
    return float((around <= 0).double().mean()) if len(around) else 0.0


def _neighbourhood(matches: Matches) -> Float[Tensor, "queries k"]:
    """Mean cosine of the query to its neighbours and of each candidate to its own, averaged."""
    means = matches.backward.cosine.mean(dim=1)[matches.forward.index]
    return (matches.forward.cosine.mean(dim=1, keepdim=True) + means) / 2


def candidate_scores(matches: Matches, margin: Margin) -> Float[Tensor, "queries k"]:
    """The margin score of each left sentence with its k neighbours."""
    return margin_scores(matches.forward.cosine, _neighbourhood(matches), margin)


def margin_scores(cosine: Tensor, around: Tensor, margin: Margin) -> Tensor:
    """Elementwise (Artetxe & Schwenk 2019, section 3.2): `ratio`, the cosine over the mean cosine `around` it, of both
    neighbourhoods; `distance`, their difference; `absolute`, the cosine. What is not finite is `UNDEFINED`: one of a
    zero vector, or a ratio to a mean of 0."""
    scores = cosine
    if margin == "ratio":
        scores = cosine / around
    elif margin == "distance":
        scores = cosine - around
    return torch.where(scores.isfinite(), scores, UNDEFINED)


def _or_nan(neighbours: Neighbours, score: Tensor) -> float:
    """The score, or NaN if there was nothing to score or a vector was not finite."""
    return float(score) if len(neighbours.cosine) and not bool(neighbours.cosine.isnan().any()) else float("nan")
