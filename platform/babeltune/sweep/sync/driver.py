"""Uploads what a sweep's driver writes to the bucket of its storage, while it runs and when it ends.

Before the driver begins, it takes the sweep's lease (`fencing.py`), and the sweep's folder is brought up to date. The
machine of the last driver has the newest folder: a driver there keeps its own, and one on another machine takes the
bucket's. The driver renews the lease every few seconds. A driver that finds another one's lease stops.

A store that does not answer stops nothing at once. Changes wait in the folder, are counted in the log, and are sent
when the store is back. After the cluster's `storage_timeout` the sweep ends with an error, and nothing is lost.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from filelock import Timeout

from babeltune.data.prepared import Prepared
from babeltune.data.store import stores_from
from babeltune.errors import ClusterError, ObjectStoreError, SweepError
from babeltune.files import write_whole
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.sweep.state.fencing import (
    EXPIRY_S,
    OWNER,
    RENEWAL_INTERVAL_S,
    Clock,
    HeldLease,
    Lease,
    acquire,
    awake,
)
from babeltune.sweep.state.folder import ENDED, SweepFolder, read_outcome
from babeltune.sweep.state.heartbeat import here
from babeltune.sweep.state.lease import running_elsewhere
from babeltune.sweep.state.messages import TrialAssignment, TrialOutcome
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync.checkpoint_names import checkpoints_there
from babeltune.sweep.sync.fencing import RESULTS, BucketLease, DriverFence, claim
from babeltune.sweep.sync.view import StorageView, records_in, records_there, stores_of
from babeltune.training.checkpoint import REPORTS, read_reports

Result = TypeVar("Result")
REQUEST_TIMEOUT_S = 5.0
"""Seconds in which an upload is repeated, before the next change is tried."""
LARGE = 2**20
"""Bytes beyond which a file that no resumed sweep needs is sent less often."""
PER_MEBIBYTE = 2.0
"""Seconds between two uploads of such a file, for each MiB of it."""
STUDY = "study.db"
STUDY_INTERVAL_S = 60.0
"""Seconds between two uploads of the study, which changes with every report. The ledger has all that it has: a driver
elsewhere that finds it older than the ledger makes it anew."""
FINAL_UPLOAD_TIMEOUT_S = 10.0
"""Seconds for what has not been sent when a sweep ends with an error."""
LOCK_TIMEOUT_S = 5.0
"""Seconds to wait for who has the sweep on this machine, before it is asked whether that is a driver."""
READER_TIMEOUT_S = 120.0
"""Seconds after which it is held to be one: who only looks on would be gone."""
OUTAGE_MARGIN_S = 30.0
"""Seconds by which a lease outlasts `storage_timeout`, so that a driver that cannot reach the store ends first."""
log = logging.getLogger(__name__)


def is_claimed(key: str) -> bool:
    """Whether a driver writes its token into the record before it reads it."""
    return key.rpartition("/")[2] in (RESULTS, REPORTS)


class DriverSync:
    """A driver's errands, from `with` to the end of its block; none where the storage is a folder."""

    def __init__(self, cluster: Cluster, folder: SweepFolder, *, needs: str | None = None) -> None:
        """`needs` names an earlier sweep that this one starts from."""
        self.token = 0
        """The fencing token of this driver, which its assignments carry."""
        self.folder, self.needs = folder, needs
        self.where = cluster.mirrored
        self.trouble: Exception | None = None
        self.lost: SweepError | None = None
        """Why this driver may not go on: another one has the sweep."""
        self._view = StorageView(cluster)
        self._since = 0.0
        self._held: HeldLease | None = None
        self._renewed = 0.0
        self._sent: dict[Path, float] = {}
        self._changed, self._ending = threading.Event(), threading.Event()
        self._errands = deque[Callable[[], None]]()
        """What waits to be done in the bucket, besides sending records."""
        self._thread = threading.Thread(target=self._work, name="babeltune-driver-sync", daemon=True)

    @property
    def mirror(self) -> Mirror:
        """This driver's mirror of the bucket, where the storage is one."""
        assert self._view.mirror is not None
        return self._view.mirror

    _mirror = mirror

    @property
    def _prefix(self) -> str:
        return f"sweeps/{self.folder.id}"

    def __enter__(self) -> Self:
        if self.where is None:
            return self
        self._lock = self._mirror.lock(self._prefix)
        self._take_turn()
        try:
            self._take()
        except BaseException:
            if self._held is not None:
                self._held.end()
            self._lock.release()
            raise
        self._mirror.store.timeout = REQUEST_TIMEOUT_S
        self._stores = stores_from(self._fetch)
        self._stores.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.where is None:
            return
        self._stores.__exit__(kind, error, trace)
        self._ending.set()
        self._changed.set()
        self._thread.join()
        try:
            if self.lost is None:
                self._insist(self._finish, FINAL_UPLOAD_TIMEOUT_S if kind else self.where.timeout)
        except SweepError as lost:
            if kind is None:
                raise
            self.folder.note(str(lost))
        except ObjectStoreError as unsent:
            if kind is None:
                raise ClusterError(self._words(unsent)) from unsent
            self.folder.note(self._words(unsent))
        finally:
            self._lock.release()

    # At the beginning

    def _take_turn(self) -> None:
        """The folder for this process alone, once those who look on have brought what they look at."""
        deadline = time.monotonic() + READER_TIMEOUT_S
        while True:
            try:
                self._lock.acquire(timeout=LOCK_TIMEOUT_S)
                return
            except Timeout:
                if is_driven(self.folder) or time.monotonic() > deadline:
                    raise running_elsewhere(self.folder.id, self.folder.read("driver.json") or {}) from None

    def _take(self) -> None:
        """The lease, and the folder as the latest driver left it."""
        mirror = self._mirror
        record = BucketLease(mirror.store, self.folder.id)
        self._held = held = self._take_lease(record)
        before = held.before
        if self.needs is not None:
            self._view.update(self.needs)
        mine = self._mine.read_text(encoding="utf-8").split() if self._mine.exists() else []
        elsewhere = before is None or before.session not in mine
        there = records_there(mirror, self.folder.id)
        if elsewhere:
            if there and any(mirror.waits(path) for path in records_in(self.folder.path)):
                aside = self._set_aside()
                self.folder.path.mkdir(parents=True)
                self.folder.note(f"another machine went on with the sweep; what it did not have is in {aside}")
            mirror.pull({key: entry for key, entry in there.items() if not is_claimed(key)})
        there |= self._claim(there)
        if elsewhere:
            mirror.pull(there)
            mirror.forget_missing(self._prefix, there)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self._mine.parent.mkdir(parents=True, exist_ok=True)
        sessions = [*([before.session] if before else []), held.lease.session]
        write_whole(self._mine, " ".join(sessions).encode(), durable=True)
        mirror.store.remove(f"{self._prefix}/stop")
        self._renew()

    def _take_lease(self, record: BucketLease) -> HeldLease:
        """The lease of a driver that ended, died on this machine, or was silent for as long as the lease says."""
        assert self.where is not None
        expiry = max(EXPIRY_S, self.where.timeout + OUTAGE_MARGIN_S)
        mine = Lease(folder=here(self.folder)["folder"], expiry_s=expiry)
        held = acquire(record, mine, mine.shares_lock, Clock(), self._say)
        self.token, self._mirror.fence = held.token, DriverFence(held)
        if not self._mirror.store.compares or not record.compares(held.lease):
            self._mirror.store.compares = False
            self.where = replace(self.where, compares=False)
            self._say("the storage does not compare versions, so a write of an earlier driver may come late")
        return held

    def _claim(self, there: dict[str, Entry]) -> dict[str, Entry]:
        """Writes this driver's token into the records that decide results. Trials that ended get no more reports."""
        trials = {key.split("/")[3] for key in there if "/trials/" in key}
        at = self._mirror.path(f"{self._prefix}/trials")
        open_ones = [name for name in sorted(trials) if read_outcome(at / name) not in ENDED]
        keys = [f"{self._prefix}/{RESULTS}", *(f"{self._prefix}/trials/{name}/{REPORTS}" for name in open_ones)]
        return {key: claim(self._mirror.store, key, self.token) for key in keys}

    def _say(self, text: str) -> None:
        log.warning("sweep %s: %s", self.folder.id, text)
        if self.folder.path.exists():
            self.folder.note(text)

    @property
    def _mine(self) -> Path:
        """Names this machine's drivers of the sweep whose folder this is."""
        return self._mirror.folder / ".driven" / self.folder.id

    def _set_aside(self) -> Path:
        aside = self._mirror.folder / "superseded" / f"{self.folder.id}-{uuid.uuid4().hex[:8]}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        self.folder.path.rename(aside)
        self._mirror.forget(self._prefix)
        return aside

    def _renew(self, *, ended: bool = False) -> None:
        """Says that this driver lives. Raises `OvertakenError` if another one has the sweep."""
        assert self._held is not None
        self._held.renew(ended=ended)
        write_whole(self.folder.path / OWNER, self._held.lease.encode())
        self._renewed = awake()

    def _fetch(self, store: Path) -> None:
        """Brings a store that another sweep or machine has built already."""
        assert self.where is not None
        self._insist(lambda: self._mirror.pull_package(self._mirror.key(store)), self.where.timeout)

    # While the driver runs

    def wake(self) -> None:
        """Something has changed that a resumed sweep needs."""
        self._changed.set()

    def key_of(self, place: Path, report: int) -> str:
        """Where the storage has a trial's checkpoint. In a bucket its name has the token of the driver of that time."""
        base, trial = f"{report:06d}", f"{self._prefix}/trials/{place.name}"
        name = base
        if self.where is not None:
            name = f"{base}-{self.token}"
            with suppress(ObjectStoreError):
                name = checkpoints_there(self._mirror, trial, 0).get(base, name)
        return f"{trial}/checkpoints/{name}"

    def later(self, errand: Callable[[], None]) -> None:
        """Does something in the bucket, in this driver's own thread; again, if the store does not answer."""
        self._errands.append(errand)
        self._changed.set()

    def _run_errands(self) -> None:
        while self._errands:
            self._errands[0]()
            self._errands.popleft()

    def check(self) -> None:
        """Raises `ClusterError` when the store has been away for too long, `SweepError` when another driver came."""
        if self.lost is not None:
            raise self.lost
        if self.where and self.trouble is not None and time.monotonic() - self._since > self.where.timeout:
            raise ClusterError(self._words(self.trouble))
        if self._held is not None:
            self._held.refuse_if_late()

    def publish(self, prepared: Prepared) -> None:
        """Sends the stores and the records of them, before a trial that may run elsewhere needs them."""
        if self.where is None:
            return

        def send() -> None:
            for key in stores_of(self._mirror, prepared):
                self._mirror.push_package(self._mirror.path(key))
            for record in (self.folder.prepared, *self.folder.path.glob(f"conditions/*/{self.folder.prepared.name}")):
                self._mirror.push(record)

        self._insist(send, self.where.timeout)

    def sent(self, assignment: TrialAssignment) -> TrialAssignment:
        """A worker group's assignment for any node: its paths are relative to that node's mirror."""
        assignment = replace(assignment, token=self.token)
        if self.where is None:
            return assignment
        prepared, folder = (self._mirror.key(Path(path)) for path in (assignment.prepared, assignment.folder))
        return replace(assignment, prepared=prepared, folder=folder, mirror=self.where)

    def see(self, _: str, number: int, event: TrialAssignment | Report | TrialOutcome | None) -> None:
        """Called for a trial's events. Brings reports that another node wrote here, for the leaderboard."""
        if self.where is None:
            return
        place = self.folder.trial(number)
        if isinstance(event, Report) and len(read_reports(place)) < event.index:
            try:
                self._mirror.fetch(self._mirror.key(place / REPORTS))
            except ObjectStoreError as error:
                self._stumble(error)

    def _work(self) -> None:
        while not self._ending.is_set():
            self._changed.wait(RENEWAL_INTERVAL_S)
            self._changed.clear()
            if self._ending.is_set():
                return
            try:
                if self.trouble is not None or awake() - self._renewed >= RENEWAL_INTERVAL_S:
                    self._listen()
                self._send(final=False)
                self._run_errands()
                if self.trouble is not None:
                    self.trouble = None
                    self.folder.note(f"the storage {self._mirror.store.uri} takes what is sent again")
            except SweepError as error:
                self.lost = error
                return
            except Exception as error:  # the thread goes on; `check` says when it is enough
                self._stumble(error)
                self._ending.wait(1.0)

    def _send(self, *, final: bool) -> None:
        for path in records_in(self.folder.path):
            now = time.monotonic()
            due = self._sent.get(path, -1e9)
            if not final and path.name != RESULTS and due > now:
                continue
            if awake() - self._renewed > RENEWAL_INTERVAL_S:  # many large records take longer than one interval
                self._renew()
            if self._mirror.push(path):
                size = path.stat().st_size
                wait = STUDY_INTERVAL_S if path.name == STUDY else 0.0
                self._sent[path] = now + max(wait, PER_MEBIBYTE * size / LARGE if size > LARGE else 0.0)

    def _listen(self) -> None:
        """Renews the lease; sees who wants this driver to stop."""
        self._renew()
        if self._mirror.store.entry(f"{self._prefix}/stop") is not None:
            self.folder.stop_request.touch()

    def _stumble(self, error: Exception) -> None:
        first, self.trouble = self.trouble is None, error
        if first:
            self._since = time.monotonic()
            with suppress(OSError):  # such as a full disk; the thread goes on
                self.folder.note(self._words(error))

    def _words(self, error: Exception) -> str:
        waiting = sum(self._mirror.waits(path) for path in records_in(self.folder.path))
        return (
            f"{error}; {waiting} changed files wait in {self.folder.path}, where nothing is lost: "
            f"`babeltune resume {self.folder.id}` on this machine sends them and goes on"
        )

    # At the end

    def _finish(self) -> None:
        self._listen()
        self._send(final=True)
        self._run_errands()
        self._renew(ended=True)

    def _insist(self, errand: Callable[[], Result], seconds: float) -> Result:
        """The errand, tried again for so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return errand()
            except ObjectStoreError as error:
                if time.monotonic() > deadline:
                    raise
                self._stumble(error)
                self._ending.wait(1.0)
                time.sleep(0.2)
