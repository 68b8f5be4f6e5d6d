"""Which candidates are pairs: margin scores and retrieval (Artetxe & Schwenk 2019, sections 3.1 and 3.2).

`forward` proposes each left sentence's best candidate, `backward` each right sentence's; `intersection` is what both
propose, and `union` what either does. LASER's `max` takes proposals of either direction, best score first, and each
sentence once. stopes' `union` emits a pair that both directions propose twice; here a pair is emitted once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from babeltune.evaluation.bitext import Margin, best_scored, margin_scores, share_of_flipped_margins
from babeltune.evaluation.knn import Matches, Neighbours

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray
    from torch import Tensor

Retrieval = Literal["max", "forward", "backward", "intersection", "union"]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of a left and a right sentence, the best score first, the lowest numbers first of equal ones."""

    score: NDArray[np.float32]
    left: NDArray[np.int64]
    right: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.score)


def pair_scores(
    matches: Matches,
    left: Int[Tensor, "pairs"],
    right: Int[Tensor, "pairs"],
    cosine: Float[Tensor, "pairs"],
    margin: Margin = "ratio",
) -> Float[Tensor, "pairs"]:
    """The margin of given pairs; their sentences need not be neighbours."""
    return margin_scores(cosine, around(matches, left, right), margin)


def around(matches: Matches, left: Int[Tensor, "pairs"], right: Int[Tensor, "pairs"]) -> Float[Tensor, "pairs"]:
    """The mean cosine of a pair's two sentences to their neighbours; if it is not positive a ratio means nothing."""
    return (matches.forward.cosine.mean(dim=1)[left] + matches.backward.cosine.mean(dim=1)[right]) / 2


def flipped(matches: Matches, margin: Margin) -> float:
    """Share of candidates whose neighbourhoods' mean cosine is not positive: a ratio orders them backwards; else 0."""
    if margin != "ratio":
        return 0.0
    return (share_of_flipped_margins(matches) + share_of_flipped_margins(matches.turned())) / 2


def retrieve(
    matches: Matches, margin: Margin = "ratio", retrieval: Retrieval = "max", threshold: float | None = None
) -> ScoredPairs:
    """The pairs with a score above the threshold. Of a sentence's equal scores the nearer candidate wins.

    `max` gives each sentence at most one partner; `forward` each left one exactly one, before the threshold. A sentence
    without a defined margin has none."""
    forward, backward = _proposals(matches, margin), _proposals(matches.turned(), margin)
    backward = (backward[0], backward[2], backward[1])
    if retrieval == "forward":
        score, left, right = forward
    elif retrieval == "backward":
        score, left, right = backward
    else:
        score = np.concatenate([forward[0], backward[0]])
        left, right = (np.concatenate([forward[side], backward[side]]) for side in (1, 2))
    if threshold is not None:
        above = score > threshold
        score, left, right = score[above], left[above], right[above]
    order = np.lexsort((right, left, -score))
    score, left, right = score[order], left[order], right[order]
    if retrieval in ("intersection", "union"):
        # A pair of both directions has two scores that are equal but for the last bit: the better one stands.
        _, first, count = np.unique(left * (right.max(initial=0) + 1) + right, return_index=True, return_counts=True)
        rows = np.sort(first[count == 2] if retrieval == "intersection" else first)
    elif retrieval == "max":
        rows = _one_to_one(left, right, len(matches.forward.index), len(matches.backward.index))
    else:
        rows = np.arange(len(score))
    return ScoredPairs(score[rows], left[rows], right[rows])


def _proposals(matches: Matches, margin: Margin) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Score, sentence and best candidate of each left sentence; the first of equal scores, which is the nearest."""
    best, scores = (each.numpy() for each in best_scored(matches, margin))
    rows = np.flatnonzero(best >= 0)
    return scores[rows], rows, best[rows]


def _one_to_one(left: NDArray[np.int64], right: NDArray[np.int64], lefts: int, rights: int) -> NDArray[np.int64]:
    """Which of the pairs, in order, are taken when each takes both its sentences away from the later ones."""
    # In rounds: a pair that comes first among the pairs left of both its sentences is taken at once.
    rounds: list[NDArray[np.int64]] = []
    waiting = np.arange(len(left))
    while len(waiting):
        first_left, first_right = np.full(lefts, len(left)), np.full(rights, len(left))
        # Of repeated places the last assignment stands, so backwards the first pair's.
        first_left[left[waiting[::-1]]] = waiting[::-1]
        first_right[right[waiting[::-1]]] = waiting[::-1]
        now = waiting[(first_left[left[waiting]] == waiting) & (first_right[right[waiting]] == waiting)]
        rounds.append(now)
        free_left, free_right = np.ones(lefts, bool), np.ones(rights, bool)
        free_left[left[now]] = free_right[right[now]] = False
        waiting = waiting[free_left[left[waiting]] & free_right[right[waiting]]]
    return np.sort(np.concatenate(rounds)) if rounds else waiting


def precision_at_1(neighbours: Neighbours, gold: NDArray[np.int64]) -> float:
    """Share of queries whose nearest candidate is the `gold` one: UN-style retrieval (Yang et al. 2019, section 5.2).

    `neighbours` is as `one_way_resumable` gives it with k = 1; memory-mapped candidates may be millions."""
    best = neighbours.index[:, 0].numpy()
    if len(best) != len(gold):
        raise ValueError(f"{len(best)} queries and {len(gold)} gold candidates: each query has one")
    return float((best == gold).mean()) if len(gold) else float("nan")
