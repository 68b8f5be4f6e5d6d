"""Hard negatives for translation ranking, mined with the teacher: targets of anchors that mean nearly the same.

Park et al. 2024, section 5.2, train their mUSE baseline with three hard negatives per pair and leave the miner open.
Here candidates are the targets of other pairs of the same language pair, ranked by the teacher's cosine between
anchors. A candidate at or above a cosine limit counts as an unlabelled translation and is left out. An anchor with a
zero vector has no negatives, and is no negative."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILE = 8 * 1024 * 1024  # cosines held at a time


def mine_negatives(
    vectors: NDArray[np.generic],
    pairs: NDArray[np.integer],
    groups: NDArray[np.integer],
    *,
    k: int,
    below: float = 1.0,
    pool: int = 16_384,
    seed: int = 0,
) -> NDArray[np.integer]:
    """[n, k] text ids of each pair's hard negatives, the most similar first, -1 for missing ones.

    `vectors` [n, dim] are the teacher's of each pair's anchor, of any length. `pairs` [n, 2] are the text ids of anchor
    and target. A candidate is a target text; its
    similarity is the largest cosine of any of its anchors in the pool. Every known translation of the pair's anchor
    text is left out, and every candidate whose similarity is `below` or more. Ties go to the pair that comes first.

    A group of more than `pool` pairs is searched within random pools of about that size, seeded; pairs with the same
    anchor text stay together. So the cost grows linearly with the corpus: n * pool * dim multiplications. Memory: one
    pool's vectors and `TILE` cosines."""
    anchor_ids, target_ids = pairs[:, 0], pairs[:, 1]
    negatives = np.full((len(pairs), k), -1, pairs.dtype)
    for members in pools(anchor_ids, groups, pool, np.random.default_rng(seed)):
        negatives[members] = _mine_pool(vectors[members], anchor_ids[members], target_ids[members], k, below)
    return negatives


def pools(
    anchor_ids: NDArray[np.integer], groups: NDArray[np.integer], pool: int, rng: np.random.Generator
) -> Iterator[NDArray[np.intp]]:
    """The pairs of each group, or random parts of about `pool` of them; pairs of one anchor stay together."""
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = -(-len(members) // pool)
        if count == 1:
            yield members
            continue
        anchors, place = np.unique(anchor_ids[members], return_inverse=True)
        pool_of = (rng.permutation(len(anchors)) * count // len(anchors))[place]
        for number in np.unique(pool_of):  # of few anchors, there are fewer parts
            yield members[pool_of == number]


def _mine_pool(
    vectors: NDArray[np.generic], anchor_ids: NDArray[np.integer], target_ids: NDArray[np.integer], k: int, below: float
) -> NDArray[np.integer]:
    x = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(vectors)).float(), dim=-1)
    anchors = torch.from_numpy(np.asarray(anchor_ids, np.int64))
    _, first, place = np.unique(target_ids, return_index=True, return_inverse=True)
    repeats = torch.from_numpy(np.flatnonzero(first[place] != np.arange(len(target_ids))))
    firsts = torch.from_numpy(first[place])[repeats]
    negatives = np.full((len(target_ids), k), -1, target_ids.dtype)
    size = max(1, TILE // len(x))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        cosines = x[rows] @ x.T
        cosines[:, ~x.any(dim=1)] = -torch.inf
        # A translation of the same anchor text counts as similar without limit, and so does whatever repeats it.
        cosines.masked_fill_(anchors[rows, None] == anchors[None], torch.inf)
        cosines.scatter_reduce_(1, firsts.expand(len(cosines), -1), cosines[:, repeats], "amax")
        cosines[:, repeats] = -torch.inf
        cosines.masked_fill_(cosines >= below, -torch.inf)
        cosines[~x[rows].any(dim=1)] = -torch.inf
        for column in range(min(k, len(x))):
            # `max` gives the first of equal values, which `topk` does not promise.
            best, where = cosines.max(dim=1)
            negatives[rows, column] = np.where(best.numpy() > -np.inf, target_ids[where.numpy()], -1)
            cosines.scatter_(1, where[:, None], -torch.inf)
    return negatives
