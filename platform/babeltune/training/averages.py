"""The time between two reports: the training values' means, and where a stop cut the training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from babeltune.files import plain
from babeltune.schema.records import Point

if TYPE_CHECKING:
    from babeltune.files import JsonObject


@dataclass
class Averages:
    """Means of the training values since the last point, the least of those named `…_least`, and the points since the
    last report."""

    every: int
    points: list[Point] = field(default_factory=list)
    since: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0

    def add(self, step: int, values: Mapping[str, float], learning_rate: float, *, flush: bool) -> None:
        for key, value in values.items():
            self.since.setdefault(key, []).append(value)
        self.count += 1
        if self.count >= self.every or flush:
            means = {
                f"train/{key}": min(those) if key.endswith("_least") else sum(those) / len(those)
                for key, those in self.since.items()
            }
            means["train/learning_rate"] = learning_rate
            self.points.append(Point(step=step, time_ms=int(time.time() * 1000), values=means))
            self.since, self.count = {}, 0

    def take(self) -> tuple[Point, ...]:
        points, self.points = tuple(self.points), []
        return points


@dataclass
class Interval:
    """The training between two reports."""

    step: int  # steps of the trial that are done
    meter: Averages
    seconds: float = 0.0  # spent on the steps done before a stop

    def plain(self) -> JsonObject:
        """All of it as JSON."""
        return plain({"step": self.step, "seconds": self.seconds, "meter": self.meter})

    @staticmethod
    def read(values: Mapping[str, Any]) -> Interval:
        """The interval that `plain` wrote as JSON."""
        points = [Point(**point) for point in values["meter"]["points"]]
        return Interval(**{**values, "meter": Averages(**{**values["meter"], "points": points})})
