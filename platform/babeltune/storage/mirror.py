"""A folder that mirrors a bucket: programs read the folder, and the bucket keeps what must last.

A *package* is a folder that never changes once it is there: a store, a checkpoint, a model. A manifest is written last
and holds the size and SHA-256 of each object. For a reader, a package without a manifest does not exist, and one that
differs from its manifest is skipped. A *record* is a file that one process changes; it is pushed when it has changed. A
pull never replaces a record with changes that wait to be pushed.

    <folder>/.seals/<key>.json     size and SHA-256 of a package's files, and the versions of these files
    <folder>/.synced/<key>.json    which version of a record it has

A mirror with a `fence` changes a record only if it is as this process knows it, or if it still holds the lease. A
bucket has no locks. It can only refuse a write to an object that has changed. So a new holder of the lease first writes
its token into the records that decide results. A late write of an earlier holder expects the record as it was before,
and the bucket refuses it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babeltune.files import draft_of, version
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import Packages, document, together, write_below

STAMPED = re.compile(rb'\n\{"lease": ([0-9]+), "since": ([0-9]+)\}\n\Z')
OVERLAP = 1024  # bytes of a record that only grows which are downloaded again, to see that it is still the same one


@dataclass(frozen=True)
class Stamp:
    """The last line of a record in the bucket: under which token it was written. Files on a disk do not have it."""

    token: int
    since: int = 0
    """The first token whose checkpoints count. Older ones are of another driver's trial under this number."""

    def line(self) -> bytes:
        return b'\n{"lease": %d, "since": %d}\n' % (self.token, self.since)


def unstamped(data: bytes) -> tuple[bytes, Stamp | None]:
    """A record's content and its stamp."""
    if (stamp := STAMPED.search(data)) is None:
        return data, None
    return data[: stamp.start()], Stamp(int(stamp[1]), int(stamp[2]))


@dataclass
class Fence:
    """The check of a mirror before it changes a record."""

    token: int  # the fencing token under which this process writes
    check: Callable[[], None]  # reads the lease, and raises if another process has it
    stamped: str  # the name of the records that have a stamp
    before_write: Callable[[], None] = lambda: None
    """Raises if this process knows, without asking, that it may write no more. A worker does not know it."""
    since: int = 0  # the first token whose checkpoints count, as a trial's reports in the bucket say

    def stamp(self, key: str) -> Stamp | None:
        """The stamp to write below a record's content; None for a record without a stamp."""
        return Stamp(self.token, self.since) if key.endswith(f"/{self.stamped}") else None


