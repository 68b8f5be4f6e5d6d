"""The clusters of a model's sentences, which promotion does not keep, and the adjusted Rand index of resampled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.prepared import TextTask
from babeltune.evaluation.clustering import SEEDS, kmeans
from babeltune.promotion.compare import Outcomes
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.promotion.statistics import Statistic

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARI = "ari"


def cluster_cell(task: TextTask) -> str:
    """The metric of a clustering task."""
    return f"test/{task.name}/{task.subset}/{ARI}"


def cluster_outcomes(folder: str, tasks: Sequence[TextTask]) -> Outcomes:
    """Cell -> seed of k-means -> the cluster of every sentence, by the model of this folder."""
    clustered = [task for task in tasks if task.kind == "clustering"]
    encode = encoder_of(folder) if clustered else None
    found: Outcomes = {}
    for task in clustered:
        assert encode is not None
        languages = [*task.left_languages] * (len(task.left) // len(task.left_languages))
        rows = np.asarray(encode(list(task.left), languages), np.float64)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        topics = len(set(task.labels))
        found[cluster_cell(task)] = {str(seed): kmeans(rows, topics, seed=seed).tolist() for seed in SEEDS}
    return found


def ari_of(labels: Sequence[str], clusters: Mapping[str, Sequence[float]]) -> Statistic:
    """The mean adjusted Rand index of the clusterings in each draw of sentences; the clusters are not made anew.

    Two copies of a drawn sentence are no pair, as they share their cluster in any case."""
    truth = _places(labels)
    statistics = [_index(truth, _places(some)) for some in clusters.values()]
    return lambda counts: np.mean([statistic(counts) for statistic in statistics], axis=0)


def _places(names: Sequence[object]) -> NDArray[np.float64]:
    """[items, groups] 1 where an item is in a group."""
    _, group = np.unique(np.asarray(names), return_inverse=True)
    return np.eye(int(group.max()) + 1)[group]


def _index(truth: NDArray[np.float64], found: NDArray[np.float64]) -> Statistic:
    both = np.einsum("ia,ib->iab", truth, found).reshape(len(truth), -1)

    def statistic(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        def pairs(groups: NDArray[np.float64]) -> NDArray[np.float64]:
            """Pairs of different items within the groups."""
            sums: NDArray[np.float64] = ((counts @ groups) ** 2 - counts**2 @ groups).sum(axis=1) / 2
            return sums

        together, a, b = pairs(both), pairs(truth), pairs(found)
        expected = a * b / pairs(np.ones((len(truth), 1)))
        with np.errstate(invalid="ignore", divide="ignore"):
            index: NDArray[np.float64] = (together - expected) / ((a + b) / 2 - expected)
        return index

    return statistic
