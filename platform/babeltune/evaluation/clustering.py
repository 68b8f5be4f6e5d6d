"""Whether clusters of sentence vectors are the topics that people gave them: k-means, adjusted Rand index, V-measure.

Pure functions of arrays, in float64 on the CPU and with seeds, so that the same vectors score the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import ArrayLike, NDArray

SEEDS = (0, 1, 2, 3, 4)
"""One clustering each; a single one is noise (Li's aligner report compares differences of .005)."""
STARTS = 10
"""Initialisations of a clustering; the one with the smallest inertia counts (scikit-learn's `n_init`)."""
ROUNDS = 300


def agreement(vectors: NDArray[np.float32], labels: Sequence[str]) -> dict[str, float]:
    """`ari` and `v_measure` of the labels and of k-means with as many clusters as there are labels. k-means works on
    the unit vectors of `vectors` [n, d]. The figures are means over `SEEDS`, and with `_sd` standard deviations. NaN
    where a vector is not finite."""
    _, truth = np.unique(np.asarray(labels), return_inverse=True)
    rows = np.asarray(vectors, np.float64)
    scores: dict[str, list[float]] = {"ari": [math.nan], "v_measure": [math.nan]}
    if np.isfinite(rows).all() and len(rows):
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        found = [kmeans(rows, int(truth.max()) + 1, seed=seed)[0] for seed in SEEDS]
        scores = {
            "ari": [adjusted_rand(truth, clusters) for clusters in found],
            "v_measure": [v_measure(truth, clusters) for clusters in found],
        }
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return means | {f"{name}_sd": float(np.std(values)) for name, values in scores.items()}


def adjusted_rand(truth: ArrayLike, found: ArrayLike) -> float:
    """The adjusted Rand index (Hubert & Arabie 1985): 1 for equal partitions, 0 on average for random ones."""
    table = _contingency(truth, found)

    def ordered_pairs(counts: NDArray[np.int64]) -> int:
        return int((counts * (counts - 1)).sum())

    both, in_truth, in_found = ordered_pairs(table), ordered_pairs(table.sum(1)), ordered_pairs(table.sum(0))
    every = int(table.sum()) * (int(table.sum()) - 1)
    if both == in_truth == in_found:  # also of one text, and of all apart, where chance has no room
        return 1.0
    # (both - expected) / (mean - expected), times `every`, in whole numbers
    return 2 * (both * every - in_truth * in_found) / ((in_truth + in_found) * every - 2 * in_truth * in_found)


def v_measure(truth: ArrayLike, found: ArrayLike) -> float:
    """The harmonic mean of homogeneity and completeness (Rosenberg & Hirschberg 2007), which is the mutual information
    over the mean of both entropies."""
    shares = _contingency(truth, found) / np.asarray(truth).size

    def entropy(values: NDArray[np.float64]) -> float:
        positive = values[values > 0]
        return float(-(positive * np.log(positive)).sum())

    in_truth, in_found, both = entropy(shares.sum(1)), entropy(shares.sum(0)), entropy(shares)
    if in_truth == 0 or in_found == 0:  # one label or one cluster: homogeneous or complete, and the other only if both
        return float(in_truth == in_found)
    return max(0.0, 2 * (in_truth + in_found - both) / (in_truth + in_found))


def _contingency(truth: ArrayLike, found: ArrayLike) -> Int[NDArray[np.int64], "labels clusters"]:
    """How many rows have each label and are in each cluster."""
    _, a = np.unique(np.asarray(truth), return_inverse=True)
    _, b = np.unique(np.asarray(found), return_inverse=True)
    table = np.zeros((int(a.max()) + 1, int(b.max()) + 1), np.int64)
    np.add.at(table, (a, b), 1)
    return table


def kmeans(rows: Float[NDArray[np.float64], "n d"], k: int, *, seed: int) -> tuple[Int[NDArray[np.intp], "n"], float]:
    """The cluster of each row and the inertia (summed squared distances to the clusters' means) of the best of `STARTS`
    runs of Lloyd's algorithm, each from k-means++ seeds."""
    generator = np.random.default_rng((seed, k))
    runs = [_lloyd(rows, _spread_seeds(rows, k, generator)) for _ in range(STARTS)]
    return min(runs, key=lambda run: run[1])


def _spread_seeds(
    rows: Float[NDArray[np.float64], "n d"], k: int, generator: np.random.Generator
) -> Float[NDArray[np.float64], "k d"]:
    """k-means++ (Arthur & Vassilvitskii 2007): each next seed is drawn by its squared distance to the nearest one so
    far; the best of 2 + log k draws is taken, as scikit-learn does."""
    chosen = [int(generator.integers(len(rows)))]
    nearest = _distances(rows, rows[chosen])[:, 0]
    while len(chosen) < k:
        total = nearest.sum()
        shares = nearest / total if total > 0 else None
        draws = generator.choice(len(rows), size=2 + int(math.log(k)), p=shares)
        closer = np.minimum(nearest[:, None], _distances(rows, rows[draws]))
        best = int(closer.sum(axis=0).argmin())
        chosen.append(int(draws[best]))
        nearest = closer[:, best]
    return rows[chosen]


def _lloyd(
    rows: Float[NDArray[np.float64], "n d"], means: Float[NDArray[np.float64], "k d"]
) -> tuple[NDArray[np.intp], float]:
    """Assigns and averages in turn until no row moves. A cluster that lost all rows takes the one furthest off."""
    before = None
    for _ in range(ROUNDS):
        distances = _distances(rows, means)
        which = distances.argmin(axis=1)
        own = distances[np.arange(len(rows)), which]
        for empty in np.setdiff1d(np.arange(len(means)), which):
            furthest = int(own.argmax())
            which[furthest], own[furthest] = empty, 0.0
        if before is not None and (which == before).all():
            break
        member = np.zeros((len(means), len(rows)))
        member[which, np.arange(len(rows))] = 1.0
        means = member @ rows / member.sum(axis=1, keepdims=True).clip(min=1)
        before = which
    return which, float(_distances(rows, means)[np.arange(len(rows)), which].sum())


def _distances(
    rows: Float[NDArray[np.float64], "n d"], means: Float[NDArray[np.float64], "k d"]
) -> Float[NDArray[np.float64], "n k"]:
    """Squared Euclidean ones."""
    squares: NDArray[np.float64] = (rows**2).sum(1)[:, None] - 2 * rows @ means.T + (means**2).sum(1)
    return squares.clip(min=0.0)
