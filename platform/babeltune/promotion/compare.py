"""Champion against challenger: the same items, scored by both, and what the difference allows to say.

Pure but for the outcomes' vectors. An item is a sentence of a bitext (right or wrong in each direction), one with a
topic (right or wrong) or a graded pair (its cosine). A cell is one subset of a test, such as
`test/tatoeba/fra-eng/accuracy`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from babeltune.data.prepared import IdTask, TextTask
from babeltune.evaluation import bitext, sts
from babeltune.promotion.statistics import (
    enough_draws,
    holm,
    mean_of,
    paired_bootstrap,
    score_interval,
    sign_test,
    spearman_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.evaluation.evaluate import Lookup
    from babeltune.promotion.statistics import Statistic
    from babeltune.schema.records import Promotion

Verdict = Literal["promote", "tie", "refuse"]
Outcomes = dict[str, dict[str, list[float]]]
"""Cell -> `forward` and `backward`, 1 where the sentence was found, `right`, 1 where its label was, or `cosine` of
every pair."""
METRICS = {"bitext": "accuracy", "sts": "spearman", "transfer": "accuracy"}
"""What is compared item by item, by kind of task. Others have no score of a single item."""

STEPS = {"bitext": (0.5, 1.0), "transfer": (1.0,)}
"""The differences that two models can have on a sentence: in one or both of a bitext's directions; in the label."""


def outcomes(tasks: Sequence[IdTask], lookup: Lookup, prefix: str) -> Outcomes:
    """What every item came out as, by the vectors of the tasks' texts."""
    found: Outcomes = {}
    for task in tasks:
        if task.kind not in METRICS:
            continue
        left, right = lookup.rows(task.left), lookup.right(task).rows(task.right[: len(task.left)])
        name = cell_name(task, prefix)
        if task.kind == "bitext":
            matches, own = bitext.match(left, right, k=1), np.arange(len(left))
            sides = {"forward": matches.forward, "backward": matches.backward}
            found[name] = {side: (best.index[:, 0].cpu().numpy() == own).tolist() for side, best in sides.items()}
        elif task.kind == "transfer":
            head = lookup.head(task.fit or task)  # none where no metric is a number either
            labels = head(left) if head is not None else [""] * len(left)
            found[name] = {"right": [own == label for own, label in zip(labels, task.labels, strict=True)]}
        else:
            found[name] = {"cosine": sts.paired_cosine(left, right).tolist()}
    return found


def cell_name(task: IdTask | TextTask, prefix: str) -> str:
    """The metric that a cell is a difference of."""
    return f"{prefix}/{task.name}/{task.subset}/{METRICS[task.kind]}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A difference, challenger minus champion, in one subset or, named by the metric alone, in the mean of all."""

    name: str
    items: int
    champion: float
    challenger: float
    difference: float
    low: float
    high: float
    """The bootstrap's interval at the confidence that was asked for. Of one subset of right and wrong items it is
    the wider of that and the score interval: a few items that both models got right exclude no loss."""
    p: float
    """The two-sided p. For a subset: McNemar's exact one of right and wrong items, or the bootstrap's for STS,
    corrected by Holm's method for the number of subsets. For a mean: the larger of both kinds, corrected for the
    number of metrics. If every draw of the bootstrap lies on one side of zero, it has no lower bound for p, and
    McNemar's is taken."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What became of a challenger."""

    verdict: Verdict
    reasons: tuple[str, ...]
    champion: str
    """The registered version, such as `models:/quickstart@champion (version 3)`."""
    on: Literal["test", "dev"]
    cells: tuple[Cell, ...] = ()
    overall: tuple[Cell, ...] = ()
    """The mean over all bitext subsets, over all STS subsets, and over all transfer subsets."""


