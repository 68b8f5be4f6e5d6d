"""Correlations of cosines with graded judgements (STS), as mteb and scipy define them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from babeltune.evaluation.knn import unit

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from babeltune.evaluation.knn import Vectors


def paired_cosine(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    """[n] cosine of each row of `left` with the same row of `right`; exactly 1 for equal vectors, as scikit-learn's."""
    x, y = unit(left).double(), unit(right).double()
    result: NDArray[np.float64] = (1 - 0.5 * (x - y).square().sum(dim=1)).cpu().numpy()
    return result


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation with tie-averaged ranks, as `scipy.stats.spearmanr`.

    NaN where it is undefined: fewer than two values, a constant input, or a NaN among them.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim == b.ndim == 1 and (np.isnan(a).any() or np.isnan(b).any()):
        return float("nan")
    return pearson(_ranks(a) if a.ndim == 1 else a, _ranks(b) if b.ndim == 1 else b)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation, as `scipy.stats.pearsonr`; NaN where it is undefined, as in `spearman`."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"shapes {a.shape} and {b.shape}: a correlation compares two rows of equal length")
    if len(a) < 2 or np.isnan(a).any() or np.isnan(b).any() or a.min() == a.max() or b.min() == b.max():
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] ranks from 1, equal values sharing the mean of theirs."""
    _, where, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[where]
    return ranks
