"""A cluster's storage as this machine sees it, for commands that read, promote or evaluate.

If the storage is a folder, nothing is moved. If it is a URI, a mirror on this machine is brought up to date
before it is read, and what is written goes to the bucket."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import ObjectStoreError, StoreError
from babeltune.files import locked, make_folders, remove_folder, write_whole
from babeltune.schema.cluster import Cluster
from babeltune.storage.mirror import Mirror, Stamp, unstamped
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import manifest_key, together
from babeltune.sweep.state.fencing import OWNER
from babeltune.sweep.state.folder import LABELS, REQUESTS, SweepFolder, find_sweep, sweep_folders
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.state.progress import STAGE
from babeltune.sweep.state.stored import BucketStorage, FolderStorage, Storage, undriven
from babeltune.tracking.sweep_runs import CURSOR
from babeltune.training.checkpoint import PROGRESS, REPORTS, checkpoint_folder

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared

OF_DRIVERS = (CURSOR,)
"""The driver's note of what MLflow has, which changes with each event. A follower reads it once and not again."""
OPENINGS_FOLDER = "openings"  # in the bucket, the folder of the openings of sealed tests: an object each
OPENINGS_FILE = "openings.jsonl"  # in the storage, the same openings, a line each
DECIDING = "deciding"  # in the storage, the folder of decisions of promotions that are not written everywhere yet
DELETED = "deleted"
"""In a bucket, the folder of the ids of deleted sweeps. Mirrors on other machines remove their copies by it."""
OF_WORKERS = (REPORTS, PROGRESS)  # the records that a trial's worker changes; all others are the driver's
SCRATCH = ("train", "tune", "checkpoints", REQUESTS)
"""Folders whose files are no records: Ray's state, checkpoints (sent as packages), requests."""
COMMAND_TIMEOUT_S = 30.0  # seconds that a command waits for a bucket at most, though a driver may wait for longer
NOT_MIRRORED = ("stop", OWNER)  # files that are sent in another way: the stop request and the lease


def is_record(name: str) -> bool:
    """Whether a file of a sweep's folder, named relative to it, is one that a mirror keeps in step."""
    parts = name.split("/")
    if any(part.startswith(".") for part in parts) or set(SCRATCH) & set(parts[:-1]):
        return False
    return not name.endswith(".lock") and name not in NOT_MIRRORED


def records_in(folder: Path) -> Iterator[Path]:
    """The driver's records in a sweep's folder. The log first, the state last."""

    def walk(place: Path) -> Iterator[Path]:
        for path in place.iterdir():
            if path.is_dir():
                if path.name not in SCRATCH and not path.name.startswith("."):
                    yield from walk(path)
            elif is_record(path.relative_to(folder).as_posix()) and path.name not in OF_WORKERS:
                yield path

    order = {LEDGER: 1, "state.json": 3}
    yield from sorted(walk(folder), key=lambda path: (order.get(path.name, 2), path)) if folder.exists() else ()


POLL_INTERVAL_S = 2.0  # seconds between two looks at the few records that say whether anything happened
LISTING_INTERVAL_S = 60.0  # seconds between two listings of a sweep. Progress within a report is seen as late.
PULSE = (OWNER, "state.json", STAGE)  # small records that change while a sweep goes on
LOG = "driver.log"  # the driver's log. It only grows, as the ledger does, so that its new lines alone are downloaded.


