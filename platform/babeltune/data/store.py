"""Content-addressed stores: what is computed once per sweep and read by every worker of every trial.

A store is a folder `<root>/<kind>-<key[:16]>/`. Its key hashes a description of everything that decides its content,
so equal inputs find the same folder. `store.json` lists every file with its size and SHA-256, and how the files make
up named flat arrays, which readers map into memory. A store appears under its name by one rename when it is complete:
a folder with that name is whole, or was damaged later, which `build` notices and repairs. `stored_arrays.py` reads the
arrays."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from babeltune.errors import StoreError
from babeltune.files import draft_of, in_turn, make_folders, plain, sha256_of, sync, version
from babeltune.schema.base import from_plain
from babeltune.schema.records import Scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
RECORD = "store.json"
UNFINISHED = ".unfinished"  # ends the name of a draft that the next builder goes on with
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Array:
    """One flat array: the shard files end to end, `width` numbers per row (0: one number, no second axis)."""

    dtype: str
    width: int
    shards: tuple[tuple[str, int], ...]  # (file name, rows) in order

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.shards)

    def bytes_of(self, rows: int) -> int:
        """Size of a shard of this many rows."""
        return rows * max(self.width, 1) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class StoredFile:
    """Size and digest of a file of a store when it was complete."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Contents:
    """The output of a builder: its arrays, and facts worth recording (sentences forwarded, sentences truncated)."""

    arrays: dict[str, Array] = field(default_factory=dict)
    facts: dict[str, Scalar] = field(default_factory=dict)
    files: dict[str, StoredFile] = field(default_factory=dict)
    """Files whose writers have recorded what they hold. They are in the draft, or in the bucket already."""
    shard_records: frozenset[str] = frozenset()
    """Files of the draft from which the next builder goes on. They are no part of the store and go once it is there."""


@dataclass(frozen=True)
class StoreRecord:
    """The content of `store.json` besides its own checksum, `seal`."""

    format: int
    kind: str
    key: str
    description: Mapping[str, object]
    rows: Mapping[str, int]
    facts: dict[str, Scalar]
    arrays: dict[str, Array]
    files: dict[str, StoredFile]

    def encode(self) -> str:
        values = plain(self)
        return json.dumps({**values, "seal": key_of(values)}, indent=1)

    @classmethod
    def decode(cls, text: str) -> StoreRecord:
        values = json.loads(text)
        del values["seal"]
        return from_plain(cls, values)


def key_of(description: Mapping[str, object]) -> str:
    """SHA-256 of the description as canonical JSON."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def digest_of_array(array: NDArray[np.generic]) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in order; where one text ends decides, too."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def folder_of(root: Path, kind: str, description: Mapping[str, object]) -> Path:
    """Where the store of this description is, or will be."""
    return root / f"{kind}-{_key(kind, description)[:16]}"


def _key(kind: str, description: Mapping[str, object]) -> str:
    return key_of({"format": FORMAT, "kind": kind, "description": description})


# Building


class Bucket(Protocol):
    """A bucket that holds stores besides this disk. `sweep.sync` gives one to `stores_in`."""

    @property
    def takes_shards(self) -> bool:
        """Whether tasks write the shards of stores into the bucket, and not on this disk."""

    def has(self, folder: Path) -> bool:
        """Whether it has the whole store."""

    def bring(self, folder: Path) -> None:
        """Copies the store to its folder, if the bucket has it."""

    def read(self, folder: Path, name: str) -> bytes | None:
        """A file of a whole store."""

    def bring_records(self, folder: Path, draft: Path) -> Mapping[str, int]:
        """Copies the records of an unfinished store's shards to the draft. Returns the bytes of each file there is."""

    def finish(self, folder: Path, draft: Path, files: Mapping[str, StoredFile]) -> None:
        """Makes these files a whole store. Those that are in the draft are sent; the others are there."""


_bucket: ContextVar[Bucket | None] = ContextVar("bucket", default=None)