class Mirror(Packages):
    """The mirror of a bucket in a folder, with packages and records. Any number of processes may use one folder."""

    def __init__(self, where: StorageLocation) -> None:
        super().__init__(where)
        self.fence: Fence | None = None
        """The fence that keeps this process from changing records without their lease; None: it is alone."""
        self._versions: dict[str, dict[str, Any]] = {}

    def waits(self, path: Path) -> bool:
        """Whether the file has changes that the bucket does not have."""
        record = self._record_of(self.key(path))
        return record is None or record["file"] != version(path)

    def push(self, path: Path) -> bool:
        """Uploads the file if it has changed since the bucket had it."""
        try:
            key, now = self.key(path), version(path)
            record = self._record_of(key)
            if record is not None and record["file"] == now:
                return False
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        if self.fence is None:
            self.store.write(key, data)
            entry = self.store.entry(key)
        else:
            entry = self._write_fenced(key, data, (record or {}).get("version"), self.fence)
        self._know(key, entry, now)
        return True

    def _write_fenced(self, key: str, data: bytes, version: str | None, fence: Fence) -> Entry:
        """Writes a record if it is still the known version, or, while the fence holds, in place of any other one."""
        fence.before_write()
        stamp = fence.stamp(key)
        content = data + (stamp.line() if stamp else b"")
        entry = self.store.write_if(key, content, version) if version else None
        while entry is None:  # an earlier holder of the lease wrote it, or a request of ours whose answer was lost
            there_now = self.store.entry(key)  # before the lease is read: who takes it then changes the record
            if there_now is None and stamp is not None:  # who takes the lease after the check then sees the record
                self.store.write_if(key, stamp.line(), None)
                continue
            fence.check()
            entry = self.store.write_if(key, content, there_now.version if there_now else None)
        return entry

    def fetch(self, key: str) -> str:
        """Downloads one record if the bucket has a newer version. The tag of that version, or nothing."""
        entry = self.store.entry(key)
        if entry is None:
            return ""
        self.pull({key: entry})
        return entry.tag

    def extend(self, key: str) -> bytes | None:
        """Downloads and returns what a record that grows has gained. None if it was replaced, and downloaded whole."""
        entry, path = self.store.entry(key), self.path(key)
        if entry is None or not self._stale(key, entry.tag):
            return b""
        if path.exists():
            size = path.stat().st_size
            start = max(0, size - OVERLAP)
            with path.open("rb") as file:
                file.seek(start)
                local_tail = file.read()
            bucket_tail = unstamped(self.store.read(key, start) or b"")[0] if entry.size >= size else b""
            if local_tail and bucket_tail.startswith(local_tail):
                with path.open("ab") as file:
                    file.write(bucket_tail[len(local_tail) :])
                os.utime(path, (entry.modified, entry.modified))
                self._know(key, entry, version(path))
                return bucket_tail[len(local_tail) :]
        self._pull(key, entry)
        return None

    def pull(self, entries: Mapping[str, Entry]) -> None:
        """Downloads these objects if the folder has an older version, and none of its own."""
        stale = [key for key, entry in entries.items() if self._stale(key, entry.tag)]
        together(lambda key: self._pull(key, entries[key]), stale)

    def _stale(self, key: str, tag: str) -> bool:
        path, record = self.path(key), self._record_of(key)
        if not path.exists():
            return True
        return record is not None and record["tag"] != tag and record["file"] == version(path)

    def _pull(self, key: str, entry: Entry) -> None:
        content = self.store.read(key)
        if content is None:
            return
        path, data = self.path(key), unstamped(content)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_of(path)
        draft.write_bytes(data)
        os.utime(draft, (entry.modified, entry.modified))  # the latest sweep is found by its file's time
        if self._stale(key, entry.tag):
            draft.replace(path)
            self._know(key, entry, version(path))
        else:
            draft.unlink()

    def forget_missing(self, prefix: str, entries: Mapping[str, Entry]) -> None:
        """Removes the files below a key that the bucket had and has no more."""
        place = self.folder / ".synced" / prefix
        for note in sorted(place.rglob("*.json")) if place.exists() else ():
            key = note.relative_to(self.folder / ".synced").as_posix().removesuffix(".json")
            if key not in entries and self.path(key).exists() and not self.waits(self.path(key)):
                self.path(key).unlink()
                self.forget(key)

    def forget(self, prefix: str) -> None:
        """Knows no more which versions of the records below a key the bucket has."""
        self._versions = {key: value for key, value in self._versions.items() if not f"{key}/".startswith(f"{prefix}/")}
        (self.folder / ".synced" / f"{prefix}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / ".synced" / prefix, ignore_errors=True)

    def _record_of(self, key: str) -> dict[str, Any] | None:
        if key not in self._versions:
            try:
                self._versions[key] = json.loads((self.folder / ".synced" / f"{key}.json").read_bytes())
            except (OSError, ValueError):
                return None
        return self._versions[key]

    def _know(self, key: str, entry: Entry | None, file: list[int]) -> None:
        tag, version_there = (entry.tag, entry.version) if entry else ("", "")
        self._versions[key] = {"tag": tag, "version": version_there, "file": file}
        write_below(self.folder / ".synced" / f"{key}.json", document(self._versions[key]))
