"""Work on a node that shares no folder with the driver's: the bucket has what it needs, and gets what it makes.

A trial's worker brings the stores and the trial's last checkpoint, and sends each new checkpoint and then its line in
the ledger before it reports. The names of checkpoints in the bucket end in the fencing token of the driver that gave
the trial, such as `000003-7`; in folders they do not. `shards.py` has the tasks of the preparation."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import ClusterError, FencedError, NodeError, ObjectStoreError, StorageError, StoreError
from babeltune.files import plain, write_json, write_whole
from babeltune.method.distributed import ProcessGroup
from babeltune.schema.records import Objective, Report
from babeltune.schema.storage_location import DAY_S, StorageLocation
from babeltune.stages import LEAST_RATED_S, UPLOADING, Stage
from babeltune.storage.mirror import Mirror, Stamp, unstamped
from babeltune.storage.object_store import Entry, is_local
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.sync.fencing import BucketLease, trial_fence
from babeltune.sweep.sync.housekeeping import evict
from babeltune.sweep.sync.view import bring_stores, checkpoints_there, latest_names, names_in, parts_of
from babeltune.training.checkpoint import (
    MANIFEST,
    PROGRESS,
    REPORTS,
    best_report,
    checkpoint_folder,
    last_good,
    read_reports,
    read_state,
    state_of,
    stopped_folder,
)

if TYPE_CHECKING:
    from babeltune.training.trainer import Reporter

UPLOAD_WAIT_S = 20.0
"""Seconds that training waits for a checkpoint to be sent; later it goes on, and the next report sends both."""
LAST_UPLOAD_FACTOR = 2.0
"""A trial's last upload may take this many times `storage_timeout`: the driver gives up first, and logs why."""
PROGRESS_INTERVAL_S = 15.0  # seconds between two notes of a trial's progress in the bucket
HEARTBEAT_INTERVAL_S = 1.0  # seconds between two heartbeats while something is downloaded or uploaded
log = logging.getLogger(__name__)


class Sending:
    """Sends what rank 0 wrote for a report before it is handed on."""

    def __init__(self, inner: Reporter, mirror: Mirror, folder: Path, rank: int, timeout: float) -> None:
        self._inner, self._mirror, self._folder, self._rank, self._timeout = inner, mirror, folder, rank, timeout

    def report(self, report: Report) -> bool:
        if self._rank == 0:
            try:
                self._push(LAST_UPLOAD_FACTOR * self._timeout if report.last else min(UPLOAD_WAIT_S, self._timeout))
            except ObjectStoreError as error:
                if report.last:
                    raise
                report = replace(report, facts={**report.facts, "unsent": str(error)})
        return self._inner.report(report)

    def stopped(self) -> bool:
        return self._inner.stopped()

    def checkpoint_saved(self) -> None:
        """Sends a checkpoint between two reports. If the store is away, a later one or a report sends it."""
        with suppress(ObjectStoreError):
            self._push(min(UPLOAD_WAIT_S, self._timeout))

    def _push(self, seconds: float) -> None:
        with_retries(lambda: push_trial(self._mirror, self._folder), seconds, self.stopped)


def with_retries(request: Callable[[], object], seconds: float, alive: Callable[[], object]) -> None:
    """The request, tried again for these seconds while the store does not answer.

    Meanwhile, `alive` says now and then that the trial waits and does not hang."""
    deadline, done = time.monotonic() + seconds, threading.Event()
    threading.Thread(target=_say_now_and_then, args=(alive, done), daemon=True).start()
    try:
        while True:
            try:
                request()
                return
            except ObjectStoreError as error:
                if time.monotonic() > deadline or is_local(error.__cause__):
                    raise
            time.sleep(0.5)  # the store's own tries, which came before, have jitter
    finally:
        done.set()


def _say_now_and_then(alive: Callable[[], object], done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_INTERVAL_S):
        with suppress(Exception):  # the receiver is away; the next heartbeat may arrive
            alive()


def _open(where: StorageLocation) -> Mirror:
    """The storage's mirror on this node. `NodeError` if the node lacks the package that reads the bucket."""
    try:
        return Mirror(replace(where, timeout=min(UPLOAD_WAIT_S, where.timeout)))
    except ClusterError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise NodeError(f"cannot open the storage: {error}") from error


