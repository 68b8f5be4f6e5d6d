"""Measures the temperatures that are `auto`, on batches of a trial's training text, from the teacher's stored vectors.

The driver calls it before a trial is sent to workers, which train with the numbers. Trials that differ in their seeds
alone have one temperature: the batches are the first ones of the trial's sampling with seed 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from babeltune.data.prepared import Prepared
from babeltune.errors import MethodError, TrainingError
from babeltune.method import OwnShare, trial_context
from babeltune.method.own_share import compared, fitted_temperature
from babeltune.schema.records import Sampling, Trial, with_fitted
from babeltune.training.build import make_reader, make_schedule

if TYPE_CHECKING:
    from torch import Tensor

COSINES = 1 << 22  # cosines that are looked at: 32 MB, and a second for large batches
BATCHES = 16  # the most batches that are looked at


@dataclass(frozen=True)
class LabelBatches:
    """Batches whose labels are measured. They are equal if their pairs and vectors are."""

    data: str  # the digest of what is prepared
    teacher: str | None
    pairs: int  # pairs of a batch, among which a row has its own one
    sampling: Sampling
    order: str
    trial: Trial = field(compare=False)
    prepared: Prepared = field(compare=False)

    def vectors(self, own_share: OwnShare) -> Iterator[Tensor]:
        """[pairs, teachers] the teacher's unit vectors of each batch."""
        count = max(1, min(BATCHES, COSINES // self.pairs**2))
        training = replace(self.trial.training, global_batch=self.pairs, pairs=self.pairs * count, compute=None)
        trial, prepared = replace(self.trial, training=training, seed=0), self.prepared
        context = trial_context(trial.method, trial.config)
        reader = make_reader(trial, prepared, torch.device("cpu"), context)
        schedule = make_schedule(trial, prepared, reader, context.needs)
        columns = {"source": 0, "target": 0 if prepared.copy_anchor else 1}
        for step in range(min(count, len(schedule))):
            ids = reader.pairs[schedule.rows(step)].astype("int64")
            yield compared([reader.vectors(ids[:, columns[side]]) for side in own_share.sides])


def candidates(trial: Trial, own_share: OwnShare) -> int:
    """Pairs among which a row of the trial has its own one: a queue and the pair, or a part of a batch."""
    return 1 + own_share.queue if own_share.queue else trial.training.global_batch // trial.training.batch_parts


def fit_temperatures(trial: Trial, prepared: Prepared) -> Trial:
    """The trial with numbers in place of `auto`. Raises `MethodError` for a share that cannot be had, and if thresholds
    leave nothing to measure."""
    context = trial_context(trial.method, trial.config)
    try:
        numbers = {name: _measure_share(_batches(trial, prepared, fit), fit) for name, fit in context.fits.items()}
    except TrainingError as error:
        raise MethodError(str(error)) from error
    return with_fitted(trial, numbers)


def _batches(trial: Trial, prepared: Prepared, own_share: OwnShare) -> LabelBatches:
    """The batches of a trial; for a queue such as hold pairs of all languages, as a queue does."""
    sampling = replace(trial.sampling, batches="mixed") if own_share.queue else trial.sampling
    return LabelBatches(
        data=prepared.digest,
        teacher=prepared.teacher,
        pairs=candidates(trial, own_share),
        sampling=sampling,
        order=trial_context(trial.method, trial.config).needs.order,
        trial=replace(trial, sampling=sampling),
        prepared=prepared,
    )


@lru_cache(maxsize=256)  # trials of one sweep ask for the same
def _measure_share(batches: LabelBatches, own_share: OwnShare) -> float:
    vectors = list(batches.vectors(own_share))
    return fitted_temperature(own_share, vectors, rows=max(1, COSINES // sum(map(len, vectors))))
