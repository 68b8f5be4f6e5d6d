"""A folder that mirrors a bucket: which object a path is, and what packages and records have in common."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from babeltune.files import file_lock, in_turn, write_whole
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.fence import Fence
from babeltune.storage.object_store import ObjectStore, inside

Result = TypeVar("Result")
AT_ONCE = 8
"""Objects that are moved at the same time."""


class MirrorBase:
    """The folder, the bucket, and a lock for each object."""

    def __init__(self, where: StorageLocation) -> None:
        self.store, self.folder = ObjectStore(where.uri, where.timeout), where.folder
        self.store.compares &= where.compares
        self.fence: Fence | None = None
        """What keeps this process from changing records when it no longer holds their lease; None: nobody else does."""

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