def compare(
    both: tuple[Outcomes, Outcomes],
    tasks: Sequence[TextTask],
    rules: Promotion,
    *,
    name: str,
    on: Literal["test", "dev"],
    among: int = 1,
    contaminated: Collection[str] = (),
) -> Contest:
    """Compares the outcomes of champion and challenger on these tasks and decides; `contaminated` tests are not among
    them.

    On dev sets, by which the challenger was chosen `among` so many trials, the confidence is Bonferroni's for them.
    """
    alpha = (1 - rules.confidence) / (among if on == "dev" else 1)
    cells: list[Cell] = []
    overall: list[Cell] = []
    for kind in METRICS:
        if own := [task for task in tasks if task.kind == kind]:
            some, mean = _compared(both, own, rules, on, alpha)
            cells += some
            overall.append(mean)
    cells, overall = _corrected(cells), _corrected(overall)
    if not cells:
        left_out = f"; {', '.join(contaminated)} is contaminated and decides nothing" if contaminated else ""
        why = f"no {on} set can be compared item by item with {name}{left_out}"
        wanted = f"{why}; name {'another' if contaminated else 'a'} bitext, STS or transfer task in data.test"
        return Contest(verdict="tie", reasons=(wanted,), champion=name, on=on)
    verdict, reasons = verdict_of(cells, overall, rules.margin, alpha)
    words = [f"compared with {name} on the {'sealed tests' if on == 'test' else 'dev sets'}", *reasons]
    if on == "dev":
        words.append(
            f"warning: without sealed tests the comparison is on dev sets, by which the best of {among} trials was "
            f"chosen; the confidence is therefore {1 - alpha:.4g} instead of {rules.confidence:g} (Bonferroni)"
        )
    return Contest(
        verdict=verdict, reasons=tuple(words), champion=name, on=on, cells=tuple(cells), overall=tuple(overall)
    )


def verdict_of(
    cells: Sequence[Cell], overall: Sequence[Cell], margin: float, alpha: float
) -> tuple[Verdict, list[str]]:
    """`promote`: a mean is better beyond chance, and no subset can have lost more than the margin (its interval
    ends above it). `refuse`: a subset has lost more than the margin beyond chance (its whole interval is below), or a
    mean is worse and none better. `tie`: anything else.

    All subsets have to pass, so each is judged at the full level (an intersection-union test: Berger 1982). To call any
    one of them worse, their p-values are corrected for their number.
    """
    harmed = [cell for cell in cells if cell.high < -margin and cell.p <= alpha]
    better = [mean for mean in overall if mean.low > 0 and mean.p <= alpha]
    worse = [mean for mean in overall if mean.high < 0 and mean.p <= alpha]
    unclear = [cell for cell in cells if cell.low <= -margin]
    worst = min(cells, key=lambda cell: cell.low)
    means = [words_of(mean) for mean in overall]
    if harmed:
        return "refuse", [f"{words_of(cell)}: worse by more than the margin {margin:g}" for cell in harmed] + means
    if worse and not better:
        return "refuse", [f"{words_of(mean)}: worse" for mean in worse]
    if better and not unclear:
        last = f"no subset lost more than the margin {margin:g}; the worst is {words_of(worst)}"
        return "promote", [f"{words_of(mean)}: better" for mean in better] + [last]
    if not better:
        return "tie", [*(f"{mean}: not distinguishable" for mean in means), "the alias stays where it is"]
    held = [
        f"{words_of(cell)}: a loss of more than the margin {margin:g} is not excluded; "
        "a larger test set or margin would tell"
        for cell in unclear
    ]
    return "tie", [*(f"{words_of(mean)}: better" for mean in better), *held, "the alias stays where it is"]


def said_of(mean: Cell, confidence: float) -> Literal["better", "worse", "not distinguishable"]:
    """What may be said of the challenger: beyond chance where p and the interval agree."""
    if mean.p > 1 - confidence or mean.low <= 0 <= mean.high:
        return "not distinguishable"
    return "better" if mean.low > 0 else "worse"


