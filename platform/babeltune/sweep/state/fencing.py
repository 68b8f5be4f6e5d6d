"""The lease of a sweep: which driver may write, and under which fencing token.

The lease is one small record, `owner.json`, in the sweep's folder or in its bucket. Its holder renews it every few
seconds. Another driver takes it after it has seen no change for a whole expiry, by its own clock, and writes a higher
token. The holder gives up earlier than that. Each write compares the token, so a driver that slept writes nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from babeltune.errors import FULL, FencedError, ObjectStoreError, SweepError
from babeltune.files import LOCKLESS, plain, write_whole
from babeltune.machine import this_machine
from babeltune.signals import answered

OWNER = "owner.json"  # file of a sweep's folder, and object in its bucket: the lease
EXPIRY_S = 60.0  # seconds without a change of the lease after which another driver may take it
MARGIN_S = 15.0  # seconds by which a holder gives up before its lease can be taken. In these its last requests end.
ANSWER_S = 5.0  # seconds that a late holder waits for its storage, before it gives up
RENEWAL_INTERVAL_S = 5.0  # seconds between two renewals of a lease
LOCK_TIMEOUT_S = 30.0  # seconds to wait for the lease's lock, which others hold while they write


class DrivenError(SweepError):
    """Another driver runs the sweep."""


class OvertakenError(SweepError):
    """Another driver took the sweep over: what its folder says is for that driver to write."""


class LeaseExpiredError(SweepError):
    """A driver could not renew its lease, so it ends before another one may take it."""


def awake() -> float:
    """Seconds of this machine's clock, including those in which it slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Who may write a sweep."""

    token: int = 0  # increases with each driver
    session: str = field(default_factory=lambda: uuid.uuid4().hex)  # the driver's own name
    host: str = field(default_factory=lambda: socket.gethostname())
    """The holder's hostname, for people. Two machines may have one."""
    machine: str = field(default_factory=this_machine)  # the holder's machine (`machine.py`)
    folder: str = ""  # the sweep's folder on that machine. Drivers of one folder on one machine share a lock.
    ray: str = ""  # the identity of the driver's Ray cluster (`lease.this_ray`), if several machines share it
    expiry_s: float = EXPIRY_S  # seconds without a change after which it may be taken
    renewals: int = 0
    beat: float = 0.0  # when it was last renewed, by the holder's clock. It is shown, and decides nothing.
    taken_at: float = 0.0  # when it was taken, by the holder's clock. With `beat` it says for how long it was held.
    ended: bool = False  # whether its holder gave it back

    @classmethod
    def read(cls, data: bytes | None) -> Lease | None:
        """The lease in these bytes; None if they are none."""
        try:
            values = json.loads(data or b"null")
            return cls(**{name: values[name] for name in cls.__dataclass_fields__})
        except (ValueError, TypeError, KeyError):
            return None

    def encode(self) -> bytes:
        return json.dumps(plain(self)).encode()

    def shares_lock(self, other: Lease) -> bool:
        """Whether both drivers use one folder of one machine, so that the folder's lock kept them apart."""
        place, other_place = ((each.host, each.machine, each.folder) for each in (self, other))
        return all(place) and place == other_place


Version = str | None  # another one after each change of the lease; None: there is none


class LeaseRecord(Protocol):
    """Where a lease is kept."""

    sweep: str  # the sweep's id

    def read(self) -> tuple[Lease | None, Version]: ...

    def swap(self, lease: Lease, expected: Version, *, takeover: bool = False) -> Version | None:
        """Replaces the lease if it has the expected version. The new version, or None. `takeover`: it is no renewal."""

    def least_token(self) -> int:
        """A token that the sweep's other records have, in case the lease is lost or damaged."""


