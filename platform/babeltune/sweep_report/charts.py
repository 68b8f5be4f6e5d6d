"""The common parts of a report's charts: their sizes, their captions, and lines that keep a trial's colour.

Each chart stands beside its section in `sections/`. It takes records and returns an `<svg>` element. What it shows
also stands in a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from babeltune.sweep_report.record import Curve
from babeltune.sweep_report.svg import DASHES, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTH = 5.0  # inches of a chart. Its letters of 10 points are some 10 pixels high on a phone, and 17 on a desktop.
Each = TypeVar("Each")
LEGEND = 3  # names side by side in the legend of a chart of lines
NAMED = 5  # series with a colour and a name of their own; others stand in the background
BARS = 40  # the most lines in charts of bars; the table has all
PIECE = 14  # lines of one drawing. More become several drawings, since paper breaks between drawings only.
ROOM = 0.08  # the share of an axis that stays empty beyond the outermost trials
OUTSIDE = "A triangle at an edge is a baseline whose score lies outside the chart."
"""Explains marks that `at_edge` has moved."""


@dataclass(frozen=True, kw_only=True)
class Caption:
    """The words of a screen reader for a chart."""

    name: str
    title: str
    description: str


def pieces(caption: Caption, each: Sequence[Each], most: int = PIECE) -> Iterator[tuple[Caption, Sequence[Each]]]:
    """The parts of a chart that become a drawing each, with a caption of their own."""
    for start in range(0, len(each), most):
        yield replace(caption, name=f"{caption.name}-{start}" if start else caption.name), each[start : start + most]


def limits_of(values: Iterable[float]) -> tuple[float, float]:
    """The limits of an axis that these values fill."""
    low, high = min(numbers := list(values)), max(numbers)
    room = ROOM * (high - low) or 0.02 * abs(high) or 0.02
    return low - room, high + room


def at_edge(value: float, limits: tuple[float, float]) -> tuple[float, int]:
    """A value moved to the nearest limit if it lies outside them, and the side: -1, 0 (inside) or 1."""
    low, high = limits
    return min(max(value, low), high), (value > high) - (value < low)


def clipped(text: str, most: int = 22) -> str:
    """A text that fits beside an axis. matplotlib reads `$` as the begin of a formula."""
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")


def named_lines(axes: Axes, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """The curves of the named trials; each has the colour of its place among them, in every chart."""
    for curve in (each for each in curves if each.trial in names[:NAMED]):
        index = names.index(curve.trial)
        axes.plot(
            curve.x,
            curve.y,
            color=SERIES[index],
            linestyle=DASHES[index],
            marker=MARKERS[index],
            markersize=4,
            linewidth=2.2 if index == 0 else 1.5,
            label=curve.trial,
            zorder=3 + NAMED - index,
        )


def one_line(lines: Iterable[tuple[Iterable[float], Iterable[float]]]) -> tuple[list[float], list[float]]:
    """Lines, each `x` and `y`, as one with gaps. matplotlib takes much longer to draw many."""
    points = [point for x, y in lines for point in (*zip(x, y, strict=True), (math.nan, math.nan))]
    return [x for x, _ in points], [y for _, y in points]


def few_ticks(axes: Axes, steps: int = 4) -> None:
    """Numbers below a chart, with at most `steps` steps from the first to the last."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(steps))
