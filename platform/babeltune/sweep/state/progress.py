"""What those who look on see of a running sweep: the board, and whether anybody drives it."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from babeltune.files import plain
from babeltune.method.plugins import OWN
from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.heartbeat import driven_elsewhere
from babeltune.sweep.state.leaderboard import Row, leaderboard


@dataclass
class SweepProgress:
    """What the live view shows; the driver's threads write it, the view reads it."""

    sweep: Sweep
    folder: SweepFolder
    started: float = field(default_factory=time.monotonic)
    stage: str = "starting"
    done: int = 0
    of: int = 0
    ended: int = 0
    before: int = 0
    """Trials that had ended before this submission."""
    begun: float = 0.0
    """How much of the trials that go on was done before this submission, in trials."""
    searching: float | None = None
    """When the search began."""
    messages: list[str] = field(default_factory=list)
    """What happened besides, in order."""
    latest: str = ""
    """The last of it, if it was in this stage."""

    def progress(self, stage: str, done: int, of: int) -> None:
        if stage != self.stage:
            self.folder.note(stage)
            self.latest = ""
        self.stage, self.done, self.of = stage, done, of

    def note(self, text: str) -> None:
        """Something that happened: in the sweep's log, and shown until the stage changes."""
        self.folder.note(text)
        self.messages.append(text)
        self.latest = text


def is_driven(folder: SweepFolder) -> bool:
    """Whether a driver holds the sweep's lock now, or sent a heartbeat from another machine a moment ago."""
    folder.refresh()
    with suppress(OSError):  # there is no such file yet, or it may not be read
        lock = os.open(folder.path / "driver.lock", os.O_RDONLY)  # whoever looks on may not be able to write
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return driven_elsewhere(folder)


def standing(folder: SweepFolder, metric: str | None = None) -> list[Row]:
    """The leaderboard as those who look on see it: a trial whose driver died is stopped."""
    driven = is_driven(folder)
    rows = leaderboard(folder, metric)
    if driven:
        return rows
    return [replace(row, state="stopped", loss=None) if row.state == "running" else row for row in rows]


def _plugins(folder: SweepFolder) -> list[str]:
    """The distributions besides babeltune whose methods the sweep began with."""
    code = (folder.read("facts.json") or {}).get("code")
    return sorted(code.keys() - {OWN}) if isinstance(code, dict) else []  # an earlier version wrote one digest


def sweep_document(folder: SweepFolder) -> dict[str, Any]:
    """What the commands say of a sweep in JSON."""
    state, driven = folder.state(), is_driven(folder)
    if state == "running" and not driven:
        state = "interrupted"
    return {
        "sweep": folder.id,
        "state": state,
        "reason": str((folder.read("state.json") or {}).get("reason", "")),
        "folder": str(folder.path),
        "driver": folder.read("driver.json") if driven else None,
        "plugins": _plugins(folder),
        "accepted_changes": folder.accepted(),
        "leaderboard": [plain(row) for row in standing(folder)],
    }
