"""Runs a sweep from its file to its last trial: prepare, score the baselines, search on warm worker groups, track.

The driver holds the sweep's lock while it lives. Everything that it knows is in the sweep's folder, so a driver that
died is replaced by submitting the same sweep again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import ray

from babeltune.data.corpus import Corpus
from babeltune.data.prepare import Progress, no_progress
from babeltune.data.prepared import Prepared, write_prepared
from babeltune.errors import ClusterError, DamagedError, ObjectStoreError, SweepError, storage_refusals
from babeltune.files import plain, write_json
from babeltune.models.hub import baseline_row
from babeltune.planning.preparation import prepare, read_corpus
from babeltune.planning.space import default_params, make_trial, methods_used, suggest, within_grid
from babeltune.planning.sweep_file import sweep_id
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Scalar, Sweep, trial_from
from babeltune.schema.storage_location import StorageLocation
from babeltune.signals import StopRequestedError, StopSignal, interrupts
from babeltune.sweep.driver.baselines import bought_scores, teacher_scores, untrained_scores
from babeltune.sweep.driver.examples import examples_at_the_end
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.driver.rates import measure_rates
from babeltune.sweep.driver.recorder import Recorder, close_tracker
from babeltune.sweep.search.recovery import study_refusals
from babeltune.sweep.search.tune_run import search
from babeltune.sweep.search.tune_searcher import Event
from babeltune.sweep.search.warm_start import warm_trials
from babeltune.sweep.state.fencing import OvertakenError
from babeltune.sweep.state.folder import ENDED, SweepFolder, read_of_trial, read_outcome, refuse_a_file
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.lease import folder_lease, leased, only_driver, this_driver
from babeltune.sweep.state.messages import TrialAssignment, TrialOutcome
from babeltune.sweep.state.progress import SweepProgress, is_driven
from babeltune.sweep.state.provenance import check_unchanged, deciding_facts
from babeltune.sweep.state.rebuild import damage, mend
from babeltune.sweep.sync.audit import audit
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.housekeeping import clean
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep.sync.worker import with_prepared
from babeltune.sweep.workers.access import open_to_all
from babeltune.sweep.workers.autoscaling import nodes_asked
from babeltune.sweep.workers.connection import connected
from babeltune.sweep.workers.nodes import worker_groups_that_fit
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.sweep.workers.tasks import fetched, ray_refusals, ray_shards
from babeltune.tracking.tracker import Tracker

DAY_S = 86_400.0
log = logging.getLogger(__name__)
SAVING = "interrupted; saving every trial's step (a second Ctrl-C ends without)"


def folder_in(cluster: Cluster, sweep: str) -> SweepFolder:
    """Where the sweep with this id is kept."""
    return SweepFolder(cluster.folder / "sweeps" / sweep)


def driven_folder(sweep: str, cluster: Cluster) -> SweepFolder | None:
    """The folder of the sweep with this id if a driver runs it now."""
    folder = StorageView(cluster).at(sweep)
    return folder if folder.path.exists() and is_driven(folder) else None


def submit(
    sweep: Sweep,
    cluster: Cluster,
    *,
    into: str | None = None,
    accept_changes: bool = False,
    insecure: bool = False,
    watch: Callable[[SweepProgress], None] | None = None,
) -> SweepFolder:
    """Runs the sweep until its budget is spent; an earlier, unfinished submission is continued.

    `into` is the id of the sweep that goes on with this spec, where that is not the spec's own. The folder keeps the
    latest spec; one that decides other results needs `accept_changes`, and a cluster that wants no token `insecure`.
    Raises `DataError` and `TeacherError` before anything starts, `SweepError` when it is being run already or every
    trial fails, `ClusterError` when the cluster cannot hold one trial.
    """
    sweep, cluster = within_grid(sweep), cluster.with_workers(sweep.budget.workers)
    folder = folder_in(cluster, into or sweep_id(sweep))
    refuse_a_file(cluster.folder)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"the storage {cluster.folder} cannot be written ({error.strerror}); set BABELTUNE_HOME, or `storage` in "
            "the cluster file, to a folder that can"
        ) from error
    with (
        storage_refusals(folder.path),
        study_refusals(folder.study),
        DriverSync(cluster, folder, needs=sweep.sampler.warm_start) as driver_sync,
        only_driver(folder),
        ExitStack() as shared,
    ):
        folder.stop_request.unlink(missing_ok=True)  # from now on it is for this driver
        ray_at, stop = "", StopSignal(folder.stop_request.exists, driver_sync.check)
        if cluster.address != "local" or ray.is_initialized():
            shared.enter_context(connected(cluster, insecure=insecure))
            shared.enter_context(leased(folder.id))
            ray_at = ray.get_runtime_context().gcs_address
            if insecure and (danger := open_to_all(cluster.named, ray_at)):
                folder.note(danger)
                log.warning(danger)
        if driver_sync.where is None:  # else `driver_sync` has the lease in the bucket
            lease = shared.enter_context(folder_lease(folder, ray_at))
            driver_sync.token, stop.refused, stop.guard = lease.token, lease.check, lease.guard
            folder = replace(folder, guard=lease.guard)
        mend(folder)
        folder.write("driver.json", this_driver())
        check_unchanged(folder, deciding_facts(methods_used(sweep)), accept=accept_changes, sweep=sweep)
        finished = folder.state() == "finished"
        if not (finished and folder.read("sweep.json") == plain(sweep)):  # the sweep written last is the latest
            folder.write("sweep.json", sweep)
        ended = len(ended_trials(folder))
        if finished and ended >= sweep.budget.trials and folder.is_whole():
            send_rest(sweep, cluster, folder)
            return folder
        sweep_progress = SweepProgress(sweep, folder, ended=ended, before=ended)
        if watch:
            watch(sweep_progress)
        folder.set_state("running")
        audit(view := StorageView(cluster), "submit", folder.id)
        with _kept_in_state(folder, view):
            complete = _attempt(sweep, cluster, folder, sweep_progress, driver_sync, stop, accept=accept_changes)
        folder.set_state("finished" if complete else "stopped")
        _clean(cluster, folder)
    return folder


def _clean(cluster: Cluster, folder: SweepFolder) -> None:
    """What the cluster file's `clean_after_days` asks for. This sweep is still held, so its own turn is a later one."""
    if cluster.clean_after_days is None:
        return
    with contextlib.suppress(OSError, SweepError, ObjectStoreError):
        count, freed = clean(StorageView(cluster), older_s=cluster.clean_after_days * DAY_S)
        if count:
            folder.note(f"removed {count} files and folders, {freed / 1e6:,.1f} MB (clean_after_days)")


