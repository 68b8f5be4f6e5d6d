"""The lease of a sweep in a bucket, and the fences of its driver and its workers.

The bucket compares an object's version and writes it in one step. The lease is taken and renewed by such writes, and so
is each record. A driver that takes the lease claims the records that decide results: it writes its token into them.
A late write of the earlier driver expects the record without that token, so the bucket refuses it."""

from babeltune.storage.mirror import Fence, Stamp, unstamped
from babeltune.storage.object_store import Entry, ObjectStore
from babeltune.sweep.state.fencing import OWNER, HeldLease, Lease, OvertakenError, Version, refuse_other_token
from babeltune.sweep.state.log import LEDGER
from babeltune.training.checkpoint import REPORTS

NO_VERSION = "1"  # no object has this ETag or generation


class BucketLease:
    """A lease in a bucket."""

    def __init__(self, store: ObjectStore, sweep: str) -> None:
        self.sweep, self._store, self._key = sweep, store, f"sweeps/{sweep}/{OWNER}"

    def read(self) -> tuple[Lease | None, Version]:
        entry = self._store.entry(self._key)  # first: a swap that expects an older version than what is read fails
        return Lease.read(self._store.read(self._key)), entry.version if entry else None

    def swap(self, lease: Lease, expected: Version, *, takeover: bool = False) -> Version | None:
        entry = self._store.write_if(self._key, lease.encode(), expected)
        return entry.version if entry else None

    def least_token(self) -> int:
        stamp = unstamped(self._store.read(f"sweeps/{self.sweep}/{LEDGER}") or b"")[1]
        return stamp.token if stamp else 0

    def compares(self, lease: Lease) -> bool:
        """Whether the store refuses a write that expects another version. Some servers ignore conditions."""
        data = lease.encode()
        return all(self._store.write_if(self._key, data, other) is None for other in (None, NO_VERSION))


def claim(store: ObjectStore, key: str, token: int, listed: Entry | None = None) -> Entry:
    """Writes the token into a record, which may not be there yet. From then on writes of earlier holders are refused;
    what they wrote until then is kept. `listed` is the record as a listing has it.

    Raises `OvertakenError` if a later holder has claimed it."""
    entry = listed
    while True:
        content, stamp = unstamped(store.read(key) or b"")
        if stamp is not None and stamp.token > token:
            raise OvertakenError(
                f"{key} has a later fencing token than this driver; `babeltune status` shows the other"
            )
        since = stamp.since if stamp else 0
        written = store.write_if(key, content + Stamp(token, since).line(), entry.version if entry else None)
        if written is not None:
            return written
        entry = store.entry(key)


def driver_fence(lease: HeldLease) -> Fence:
    """The check of a driver's mirror before it changes a record. It asks the bucket only if the lease may be taken."""
    return Fence(lease.token, lease.check, LEDGER, lease.before_write)


def trial_fence(record: BucketLease, token: int) -> Fence:
    """The check of a worker's mirror before it changes a record of its trial. It raises `FencedError`."""
    return Fence(token, lambda: refuse_other_token(record.sweep, record.read()[0], token), REPORTS)
