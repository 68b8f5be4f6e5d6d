"""A tracker whose log holds the events themselves, for benchmarks and tests of the tracker alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from babeltune.files import end_on_a_line
from babeltune.tracking import events
from babeltune.tracking.tracker import Tracker

if TYPE_CHECKING:
    from babeltune.files import JsonObject


class Verbatim:
    """Reads such a log: a line is an event."""

    def follow(self, line: JsonObject) -> None:
        """Has nothing to remember."""

    def events(self, line: JsonObject) -> list[events.Event]:
        """The line. An artifact's bytes stand in it as characters."""
        return [{**line, "data": str(line["data"]).encode("latin-1")} if line["do"] == "artifact" else line]


class EventLog(Tracker):
    """A tracker, and the log that it follows: `log.metrics(0, points)` adds what `events.metrics` makes."""

    def __init__(self, uri: str, log: Path, experiment: str) -> None:
        end_on_a_line(log)
        self.path = log
        super().__init__(uri, log, experiment, Verbatim)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._put, getattr(events, name))

    def _put(self, make: Callable[..., events.Event], *arguments: Any, **options: Any) -> None:
        event = {**make(*arguments, **options), "time_ms": time.time_ns() // 1_000_000}
        with self.path.open("ab") as file:
            file.write(json.dumps(event, default=_characters).encode() + b"\n")


def _characters(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
