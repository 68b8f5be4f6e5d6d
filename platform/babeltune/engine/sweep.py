"""Runs a sweep from its file to its last trial: prepare, score the baselines, search on warm lanes, track.

The driver holds the sweep's lock while it lives. Everything that it knows is in the sweep's folder, so a driver that
died is replaced by submitting the same sweep again.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from filelock import FileLock, Timeout

from babeltune.data.corpus import Corpus
from babeltune.data.prepare import Progress, prepare, read_corpus, silent
from babeltune.data.prepared import Prepared, write_prepared
from babeltune.data.store import write_json
from babeltune.engine.baselines import teacher_scores, untrained_scores
from babeltune.engine.board import Board, is_driven
from babeltune.engine.environment import deciding_facts
from babeltune.engine.events import Tracking, close_tracker
from babeltune.engine.lanes import Lanes, local_ray
from babeltune.engine.ledger import SweepFolder, leaderboard, trial_row
from babeltune.engine.search import search
from babeltune.engine.warm_start import warm_trials
from babeltune.errors import BabeltuneError, ClusterError, SweepError
from babeltune.records import Scalar, Sweep, plain
from babeltune.spec.cluster import Cluster
from babeltune.spec.space import default_params, make_trial, suggest, within_grid
from babeltune.spec.sweep_file import sweep_id
from babeltune.tracking.tracker import Tracker

ENDED = ("finished", "pruned", "failed")
"""What becomes of a trial that does not go on."""
ASKED = 1.0
"""Seconds to wait for a lock that `is_driven` may be trying at this moment."""


def check_unchanged(folder: SweepFolder, facts: dict[str, str], *, accept: bool) -> None:
    """Refuses to continue a sweep with other code, packages or data, unless the change is accepted."""
    recorded = folder.read("facts.json") or {}
    before = {name: recorded[name] for name in facts if name in recorded}
    if not before or before == facts or accept:
        folder.write("facts.json", {**recorded, **facts})
        return
    lines = difflib.unified_diff(
        [f"{k}: {v}" for k, v in sorted(before.items())],
        [f"{k}: {v}" for k, v in sorted(facts.items())],
        "when it began",
        "now",
        lineterm="",
        n=0,
    )
    raise SweepError(
        f"sweep {folder.id} began with other code, packages or data:\n"
        + "\n".join(lines)
        + "\nits finished trials would not "
        "compare with new ones; go back to that version, give the sweep another name, or pass --accept-changes"
    )


@contextmanager
def only_driver(folder: SweepFolder) -> Iterator[None]:
    """Holds the sweep's lock; it falls with the process, however that ends."""
    lock = FileLock(folder.path / "driver.lock")
    try:
        lock.acquire(timeout=ASKED)
    except Timeout:
        raise SweepError(
            f"sweep {folder.id} is being run by another process; `babeltune status {folder.id}` shows it, "
            f"`babeltune stop {folder.id}` ends it"
        ) from None
    try:
        folder.write("driver.json", {"pid": os.getpid(), "started": time.time()})
        yield
    finally:
        lock.release()


