"""Faults from outside: of clocks, files, disks and locks. Each is what it says, and ends with its block."""

import contextlib
import ctypes
import os
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from waiting import PATIENCE_S, wait_until

DAY = 86_400.0


@contextlib.contextmanager
def clock_jump(seconds: float) -> Iterator[None]:
    """From now on this process's wall clock is so much later, or earlier."""
    wall, nanoseconds = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: wall() + seconds)
        patch.setattr(time, "time_ns", lambda: nanoseconds() + int(seconds * 1e9))
        yield


def truncate(path: Path, share: float = 0.5) -> None:
    """Cuts the file's end off, as a machine does that goes down before its disk has everything."""
    os.truncate(path, int(path.stat().st_size * share))


@contextlib.contextmanager
def sqlite_locked(path: Path) -> Iterator[None]:
    """Another process writes in the database: nobody else can until the block ends."""
    other = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of this size in the folder, seen by this process and its children only; ends with the block."""
    place.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def fill(place: Path) -> Path:
    """Takes what is free on the file system of this folder; removing the file gives it back."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65_536)
    return ballast


@contextlib.contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Nothing can be opened for writing in the folder until the block ends: a read-only bind mount lies over it."""
    mount("--bind", str(place), str(place))
    try:
        mount("-o", "remount,bind,ro", str(place))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


OPENING, THIS_MOUNT, ADD, CONTENT, CLOEXEC, ALLOW = 0x00010000, 0x10, 0x01, 0x04, 0x01, 1
"""Of fanotify (linux/fanotify.h)."""
EVENT = struct.Struct("IBBHQii")


@contextlib.contextmanager
def slow_disk(place: Path, seconds: float) -> Iterator[None]:
    """Opening any file on the mount of this folder takes so long: the kernel asks us first (fanotify), as it asks a
    virus scanner, and we let it wait. A process of its own answers, since ours opens files too."""
    ready, tell = os.pipe()
    code = f"from chaos.faults import answer_slowly; answer_slowly({str(place)!r}, {seconds!r}, {tell})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[tell], env=environment)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"+", "fanotify is not permitted"
        yield
    finally:
        os.close(ready)
        process.kill()
        process.wait(PATIENCE_S)


def answer_slowly(place: str, seconds: float, tell: int) -> None:
    """Allows what is asked, each after its own wait; runs until it is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    asked = libc.fanotify_init(CONTENT | CLOEXEC, os.O_RDONLY)
    if asked < 0 or libc.fanotify_mark(asked, ADD | THIS_MOUNT, ctypes.c_uint64(OPENING), -100, place.encode()):
        return
    os.write(tell, b"+")

    def allow(file: int) -> None:
        time.sleep(seconds)
        os.write(asked, struct.pack("iI", file, ALLOW))
        os.close(file)

    while True:
        events = os.read(asked, 4096)
        while events:
            length, _, _, _, _, file, _ = EVENT.unpack_from(events)
            events = events[length:]
            threading.Thread(target=allow, args=(file,), daemon=True).start()


def actor(name):
    """The process of the actor of this class in this test's cluster; others may run beside it."""

    def found():
        actors = ray._private.state.actors().values()
        return [each["Pid"] for each in actors if each["ActorClassName"] == name and each["State"] == "ALIVE"]

    return psutil.Process(wait_until(found)[-1])
