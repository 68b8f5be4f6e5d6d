"""Only one driver runs a sweep: a file lock on its folder, and a lease on a cluster that several machines share.

A file lock may not hold on NFS, and does not if two drivers see different storages. So the driver also writes a
heartbeat to the folder every few seconds, and ends if another driver has written one since. The lease is an actor
with the sweep's name that belongs to the driver's Ray job. Ray gives a name once, and the actor ends with the job.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import ray
from filelock import FileLock, Timeout

from babeltune.errors import SweepError
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.heartbeat import HEARTBEAT_INTERVAL_S, OWNER, driven_elsewhere, here
from babeltune.sweep.state.lease_actor import NAMESPACE, LeaseActor

LOCK_TIMEOUT_S = 1.0
"""Seconds to wait for a lock that `is_driven` may be trying at this moment."""
LEASE_TIMEOUT_S = 15.0
"""Seconds to wait for the lease of a driver that has just died."""
EXIT_TIMEOUT_S = 2.0
"""Seconds to wait for one that is seen alive: a process that was killed takes a moment to go."""


class DrivenError(SweepError):
    """Another driver runs the sweep."""


class OvertakenError(SweepError):
    """Another driver runs the sweep: what its folder says is that one's to write."""


def this_driver() -> dict[str, Any]:
    """Who runs a sweep: host, process id, since when."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time()}


def running_elsewhere(sweep: str, driver: Mapping[str, Any]) -> DrivenError:
    """The error that a second driver gets."""
    who = "another process"
    if driver:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(driver["started"]))
        who = f"process {driver['pid']} on {driver.get('host', 'this machine')} since {since}"
    return DrivenError(
        f"sweep {sweep} is being run by {who}; with that storage, `babeltune status {sweep}` shows it and "
        f"`babeltune stop {sweep}` ends it"
    )


@contextmanager
def only_driver(folder: SweepFolder) -> Iterator[None]:
    """Holds the sweep's lock; it falls with the process, however that ends. Raises `SweepError` where it is held."""
    lock = FileLock(folder.path / "driver.lock")
    try:
        lock.acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout:
        raise running_elsewhere(folder.id, folder.read("driver.json") or {}) from None
    try:
        yield
    finally:
        lock.release()


def refuse_if_driven(folder: SweepFolder, ray_at: str = "") -> None:
    """Raises `SweepError` if a driver on another machine sent a heartbeat a moment ago. It does not if that driver's
    Ray is the one at `ray_at`: there the lease shows whether it is alive."""
    heartbeat = folder.read(OWNER) or {}
    if driven_elsewhere(folder) and not (ray_at and heartbeat.get("ray") == ray_at):
        who = running_elsewhere(folder.id, folder.read("driver.json") or {})
        raise DrivenError(f"{who}; where that machine is gone, try again in a minute")


@contextmanager
def heartbeats(folder: SweepFolder, ray_at: str = "") -> Iterator[Callable[[], None]]:
    """Says that this driver lives, for machines that do not see its lock.

    What it gives raises `OvertakenError` once another driver has said a word since, be it its last: one machine slept
    while the other began, or both began at the same moment.
    """
    ending, session = threading.Event(), uuid.uuid4().hex
    others: list[dict[str, Any]] = []

    said = False

    def say(*, ended: bool = False) -> None:
        nonlocal said
        with suppress(OSError):  # a full disk stops no sweep here
            folder.write(
                OWNER, {**here(folder), "session": session, "ray": ray_at, "beat": time.time(), "ended": ended}
            )
            said = True

    def listen() -> None:
        """Until our word stands there, the one that does is of a driver before us; none at all is nobody's."""
        with suppress(OSError, SweepError):
            heartbeat = folder.read(OWNER)
            if said and heartbeat and heartbeat.get("session") != session:
                others.append(heartbeat)

    def work() -> None:
        while not ending.wait(HEARTBEAT_INTERVAL_S) and not others:
            listen()
            if not others:
                say()

    def check() -> None:
        if others:
            where, ended = others[0].get("host", "another machine"), others[0].get("ended")
            raise OvertakenError(
                f"sweep {folder.id} was run on {where} meanwhile; this driver ends, and `babeltune resume {folder.id}` "
                "goes on from what that one left"
                if ended
                else f"sweep {folder.id} is being run on {where}, too, which said so last; this driver ends, and that "
                "one goes on"
            )

    say()
    thread = threading.Thread(target=work, name="babeltune-heartbeat", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        ending.set()
        thread.join()
        listen()
        if not others:
            say(ended=True)


@contextmanager
def leased(sweep: str) -> Iterator[None]:
    """Holds the sweep's lease on the connected cluster. Raises `SweepError` where another driver holds it."""
    name = f"driver-{sweep}"
    kind = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(LeaseActor)
    options = kind.options(name=name, namespace=NAMESPACE)
    began = time.monotonic()
    holder: dict[str, Any] = {}
    while True:
        try:
            lease = options.remote(json.dumps(this_driver()))
            break
        except ray.exceptions.ActorAlreadyExistsError:
            holder = _holder(name) or holder
        if time.monotonic() - began > (EXIT_TIMEOUT_S if _is_alive_here(holder) else LEASE_TIMEOUT_S):
            raise running_elsewhere(sweep, holder)
        time.sleep(0.5)
    try:
        yield
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(lease)


def _holder(name: str) -> dict[str, Any]:
    """Who has the lease of that name; nothing where it is falling."""
    try:
        lease = ray.get_actor(name, namespace=NAMESPACE)
        found: dict[str, Any] = json.loads(ray.get(lease.driver.remote(), timeout=LEASE_TIMEOUT_S))
    except (ValueError, ray.exceptions.RayError):
        return {}
    return found


def _is_alive_here(driver: Mapping[str, Any]) -> bool:
    """Whether it is a process of this machine that lives, so that waiting for its lease is in vain."""
    if driver.get("host") != socket.gethostname():
        return False
    try:
        return bool(psutil.Process(int(driver["pid"])).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
