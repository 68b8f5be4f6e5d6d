"""Scores a student on named dev or test sets: text ids in, metrics by name out.

Every distinct sentence over all tasks is encoded once. A metric is named `<prefix>/<task>/<subset>/<metric>`; the mean
over a task's subsets `<prefix>/<task>/<metric>`, and over the subsets of a group of tasks `<prefix>/<group>/<metric>`,
so that an objective can name any of them. Rates run from 0 to 1.

`METRICS` says by the kind of task what can be an objective:

* bitext: `accuracy_forward` (left to right, mteb's direction: the other language to the anchor), `accuracy_backward`,
  and their mean `accuracy`; `f1`, mteb's main score, weighted over the predicted rows, forward; `xsim_error`, the mean
  of both directions, and over subsets the macro average; `xsim_error_pooled`, all errors over all rows of the task,
  which is LASER's average; `xsimpp_error`, forward, where there are changed sentences among the candidates.
  `xsim_flipped` appears only where a ratio margin is not meaningful (neighbourhoods of non-positive mean cosine), with
  the share of candidates concerned.
* mining: F1 by each of `bucc.RETRIEVALS`, at the threshold that is best on the task's `fit`; with `_oracle`, at the one
  that is best on the set itself.
* sts: `spearman` and `pearson` of the cosines with the grades.
* clustering: `ari` and `v_measure` of k-means and the labels, means over `kmeans.SEEDS`; `_sd`, standard deviations.
* transfer: `accuracy` and `macro_f1` of a linear head that has learnt the labels in one language.

`<prefix>/mean_cosine` is that of different texts, of all tasks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.prepared import IdTask, TextTask
from babeltune.errors import DataError, TrainingError
from babeltune.evaluation import bucc, linear_head, metrics, neighbours
from babeltune.evaluation.kmeans import agreement
from babeltune.evaluation.neighbours import Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

Scores = dict[str, float]

MINING = tuple(f"f1_{how}" for how in bucc.RETRIEVALS)
ORACLE = tuple(f"{metric}_oracle" for metric in MINING)
METRICS: dict[str, tuple[str, ...]] = {
    "bitext": ("accuracy", "accuracy_forward", "accuracy_backward", "f1", "xsim_error", "xsimpp_error"),
    "mining": (*MINING, *ORACLE),
    "sts": ("spearman", "pearson"),
    "clustering": ("ari", "v_measure"),
    "transfer": ("accuracy", "macro_f1"),
}
"""Of each subset, and averaged over the subsets of a task or group, each counting the same."""
POOLED = {"xsim_error": "xsim_error_pooled"}
"""Metrics that are also averaged over subsets by their rows."""
PARAMETERS, SPEED = "model/parameters", "model/sentences_per_second"
"""A model's size, layers that only training has left out, and how fast one worker encoded the sets, text ids in."""
SPREADS = ("ari_sd", "v_measure_sd")
"""Averaged like `METRICS`, and no objective."""


