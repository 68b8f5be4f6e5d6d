"""What charts of a report share: their sizes, their captions, and lines that keep a trial's colour.

Each chart stands beside its section in `sections/`. It takes records and returns an `<svg>` element. What it shows
also stands in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from babeltune.sweep_report.record import Curve
from babeltune.sweep_report.svg import DASHES, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTH = 9.0
"""Inches."""
NAMED = 5
"""Series with a colour and a name of their own; others stand in the background."""
BARS = 40
"""At most so many lines in a chart of bars; the table has all."""


@dataclass(frozen=True, kw_only=True)
class Caption:
    """What a screen reader says of a chart."""

    name: str
    title: str
    description: str


def clipped(text: str, most: int = 28) -> str:
    """A text that fits beside an axis. matplotlib reads `$` as the begin of a formula."""
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")


def named_lines(axes: Axes, curves: Sequence[Curve], named: Sequence[str]) -> None:
    """The curves of the named trials; each has the colour of its place among them, in every chart."""
    for curve in (each for each in curves if each.trial in named[:NAMED]):
        index = named.index(curve.trial)
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


def thousands(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
