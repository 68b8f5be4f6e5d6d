"""Who submitted, stopped and promoted what, and when: `audit.jsonl` in the storage, one line for each.

In a storage behind a URI each line is an object of its own, so that two machines never overwrite one another's. A Ray
job carries the name of the user who sent it, for the head's own user says nothing.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from babeltune.errors import ObjectStoreError, StorageError
from babeltune.files import append_line, locked, plain
from babeltune.sweep.sync.view import StorageView

AUDIT = "audit.jsonl"
"""In the storage, the file of the lines."""
OBJECTS = "audit"
"""In a bucket, the folder of the objects."""
Action = Literal["submit", "stop", "promote"]
ACTOR = "BABELTUNE_ACTOR"
"""In a Ray job, the variable with the user and the machine that sent the job, as `user@machine`."""
SIGNAL = "a signal"
"""How a driver is stopped by Ctrl-C, `ray job stop` or Slurm. Nobody can say who sent it."""


@dataclass(frozen=True)
class AuditLine:
    """A line of `audit.jsonl`: who did what, and when (UTC)."""

    time: str
    user: str
    machine: str
    action: Action
    subject: str
    """The sweep's id, or the registered model and its version."""
    through: str = ""
    """The user and machine that carried the action out as a Ray job, or that it was a signal."""


def who() -> str:
    """The user's name, or number where this machine has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


def actor() -> str:
    """The user and the machine that ask for what this process does."""
    return os.environ.get(ACTOR) or f"{who()}@{socket.gethostname()}"


def audit(view: StorageView, action: Action, subject: str, *, by_signal: bool = False) -> None:
    """Writes the action down. A storage that refuses the line stops nothing: the action itself would be refused.

    `by_signal`: whoever sent this process a signal did it, and not the sender of the job that it runs in.
    """
    write_line(view, line_of(action, subject, by_signal=by_signal))


def line_of(action: Action, subject: str, *, by_signal: bool = False) -> AuditLine:
    """The line of an action that is done now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    here = f"{who()}@{socket.gethostname()}"
    user, _, machine = (here if by_signal else actor()).rpartition("@")
    through = SIGNAL if by_signal else "" if actor() == here else here
    return AuditLine(now, user, machine, action, subject, through)


def write_line(view: StorageView, line: AuditLine, *, name: str = "") -> None:
    """Writes the line. One that has a `name` may have been written before, by a process that was killed."""
    path, data = view.folder / AUDIT, json.dumps(plain(line), ensure_ascii=False).encode()
    with suppress(OSError, StorageError), locked(path):
        if not (name and path.exists() and data in path.read_bytes().splitlines()):
            append_line(path, data)
    if view.mirror is not None:
        with suppress(ObjectStoreError):
            view.mirror.store.write(f"{OBJECTS}/{line.time}-{name or uuid.uuid4().hex[:8]}.json", data + b"\n")
