"""Verdicts on an ordering by seeds and test sentences, and the comparison of a table with a rerun.

Pure: numbers and records in, words out."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.stats import t

from benchmarks.tables.definition import MEGABYTES, PAIRS, START, Record

CONFIDENCE = 0.95  # confidence of both intervals
UNCHECKED = "no dev set of this kind checks the unequal learning rates"
ROUNDING = 2e-6  # differences of two means that come from the six digits of a record
NORMAL = 1.96  # standard errors on each side of the interval over test sentences
Outcome = Literal["holds", "fails", "undecided"]


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
    """The outcome for an ordering, and its reason."""

    outcome: Outcome
    why: str


def over_seeds(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean difference and Student's interval of it."""
    mean = statistics.fmean(differences)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    half *= statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def judge(ordering: Judged) -> Verdict:
    """An order holds, or fails, if the intervals over seeds and over test sentences both lie on one side of zero.

    If both rows are no better than the untrained student, there is nothing to order."""
    verdict = _judge(ordering)
    if ordering.unchecked and verdict.outcome != "undecided":
        return replace(verdict, why=f"{verdict.why}; {UNCHECKED}")
    return verdict


def _judge(ordering: Judged) -> Verdict:
    sign = -1 if ordering.smaller_is_better else 1
    floor = ordering.untrained
    if floor is not None and max(sign * ordering.better, sign * ordering.worse) <= sign * floor:
        return Verdict("undecided", "both rows are no better than the untrained student")
    mean, low, high = over_seeds([sign * value for value in ordering.differences])
    if ordering.sentence_error is None:
        return Verdict("undecided", "the sampling error of this metric is not known")
    reach = NORMAL * ordering.sentence_error
    widest = (min(low, mean - reach), max(high, mean + reach))
    if ordering.kind == "level":
        return _level(widest, ordering.margin)
    if (widest[0] > 0 or widest[1] < 0) and not all(sign * difference * mean > 0 for difference in ordering.searched):
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


def verdict(claim: Record, record: Record) -> Verdict:
    """The verdict on an ordering of a record."""
    better, worse = claim["values"]
    # The untrained student has no learning rate.
    rates = {row["name"]: row["learning_rate"] for row in record["rows"] if len(row["searched"]) > 1}
    rates_differ = len({rates[name] for name in (claim["better"], claim["worse"]) if name in rates}) > 1
    return judge(
        Judged(
            unchecked=not claim["searched"] and rates_differ,
            searched=tuple(claim["searched"]),
            better=better,
            worse=worse,
            differences=tuple(claim["differences"]),
            sentence_error=claim["sentence_error"],
            untrained=claim["untrained"],
            kind=claim["kind"],
            margin=claim["margin"],
            smaller_is_better="error" in claim["metric"],
        )
    )


def order_of(claim: Record, record: Record) -> str:
    better, worse = (record["start_name"] if claim[key] == START else claim[key] for key in ("better", "worse"))
    sign = "=" if claim["kind"] == "level" else "<" if "error" in claim["metric"] else ">"
    times = "" if claim["times"] == 1 else f"{claim['times']:g} × "
    return f"{better} {sign} {times}{worse}"


def table_of(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(value) for value in line)} |" for line in lines)


def mean_of(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def logged_of(metric: str, values: Sequence[float]) -> str:
    """Sizes, speeds and counts without a spread."""
    if metric not in (PAIRS, MEGABYTES) and not metric.startswith("model/"):
        return mean_of(values)
    return f"{statistics.fmean(values):,.{1 if metric == MEGABYTES else 0}f}"


def _texts(record: Record) -> dict[str, str]:
    """The digests of what was read. How it was stored is another matter, which a new version may change."""
    return {name: digest for name, digest in record["run"]["data"].items() if name != "prepared"}


def disagreements(rerun: Record, record: Record) -> list[str]:
    """The differences beyond those of the record's seeds. Empty if the table was reproduced.

    A row's new mean must lie in Student's 95 % interval of the record's seeds. The text must be the same."""
    problems = []
    if _texts(rerun) != _texts(record):
        problems.append("the text is not the same: the digests of the data differ")
    before = {row["name"]: row["values"] for row in record["rows"]}
    after = {row["name"]: row["values"] for row in rerun["rows"]}
    if before.keys() != after.keys():
        problems.append(f"only one of the two has the rows {', '.join(sorted(before.keys() ^ after.keys()))}")
    for name in before.keys() & after.keys():
        for metric in before[name].keys() & after[name].keys():
            _, low, high = over_seeds(before[name][metric])
            mean = statistics.fmean(after[name][metric])
            if not low - ROUNDING <= mean <= high + ROUNDING:
                problems.append(f"{name}, {metric}: {mean:.4f} is not between {low:.4f} and {high:.4f}")
    return sorted(problems)
