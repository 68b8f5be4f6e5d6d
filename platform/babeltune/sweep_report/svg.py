"""A matplotlib figure as inline SVG: small, named for screen readers, and coloured by the page's style sheet.

matplotlib comes with MLflow, so charts add no package. Colours are written as placeholders here and become CSS
variables, so that one drawing serves light, dark and print."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, FAINT = "#010101", "#010102", "#010103", "#010104"
"""Text, axis labels, grid lines, and what stands in the background."""
PAGE, BAR = "#010105", "#010106"  # the page itself, and bars that marks stand on
SERIES = ("#010111", "#010112", "#010113", "#010114", "#010115", "#010116")  # the colours that tell series apart
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    FAINT: "--faint",
    PAGE: "--page",
    BAR: "--bar",
    **{color: f"--series-{index}" for index, color in enumerate(SERIES, start=1)},
}
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")  # series also differ without colour
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "babeltune",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "legend.labelcolor": INK,
}


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A new figure of this width and height in inches, drawn in the report's style."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of the font cache that it builds
    import matplotlib
    from matplotlib.figure import Figure as NewFigure

    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]  # its keys are literals there
        yield NewFigure(figsize=(width, height), layout="constrained")


def svg_of(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an `<svg>` element. `name` is unique in the page; it begins every id."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    _plain_ticks(figure)
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(figure).print_svg(text, metadata=nothing)  # type: ignore[no-untyped-call]  # `savefig` draws twice
    drawn = re.search(r"<svg\b(?P<attributes>[^>]*)>(?P<body>.*)</svg>", text.getvalue(), re.DOTALL)
    assert drawn is not None
    box = re.search(r'viewBox="[^"]*"', drawn["attributes"])
    assert box is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn["body"], flags=re.DOTALL)
    body = _own_ids(_rounded(re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)), name)
    for placeholder, variable in VARIABLES.items():
        body = body.replace(placeholder, f"var({variable})")
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-text" {box[0]}>'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(description)}</desc>'
        f"{body}</svg>"
    )


def plain(value: float, digits: int = 10) -> str:
    """A number as people write it: with commas, and never with an exponent."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def _plain_ticks(figure: Figure) -> None:
    """Writes the numbers of all axes in full. matplotlib's own have exponents, and offsets at the axis' end."""
    from matplotlib.ticker import FuncFormatter, LogFormatter, ScalarFormatter

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
            axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def _own_ids(body: str, name: str) -> str:
    """Ids that something refers to begin with the chart's name; others are left out."""
    body = body.replace("xlink:href=", "href=")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def id_of(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    body = re.sub(r' id="([^"]+)"', id_of, body)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)


def _rounded(body: str) -> str:
    """Coordinates with two decimals."""

    def rounded(match: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", match[0])

    return re.sub(r'\b(?:d|x|y|transform|points|width|height)="[^"]*"', rounded, body)
