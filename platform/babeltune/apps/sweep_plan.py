"""Reads a sweep file for a cluster, and plans the sweep: its time and disk there, what its dev set can tell apart.

The command line and `babeltune.api` call it. Nothing here trains or writes."""

from __future__ import annotations

import functools
import itertools
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from babeltune.errors import SpecError, plural
from babeltune.method.plugins import plugins
from babeltune.planning.plan import PlanReport, make_plan
from babeltune.planning.space import methods_used
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.warnings import about_corpus, about_gpus, about_plugins, about_queue, about_sweep
from babeltune.promotion.model_names import start_folder
from babeltune.promotion.statistics import standard_error
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep
from babeltune.stages import size
from babeltune.sweep.sync.quota import left_of
from babeltune.sweep.sync.view import StorageView

if TYPE_CHECKING:
    from babeltune.planning.calibration import Machine

Z95 = 1.96  # standard errors on each side of a 95 % interval
TYPICAL = 0.7  # the score at which a plan says what a dev set can tell apart


def read_for(
    cluster: Cluster, file: str | Path, overlays: Sequence[str | Path] = (), assignments: Sequence[str] = ()
) -> Sweep:
    """The sweep of these files, with the models that it names brought from the cluster.

    If it goes to a cluster as a job, that cluster looks whether data and models are there. Raises `SpecError`."""
    fetch = None if cluster.by_jobs else functools.partial(start_folder, cluster=cluster)
    sweep = read_sweep(file, overlays=overlays, assignments=assignments, reachable=not cluster.by_jobs, fetch=fetch)
    cluster.with_workers(sweep.budget.workers)
    return sweep


def first_warnings(sweep: Sweep, cluster: Cluster) -> tuple[str, ...]:
    """The warnings of a plan before any text is read: a student that the memory cannot hold would end it."""
    if cluster.by_jobs:
        return (*about_sweep(sweep), *about_plugins(plugins(methods_used(sweep))))
    return (*about_sweep(sweep), *about_gpus(cluster.with_workers(sweep.budget.workers)))


def plan_sweep(sweep: Sweep, cluster: Cluster, *, samples: int = 3, calibrate: bool = True) -> PlanReport:
    """The plan of the sweep on this cluster. Raises `SpecError` and `DataError` as `make_plan` does."""
    machine = machine_of(cluster, sweep)
    report = make_plan(sweep, samples=samples, machine=machine if calibrate else None)
    warnings = itertools.chain(
        first_warnings(sweep, cluster),
        about_queue(sweep, report.anchors),
        about_corpus(sweep, report.pairs, report.dev),
        report.warnings,
        about_disk(report, machine),
    )
    quota = tuple(quota_words(cluster, report, sweep))
    return replace(report, warnings=tuple(warnings), detectable=detectable(report, sweep), quota=quota)


def machine_of(cluster: Cluster, sweep: Sweep) -> Machine | None:
    """The part of this machine that the sweep has; None for a cluster that takes jobs, which is elsewhere.

    A cluster of several machines counts as one worker group, unless its file says how many there are. `SpecError` if
    the workers of one trial do not fit on this machine, where the sweep would run."""
    if cluster.by_jobs:
        return None
    import torch

    from babeltune.planning.calibration import Machine

    sized = cluster.with_workers(sweep.budget.workers)
    share, cpus = max(sized.workers * sized.cpus_per_worker, 1e-9), os.cpu_count() or 1
    if sized.address == "local" and (least := sized.least_workers or sized.workers) * sized.cpus_per_worker > cpus:
        trial = f"a trial of {plural(least, 'worker')} with {plural(sized.cpus_per_worker, 'CPU')} each"
        todo = "lower budget.workers in the sweep file, or name the file of a larger cluster with --cluster"
        raise SpecError(f"{trial} does not fit: this machine has {plural(cpus, 'CPU')}; {todo}")
    fit = int(cpus // share) if sized.address == "local" else 1
    worker_groups = fit if sized.worker_groups == "auto" else sized.worker_groups
    groups = max(1, min(worker_groups, sweep.budget.trials))
    device = "cuda" if sized.gpus and torch.cuda.is_available() else "cpu"
    return Machine(
        groups=groups,
        workers=sized.workers,
        threads=max(1, int(sized.cpus_per_worker)),
        memory_bytes=psutil.virtual_memory().total,
        device=device,
        storage=cluster.folder,
        gpu_bytes=torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 0,
    )


def detectable(report: PlanReport, sweep: Sweep) -> float | None:
    """The difference of two trials that chance explains in one of twenty cases, at a score of `TYPICAL`.

    None for a metric whose standard error is not known."""
    error = standard_error(sweep.objectives[0].metric, TYPICAL, report.objective_rows)
    return None if error is None else Z95 * math.hypot(error, error)


def quota_words(cluster: Cluster, report: PlanReport, sweep: Sweep) -> Iterator[str]:
    """The rest of the user's quota on the cluster, and how much of it the sweep may take."""
    if cluster.by_jobs and cluster.quota.limits:
        yield "its storage is on the cluster, where `submit` looks how much is left"
        return
    shares = {"gpu_hours": cluster.gpus, "cpu_hours": cluster.cpus_per_worker}
    workers = cluster.with_workers(sweep.budget.workers).workers
    for rest in left_of(StorageView(cluster)) if cluster.quota.limits else ():
        trial_s = None if report.estimate is None else report.estimate.trial_s
        needs = None if trial_s is None else trial_s * sweep.budget.trials * workers * shares[rest.key] / 3600
        yield f"{rest}" + ("" if needs is None else f"; this sweep takes about {needs:,.2f}")


def free_bytes(storage: Path) -> int:
    """Free bytes on the disk of the storage, which may not exist yet."""
    nearest_folder = next(folder for folder in (storage.absolute(), *storage.absolute().parents) if folder.exists())
    return shutil.disk_usage(nearest_folder).free


def about_disk(report: PlanReport, machine: Machine | None) -> Iterator[str]:
    """A sweep that the disk of its storage has no room for."""
    if report.estimate is None or machine is None or machine.storage is None:
        return
    up_to, free = report.estimate.disk_bytes, free_bytes(machine.storage)
    if up_to > free:
        todo = "`babeltune clean` frees space, and `keep: {trials: 3, optimizer: false}` in the sweep file needs less"
        yield f"the sweep takes up to {size(up_to)} on the disk, and {machine.storage} has {size(free)} left: {todo}"