@contextmanager
def _kept_in_state(folder: SweepFolder, view: StorageView) -> Iterator[None]:
    """What ends the block is the sweep's state, as far as the storage takes it."""
    try:
        yield
    except KeyboardInterrupt:
        folder.set_state("interrupted")
        audit(view, "stop", folder.id, by_signal=True)
        raise
    except OvertakenError:
        raise
    except BaseException as error:
        with contextlib.suppress(OSError, SweepError):
            folder.set_state("failed", reason=f"{type(error).__name__}: {error}"[:2000])
        raise


def _attempt(
    sweep: Sweep,
    cluster: Cluster,
    folder: SweepFolder,
    sweep_progress: SweepProgress,
    driver_sync: DriverSync,
    stop: StopSignal,
    *,
    accept: bool,
) -> bool:
    """Preparation and search; True when the budget's trials are all there, False where somebody asked to stop."""
    poll = stop.raise_if_stopped

    def progress(stage: str, done: int, of: int) -> None:
        sweep_progress.progress(stage, done, of)
        poll()

    try:
        poll()
        warm_trials(folder.path, sweep, lambda trial: suggest(sweep.parameters, trial))
        corpus = read_corpus(sweep, folder.path.parents[1], progress)
        asked = functools.partial(nodes_asked, cluster, note=sweep_progress.note, progress=progress)
        with connected(cluster), ray_refusals():
            if not cluster.nodes_within:  # it is known before all that is prepared
                shares = cluster.cpus_per_worker, cluster.gpus_per_worker
                worker_groups_that_fit(cluster.workers, *shares, least=cluster.least_workers)
            with asked(trials=1):
                prepared = make_ready(sweep, corpus, cluster, folder, progress, poll, driver_sync, accept=accept)
            del corpus  # its files take room on the disk
            with asked(trials=sweep.budget.trials - sweep_progress.before) as surveyed:
                return _run(sweep, prepared, cluster, folder, sweep_progress, driver_sync, stop, surveyed)
    except StopRequestedError:
        return False