@contextmanager
def on_this_node(
    assignment: TrialAssignment, reports: Reporter, rank: int, world: int, device: str
) -> Iterator[tuple[TrialAssignment, Reporter]]:
    """The assignment with this node's paths, and the connection to the dispatcher that sends checkpoints first.

    Raises `NodeError` if this node has no package for the bucket, or its disk refuses what is brought or made."""
    where = assignment.mirror
    assert where is not None, "the assignment names no mirror"
    mirror = _open(where)
    prepared, folder = mirror.path(assignment.prepared), mirror.path(assignment.folder)
    if assignment.token:
        mirror.fence = trial_fence(BucketLease(mirror.store, assignment.folder.split("/")[1]), assignment.token)

    def waiting(request: Callable[[], object]) -> None:
        with_retries(request, LAST_UPLOAD_FACTOR * where.timeout, reports.stopped)

    def unfit(why: object) -> NodeError:
        return NodeError(f"cannot keep a copy of the storage in {mirror.folder} ({why}); make room there")

    try:
        if where.unused_days is not None and rank == 0:
            with suppress(ObjectStoreError):  # there is room until the disk says otherwise
                evict(mirror, older_s=where.unused_days * DAY_S)
        waiting(lambda: bring_prepared(mirror, prepared))
        settle(mirror, folder, waiting, rank, world, device)
    except (ObjectStoreError, OSError) as error:
        if not is_local(why := error.__cause__ if isinstance(error, ObjectStoreError) else error):
            raise
        raise unfit(why) from error
    ended = threading.Event()
    thread = threading.Thread(target=_note_progress, args=(mirror, folder, ended), daemon=True)
    if rank == 0:
        thread.start()
    try:
        sending = Sending(reports, mirror, folder, rank, where.timeout)
        yield replace(assignment, prepared=str(prepared), folder=str(folder), storage=str(mirror.folder)), sending
        if rank == 0:
            # what a stop left between two reports; without it a trial repeats some steps
            with suppress(ObjectStoreError, OSError, FencedError):
                push_trial(mirror, folder)
    except StorageError as error:
        if not isinstance(why := error.__cause__, OSError | SafetensorError):
            raise
        raise unfit(why) from error
    finally:
        ended.set()
        if rank == 0:
            thread.join(UPLOAD_WAIT_S)


def _note_progress(mirror: Mirror, folder: Path, ended: threading.Event) -> None:
    while not ended.wait(PROGRESS_INTERVAL_S):
        try:
            mirror.push(folder / PROGRESS)
        except (ObjectStoreError, OSError):
            continue  # a checkpoint will say what the store or this disk refuses
        except FencedError:
            return  # and so will it


def bring_prepared(mirror: Mirror, path: Path) -> Prepared:
    """The prepared data of the sweep of this record, here; `StoreError` if the bucket does not have it."""
    with mirror.in_turn(mirror.key(path)):
        mirror.fetch(mirror.key(path))
        if not path.exists():
            raise StoreError(f"the storage {mirror.store.uri} has no {mirror.key(path)}; `babeltune resume` sends it")
    prepared = read_prepared(path)
    bring_stores(mirror, prepared)
    return prepared


# A trial's checkpoints


def settle(
    mirror: Mirror, folder: Path, waiting: Callable[[Callable[[], object]], None], rank: int, world: int, device: str
) -> None:
    """All ranks have the same reports and checkpoints: those of the node or of the bucket that go further."""
    key = mirror.key(folder)
    if rank == 0:
        with mirror.in_turn(key):
            waiting(lambda: pull_trial(mirror, folder))
            waiting(lambda: push_trial(mirror, folder))
    if world == 1:
        return
    first_state = ProcessGroup().of_first(state_of(folder) if rank == 0 else 0, device)
    if rank and state_of(folder) != first_state:
        with mirror.in_turn(key):
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            (folder / REPORTS).unlink(missing_ok=True)
            mirror.forget(f"{key}/{REPORTS}")
            waiting(lambda: pull_trial(mirror, folder))
        if state_of(folder) != first_state:
            raise ObjectStoreError(
                f"the storage {mirror.store.uri} does not have the checkpoint of {key} from which rank 0 goes on"
            )