class HeldLease:
    """A lease from its taking to its end. Any thread may use it."""

    def __init__(
        self,
        record: LeaseRecord,
        lease: Lease,
        version: str,
        begun: float,
        clock: Callable[[], float],
        before: Lease | None = None,
    ) -> None:
        """`begun` is the time by `clock` at which the request began that took it."""
        self._record, self.lease = record, lease
        self.before = before  # the lease of the driver before this one
        self._version: Version = version
        self._renewed, self._clock = begun, clock
        self._lock = threading.RLock()
        self._lost: OvertakenError | None = None

    @property
    def token(self) -> int:
        return self.lease.token

    @property
    def late(self) -> bool:
        """Whether another driver may take the lease soon, or has taken it."""
        return self._clock() - self._renewed > self.lease.expiry_s - MARGIN_S

    def renew(self, *, ended: bool = False) -> None:
        """Says that this driver lives, or gives the lease back. Raises `OvertakenError` if another driver has it."""
        with self._lock:
            self._refuse_if_lost()
            while True:
                begun = self._clock()
                ended |= self.lease.ended
                lease = replace(self.lease, renewals=self.lease.renewals + 1, beat=time.time(), ended=ended)
                if (version := self._record.swap(lease, self._version)) is not None:
                    self.lease, self._version, self._renewed = lease, version, begun
                    return
                current, self._version = self._record.read()
                if current is not None:
                    self._refuse_other(current)
                    self.lease = current  # a renewal whose answer was lost

    def before_write(self) -> None:
        """Renews the lease first if it may have been taken since. Raises `OvertakenError` if it was."""
        self._refuse_if_lost()
        if self.late:
            self.renew()

    def check(self) -> None:
        """Reads the lease. Raises `OvertakenError` if another driver has it."""
        lease, _ = self._record.read()
        if lease is not None:  # a record that is lost or damaged is written again at the next renewal
            self._refuse_other(lease)

    def refuse_if_late(self) -> None:
        """Raises `LeaseExpiredError` if it is late and cannot be renewed, `OvertakenError` if it was lost."""
        self._refuse_if_lost()
        if not self.late:
            return
        try:
            in_time(self.renew)
        except (ObjectStoreError, OSError) as error:
            raise LeaseExpiredError(
                f"the lease of sweep {self._record.sweep} could not be renewed for "
                f"{self._clock() - self._renewed:.0f} s ({error}); this driver ends before another machine may go on, "
                f"and `babeltune resume {self._record.sweep}` goes on from what is saved"
            ) from error

    def end(self) -> None:
        """Gives the lease back, so that another driver need not wait. If the storage hangs, it expires by itself."""
        with contextlib.suppress(SweepError, ObjectStoreError, OSError):
            in_time(partial(self.renew, ended=True))

    def _refuse_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _refuse_other(self, current: Lease) -> None:
        if current.session == self.lease.session:
            return
        sweep = self._record.sweep
        self._lost = OvertakenError(
            f"sweep {sweep} was run on {current.host} meanwhile; this driver ends, and `babeltune resume {sweep}` goes "
            "on from what that one left"
            if current.ended
            else f"sweep {sweep} was taken over by {current.host}; this driver stops, `babeltune status {sweep}` shows "
            "the other"
        )
        raise self._lost


def in_time(renew: Callable[[], None]) -> None:
    """Renews, or raises `TimeoutError` if the storage does not answer: it may hang for longer than a lease lasts."""
    answered(renew, ANSWER_S, TimeoutError(f"the storage gives no answer within {ANSWER_S:g} s"))


@dataclass(frozen=True)
class Clock:
    """The taker's own clock."""

    now: Callable[[], float] = awake
    wait: Callable[[float], None] = time.sleep