@contextmanager
def stores_in(bucket: Bucket) -> Iterator[None]:
    """While the body runs, a store that is not on this disk is looked for in the bucket."""
    token = _bucket.set(bucket)
    try:
        yield
    finally:
        _bucket.reset(token)


def bring(folder: Path) -> None:
    """Brings a folder that is not there from the bucket, if there is a bucket and it has the folder."""
    bucket = _bucket.get()
    if bucket is not None and not folder.exists():
        bucket.bring(folder)


def shards_there(draft: Path) -> Mapping[str, int]:
    """Brings the records of the shards that the bucket has of this draft; the bytes of each file there."""
    bucket = _bucket.get()
    return {} if bucket is None else bucket.bring_records(store_of(draft), draft)


def build(
    root: Path,
    kind: str,
    description: Mapping[str, object],
    write: Callable[[Path], Contents],
    *,
    bytes_needed: int = 0,
    resumable: bool = False,
) -> Path:
    """The folder of the store of this description, built by `write` unless a sound one exists.

    `write` fills an empty folder on the same file system and returns what the arrays in it are; other processes may
    write shards there, too. One process builds while the others wait; a dead builder's lock falls by itself, and what
    it left is removed. A sound store has files of the recorded size and, checked once per process and file version,
    of the recorded SHA-256; an altered one is rebuilt with a warning. If `write` fails, nothing remains. If it is
    `resumable`, what `write` has left remains, and the next `write` finds it in its folder. Such a store may be in the
    bucket alone: nothing brings it here before it is read.

    Raises `StoreError` if the disk is too small (`bytes_needed`) or refuses, or what was written does not fit."""
    folder, bucket = folder_of(root, kind, description), _bucket.get()
    if resumable and bucket is not None and not folder.exists() and bucket.has(folder):
        return folder
    bring(folder)
    if folder.exists() and _fault(folder, verify=True) is None:
        return folder
    try:
        make_folders(root)
        with in_turn(folder.with_name(f".{folder.name}.lock"), f"builds the store {folder}"):
            _sweep(folder)
            if folder.exists():
                fault = _fault(folder, verify=True)
                if fault is None:
                    return folder
                log.warning("store %s is damaged (%s): it is built again", folder, fault)
                _discard(folder)
            with _draft_of(folder, resumable=resumable) as draft:
                _build(folder, draft, _Described(kind, description), write, bytes_needed)
    except OSError as error:
        raise StoreError(
            f"cannot write the store {folder}: {error.strerror or error}; it needs about {_size(bytes_needed)}, "
            f"{_size(_free(root))} are free; free space or choose another storage folder, then submit again"
        ) from error
    return folder


class _Described(NamedTuple):
    """The kind of a store, and the description of its content."""

    kind: str
    description: Mapping[str, object]


@contextmanager
def _draft_of(folder: Path, *, resumable: bool) -> Iterator[Path]:
    """The folder in which the store is built. It is removed after the block, unless the next one may go on in it."""
    draft = folder.with_name(f".{folder.name}{UNFINISHED}") if resumable else draft_of(folder)
    draft.mkdir(exist_ok=resumable)
    try:
        yield draft
    finally:
        if not resumable:
            shutil.rmtree(draft, ignore_errors=True)


def store_of(draft: Path) -> Path:
    """Where the store will be that is built in this draft, which the next builder may go on with."""
    return draft.with_name(draft.name.removesuffix(UNFINISHED).removeprefix("."))


