"""A storage as who removes something from it sees it: its objects, and which of its sweeps a driver may have.

Every time is of the storage's own clock, which dates its objects. What is not known counts as driven: a sweep that
rests is cleaned another time. Only what readers are shown, `driven_elsewhere`, compares the clocks of two machines."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from babeltune.errors import ObjectStoreError, SweepError
from babeltune.files import draft_of
from babeltune.machine import this_machine
from babeltune.schema.storage_location import DAY_S
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.sweep.state.fencing import EXPIRY_S, OWNER, FileLease, Lease
from babeltune.sweep.state.folder import SweepFolder

DAMAGED_S = DAY_S
"""Seconds after which a damaged lease is no driver's. One that lives writes its own again every few seconds."""
RESOLUTION_S = 1.0  # seconds by which a storage's time may be cut: S3 gives whole seconds


def here(folder: SweepFolder) -> dict[str, str]:
    """This machine and folder, which share a lock."""
    return {"host": socket.gethostname(), "machine": this_machine(), "folder": str(folder.path.absolute())}


def is_locked(folder: SweepFolder) -> bool:
    """Whether a driver holds the sweep's lock, which drivers of one folder on one machine share."""
    with suppress(OSError):  # there is no such file yet, or it may not be read
        lock = os.open(folder.path / "driver.lock", os.O_RDONLY)  # a reader may not be able to write
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def heartbeat_age(owner: dict[str, Any] | None, folder: SweepFolder) -> float | None:
    """Seconds since the last heartbeat of a driver on another machine; None if there is none that may be alive.

    Far below 0 if its clock, or this machine's, was wrong: then the age does not show whether it is alive."""
    if not owner or owner.get("ended") or here(folder).items() <= owner.items():
        return None
    ago = time.time() - float(owner.get("beat", 0))
    return ago if ago < _expiry(owner) else None


def _expiry(owner: dict[str, Any]) -> float:
    """Seconds without a heartbeat after which another driver may take the sweep."""
    return float(owner.get("expiry_s", EXPIRY_S))


def driven_elsewhere(folder: SweepFolder) -> bool:
    """Whether a driver on another machine has sent a heartbeat a moment ago."""
    owner = folder.read(OWNER)
    ago = heartbeat_age(owner, folder)
    if owner is None or ago is None:
        return False
    if ago < -_expiry(owner):
        ago = time.time() - (folder.path / OWNER).stat().st_mtime  # the store's own time of the word
    return ago < _expiry(owner)


def is_free(storage: Storage, sweep: str) -> bool:
    """Whether the next driver would take the sweep's lease at once, or after it has watched it for a whole expiry.

    The caller has what keeps drivers of this machine out. So a lease of this machine is a dead driver's."""
    folder = SweepFolder(storage.folder / "sweeps" / sweep)
    if is_locked(folder):
        return False
    owner = storage.look(f"sweeps/{sweep}/{OWNER}")
    if owner is None:
        return True
    data, changed = owner
    lease, now = Lease.read(data), storage.now
    if lease is None:  # it is damaged, and a driver that lives would have written it again
        return now is not None and now - changed > DAMAGED_S
    if lease.ended or lease.shares_lock(Lease(folder=here(folder)["folder"])):
        return True
    return now is not None and now - changed > lease.expiry_s


def may_be_driven(storage: Storage, sweep: str) -> bool:
    """Whether a driver may have the sweep."""
    with storage.at_rest(sweep) as rests:
        return not rests


def may_prepare(storage: Storage, sweep: str) -> bool:
    """Whether a driver may be looking for stores. It has not written yet, under this lease, which ones it reads."""
    if not may_be_driven(storage, sweep):
        return False
    owner, prepared = (storage.look(f"sweeps/{sweep}/{name}") for name in (OWNER, "prepared.json"))
    lease = Lease.read(owner[0]) if owner else None
    if owner is None or prepared is None or lease is None or lease.ended or not lease.taken_at:
        return True  # a driver of this machine that has no lease yet has only begun
    return prepared[1] <= owner[1] - (lease.beat - lease.taken_at) + RESOLUTION_S


@dataclass(frozen=True)
class FolderStorage:
    """A storage that is a folder. A `BucketStorage` has the same methods."""

    folder: Path  # where its sweeps are on this machine

    @cached_property
    def now(self) -> float | None:
        """A time that has passed, by the storage's clock; None if it is not known."""
        draft = draft_of(self.folder / "now")
        with suppress(OSError):
            draft.touch()
            try:
                return draft.stat().st_mtime
            finally:
                draft.unlink()
        return None

    def sweeps(self) -> list[str]:
        """The ids of all sweeps, also of those that have only begun."""
        parent = self.folder / "sweeps"
        return sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []

    def entries(self, prefix: str) -> dict[str, Entry]:
        """The objects below a key. Empty folders are listed, too."""
        entries = {}
        for place, folders, files in os.walk(self.folder / prefix):
            for path in [Path(place, name) for name in files] if files or folders else [Path(place)]:
                with suppress(FileNotFoundError):  # it went meanwhile
                    stat = path.stat()
                    size = stat.st_size if files else 0
                    entries[path.relative_to(self.folder).as_posix()] = Entry(size, "", stat.st_mtime)
        return entries

    def look(self, key: str) -> tuple[bytes, float] | None:
        """An object, and when it changed; None if it is not there."""
        try:
            with (self.folder / key).open("rb") as file:  # on NFS, opening asks the server
                return file.read(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None

    @contextmanager
    def at_rest(self, sweep: str) -> Iterator[bool]:
        """Whether no driver may have the sweep. Within the block none takes the lease."""
        path = self.folder / "sweeps" / sweep
        with ExitStack() as lock_stack:
            try:
                lock_stack.enter_context(FileLease(path).locked())
                rests = is_free(self, sweep)
            except (OSError, SweepError):  # another user's, or a driver is taking it
                rests = False
            yield rests


def undriven(mirror: Mirror, sweep: str) -> AbstractContextManager[bool]:
    """Whether no driver on this machine has the sweep. Within the block none begins.

    A driver's folder is what the bucket will be, so nobody else changes it."""
    return mirror.lock(f"sweeps/{sweep}", 0.0)


@dataclass(frozen=True)
class BucketStorage:
    """A storage that is a bucket. Each question is asked of the bucket, and not of the mirror."""

    mirror: Mirror

    @property
    def folder(self) -> Path:
        return self.mirror.folder

    @cached_property
    def now(self) -> float | None:
        with suppress(ObjectStoreError):
            return self.mirror.store.now()
        return None

    def sweeps(self) -> list[str]:
        return self.mirror.store.folders("sweeps")

    def entries(self, prefix: str) -> Mapping[str, Entry]:
        return self.mirror.store.entries(prefix)

    def look(self, key: str) -> tuple[bytes, float] | None:
        entry = self.mirror.store.entry(key)
        data = self.mirror.store.read(key) if entry else None
        return None if entry is None or data is None else (data, entry.modified)

    @contextmanager
    def at_rest(self, sweep: str) -> Iterator[bool]:
        """A driver on another machine may take the lease within the block, and find what is removed gone."""
        with undriven(self.mirror, sweep) as here:
            yield here and is_free(self, sweep)


Storage = FolderStorage | BucketStorage