def acquire(
    record: LeaseRecord,
    candidate: Lease,
    is_dead: Callable[[Lease], bool] = lambda _: False,
    clock: Clock | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> HeldLease:
    """Takes the lease. Another driver's lease is watched for a whole expiry first, unless that one ended it.

    `is_dead`: a lease's driver is known to be dead. Raises `DrivenError` if it is renewed, or a third driver takes it.
    """
    clock = clock or Clock()
    lease, version = record.read()
    if lease is not None and not lease.ended and not is_dead(lease):
        lease, version = _watched(record, lease, version, clock, note)
    token = (record.least_token() if lease is None else lease.token) + 1
    begun = clock.now()
    now = time.time()
    ours = replace(candidate, token=token, beat=now, taken_at=now)
    new_version = record.swap(ours, version, takeover=True)
    if new_version is None:
        holder, new_version = record.read()
        if holder is not None and lease is not None and holder.session == lease.session and not holder.ended:
            raise _driven(record, holder, clock.now() - begun)  # it renewed after the last look
        if holder is None or holder.session != ours.session:
            host = holder.host if holder else "another machine"
            raise DrivenError(f"sweep {record.sweep} was begun at the same moment by {host}")
    assert new_version is not None
    return HeldLease(record, ours, new_version, begun, clock.now, lease)


def _watched(
    record: LeaseRecord, lease: Lease, version: Version, clock: Clock, note: Callable[[str], None]
) -> tuple[Lease | None, Version]:
    """The lease, after it was the same for a whole expiry, or its holder ended it."""
    began = clock.now()
    note(
        f"waiting for the lease of {lease.host}, which runs the sweep or died: after {lease.expiry_s:.0f} s without a "
        "heartbeat this driver goes on"
    )
    while clock.now() - began <= lease.expiry_s:
        clock.wait(RENEWAL_INTERVAL_S / 2)
        current, now = record.read()
        if now == version:
            continue
        if current is None or current.ended:
            return current, now
        raise _driven(record, current, clock.now() - began)
    return lease, version


def _driven(record: LeaseRecord, holder: Lease, seconds: float) -> DrivenError:
    """The error that another driver is alive, and how long ago its last heartbeat was."""
    return DrivenError(
        f"sweep {record.sweep} is being run on {holder.host}, whose last heartbeat was {seconds:.0f} s ago; "
        f"`babeltune stop {record.sweep}` ends it"
    )


class FileLease:
    """A lease in a folder. A file lock lets writers in together, and a driver that takes the lease alone.

    If locks do not hold across machines, each write still reads the lease right before."""

    def __init__(self, folder: Path, wait: Callable[[float], None] = time.sleep) -> None:
        self.sweep, self._path, self._wait = folder.name, folder / OWNER, wait
        self._token = folder / ".lease.token"
        """Keeps the latest token. A power loss may leave the lease empty, as renewals do not wait for the disk."""

    def read(self) -> tuple[Lease | None, Version]:
        try:
            with self._path.open("rb") as file:
                data, changed = file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None, None
        return Lease.read(data), f"{changed} {data.decode(errors='replace')}"

    def swap(self, lease: Lease, expected: Version, *, takeover: bool = False) -> Version | None:
        with self.locked(alone=takeover):
            if self.read()[1] != expected:
                return None
            try:
                if takeover:
                    write_whole(self._token, str(lease.token).encode(), durable=True)
                write_whole(self._path, lease.encode(), durable=takeover)
            except OSError as error:
                if takeover or error.errno not in FULL:
                    raise
                os.utime(self._path)  # a full disk stops no sweep here
            return self.read()[1]

    def least_token(self) -> int:
        try:
            return int(self._token.read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    @contextlib.contextmanager
    def locked(self, *, alone: bool = False) -> Iterator[None]:
        """Within the block no other driver takes the lease; `alone`: and nobody writes."""
        path = self._path.with_name(".lease.lock")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError:  # another user's, which may be read
            handle = os.open(path, os.O_RDONLY)
        try:
            self._lock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int, kind: int) -> None:
        seconds_left = LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if seconds_left <= 0:
                    raise DrivenError(
                        f"sweep {self.sweep} is being written by another process, which may be stopped; end it, then "
                        f"`babeltune resume {self.sweep}`"
                    ) from None
            except OSError as error:
                if error.errno in LOCKLESS:
                    return
                raise
            seconds_left -= 0.05
            self._wait(0.05)


@contextlib.contextmanager
def written_under(record: FileLease, lease: HeldLease) -> Iterator[int]:
    """Within the block a driver writes to the sweep's folder under its lease, with this token."""
    lease.before_write()
    with record.locked():
        lease.check()
        yield lease.token


@dataclass(frozen=True)
class FolderFence:
    """The fence that a worker asks before it writes into a sweep's folder."""

    folder: Path  # the sweep's folder
    token: int  # the token under which its trial was assigned

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raises `FencedError` if another driver has the sweep. Within the block none takes it."""
        record = FileLease(self.folder)
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(record.locked())
            except DrivenError as error:
                raise FencedError(str(error)) from error
            refuse_other_token(self.folder.name, record.read()[0], self.token)
            yield


def refuse_other_token(sweep: str, lease: Lease | None, token: int) -> None:
    """Raises `FencedError` if the lease has another token than the one under which this process writes."""
    if lease is not None and lease.token != token:
        raise FencedError(
            f"sweep {sweep} was taken over by {lease.host} (token {lease.token}, this trial has {token}); nothing more "
            f"is written here, and `babeltune status {sweep}` shows the other"
        )


@contextlib.contextmanager
def renewed(lease: HeldLease) -> Iterator[None]:
    """Renews the lease within the block, in a thread. `refuse_if_late` says what keeps the driver from going on."""
    ending = threading.Event()

    def work() -> None:
        while not ending.wait(RENEWAL_INTERVAL_S):
            try:
                lease.renew()
            except OvertakenError:
                return
            except (SweepError, ObjectStoreError, OSError):
                continue  # `refuse_if_late` says when it is too late

    thread = threading.Thread(target=work, name="babeltune-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(ANSWER_S)  # one that still asks a storage that hangs ends with its request
