"""Packages of a mirror: folders that never change once they are there, each with a manifest that is written last.

The manifest has the size and SHA-256 of each file. It may also have the texts of small files whose name does
not say their content: so they change with it, in one request. A copy lies beside it for who reads such a file alone."""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from babeltune.errors import ObjectStoreError, StoreError, plural
from babeltune.files import file_lock, in_turn, replace_folder, sha256_of, version, write_whole
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import Count, uncounted
from babeltune.storage.object_store import Entry, ObjectStore, inside

PACKAGE_MANIFEST = ".seal.json"
MANIFESTS = ".seals"
"""In a mirror, the folder of what is known of each package. A note is as old as the last use of its package."""
PULLING = ".pulling"  # in a mirror, the folder of packages that are on their way
TRIES = 2  # downloads of a package before its objects are held to be damaged
AT_ONCE = 8  # objects that are moved at the same time
Result = TypeVar("Result")
log = logging.getLogger(__name__)


def manifest_key(key: str) -> str:
    """The key of the manifest of the package at this key."""
    return f"{key}/{PACKAGE_MANIFEST}"


class PackageFault(NamedTuple):
    """The problem of a package that was downloaded."""

    name: str  # the file, or the manifest
    problem: str


class Packages:
    """The folder and the bucket, a lock for each object, and what sends, brings and removes packages."""

    def __init__(self, where: StorageLocation) -> None:
        self.store, self.folder = ObjectStore(where.uri, where.timeout), where.folder
        self.store.compares &= where.compares

    def key(self, path: Path) -> str:
        return inside(path.relative_to(self.folder).as_posix())

    def path(self, key: str) -> Path:
        return self.folder / inside(key)

    def lock(self, key: str, timeout_s: float = math.inf) -> AbstractContextManager[bool]:
        """For what only one process of this node at a time may do: whether this one may, within `timeout_s`."""
        return file_lock(self._lock_of(key), timeout_s)

    def in_turn(self, key: str) -> AbstractContextManager[None]:
        """For a package, which only one process of this node at a time sends, brings or removes."""
        return in_turn(self._lock_of(key), f"is busy with {key}")

    def _lock_of(self, key: str) -> Path:
        place = self.folder / ".locks"
        place.mkdir(parents=True, exist_ok=True)
        return place / f"{digest(key.encode())[:32]}.lock"

    def push_package(
        self, folder: Path, key: str = "", tell: Count = uncounted, listed: Mapping[str, Entry] | None = None
    ) -> bool:
        """Uploads the folder, to its own key or to another one, unless the bucket has it as it is. The manifest comes
        last. Calls `tell` with the bytes sent so far and in all. Returns whether anything was sent.

        `listed` has the objects below the key, and may have others, if the caller has just listed them."""
        key = key or self.key(folder)
        entries = self.store.entries(key) if listed is None else listed
        files, manifest_at = self.files_of(folder), manifest_key(key)
        if manifest_at in entries:
            if self.has_package(folder, key, entries):
                return False
            self.store.remove(manifest_at)
        elif (sealed := self.store.read(manifest_at)) is not None:  # the listing was behind the write
            if _files_in(sealed) == files:
                return False
            self.store.remove(manifest_at)
        of, sent, turn = sum(facts["bytes"] for facts in files.values()), 0, threading.Lock()

        def count(more: int) -> None:
            nonlocal sent
            with turn:  # several threads send, and the count that is shown never goes back
                sent += more
                tell(sent, of)

        tell(0, of)
        manifest = document({"files": files})
        names = {name: f"{key}/{name}" for name in files}
        together(lambda name: self.store.upload(folder / name, names[name], count), files)
        stored_keys = {at for at in entries if at.startswith(f"{key}/")}
        together(self.store.remove, stored_keys - set(names.values()) - {manifest_at})
        self.store.write(manifest_at, manifest)
        return True

    def finish_package(self, key: str, draft: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes a package of objects that others have written below its key, and of the draft's files, which are sent.

        `files` has the size and SHA-256 of each. A name ends in the beginning of its file's SHA-256, or the file is a
        small text. If another process has made the package since, that one stays. `StoreError` if an object is gone."""
        manifest_at, entries = manifest_key(key), self.store.entries(key)
        if manifest_at in entries:
            return
        here = [name for name in files if (draft / name).exists()]
        sizes = {name: entries[at].size if (at := f"{key}/{name}") in entries else None for name in files.keys() - here}
        if lost := sorted(name for name, size in sizes.items() if size != files[name]["bytes"]):
            raise StoreError(
                f"the storage {self.store.uri} has lost {plural(len(lost), 'file')} of {key}, such as {lost[0]}; "
                "`babeltune resume` makes them again"
            )
        texts = {name: (draft / name).read_bytes().decode() for name in here if files[name]["sha256"][:16] not in name}
        together(lambda name: self.store.upload(draft / name, f"{key}/{name}"), set(here) - texts.keys())
        manifest = document({"files": files, "texts": texts})
        if self.store.write_if(manifest_at, manifest, None) or self.store.read(manifest_at) == manifest:
            together(lambda name: self.store.write(f"{key}/{name}", texts[name].encode()), texts)
            together(self.store.remove, entries.keys() - {f"{key}/{name}" for name in files})

    def has_package(self, folder: Path, key: str, entries: Mapping[str, Entry]) -> bool:
        """Whether the bucket has the folder as it is at this key, below which it lists the objects `entries`."""
        files, manifest_at = self.files_of(folder), manifest_key(key)
        names = {name: f"{key}/{name}" for name in files}
        whole = all(at in entries and entries[at].size == files[name]["bytes"] for name, at in names.items())
        return whole and manifest_at in entries and _files_in(self.store.read(manifest_at)) == files

    def files_of(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of each file; those that were known when its files were last changed are not read again."""
        paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        versions = {name: version(path) for name, path in paths.items()}
        with contextlib.suppress(OSError, ValueError, KeyError):
            manifest = json.loads(self._manifest_of(folder).read_bytes())
            if manifest["versions"] == versions:
                return dict(manifest["files"])
        files = {name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for name, path in paths.items()}
        self._keep_manifest(folder, files, versions)
        return files

    def pull_package(self, key: str, folder: Path | None = None) -> bool:
        """Whether the package is in the folder, or in its own, where it is downloaded to if need be.

        One that differs from its manifest is refused, and the manifest removed, so that the next push renews it.
        `ObjectStoreError` if it does not differ, but this disk changes what it is given."""
        folder = folder or self.path(key)
        if folder.exists() and not self._altered(folder):
            with contextlib.suppress(FileNotFoundError):  # it never got a manifest
                os.utime(self._manifest_of(folder))  # used just now, so it stays here
            return True
        with self.in_turn(key):
            if folder.exists():
                if not self._altered(folder):
                    return True
                log.warning("%s was altered: it is downloaded again", folder)
            for tries_left in range(TRIES, 0, -1):
                manifest = self.store.read(manifest_key(key))
                if manifest is None:
                    return False
                fault = self._download(key, manifest, folder)
                if fault is None:
                    return True
                then, words = "left" if tries_left == 1 else "again", f"{fault.name} {fault.problem}"
                log.warning("%s/%s is damaged (%s): %s", self.store.uri, key, words, then)
                if tries_left == 1:
                    self._remove_manifest(key, manifest, fault.name, folder)
        return False

    def _remove_manifest(self, key: str, manifest: bytes, name: str, folder: Path) -> None:
        """Removes this manifest if the object of that name differs from it. One that has changed since stays."""
        manifest_at = manifest_key(key)
        entry = self.store.entry(manifest_at)
        if entry is None or self.store.read(manifest_at) != manifest:
            return
        if name != PACKAGE_MANIFEST and self.store.sha256(f"{key}/{name}") == _files_in(manifest)[name]["sha256"]:
            why = OSError(errno.EIO, "this disk gives back other bytes than were written", str(folder / name))
            raise ObjectStoreError(
                f"{self.store.uri}/{key} is sound, but {folder.parent} changes {name}; check that disk, or name "
                "another `cache`"
            ) from why
        self.store.remove_if(manifest_at, entry.version)

    def _altered(self, folder: Path) -> bool:
        """Whether a file is no more what it was when the folder got its manifest here. Unchanged ones are not read."""
        try:
            manifest = json.loads(self._manifest_of(folder).read_bytes())
            files, versions = manifest["files"], manifest["versions"]
        except (OSError, ValueError, KeyError):
            return False  # it never got a manifest
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
        return self.folder / MANIFESTS / f"{self.key(folder)}.json"

    def _keep_manifest(self, folder: Path, files: dict[str, dict[str, Any]], versions: dict[str, list[int]]) -> None:
        write_below(self._manifest_of(folder), document({"files": files, "versions": versions}))

    def _download(self, key: str, manifest: bytes, folder: Path) -> PackageFault | None:
        """Puts the package in its place if it is as its manifest says; else says what is wrong."""
        try:
            values = json.loads(manifest)
            files = {inside(name): (facts["bytes"], facts["sha256"]) for name, facts in values["files"].items()}
            texts = {name: text.encode() for name, text in values.get("texts", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return PackageFault(PACKAGE_MANIFEST, f"cannot be read: {error}")
        draft = self.folder / PULLING / digest(key.encode())[:32]
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)

        def one(name: str) -> PackageFault | None:
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                if name in texts:
                    path.write_bytes(texts[name])
                else:
                    self.store.download(f"{key}/{name}", path)
            except FileNotFoundError:
                return PackageFault(name, "is missing")
            size, sha256 = files[name]
            if path.stat().st_size == size and sha256_of(path) == sha256:
                return None
            return PackageFault(name, "was altered")

        try:
            faults = [fault for fault in together(one, files) if fault]
            if faults:
                return faults[0]
            folder.parent.mkdir(parents=True, exist_ok=True)
            replace_folder(draft, folder)
            records = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in files.items()}
            self._keep_manifest(folder, records, {name: version(folder / name) for name in files})
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return None

    def drop_packages(self, keys: Iterable[str], names: Iterable[str]) -> None:
        """Removes packages from the bucket, of whose objects `names` is a listing; each manifest first."""
        doomed = list(keys)
        for key in doomed:
            self.store.remove(manifest_key(key))
        folders = {f"{key}/" for key in doomed}

        def below(at: str) -> bool:
            parts = at.split("/")
            return any("/".join(parts[:depth]) + "/" in folders for depth in range(1, len(parts)))

        together(self.store.remove, [at for at in names if below(at)])

    def drop_from_package(self, key: str, name: str, changed: Mapping[str, bytes]) -> None:
        """Removes a file from a package in the bucket, and writes small ones anew. A reader finds the package as it was
        or as it is now: one request changes its manifest. Repeated, it mends what was cut off."""
        manifest_at = manifest_key(key)
        written = None
        while written is None:
            entry = self.store.entry(manifest_at)
            data = self.store.read(manifest_at)
            if entry is None or data is None:
                return
            values = json.loads(data)
            files, texts = values["files"], values.get("texts", {})
            files.pop(name, None)
            files |= {each: {"bytes": len(text), "sha256": digest(text)} for each, text in changed.items()}
            texts |= {each: text.decode() for each, text in changed.items()}
            written = self.store.write_if(manifest_at, document({"files": files, "texts": texts}), entry.version)
        for each, text in changed.items():
            self.store.write(f"{key}/{each}", text)
        self.store.remove(f"{key}/{name}")


def _files_in(manifest: bytes | None) -> Any:
    """The files that a manifest names; None if it cannot be read."""
    try:
        return json.loads(manifest or b"")["files"]
    except (ValueError, KeyError, TypeError):
        return None


def together(work: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
    """The results of several requests at once; the first error is raised when all have ended."""
    each_name = list(names)
    if len(each_name) < 2:
        return [work(name) for name in each_name]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, each_name))


def document(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_below(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
