"""Runs a sweep from its file to its last trial: prepare, score the baselines, search on warm lanes, track.

The driver holds the sweep's lock while it lives. Everything that it knows is in the sweep's folder, so a driver that
died is replaced by submitting the same sweep again.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock, Timeout

import babeltune
from babeltune.baselines import teacher_scores, untrained_scores
from babeltune.checkpoint import write_json
from babeltune.cluster import Cluster
from babeltune.errors import ClusterError, SweepError
from babeltune.lanes import Lanes, local_ray
from babeltune.ledger import SweepFolder, outcome, trial_row
from babeltune.prepare import Progress, prepare, silent
from babeltune.prepared import Prepared, write_prepared
from babeltune.records import Point, Sweep, plain, report_from
from babeltune.search import search
from babeltune.space import default_params, make_trial, suggest
from babeltune.spec import check_method, sweep_id
from babeltune.track import Tracker, environment_facts

PINNED = ("torch", "ray", "optuna", "transformers", "tokenizers", "numpy")
"""Packages whose version can change a trial's numbers."""


@dataclass
class Board:
    """What the live view shows; the driver's threads write it, the view reads it."""

    sweep: Sweep
    folder: SweepFolder
    started: float = field(default_factory=time.monotonic)
    stage: str = "starting"
    done: int = 0
    of: int = 0
    running: dict[int, float] = field(default_factory=dict)
    """Trial number -> when it started."""
    ended: int = 0

    def progress(self, stage: str, done: int, of: int) -> None:
        self.stage, self.done, self.of = stage, done, of


def code_digest() -> str:
    """SHA-256 over the platform's and the methods' source files."""
    import babeltune_methods

    digest = hashlib.sha256()
    for package in (babeltune, babeltune_methods):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def deciding_facts() -> dict[str, str]:
    """What must not change between two submissions of one sweep: the code and the packages that compute."""
    return {"code": code_digest(), **{name: version(name) for name in PINNED}}


def check_unchanged(folder: SweepFolder, facts: dict[str, str], *, accept: bool) -> None:
    """Refuses to continue a sweep with other code or packages, unless the change is accepted."""
    before = folder.read("facts.json")
    if before is None or before == facts or accept:
        folder.write("facts.json", facts)
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
        f"sweep {folder.id} began with other code or packages:\n"
        + "\n".join(lines)
        + "\nits finished trials would not "
        "compare with new ones; go back to that version, give the sweep another name, or pass --accept-changes"
    )


@contextmanager
def only_driver(folder: SweepFolder) -> Iterator[None]:
    """Holds the sweep's lock; it falls with the process, however that ends."""
    lock = FileLock(folder.path / "driver.lock")
    try:
        lock.acquire(timeout=0)
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


def is_driven(folder: SweepFolder) -> bool:
    """Whether a driver holds the sweep's lock now."""
    lock = FileLock(folder.path / "driver.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


@contextmanager
def interrupt(request: Callable[[], None]) -> Iterator[None]:
    """Turns the first Ctrl-C or SIGTERM into a request to stop; the second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
        request()
        for s, handler in before.items():
            signal.signal(s, handler)

    for s in before:
        signal.signal(s, handle)
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def ray_shards(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Iterator[Any]:
    """Runs the shards of a store as Ray tasks, one CPU each; yields results as they come."""
    remote = ray.remote(num_cpus=1, max_retries=2)(function)
    waiting = [remote.remote(*a) for a in arguments]
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        yield ray.get(ready[0])


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """A connection to the cluster; the local one is started and ended here."""
    if cluster.address == "local":
        with local_ray():
            yield
        return
    try:
        ray.init(address=cluster.address, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError) as error:
        raise ClusterError(
            f"cluster {cluster.name!r} at {cluster.address} does not answer ({error}); start it, or use clusters/local.yaml"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def open_folder(sweep: Sweep, storage: Path) -> SweepFolder:
    """The sweep's folder, made at its first submission; the budget of the latest one is kept."""
    folder = SweepFolder(storage / "sweeps" / sweep_id(sweep))
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write("sweep.json", sweep)
    return folder


def submit(
    sweep: Sweep,
    cluster: Cluster,
    *,
    accept_changes: bool = False,
    watch: Callable[[Board], None] | None = None,
) -> SweepFolder:
    """Runs the sweep until its budget is spent; an earlier, unfinished submission is continued.

    Raises `SpecError`, `DataError` and `TeacherError` before anything starts, `SweepError` when it is being run already
    or every trial fails, `ClusterError` when the cluster cannot hold one trial.
    """
    check_method(sweep)
    storage = Path(cluster.storage).absolute()
    folder = open_folder(sweep, storage)
    with only_driver(folder):
        check_unchanged(folder, deciding_facts(), accept=accept_changes)
        folder.stop_request.unlink(missing_ok=True)
        board = Board(sweep, folder)
        if watch:
            watch(board)
        folder.set_state("running")
        try:
            with interrupt(folder.stop_request.touch), connected(cluster):
                _run(sweep, cluster, folder, board)
        except BaseException as error:
            folder.set_state("failed", reason=f"{type(error).__name__}: {error}"[:2000])
            raise
        folder.set_state("stopped" if folder.stop_request.exists() else "finished")
    return folder


def _run(sweep: Sweep, cluster: Cluster, folder: SweepFolder, board: Board) -> None:
    prepared = prepare(sweep, folder.path.parents[1], run_shards=ray_shards, progress=board.progress)
    write_prepared(prepared, folder.prepared)
    score_baselines(sweep, prepared, folder, board.progress)
    workers = sweep.budget.workers or cluster.workers
    board.progress("starting lanes", 0, 1)
    tracker = Tracker(cluster.mlflow, folder.path / "spool.jsonl", sweep.name)
    with (
        Tracking(sweep, folder, prepared, tracker) as tracking,
        Lanes(
            count=cluster.lanes,
            workers=workers,
            cpus_per_worker=cluster.cpus_per_worker,
            gpus_per_worker=cluster.gpus_per_worker,
            run_trial="babeltune.trial:run",
            storage=folder.path / "train",
        ) as lanes,
    ):
        deadline = time.monotonic() + sweep.budget.minutes * 60 if sweep.budget.minutes else None

        def on_event(kind: str, number: int, info: dict[str, Any]) -> None:
            tracking.on_event(kind, number, info)
            follow(board, kind, number)

        board.progress("searching", 0, sweep.budget.trials)
        search(
            sweep,
            lanes=lanes,
            folder=folder.path,
            suggest=lambda trial: suggest(sweep.parameters, trial),
            make_payload=lambda number, params: payload(sweep, folder, number, params),
            on_event=on_event,
            trials=sweep.budget.trials,
            stop=folder.stop_request.exists,
            no_more=lambda: deadline is not None and time.monotonic() > deadline,
        )
    board.progress("done", board.ended, sweep.budget.trials)


def payload(sweep: Sweep, folder: SweepFolder, number: int, params: dict[str, Any]) -> dict[str, Any]:
    """What a lane needs to train trial `number`; written to the trial's folder, too."""
    trial = make_trial(sweep, number, params)
    place = folder.trial(number)
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / "trial.json", trial)
    return {"trial": plain(trial), "prepared": str(folder.prepared), "folder": str(place), "seed": trial.seed}


