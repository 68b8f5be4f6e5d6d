"""How far a long step is, how fast it goes and how long it still takes; in words, the same wherever they are shown.

A step that is deep below a command says so with `tell`, and the command that waits for it listens."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done, and of how much. Of 0: nobody knows."""
Count = Callable[[int, int], None]  # called with how much of one thing is done, and of how much

LEAST_RATED_S = 2.0
"""Seconds that a stage must have taken before it has a rate: the first texts of a stage pay for its start."""
BYTES = "bytes"  # the unit that is written as kB, MB or GB
READING, CLEANING = "reading the corpus", "cleaning the corpus"
UPLOADING, EVALUATING = "uploading", "evaluating"
STARTING, WRITING = "starting Ray", "writing to MLflow"
SEARCHING = "searching"  # the stage that counts trials: its time left is that of the whole search
UNITS = {
    READING: BYTES,
    CLEANING: "pairs",
    "encoding": "sentences",
    "tokenizing": "texts",
    "translating": "sentences",
    "scoring": "sentences",
    EVALUATING: "sentences",
    UPLOADING: BYTES,
    WRITING: BYTES,
}
"""The unit of a stage's count, by the beginning of its name."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The stage of a driver or a trial, and how far it is."""

    name: str
    done: int
    of: int
    begun: float
    """When the stage began, in seconds since 1970."""
    time: float
    """When `done` was counted."""
    first: float = 0.0
    """How much was done when the stage began, by an earlier submission for example. It says nothing of the pace."""

    @property
    def rate(self) -> float | None:
        """How much is done in a second; None until that can be said."""
        elapsed, done = self.time - self.begun, self.done - self.first
        return done / elapsed if done > 0 and elapsed >= LEAST_RATED_S else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the stage is done at its rate so far; None until that can be said."""
        return (self.of - self.done) / self.rate if self.rate and self.done < self.of else None

    @property
    def unit(self) -> str:
        """The unit of the count; empty for steps that need no name."""
        return next((unit for begin, unit in UNITS.items() if self.name.startswith(begin)), "")


def stage_words(stage: Stage) -> str:
    """The stage in words: how far, how fast, and the time left. A search says its own time left."""
    of = f"/{amount(stage.of, stage.unit)}" if stage.of else ""
    words = f"{stage.name} {amount(stage.done, stage.unit)}{of}" if stage.of or stage.done else stage.name
    return words if stage.name == SEARCHING else words + pace(stage)


def pace(stage: Stage) -> str:
    """How fast a stage is, and the time left; nothing until that can be said."""
    if stage.rate is None:
        return ""
    rate = amount(stage.rate, stage.unit) if stage.rate >= 10 else f"{stage.rate:.2g}"
    per = "/s" if stage.unit == BYTES else f" {stage.unit}/s"
    words = f" · {rate}{per}" if stage.unit else ""
    return words + (f" · about {minutes(stage.left_s)} left" if stage.left_s is not None else "")


def amount(count: float, unit: str) -> str:
    """So much of what a stage counts."""
    return size(count) if unit == BYTES else f"{count:,.0f}"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    if count < 2**20:
        return f"{count / 2**10:,.0f} kB" if count >= 2**10 else f"{count:.0f} bytes"
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:,.0f} MB"


def timed() -> Callable[[str, int, int], Stage]:
    """Makes stages of calls of `tell`. What was done when a stage was first named says nothing of its pace."""
    begun: dict[str, tuple[float, int]] = {}

    def stage(name: str, done: int, of: int) -> Stage:
        now = time.time()
        since, before = begun.setdefault(name, (now, done))
        return Stage(name=name, done=done, of=of, begun=since, time=now, first=before)

    return stage


_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def listening(tell: Progress) -> Iterator[None]:
    """`tell` hears of the long steps of the block."""
    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(name: str, done: int = 0, of: int = 0) -> None:
    """Says how far a long step is to whoever listens; nobody needs to."""
    if (listener := _listener.get()) is not None:
        listener(name, done, of)


def no_progress(name: str, done: int, of: int) -> None:
    """No-op progress of stages."""


def uncounted(done: int, of: int) -> None:
    """No-op progress of one thing."""
