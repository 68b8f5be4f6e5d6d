"""A folder that mirrors a bucket: programs read the folder, and the bucket keeps what must last.

A *package* is a folder that never changes once it is there: a store, a checkpoint, a model. A manifest is written last
and holds the size and SHA-256 of each object. For a reader, a package without a manifest does not exist, and one that
differs from its manifest is skipped. A *record* is a file that one process changes; it is pushed when it has changed. A
pull never replaces a record with changes that wait to be pushed.

    <folder>/.seals/<key>.json     size and SHA-256 of a package's files, and the versions of these files
    <folder>/.synced/<key>.json    which version of a record it has

A mirror with a `fence` changes a record only if it is as this process knows it, or if it still holds the lease.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from babeltune.errors import ObjectStoreError
from babeltune.files import sha256_of, version, write_whole
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.fence import Fence, unstamped
from babeltune.storage.object_store import Entry, ObjectStore, inside

Result = TypeVar("Result")
PACKAGE_MANIFEST = ".seal.json"
AT_ONCE = 8
"""Objects that are moved at the same time."""
DATABASE = ".db"
"""The ending of sqlite's files; a copy must be of one moment."""
JOURNALS = ("-journal", "-wal", "-shm")
"""What sqlite writes beside such a file while it changes it, and would play back into another copy of it."""
TRIES = 2
"""Downloads of a package before its objects are held to be damaged."""
log = logging.getLogger(__name__)


