"""Mining of comparable corpora as BUCC scores it: which sentence pairs of two monolingual sides are translations.

Pure functions. Candidates and scores are those of Artetxe & Schwenk (2019), section 3, as LASER, sentence-transformers
and XTREME have them; search is exact. A threshold is fitted on one set and applied to another: fitted on the set that
it is scored on, it is an oracle, and named one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.evaluation import knn
from babeltune.evaluation.bitext import Margin, best_scored
from babeltune.evaluation.metric_names import RETRIEVALS

if TYPE_CHECKING:
    from babeltune.evaluation.knn import AnySide

Pair = tuple[int, int]
Scored = dict[Pair, float]  # candidate pairs (left, right) and their margin scores


def candidates(left: AnySide, right: AnySide, k: int = 4, margin: Margin = "ratio") -> dict[str, Scored]:
    """The candidate pairs of `left` [n, d] and `right` [m, d], by each of `RETRIEVALS`.

    `forward` holds each left sentence with the best-scored of its k nearest, `backward` each right one with its
    best. `intersection` has the pairs that are in both, and `union` those in either. `max` takes the pairs of the
    union from the best downwards, and leaves out those with a sentence that was taken (LASER's mine_bitexts.py). A
    sentence without a defined margin is in no pair. All are empty if a side is empty."""
    if not len(left) or not len(right):
        return {how: {} for how in RETRIEVALS}
    matches = knn.nearest_both_ways(left, right, k)
    rights, forward_scores = (tensor.tolist() for tensor in best_scored(matches, margin))
    lefts, backward_scores = (tensor.tolist() for tensor in best_scored(matches.turned(), margin))
    forward = {(i, j): score for i, (j, score) in enumerate(zip(rights, forward_scores, strict=True)) if j >= 0}
    backward = {(i, j): score for j, (i, score) in enumerate(zip(lefts, backward_scores, strict=True)) if i >= 0}
    both = {pair: score for pair, score in forward.items() if pair in backward}
    either = backward | forward
    return {"forward": forward, "backward": backward, "intersection": both, "union": either, "max": one_to_one(either)}


def one_to_one(pairs: Scored) -> Scored:
    """The pairs from the best-scored downwards with two sentences that were not taken before; equal scores by index."""
    paired: tuple[set[int], set[int]] = (set(), set())
    one_each: Scored = {}
    for (i, j), score in sorted(pairs.items(), key=lambda item: (-item[1], item[0])):
        if i not in paired[0] and j not in paired[1]:
            paired[0].add(i)
            paired[1].add(j)
            one_each[i, j] = score
    return one_each


def without_repeated(pairs: Scored, left: Sequence[int], right: Sequence[int]) -> Scored:
    """The pairs whose texts, by their ids, each occur once on their side: no id could be given to a repeated text
    (XTREME, LASER). Gold pairs of repeated texts count as missed."""
    counts = Counter(left), Counter(right)
    return {(i, j): score for (i, j), score in pairs.items() if counts[0][left[i]] == counts[1][right[j]] == 1}


def fitted_threshold(pairs: Scored, gold: Sequence[Pair]) -> float:
    """The threshold of the highest F1: halfway between the last score that is kept and the next lower one.

    The lowest score itself if all are kept; infinite, so that nothing is, if no pair is right. Equal scores stay
    together, and of equal F1 the higher threshold counts."""
    right = set(gold)
    ordered = sorted(((score, pair in right) for pair, score in pairs.items()), reverse=True)
    best, threshold, correct = 0.0, math.inf, 0
    for index, (score, hit) in enumerate(ordered):
        correct += hit
        following = ordered[index + 1][0] if index + 1 < len(ordered) else score
        if following == score and index + 1 < len(ordered):
            continue
        f1 = 2 * correct / (index + 1 + len(right))
        if f1 > best:
            best, threshold = f1, (score + following) / 2
    return threshold


def mining_f1(pairs: Scored, gold: Sequence[Pair], threshold: float) -> float:
    """F1 of the pairs that score at least `threshold`; NaN without gold."""
    right = set(gold)
    above = [pair for pair, score in pairs.items() if score >= threshold]
    return 2 * sum(pair in right for pair in above) / (len(above) + len(right)) if right else math.nan
