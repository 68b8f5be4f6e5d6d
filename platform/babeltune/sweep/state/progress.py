"""A running sweep as its readers see it: its stage, its leaderboard, and whether a driver runs it."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import babeltune
from babeltune.schema.records import Sweep
from babeltune.stages import SEARCHING, Stage, minutes, stage_words
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.stored import driven_elsewhere, is_locked

STAGE = "stage.json"  # names the file of a sweep's folder that says how far its driver is
SETTLED = 0.25  # trials that must be done, in parts or whole, before the search's time left is estimated
STAGE_INTERVAL_S = 2.0  # seconds between two writes of that file within a stage


def read_stage(folder: SweepFolder) -> Stage | None:
    """The stage of the sweep's driver; None if it does not say."""
    with suppress(TypeError):  # of another version
        values = folder.read(STAGE)
        return None if values is None else Stage(**values)
    return None


@dataclass
class SweepProgress:
    """The state of a live view; the driver's threads write it, the view reads it."""

    sweep: Sweep
    folder: SweepFolder
    started: float = field(default_factory=time.monotonic)
    stage: str = "starting"
    done: int = 0
    of: int = 0
    ended: int = 0
    before: int = 0  # trials that had ended before this submission
    messages: list[str] = field(default_factory=list)  # other events, in order
    latest: str = ""  # the last of it, if it was in this stage
    stage_begun: float = field(default_factory=time.time)
    stage_first: float = 0.0  # how much of the stage was done when it began
    written: float = 0.0  # when the stage was last written to the folder, by the monotonic clock
    writing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def progress(self, stage: str, done: int, of: int, first: float | None = None) -> None:
        """Sets how far a stage is, and writes it to the folder now and then for other processes.

        `first` is how much of a new stage was done before, if that is more than what is `done`."""
        new = stage != self.stage
        if new:
            self.folder.note(stage)
            self.latest, self.stage_begun = "", time.time()
            self.stage_first = done if first is None else first
        self.stage, self.done, self.of = stage, done, of
        with self.writing:
            if new or done >= of or time.monotonic() - self.written > STAGE_INTERVAL_S:
                self.written = time.monotonic()
                with suppress(OSError):  # it is for readers only; a full disk ends a sweep elsewhere
                    self.folder.write(STAGE, self.now())

    def now(self) -> Stage:
        """The stage at this moment."""
        begun, first = self.stage_begun, self.stage_first
        return Stage(name=self.stage, done=self.done, of=self.of, begun=begun, time=time.time(), first=first)

    def note(self, text: str) -> None:
        """Something that happened: in the sweep's log, and shown until the stage changes."""
        self.folder.note(text)
        self.messages.append(text)
        self.latest = text


def time_left(stage: Stage, rows: Sequence[Row], now: float) -> str:
    """How long the rest of a search takes at the pace of this submission, once some of it is done; else nothing."""
    if stage.name != SEARCHING or stage.done >= stage.of:
        return ""
    running = sum(row.step / row.steps for row in rows if row.state == "running" and row.steps)
    done = stage.done + running - stage.first
    if done < SETTLED:
        return ""
    remaining = (stage.of - stage.first - done) * (now - stage.begun) / done
    return f" · about {minutes(max(remaining, 0))} left"


def doing_words(folder: SweepFolder, rows: Sequence[Row]) -> str:
    """The work of the sweep's driver, with the time left: its stage, or the last line of its log."""
    stage = read_stage(folder)
    if stage is None:
        return (read_log(folder).splitlines() or [""])[-1][20:]  # without its time
    return stage_words(stage) + time_left(stage, rows, time.time())


def running_words(rows: Sequence[Row]) -> str:
    """The trials that run, how far each is, and what they do besides training."""
    running = sorted((row for row in rows if row.state == "running"), key=lambda row: row.name)
    words = ", ".join(_running(row) for row in running)
    return f" · running {words}" if words else ""


def _running(row: Row) -> str:
    share = f" {row.step / row.steps:.0%}" if row.steps else ""
    return row.name + share + (f" ({stage_words(row.stage)})" if row.stage else "")


def is_driven(folder: SweepFolder) -> bool:
    """Whether a driver holds the sweep's lock now, or sent a heartbeat from another machine a moment ago.

    It is for display. `stored.py` says what may be removed."""
    folder.refresh()
    return is_locked(folder) or driven_elsewhere(folder)


def standing(folder: SweepFolder, metric: str | None = None) -> list[Row]:
    """The leaderboard as readers see it: a trial whose driver died is stopped."""
    driven = is_driven(folder)
    rows = leaderboard(folder, metric)
    if driven:
        return rows
    return [replace(row, state="stopped", loss=None, stage=None) if row.state == "running" else row for row in rows]


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """A sweep without its trials."""

    sweep: str  # the sweep's id
    state: str  # `new`, `running`, `paused`, `finished`, `stopped`, `interrupted` or `failed`
    reason: str  # why it failed
    folder: str
    driver: dict[str, str | float] | None
    """The process that runs it: `host`, `process`, `pid`, and since when, in seconds since 1970; None if none does."""
    stage: Stage | None  # the stage of its driver; None if none runs it
    plugins: list[str]  # the distributions besides babeltune whose methods it began with
    accepted_changes: list[dict[str, Any]]  # the changes of code, packages or spec that were accepted while it went on
    labels: dict[str, str | bool]
    """The labels that users gave it: another `name`, a `note`, and whether it is `archived`."""


@dataclass(frozen=True, kw_only=True)
class SweepDocument(SweepFacts):
    """A sweep in JSON, as commands print it."""

    leaderboard: list[Row]
    """The best first; the baselines are rows, too."""


def sweep_document(folder: SweepFolder) -> SweepDocument:
    """A sweep with its trials."""
    return SweepDocument(**vars(sweep_facts(folder)), leaderboard=standing(folder))


def state_of(folder: SweepFolder) -> str:
    """The sweep's state as readers see it: one whose driver died is interrupted."""
    state = folder.state()
    return "interrupted" if state in ("running", "paused") and not is_driven(folder) else state


def sweep_facts(folder: SweepFolder) -> SweepFacts:
    """The same without its trials."""
    driven, code = is_driven(folder), (folder.read("facts.json") or {}).get("code", {})
    return SweepFacts(
        sweep=folder.id,
        state=state_of(folder),
        reason=str((folder.read("state.json") or {}).get("reason", "")),
        folder=str(folder.path),
        driver=folder.read("driver.json") if driven else None,
        stage=read_stage(folder) if driven else None,
        plugins=sorted(code.keys() - {babeltune.__name__}),
        accepted_changes=folder.accepted(),
        labels=log_of(folder.path).labels,
    )
