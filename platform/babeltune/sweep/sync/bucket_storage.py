"""A bucket and its mirror on this machine, as housekeeping and readers see them."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from babeltune.errors import ObjectStoreError
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.sweep.state.stored import is_free


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
