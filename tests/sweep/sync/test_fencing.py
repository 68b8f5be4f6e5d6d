"""Two drivers of one sweep. Each may be paused, cut off or killed at every request, and no report is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from babeltune.errors import FencedError, ObjectStoreError, SweepError
from babeltune.files import plain, sha256_of
from babeltune.schema.records import Report
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.fence import unstamped
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.sweep.state.fencing import (
    Clock,
    DrivenError,
    FileLease,
    FolderFence,
    HeldLease,
    Lease,
    LeaseExpiredError,
    OvertakenError,
    acquire,
)
from babeltune.sweep.sync.fencing import RESULTS, BucketLease, DriverFence, TrialFence, claim
from babeltune.sweep.sync.worker import pull_trial, push_trial
from babeltune.training.checkpoint import MANIFEST, REPORTS, checkpoint_folder, last_good, read_reports

SWEEP = "sweeps/s"
TRIAL = f"{SWEEP}/trials/t0000"
FATES = ("arrives", "is lost", "is answered to nobody", "is sent twice")
"""What becomes of a request."""
MEMORY = "/dev/shm"
"""A folder that need not wait for a disk, where there is one."""
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

    def swap(self, key: str, data: bytes, expected: str | None) -> Entry | None:
        found = self.entry(key)
        if (found.version if found else None) != expected:
            return None
        self.objects[key] = data
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
        mine = [key for key in self._bucket.objects if key.startswith(f"{prefix}/")]
        return self._asked(lambda: {key: self._bucket.entry(key) for key in mine})

    def read(self, key):
        return self._asked(lambda: self._bucket.objects.get(key))

    def write(self, key, data):
        self._asked(lambda: self._bucket.objects.update({key: data}))

    def write_if(self, key, data, expected):
        if not self._fenced:
            return self._asked(lambda: self._bucket.objects.update({key: data}) or self._bucket.entry(key))
        return self._asked(lambda: self._bucket.swap(key, data, expected))

    def remove(self, key):
        self._asked(lambda: self._bucket.objects.pop(key, None))

    def upload(self, path, key, sent=None):
        self.write(key, path.read_bytes())

    def download(self, key, path):
        data = self.read(key)
        if data is None:
            raise FileNotFoundError(key)
        path.write_bytes(data)


def a_report(index: int, by: str) -> Report:
    return Report(index=index, step=index, pairs=index, seconds=0.0, metrics={"dev/x": 0.5}, facts={"by": by})


def add_report(folder: Path, by: str) -> None:
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
    made: int = 0
    """Reports of its worker that the driver knows."""


class TwoDrivers(RuleBasedStateMachine):
    """What every storage has in common. `acknowledged` holds what the storage has confirmed to a process."""

    fenced = True

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="fencing-", dir=MEMORY if Path(MEMORY).is_dir() else None))
        self.now, self.begun = 0.0, 0
        self.machines = [Driver("one"), Driver("two")]
        self.everyone: list[Process] = []
        self.acknowledged: dict[str, list[bytes]] = {REPORTS: [], RESULTS: []}

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
        known = self.acknowledged[name]
        assert known[: len(lines)] == lines[: len(known)], f"two drivers got other {name} confirmed"
        self.acknowledged[name] = max(known, lines, key=len)

    def started(self, machine: Driver) -> Process:
        """The machine's driver; a new one if the last is dead."""
        if machine.driver is None or machine.driver.ended:
            self.begun += 1
            began = machine.name + str(self.begun)
            machine.driver = self.process(lambda process: self.drive(machine, process, began))
        return machine.driver

    def run(self, process: Process | None, steps: int, fate: str = FATES[0]) -> None:
        """Lets the process make so many requests. Something may happen to the last one."""
        for left in range(steps, 0, -1) if process else ():
            process.step(fate if left == 1 else FATES[0])

    @initialize(steps=st.integers(0, 80))
    def one_begins(self, steps: int) -> None:
        """The first driver has the lease, and its worker has made some reports."""
        self.run(self.started(self.machines[0]), 30)
        self.run(self.machines[0].worker, steps if isinstance(self, OnABucket) else steps // 8)

    @rule(who=st.integers(0, 1), works=st.booleans(), steps=STEPS, fate=st.sampled_from(FATES))
    def go_on(self, who: int, works: bool, steps: int, fate: str) -> None:
        """A driver, or its worker, works for a while; all others are paused."""
        machine = self.machines[who]
        self.run(machine.worker if works and machine.worker else self.started(machine), steps, fate)

    @rule(who=st.integers(0, 1), steps=st.integers(1, 40))
    def take_over(self, who: int, steps: int) -> None:
        """All are silent for longer than a lease lasts, and one driver has seen that."""
        driver = self.started(self.machines[who])
        self.run(driver, 4)
        self.now += 70.0
        self.run(driver, steps)

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
        for name, known in self.acknowledged.items():
            lines = self.stored(name)
            assert lines[: len(known)] == known, f"{name} fell back from {len(known)} to {lines}"
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


class OnABucket(TwoDrivers):
    """Each machine has its own mirror of the bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()

    def stored(self, name: str) -> list[bytes]:
        return lines_of(self.bucket.objects.get(f"{TRIAL}/{name}" if name == REPORTS else f"{SWEEP}/{name}"))

    def mirror(self, machine: Driver, process: Process) -> Mirror:
        mirror = Mirror(StorageLocation(uri="memory://model", cache=str(self.place / machine.name)))
        mirror.store = Connection(self.bucket, process, fenced=self.fenced)
        return mirror

    def drive(self, machine: Driver, process: Process, began: str) -> None:
        mirror, clock = self.mirror(machine, process), self.clock(machine, process)
        try:
            held = acquire(BucketLease(mirror.store, "s"), Lease(host=machine.name), clock=clock)
            mirror.fence = DriverFence(held)
            self.claim_all(mirror, held)
        except (ObjectStoreError, DrivenError):
            return
        machine.made = 0
        machine.worker = self.process(lambda worker: self.train(machine, worker, held.token, began))
        while True:
            clock.wait(5.0)
            try:
                held.renew()
                self.record(machine, mirror)
            except ObjectStoreError:
                pass
            except OvertakenError:
                return
            try:
                held.refuse_if_late()
            except (LeaseExpiredError, OvertakenError):
                return

    def claim_all(self, mirror: Mirror, held: HeldLease) -> None:
        """As `DriverSync` does: claims first, then what was claimed."""
        there = mirror.store.entries(SWEEP)
        keys = [f"{SWEEP}/{RESULTS}", *([f"{TRIAL}/{REPORTS}"] if any(TRIAL in key for key in there) else ())]
        if self.fenced:
            claimed = {key: claim(mirror.store, key, held.token) for key in keys}
        else:
            claimed = {key: there[key] for key in keys if key in there}
        shutil.rmtree(mirror.path(SWEEP), ignore_errors=True)
        mirror.forget(SWEEP)
        mirror.pull(claimed)

    def record(self, machine: Driver, mirror: Mirror) -> None:
        """Adds to the ledger what the worker reported."""
        ledger = mirror.path(f"{SWEEP}/{RESULTS}")
        lines = ledger.read_bytes().splitlines() if ledger.exists() else []
        lines += [
            json.dumps({"index": n, "by": machine.name}).encode() for n in range(len(lines) + 1, machine.made + 1)
        ]
        ledger.parent.mkdir(parents=True, exist_ok=True)
        ledger.write_bytes(b"".join(line + b"\n" for line in lines))
        if mirror.push(ledger):
            self.acknowledge(RESULTS, lines)

    def train(self, machine: Driver, process: Process, token: int, began: str) -> None:
        mirror = self.mirror(machine, process)
        folder = mirror.path(TRIAL)
        if self.fenced:
            mirror.fence = TrialFence(BucketLease(mirror.store, "s"), token)
        pulled = False
        while True:
            process.point()
            try:
                if not pulled:
                    pull_trial(mirror, folder)
                pulled = True
                add_report(folder, began) if len(last_good(folder)) < 9 else None
                push_trial(mirror, folder)
            except ObjectStoreError:
                continue
            except FencedError:
                return
            self.acknowledge(REPORTS, (folder / REPORTS).read_bytes().splitlines())
            machine.made = len(read_reports(folder))


class OnAFolder(TwoDrivers):
    """Both machines see one folder."""

    def stored(self, name: str) -> list[bytes]:
        path = self.place / "trials" / "t0000" / name if name == REPORTS else self.place / name
        return path.read_bytes().splitlines() if path.exists() else []

    def drive(self, machine: Driver, process: Process, began: str) -> None:
        clock = self.clock(machine, process)
        record = FileLease(self.place, lambda _: process.point())
        try:
            held = acquire(record, Lease(host=machine.name), clock=clock)
        except DrivenError:
            return
        machine.worker = self.process(lambda worker: self.train(worker, held.token, began))
        while True:
            clock.wait(5.0)
            try:
                held.renew()
                process.point()
                held.refuse_if_late()
            except (LeaseExpiredError, OvertakenError):
                return

    def train(self, process: Process, token: int, began: str) -> None:
        folder = self.place / "trials" / "t0000"
        fence = FolderFence(self.place, token) if self.fenced else nullcontext
        known = read_reports(folder)
        while len(known) < 40:
            process.point()
            known.append(a_report(len(known) + 1, began))
            lines = [json.dumps(plain(report)).encode() for report in known]
            try:
                with fence():
                    process.point()  # a pause between the check and the write
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / REPORTS).write_bytes(b"".join(line + b"\n" for line in lines))
            except (FencedError, SweepError):
                return
            self.acknowledge(REPORTS, lines)


FEW = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True, database=None)
FIRST = settings(FEW, max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [OnABucket, OnAFolder])
def test_no_report_is_lost_whatever_happens_to_two_drivers(storage):
    run_state_machine_as_test(storage, settings=FEW)


@pytest.mark.parametrize("storage", [OnABucket, OnAFolder])
@pytest.mark.long
def test_the_model_finds_the_report_that_an_unfenced_driver_loses(storage):
    unfenced = type("Unfenced", (storage,), {"fenced": False})
    with pytest.raises(AssertionError, match=r"fell back|got other .* confirmed"):
        run_state_machine_as_test(unfenced, settings=FIRST)
