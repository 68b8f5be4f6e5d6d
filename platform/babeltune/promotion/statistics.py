"""Whether two models that scored the same items differ by more than chance. Pure numpy: arrays in, numbers out.

Everything is paired: item i is the same sentence for both models, so what makes it hard cancels."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from babeltune.data.prepared import Prepared
from babeltune.evaluation.distinct_rows import distinct_rows, tasks_behind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

CELLS = 1 << 22  # counts of drawn items held at once (float64: 32 MB)
MOST_ERRORS = 38.0  # standard errors beyond which a p is zero in float64
DRAWN = 200_000_000  # items drawn for one comparison, over all draws, unless more are asked for

Statistic = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Makes [draws], the statistic of every draw, from [draws, items], how often each draw holds each item."""


@dataclass(frozen=True, kw_only=True)
class GroupedDifferences:
    """[items] differences of one or several subsets whose items of equal number count once together."""

    sums: NDArray[np.float64]  # the sums of the differences over the subsets
    step: float  # the smallest difference that two models can have on an item


def mean_limits(rows: Sequence[GroupedDifferences], subsets: int, z: float) -> tuple[float, float]:
    """The interval of a mean over `subsets` subsets: the adjusted Wald interval of Bonett and Price (2012).

    Two items are added to each group, one that each model wins by a step. So few items, and models without any
    difference, have an interval of a width that fits. Each group's mean has the variance of its own rows."""
    middle = variance = 0.0
    for each in rows:
        items = len(each.sums) + 2
        mean = float(each.sums.sum()) / items
        middle += mean / subsets
        square = (float(np.square(each.sums).sum()) + 2 * each.step**2) / items
        variance += (square - mean**2) / items / subsets**2
    half_width = z * math.sqrt(max(0.0, variance))
    return middle - half_width, middle + half_width


def p_of(limits: Callable[[float], tuple[float, float]]) -> float:
    """The two-sided p of no difference: 1 minus the largest confidence at which the interval excludes zero.

    `limits` makes the interval that reaches z standard errors. p and interval therefore say the same."""

    def excludes(z: float) -> bool:
        low, high = limits(z)
        return low > 0 or high < 0

    below, above = 0.0, MOST_ERRORS
    while above - below > 1e-6:
        middle = (below + above) / 2
        below, above = (middle, above) if excludes(middle) else (below, middle)
    return math.erfc(below / math.sqrt(2))


def errors_of(confidence: float) -> float:
    """How many standard errors a normal interval of this confidence reaches to each side."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def draws(items: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """[some, items] how often each item is in each bootstrap draw of `items` items with replacement, `resamples` in
    all.

    The counts depend on the number of items and the seed alone, so that subsets of one length are drawn jointly. Rows
    that translate one another stay together. For unrelated rows it makes no difference."""
    generator = np.random.default_rng([seed, items])
    step = max(1, CELLS // max(1, items))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        chosen = generator.integers(items, size=(count, items)) + np.arange(count)[:, None] * items
        yield np.bincount(chosen.ravel(), minlength=count * items).reshape(count, items).astype(np.float64)


def spearman_of(x: ArrayLike, y: ArrayLike) -> Statistic:
    """Spearman's rank correlation of [items] x and y in each draw, ties sharing their mean rank; NaN for a constant.

    A draw needs no sorting: the rank of a value is how many drawn items lie below it and half of those that tie."""
    orders = [_order(x), _order(y)]

    def statistic(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = counts.sum(axis=1)
        a, b = (_ranks(counts, *order) - (total[:, None] + 1) / 2 for order in orders)
        covariance = np.einsum("di,di,di->d", counts, a, b)
        scale = np.sqrt(np.einsum("di,di,di->d", counts, a, a) * np.einsum("di,di,di->d", counts, b, b))
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation: NDArray[np.float64] = covariance / scale
        return correlation

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
    high: float  # the percentile bootstrap interval (Efron 1979). Without a limit where so few draws cannot tell one.
    p: float
    """Two-sided: twice the smaller share of draws on one side of zero, which counts the one that was seen. It is at
    most 1 - confidence exactly if the interval excludes zero."""


def paired_bootstrap(
    parts: Sequence[tuple[int, Statistic]],
    *,
    confidence: float,
    joint: float | None = None,
    resamples: int,
    seed: int = 0,
) -> list[Difference]:
    """The difference of every part and, last, of their mean; a part is a number of items and the statistic that is a
    difference of the two models on them. `joint` is the confidence of the mean's interval, if another."""
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
    differences = [_difference(value, resampled, confidence) for value, resampled in zip(values, drawn, strict=True)]
    mean = _difference(math.fsum(values) / len(values), np.mean(drawn, axis=0), joint or confidence)
    return [*differences, mean]