def _build(
    folder: Path, building: Path, store: _Described, write: Callable[[Path], Contents], bytes_needed: int
) -> None:
    bucket = _bucket.get()
    free = _free(folder.parent) + sum(path.stat().st_size for path in building.iterdir())
    if bytes_needed > free and not (bucket is not None and bucket.takes_shards):
        raise StoreError(
            f"the store {folder} needs about {_size(bytes_needed)}, but {_size(free)} are free; "
            "free space or choose another storage folder, then submit again"
        )
    contents = write(building)
    beside = {RECORD, *contents.shard_records}  # an earlier builder may have been killed after its record
    here = {path.name: path for path in building.iterdir() if path.name not in beside}
    files = {name: file for name, file in contents.files.items() if bucket is not None or name in here}
    files |= {name: _stored_file(path) for name, path in here.items() if name not in files}
    files = dict(sorted(files.items()))
    for array in contents.arrays.values():
        _check_fits(array, files, folder)
    content = StoreRecord(
        format=FORMAT,
        kind=store.kind,
        key=_key(store.kind, store.description),
        description=store.description,
        rows={name: array.rows for name, array in contents.arrays.items()},
        facts=contents.facts,
        arrays=contents.arrays,
        files=files,
    )
    record = building / RECORD
    record.write_text(content.encode(), encoding="utf-8")
    sync(record)
    if bucket is not None and not files.keys() <= here.keys():
        bucket.finish(folder, building, {**files, record.name: _stored_file(record)})
        shutil.rmtree(building)
        return
    sync(building)
    building.rename(folder)
    sync(folder.parent)
    for name in contents.shard_records:
        (folder / name).unlink()


def _sweep(folder: Path) -> None:
    """Removes what dead builders left: while the lock is held, nobody else builds this store."""
    for draft in folder.parent.glob(f".{folder.name}.*-*"):
        log.info("removing %s, left by a builder that ended early", draft)
        shutil.rmtree(draft, ignore_errors=True)


def _discard(folder: Path) -> None:
    """Renames the folder away first, so that no reader meets it half removed; open maps stay valid."""
    away = draft_of(folder)
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _check_fits(array: Array, files: Mapping[str, StoredFile], folder: Path) -> None:
    for name, rows in array.shards:
        size = files[name].bytes if name in files else None
        if size != array.bytes_of(rows):
            raise StoreError(
                f"shard {name} of the store {folder} should hold {rows} rows in {array.bytes_of(rows)} bytes, but has "
                f"{'no file' if size is None else f'{size} bytes'}; its writer ended early: submit again"
            )


def _stored_file(path: Path) -> StoredFile:
    sync(path)
    return StoredFile(path.stat().st_size, sha256_of(path))


def _free(root: Path) -> int:
    while not root.exists():
        root = root.parent
    return shutil.disk_usage(root).free


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


# Verifying

_verified: set[tuple[str | int, ...]] = set()  # files whose SHA-256 this process has checked: path and version


def _fault(folder: Path, *, verify: bool) -> str | None:
    """The fault of the folder's files; None when every one is as `store.json` says."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        checksum, files = record.pop("seal"), record["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"store.json cannot be read: {error}"
    if checksum != key_of(record):
        return "store.json was altered"
    for name, expected in files.items():
        path = folder / name
        if path.name != name:
            return f"store.json names {name!r}, which is no file of its folder"
        try:
            size = path.stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, not {expected['bytes']}"
            seen: tuple[str | int, ...] = (str(path.absolute()), *version(path))
            if verify and seen not in _verified:
                if sha256_of(path) != expected["sha256"]:
                    return f"{name} does not have the recorded SHA-256"
                _verified.add(seen)
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


# Reading


def read_store(folder: Path, *, verify: bool = False) -> StoreRecord:
    """`store.json`, after a check of all sizes and, with `verify`, of all checksums; `StoreError` names the fault. The
    store is brought from the bucket if it is there alone."""
    bring(folder)
    fault = _fault(folder, verify=verify)
    if fault is not None:
        raise StoreError(f"the store {folder} cannot be used: {fault}; submit the sweep again to rebuild it")
    return StoreRecord.decode((folder / RECORD).read_text(encoding="utf-8"))


def facts_of(folder: Path) -> dict[str, Scalar]:
    """The facts that the store's builder recorded. Of a store that is in the bucket alone, nothing else is read."""
    bucket = _bucket.get()
    if bucket is not None and not folder.exists() and (record := bucket.read(folder, RECORD)) is not None:
        return StoreRecord.decode(record.decode("utf-8")).facts
    return read_store(folder).facts
