"""What those who look on see of a running sweep: the board, and whether anybody drives it."""

from __future__ import annotations

import fcntl
import os
import threading
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

STAGE = "stage.json"
"""Names the file of a sweep's folder that says how far its driver is."""
STAGE_INTERVAL_S = 2.0
"""Seconds between two writes of that file within a stage."""
LEAST_RATED_S = 2.0
"""Seconds that a stage must have taken before it has a rate: the first texts of a stage pay for its start."""
UNITS = {"encoding": "sentences", "tokenizing": "texts", "translating": "sentences"}
"""What a stage counts, by the beginning of its name."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a sweep's driver is doing, and how far it is."""

    name: str
    done: int
    of: int
    begun: float
    """When the stage began, in seconds since 1970."""
    time: float
    """When `done` was counted."""

    @property
    def rate(self) -> float | None:
        """How much is done in a second; None until that can be said."""
        gone = self.time - self.begun
        return self.done / gone if self.done and gone >= LEAST_RATED_S else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the stage is done at its rate so far; None until that can be said."""
        return (self.of - self.done) / self.rate if self.rate and self.done < self.of else None

    @property
    def unit(self) -> str:
        """What is counted; empty for steps that need no name."""
        return next((unit for begin, unit in UNITS.items() if self.name.startswith(begin)), "")


def read_stage(folder: SweepFolder) -> Stage | None:
    """What the sweep's driver is doing; None if it does not say."""
    with suppress(TypeError):  # of another version
        values = folder.read(STAGE)
        return None if values is None else Stage(**values)
    return None


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
    stage_begun: float = field(default_factory=time.time)
    written: float = 0.0
    """When the stage was last written to the folder, by the monotonic clock."""
    writing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def progress(self, stage: str, done: int, of: int) -> None:
        """Sets how far a stage is, and writes it to the folder now and then for other processes."""
        new = stage != self.stage
        if new:
            self.folder.note(stage)
            self.latest, self.stage_begun = "", time.time()
        self.stage, self.done, self.of = stage, done, of
        with self.writing:
            if new or done >= of or time.monotonic() - self.written > STAGE_INTERVAL_S:
                self.written = time.monotonic()
                with suppress(OSError):  # it is for readers only; a full disk ends a sweep elsewhere
                    self.folder.write(STAGE, self.now())

    def now(self) -> Stage:
        """The stage at this moment."""
        return Stage(name=self.stage, done=self.done, of=self.of, begun=self.stage_begun, time=time.time())

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
        "stage": plain(read_stage(folder)) if driven else None,
        "plugins": _plugins(folder),
        "accepted_changes": folder.accepted(),
        "leaderboard": [plain(row) for row in standing(folder)],
    }