def fetched(reference: Any) -> Any:
    """The result of a Ray task; an error of ours is raised as itself, without the worker's traceback."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BabeltuneError):
            raise error.cause from None
        raise


def ray_shards(
    function: Callable[..., int], arguments: Sequence[tuple[Any, ...]], *, gpu: bool = False, share: float = 0.0
) -> Iterator[int]:
    """`shards.RunShards` by Ray tasks of one CPU each and, for functions that use a GPU, a `share` of one."""
    remote = ray.remote(num_cpus=1, num_gpus=share if gpu else 0.0, max_retries=2)(function)
    waiting = [remote.remote(*a) for a in arguments]
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        yield fetched(ready[0])


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """A connection to the cluster; the local one is started and ended here, an open one is used as it is."""
    if ray.is_initialized():
        yield
        return
    if cluster.address == "local":
        with local_ray(num_gpus=torch.cuda.device_count()):
            end_when_asked()
            yield
        return
    if cluster.by_jobs:
        raise ClusterError(
            f"cluster {cluster.name!r}: {cluster.address} is a dashboard, which takes jobs only; "
            "run babeltune on the head node with `address: auto`, or name the cluster's `host:port`"
        )
    token = cluster.token()
    if token is not None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    try:
        ray.init(address=cluster.address, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError) as error:
        raise ClusterError(
            f"cluster {cluster.name!r} at {cluster.address} does not answer ({error}); "
            "start it, or use clusters/local.yaml"
        ) from error
    end_when_asked()
    try:
        yield
    finally:
        ray.shutdown()


def end_when_asked() -> None:
    """Makes of SIGTERM what Ctrl-C is; Ray, which has just started, would end this process with a dump of its stack."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def driven_folder(sweep: Sweep, cluster: Cluster) -> SweepFolder | None:
    """The sweep's folder if a driver runs it now."""
    folder = SweepFolder(Path(cluster.storage).absolute() / "sweeps" / sweep_id(sweep))
    return folder if folder.path.exists() and is_driven(folder) else None


def submit(
    sweep: Sweep,
    cluster: Cluster,
    *,
    accept_changes: bool = False,
    watch: Callable[[Board], None] | None = None,
) -> SweepFolder:
    """Runs the sweep until its budget is spent; an earlier, unfinished submission is continued.

    The folder keeps the budget and the promotion of the latest submission. Raises `DataError` and `TeacherError` before
    anything starts, `SweepError` when it is being run already or every trial fails, `ClusterError` when the cluster
    cannot hold one trial.
    """
    sweep = within_grid(sweep)
    folder = SweepFolder(Path(cluster.storage).absolute() / "sweeps" / sweep_id(sweep))
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"the storage {cluster.storage} cannot be written ({error.strerror}); set BABELTUNE_HOME, or `storage` in "
            "the cluster file, to a folder that can"
        ) from error
    with only_driver(folder):
        check_unchanged(folder, deciding_facts(), accept=accept_changes)
        folder.write("sweep.json", sweep)
        if ended_trials(folder) >= sweep.budget.trials and folder.state() == "finished":
            send_rest(sweep, cluster, folder)
            return folder
        folder.stop_request.unlink(missing_ok=True)
        ended = ended_trials(folder)
        board = Board(sweep, folder, ended=ended, before=ended)
        if watch:
            watch(board)
        folder.set_state("running")

        def progress(stage: str, done: int, of: int) -> None:
            board.progress(stage, done, of)
            if folder.stop_request.exists():
                raise _StopRequestedError

        try:
            warm_trials(folder.path, sweep, lambda trial: suggest(sweep.parameters, trial))
            corpus = read_corpus(sweep, folder.path.parents[1], progress)
            with connected(cluster):
                prepared = make_ready(sweep, corpus, cluster, folder, progress, accept=accept_changes)
                complete = _run(sweep, prepared, cluster, folder, board)
        except _StopRequestedError:
            complete = False
        except KeyboardInterrupt:
            folder.set_state("interrupted")
            raise
        except BaseException as error:
            folder.set_state("failed", reason=f"{type(error).__name__}: {error}"[:2000])
            raise
        folder.set_state("finished" if complete else "stopped")
    return folder


def send_rest(sweep: Sweep, cluster: Cluster, folder: SweepFolder) -> None:
    """Sends MLflow what an earlier submission could not; `tracking.json` says how much is still unsent, and why."""
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    close_tracker(tracker, folder)


def ended_trials(folder: SweepFolder) -> int:
    """How many trials finished, were pruned or failed."""
    objective = folder.sweep().objectives[0]
    rows = [trial_row(path, objective) for path in folder.trials() if (path / "trial.json").exists()]
    return sum(row.state in ENDED for row in rows)


class _StopRequestedError(Exception):
    """`babeltune stop` came before the search began."""


