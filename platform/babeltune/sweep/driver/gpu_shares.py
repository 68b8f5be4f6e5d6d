"""The share of a GPU that a trial needs (`gpus_per_worker: auto`), measured before the search."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import ray
import torch

from babeltune.data.prepared import Prepared
from babeltune.errors import MethodError, TrainingError
from babeltune.method import trial_context
from babeltune.planning.parameters import of_method, split_name
from babeltune.planning.space import combinations, make_trial
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep, Trial, with_fitted
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import Count, Progress, size, uncounted
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.workers.tasks import with_progress

MEMORY_KEYS = ("method", "training.global_batch", "training.chunk", "training.precision", "training.batch_parts")
"""Settings that decide, beside the student's and the method's, how much memory a step takes."""
MOST_TRIALS = 32  # at most this many kinds of trials are measured; it takes some seconds each


def with_gpu_share(
    cluster: Cluster,
    sweep: Sweep,
    prepared: Prepared,
    folder: SweepFolder,
    progress: Progress,
    follow: Callable[[Any, Count], Any],
    *,
    where: StorageLocation | None = None,
) -> Cluster:
    """The cluster with a share in place of `auto`: a worker trains the first steps of the trials that can be proposed
    on a GPU of its own. The arguments are those of `score_baselines`."""
    if cluster.gpus_per_worker != "auto":
        return cluster
    if cluster.workers > 1:  # NCCL does not connect workers on one GPU
        return replace(cluster, gpus_per_worker=cluster.gpus)
    trials = trials_by_memory(sweep)
    tell = partial(progress, "measuring the memory of trials")
    tell(0, len(trials))
    place = (where, f"sweeps/{folder.id}/{folder.prepared.name}")
    measuring = ray.remote(with_progress).options(num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus)
    used, share = follow(measuring.remote(*place, measured_share, trials, prepared), tell)
    each = f"the first steps of a trial take {size(used)}" if used else "the worker has no CUDA, or no trial trains"
    folder.note(f"measured: {each}; `gpus_per_worker: auto` is {share:g}")
    return replace(cluster, gpus_per_worker=share)


def trials_by_memory(sweep: Sweep) -> list[Trial]:
    """Trials of every combination of what decides their memory, ranges at either end; `MOST_TRIALS` of more."""
    names = [key for key in sweep.parameters if key in MEMORY_KEYS or of_method(key) or split_name(key)[0] == "student"]
    by_settings: dict[str, Trial] = {}
    for end in (0, 1):
        for params in combinations(sweep.parameters, names, end=end):
            with contextlib.suppress(MethodError):  # settings that this leaves out may mend it
                trial = make_trial(sweep, 0, params)
                numbers = dict.fromkeys(trial_context(trial.method, trial.config).fits, 1.0)  # all take as much
                by_settings[str(trial)] = with_fitted(trial, numbers)
    trials = list(by_settings.values())
    if len(trials) <= MOST_TRIALS:
        return trials
    return [trials[place] for place in np.linspace(0, len(trials) - 1, MOST_TRIALS).astype(int)]


def measured_share(trials: Sequence[Trial], prepared: Prepared, tell: Count = uncounted) -> tuple[int, float]:
    """The most bytes of this process' GPU for the first steps of a trial, and the share that has room for them. Without
    a GPU, or a trial that trains, it is 0 and a whole one. `tell` counts the trials."""
    if not torch.cuda.is_available():
        return 0, 1.0
    from babeltune.planning.calibration import gpu_share  # here, since the driver does without transformers

    device = torch.device("cuda")
    room = torch.cuda.get_device_properties(device).total_memory
    try:
        used = first_steps_bytes(trials, prepared, device, tell)
    except torch.OutOfMemoryError:  # that trial will fail, and the others may have all of the GPU
        used = room
    return used, gpu_share(used, room) if used else 1.0


def first_steps_bytes(
    trials: Sequence[Trial], prepared: Prepared, device: torch.device, tell: Count = uncounted
) -> int:
    """The most bytes of the device that the first steps of one of the trials take; 0 if the system does not say, or
    none of them trains. One that does not is passed over: its own failure will say why."""
    from babeltune.planning.calibration import peak_memory

    most = 0
    for done, trial in enumerate(trials, 1):
        with peak_memory(device) as peak, contextlib.suppress(TrainingError, MethodError):
            take_first_steps(trial, prepared, device)
        most = max(most, *peak, 0)
        tell(done, len(trials))
    return most


def take_first_steps(trial: Trial, prepared: Prepared, device: torch.device) -> None:
    """A function of its own, so that no name keeps the trial's weights while the next one begins."""
    from babeltune.training.compute import first_batches

    for batch in first_batches(trial, prepared, device):
        batch.step()