def send_rest(sweep: Sweep, cluster: Cluster, folder: SweepFolder) -> None:
    """Sends MLflow what an earlier submission could not; `tracking.json` says how much is still unsent, and why."""
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    close_tracker(tracker, folder)


def ended_trials(folder: SweepFolder) -> set[str]:
    """The trials that finished, were pruned or failed."""
    view = [path for path in folder.trials() if (path / "trial.json").exists()]
    return {path.name for path in view if read_outcome(path) in ENDED}


def make_ready(
    sweep: Sweep,
    corpus: Corpus,
    cluster: Cluster,
    folder: SweepFolder,
    progress: Progress,
    poll: Callable[[], None],
    driver_sync: DriverSync,
    *,
    accept: bool,
) -> Prepared:
    """The stores and the baselines' scores, made on the cluster where they are not there yet."""
    shards = functools.partial(
        ray_shards,
        share=cluster.gpus_per_worker,
        carried=driver_sync.where is not None,
        poll=poll,
        progress_timeout=cluster.progress_timeout,
    )
    prepared = prepare(sweep, folder.path.parents[1], corpus=corpus, run_shards=shards, progress=progress)
    check_unchanged(folder, {"data": prepared.digest}, accept=accept)
    with folder.guard():
        write_prepared(prepared, folder.prepared)
    driver_sync.publish(prepared)
    score_baselines(sweep, prepared, folder, progress, poll, gpus=cluster.gpus_per_worker, where=driver_sync.where)
    return prepared


def _run(
    sweep: Sweep,
    prepared: Prepared,
    cluster: Cluster,
    folder: SweepFolder,
    sweep_progress: SweepProgress,
    driver_sync: DriverSync,
    stop: StopSignal,
    surveyed: Callable[[int], None],
) -> bool:
    """The search; True when the budget's trials are all there."""
    sweep_progress.progress("starting worker groups", 0, 1)
    measure_rates(sweep, folder, cluster, stop.raise_if_stopped)
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    left = max(1, sweep.budget.trials - sweep_progress.ended)
    pool = WorkerPool(
        count=left if cluster.worker_groups == "auto" else min(left, cluster.worker_groups),
        workers=cluster.workers,
        cpus_per_worker=cluster.cpus_per_worker,
        gpus_per_worker=cluster.gpus_per_worker,
        run_trial="babeltune.sweep.workers.run_trial:run",
        storage=folder.path / "train",
        least_workers=cluster.least_workers,
        isolation=cluster.isolation,
        progress_timeout=cluster.progress_timeout,
        note=sweep_progress.note,
        surveyed=surveyed,
        waiting=stop.raise_if_stopped,
    )
    world: dict[str, Scalar] = {
        "fact.world_size": cluster.workers,
        "fact.backend": "nccl" if cluster.gpus_per_worker else "gloo",  # until a trial's first report says which it was
    }
    ended = ended_trials(folder)
    limit = None if cluster.mlflow_metrics == "all" else cluster.mlflow_metrics
    with (
        examples_at_the_end(folder, prepared, driver_sync.where) as begin_examples,
        Recorder(
            sweep, folder, prepared, tracker, world, limit, CheckpointPolicy(sweep, folder, driver_sync)
        ) as tracking,
        pool,
    ):

        def on_event(kind: str, number: int, event: Event) -> dict[str, Scalar] | None:
            driver_sync.see(kind, number, event)
            attributes = tracking.on_event(kind, number, event)
            driver_sync.wake()
            if isinstance(event, TrialOutcome) and event.state in ENDED:
                ended.add(folder.trial(number).name)
                sweep_progress.ended = len(ended)
                sweep_progress.progress(sweep_progress.stage, sweep_progress.ended, sweep.budget.trials)
            return attributes

        sweep_progress.progress("searching", sweep_progress.ended, sweep.budget.trials)
        sweep_progress.begun = sum(r.step / r.steps for r in leaderboard(folder) if r.state not in ENDED and r.steps)
        sweep_progress.searching = time.monotonic()
        minutes = sweep.budget.minutes
        stop.last_start = math.inf if minutes is None else time.monotonic() + 60 * minutes
        with interrupts(stop, lambda: sweep_progress.progress(SAVING, sweep_progress.ended, sweep.budget.trials)):
            tracking.complete = search(
                sweep,
                pool=pool,
                folder=folder.path,
                suggest=lambda trial: suggest(sweep.parameters, trial),
                make_assignment=lambda number, params: driver_sync.sent(assignment(sweep, folder, number, params)),
                on_event=on_event,
                trials=sweep.budget.trials,
                stop=stop,
            )
        if stop.interrupted and not tracking.complete:
            raise KeyboardInterrupt
        if tracking.complete:
            begin_examples()
        sweep_progress.progress("closing worker groups and MLflow", sweep_progress.ended, sweep.budget.trials)
    sweep_progress.progress("done" if tracking.complete else "stopped", sweep_progress.ended, sweep.budget.trials)
    return tracking.complete


