"""Only one driver runs a sweep: a file lock on its folder, and a lease on a cluster that several machines share.

A file lock may not hold on NFS, and does not if two drivers see different storages. So the driver also holds a lease
in the folder that each of its writes checks. `fencing.py` renews that lease, and ends a driver that cannot renew it in
time. On a cluster the lease is an actor with the sweep's name. It belongs to the driver's Ray job. Ray gives a name
once, and the actor ends with the job."""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, cast

import ray

from babeltune.files import file_lock
from babeltune.machine import lives, this_process
from babeltune.sweep.state.fencing import Clock, DrivenError, FileLease, Lease, acquire, renewed, written_under
from babeltune.sweep.state.folder import Guard, SweepFolder
from babeltune.sweep.state.lease_actor import NAMESPACE, LeaseActor
from babeltune.sweep.state.stored import here

LOCK_TIMEOUT_S = 1.0  # seconds to wait for a lock that `is_driven` may be trying at this moment
RAY_LEASE_TIMEOUT_S = 15.0
"""Seconds to wait for the lease on the Ray cluster. That of the folder has `fencing.EXPIRY_S`."""
EXIT_TIMEOUT_S = 2.0  # seconds to wait for one that is seen alive: a process that was killed takes a moment to go
HEAD = "node:__internal_head__"  # a resource that Ray gives the node of its head alone
log = logging.getLogger(__name__)


class DriverRecord(TypedDict):
    """Who runs a sweep: `driver.json`, and what the lease actor says."""

    host: str
    process: str  # the driver's identity (`machine.py`)
    pid: int
    started: float  # seconds since 1970


def this_driver() -> DriverRecord:
    """Who runs a sweep: host, process id, since when."""
    return {"host": socket.gethostname(), "process": this_process(), "pid": os.getpid(), "started": time.time()}


def running_elsewhere(sweep: str, driver: DriverRecord | None) -> DrivenError:
    """The error that a second driver gets."""
    who = "another process"
    if driver:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(driver["started"]))
        who = f"process {driver['pid']} on {driver['host']} since {since}"
    return DrivenError(
        f"sweep {sweep} is being run by {who}; with that storage, `babeltune status {sweep}` shows it and "
        f"`babeltune stop {sweep}` ends it"
    )


def recorded_driver(folder: SweepFolder) -> DriverRecord | None:
    """The driver that the sweep's folder names: the one that runs it, or the last that did."""
    return cast("DriverRecord | None", folder.read("driver.json"))


@contextmanager
def only_driver(folder: SweepFolder) -> Iterator[None]:
    """Holds the sweep's lock; it falls with the process, however that ends. Raises `SweepError` if it is held."""
    with file_lock(folder.path / "driver.lock", LOCK_TIMEOUT_S) as alone:
        if not alone:
            raise running_elsewhere(folder.id, recorded_driver(folder))
        yield


@dataclass(frozen=True)
class FolderLease:
    """The lease that a driver holds on a sweep's folder."""

    token: int
    check: Callable[[], None]  # raises what keeps the driver from going on
    guard: Guard  # within it the driver writes. It raises `OvertakenError` if another driver has the lease.


def this_ray(address: str) -> str:
    """Identity of the connected Ray cluster: its address, which clusters of containers may share, and its head node."""
    heads = [node["NodeID"] for node in ray.nodes() if HEAD in node["Resources"]]
    return " ".join([address, *sorted(heads)])


@contextmanager
def folder_lease(folder: SweepFolder, ray_at: str = "", clock: Clock | None = None) -> Iterator[FolderLease]:
    """Takes the lease on the folder, and renews it within the block.

    A driver that used this folder on this machine is dead, because the caller has the folder's lock. One on the Ray
    `ray_at` (`this_ray`) is dead, because the caller has the lease there. Any other one is watched until it expires."""
    record = FileLease(folder.path)
    candidate = Lease(folder=here(folder)["folder"], ray=ray_at)

    def is_dead(other: Lease) -> bool:
        return other.shares_lock(candidate) or bool(ray_at and other.ray == ray_at)

    lease = acquire(record, candidate, is_dead, clock, lambda text: _say(folder, text))
    try:
        with renewed(lease):
            yield FolderLease(lease.token, lease.refuse_if_late, partial(written_under, record, lease))
    finally:
        lease.end()


def _say(folder: SweepFolder, text: str) -> None:
    folder.note(text)
    log.warning("sweep %s: %s", folder.id, text)


@contextmanager
def leased(sweep: str) -> Iterator[None]:
    """Holds the sweep's lease on the connected cluster. Raises `SweepError` if another driver holds it."""
    name = f"driver-{sweep}"
    kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(LeaseActor)
    options = kind.options(name=name, namespace=NAMESPACE)
    began = time.monotonic()
    holder: DriverRecord | None = None
    while True:
        try:
            lease = options.remote(json.dumps(this_driver()))
            break
        except ray.exceptions.ActorAlreadyExistsError:
            holder = _holder(name) or holder
        if time.monotonic() - began > (EXIT_TIMEOUT_S if _is_alive_here(holder) else RAY_LEASE_TIMEOUT_S):
            raise running_elsewhere(sweep, holder)
        time.sleep(0.5)
    try:
        yield
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(lease)


def _holder(name: str) -> DriverRecord | None:
    """Who has the lease of that name; None if it is falling."""
    try:
        lease = ray.get_actor(name, namespace=NAMESPACE)
        record: DriverRecord = json.loads(ray.get(lease.driver.remote(), timeout=RAY_LEASE_TIMEOUT_S))
    except (ValueError, ray.exceptions.RayError):
        return None
    return record


def _is_alive_here(driver: DriverRecord | None) -> bool:
    """Whether it is a process of this machine that lives, so that waiting for its lease is in vain."""
    return bool(driver and lives(driver["process"]))
