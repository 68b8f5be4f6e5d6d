"""Who submitted, stopped, promoted, labelled or deleted what, and when: a line each in `audit.jsonl` in the storage.

In a storage behind a URI each line is an object of its own, so that two machines never overwrite one another's. The
system says which user a process runs as. Who sent a Ray job, only its sender says: nobody checks it."""

import json
import os
import pwd
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from babeltune.errors import ObjectStoreError, StorageError
from babeltune.files import append_line, locked, plain
from babeltune.sweep.sync.view import StorageView

AUDIT = "audit.jsonl"  # in the storage, the file of the lines
OBJECTS = "audit"  # in a bucket, the folder of the objects
Action = Literal["submit", "stop", "promote", "rename", "note", "archive", "delete", "pause", "continue"]
ACTOR = "BABELTUNE_ACTOR"
"""In a Ray job, the variable with the user and the machine that its sender names, as `user@machine`."""
SIGNAL = "a signal"  # how a driver is stopped by Ctrl-C, `ray job stop` or Slurm. Nobody can say who sent it.


@dataclass(frozen=True)
class AuditLine:
    """A line of `audit.jsonl`: who did what, and when (UTC)."""

    time: str
    user: str  # whom the process ran as, by the word of the system
    machine: str
    action: Action
    subject: str  # the sweep's id, or the registered model and its version
    through: str = ""  # `a signal` if a signal did it, whose sender is unknown; else empty
    says_it_is: str = ""  # for whom a Ray job acted, as `user@machine`, by the word of its sender alone
    decision: str = ""  # the id of the decision of `promote` that the line is about


def who() -> str:
    """The name, or else the number, of this process' user. `LOGNAME` and `USER` say what the user likes."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def actor() -> str:
    """The user and the machine that ask for what this process does."""
    return os.environ.get(ACTOR) or f"{who()}@{socket.gethostname()}"


def accountable() -> tuple[str, bool]:
    """The user whose computing this process does, and whether the system says so.

    All jobs of a cluster may run as one user, so of a Ray job it is the word of its sender."""
    sender = os.environ.get(ACTOR, "").rpartition("@")[0]
    return (sender, False) if sender else (who(), True)


def audit(view: StorageView, action: Action, subject: str, *, by_signal: bool = False) -> None:
    """Writes the action down. A storage that refuses the line stops nothing: the action itself would be refused.

    `by_signal`: whoever sent this process a signal did it, and not the sender of the job that it runs in."""
    write_line(view, line_of(action, subject, by_signal=by_signal))


def line_of(action: Action, subject: str, *, by_signal: bool = False, decision: str = "") -> AuditLine:
    """The line of an action that is done now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    through, says_it_is = (SIGNAL, "") if by_signal else ("", os.environ.get(ACTOR, ""))
    return AuditLine(now, who(), socket.gethostname(), action, subject, through, says_it_is, decision)


def write_line(view: StorageView, line: AuditLine) -> None:
    """Writes the line. That of a decision may have been written before, by a process that was killed."""
    path, data = view.folder / AUDIT, json.dumps(plain(line), ensure_ascii=False).encode()
    with suppress(OSError, StorageError), locked(path):
        if not (line.decision and path.exists() and data in path.read_bytes().splitlines()):
            append_line(path, data)
    if view.mirror is not None:
        with suppress(ObjectStoreError):
            view.mirror.store.write(f"{OBJECTS}/{line.time}-{line.decision or uuid.uuid4().hex[:8]}.json", data + b"\n")