def assignment(sweep: Sweep, folder: SweepFolder, number: int, params: dict[str, Scalar]) -> TrialAssignment:
    """What a worker group needs to train trial `number`; written to the trial's folder, too.

    One that has begun keeps the settings and the data that it began with, whatever was accepted since. Raises
    `DamagedError` where these are lost.
    """
    place, prepared = folder.trial(number), folder.began_with(number, folder.prepared.name)
    if prepared == folder.prepared:
        trial = make_trial(folder.with_rates(sweep), number, params)
        with folder.guard():
            place.mkdir(parents=True, exist_ok=True)
            write_json(place / "trial.json", trial)
    else:
        if words := damage(prepared):
            raise DamagedError(words)
        known = read_of_trial(place, "trial.json")
        trial = (
            make_trial(folder.with_rates(folder.sweep_of(number)), number, params)
            if known is None
            else trial_from(known)
        )
    return TrialAssignment(
        folder=str(place),
        trial=plain(trial),
        prepared=str(prepared),
        storage=str(folder.path.parents[1]),
        seed=trial.seed,
    )


def score_baselines(
    sweep: Sweep,
    prepared: Prepared,
    folder: SweepFolder,
    progress: Progress = no_progress,
    poll: Callable[[], None] = lambda: None,
    *,
    gpus: float = 0.0,
    where: StorageLocation | None = None,
) -> None:
    """Scores the untrained student of the default configuration, the raw teacher and the sweep's `baselines`, once;
    `where` the storage is, if it is behind a URI."""
    known = folder.read("baselines.json") or {}
    scores = known["scores"] if known.get("data") == prepared.digest else {}
    missing = {baseline_row(name): name for name in sweep.baselines if baseline_row(name) not in scores}
    task, there = ray.remote(with_prepared), (where, f"sweeps/{folder.id}/{folder.prepared.name}")
    if not scores:
        scores = score_own(sweep, prepared, task, there, progress, poll, gpus)
    elif not missing:
        return
    for number, (row, name) in enumerate(missing.items()):
        progress("scoring the baselines", number, len(missing))
        scores[row] = fetched(task.options(num_cpus=1).remote(*there, bought_scores, name, prepared), poll)
    folder.write("baselines.json", {"data": prepared.digest, "scores": scores})


def score_own(
    sweep: Sweep,
    prepared: Prepared,
    task: Any,
    there: tuple[StorageLocation | None, str],
    progress: Progress,
    poll: Callable[[], None],
    gpus: float,
) -> dict[str, dict[str, float]]:
    """The scores of the untrained student and the raw teacher."""
    stage = "scoring the untrained student and the teacher"
    progress(stage, 0, 2)
    trial = make_trial(sweep, 0, default_params(sweep))
    untrained = task.options(num_cpus=1, num_gpus=gpus).remote(*there, untrained_scores, trial, prepared)
    teacher = task.options(num_cpus=1).remote(*there, teacher_scores, prepared)
    scores = {"untrained": fetched(untrained, poll)}
    progress(stage, 1, 2)
    scores["teacher"] = fetched(teacher, poll)
    progress(stage, 2, 2)
    return scores
