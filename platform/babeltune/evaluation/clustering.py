"""Whether clusters of sentence vectors are the topics that people gave them: k-means, adjusted Rand index, V-measure.

The two scores are scikit-learn's. Pure functions of arrays, in float64 on the CPU and with seeds, so that the same
vectors score the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray

SEEDS = (0, 1, 2, 3, 4)
"""One clustering each; a single one is noise (Li's aligner report compares differences of .005)."""
STARTS = 10
"""Initialisations of a clustering; the one with the smallest inertia counts (scikit-learn's `n_init`)."""
ROUNDS = 300


def agreement(vectors: NDArray[np.float32], labels: Sequence[str]) -> dict[str, float]:
    """`ari` and `v_measure` of the labels and of k-means with as many clusters as there are labels. k-means works on
    the unit vectors of `vectors` [n, d]. The figures are means over `SEEDS`, and with `_sd` standard deviations. NaN
    where a vector is not finite.

    The adjusted Rand index (Hubert & Arabie 1985) is 1 for equal partitions and 0 on average for random ones. The
    V-measure (Rosenberg & Hirschberg 2007) is the harmonic mean of homogeneity and completeness."""
    from sklearn.metrics import adjusted_rand_score, v_measure_score

    _, truth = np.unique(np.asarray(labels), return_inverse=True)
    rows = np.asarray(vectors, np.float64)
    scores: dict[str, list[float]] = {"ari": [math.nan], "v_measure": [math.nan]}
    if np.isfinite(rows).all() and len(rows):
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        found = [kmeans(rows, int(truth.max()) + 1, seed=seed)[0] for seed in SEEDS]
        scores = {
            "ari": [adjusted_rand_score(truth, clusters) for clusters in found],
            "v_measure": [v_measure_score(truth, clusters) for clusters in found],
        }
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return means | {f"{name}_sd": float(np.std(values)) for name, values in scores.items()}


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
