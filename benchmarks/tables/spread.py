"""The distribution of the average target similarity: Tan et al. 2023, section 5.2 and the left of figure 4.

It depends on the text, its order and the queue, and not on the student. So a finished trial's batches are made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import normalize

from babeltune.method import trial_context
from babeltune.method.negative_queue import Queue
from babeltune.training.build import make_reader, make_schedule
from benchmarks.tables.drawing import panels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial

TITLE = "average target similarity"
SHARES = tuple(range(1, 100))  # percentiles that a record keeps
REACH = 3  # the density at a percentile is that between the percentiles so far below and above, fewer near the ends
Curves = Mapping[str, list[float]]  # row -> its percentiles


def target_similarities(trial: Trial, prepared: Prepared) -> NDArray[np.float32]:
    """Of each sentence that a trial of `laser3_co` saw, the mean cosine of its teacher vector and the queue's."""
    similarities = []
    context = trial_context(trial.method, trial.config)
    reader = make_reader(trial, prepared, torch.device("cpu"), context)
    schedule = make_schedule(trial, prepared, reader, context.needs)
    queue = Queue(context.needs.warm_up, prepared.teacher_dim)
    vectors, ids = reader.anchors(context.needs.warm_up, trial.seed)
    queue.push(normalize(vectors, dim=1), ids)
    for step in range(len(schedule)):
        anchors = np.asarray(reader.pairs[schedule.rows(step), 0], dtype=np.int64)
        vectors = normalize(reader.vectors(anchors), dim=1)
        similarities.append((vectors @ queue.candidates()[0].mean(0)).numpy())
        queue.push(vectors, torch.from_numpy(anchors))
    return np.concatenate(similarities)


def percentiles_of(trial: Trial, prepared: Prepared) -> list[float]:
    """The 1st to the 99th percentile of what `target_similarities` gives."""
    return [round(float(value), 6) for value in np.percentile(target_similarities(trial, prepared), SHARES)]


def density(percentiles: list[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places and the density there, from the distance of neighbouring percentiles."""
    values, at = np.asarray(percentiles), np.arange(1, len(percentiles) - 1)
    reach = np.minimum(np.minimum(at, at[::-1]), REACH)
    low, high = values[at - reach], values[at + reach]
    return (low + high) / 2, 2 * reach / 100 / np.maximum(high - low, 1e-9)


def draw_spread(curves: Curves, picture: Path) -> None:
    """The density of each row, with a mark at its median."""
    with panels(picture, 1, 3) as (_, (panel,)):
        for name, percentiles in curves.items():
            (line,) = panel.plot(*density(percentiles), label=name)
            panel.axvline(percentiles[SHARES.index(50)], color=line.get_color(), linestyle=":")
        panel.set(xlabel=TITLE, ylabel="density")
        panel.set_ylim(bottom=0)
        panel.legend()
