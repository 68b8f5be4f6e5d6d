"""Whether two models that scored the same items differ by more than chance. Pure numpy: arrays in, numbers out.

Everything is paired: item i is the same sentence for both models, so what makes it hard cancels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

CELLS = 1 << 22
"""Counts of drawn items held at once (float64: 32 MB)."""
DRAWN = 200_000_000
"""Items drawn for one comparison, over all draws, unless more are asked for."""

Statistic = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Makes [draws], the statistic of every draw, from [draws, items], how often each draw holds each item."""


def sign_test(differences: ArrayLike) -> float:
    """The exact two-sided p of McNemar's test (1947) on [items] differences. If the models are equally good, the items
    that only one of them got right are heads or tails of a fair coin.

    A sentence whose two directions are judged together has a difference of -1, -0.5, 0, 0.5 or 1 and counts for the
    model that got more of them right. Its directions are not independent; sentences are.
    """
    values = np.asarray(differences, dtype=np.float64)
    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    trials = wins + losses
    k = np.arange(1, min(wins, losses) + 1)
    coefficients = np.cumsum([0.0, *np.log((trials - k + 1) / k)])  # log C(trials, k)
    return min(1.0, 2 * float(np.exp(coefficients - trials * math.log(2)).sum()))


def draws(items: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """[some, items] how often each item is in each bootstrap draw of `items` items with replacement, `resamples` in
    all.

    The counts depend on the number of items and the seed alone, so that subsets of one length are drawn jointly. Rows
    that translate one another stay together. For unrelated rows it makes no difference.
    """
    generator = np.random.default_rng([seed, items])
    step = max(1, CELLS // max(1, items))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        chosen = generator.integers(items, size=(count, items)) + np.arange(count)[:, None] * items
        yield np.bincount(chosen.ravel(), minlength=count * items).reshape(count, items).astype(np.float64)


def mean_of(values: ArrayLike) -> Statistic:
    """The mean of [items] values in each draw."""
    array = np.asarray(values, dtype=np.float64)
    return lambda counts: counts @ array / len(array)


def spearman_of(x: ArrayLike, y: ArrayLike) -> Statistic:
    """Spearman's rank correlation of [items] x and y in each draw, ties sharing their mean rank; NaN for a constant.

    A draw needs no sorting: the rank of a value is how many drawn items lie below it and half of those that tie.
    """
    orders = [_order(x), _order(y)]

    def statistic(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = counts.sum(axis=1)
        a, b = (_ranks(counts, *order) - (total[:, None] + 1) / 2 for order in orders)
        covariance = np.einsum("di,di,di->d", counts, a, b)
        scale = np.sqrt(np.einsum("di,di,di->d", counts, a, a) * np.einsum("di,di,di->d", counts, b, b))
        with np.errstate(invalid="ignore", divide="ignore"):
            found: NDArray[np.float64] = covariance / scale
        return found

    return statistic


def _order(values: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """The items by ascending value, where each group of equal values starts, and the group of every item."""
    array = np.asarray(values, dtype=np.float64)
    _, group = np.unique(array, return_inverse=True)
    order = np.argsort(array, kind="stable")
    return order, np.flatnonzero(np.r_[True, np.diff(group[order]) > 0]), group


def _ranks(
    counts: NDArray[np.float64], order: NDArray[np.intp], starts: NDArray[np.intp], group: NDArray[np.intp]
) -> NDArray[np.float64]:
    """[draws, items] the tie-averaged rank of each item in each draw."""
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: NDArray[np.float64] = (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]
    return ranks


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Challenger minus champion."""

    value: float
    low: float
    high: float
    """The percentile bootstrap interval (Efron 1979)."""
    p: float
    """Two-sided: twice the smaller share of draws on one side of zero."""
    floor: bool
    """No draw lies on the other side of zero, so p is only known to be below what so many draws can tell."""


def paired_bootstrap(
    parts: Sequence[tuple[int, Statistic]], *, confidence: float, resamples: int, seed: int = 0
) -> list[Difference]:
    """The difference of every part and, last, of their mean; a part is a number of items and the statistic that is a
    difference of the two models on them."""
    values: list[float] = []
    drawn: list[NDArray[np.float64]] = []
    by_length: dict[int, list[int]] = {}
    for index, (items, statistic) in enumerate(parts):
        values.append(float(statistic(np.ones((1, items)))[0]))
        drawn.append(np.empty(resamples))
        by_length.setdefault(items, []).append(index)
    for items, indices in by_length.items():
        start = 0
        for counts in draws(items, resamples, seed):
            for index in indices:
                drawn[index][start : start + len(counts)] = parts[index][1](counts)
            start += len(counts)
    return [
        _difference(value, found, confidence)
        for value, found in zip(
            [*values, math.fsum(values) / len(values)], [*drawn, np.mean(drawn, axis=0)], strict=True
        )
    ]


def _difference(value: float, drawn: NDArray[np.float64], confidence: float) -> Difference:
    drawn = drawn[np.isfinite(drawn)]  # a draw of one item repeated has no correlation
    if not len(drawn):
        return Difference(value=value, low=-math.inf, high=math.inf, p=1.0, floor=False)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (side + 1) / (len(drawn) + 1))
    return Difference(value=value, low=float(low), high=float(high), p=p, floor=side == 0)


def enough_draws(alpha: float, items: int, least: int) -> int:
    """How many draws of so many items in all resolve the level alpha. 40 / alpha leave 20 beyond each limit of the
    interval. No more than can be drawn in a minute, and at least as many as were asked for."""
    return max(least, min(math.ceil(40 / alpha), DRAWN // items))


def score_interval(differences: ArrayLike, steps: Sequence[float], *, confidence: float) -> tuple[float, float]:
    """The interval of the mean of [items] differences, each 0 or plus or minus one of `steps`.

    It accounts for few items. Without any difference it is about 0 ± z² / items (the rule of three), where a
    bootstrap of the items finds no width at all. The mean is the sum of the shares of items with each difference,
    times the difference. A share's limits are Wilson's (1927), and their distances from the share add up in squares
    (Newcombe 1998, method 10; Zou and Donner 2008). The shares' covariance is left out: it counts where many items
    differ, and there the bootstrap is right.
    """
    values = np.asarray(differences, dtype=np.float64)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    below, above = 0.0, 0.0
    for step in steps:
        gained, lost = (_wilson(float((values == sign * step).mean()), len(values), z) for sign in (1, -1))
        below += step**2 * (gained[0] ** 2 + lost[1] ** 2)
        above += step**2 * (gained[1] ** 2 + lost[0] ** 2)
    mean = float(values.mean())
    return max(-1.0, mean - math.sqrt(below)), min(1.0, mean + math.sqrt(above))


def _wilson(share: float, items: int, z: float) -> tuple[float, float]:
    """How far the limits of Wilson's score interval are below and above the share."""
    middle = (share + z**2 / (2 * items)) / (1 + z**2 / items)
    half = z / (1 + z**2 / items) * math.sqrt(share * (1 - share) / items + (z / (2 * items)) ** 2)
    return share - max(0.0, middle - half), min(1.0, middle + half) - share


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """The p-values corrected for their number (Holm 1979): at most a share alpha of families has a false one below."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = largest
    return corrected


# --- The best of many ----------------------------------------------------------------------------------------------


@functools.cache
def expected_maximum(n: int) -> float:
    """The mean of the largest of n standard normal draws: by so many standard errors the best of n equally good trials
    looks better than it is (10: 1.54, 50: 2.25)."""
    x = np.linspace(0, 9, 2001)
    share = np.array([NormalDist().cdf(value) for value in x])
    # A mean is the integral of 1 - F over the positive numbers minus that of F over the negative ones; F is share ** n.
    return float(np.trapezoid(1 - share**n - (1 - share) ** n, x))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the number of the best of several trials is worth."""

    metric: str
    value: float
    among: int
    error: float
    """Standard error of one trial's value."""
    inflation: float
    """What the best of so many equally good trials gains by luck alone, in the metric's unit."""
    shrunken: float
    """The value drawn towards the mean of all trials by what their spread owes to chance."""


def selection(
    metric: str,
    value: float,
    values: Sequence[float],
    error: float,
    *,
    among: int | None = None,
    goal: Literal["maximize", "minimize"] = "maximize",
) -> Selection:
    """The best `value` of all finished trials' `values`, each with that standard error.

    It was chosen `among` as many trials or, with those that did not finish, more. The shrunken value of k trials is
    Efron and Morris's (1975), mean + (1 - (k - 3) / (k - 1) · error² / variance) · (value - mean), the factor at
    least 0. Fewer than four trials do not show their spread, and the inflation is taken back.
    """
    among = among or len(values)
    inflation = expected_maximum(among) * error if among > 1 else 0.0
    shrunken = value - inflation if goal == "maximize" else value + inflation
    if (k := len(values)) >= 4:
        mean, variance = float(np.mean(values)), float(np.var(values, ddof=1))
        kept = max(0.0, 1 - (k - 3) / (k - 1) * error**2 / variance) if variance else 0.0
        shrunken = mean + kept * (value - mean)
    return Selection(metric=metric, value=value, among=among, error=error, inflation=inflation, shrunken=shrunken)


def standard_error(metric: str, value: float, items: int) -> float | None:
    """That of a share of items (accuracy, error) or of a rank correlation (Bonett and Wright 2000); None for another
    metric or too few items."""
    kind = metric.rpartition("/")[2]
    if items > 3 and kind == "spearman" and -1 <= value <= 1:
        return (1 - value**2) * math.sqrt((1 + value**2 / 2) / (items - 3))
    if items > 0 and kind.startswith(("accuracy", "xsim_error")) and 0 <= value <= 1:
        return math.sqrt(value * (1 - value) / items)
    return None
