"""Our gradients of a trial's first batch on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from babeltune.training.sampler import own_rows
from benchmarks.gpu.timing import DEVICE
from benchmarks.train import own_gradients
from benchmarks.work import start

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial


def gradients(trial: Trial, prepared: Prepared) -> dict[str, Tensor]:
    """Ours, of the first batch, which this process shares with the other ranks if there are some."""
    run = start(trial, prepared, DEVICE)
    rows, (rank, world) = run.steps.schedule.rows(0), (run.ranks.rank, run.ranks.world)
    run.train_step.backward(
        run.steps.reader.batch(own_rows(rows, rank, world), len(rows), first=rank * len(rows) // world)
    )
    return own_gradients(run)