def pull_trial(mirror: Mirror, folder: Path) -> None:
    """Brings the trial's checkpoints and reports here if the bucket's go further; damaged ones are passed over, and
    those that were damaged here are replaced.

    Raises `FencedError` if another driver has the trial's sweep."""
    key = mirror.key(folder)
    data, stamp = _adopted(mirror, key)
    names = checkpoints_there(mirror, key, stamp.since)
    _discard_older(folder, stamp)
    for path in _checkpoints(folder):
        if not _sound(mirror, path) or (path == stopped_folder(folder) and _goes_further(mirror, path, names)):
            shutil.rmtree(path)
    have = len(last_good(folder))
    draft = mirror.folder / ".pulling" / key.replace("/", "-")
    draft.mkdir(parents=True, exist_ok=True)

    def bring(name: str) -> bool:
        return mirror.pull_package(f"{key}/checkpoints/{names[name]}", folder / "checkpoints" / name)

    try:
        (draft / REPORTS).write_bytes(data)
        reports = read_reports(draft)
        numbers = {int(name) for name in names if name.isdigit() and int(name) <= len(reports)}
        newer = sorted((index for index in numbers if index > have), reverse=True)
        brought = [bring(checkpoint_folder(folder, index).name) for index in newer]
        if any(brought) or (not newer and len(reports) == have):
            for name in names.keys() - {f"{index:06d}" for index in newer}:  # the best one; one between two reports
                bring(name)
        if any(brought):
            (draft / REPORTS).replace(folder / REPORTS)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _adopted(mirror: Mirror, key: str) -> tuple[bytes, Stamp]:
    """The trial's reports in the bucket, with their stamp.

    The driver has written its token into the reports of all trials that it goes on with. Reports with an older one are
    of another driver, which has begun a trial under this number since: they are replaced by none."""
    at, fence = f"{key}/{REPORTS}", mirror.fence
    if fence is None:
        data, written = unstamped(mirror.store.read(at) or b"")
        return data, written or Stamp(0)
    while True:
        entry = mirror.store.entry(at)
        data, written = unstamped(mirror.store.read(at) or b"")
        fence.check()
        own_stamp = Stamp(fence.token, fence.token)
        if written is not None and written.token > fence.token:
            raise FencedError(f"{at} has a later fencing token than this trial; `babeltune resume` begins it again")
        if entry is None or (written is not None and written.token == fence.token):
            stamp = written or own_stamp
            break
        if mirror.store.write_if(at, own_stamp.line(), entry.version) is not None:
            data, stamp = b"", own_stamp
            break
    fence.since = stamp.since
    return data, stamp


def _discard_older(folder: Path, stamp: Stamp) -> None:
    """Removes what this node has of another trial of the same number, and notes under which token it works now."""
    note = folder / ".token"
    with suppress(OSError, ValueError):
        if int(note.read_text(encoding="utf-8")) >= stamp.since:
            return
    if stamp.since:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        (folder / REPORTS).unlink(missing_ok=True)
    if stamp.token:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(note, str(stamp.token).encode())


def push_trial(mirror: Mirror, folder: Path) -> None:
    """Sends checkpoints that the bucket lacks, then the reports, and removes there what they superseded. One that was
    damaged here is not sent: the bucket may have it whole.

    Raises `FencedError` if another driver has the trial's sweep."""
    paths = _checkpoints(folder)
    if mirror.fence is not None and paths:
        mirror.fence.check()
    entries = mirror.store.entries(f"{mirror.key(folder)}/checkpoints") if paths else {}
    names = _push_checkpoints(mirror, folder, paths, entries)
    mirror.push(folder / PROGRESS)
    if mirror.push(folder / REPORTS) and paths:
        _drop_older(mirror, folder, paths, names, entries)


def _push_checkpoints(mirror: Mirror, folder: Path, paths: list[Path], entries: Mapping[str, Entry]) -> set[str]:
    """The names in the bucket of the trial's checkpoints, once all are there that are sound here."""
    prefix = f"{mirror.key(folder)}/checkpoints"
    since = mirror.fence.since if mirror.fence is not None else 0
    names, current = latest_names(prefix, entries, since), set()
    for path in paths:
        latest = names.get(path.name)
        if latest is None or (_sound(mirror, path) and not mirror.has_package(path, f"{prefix}/{latest}", entries)):
            latest = path.name if mirror.fence is None else f"{path.name}-{mirror.fence.token}"
            if _sound(mirror, path):
                tell = partial(_note_upload, folder, time.time())
                mirror.push_package(path, f"{prefix}/{latest}", tell, entries)
        current.add(latest)
    return current


