"""Uploads what a sweep's driver writes to the bucket of its storage, while it runs and when it ends.

Before the driver begins, it takes the sweep's lease, and the sweep's folder is brought up to date (`leased_folder.py`).
A thread renews the lease from then on. A driver that finds another one's lease stops.

A store that does not answer stops nothing at once. Changes wait in the folder, are counted in the log, and are sent
when the store is back. After the cluster's `storage_timeout` the sweep ends with an error, and nothing is lost."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from babeltune.data.prepared import Prepared
from babeltune.data.store import stores_in
from babeltune.errors import ClusterError, ObjectStoreError, SweepError
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report
from babeltune.stages import UPLOADING, Progress, no_progress
from babeltune.storage.mirror import Mirror
from babeltune.storage.packages import write_below
from babeltune.sweep.state.fencing import RENEWAL_INTERVAL_S, Clock, HeldLease
from babeltune.sweep.state.folder import REQUESTS, SweepFolder
from babeltune.sweep.state.messages import TrialAssignment, TrialOutcome
from babeltune.sweep.sync.leased_folder import LeasedFolder
from babeltune.sweep.sync.shards import BucketStores, Carrier
from babeltune.sweep.sync.view import StorageView, checkpoints_there, records_in, stores_of
from babeltune.training.checkpoint import REPORTS, read_reports

Result = TypeVar("Result")
REQUEST_TIMEOUT_S = 5.0  # seconds in which an upload is repeated, before the next change is tried
LARGE_RECORD_BYTES = 2**20
"""Bytes beyond which a record is sent less often. What a resumed sweep lacks of one, it has in the workers' reports."""
PER_MEBIBYTE_S = 2.0  # seconds between two uploads of such a record, for each MiB of it
FINAL_UPLOAD_TIMEOUT_S = 10.0  # seconds for what has not been sent when a sweep ends with an error


