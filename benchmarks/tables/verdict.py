"""What the seeds and the test sentences allow to say of an ordering. Pure: numbers in, words out."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.stats import t

CONFIDENCE = 0.95  # confidence of both intervals
UNCHECKED = "no dev set of this kind checks the unequal learning rates"
NORMAL = 1.96  # standard errors on each side of the interval over test sentences
Said = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One ordering in one metric."""

    better: float  # the mean over seeds of the row that the paper has above
    worse: float
    differences: tuple[float, ...]  # the first minus `times` the second, by seed
    sentence_error: float | None  # the standard error of their mean that comes from the test sentences alone
    untrained: float | None  # none if rows below it may still be ordered
    searched: tuple[float, ...] = ()
    """The first row minus the second on dev, at the learning rate of either, for rows whose rates differ."""
    unchecked: bool = False  # the rows' learning rates differ, and no dev set has this kind of metric
    kind: Literal["above", "level"] = "above"
    margin: float = 0.0
    smaller_is_better: bool = False


@dataclass(frozen=True)
class Verdict:
    """What may be said, and why."""

    said: Said
    why: str


def over_seeds(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean difference and Student's interval of it."""
    mean = statistics.fmean(differences)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    half *= statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def judge(found: Judged) -> Verdict:
    """An order holds, or fails, if the intervals over seeds and over test sentences both lie on one side of zero.

    Where both rows are no better than the untrained student, nothing was learnt that could be ordered."""
    verdict = _judge(found)
    if found.unchecked and verdict.said != "undecided":
        return replace(verdict, why=f"{verdict.why}; {UNCHECKED}")
    return verdict


def _judge(found: Judged) -> Verdict:
    sign = -1 if found.smaller_is_better else 1
    floor = found.untrained
    if floor is not None and max(sign * found.better, sign * found.worse) <= sign * floor:
        return Verdict("undecided", "both rows are no better than the untrained student")
    mean, low, high = over_seeds([sign * value for value in found.differences])
    if found.sentence_error is None:
        return Verdict("undecided", "the sampling error of this metric is not known")
    reach = NORMAL * found.sentence_error
    widest = (min(low, mean - reach), max(high, mean + reach))
    if found.kind == "level":
        return _level(widest, found.margin)
    if (widest[0] > 0 or widest[1] < 0) and not all(sign * each * mean > 0 for each in found.searched):
        return Verdict("undecided", "the learning rates differ, and at equal rates the dev sets do not show this order")
    if widest[0] > 0 or widest[1] < 0:
        side = "above" if sign * mean > 0 else "below"  # as the differences are written
        return Verdict("holds" if widest[0] > 0 else "fails", f"both intervals lie {side} zero")
    by_seeds, by_sentences = low <= 0 <= high, abs(mean) <= reach
    causes = ["the seeds differ by more than the rows"] if by_seeds else []
    causes += ["the test set is too small for this difference"] if by_sentences else []
    return Verdict("undecided", " and ".join(causes))


def _level(widest: tuple[float, float], margin: float) -> Verdict:
    if -margin < widest[0] and widest[1] < margin:
        return Verdict("holds", f"both intervals lie within {margin:g} of zero")
    if widest[0] > margin or widest[1] < -margin:
        return Verdict("fails", f"both intervals lie more than {margin:g} from zero")
    return Verdict("undecided", f"the intervals hold differences below and above {margin:g}")
