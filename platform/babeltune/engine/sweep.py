"""Runs a sweep from its file to its last trial: prepare, score the baselines, search on warm lanes, track.

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
from typing import Any

import ray

from babeltune.cluster.access import open_to_all
from babeltune.cluster.connection import connected
from babeltune.cluster.interrupts import interrupts
from babeltune.cluster.tasks import fetched, ray_refusals, ray_shards
from babeltune.data.corpus import Corpus
from babeltune.data.files import write_json
from babeltune.data.prepare import Progress, prepare, read_corpus, silent
from babeltune.data.prepared import Prepared, write_prepared
from babeltune.engine.baselines import bought_scores, teacher_scores, untrained_scores
from babeltune.engine.courier import Courier
from babeltune.engine.environment import deciding_facts
from babeltune.engine.events import Tracking, close_tracker
from babeltune.engine.lease import OvertakenError, heard, leased, only_driver, refuse_heard, this_driver
from babeltune.engine.rates import measure_rates
from babeltune.errors import ClusterError, DamagedError, storage_refusals
from babeltune.models.hub import baseline_row
from babeltune.records import Scalar, Sweep, plain, trial_from
from babeltune.search.recovery import study_refusals
from babeltune.search.tune import search
from babeltune.search.warm_start import warm_trials
from babeltune.spec.cluster import Cluster
from babeltune.spec.space import default_params, make_trial, methods_used, suggest, within_grid
from babeltune.spec.sweep_file import sweep_id
from babeltune.storage.where import Where
from babeltune.sweeps.board import Board, is_driven
from babeltune.sweeps.carry import with_prepared
from babeltune.sweeps.changes import check_unchanged
from babeltune.sweeps.folder import ENDED, SweepFolder, read_of_trial, read_outcome, refuse_a_file
from babeltune.sweeps.leaderboard import leaderboard
from babeltune.sweeps.places import Places
from babeltune.sweeps.rebuild import damage, mend
from babeltune.tracking.tracker import Tracker
from babeltune.workers.autoscaling import nodes_asked
from babeltune.workers.lanes import Lanes
from babeltune.workers.nodes import lanes_that_fit

log = logging.getLogger(__name__)
SAVING = "interrupted; saving every trial's step (a second Ctrl-C ends without)"


def folder_in(cluster: Cluster, sweep: str) -> SweepFolder:
    """Where the sweep with this id is kept."""
    return SweepFolder(cluster.folder / "sweeps" / sweep)


def driven_folder(sweep: str, cluster: Cluster) -> SweepFolder | None:
    """The folder of the sweep with this id if a driver runs it now."""
    folder = Places(cluster).at(sweep)
    return folder if folder.path.exists() and is_driven(folder) else None


def submit(
    sweep: Sweep,
    cluster: Cluster,
    *,
    into: str | None = None,
    accept_changes: bool = False,
    insecure: bool = False,
    watch: Callable[[Board], None] | None = None,
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
        Courier(cluster, folder, needs=sweep.sampler.warm_start) as courier,
        only_driver(folder),
        ExitStack() as shared,
    ):
        folder.stop_request.unlink(missing_ok=True)  # from now on it is for this driver
        ray_at, check = "", courier.check
        if cluster.address != "local" or ray.is_initialized():
            shared.enter_context(connected(cluster, insecure=insecure))
            shared.enter_context(leased(folder.id))
            ray_at = ray.get_runtime_context().gcs_address
            if insecure and (danger := open_to_all(cluster.named, ray_at)):
                folder.note(danger)
                log.warning(danger)
        if courier.where is None:  # or else the courier says and hears it in the bucket
            refuse_heard(folder, ray_at)
            check = shared.enter_context(heard(folder, ray_at))
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
        board = Board(sweep, folder, ended=ended, before=ended)
        if watch:
            watch(board)
        folder.set_state("running")
        with _kept_in_state(folder):
            complete = _attempt(sweep, cluster, folder, board, courier, check, accept=accept_changes)
        folder.set_state("finished" if complete else "stopped")
    return folder


@contextmanager
def _kept_in_state(folder: SweepFolder) -> Iterator[None]:
    """What ends the block is the sweep's state, as far as the storage takes it."""
    try:
        yield
    except KeyboardInterrupt:
        folder.set_state("interrupted")
        raise
    except OvertakenError:
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):
            folder.set_state("failed", reason=f"{type(error).__name__}: {error}"[:2000])
        raise


