"""Tells readers by a sweep's lease whether a driver on another machine lives.

It compares the clocks of two machines, so it is for display. Who may write, the lease decides (`fencing.py`), and so it
decides what may be removed (`stored.py`)."""

import fcntl
import os
import socket
import time
from contextlib import suppress
from typing import Any

from babeltune.machine import this_machine
from babeltune.sweep.state.fencing import EXPIRY_S, OWNER
from babeltune.sweep.state.folder import SweepFolder


def here(folder: SweepFolder) -> dict[str, str]:
    """This machine and folder, which share a lock."""
    return {"host": socket.gethostname(), "machine": this_machine(), "folder": str(folder.path.absolute())}


def is_locked(folder: SweepFolder) -> bool:
    """Whether a driver holds the sweep's lock, which drivers of one folder on one machine share."""
    with suppress(OSError):  # there is no such file yet, or it may not be read
        lock = os.open(folder.path / "driver.lock", os.O_RDONLY)  # a reader may not be able to write
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def heartbeat_age(owner: dict[str, Any] | None, folder: SweepFolder) -> float | None:
    """Seconds since the last heartbeat of a driver on another machine; None if there is none that may be alive.

    Far below 0 if its clock, or this machine's, was wrong: then the age does not show whether it is alive."""
    if not owner or owner.get("ended") or here(folder).items() <= owner.items():
        return None
    ago = time.time() - float(owner.get("beat", 0))
    return ago if ago < _expiry(owner) else None


def _expiry(owner: dict[str, Any]) -> float:
    """Seconds without a heartbeat after which another driver may take the sweep."""
    return float(owner.get("expiry_s", EXPIRY_S))


def driven_elsewhere(folder: SweepFolder) -> bool:
    """Whether a driver on another machine has sent a heartbeat a moment ago."""
    owner = folder.read(OWNER)
    ago = heartbeat_age(owner, folder)
    if owner is None or ago is None:
        return False
    if ago < -_expiry(owner):
        ago = time.time() - (folder.path / OWNER).stat().st_mtime  # the store's own time of the word
    return ago < _expiry(owner)
