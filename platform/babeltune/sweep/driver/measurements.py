"""Measures, before the first trial, what a sweep file leaves open: the temperatures that are `auto`, the rates by which
`training.compute` counts, and the share of a GPU that a trial needs (`gpus_per_worker: auto`)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import ray
import torch

from babeltune.data.prepared import Prepared
from babeltune.errors import MethodError, TrainingError
from babeltune.machine import processor
from babeltune.method import TrialContext, trial_context
from babeltune.planning.parameters import of_method, split_name
from babeltune.planning.space import combinations, configurations, default_params, make_trial
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep, Trial, with_fitted
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import Count, Progress, size, uncounted
from babeltune.sweep.state.folder import RATES, SweepFolder
from babeltune.sweep.workers.pool_settings import worker_threads
from babeltune.sweep.workers.tasks import fetched, with_progress

MEMORY_KEYS = ("method", "training.global_batch", "training.chunk", "training.precision", "training.batch_parts")
"""Settings that decide, beside the student's and the method's, how much memory a step takes."""
MOST_TRIALS = 32  # at most this many kinds of trials are measured; it takes some seconds each
DECIDING = ("training.global_batch", "training.batch_parts", "data.sampling.batches", "data.sampling.temperature")
"""Settings that decide which pairs are in a batch."""


def measure_temperatures(sweep: Sweep, prepared: Prepared, folder: SweepFolder) -> None:
    """Notes the `auto` temperatures in the driver's log: each that can be proposed, those of a range at its ends.

    Raises `MethodError` for a share that cannot be had, before the sweep costs anything."""
    noted = set[str]()
    for trial, context in _fitted_trials(sweep):
        from babeltune.training.own_share import candidates, fit_temperatures  # it loads transformers

        numbers = fit_temperatures(trial, prepared).fitted
        for name, fit in context.fits.items():
            share = f"{fit.share:g} of a label among {candidates(trial, fit)} pairs"
            noted.add(f"measured: {name} {numbers[name]:g} gives a row's own pair {share}")
    for words in sorted(noted):
        folder.note(words)


def _fitted_trials(sweep: Sweep) -> Iterator[tuple[Trial, TrialContext]]:
    """Trials with an `auto` temperature, of every combination of what decides it."""
    # Only students that can be proposed have tokens, and the batches of all of them are alike.
    student = {name: value for name, value in default_params(sweep).items() if name.startswith("student.")}
    for params, _, _ in configurations(sweep, DECIDING):
        trial = make_trial(sweep, 0, student | params)
        context = trial_context(trial.method, trial.config)
        if context.fits:
            yield trial, context


def measure_rates(sweep: Sweep, folder: SweepFolder, cluster: Cluster, poll: Callable[[], None]) -> None:
    """Has a worker measure the rates, while no trial trains, if the sweep needs them and its file does not say.

    An earlier sweep of the storage with workers of this kind has them already, and both count alike."""
    if sweep.budget.unit == "pairs" or sweep.training.rates is not None or folder.read(RATES) is not None:
        return
    task = ray.remote(num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus)(worker_rates)
    answer = task.remote(worker_threads(cluster.cpus_per_worker), earlier_rates(folder))
    record = fetched(answer, poll, seconds=cluster.progress_timeout)
    folder.write(RATES, record)
    operations, moved = record["rates"]
    folder.note(
        f"{'as in ' + record['of'] if 'of' in record else 'measured'}: a worker does {operations:.1f} thousand million "
        f"operations, or moves {moved:.1f} thousand million bytes, in a second"
    )


def earlier_rates(folder: SweepFolder) -> dict[str, dict[str, Any]]:
    """The rates that sweeps of the storage have by kind of worker, and the sweep that measured them."""
    records: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.path.parent.glob(f"*/{RATES}")):
        record = SweepFolder(path.parent).read(RATES) or {}
        if "worker" in record:
            records.setdefault(str(record["worker"]), {"of": path.parent.name, **record})
    return records


def worker_rates(threads: int, earlier: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The `measured_rates` of this device with this number of threads, or the earlier ones of such a worker."""
    from babeltune.training.compute import measured_rates  # here, since the driver does without

    torch.set_num_threads(threads)
    cuda = torch.cuda.is_available()
    worker = torch.cuda.get_device_name() if cuda else f"{processor()}, {threads} threads"
    if worker in earlier:
        return earlier[worker]
    return {"rates": measured_rates(torch.device("cuda" if cuda else "cpu")), "worker": worker}


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
    """The cluster with a measured share in place of `auto`. The arguments are those of `score_baselines`."""
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
