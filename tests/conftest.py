"""One Ray for all tests of a session, on 127.0.0.1 and, where the system permits, in a network namespace of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

import pytest

NEW_NETWORK = 0x40000000
SET_FLAGS = 0x8914
UP = 1


def enter_loopback_only() -> bool:
    """Moves this thread, and so every process that it starts, to a network namespace that holds only `lo`.

    Ray listens on every interface; here there is none but this machine's own. False where that is not permitted:
    then Ray's token authentication alone keeps strangers out.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(NEW_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh", b"lo", UP))
    return True


@pytest.fixture(scope="session")
def ray_cluster():
    """A local Ray of four logical CPUs whose workers can import the modules beside this file."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    enter_loopback_only()
    from babeltune.lanes import local_ray

    with local_ray(num_cpus=4, env={"PYTHONPATH": str(Path(__file__).parent), "HF_HUB_OFFLINE": "1"}):
        yield