def make_ready(
    sweep: Sweep, corpus: Corpus, cluster: Cluster, folder: SweepFolder, progress: Progress, *, accept: bool
) -> Prepared:
    """The stores and the baselines' scores, made on the cluster where they are not there yet."""
    shards = functools.partial(ray_shards, share=cluster.gpus_per_worker)
    prepared = prepare(sweep, folder.path.parents[1], corpus=corpus, run_shards=shards, progress=progress)
    check_unchanged(folder, {"data": prepared.digest}, accept=accept)
    write_prepared(prepared, folder.prepared)
    score_baselines(sweep, prepared, folder, progress, gpus=cluster.gpus_per_worker)
    return prepared


def _run(sweep: Sweep, prepared: Prepared, cluster: Cluster, folder: SweepFolder, board: Board) -> bool:
    """The search; True when the budget's trials are all there."""
    board.progress("starting lanes", 0, 1)
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    workers = sweep.budget.workers or cluster.workers
    left = max(1, sweep.budget.trials - board.ended)
    lanes = Lanes(
        count=left if cluster.lanes == "auto" else min(left, cluster.lanes),
        workers=workers,
        cpus_per_worker=cluster.cpus_per_worker,
        gpus_per_worker=cluster.gpus_per_worker,
        run_trial="babeltune.engine.trial:run",
        storage=folder.path / "train",
    )
    world: dict[str, Scalar] = {
        "fact.world_size": workers,
        "fact.backend": "nccl" if cluster.gpus_per_worker else "gloo",
    }
    with Tracking(sweep, folder, prepared, tracker, world) as tracking, lanes:

        def on_event(kind: str, number: int, info: dict[str, Any]) -> dict[str, Scalar] | None:
            attributes = tracking.on_event(kind, number, info)
            if kind == "end":
                board.ended += 1
                board.progress("searching", board.ended, sweep.budget.trials)
            return attributes

        board.progress("searching", board.ended, sweep.budget.trials)
        board.begun = sum(r.step / r.steps for r in leaderboard(folder) if r.state not in ENDED and r.steps)
        board.searching = time.monotonic()
        minutes = sweep.budget.minutes
        last_start = math.inf if minutes is None else time.monotonic() + 60 * minutes
        tracking.complete = search(
            sweep,
            lanes=lanes,
            folder=folder.path,
            suggest=lambda trial: suggest(sweep.parameters, trial),
            make_payload=lambda number, params: payload(sweep, folder, number, params),
            on_event=on_event,
            trials=sweep.budget.trials,
            stop=folder.stop_request.exists,
            no_more=lambda: time.monotonic() > last_start,
        )
    board.progress("done", board.ended, sweep.budget.trials)
    return tracking.complete


def payload(sweep: Sweep, folder: SweepFolder, number: int, params: dict[str, Any]) -> dict[str, Any]:
    """What a lane needs to train trial `number`; written to the trial's folder, too."""
    trial = make_trial(sweep, number, params)
    place = folder.trial(number)
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / "trial.json", trial)
    return {"trial": plain(trial), "prepared": str(folder.prepared), "folder": str(place), "seed": trial.seed}


def score_baselines(
    sweep: Sweep, prepared: Prepared, folder: SweepFolder, progress: Progress = silent, *, gpus: float = 0.0
) -> None:
    """Scores the untrained student of the default configuration and the raw teacher, once."""
    if (folder.read("baselines.json") or {}).get("data") == prepared.digest:
        return
    progress("scoring the untrained student and the teacher", 0, 1)
    trial = make_trial(sweep, 0, default_params(sweep))
    untrained = ray.remote(num_cpus=1, num_gpus=gpus)(untrained_scores).remote(trial, prepared)
    teacher = ray.remote(num_cpus=1)(teacher_scores).remote(prepared)
    scores = {"untrained": fetched(untrained), "teacher": fetched(teacher)}
    folder.write("baselines.json", {"data": prepared.digest, "scores": scores})
    progress("scoring the untrained student and the teacher", 1, 1)