class Mirror:
    """The mirror of a bucket in a folder. Any number of processes may use one folder."""

    def __init__(self, where: StorageLocation) -> None:
        self.store, self.folder = ObjectStore(where.uri, where.timeout), where.folder
        self.store.compares &= where.compares
        self.fence: Fence | None = None
        """What keeps this process from changing records when it no longer holds their lease; None: nobody else does."""
        self._versions: dict[str, dict[str, Any]] = {}

    def key(self, path: Path) -> str:
        return inside(path.relative_to(self.folder).as_posix())

    def path(self, key: str) -> Path:
        return self.folder / inside(key)

    def lock(self, key: str) -> FileLock:
        """For what only one process of this node at a time may do."""
        place = self.folder / ".locks"
        place.mkdir(parents=True, exist_ok=True)
        return FileLock(place / f"{_digest(key.encode())[:32]}.lock")

    # Packages

    def push_package(self, folder: Path, key: str = "") -> None:
        """Uploads the folder, to its own key or to another one, unless the bucket has it as it is. The seal comes
        last."""
        key = key or self.key(folder)
        there = self.store.entries(key)
        if self.has_package(folder, key, there):
            return
        files = self.sealed(folder)
        manifest = _document({"files": files})
        names = {name: f"{key}/{name}" for name in files}
        self.store.remove(f"{key}/{PACKAGE_MANIFEST}")
        _together(lambda name: self.store.upload(folder / name, names[name]), files)
        _together(self.store.remove, there.keys() - set(names.values()) - {f"{key}/{PACKAGE_MANIFEST}"})
        self.store.write(f"{key}/{PACKAGE_MANIFEST}", manifest)

    def has_package(self, folder: Path, key: str, there: Mapping[str, Entry]) -> bool:
        """Whether the bucket has the folder as it is at this key, below which it lists the objects `there`."""
        files, seal = self.sealed(folder), f"{key}/{PACKAGE_MANIFEST}"
        names = {name: f"{key}/{name}" for name in files}
        whole = all(at in there and there[at].size == files[name]["bytes"] for name, at in names.items())
        return whole and seal in there and self.store.read(seal) == _document({"files": files})

    def sealed(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of each file; those that were known when its files were last changed are not read again."""
        paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        versions = {name: version(path) for name, path in paths.items()}
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads(self._manifest_of(folder).read_bytes())
            if known["versions"] == versions:
                return dict(known["files"])
        files = {name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for name, path in paths.items()}
        self._keep_manifest(folder, files, versions)
        return files

    def pull_package(self, key: str, folder: Path | None = None) -> bool:
        """Whether the package is in the folder, or in its own, where it is downloaded to if need be.

        One that differs from its seal is refused and its seal removed, so that the next push renews it.
        """
        folder = folder or self.path(key)
        if folder.exists() and not self._altered(folder):
            with contextlib.suppress(FileNotFoundError):  # it was never sealed
                os.utime(self._manifest_of(folder))  # used just now, so it stays here
            return True
        with self.lock(key):
            if folder.exists():
                if not self._altered(folder):
                    return True
                log.warning("%s was altered: it is downloaded again", folder)
                shutil.rmtree(folder)
            for left in range(TRIES, 0, -1):
                manifest = self.store.read(f"{key}/{PACKAGE_MANIFEST}")
                if manifest is None:
                    return False
                fault = self._download(key, manifest, folder)
                if fault is None:
                    return True
                log.warning("%s/%s is damaged (%s): %s", self.store.uri, key, fault, "again" if left > 1 else "left")
            self.store.remove(f"{key}/{PACKAGE_MANIFEST}")
        return False

    def _altered(self, folder: Path) -> bool:
        """Whether a file is no more what it was when the folder was sealed here; where none has changed since, none is
        read."""
        try:
            known = json.loads(self._manifest_of(folder).read_bytes())
            files, versions = known["files"], known["versions"]
        except (OSError, ValueError, KeyError):
            return False  # it was never sealed
        try:
            now = {name: version(folder / name) for name in files}
            if now != versions and any(sha256_of(folder / name) != facts["sha256"] for name, facts in files.items()):
                return True
        except FileNotFoundError:
            return True
        if now != versions:
            self._keep_manifest(folder, files, now)
        return False

    def _manifest_of(self, folder: Path) -> Path:
        return self.folder / ".seals" / f"{self.key(folder)}.json"

    def _keep_manifest(self, folder: Path, files: dict[str, dict[str, Any]], versions: dict[str, list[int]]) -> None:
        _write(self._manifest_of(folder), _document({"files": files, "versions": versions}))

    def _download(self, key: str, manifest: bytes, folder: Path) -> str | None:
        """Puts the package in its place if it is as its seal says; else says what is wrong."""
        try:
            files = {
                inside(name): (facts["bytes"], facts["sha256"]) for name, facts in json.loads(manifest)["files"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"its seal cannot be read: {error}"
        draft = self.folder / ".pulling" / _digest(key.encode())[:32]
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)

        def one(name: str) -> str | None:
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.store.download(f"{key}/{name}", path)
            except FileNotFoundError:
                return f"{name} is missing"
            size, sha256 = files[name]
            return None if path.stat().st_size == size and sha256_of(path) == sha256 else f"{name} was altered"

        try:
            faults = [fault for fault in _together(one, files) if fault]
            if faults:
                return faults[0]
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft.rename(folder)
            sealed = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in files.items()}
            self._keep_manifest(folder, sealed, {name: version(folder / name) for name in files})
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return None

    def drop_packages(self, keys: Iterable[str], there: Iterable[str]) -> None:
        """Removes packages from the bucket, of whose objects `there` is a listing; each seal first."""
        doomed = list(keys)
        for key in doomed:
            self.store.remove(f"{key}/{PACKAGE_MANIFEST}")
        folders = {f"{key}/" for key in doomed}

        def below(at: str) -> bool:
            parts = at.split("/")
            return any("/".join(parts[:depth]) + "/" in folders for depth in range(1, len(parts)))

        _together(self.store.remove, [at for at in there if below(at)])

    def drop_from_package(self, key: str, name: str, changed: Mapping[str, bytes]) -> None:
        """Removes a file from a package in the bucket, and writes others anew. Between two requests a reader may find a
        package that differs from its seal, and reads it again. Repeated, it mends what was cut off."""
        seal = self.store.read(f"{key}/{PACKAGE_MANIFEST}")
        if seal is None:
            return
        files = json.loads(seal)["files"]
        files.pop(name, None)
        for each, data in changed.items():
            files[each] = {"bytes": len(data), "sha256": _digest(data)}
            self.store.write(f"{key}/{each}", data)
        self.store.write(f"{key}/{PACKAGE_MANIFEST}", _document({"files": files}))
        self.store.remove(f"{key}/{name}")

    # Records

    def waits(self, path: Path) -> bool:
        """Whether the file has changes that the bucket does not have."""
        known = self._known(self.key(path))
        return known is None or known["file"] != version(path)

    def push(self, path: Path) -> bool:
        """Uploads the file if it has changed since the bucket had it; a database as of one moment."""
        try:
            key, now = self.key(path), version(path)
            known = self._known(key)
            if known is not None and known["file"] == now:
                return False
            data = _snapshot(path) if path.suffix == DATABASE else path.read_bytes()
        except FileNotFoundError:
            return False
        if self.fence is None:
            self.store.write(key, data)
            entry = self.store.entry(key)
        else:
            entry = self._write_fenced(key, data, (known or {}).get("version"), self.fence)
        self._know(key, entry, now)
        return True

    def _write_fenced(self, key: str, data: bytes, known: str | None, fence: Fence) -> Entry:
        """Writes a record if it is still the known version. While the fence holds, it replaces any other version: an
        earlier holder of the lease wrote it, or a request of this process whose answer was lost."""
        fence.before_write()
        stamp = fence.stamp(key)
        content = data + (stamp.line() if stamp else b"")
        made = self.store.write_if(key, content, known) if known else None
        while made is None:
            found = self.store.entry(key)  # before the lease is read: who takes it then changes the record
            if found is None and stamp is not None:  # who takes the lease after the check then sees the record
                self.store.write_if(key, stamp.line(), None)
                continue
            fence.check()
            made = self.store.write_if(key, content, found.version if found else None)
        return made

    def fetch(self, key: str) -> str:
        """Downloads one record where the bucket has a newer version. The tag of that version, or nothing."""
        entry = self.store.entry(key)
        if entry is None:
            return ""
        self.pull({key: entry})
        return entry.tag

    def pull(self, there: Mapping[str, Entry]) -> None:
        """Downloads these objects where the folder has an older version, and none of its own."""
        _together(lambda key: self._pull(key, there[key]), [key for key in there if self._stale(key, there[key].tag)])

    def _stale(self, key: str, tag: str) -> bool:
        path, known = self.path(key), self._known(key)
        if not path.exists():
            return True
        return known is not None and known["tag"] != tag and known["file"] == version(path)

    def _pull(self, key: str, entry: Entry) -> None:
        found = self.store.read(key)
        if found is None:
            return
        path, data = self.path(key), unstamped(found)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.pulled.{uuid.uuid4().hex[:8]}")
        draft.write_bytes(data)
        os.utime(draft, (entry.modified, entry.modified))  # the latest sweep is found by its file's time
        if self._stale(key, entry.tag):
            for ending in JOURNALS if path.suffix == DATABASE else ():
                path.with_name(path.name + ending).unlink(missing_ok=True)
            draft.replace(path)
            self._know(key, entry, version(path))
        else:
            draft.unlink()

    def forget_missing(self, prefix: str, there: Mapping[str, Entry]) -> None:
        """Removes the files below a key that the bucket had and has no more."""
        place = self.folder / ".synced" / prefix
        for note in sorted(place.rglob("*.json")) if place.exists() else ():
            key = note.relative_to(self.folder / ".synced").as_posix().removesuffix(".json")
            if key not in there and self.path(key).exists() and not self.waits(self.path(key)):
                self.path(key).unlink()
                self.forget(key)

    def forget(self, prefix: str) -> None:
        """Knows no more which versions of the records below a key the bucket has."""
        self._versions = {key: value for key, value in self._versions.items() if not f"{key}/".startswith(f"{prefix}/")}
        (self.folder / ".synced" / f"{prefix}.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / ".synced" / prefix, ignore_errors=True)

    def _known(self, key: str) -> dict[str, Any] | None:
        if key not in self._versions:
            try:
                self._versions[key] = json.loads((self.folder / ".synced" / f"{key}.json").read_bytes())
            except (OSError, ValueError):
                return None
        return self._versions[key]

    def _know(self, key: str, entry: Entry | None, file: list[int]) -> None:
        tag, known = (entry.tag, entry.version) if entry else ("", "")
        self._versions[key] = {"tag": tag, "version": known, "file": file}
        _write(self.folder / ".synced" / f"{key}.json", _document(self._versions[key]))


def _together(work: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
    """The results of several requests at once; the first error is raised when all have ended."""
    found = list(names)
    if len(found) < 2:
        return [work(name) for name in found]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, found))


def _snapshot(path: Path) -> bytes:
    """The database as it is between two of its transactions, while others write it."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=60)) as source,
            contextlib.closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            return copy.serialize()
    except sqlite3.Error as error:
        raise ObjectStoreError(f"{path} cannot be copied ({error}); `babeltune resume` tries again") from error


def _document(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
