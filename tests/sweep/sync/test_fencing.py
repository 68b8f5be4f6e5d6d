"""Two drivers of one sweep. Each may be paused, cut off or killed at every request, and no report is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from babeltune.errors import ClusterError, FencedError, ObjectStoreError, SweepError
from babeltune.files import plain, sha256_of
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage import packages
from babeltune.storage.mirror import Mirror, unstamped
from babeltune.storage.object_store import Entry, ObjectStore
from babeltune.storage.packages import PACKAGE_MANIFEST
from babeltune.sweep.state import fencing
from babeltune.sweep.state.fencing import (
    OWNER,
    Clock,
    DrivenError,
    FileLease,
    FolderFence,
    HeldLease,
    Lease,
    LeaseExpiredError,
    OvertakenError,
    acquire,
    written_under,
)
from babeltune.sweep.state.folder import SweepFolder, add_to_ledger
from babeltune.sweep.state.log import LEDGER, Ledger, log_of
from babeltune.sweep.sync import driver as driver_module
from babeltune.sweep.sync import leased_folder
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.fencing import BucketLease, trial_fence
from babeltune.sweep.sync.view import latest_names
from babeltune.sweep.sync.worker import pull_trial, push_trial
from babeltune.training.checkpoint import (
    MANIFEST,
    REPORTS,
    add_report,
    checkpoint_folder,
    last_good,
    prune_checkpoints,
    read_reports,
)
from waiting import PATIENCE_S, wait_until

SWEEP = "sweeps/s"
TRIAL = f"{SWEEP}/trials/t0000"
FATES = ("arrives", "is lost", "is answered to nobody", "is sent twice")  # what becomes of a request
MEMORY = "/dev/shm"  # a folder that need not wait for a disk, where there is one
STEPS = st.sampled_from([1, 2, 5, 12, 40])


class Killed(BaseException):
    """The process ends where it is."""


class Process:
    """A process that goes on only when the test says so, from one request to the next."""

    def __init__(self, body: Callable[[Process], None]) -> None:
        self.fate, self.ended, self.error = FATES[0], False, None
        self._killed = False
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(body,), daemon=True).start()

    def _run(self, body: Callable[[Process], None]) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                body(self)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._waits.release()

    def point(self) -> None:
        """Waits here until the process may go on."""
        self._waits.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def step(self, fate: str = FATES[0]) -> None:
        if self.ended:
            return
        self.fate = fate
        self._go.release()
        self._waits.acquire()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        self._killed = True
        while not self.ended:
            self.step()


@dataclass
class Bucket:
    """A bucket in memory that compares ETags, which are digests of the content as S3's are."""

    objects: dict[str, bytes] = field(default_factory=dict)
    lag: int = 0  # changes that a listing does not show yet
    changes: list[dict[str, Entry]] = field(default_factory=list)  # what there was after each of the last ones

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self._changed()

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.changes = (
            [*self.changes[-self.lag :], {each: self.entry(each) for each in self.objects}] if self.lag else []
        )

    def listing(self, prefix: str) -> dict[str, Entry]:
        shown = self.changes[0] if self.lag and self.changes else {each: self.entry(each) for each in self.objects}
        return {key: entry for key, entry in shown.items() if key.startswith(f"{prefix}/")}

    def swap(self, key: str, data: bytes, expected: str | None) -> Entry | None:
        entry = self.entry(key)
        if (entry.version if entry else None) != expected:
            return None
        self.put(key, data)
        return self.entry(key)

    def entry(self, key: str) -> Entry | None:
        data = self.objects.get(key)
        tag = hashlib.md5(data or b"").hexdigest()
        return None if data is None else Entry(len(data), tag, 0.0, tag)


