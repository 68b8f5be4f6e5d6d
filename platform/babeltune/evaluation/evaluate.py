"""Scores a student on named dev or test sets: text ids in, metrics by name out.

Every distinct sentence over all tasks is encoded once. A metric is named `<prefix>/<task>/<subset>/<metric>`, and
the mean over a task's subsets `<prefix>/<task>/<metric>`, so that an objective can always name either. Rates run
from 0 to 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.prepared import IdTask, TextTask
from babeltune.errors import DataError, TrainingError
from babeltune.evaluation import metrics
from babeltune.evaluation.kmeans import agreement

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

MACRO = ("accuracy", "xsim_error", "spearman", "ari", "ari_sd")
"""Metrics that are averaged over the subsets of a task, each subset counting the same."""


def evaluate(
    tasks: Sequence[IdTask], embed: Callable[[NDArray[np.int64]], Rows], prefix: str = "dev"
) -> dict[str, float]:
    """The metrics of all tasks; `embed` gets the distinct text ids, ascending, in one call and returns [ids, dim].

    Bitext: `accuracy_forward` (left to right), `accuracy_backward`, and their mean `accuracy`; `xsim_error`, the mean
    of both directions with the ratio margin, in text mode. `xsim_flipped` appears only where the ratio margin is not
    meaningful (neighbourhoods of non-positive mean cosine), with the share of candidates concerned.
    STS: `spearman` of the cosines with the grades.
    Clustering: `ari`, the adjusted Rand index of k-means and the labels, mean over `kmeans.SEEDS`; `ari_sd`, its
    standard deviation. `<prefix>/mean_cosine` is that of different texts, of all tasks.

    Raises `TrainingError` with the metric's name when one is NaN, and `DataError` when two tasks share a name.
    """
    if not tasks:
        return {}
    _check_names(tasks)
    ids = np.unique(np.concatenate([np.asarray(side, dtype=np.int64) for t in tasks for side in (t.left, t.right)]))
    vectors = np.asarray(embed(ids), dtype=np.float32)
    if len(vectors) != len(ids):
        raise TrainingError(f"{len(vectors)} vectors came back for {len(ids)} texts; one per text id is needed")
    scores: dict[str, float] = {}
    per_task: dict[str, list[float]] = defaultdict(list)
    for task in tasks:
        left, right = (vectors[np.searchsorted(ids, np.asarray(side, np.int64))] for side in (task.left, task.right))
        for metric, value in _SCORERS[task.kind](task, left, right).items():
            scores[f"{prefix}/{task.name}/{task.subset}/{metric}"] = value
            if metric in MACRO:
                per_task[f"{prefix}/{task.name}/{metric}"].append(value)
    scores |= {name: math.fsum(values) / len(values) for name, values in per_task.items()}
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


def _bitext(task: IdTask, left: Rows, right: Rows) -> dict[str, float]:
    matches = metrics.match(left, right, task.k)
    turned = matches.turned()
    forward, backward = metrics.accuracy(matches.forward), metrics.accuracy(matches.backward)
    scores = {
        "accuracy": (forward + backward) / 2,
        "accuracy_forward": forward,
        "accuracy_backward": backward,
        "xsim_error": (metrics.xsim(matches, task.right) + metrics.xsim(turned, task.left)) / 2,
    }
    flipped = (metrics.share_of_flipped_margins(matches) + metrics.share_of_flipped_margins(turned)) / 2
    return scores | ({"xsim_flipped": flipped} if flipped else {})


def _sts(task: IdTask, left: Rows, right: Rows) -> dict[str, float]:
    return {"spearman": metrics.spearman(task.scores, metrics.paired_cosine(left, right))}


def _clustering(task: IdTask, texts: Rows, _: Rows) -> dict[str, float]:
    mean, deviation = agreement(texts, task.labels)
    return {"ari": mean, "ari_sd": deviation}


_SCORERS: dict[str, Callable[[IdTask, Rows, Rows], dict[str, float]]] = {
    "bitext": _bitext,
    "sts": _sts,
    "clustering": _clustering,
}


def _check_names(tasks: Sequence[IdTask]) -> None:
    names = [(task.name, task.subset) for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"two tasks are named {'/'.join(name)!r}; give one of them another name")


def _check_numbers(scores: dict[str, float], vectors: Rows) -> None:
    for name, value in scores.items():
        if math.isnan(value):
            finite = bool(np.isfinite(vectors).all())
            reason = "all vectors or all grades are alike" if finite else "some sentence vectors are not finite"
            raise TrainingError(f"metric {name!r} is NaN: {reason}, so this trial has no score")
