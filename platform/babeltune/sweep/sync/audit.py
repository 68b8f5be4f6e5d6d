"""Who submitted, stopped and promoted what, and when: `audit.jsonl` in the storage, one line for each.

In a storage behind a URI each line is an object of its own, so that two machines never overwrite one another's.
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
from pathlib import Path
from typing import Literal

from babeltune.errors import ObjectStoreError
from babeltune.files import append_line, locked, plain
from babeltune.sweep.sync.view import StorageView

AUDIT = "audit.jsonl"
"""In the storage, the file of the lines."""
OBJECTS = "audit"
"""In a bucket, the folder of the objects."""
Action = Literal["submit", "stop", "promote"]


@dataclass(frozen=True)
class AuditLine:
    """One action. Its time is UTC."""

    time: str
    user: str
    machine: str
    action: Action
    subject: str
    """The sweep's id, or the registered model and its version."""


def who() -> str:
    """The user's name, or number where this machine has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


def audit(view: StorageView, action: Action, subject: str) -> None:
    """Writes the action down. A storage that refuses the line stops nothing: the action itself would be refused."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = json.dumps(plain(AuditLine(now, who(), socket.gethostname(), action, subject)), ensure_ascii=False).encode()
    path = view.folder / AUDIT
    with suppress(OSError), locked(path):
        append_line(path, line)
    if view.mirror is not None:
        with suppress(ObjectStoreError):
            view.mirror.store.write(f"{OBJECTS}/{now}-{uuid.uuid4().hex[:8]}.json", line + b"\n")


def read_audit(storage: Path) -> list[AuditLine]:
    """The lines of a storage, the first first. A line that was cut off is passed over."""
    path = storage / AUDIT
    found = list[AuditLine]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError):
            found.append(AuditLine(**json.loads(line)))
    return found