class Connection:
    """A process's connection to the bucket. It stops before each request, which may be lost."""

    uri, compares, timeout = "memory://model", True, 1.0

    def __init__(self, bucket: Bucket, process: Process, *, fenced: bool) -> None:
        self._bucket, self._process, self._fenced = bucket, process, fenced

    def _asked(self, request):
        self._process.point()
        fate = self._process.fate
        if fate == "is lost":
            raise ObjectStoreError("the storage cannot be reached")
        answer = request()
        if fate == "is answered to nobody":
            raise ObjectStoreError("the storage does not answer")
        return request() if fate == "is sent twice" else answer

    def entry(self, key):
        return self._asked(lambda: self._bucket.entry(key))

    def entries(self, prefix=""):
        return self._asked(lambda: self._bucket.listing(prefix))

    def read(self, key):
        return self._asked(lambda: self._bucket.objects.get(key))

    def write(self, key, data):
        self._asked(lambda: self._bucket.put(key, data))

    def write_if(self, key, data, expected):
        if not self._fenced:
            return self._asked(lambda: self._bucket.put(key, data) or self._bucket.entry(key))
        return self._asked(lambda: self._bucket.swap(key, data, expected))

    def remove(self, key):
        self._asked(lambda: self._bucket.remove(key))

    def upload(self, path, key, on_bytes=None):
        self.write(key, path.read_bytes())

    def download(self, key, path):
        data = self.read(key)
        if data is None:
            raise FileNotFoundError(key)
        path.write_bytes(data)


@contextmanager
def in_turn(mirror: Mirror, process: Process, key: str) -> Iterator[None]:
    """`Mirror.in_turn` of a process that stands still while another one that stands still has the turn."""
    with ExitStack() as leaving:
        while not leaving.enter_context(mirror.lock(key, 0.0)):
            process.point()
        yield


def a_report(index: int, by: str) -> Report:
    return Report(index=index, step=index, pairs=index, seconds=0.0, metrics={"dev/x": 0.5}, facts={"by": by})


def make_report(folder: Path, by: str) -> None:
    """The next report and its checkpoint, without waiting for the disk."""
    reports = read_reports(folder)
    index = len(reports) + 1
    place = checkpoint_folder(folder, index)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"by": by, "index": index}))
    (place / MANIFEST).write_text(json.dumps({"files": {"state.json": sha256_of(place / "state.json")}}))
    lines = (folder / REPORTS).read_bytes() if reports else b""
    (folder / REPORTS).write_bytes(lines + json.dumps(plain(a_report(index, by))).encode() + b"\n")
    for old in range(1, index):
        shutil.rmtree(checkpoint_folder(folder, old), ignore_errors=True)


def lines_of(data: bytes | None) -> list[bytes]:
    return unstamped(data or b"")[0].splitlines()


@dataclass
class Driver:
    """One start of a driver on a machine, and the worker that trains its trial."""

    name: str
    driver: Process | None = None
    worker: Process | None = None
    trains: Callable[[Process], None] | None = None  # what each worker of this driver does
    nodes: int = 0  # the nodes on which its workers have been
    reports: int = 0  # reports of its worker that the driver knows
    asked_to_stop: bool = False