class SweepFollower:
    """Keeps a mirror's copy of a sweep in step with the bucket while somebody reads it, such as `babeltune status -f`.

    Every two seconds it asks for a few records. If the ledger has new lines, it also asks how far each running trial
    is. It lists the sweep once a minute, and when the sweep has another state or stage. So a busy sweep costs what has
    happened in it, however large it is."""

    def __init__(self, mirror: Mirror, sweep: str, pull: Callable[[], None]) -> None:
        """`pull` lists the sweep, and brings all that has changed."""
        self._mirror, self._key, self._pull = mirror, f"sweeps/{sweep}", pull
        self._folder = SweepFolder(mirror.path(self._key))
        self._polled = self._listed = time.monotonic()
        self._seen = self._standing()

    def refresh(self) -> None:
        """Brings here what has changed, if the last look was long enough ago."""
        if time.monotonic() - self._polled <= POLL_INTERVAL_S:
            return
        with contextlib.suppress(ObjectStoreError):  # the reader may try again
            self._look()
        self._polled = time.monotonic()

    def _look(self) -> None:
        with undriven(self._mirror, self._folder.id) as free:
            if not free:  # this machine's driver writes the folder
                return
            together(self._mirror.fetch, [f"{self._key}/{name}" for name in PULSE])
            self._mirror.extend(f"{self._key}/{LOG}")
            gained = self._mirror.extend(f"{self._key}/{LEDGER}")
            if gained:
                running = [each.name for each in log_of(self._folder.path).trials.values() if each.state == "running"]
                together(self._mirror.fetch, [f"{self._key}/trials/{name}/{PROGRESS}" for name in running])
        standing = self._standing()
        if gained is None or standing != self._seen or time.monotonic() - self._listed > LISTING_INTERVAL_S:
            self._pull()
            self._seen, self._listed = standing, time.monotonic()

    def _standing(self) -> tuple[object, object]:
        """The sweep's state, and the name of its stage. With another one, there are other records."""
        return self._folder.read("state.json"), (self._folder.read(STAGE) or {}).get("name")