def _attempt(
    sweep: Sweep,
    cluster: Cluster,
    folder: SweepFolder,
    board: Board,
    courier: Courier,
    check: Callable[[], None],
    *,
    accept: bool,
) -> bool:
    """Preparation and search; True when the budget's trials are all there, False where somebody asked to stop. `check`
    raises where this driver cannot go on."""

    def look() -> None:
        check()
        if folder.stop_request.exists():
            raise _StopRequestedError

    def progress(stage: str, done: int, of: int) -> None:
        board.progress(stage, done, of)
        look()

    try:
        look()
        warm_trials(folder.path, sweep, lambda trial: suggest(sweep.parameters, trial))
        corpus = read_corpus(sweep, folder.path.parents[1], progress)
        asked = functools.partial(nodes_asked, cluster, note=board.note, progress=progress)
        with connected(cluster), ray_refusals():
            if not cluster.nodes_within:  # it is known before all that is prepared
                shares = cluster.cpus_per_worker, cluster.gpus_per_worker
                lanes_that_fit(cluster.workers, *shares, least=cluster.least_workers)
            with asked(trials=1):
                prepared = make_ready(sweep, corpus, cluster, folder, progress, look, courier, accept=accept)
            with asked(trials=sweep.budget.trials - board.before) as surveyed:
                return _run(sweep, prepared, cluster, folder, board, look, courier, check, surveyed)
    except _StopRequestedError:
        return False


def send_rest(sweep: Sweep, cluster: Cluster, folder: SweepFolder) -> None:
    """Sends MLflow what an earlier submission could not; `tracking.json` says how much is still unsent, and why."""
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    close_tracker(tracker, folder)


def ended_trials(folder: SweepFolder) -> set[str]:
    """The trials that finished, were pruned or failed."""
    places = [path for path in folder.trials() if (path / "trial.json").exists()]
    return {path.name for path in places if read_outcome(path) in ENDED}


class _StopRequestedError(KeyboardInterrupt):
    """`babeltune stop`, a Ctrl-C from afar, came before the search began."""


def make_ready(
    sweep: Sweep,
    corpus: Corpus,
    cluster: Cluster,
    folder: SweepFolder,
    progress: Progress,
    look: Callable[[], None],
    courier: Courier,
    *,
    accept: bool,
) -> Prepared:
    """The stores and the baselines' scores, made on the cluster where they are not there yet."""
    shards = functools.partial(ray_shards, share=cluster.gpus_per_worker, carried=courier.where is not None, look=look)
    prepared = prepare(sweep, folder.path.parents[1], corpus=corpus, run_shards=shards, progress=progress)
    check_unchanged(folder, {"data": prepared.digest}, accept=accept)
    write_prepared(prepared, folder.prepared)
    courier.publish(prepared)
    score_baselines(sweep, prepared, folder, progress, look, gpus=cluster.gpus_per_worker, where=courier.where)
    return prepared