def _difference(value: float, drawn: NDArray[np.float64], confidence: float) -> Difference:
    drawn = np.sort(drawn[np.isfinite(drawn)])  # a draw of one item repeated has no correlation
    beyond = int((1 - confidence) / 2 * (len(drawn) + 1))  # draws from a limit outwards
    low, high = (float(drawn[beyond - 1]), float(drawn[-beyond])) if beyond else (-math.inf, math.inf)
    side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return Difference(value=value, low=low, high=high, p=min(1.0, 2 * (side + 1) / (len(drawn) + 1)))


def enough_draws(alpha: float, items: int, least: int) -> int:
    """The number of bootstrap draws for an interval of level `alpha` over `items`: at least `least`.

    40 / alpha draws leave 20 beyond each limit of the interval. There are no more than can be drawn in a minute."""
    return max(least, min(math.ceil(40 / alpha), DRAWN // items))


def score_limits(differences: ArrayLike, steps: Sequence[float], z: float) -> tuple[float, float]:
    """The interval of the mean of [items] differences, each 0 or plus or minus one of `steps`, to z standard errors.

    It accounts for few items. Without any difference it is about 0 ± z² / items (the rule of three), where a
    bootstrap of the items finds no width at all. The mean is the sum of the shares of items with each difference,
    times the difference. A share's limits are Wilson's (1927), and their distances from the share add up in squares
    (Newcombe 1998, method 10; Zou and Donner 2008). The shares' covariance is left out. It counts where many items
    differ, and there `mean_limits` are wider."""
    values = np.asarray(differences, dtype=np.float64)
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
    """The mean of the largest of n standard normal draws (10: 1.54, 50: 2.25).

    By that number of standard errors the best of n equally good trials looks better than it is."""
    x = np.linspace(0, 9, 2001)
    share = np.array([NormalDist().cdf(value) for value in x])
    # A mean is the integral of 1 - F over the positive numbers minus that of F over the negative ones; F is share ** n.
    return float(np.trapezoid(1 - share**n - (1 - share) ** n, x))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How much of the best trial's dev score may be luck, because it is the best of several."""

    metric: str
    value: float
    among: int
    error: float
    """Standard error of one trial's value."""
    inflation: float
    """The gain by luck of the best of equally good trials, in the unit of the metric."""
    shrunken: float
    """An estimate of the trial's true value: nearer to the mean of all trials, the more of their spread is chance."""

    def words(self, trial: str) -> str:
        """The same for somebody who chooses by the value."""
        return (
            f"{trial} is the best of {self.among} trials, so its {self.metric} is partly luck. "
            f"If all trials were equally good, the best would still look about {self.inflation:.4f} better, by chance. "
            f"A fair estimate of its true value is {self.shrunken:.4f}."
        )


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
    least 0. Fewer than four trials do not show their spread, and the inflation is taken back."""
    among = among or len(values)
    inflation = expected_maximum(among) * error if among > 1 else 0.0
    shrunken = value - inflation if goal == "maximize" else value + inflation
    if (k := len(values)) >= 4:
        mean, variance = float(np.mean(values)), float(np.var(values, ddof=1))
        share = max(0.0, 1 - (k - 3) / (k - 1) * error**2 / variance) if variance else 0.0
        shrunken = mean + share * (value - mean)
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


def error_of(metric: str, value: float, prepared: Prepared) -> float | None:
    """The standard error of a dev metric with this value; None for a metric whose error is not known."""
    whole = re.sub(r"^dim\d+/", "", metric)  # the rows of cut vectors are those of whole ones
    return standard_error(whole, value, distinct_rows(tasks_behind(whole, prepared.tasks)))
