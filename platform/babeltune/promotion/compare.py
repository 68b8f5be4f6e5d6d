"""Champion against challenger: the same items, scored by both, and what the difference allows to say.

Pure but for the outcomes' vectors. An item is a sentence of a bitext (right or wrong in each direction), one with a
topic (right or wrong) or a graded pair (its cosine). A cell is one subset of a test, such as
`test/tatoeba/fra-eng/accuracy`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from babeltune.data.prepared import IdTask, TextTask
from babeltune.errors import plural
from babeltune.promotion.statistics import (
    Difference,
    GroupedDifferences,
    enough_draws,
    errors_of,
    holm,
    mean_limits,
    p_of,
    paired_bootstrap,
    score_limits,
    spearman_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.evaluation.evaluate import Lookup
    from babeltune.evaluation.knn import Matches
    from babeltune.promotion.statistics import Statistic
    from babeltune.schema.records import Promotion

Verdict = Literal["promote", "tie", "refuse"]
Conclusion = Literal["better", "worse", "undecided", "equal"]
"""Verdicts on the challenger. `equal`: no item differs. `undecided`: the difference may be chance."""
Outcomes = dict[str, dict[str, list[float]]]
"""Cell -> `forward` and `backward`, 1 if the sentence was found, `right`, 1 where its label was, or `cosine` of
every pair. An xSIM error's cell is 1 if the sentence was not found; nothing is decided by it."""
METRICS = {"bitext": "accuracy", "sts": "spearman", "transfer": "accuracy"}
"""The measures that are compared item by item, by kind of task. Others have no score of a single item."""
XSIM = "xsim_error"

STEPS = {"bitext": (0.5, 1.0), "transfer": (1.0,)}
"""The differences that two models can have on a sentence: in one or both of a bitext's directions; in the label."""


def outcomes(tasks: Sequence[IdTask], lookup: Lookup, prefix: str) -> Outcomes:
    """The result of every item, by the vectors of the tasks' texts."""
    from babeltune.evaluation import bitext, sts  # and with them torch, which who reads a decision does without

    by_task: Outcomes = {}
    for task in tasks:
        if task.kind not in METRICS:
            continue
        left, right = lookup.rows(task.left), lookup.right(task).rows(task.right[: len(task.left)])
        name = cell_name(task, prefix)
        if task.kind == "bitext":
            matches, rows = bitext.match(left, right, task.k, task.candidates), np.arange(len(left))
            sides = {"forward": matches.forward, "backward": matches.backward}
            by_task[name] = {side: (best.index[:, 0].cpu().numpy() == rows).tolist() for side, best in sides.items()}
            by_task[cell_name(task, prefix, XSIM)] = _xsim_errors(task, matches)
        elif task.kind == "transfer":
            head = lookup.head(task.fit or task)  # none if no metric is a number either
            labels = head(left) if head is not None else [""] * len(left)
            by_task[name] = {"right": [shown == label for shown, label in zip(labels, task.labels, strict=True)]}
        else:
            by_task[name] = {"cosine": sts.paired_cosine(left, right).tolist()}
    return by_task


def _xsim_errors(task: IdTask, matches: Matches) -> dict[str, list[float]]:
    from babeltune.evaluation import bitext

    in_text = task.compare == "text"
    ways = {
        "forward": (matches, task.right[: len(task.left)] if in_text else None),
        "backward": (matches.turned(), task.left if in_text else None),
    }
    return {way: bitext.xsim_errors(each, texts, task.margin).tolist() for way, (each, texts) in ways.items()}


