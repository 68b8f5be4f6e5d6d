"""How far the difference of two rows may lie from its true value because the test sentences are a sample.

Both rows are scored on the same sentences, so errors are those of paired differences, with the seeds averaged.
Clusters, which promotion does not keep, are made here; resampled ones have an adjusted Rand index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.prepared import TextTask
from babeltune.evaluation.clustering import SEEDS, kmeans
from babeltune.promotion.compare import XSIM, Outcomes, cell_name
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.statistics import Statistic, paired_bootstrap, spearman_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 400  # draws of a test set for the sampling error of a rank correlation or of clusters
SHARES, WAYS = ("accuracy", XSIM), ("forward", "backward")
"""Metrics that are shares of sentences, and the ends of their names in one direction of a bitext."""
ARI = "ari"
ONE_ERROR = 0.6827  # the confidence of an interval that reaches one standard error to each side


@dataclass(frozen=True)
class Scored:
    """One model on the sealed sets."""

    scores: dict[str, float]
    outcomes: Outcomes


def subsets_of(metric: str, tasks: Sequence[TextTask]) -> list[TextTask]:
    """The subsets whose mean a metric is, such as `test/tatoeba/accuracy` or `test/tatoeba/fra-eng/accuracy`."""
    _, name, *subset, _ = metric.split("/")
    return [task for task in tasks if task.name == name and subset in ([], [task.subset])]


def sampling_error(
    metric: str, tasks: Sequence[TextTask], better: Sequence[Scored], worse: Sequence[Scored], times: float = 1.0
) -> float | None:
    """The standard error of `better` minus `times` the `worse` row; each holds its seeds' scores.

    None if the outcomes of single sentences are not known."""
    subset_tasks, kind = subsets_of(metric, tasks), metric.rpartition("/")[2]
    way = next((way for way in WAYS if kind.endswith(f"_{way}")), None)
    of = kind.removesuffix(f"_{way}") if way else kind
    if not all(cell_name(task, "test", of) in scored.outcomes for task in subset_tasks for scored in (*better, *worse)):
        return None
    sides = ((1.0, better), (-times, worse))
    return _of_shares(subset_tasks, sides, of, way) if of in SHARES else _of_correlations(subset_tasks, sides)


Sides = Sequence[tuple[float, Sequence[Scored]]]


def _of_shares(tasks: Sequence[TextTask], sides: Sides, of: str, way: str | None) -> float:
    """Rows of equal number in subsets of one length may be one sentence in several languages, and count together."""
    by_length: dict[int, list[NDArray[np.float64]]] = {}
    for task in tasks:
        name = cell_name(task, "test", of)
        parts = [(by / len(side), scored.outcomes[name]) for by, side in sides for scored in side]
        rows = [by * np.mean([outcomes[way]] if way else list(outcomes.values()), axis=0) for by, outcomes in parts]
        by_length.setdefault(len(task.left), []).append(np.sum(rows, axis=0))
    sums = [np.sum(rows, axis=0) for rows in by_length.values()]
    return math.sqrt(sum(rows.var(ddof=1) / len(rows) for rows in sums)) / len(tasks)


def _of_correlations(tasks: Sequence[TextTask], sides: Sides) -> float:
    parts = [(len(task.left), _difference(task, sides)) for task in tasks]
    interval = paired_bootstrap(parts, confidence=ONE_ERROR, resamples=RESAMPLES)[-1]
    return (interval.high - interval.low) / 2


def _difference(task: TextTask, sides: Sides) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    parts = [(by / len(side), _statistic(task, scored)) for by, side in sides for scored in side]
    return lambda counts: np.sum([by * statistic(counts) for by, statistic in parts], axis=0)


def _statistic(task: TextTask, scored: Scored) -> Statistic:
    if task.kind == "clustering":
        return ari_of(task.labels, scored.outcomes[cluster_cell(task)])
    return spearman_of(task.scores, scored.outcomes[cell_name(task, "test")]["cosine"])


def cluster_cell(task: TextTask) -> str:
    """The metric of a clustering task."""
    return f"test/{task.name}/{task.subset}/{ARI}"


def cluster_outcomes(folder: str, tasks: Sequence[TextTask]) -> Outcomes:
    """Cell -> seed of k-means -> the cluster of every sentence, by the model of this folder."""
    clustered = [task for task in tasks if task.kind == "clustering"]
    encode = encoder_of(folder) if clustered else None
    outcomes: Outcomes = {}
    for task in clustered:
        assert encode is not None
        languages = [*task.left_languages] * (len(task.left) // len(task.left_languages))
        rows = np.asarray(encode(list(task.left), languages), np.float64)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        topics = len(set(task.labels))
        outcomes[cluster_cell(task)] = {str(seed): kmeans(rows, topics, seed=seed).tolist() for seed in SEEDS}
    return outcomes


def ari_of(labels: Sequence[str], clusters: Mapping[str, Sequence[float]]) -> Statistic:
    """The mean adjusted Rand index of the clusterings in each draw of sentences; the clusters are not made anew.

    Two copies of a drawn sentence are no pair, as they share their cluster in any case."""
    truth = _places(labels)
    statistics = [_index(truth, _places(clustering)) for clustering in clusters.values()]
    return lambda counts: np.mean([statistic(counts) for statistic in statistics], axis=0)


def _places(names: Sequence[object]) -> NDArray[np.float64]:
    """[items, groups] 1 if the item is in the group, else 0."""
    _, group = np.unique(np.asarray(names), return_inverse=True)
    return np.eye(int(group.max()) + 1)[group]


def _index(truth: NDArray[np.float64], clusters: NDArray[np.float64]) -> Statistic:
    joint = np.einsum("ia,ib->iab", truth, clusters).reshape(len(truth), -1)

    def statistic(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        def pairs(groups: NDArray[np.float64]) -> NDArray[np.float64]:
            """Pairs of different items within the groups."""
            sums: NDArray[np.float64] = ((counts @ groups) ** 2 - counts**2 @ groups).sum(axis=1) / 2
            return sums

        together, a, b = pairs(joint), pairs(truth), pairs(clusters)
        chance_level = a * b / pairs(np.ones((len(truth), 1)))
        with np.errstate(invalid="ignore", divide="ignore"):
            index: NDArray[np.float64] = (together - chance_level) / ((a + b) / 2 - chance_level)
        return index

    return statistic
