"""Keeps a process that no longer holds a sweep's lease from changing the sweep's objects in a bucket.

A bucket has no locks. It can only refuse a write to an object that has changed. So a new holder of the lease first
writes its token into the records that decide results. A late write of an earlier holder expects the record as it was
before, and the bucket refuses it."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stamp:
    """The last line of a record in the bucket: under which token it was written. Files on a disk do not have it."""

    token: int
    since: int = 0
    """The first token whose checkpoints count. Older ones are of another driver's trial under this number."""

    def line(self) -> bytes:
        return b'\n{"lease": %d, "since": %d}\n' % (self.token, self.since)


STAMPED = re.compile(rb'\n\{"lease": ([0-9]+), "since": ([0-9]+)\}\n\Z')


def unstamped(data: bytes) -> tuple[bytes, Stamp | None]:
    """A record's content and its stamp."""
    stamp = STAMPED.search(data)
    if stamp is None:
        return data, None
    return data[: stamp.start()], Stamp(int(stamp[1]), int(stamp[2]))


@dataclass
class Fence:
    """The check of a mirror before it changes a record."""

    token: int  # the fencing token under which this process writes
    check: Callable[[], None]  # reads the lease, and raises if another process has it
    stamped: str  # the name of the records that have a stamp
    before_write: Callable[[], None] = lambda: None
    """Raises if this process may write no more, as far as it knows without asking. A worker does not know when its
    driver renewed the lease: the record's version alone decides."""
    since: int = 0  # the first token whose checkpoints count, as a trial's reports in the bucket say

    def stamp(self, key: str) -> Stamp | None:
        """The stamp to write below a record's content; None for a record without a stamp."""
        return Stamp(self.token, self.since) if key.endswith(f"/{self.stamped}") else None