def words_of(cell: Cell) -> str:
    return (
        f"{cell.name} {cell.champion:.4f} -> {cell.challenger:.4f}, difference {cell.difference:+.4f} "
        f"[{cell.low:+.4f}, {cell.high:+.4f}], p {cell.p:.2g}, {cell.items} items"
    )


@dataclass(frozen=True)
class _Subset:
    """Both models on one subset, before the bootstrap."""

    name: str
    items: int
    champion: float
    challenger: float
    difference: Statistic
    rows: NDArray[np.float64] | None
    """[items] differences of right and wrong items; None for a correlation."""
    exact: float | None
    """McNemar's p of these."""
    low: float = math.inf
    high: float = -math.inf
    """The score interval of these."""


def _subset(both: tuple[Outcomes, Outcomes], task: TextTask, on: str, alpha: float) -> _Subset:
    name = cell_name(task, on)
    if METRICS[task.kind] == "accuracy":
        old, new = (_right(each[name]) for each in both)
        low, high = score_interval(new - old, STEPS[task.kind], confidence=1 - alpha)
        means, difference, exact = (float(old.mean()), float(new.mean())), mean_of(new - old), sign_test(new - old)
        return _Subset(name, len(old), *means, difference, new - old, exact, low, high)
    statistics = [spearman_of(task.scores, each[name]["cosine"]) for each in both]
    once = np.ones((1, len(task.scores)))
    values = (float(statistics[0](once)[0]), float(statistics[1](once)[0]))
    return _Subset(name, len(task.scores), *values, _minus(*statistics), None, None)


def _compared(
    both: tuple[Outcomes, Outcomes], tasks: Sequence[TextTask], rules: Promotion, on: str, alpha: float
) -> tuple[list[Cell], Cell]:
    """The cells of tasks of one kind, and their mean; p-values as they are before any correction."""
    subsets = [_subset(both, task, on, alpha) for task in tasks]
    parts = [(each.items, each.difference) for each in subsets]
    resamples = enough_draws(alpha, sum(items for items, _ in parts), rules.resamples)
    *found, mean = paired_bootstrap(parts, confidence=1 - alpha, resamples=resamples)
    cells = [
        Cell(
            name=each.name,
            items=each.items,
            champion=each.champion,
            challenger=each.challenger,
            difference=one.value,
            low=min(one.low, each.low),
            high=max(one.high, each.high),
            p=one.p if each.exact is None else each.exact,
        )
        for each, one in zip(subsets, found, strict=True)
    ]
    p = mean.p
    if (rows := _summed(subsets)) is not None:
        p = max(0.0 if mean.floor else mean.p, sign_test(rows))
    return cells, Cell(
        name=f"mean {tasks[0].kind} {METRICS[tasks[0].kind]}",
        items=sum(cell.items for cell in cells),
        champion=float(np.mean([cell.champion for cell in cells])),
        challenger=float(np.mean([cell.challenger for cell in cells])),
        difference=mean.value,
        low=mean.low,
        high=mean.high,
        p=p,
    )


def _summed(subsets: Sequence[_Subset]) -> NDArray[np.float64] | None:
    """The differences of all subsets; None for correlations. Rows of equal number in subsets of one length may be one
    sentence in several languages: they count once together."""
    by_length: dict[int, list[NDArray[np.float64]]] = {}
    for each in subsets:
        if each.rows is not None:
            by_length.setdefault(each.items, []).append(each.rows)
    return np.concatenate([np.sum(some, axis=0) for some in by_length.values()]) if by_length else None


def _right(found: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """[sentences] 1 where the label was right; the share of the two directions in which a translation was found."""
    share: NDArray[np.float64] = np.mean(list(found.values()), axis=0)
    return share


def _minus(old: Statistic, new: Statistic) -> Statistic:
    return lambda counts: new(counts) - old(counts)


def _corrected(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their p-values corrected for their number."""
    corrected = holm({cell.name: cell.p for cell in cells})
    return [replace(cell, p=corrected[cell.name]) for cell in cells]