def _run(
    sweep: Sweep,
    prepared: Prepared,
    cluster: Cluster,
    folder: SweepFolder,
    board: Board,
    look: Callable[[], None],
    courier: Courier,
    check: Callable[[], None],
    surveyed: Callable[[int], None],
) -> bool:
    """The search; True when the budget's trials are all there."""
    board.progress("starting lanes", 0, 1)
    measure_rates(sweep, folder, cluster, look)
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    left = max(1, sweep.budget.trials - board.ended)
    lanes = Lanes(
        count=left if cluster.lanes == "auto" else min(left, cluster.lanes),
        workers=cluster.workers,
        cpus_per_worker=cluster.cpus_per_worker,
        gpus_per_worker=cluster.gpus_per_worker,
        run_trial="babeltune.workers.trial:run",
        storage=folder.path / "train",
        least_workers=cluster.least_workers,
        isolation=cluster.isolation,
        silence=cluster.silence,
        note=board.note,
        surveyed=surveyed,
        waiting=look,
    )
    world: dict[str, Scalar] = {
        "fact.world_size": cluster.workers,
        "fact.backend": "nccl" if cluster.gpus_per_worker else "gloo",  # until a trial's first report says which it was
    }
    ended = ended_trials(folder)
    with Tracking(sweep, folder, prepared, tracker, world) as tracking, lanes:

        def on_event(kind: str, number: int, info: dict[str, Any]) -> dict[str, Scalar] | None:
            courier.see(kind, number, info)
            attributes = tracking.on_event(kind, number, info)
            courier.nudge()
            if kind == "end" and info["state"] in ENDED:
                ended.add(folder.trial(number).name)
                board.ended = len(ended)
                board.progress(board.stage, board.ended, sweep.budget.trials)
            return attributes

        board.progress("searching", board.ended, sweep.budget.trials)
        board.begun = sum(r.step / r.steps for r in leaderboard(folder) if r.state not in ENDED and r.steps)
        board.searching = time.monotonic()
        minutes = sweep.budget.minutes
        last_start = math.inf if minutes is None else time.monotonic() + 60 * minutes
        with interrupts(lambda: board.progress(SAVING, board.ended, sweep.budget.trials)) as interrupted:
            tracking.complete = search(
                sweep,
                lanes=lanes,
                folder=folder.path,
                suggest=lambda trial: suggest(sweep.parameters, trial),
                make_payload=lambda number, params: courier.sent(payload(sweep, folder, number, params)),
                on_event=on_event,
                trials=sweep.budget.trials,
                stop=lambda: interrupted() or folder.stop_request.exists(),
                no_more=lambda: time.monotonic() > last_start,
                check=check,
            )
        if interrupted() and not tracking.complete:
            raise KeyboardInterrupt
        board.progress("closing lanes and MLflow", board.ended, sweep.budget.trials)
    board.progress("done" if tracking.complete else "stopped", board.ended, sweep.budget.trials)
    return tracking.complete


def payload(sweep: Sweep, folder: SweepFolder, number: int, params: dict[str, Any]) -> dict[str, Any]:
    """What a lane needs to train trial `number`; written to the trial's folder, too.

    One that has begun keeps the settings and the data that it began with, whatever was accepted since. Raises
    `DamagedError` where these are lost.
    """
    place, prepared = folder.trial(number), folder.began_with(number, folder.prepared.name)
    if prepared == folder.prepared:
        trial = make_trial(folder.with_rates(sweep), number, params)
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
    storage = folder.path.parents[1]
    return {
        "trial": plain(trial),
        "prepared": str(prepared),
        "folder": str(place),
        "storage": str(storage),
        "seed": trial.seed,
    }


def score_baselines(
    sweep: Sweep,
    prepared: Prepared,
    folder: SweepFolder,
    progress: Progress = silent,
    look: Callable[[], None] = lambda: None,
    *,
    gpus: float = 0.0,
    where: Where | None = None,
) -> None:
    """Scores the untrained student of the default configuration, the raw teacher and the sweep's `baselines`, once;
    `where` the storage is, if it is behind a URI."""
    known = folder.read("baselines.json") or {}
    scores = known["scores"] if known.get("data") == prepared.digest else {}
    missing = {baseline_row(name): name for name in sweep.baselines if baseline_row(name) not in scores}
    task, there = ray.remote(with_prepared), (where, f"sweeps/{folder.id}/{folder.prepared.name}")
    if not scores:
        scores = score_own(sweep, prepared, task, there, progress, look, gpus)
    elif not missing:
        return
    for number, (row, name) in enumerate(missing.items()):
        progress("scoring the baselines", number, len(missing))
        scores[row] = fetched(task.options(num_cpus=1).remote(*there, bought_scores, name, prepared), look)
    folder.write("baselines.json", {"data": prepared.digest, "scores": scores})


def score_own(
    sweep: Sweep,
    prepared: Prepared,
    task: Any,
    there: tuple[Where | None, str],
    progress: Progress,
    look: Callable[[], None],
    gpus: float,
) -> dict[str, dict[str, float]]:
    """The scores of the untrained student and the raw teacher."""
    progress("scoring the untrained student and the teacher", 0, 1)
    trial = make_trial(sweep, 0, default_params(sweep))
    untrained = task.options(num_cpus=1, num_gpus=gpus).remote(*there, untrained_scores, trial, prepared)
    teacher = task.options(num_cpus=1).remote(*there, teacher_scores, prepared)
    scores = {"untrained": fetched(untrained, look), "teacher": fetched(teacher, look)}
    progress("scoring the untrained student and the teacher", 1, 1)
    return scores
