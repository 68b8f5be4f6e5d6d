"""Whether clusters of sentence vectors are the topics that people gave them: k-means, adjusted Rand index, V-measure.

k-means and the two scores are scikit-learn's. Pure functions of arrays, in float64 on the CPU and with seeds, so that
the same vectors score the same everywhere."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray

SEEDS = (0, 1, 2, 3, 4)  # one clustering each; a single one is noise (Li's aligner report compares differences of .005)
STARTS = 10  # initialisations of a clustering; the one with the smallest inertia counts (scikit-learn's `n_init`)


def agreement(vectors: NDArray[np.float32], labels: Sequence[str]) -> dict[str, float]:
    """`ari` and `v_measure` of the labels and of k-means with as many clusters as there are labels. k-means works on
    the unit vectors of `vectors` [n, d]. The figures are means over `SEEDS`, and with `_sd` standard deviations. NaN
    if a vector is not finite.

    The adjusted Rand index (Hubert & Arabie 1985) is 1 for equal partitions and 0 on average for random ones. The
    V-measure (Rosenberg & Hirschberg 2007) is the harmonic mean of homogeneity and completeness."""
    from sklearn.metrics import adjusted_rand_score, v_measure_score

    _, truth = np.unique(np.asarray(labels), return_inverse=True)
    rows = np.asarray(vectors, np.float64)
    scores: dict[str, list[float]] = {"ari": [math.nan], "v_measure": [math.nan]}
    if np.isfinite(rows).all() and len(rows):
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        clusterings = [kmeans(rows, int(truth.max()) + 1, seed=seed) for seed in SEEDS]
        scores = {
            "ari": [adjusted_rand_score(truth, clusters) for clusters in clusterings],
            "v_measure": [v_measure_score(truth, clusters) for clusters in clusterings],
        }
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return means | {f"{name}_sd": float(np.std(values)) for name, values in scores.items()}


def kmeans(rows: Float[NDArray[np.float64], "n d"], k: int, *, seed: int) -> Int[NDArray[np.int32], "n"]:
    """The cluster of each row: scikit-learn's `KMeans`, with k-means++ and the best of `STARTS` runs.

    One thread sums in one order, so that the same rows fall into the same clusters on every machine. Of rows that are
    all alike there are fewer clusters than `k`; scikit-learn warns of it, and the scores say it."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters: NDArray[np.int32] = KMeans(k, n_init=STARTS, random_state=seed).fit_predict(rows)
    return clusters