class StorageView:
    """A cluster's storage, as this machine sees it."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises `ClusterError` for a URI whose protocol is unknown or not installed."""
        self.cluster, self.folder = cluster, cluster.folder
        where = cluster.mirrored
        self.mirror = None if where is None else Mirror(replace(where, timeout=min(where.timeout, COMMAND_TIMEOUT_S)))

    @property
    def storage(self) -> Storage:
        """The storage itself, for who asks whether a driver may have a sweep."""
        return FolderStorage(self.folder) if self.mirror is None else BucketStorage(self.mirror)

    def sweep(self, name: str | None) -> SweepFolder:
        """`find_sweep`, with everything but stores and checkpoints brought here; it stays in step while it is read."""
        self.update(name)
        return self._in_step(find_sweep(self.folder, name))

    def at(self, sweep: str) -> SweepFolder:
        """The folder of the sweep with this id, whether there is one or not."""
        folder = SweepFolder(self.folder / "sweeps" / sweep)
        if self.mirror is None:
            return folder
        self._pull(sweep)
        return self._in_step(folder)

    def update(self, name: str | None = None, *, every: bool = False) -> None:
        """Brings here what the bucket has of the sweep that `name` means, or of every one."""
        if self.mirror is None:
            return
        mirror = self.mirror
        ids = mirror.store.folders("sweeps")
        together(mirror.fetch, [f"sweeps/{id_}/{file}" for id_ in ids for file in ("sweep.json", LABELS)])
        for folder in sweep_folders(self.folder):
            if folder.id not in ids and mirror.store.entry(f"{DELETED}/{folder.id}.json") is not None:
                _forget(mirror, folder)
        if ids and not every:
            ids = [id_ for id_ in ids if id_ == find_sweep(self.folder, name).id]
        for id_ in ids:
            self._pull(id_)
        self._pull_openings(mirror)

    def _in_step(self, folder: SweepFolder) -> SweepFolder:
        if self.mirror is None:
            return folder
        pull = functools.partial(self._pull, folder.id, without=OF_DRIVERS)
        return replace(folder, refresh=SweepFollower(self.mirror, folder.id, pull).refresh)

    def _pull(self, sweep: str, without: Collection[str] = ()) -> None:
        assert self.mirror is not None
        with undriven(self.mirror, sweep) as free:
            if free:
                self._drop_stale_lease(sweep)
                records = records_there(self.mirror, sweep, also=OWNER)
                self.mirror.pull({key: entry for key, entry in records.items() if key.split("/")[-1] not in without})

    def _drop_stale_lease(self, sweep: str) -> None:
        """Removes this machine's copy of the lease if a driver here wrote it last: the bucket's may be newer."""
        assert self.mirror is not None
        lease = self.folder / "sweeps" / sweep / OWNER
        if self.mirror.waits(lease):
            lease.unlink(missing_ok=True)

    def ask(self, folder: SweepFolder, event: Mapping[str, object]) -> None:
        """Asks the sweep's driver, wherever it is, to add an event to the ledger (`changes.py`)."""
        name, data = f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json", json.dumps(event, ensure_ascii=False).encode()
        self.put(f"sweeps/{folder.id}/{REQUESTS}/{name}", data)

    def ask_to_stop(self, folder: SweepFolder) -> None:
        """Leaves word for the driver, wherever it is."""
        folder.stop_request.touch()
        if self.mirror is not None:
            self.mirror.store.write(f"sweeps/{folder.id}/stop", b"stop\n")

    def download_checkpoint(self, folder: SweepFolder, number: int, report: int, prepared: Prepared) -> None:
        """Brings a trial's checkpoint here, and the stores that the sweep's trials read."""
        if self.mirror is not None:
            bring_stores(self.mirror, prepared)
            bring_checkpoint(self.mirror, checkpoint_folder(folder.trial(number), report))

    def download_stores(self, prepared: Prepared) -> None:
        """Brings here the stores that the sweep's trials read."""
        if self.mirror is not None:
            bring_stores(self.mirror, prepared)

    def upload_record(self, path: Path) -> None:
        """Sends a record of a sweep's folder that no driver writes, such as its report."""
        if self.mirror is not None:
            self.mirror.push(path)

    def upload_folder(self, package: Path) -> None:
        """Sends a finished folder, such as an exported model."""
        if self.mirror is not None:
            self.mirror.push_package(package)

    def put(self, key: str, data: bytes) -> None:
        """Writes an object into the storage itself, durably."""
        if self.mirror is not None:
            self.mirror.store.write(key, data)
        else:
            make_folders((self.folder / key).parent)
            write_whole(self.folder / key, data, durable=True)

    def deciding(self) -> list[str]:
        """The keys of decisions of promotions that are not written everywhere yet; none if the storage is away."""
        with contextlib.suppress(ObjectStoreError, OSError):
            return sorted(key for key in self.storage.entries(DECIDING) if key.endswith(".json"))
        return []

    def drop(self, key: str) -> None:
        """Removes an object that `put` wrote, which may be gone."""
        if self.mirror is not None:
            self.mirror.store.remove(key)
        else:
            (self.folder / key).unlink(missing_ok=True)

    # Openings of sealed tests: each is an object, so that two machines never write the same one

    @contextlib.contextmanager
    def openings(self) -> Iterator[None]:
        """Brings `openings.jsonl` up to date, and sends what the body adds to the bucket, also after an error."""
        if self.mirror is not None:
            self._pull_openings(self.mirror)
        try:
            yield
        finally:
            if self.mirror is not None:
                entries = self.mirror.store.entries(OPENINGS_FOLDER)
                for line in self._opened():  # Damaged lines stay on this machine.
                    if _time_of(line) and (key := _key_of(line)) not in entries:
                        self.mirror.store.write(key, line)

    def _opened(self) -> list[bytes]:
        path = self.folder / OPENINGS_FILE
        return [line for line in path.read_bytes().splitlines() if line] if path.exists() else []

    def _pull_openings(self, mirror: Mirror) -> None:
        with locked(self.folder / OPENINGS_FILE):
            local_lines = self._opened()
            keys = set(map(_key_of, local_lines))
            missing = [mirror.store.read(key) for key in mirror.store.entries(OPENINGS_FOLDER) if key not in keys]
            if missing:
                lines = local_lines + [line for line in missing if line is not None]
                whole = b"".join(line + b"\n" for line in sorted(lines, key=_time_of))
                write_whole(self.folder / OPENINGS_FILE, whole, durable=True)


