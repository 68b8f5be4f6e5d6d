"""Correlations of cosines with graded judgements (STS): scipy's, which are mteb's too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.evaluation.knn import UNDEFINED, unit

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from babeltune.evaluation.knn import Vectors


def paired_cosine(left: Vectors, right: Vectors) -> NDArray[np.float64]:
    """[n] cosine of each row of `left` with the same row of `right`; exactly 1 for equal vectors, as scikit-learn's;
    `UNDEFINED` if one of both is a zero vector."""
    x, y = unit(left).double(), unit(right).double()
    cosine = 1 - 0.5 * (x - y).square().sum(dim=1)
    result: NDArray[np.float64] = cosine.masked_fill(~(x.any(dim=1) & y.any(dim=1)), UNDEFINED).cpu().numpy()
    return result


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: `scipy.stats.spearmanr`, which lets ties share their mean rank.

    NaN if it is undefined: fewer than two values, a constant input, or a NaN among them."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, x, y)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation: `scipy.stats.pearsonr`; NaN if it is undefined, as in `spearman`."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, x, y)


def _correlation(correlate: Callable[..., Any], x: ArrayLike, y: ArrayLike) -> float:
    """The statistic without scipy's warnings: the caller says what a NaN means for a score."""
    from scipy.stats import DegenerateDataWarning

    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"shapes {a.shape} and {b.shape}: a correlation compares two rows of equal length")
    if len(a) < 2:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        return float(correlate(a, b).statistic)
