"""A sweep's folder for one driver: its turn on this machine, the sweep's lease in the bucket, and the latest records.

The machine of the last driver has the newest folder: a driver there keeps its own, and one on another machine takes the
bucket's."""

import logging
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from babeltune.files import make_folders, write_whole
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import together
from babeltune.sweep.state.fencing import EXPIRY_S, OWNER, Clock, HeldLease, Lease, acquire, renewed
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.lease import recorded_driver, running_elsewhere
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.state.stored import here
from babeltune.sweep.sync.fencing import BucketLease, claim, driver_fence
from babeltune.sweep.sync.view import StorageView, records_in, records_there
from babeltune.training.checkpoint import REPORTS

LOCK_TIMEOUT_S = 5.0
"""Seconds to wait for who has the sweep on this machine, before it is asked whether that is a driver."""
READER_TIMEOUT_S = 120.0  # seconds after which it is held to be one: a reader would be gone
OUTAGE_MARGIN_S = 30.0
"""Seconds by which a lease outlasts `storage_timeout`, so that a driver that cannot reach the store ends first."""
log = logging.getLogger(__name__)


class LeasedFolder:
    """One driver's hold on a sweep, from `take` to `release`."""

    def __init__(self, view: StorageView, folder: SweepFolder, *, timeout: float, clock: Clock | None = None) -> None:
        """`timeout` is the cluster's `storage_timeout`, in seconds."""
        assert view.mirror is not None
        self._view, self._mirror, self._folder, self._timeout = view, view.mirror, folder, timeout
        self._clock = clock
        self._prefix = f"sweeps/{folder.id}"
        self._leaving = ExitStack()
        """The contexts that end when this driver leaves the folder: the renewals, then its turn on this machine."""

    def take(self, needs: str | None) -> HeldLease:
        """Takes the lease, and brings the folder as the latest driver left it, and the sweep that it `needs`."""
        with ExitStack() as failing:
            self._take_turn()
            failing.callback(self.release)
            lease = self._take_lease()
            failing.callback(lease.end)
            self._leaving.enter_context(renewed(lease))
            self._bring(lease, needs)
            failing.pop_all()
        return lease

    def release(self) -> None:
        """Renews the lease no more, and lets others of this machine have the folder."""
        self._leaving.close()

    def _take_turn(self) -> None:
        """The folder for this process alone, once its readers have brought what they read."""
        deadline = time.monotonic() + READER_TIMEOUT_S
        while not self._leaving.enter_context(self._mirror.lock(self._prefix, LOCK_TIMEOUT_S)):
            if is_driven(self._folder) or time.monotonic() > deadline:
                raise running_elsewhere(self._folder.id, recorded_driver(self._folder))

    def _bring(self, lease: HeldLease, needs: str | None) -> None:
        """Brings the folder as the latest driver left it, once nobody else may change its records."""
        mirror, before = self._mirror, lease.before
        if needs is not None:
            self._view.update(needs)
        local_sessions = self._sessions_file.read_text(encoding="utf-8").split() if self._sessions_file.exists() else []
        elsewhere = before is None or before.session not in local_sessions
        records = records_there(mirror, self._folder.id)
        if elsewhere:
            if records and any(mirror.waits(path) for path in records_in(self._folder.path)):
                aside = self._set_aside()
                make_folders(self._folder.path)
                self._folder.note(f"another machine went on with the sweep; what it did not have is in {aside}")
            mirror.pull({key: entry for key, entry in records.items() if not key.endswith(f"/{REPORTS}")})
        records |= self._claim(records, lease.token)
        if elsewhere:
            mirror.pull(records)
            mirror.forget_missing(self._prefix, records)
        make_folders(self._folder.path)
        (self._folder.path / OWNER).unlink(missing_ok=True)  # readers bring the latest
        make_folders(self._sessions_file.parent)
        sessions = [*([before.session] if before else []), lease.lease.session]
        write_whole(self._sessions_file, " ".join(sessions).encode(), durable=True)
        lease.renew()  # one that was overtaken meanwhile removes no request to the other
        mirror.store.remove(f"{self._prefix}/stop")

    def _take_lease(self) -> HeldLease:
        """The lease of a driver that ended, died on this machine, or was silent for as long as the lease says."""
        record = BucketLease(self._mirror.store, self._folder.id)
        candidate = Lease(folder=here(self._folder)["folder"], expiry_s=max(EXPIRY_S, self._timeout + OUTAGE_MARGIN_S))
        lease = acquire(record, candidate, candidate.shares_lock, self._clock, self._say)
        self._mirror.fence = driver_fence(lease)
        if not self._mirror.store.compares or not record.compares(lease.lease):
            self._mirror.store.compares = False
            self._say("the storage does not compare versions, so a write of an earlier driver may come late")
        return lease

    def _claim(self, entries: dict[str, Entry], token: int) -> dict[str, Entry]:
        """Writes this driver's token into the records that decide results. Trials that ended get no more reports."""
        listed = {key.split("/")[3] for key in entries if "/trials/" in key}
        logged = log_of(self._folder.path).trials.values()  # a listing may lack the latest trials
        ended = {trial.name for trial in logged if trial.end is not None}
        open_ones = sorted((listed | {trial.name for trial in logged}) - ended)
        keys = [f"{self._prefix}/{LEDGER}", *(f"{self._prefix}/trials/{name}/{REPORTS}" for name in open_ones)]
        claimed = together(lambda key: claim(self._mirror.store, key, token, entries.get(key)), keys)
        return dict(zip(keys, claimed, strict=True))

    def _say(self, text: str) -> None:
        log.warning("sweep %s: %s", self._folder.id, text)
        if self._folder.path.exists():
            self._folder.note(text)

    @property
    def _sessions_file(self) -> Path:
        """Names this machine's drivers of the sweep whose folder this is."""
        return self._mirror.folder / ".driven" / self._folder.id

    def _set_aside(self) -> Path:
        aside = self._mirror.folder / "superseded" / f"{self._folder.id}-{uuid.uuid4().hex[:8]}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        self._folder.path.rename(aside)
        self._mirror.forget(self._prefix)
        return aside