def follow(board: Board, kind: str, number: int) -> None:
    """Keeps the live view's state."""
    if kind == "start":
        board.running.setdefault(number, time.monotonic())
    elif kind == "end":
        board.running.pop(number, None)
        board.ended += 1
        board.done = board.ended


def score_baselines(sweep: Sweep, prepared: Prepared, folder: SweepFolder, progress: Progress = silent) -> None:
    """Scores the untrained student of the default configuration and the raw teacher, once."""
    if folder.read("baselines.json") is not None:
        return
    progress("scoring the untrained student and the teacher", 0, 1)
    trial = make_trial(sweep, 0, default_params(sweep))
    untrained = ray.remote(num_cpus=1)(untrained_scores).remote(trial, prepared)
    teacher = ray.remote(num_cpus=1)(teacher_scores).remote(prepared)
    folder.write("baselines.json", {"untrained": ray.get(untrained), "teacher": ray.get(teacher)})
    progress("scoring the untrained student and the teacher", 1, 1)


class Tracking:
    """Writes what happens to MLflow and to the trials' outcome files."""

    def __init__(self, sweep: Sweep, folder: SweepFolder, prepared: Prepared, tracker: Tracker) -> None:
        self.sweep, self.folder, self.prepared, self.tracker = sweep, folder, prepared, tracker

    def __enter__(self) -> Tracking:
        facts = environment_facts()
        digests = {f"digest.{k}": v for k, v in self.prepared.digests.items()}
        overlap = {
            f"overlap.{source}.{test}": str(n)
            for source, tests in self.prepared.counts["overlap"].items()
            for test, n in tests.items()
        }
        rows = {
            f"rows.{source}.{step}": str(n)
            for source, steps in self.prepared.counts["rows"].items()
            for step, n in steps.items()
        }
        self.tags = {**facts, "data": self.prepared.digest, **digests}
        params = {"method": self.sweep.method, "teacher": self.sweep.teacher.model, "seed": self.sweep.seed}
        self.tracker.start_sweep(self.folder.id, params, {**self.tags, **overlap, **rows})
        for name, scores in self.folder.read("baselines.json").items():
            self.tracker.start_trial(name, {}, {"babeltune.baseline": name, **self.tags})
            self.tracker.metrics(name, [Point(step=0, time_ms=int(time.time() * 1000), values=scores)])
            self.tracker.end_trial(name, "FINISHED", {})
        return self

    def __exit__(self, *error: object) -> None:
        self.tracker.end_sweep("FAILED" if error[0] else "FINISHED")
        self.tracker.flush(60)
        self.tracker.close()

    def on_event(self, kind: str, number: int, info: dict[str, Any]) -> None:
        """`start` with the payload, `report` with a plain `Report`, `end` with a state and a reason."""
        if kind == "start":
            trial = info["trial"]
            settings = {**flat({"config": trial["config"], "training": trial["training"], "student": trial["student"]})}
            self.tracker.start_trial(
                number,
                {**settings, **{f"search.{k}": v for k, v in trial["params"].items()}},
                {"babeltune.method": trial["method"], **self.tags},
            )
        elif kind == "report":
            report = report_from(info)
            now = report.points[-1].time_ms if report.points else int(time.time() * 1000)
            scores = Point(step=report.step, time_ms=now, values=report.metrics)
            self.tracker.metrics(number, [*report.points, scores])
        elif kind == "end":
            place = self.folder.trial(number)
            outcome(place, info["state"], info.get("reason", ""))
            row = trial_row(place, self.sweep.objectives[0])
            status = {"finished": "FINISHED", "pruned": "FINISHED", "failed": "FAILED"}.get(info["state"], "KILLED")
            facts = {str(k): str(v) for k, v in info.get("facts", {}).items()}
            self.tracker.end_trial(
                number,
                status,
                {
                    "babeltune.state": info["state"],
                    "babeltune.reason": info.get("reason", ""),
                    "babeltune.best_report": str(row.best),
                    **facts,
                },
            )


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    pairs = (
        flat(value, f"{prefix}{key}.").items() if isinstance(value, dict) else [(f"{prefix}{key}", value)]
        for key, value in values.items()
    )
    return dict(itertools.chain.from_iterable(pairs))