def cell_name(task: IdTask | TextTask, prefix: str, metric: str | None = None) -> str:
    """The metric that a cell is a difference of; the kind's own one if none is named."""
    return f"{prefix}/{task.name}/{task.subset}/{metric or METRICS[task.kind]}"


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
    """The interval, on which the verdict rests. A subset's has the confidence that was asked for. The intervals of the
    means of two or three kinds hold jointly with it (Bonferroni)."""
    p: float
    """The two-sided p of no difference, of the interval's own procedure: at most 1 - confidence exactly where the
    interval excludes zero. A mean's is multiplied by the number of kinds, as its interval is joint."""
    corrected: float | None = None
    """A subset's p, corrected by Holm's method for the number of subsets. None in the mean of all."""
    differing: int
    """Items that came out differently."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The outcome of a challenger."""

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

    By dev sets the challenger was chosen among `among` trials, so there the confidence is Bonferroni's for that number.
    """
    alpha = (1 - rules.confidence) / (among if on == "dev" else 1)
    cells, overall = list[Cell](), list[Cell]()
    by_kind = [of_kind for kind in METRICS if (of_kind := [task for task in tasks if task.kind == kind])]
    for of_kind in by_kind:
        some, mean = _compared(both, of_kind, _Level(alpha=alpha, kinds=len(by_kind), draws=rules.resamples), on)
        cells += some
        overall.append(mean)
    corrected = holm({cell.name: cell.p for cell in cells})
    cells = [replace(cell, corrected=corrected[cell.name]) for cell in cells]
    if not cells:
        left_out = f"; {', '.join(contaminated)} is contaminated and decides nothing" if contaminated else ""
        why = f"no {on} set can be compared item by item with {name}{left_out}"
        advice = f"{why}; name {'another' if contaminated else 'a'} bitext, STS or transfer task in data.test"
        return Contest(verdict="tie", reasons=(advice,), champion=name, on=on)
    verdict, reasons = verdict_of(cells, overall, rules.margin, alpha)
    words = [f"compared with {name} on the {'sealed tests' if on == 'test' else 'dev sets'}", *reasons]
    if on == "dev":
        chosen = f"by which the best of {plural(among, 'trial')} was chosen"
        level = f"the confidence is therefore {1 - alpha:.4g} instead of {rules.confidence:g} (Bonferroni)"
        words.append(f"warning: without sealed tests the comparison is on dev sets, {chosen}; {level}")
    both_kinds = {"cells": tuple(cells), "overall": tuple(overall)}
    return Contest(verdict=verdict, reasons=tuple(words), champion=name, on=on, **both_kinds)


def verdict_of(
    cells: Sequence[Cell], overall: Sequence[Cell], margin: float, alpha: float
) -> tuple[Verdict, list[str]]:
    """`promote`: a mean is better beyond chance, and no subset can have lost more than the margin (its interval
    ends above it). `refuse`: a subset has lost more than the margin beyond chance (its whole interval is below), or a
    mean is worse and none better. `tie`: anything else.

    All subsets have to pass, so each is judged at the full level (an intersection-union test: Berger 1982). To call any
    one of them worse, their p-values are corrected for their number."""
    harmed = [cell for cell in cells if cell.high < -margin and (cell.corrected or 0.0) <= alpha]
    better = [mean for mean in overall if conclusion_of(mean) == "better"]
    worse = [mean for mean in overall if conclusion_of(mean) == "worse"]
    unclear = [cell for cell in cells if cell.low <= -margin]
    worst = min(cells, key=lambda cell: cell.low)
    if harmed:
        losses = [f"{words_of(cell)}: worse by more than the margin {margin:g}" for cell in harmed]
        return "refuse", [*losses, *map(words_of, overall)]
    if worse and not better:
        return "refuse", [conclusion_in_words(mean) for mean in worse]
    if better and not unclear:
        last = f"no subset lost more than the margin {margin:g}; the worst is {words_of(worst)}"
        return "promote", [conclusion_in_words(mean) for mean in better] + [last]
    if not better:
        return "tie", [*map(conclusion_in_words, overall), "the alias stays where it is"]
    why = f"a loss of more than the margin {margin:g} is not excluded; a larger test set or margin would tell"
    reasons = [*map(conclusion_in_words, better), *(f"{words_of(cell)}: {why}" for cell in unclear)]
    return "tie", [*reasons, "the alias stays where it is"]


def conclusion_of(cell: Cell) -> Conclusion:
    """The verdict on the challenger: it is beyond chance if the interval excludes zero."""
    if cell.differing == 0:
        return "equal"
    return "better" if cell.low > 0 else "worse" if cell.high < 0 else "undecided"


def conclusion_in_words(cell: Cell) -> str:
    words = {"undecided": "may be chance", "equal": "no item differs"}
    return f"{words_of(cell)}: {words.get(conclusion := conclusion_of(cell), conclusion)}"


def words_of(cell: Cell) -> str:
    return (
        f"{cell.name} {cell.champion:.4f} -> {cell.challenger:.4f}, difference {cell.difference:+.4f} "
        f"[{cell.low:+.4f}, {cell.high:+.4f}], p {cell.p:.2g}, {plural(cell.items, 'item')}"
    )


@dataclass(frozen=True, kw_only=True)
class _Level:
    """How sure the comparison has to be."""

    alpha: float  # 1 minus the confidence of a subset's interval
    kinds: int  # how many means are judged, one for each kind of task
    draws: int  # the least number of bootstrap draws

    @property
    def joint(self) -> float:
        """1 minus the confidence of a mean's interval."""
        return self.alpha / self.kinds