class DriverSync:
    """Sends what a driver writes to the bucket, within a `with` block. It does nothing if the storage is a folder."""

    def __init__(
        self, cluster: Cluster, folder: SweepFolder, *, needs: str | None = None, clock: Clock | None = None
    ) -> None:
        """`needs` names an earlier sweep that this one starts from."""
        self.token = 0  # the fencing token of this driver, which its assignments carry
        self.folder, self.needs = folder, needs
        self._prefix = f"sweeps/{folder.id}"
        self.where = cluster.mirrored
        self._alone = cluster.address == "local"
        self.trouble: Exception | None = None
        self.lost: SweepError | None = None  # why this driver may not go on: another one has the sweep
        self._view = StorageView(cluster)
        self._since, self._looked_at, self._clock = 0.0, 0.0, clock
        self._leased: LeasedFolder | None = None
        self._lease: HeldLease | None = None
        self._sent: dict[Path, float] = {}
        self._changed, self._ending = threading.Event(), threading.Event()
        self._delayed = deque[Callable[[], None]]()
        """Actions that wait to be done in the bucket, besides sending records."""
        self._thread = threading.Thread(target=self._work, name="babeltune-driver-sync", daemon=True)

    @property
    def mirror(self) -> Mirror:
        """This driver's mirror of the bucket, if the storage is one."""
        assert self._view.mirror is not None
        return self._view.mirror

    @property
    def carrier(self) -> Carrier | None:
        """The carrier of files of shards to other nodes and into the bucket; None: all tasks see this folder."""
        return None if self.where is None or self._alone else Carrier(self.where)

    def __enter__(self) -> Self:
        if self.where is None:
            return self
        timeout = self.where.timeout
        leased = LeasedFolder(self._view, self.folder, timeout=timeout, clock=self._clock)
        self._lease = leased.take(self.needs)
        self.token, self._leased = self._lease.token, leased
        self.where = replace(self.where, compares=self.mirror.store.compares and self.where.compares)
        self.mirror.store.timeout = REQUEST_TIMEOUT_S
        with ExitStack() as failing:
            failing.callback(leased.release)
            self._insist(self._look_for_requests, timeout)
            insist = partial(self._insist, seconds=timeout)
            self._stores = stores_in(BucketStores(self.mirror, insist, takes_shards=self.carrier is not None))
            self._stores.__enter__()
            failing.pop_all()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.where is None or self._leased is None:
            return
        self._stores.__exit__(kind, error, tb)
        self._ending.set()
        self._changed.set()
        self._thread.join(self.where.timeout)
        try:
            if self._thread.is_alive():
                raise ObjectStoreError(f"an upload has hung for {self.where.timeout:g} s")
            if self.lost is None:
                self._insist(self._finish, FINAL_UPLOAD_TIMEOUT_S if kind else self.where.timeout)
        except SweepError as lost:
            if kind is None:
                raise
            self.folder.note(str(lost))
        except ObjectStoreError as unsent:
            if kind is None:
                raise ClusterError(_words(unsent, self.mirror, self.folder)) from unsent
            self.folder.note(_words(unsent, self.mirror, self.folder))
        finally:
            self._leased.release()

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
                name = checkpoints_there(self.mirror, trial, 0).get(base, name)
        return f"{trial}/checkpoints/{name}"

    def run_in_background(self, action: Callable[[], None]) -> None:
        """Does something in the bucket, in this driver's own thread; again, if the store does not answer."""
        self._delayed.append(action)
        self._changed.set()

    def _run_delayed(self) -> None:
        while self._delayed:
            self._delayed[0]()
            self._delayed.popleft()

    def check(self) -> None:
        """Raises `ClusterError` when the store has been away for too long, `SweepError` when another driver came."""
        if self.lost is not None:
            raise self.lost
        if self.where and self.trouble is not None and time.monotonic() - self._since > self.where.timeout:
            raise ClusterError(_words(self.trouble, self.mirror, self.folder))
        if self._lease is not None:
            self._lease.refuse_if_late()

    def publish(self, prepared: Prepared, progress: Progress = no_progress) -> None:
        """Sends the stores and the records of them, before a trial that may run elsewhere needs them."""
        if self.where is None:
            return

        def send() -> None:
            for path in map(self.mirror.path, stores_of(self.mirror, prepared)):
                if path.exists():  # of the others, tasks have written the shards there
                    self.mirror.push_package(path, tell=partial(progress, f"{UPLOADING} {self.mirror.key(path)}"))
            for record in (self.folder.prepared, *self.folder.path.glob(f"conditions/*/{self.folder.prepared.name}")):
                self.mirror.push(record)

        self._insist(send, self.where.timeout)

    def for_any_node(self, assignment: TrialAssignment) -> TrialAssignment:
        """A worker group's assignment for any node: its paths are relative to that node's mirror."""
        assignment = replace(assignment, token=self.token)
        if self.where is None:
            return assignment
        prepared, folder = (self.mirror.key(Path(path)) for path in (assignment.prepared, assignment.folder))
        return replace(assignment, prepared=prepared, folder=folder, mirror=self.where)

    def fetch_reports(self, number: int, event: TrialAssignment | Report | TrialOutcome | None) -> None:
        """Downloads a trial's reports if another node wrote them."""
        if self.where is None:
            return
        place = self.folder.trial(number)
        if isinstance(event, Report) and len(read_reports(place)) < event.index:
            try:
                self.mirror.fetch(self.mirror.key(place / REPORTS))
            except ObjectStoreError as error:
                self._stumble(error)

    def _work(self) -> None:
        while not self._ending.is_set():
            self._changed.wait(RENEWAL_INTERVAL_S)
            self._changed.clear()
            if self._ending.is_set():
                return
            try:
                self._look_for_requests()
                self._send(final=False)
                self._run_delayed()
                if self.trouble is not None:
                    self.trouble = None
                    self.folder.note(f"the storage {self.mirror.store.uri} takes what is sent again")
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
            if not final and due > now:
                continue
            if self.mirror.push(path):
                size = path.stat().st_size
                self._sent[path] = now + (PER_MEBIBYTE_S * size / 2**20 if size > LARGE_RECORD_BYTES else 0.0)

    def _look_for_requests(self) -> None:
        """Sees every few seconds what anybody wants of this driver, and whether the storage answers."""
        now = time.monotonic()
        if self.trouble is None and now - self._looked_at < RENEWAL_INTERVAL_S:
            return
        if self.mirror.store.entry(f"{self._prefix}/stop") is not None:
            self.folder.stop_request.touch()
        for key in self.mirror.store.entries(f"{self._prefix}/{REQUESTS}"):
            if (data := self.mirror.store.read(key)) is not None:
                write_below(self.mirror.path(key), data)
                self.mirror.store.remove(key)
        self._looked_at = now

    def _stumble(self, error: Exception) -> None:
        first, self.trouble = self.trouble is None, error
        if first:
            self._since = time.monotonic()
            with suppress(OSError):  # such as a full disk; the thread goes on
                self.folder.note(_words(error, self.mirror, self.folder))

    # At the end

    def _finish(self) -> None:
        assert self._lease is not None
        self._lease.renew()
        self._send(final=True)
        self._run_delayed()
        self._lease.renew(ended=True)

    def _insist(self, request: Callable[[], Result], seconds: float) -> Result:
        """The request, tried again for these seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return request()
            except ObjectStoreError as error:
                if time.monotonic() > deadline:
                    raise
                self._stumble(error)
                self._ending.wait(1.0)
                time.sleep(0.2)


def _words(error: Exception, mirror: Mirror, folder: SweepFolder) -> str:
    """The error, with how much has not been sent, and what to do."""
    waiting = sum(mirror.waits(path) for path in records_in(folder.path))
    return (
        f"{error}; {waiting} changed files wait in {folder.path}, where nothing is lost: "
        f"`babeltune resume {folder.id}` on this machine sends them and goes on"
    )