def evaluate(
    tasks: Sequence[IdTask],
    embed: Callable[[NDArray[np.int64]], Rows],
    prefix: str = "dev",
    *,
    look: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The metrics of all tasks; `embed` gets the distinct text ids, ascending, in one call and returns [ids, dim].

    `look` is called before each subset is scored; what it raises ends the evaluation. Raises `TrainingError` with the
    metric's name when one is NaN, and `DataError` when two tasks share a name.
    """
    if not tasks:
        return {}
    _check_names(tasks)
    ids = np.unique(np.fromiter((text for task in tasks for text in task.texts()), np.int64))
    vectors = np.asarray(embed(ids), dtype=np.float32)
    if len(vectors) != len(ids):
        raise TrainingError(f"{len(vectors)} vectors came back for {len(ids)} texts; one per text id is needed")
    lookup = Lookup(ids, vectors)
    scores: Scores = {}
    means: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for task in tasks:
        look()
        for metric, value in _SCORERS[task.kind](task, lookup).items():
            scores[f"{prefix}/{task.name}/{task.subset}/{metric}"] = value
            if metric in METRICS[task.kind] or metric in SPREADS:
                for name in filter(None, (task.name, task.group)):
                    means[f"{prefix}/{name}/{metric}"].append((value, len(task.left)))
    for name, values in means.items():
        scores[name] = math.fsum(value for value, _ in values) / len(values)
        place, _, metric = name.rpartition("/")
        if metric in POOLED:
            rows = sum(count for _, count in values)
            scores[f"{place}/{POOLED[metric]}"] = math.fsum(value * count for value, count in values) / rows
    scores[f"{prefix}/mean_cosine"] = metrics.mean_cosine(vectors)
    _check_numbers(scores, vectors)
    return scores


def evaluate_texts(
    tasks: Sequence[TextTask], encode: Callable[[list[str], list[str]], Rows], prefix: str = "test"
) -> dict[str, float]:
    """`evaluate` for tasks in plain text: `encode` gets every distinct text of each language once, in order of
    appearance, and the languages."""
    numbers: dict[tuple[str, str], int] = {}

    def number(text: str, language: str) -> int:
        return numbers.setdefault((text, language), len(numbers))

    numbered = [task.mapped(number) for task in tasks]
    return evaluate(numbered, lambda ids: encode(*map(list, zip(*numbers, strict=True))), prefix)


@dataclass
class Lookup:
    """The vectors of all texts, and what is made of them once for several subsets."""

    ids: NDArray[np.int64]
    vectors: Rows
    sides: dict[tuple[int, ...], Side] = field(default_factory=dict)
    heads: dict[tuple[tuple[int, ...], tuple[str, ...]], linear_head.Head | None] = field(default_factory=dict)

    def rows(self, texts: Sequence[int]) -> Rows:
        """[texts, dim] their vectors."""
        found: Rows = self.vectors[np.searchsorted(self.ids, np.asarray(texts, np.int64))]
        return found

    def side(self, texts: tuple[int, ...]) -> Side:
        """The same, ready to be compared; a language of a multi-way set is made ready once."""
        if texts not in self.sides:
            self.sides[texts] = neighbours.side(self.rows(texts))
        return self.sides[texts]

    def head(self, task: IdTask) -> linear_head.Head | None:
        """The linear head that has learnt a task's labels; one for all languages that are scored."""
        key = (task.left, task.labels)
        if key not in self.heads:
            self.heads[key] = linear_head.fit_head(self.rows(task.left), task.labels)
        return self.heads[key]


def _bitext(task: IdTask, lookup: Lookup) -> Scores:
    pairs = len(task.left)
    left, right = lookup.side(task.left), lookup.side(task.right[:pairs])
    matches = metrics.match(left, right, task.k)
    turned = matches.turned()
    forward, backward = metrics.accuracy(matches.forward), metrics.accuracy(matches.backward)
    in_text = task.compare == "text"
    there, back = (task.right, task.left) if in_text else (None, None)
    scores = {
        "accuracy": (forward + backward) / 2,
        "accuracy_forward": forward,
        "accuracy_backward": backward,
        "f1": metrics.weighted_f1(matches.forward),
        "xsim_error": (
            metrics.xsim(matches, there and there[:pairs], task.margin) + metrics.xsim(turned, back, task.margin)
        )
        / 2,
    }
    if len(task.right) > pairs:
        among_changed = neighbours.match(left, lookup.side(task.right), task.k)
        scores["xsimpp_error"] = metrics.xsim(among_changed, there, task.margin)
    flipped = (metrics.share_of_flipped_margins(matches) + metrics.share_of_flipped_margins(turned)) / 2
    return scores | ({"xsim_flipped": flipped} if flipped and task.margin == "ratio" else {})


def _mining(task: IdTask, lookup: Lookup) -> Scores:
    found = _mined(task, lookup)
    known = _mined(task.fit, lookup) if task.fit is not None else {}
    broken = not np.isfinite(lookup.vectors).all()
    scores: Scores = {}
    for how, pairs in found.items():
        own = bucc.fitted_threshold(pairs, task.gold)
        scores[f"f1_{how}_oracle"] = math.nan if broken else bucc.mining_f1(pairs, task.gold, own)
        if task.fit is not None:
            fitted = bucc.fitted_threshold(known[how], task.fit.gold)
            scores[f"f1_{how}"] = math.nan if broken else bucc.mining_f1(pairs, task.gold, fitted)
    return scores


def _mined(task: IdTask, lookup: Lookup) -> dict[str, bucc.Scored]:
    """Candidate pairs of rows: each text is searched for once, and none that its side repeats is a candidate."""
    lefts, rights = (tuple(dict.fromkeys(side)) for side in (task.left, task.right))
    rows = [{text: row for row, text in reversed(list(enumerate(side)))} for side in (task.left, task.right)]
    found = bucc.candidates(lookup.side(lefts), lookup.side(rights), task.k, task.margin)
    in_rows = {
        how: {(rows[0][lefts[i]], rows[1][rights[j]]): score for (i, j), score in pairs.items()}
        for how, pairs in found.items()
    }
    return {how: bucc.without_repeated(pairs, task.left, task.right) for how, pairs in in_rows.items()}


def _sts(task: IdTask, lookup: Lookup) -> Scores:
    cosines = metrics.paired_cosine(lookup.rows(task.left), lookup.rows(task.right))
    return {"spearman": metrics.spearman(task.scores, cosines), "pearson": metrics.pearson(task.scores, cosines)}


def _clustering(task: IdTask, lookup: Lookup) -> Scores:
    return agreement(lookup.rows(task.left), task.labels)


def _transfer(task: IdTask, lookup: Lookup) -> Scores:
    head = lookup.head(task.fit or task)
    rows = lookup.rows(task.left)
    if head is None or not np.isfinite(rows).all():
        return {"accuracy": math.nan, "macro_f1": math.nan}
    found = head(rows)
    return {"accuracy": linear_head.accuracy(task.labels, found), "macro_f1": linear_head.macro_f1(task.labels, found)}


_SCORERS: dict[str, Callable[[IdTask, Lookup], Scores]] = {
    "bitext": _bitext,
    "mining": _mining,
    "sts": _sts,
    "clustering": _clustering,
    "transfer": _transfer,
}


def _check_names(tasks: Sequence[IdTask]) -> None:
    for name, count in Counter((task.name, task.subset) for task in tasks).items():
        if count > 1:
            raise DataError(f"two tasks are named {'/'.join(name)!r}; give one of them another name")


def _check_numbers(scores: Scores, vectors: Rows) -> None:
    for name, value in scores.items():
        if math.isnan(value):
            finite = bool(np.isfinite(vectors).all())
            reason = "all vectors or all grades are alike" if finite else "some sentence vectors are not finite"
            raise TrainingError(f"metric {name!r} is NaN: {reason}, so this trial has no score")