def _compared(
    both: tuple[Outcomes, Outcomes], tasks: Sequence[TextTask], level: _Level, on: str
) -> tuple[list[Cell], Cell]:
    """The cells of tasks of one kind, and their mean."""
    judge = _accuracies if METRICS[tasks[0].kind] == "accuracy" else _correlations
    cells, mean = judge(both, tasks, level, on)
    champion = np.mean([cell.champion for cell in cells])
    challenger = np.mean([cell.challenger for cell in cells])
    return cells, Cell(
        name=f"mean {tasks[0].kind} {METRICS[tasks[0].kind]}",
        items=sum(cell.items for cell in cells),
        champion=float(champion),
        challenger=float(challenger),
        difference=mean.value,
        low=mean.low,
        high=mean.high,
        p=min(1.0, level.kinds * mean.p),
        differing=sum(cell.differing for cell in cells),
    )


def _accuracies(
    both: tuple[Outcomes, Outcomes], tasks: Sequence[TextTask], level: _Level, on: str
) -> tuple[list[Cell], Difference]:
    """Right and wrong items."""
    cells: list[Cell] = []
    by_length: dict[int, list[NDArray[np.float64]]] = {}
    steps = STEPS[tasks[0].kind]
    for task in tasks:
        old, new = (_right(each[cell_name(task, on)]) for each in both)
        by_length.setdefault(len(old), []).append(differences := new - old)
        interval = _difference(float(differences.mean()), partial(_wider, differences, steps), level.alpha)
        scores, differing = (float(old.mean()), float(new.mean())), int(np.count_nonzero(differences))
        cells.append(_cell(task, on, scores, interval, differing))
    # Rows of equal number in subsets of one length may be one sentence in several languages: they count once together.
    rows = [GroupedDifferences(sums=np.sum(some, axis=0), step=steps[0]) for some in by_length.values()]
    value = float(np.mean([cell.difference for cell in cells]))
    return cells, _difference(value, partial(mean_limits, rows, len(cells)), level.joint)


def _wider(differences: NDArray[np.float64], steps: Sequence[float], z: float) -> tuple[float, float]:
    """The wider of two intervals of one subset, at each end: a few items that both got right exclude no loss."""
    wald = mean_limits([GroupedDifferences(sums=differences, step=steps[0])], 1, z)
    score = score_limits(differences, steps, z)
    return min(wald[0], score[0]), max(wald[1], score[1])


def _difference(value: float, limits: Callable[[float], tuple[float, float]], alpha: float) -> Difference:
    low, high = limits(errors_of(1 - alpha))
    return Difference(value=value, low=max(-1.0, low), high=min(1.0, high), p=p_of(limits))


def _correlations(
    both: tuple[Outcomes, Outcomes], tasks: Sequence[TextTask], level: _Level, on: str
) -> tuple[list[Cell], Difference]:
    """Graded pairs without zero vectors, by the bootstrap: a rank correlation is no mean of its items."""
    from babeltune.evaluation.knn import UNDEFINED

    parts: list[tuple[int, Statistic]] = []
    scores: list[tuple[float, float]] = []
    differing: list[int] = []
    for task in tasks:
        cosines = np.array([each[cell_name(task, on)]["cosine"] for each in both])
        defined = (cosines != UNDEFINED).all(axis=0)
        old, new = (spearman_of(np.asarray(task.scores)[defined], some[defined]) for some in cosines)
        once = np.ones((1, int(defined.sum())))
        parts.append((once.size, _minus(old, new)))
        scores.append((float(old(once)[0]), float(new(once)[0])))
        differing.append(int(np.count_nonzero(cosines[0] != cosines[1])))
    draws = enough_draws(level.joint, sum(items for items, _ in parts), level.draws)
    differences = paired_bootstrap(parts, confidence=1 - level.alpha, joint=1 - level.joint, resamples=draws)
    *by_task, mean = (replace(each, low=max(-2.0, each.low), high=min(2.0, each.high)) for each in differences)
    rows = zip(tasks, scores, by_task, differing, strict=True)
    return [_cell(task, on, both_scores, each, count) for task, both_scores, each, count in rows], mean


def _cell(task: TextTask, on: str, scores: tuple[float, float], difference: Difference, differing: int) -> Cell:
    return Cell(
        name=cell_name(task, on),
        items=len(task.left),
        champion=scores[0],
        challenger=scores[1],
        difference=difference.value,
        low=difference.low,
        high=difference.high,
        p=difference.p,
        differing=differing,
    )


def _minus(old: Statistic, new: Statistic) -> Statistic:
    return lambda counts: new(counts) - old(counts)


def _right(scores: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """[sentences] 1 if the label was right; the share of the two directions in which a translation was found."""
    share: NDArray[np.float64] = np.mean(list(scores.values()), axis=0)
    return share