def _note_upload(folder: Path, begun: float, done: int, of: int) -> None:
    """Writes to the trial's `progress.json` how much of a checkpoint has been sent, if that takes long."""
    now = time.time()
    if now - begun < LEAST_RATED_S:
        return
    with suppress(OSError, ValueError):  # it is for readers only
        progress = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        stage = Stage(name=f"{UPLOADING} a checkpoint", done=done, of=of, begun=begun, time=now)
        write_json(folder / PROGRESS, {**progress, "stage": plain(stage)}, durable=False)


def _drop_older(mirror: Mirror, folder: Path, paths: list[Path], names: set[str], entries: Mapping[str, Entry]) -> None:
    """Removes checkpoints from the bucket, whose listing is `entries`, that this trial's reports have superseded."""
    prefix = f"{mirror.key(folder)}/checkpoints"
    last = max((path for path in paths if path.name.isdigit()), default=None)
    token = mirror.fence.token if mirror.fence is not None else 0
    latest, needed = (int(last.name), _needed(folder, last)) if last is not None else (0, None)

    def is_old(name: str) -> bool:
        base, written = parts_of(name)
        if written > token or name in names:  # a later one is of another worker, to whom a new driver gave the trial
            return False
        if any(parts_of(each)[0] == base for each in names):
            return True
        if base.isdigit():
            return needed is not None and int(base) <= latest and base not in needed
        return _place(_state_there(mirror, f"{prefix}/{name}"))[0] < latest

    mirror.drop_packages([f"{prefix}/{name}" for name in sorted(filter(is_old, names_in(prefix, entries)))], entries)


def _needed(folder: Path, last: Path) -> set[str] | None:
    """The names of the trial's last checkpoint and its best one, which its settings tell; None if they are damaged."""
    try:
        trial: Any = read_state(last)["trial"]
        objectives = [Objective(**each) for each in trial["objectives"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    best = best_report(read_reports(folder), *objectives)
    return {last.name} | ({checkpoint_folder(folder, best.index).name} if best else set())


def _state_there(mirror: Mirror, package: str) -> dict[str, Any]:
    """The state of a checkpoint in the bucket; empty if it cannot be read."""
    with suppress(ValueError, TypeError):
        return dict(json.loads(mirror.store.read(f"{package}/state.json") or b"{}"))
    return {}


def _checkpoints(folder: Path) -> list[Path]:
    place = folder / "checkpoints"
    return sorted(path for path in place.iterdir() if (path / MANIFEST).exists()) if place.exists() else []


def _sound(mirror: Mirror, checkpoint: Path) -> bool:
    """Whether the checkpoint is as its manifest says. Files that did not change since they were sealed are not read."""
    digests = {name: facts["sha256"] for name, facts in mirror.files_of(checkpoint).items() if name != MANIFEST}
    try:
        recorded = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError):
        recorded = None
    if digests != recorded:
        log.warning("the checkpoint %s is damaged", checkpoint)
    return bool(digests == recorded)


def _goes_further(mirror: Mirror, stopped: Path, names: Mapping[str, str]) -> bool:
    """Whether the bucket's checkpoint of a stop is of a later step than this one."""
    if stopped.name not in names:
        return False
    stored_state = _state_there(mirror, f"{mirror.key(stopped.parent)}/{names[stopped.name]}")
    with suppress(ValueError, AttributeError):
        return _place(stored_state) > _place(read_state(stopped))
    return False


def _place(state: dict[str, Any]) -> tuple[int, int]:
    """How far a trial was when it stopped: its reports, and its step."""
    return state.get("reports", 0), state.get("interval", {}).get("step", 0)


# Tasks that read what was prepared


def with_prepared(where: StorageLocation | None, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` on any node; its last argument, a `Prepared`, is replaced by that node's own."""
    if where is None:
        return function(*arguments)
    mirror = Mirror(where)
    return function(*arguments[:-1], bring_prepared(mirror, mirror.path(key)))