class TwoDrivers(RuleBasedStateMachine):
    """What every storage has in common. `acknowledged` holds what the storage has confirmed to a process."""

    fenced = True

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="fencing-", dir=MEMORY if Path(MEMORY).is_dir() else None))
        self.now, self.begun = 0.0, 0
        self.machines = [Driver("one"), Driver("two")]
        self.everyone: list[Process] = []
        self.acknowledged: dict[str, list[bytes]] = {REPORTS: [], LEDGER: []}

    def clock(self, driver: Driver, process: Process) -> Clock:
        """Two machines' clocks show other times, and one runs faster."""
        offset, rate = (0.0, 1.0) if driver.name == "one" else (1e6, 1.05)

        def now() -> float:
            return offset + rate * self.now

        def wait(seconds: float) -> None:
            until = now() + seconds
            process.point()
            while now() < until:
                process.point()

        return Clock(now, wait)

    def process(self, body: Callable[[Process], None]) -> Process:
        self.everyone.append(Process(body))
        return self.everyone[-1]

    def acknowledge(self, name: str, lines: list[bytes]) -> None:
        earlier = self.acknowledged[name]
        assert earlier[: len(lines)] == lines[: len(earlier)], f"two drivers got other {name} confirmed"
        self.acknowledged[name] = max(earlier, lines, key=len)

    def started(self, machine: Driver) -> Process:
        """The machine's driver; a new one if the last is dead."""
        if machine.driver is None or machine.driver.ended:
            self.begun += 1
            began = machine.name + str(self.begun)
            machine.driver = self.process(lambda process: self.drive(machine, process, began))
        return machine.driver

    def run(self, process: Process | None, steps: int, fate: str = FATES[0]) -> None:
        """Lets the process make this many requests. Something may happen to the last one."""
        for number in range(steps, 0, -1) if process else ():
            process.step(fate if number == 1 else FATES[0])

    def run_until(self, process: Process, happened: Callable[[], bool]) -> None:
        """Lets the process make requests until this has happened, or it does not get there."""
        for _ in range(40):
            if process.ended or happened():
                return
            process.step()

    def token(self) -> int:
        """That of the lease."""
        lease = Lease.read(self.lease())
        return lease.token if lease else 0

    @initialize(steps=st.integers(0, 80))
    def one_begins(self, steps: int) -> None:
        """The first driver has the lease, and its worker has made some reports."""
        self.run(self.started(self.machines[0]), 20)
        self.run(self.machines[0].worker, steps if isinstance(self, OnABucket) else steps // 8)
        self.now += 6.0
        self.run(self.machines[0].driver, 10)

    @rule(who=st.integers(0, 1), works=st.booleans(), steps=STEPS, fate=st.sampled_from(FATES))
    def go_on(self, who: int, works: bool, steps: int, fate: str) -> None:
        """A driver, or its worker, works for a while; all others are paused."""
        machine = self.machines[who]
        self.run(machine.worker if works and machine.worker else self.started(machine), steps, fate)

    @rule(who=st.integers(0, 1), again=st.booleans(), steps=st.integers(0, 20))
    def take_over(self, who: int, again: bool, steps: int) -> None:
        """All are silent for longer than a lease lasts, and one driver has seen that. It may have begun just now."""
        if again and self.machines[who].driver is not None:
            self.machines[who].driver.kill()
        driver, before = self.started(self.machines[who]), self.token()
        self.run(driver, 4)
        self.now += 70.0
        self.run_until(driver, lambda: self.token() > before)
        self.run(driver, steps)

    @rule(who=st.integers(0, 1), steps=st.integers(0, 40))
    def begin(self, who: int, steps: int) -> None:
        """A driver that was paused goes on until it has given its trial to a worker, which begins."""
        machine, before = self.machines[who], self.machines[who].worker
        self.run_until(self.started(machine), lambda: machine.worker is not before)
        self.run(machine.worker, steps)

    @rule(seconds=st.sampled_from([3.0, 20.0, 50.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.integers(0, 1), luck=st.integers(0, 2))
    def crash(self, who: int, luck: int) -> None:
        """The driver may die. Its worker may live on."""
        if self.machines[who].driver is not None and not luck:
            self.machines[who].driver.kill()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for name, acknowledged in self.acknowledged.items():
            lines = self.stored(name)
            assert lines[: len(acknowledged)] == acknowledged, f"{name} fell back from {len(acknowledged)} to {lines}"
            numbers = [json.loads(line)["index"] for line in lines]
            assert numbers == list(range(1, len(lines) + 1)), numbers

    def teardown(self) -> None:
        for process in self.everyone:
            process.kill()
        shutil.rmtree(self.place)

    def drive(self, machine: Driver, process: Process, began: str) -> None:
        raise NotImplementedError

    def stored(self, name: str) -> list[bytes]:
        raise NotImplementedError

    def lease(self) -> bytes | None:
        raise NotImplementedError


class OnABucket(TwoDrivers):
    """Each driver has its own mirror of the bucket, and so has each worker. Drivers are `DriverSync`."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()

    def stored(self, name: str) -> list[bytes]:
        return lines_of(self.bucket.objects.get(f"{TRIAL}/{name}" if name == REPORTS else f"{SWEEP}/{name}"))

    def lease(self) -> bytes | None:
        return self.bucket.objects.get(f"{SWEEP}/{OWNER}")

    @rule(who=st.integers(0, 1))
    def stop(self, who: int) -> None:
        """Asks a driver to end."""
        self.machines[who].asked_to_stop = True

    @rule(who=st.integers(0, 1), steps=STEPS)
    def move(self, who: int, steps: int) -> None:
        """The worker dies, and its trial goes on on an empty node."""
        machine = self.machines[who]
        if machine.worker is not None and not machine.worker.ended:
            machine.worker.kill()
            machine.worker, machine.nodes = self.process(machine.trains), machine.nodes + 1
            self.run(machine.worker, steps)

    @invariant()
    def the_last_report_has_its_checkpoint(self) -> None:
        """A trial that goes on anywhere finds the checkpoint of its last report."""
        if not (lines := self.stored(REPORTS)):
            return
        prefix, since = f"{TRIAL}/checkpoints", unstamped(self.bucket.objects[f"{TRIAL}/{REPORTS}"])[1].since
        names = latest_names(prefix, {key: self.bucket.entry(key) for key in self.bucket.objects}, since)
        name = names.get(f"{len(lines):06d}")
        assert name, f"of {len(lines)} reports the last one has none: {names}"
        files = json.loads(self.bucket.objects[f"{prefix}/{name}/{PACKAGE_MANIFEST}"])["files"]
        digests = {each: hashlib.sha256(self.bucket.objects[f"{prefix}/{name}/{each}"]).hexdigest() for each in files}
        assert digests == {each: facts["sha256"] for each, facts in files.items()}, "it is whole"

    def drive(self, machine: Driver, process: Process, began: str) -> None:
        cluster = Cluster(storage="memory://model", cache=str(self.place / machine.name), storage_timeout=30.0)
        folder, clock = SweepFolder(cluster.folder / SWEEP), self.clock(machine, process)
        sync = DriverSync(cluster, folder, clock=clock)
        sync.mirror.store = Connection(self.bucket, process, fenced=self.fenced)
        try:
            with sync:
                machine.reports, machine.asked_to_stop = 0, False
                machine.trains = partial(self.train, machine, sync.token, began)
                machine.worker = self.process(machine.trains)
                while not machine.asked_to_stop:
                    clock.wait(5.0)
                    with suppress(ObjectStoreError):
                        sync._lease.renew()
                        self.record(machine, sync)
                    sync.check()
        except (ClusterError, SweepError):
            pass

    def record(self, machine: Driver, sync: DriverSync) -> None:
        """Adds to the ledger what the worker reported."""
        ledger = sync.folder.path / LEDGER
        lines = ledger.read_bytes().splitlines() if ledger.exists() else []
        lines += [
            json.dumps({"index": n, "by": machine.name}).encode() for n in range(len(lines) + 1, machine.reports + 1)
        ]
        ledger.write_bytes(b"".join(line + b"\n" for line in lines))
        sync._send(final=False)
        self.acknowledge(LEDGER, lines)

    def train(self, machine: Driver, token: int, began: str, process: Process) -> None:
        mirror = Mirror(
            StorageLocation(uri="memory://model", cache=str(self.place / f"{machine.name}-{machine.nodes}"))
        )
        mirror.store = Connection(self.bucket, process, fenced=self.fenced)
        mirror.fence = trial_fence(BucketLease(mirror.store, "s"), token)
        mirror.in_turn = partial(in_turn, mirror, process)  # type: ignore[method-assign]
        folder = mirror.path(TRIAL)
        pulled = False
        while True:
            process.point()
            try:
                if not pulled:
                    pull_trial(mirror, folder)
                pulled = True
                make_report(folder, began) if len(last_good(folder)) < 9 else None
                push_trial(mirror, folder)
            except ObjectStoreError:
                continue
            except FencedError:
                return
            self.acknowledge(REPORTS, (folder / REPORTS).read_bytes().splitlines())
            machine.reports = len(read_reports(folder))


class OnABucketThatListsLate(OnABucket):
    """Its listings are some writes behind, as those of servers that only promise to show a write at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket.lag, self.bucket.changes = 3, [{}]


class OnAFolder(TwoDrivers):
    """Both machines see one folder. Its driver proposes trials, and its worker reports."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed: dict[int, str] = {}  # trials that were proposed under the lease, and by which driver

    def stored(self, name: str) -> list[bytes]:
        return self.lines(read_reports(self.trial)) if name == REPORTS else []

    def lines(self, reports: list[Report]) -> list[bytes]:
        return [json.dumps(plain(report)).encode() for report in reports]

    @property
    def trial(self) -> Path:
        return self.place / "trials" / "t0000"

    def lease(self) -> bytes | None:
        path = self.place / OWNER
        return path.read_bytes() if path.exists() else None

    @invariant()
    def the_log_has_each_trial_as_it_was_proposed(self) -> None:
        trials = log_of(self.place).trials
        assert {number: trials[number].params for number in self.proposed} == {
            number: {"by": began} for number, began in self.proposed.items()
        }

    @invariant()
    def the_last_report_has_its_checkpoint(self) -> None:
        last = len(self.acknowledged[REPORTS])
        assert not last or checkpoint_folder(self.trial, last).exists(), f"of {last} reports the last one has none"

    def drive(self, machine: Driver, process: Process, began: str) -> None:
        clock = self.clock(machine, process)
        record = FileLease(self.place, lambda _: process.point())
        try:
            lease = acquire(record, Lease(host=machine.name), clock=clock)
        except DrivenError:
            return
        folder = SweepFolder(self.place, guard=partial(self.write, process, record, lease))
        try:
            add_to_ledger(folder, "continue")
            with folder.guard() as token:
                ledger = Ledger(self.place / LEDGER, token)
            machine.worker = self.process(lambda worker: self.train(worker, lease.token, began))
            while True:
                clock.wait(5.0)
                lease.renew()
                process.point()
                lease.refuse_if_late()
                number = 1 + max((line["number"] for line in ledger.lines), default=-1)
                with folder.guard():
                    ledger.add("propose", number, params={"by": began})
                    if self.token() == lease.token:
                        assert self.proposed.setdefault(number, began) == began, "two drivers proposed one trial"
        except (LeaseExpiredError, OvertakenError, DrivenError):
            return

    @contextmanager
    def write(self, process: Process, record: FileLease, lease: HeldLease) -> Iterator[int]:
        with written_under(record, lease) as token:
            process.point()  # a pause between the check and the write
            yield token

    def train(self, process: Process, token: int, began: str) -> None:
        fence = FolderFence(self.place, token) if self.fenced else nullcontext
        reports = read_reports(self.trial)
        while len(reports) < 40:
            process.point()
            reports.append(a_report(len(reports) + 1, self.author(began)))
            try:
                with fence():
                    process.point()  # a pause between the check and the write
                    checkpoint_folder(self.trial, len(reports)).mkdir(parents=True, exist_ok=True)
                    add_report(self.trial, reports[-1])
                    prune_checkpoints(self.trial, {len(reports)})
            except (FencedError, SweepError):
                return
            self.acknowledge(REPORTS, self.lines(reports))

    def author(self, began: str) -> str:
        return began


class OnAFolderWithoutLocks(OnAFolder):
    """Two machines mount one folder, and neither sees the other's locks: a process may sleep between a check and its
    write. A trial that two workers train makes the same reports, bit for bit."""

    def author(self, began: str) -> str:
        return "either"


FEW = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True, database=None)
FIRST = settings(FEW, max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.fixture
def in_steps(monkeypatch, request):
    """A process makes one request at a time, and none by a clock that the model does not set."""
    monkeypatch.setattr(packages, "AT_ONCE", 1)
    monkeypatch.setattr(leased_folder, "renewed", lambda _: nullcontext())
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", PATIENCE_S)
    monkeypatch.setattr(fencing, "ANSWER_S", PATIENCE_S)
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("storage") is OnAFolderWithoutLocks:
        monkeypatch.setattr(FileLease, "_lock", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [OnABucket, OnABucketThatListsLate, OnAFolder, OnAFolderWithoutLocks])
def test_no_report_is_lost_whatever_happens_to_two_drivers(storage, in_steps):
    run_state_machine_as_test(storage, settings=FEW)


LOSS = r"fell back|got other .* confirmed|the last one has none"


@pytest.mark.parametrize("storage", [OnABucket, OnAFolder])
@pytest.mark.long
def test_the_model_finds_the_report_that_an_unfenced_driver_loses(storage, in_steps):
    unfenced = type("Unfenced", (storage,), {"fenced": False})
    with pytest.raises(AssertionError, match=LOSS):
        run_state_machine_as_test(unfenced, settings=FIRST)


@pytest.mark.slow
@pytest.mark.parametrize("after", range(14))
def test_a_driver_that_stands_still_while_it_takes_over_harms_no_later_one(after, in_steps):
    """It stands still after some requests with the lease, and goes on when the other has made some with its own."""
    for done in (0, 4, 20):
        model = OnABucket()
        try:
            model.one_begins(60)
            before = len(model.acknowledged[REPORTS])
            model.take_over(1, again=False, steps=after)
            model.take_over(0, again=True, steps=done)
            model.run(model.machines[1].driver, 40)
            model.begin(0, 40)
            model.nothing_is_lost_or_doubled()
            model.the_last_report_has_its_checkpoint()
            assert len(model.acknowledged[REPORTS]) > before > 0, "the trial went on"
            assert model.token() == 3
        finally:
            model.teardown()


@pytest.mark.slow
@pytest.mark.parametrize("storage", [OnABucket, OnABucketThatListsLate, OnAFolder, OnAFolderWithoutLocks])
def test_what_an_overtaken_driver_and_its_worker_write_for_an_hour_changes_nothing(storage, in_steps):
    model = storage()
    try:
        model.one_begins(60)
        late, new = model.machines
        model.take_over(1, again=False, steps=20)
        model.begin(1, 20)
        train = late.trains or partial(model.train, token=1, began="late")
        for _ in range(720):
            model.now += 5.0
            if late.worker.ended:
                late.worker = model.process(train)
            for process in (late.worker, late.driver, new.driver, new.worker):
                model.run(process, 3)
            model.nothing_is_lost_or_doubled()
        assert model.token() == 2, "nobody has taken the lease back"
        assert not new.driver.ended
        assert len(model.acknowledged[REPORTS]) == len(model.stored(REPORTS)) > 5
    finally:
        model.teardown()


class Watched(ObjectStore):
    """Calls `claimed` before each claim of a trial, and notes its requests."""

    def __init__(self, uri: str, claimed: Callable[[], object]) -> None:
        super().__init__(uri)
        self.claimed, self.requests = claimed, Counter[str]()

    def entry(self, key):
        self.requests[key] += 1
        return super().entry(key)

    def read(self, key):
        self.requests[key] += 1
        return super().read(key)

    def write_if(self, key, data, expected):
        self.requests[key] += 1
        if key.endswith(REPORTS):
            self.claimed()
        return super().write_if(key, data, expected)


@pytest.fixture
def open_trials(tmp_path):
    """A driver of a sweep with 16 open trials, and its store, for which `claimed` can be set."""
    cluster = Cluster(storage=f"file://{tmp_path}/bucket", cache=str(tmp_path / "cache"), storage_timeout=30.0)
    sync = DriverSync(cluster, SweepFolder(cluster.folder / SWEEP))
    sync.mirror.store = Watched(cluster.storage, lambda: None)
    for number in range(2 * packages.AT_ONCE):
        sync.mirror.store.write(f"{SWEEP}/trials/t{number:04d}/{REPORTS}", b"{}\n")
    return sync, sync.mirror.store


def test_a_driver_renews_its_lease_while_it_takes_over(open_trials, monkeypatch):
    monkeypatch.setattr(fencing, "RENEWAL_INTERVAL_S", 0.02)
    sync, store = open_trials

    def renewals() -> int:
        return Lease.read(ObjectStore(store.uri).read(f"{SWEEP}/{OWNER}")).renewals

    def claimed() -> None:
        before = renewals()
        wait_until(lambda: renewals() > before)

    store.claimed = claimed
    with sync:
        assert sync.token == 1


def test_trials_are_claimed_several_at_once_with_two_requests_each(open_trials):
    sync, store = open_trials
    store.claimed = partial(threading.Barrier(packages.AT_ONCE).wait, PATIENCE_S)
    with sync:
        reports = [key for key in store.requests if key.endswith(REPORTS)]
        assert len(reports) == 2 * packages.AT_ONCE
        assert [unstamped(ObjectStore(store.uri).read(key))[1].token for key in reports] == [1] * len(reports)
        assert {store.requests[key] for key in reports} == {3}, "one more brings the record to this machine"


def test_trials_that_a_listing_lacks_are_claimed_as_the_log_names_them(open_trials, monkeypatch):
    sync, store = open_trials
    log = [{"event": "propose", "number": number, "params": {}} for number in (3, 4)]
    store.write(f"{SWEEP}/{LEDGER}", b"".join(json.dumps(line).encode() + b"\n" for line in log))
    listing = store.entries
    monkeypatch.setattr(
        store, "entries", lambda at="": {key: e for key, e in listing(at).items() if "t0003" not in key}
    )
    with sync:
        claimed = [unstamped(ObjectStore(store.uri).read(f"{SWEEP}/trials/t{n:04d}/{REPORTS}"))[1] for n in (3, 4)]
        assert [stamp and stamp.token for stamp in claimed] == [1, 1]