def _forget(mirror: Mirror, folder: SweepFolder) -> None:
    """Removes this machine's copy of a sweep that was deleted, unless a driver has it or it holds something new."""
    with undriven(mirror, folder.id) as free:
        if free and not any(map(mirror.waits, records_in(folder.path))):
            remove_folder(folder.path, mirror.folder)
            mirror.forget(f"sweeps/{folder.id}")


def _key_of(line: bytes) -> str:
    return f"{OPENINGS_FOLDER}/{hashlib.sha256(line).hexdigest()}.json"


def _time_of(line: bytes) -> str:
    try:
        return str(json.loads(line)["time"])
    except (ValueError, KeyError, TypeError):
        return ""


def records_there(mirror: Mirror, sweep: str, *, also: str = "") -> dict[str, Entry]:
    """The records of a sweep in the bucket."""
    prefix = f"sweeps/{sweep}/"
    entries = mirror.store.entries(prefix.rstrip("/"))
    names = {key: key.removeprefix(prefix) for key in entries}
    return {key: entries[key] for key, name in names.items() if is_record(name) or name == also}


def stores_of(mirror: Mirror, prepared: Prepared) -> list[str]:
    """The keys of the stores that a sweep's trials read, as far as they are the mirror's."""
    return [mirror.key(path) for path in prepared.folders() if path.is_relative_to(mirror.folder)]


def bring_stores(mirror: Mirror, prepared: Prepared) -> None:
    """Downloads the stores that are not here; `StoreError` for one that the bucket does not have."""
    for key in stores_of(mirror, prepared):
        if not mirror.pull_package(key):
            raise StoreError(
                f"the storage {mirror.store.uri} has no sound {key}; `babeltune resume` on the machine that "
                "prepared the sweep sends it again, and on any other prepares it again"
            )


# A trial's checkpoints in a bucket: `000003-7` is that of the third report, sent under the token 7 of its driver.
# So a late worker of an earlier driver never changes one that another reads. Without a driver there is no token.


def names_in(prefix: str, keys: Iterable[str]) -> set[str]:
    """The names of the folders right below a key, from a listing of its objects."""
    return {at.removeprefix(f"{prefix}/").partition("/")[0] for at in keys}


def parts_of(name: str) -> tuple[str, int]:
    """A checkpoint's name in a trial's folder, and the token under which it was sent."""
    base, _, token = name.partition("-")
    return base, int(token) if token.isdigit() else 0


def latest_names(prefix: str, entries: Mapping[str, Entry], since: int) -> dict[str, str]:
    """By its name in a folder, the name in the bucket of each sealed checkpoint: that of the latest driver."""
    latest: dict[str, str] = {}
    for name in sorted(names_in(prefix, entries), key=parts_of):
        base, token = parts_of(name)
        if manifest_key(f"{prefix}/{name}") in entries and token >= since:
            latest[base] = name
    return latest


def checkpoints_there(mirror: Mirror, key: str, since: int) -> dict[str, str]:
    """By its name in a folder, the name of each of the trial's sealed checkpoints in the bucket."""
    prefix = f"{key}/checkpoints"
    return latest_names(prefix, mirror.store.entries(prefix), since)


def bring_checkpoint(mirror: Mirror, folder: Path) -> bool:
    """Whether a trial's checkpoint is in this folder, where it is downloaded to if need be."""
    key = mirror.key(folder.parents[1])
    stamp = unstamped(mirror.store.read(f"{key}/{REPORTS}") or b"")[1] or Stamp(0)
    name = checkpoints_there(mirror, key, stamp.since).get(folder.name, folder.name)
    return mirror.pull_package(f"{key}/checkpoints/{name}", folder)
