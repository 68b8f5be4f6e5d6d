"""The picture of a distribution on a table's page: its median and its 10th and 90th percentile, for each row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHARES = ("_p10", "_p50", "_p90")
"""Ends of the names of the three percentiles among a table's logged metrics."""
Record = Mapping[str, Any]


def spread_of(record: Record) -> tuple[str, dict[str, list[float]]] | None:
    """What is distributed, and its three percentiles by row, the mean over seeds. None if no row logs them."""
    logged = record["logged"]
    for metric, title in logged.items():
        names = [metric + share for share in SHARES]
        rows = {
            row["name"]: [statistics.fmean(row["logged"][name]) for name in names]
            for row in record["rows"]
            if all(name in row["logged"] for name in names)
        }
        if rows and all(name in logged for name in names):
            return title, rows
    return None


def draw_spread(title: str, rows: Mapping[str, list[float]], picture: Path) -> None:
    """One line from the 10th to the 90th percentile for each row, with a mark at the median."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "table", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 0.6 + 0.3 * len(rows)), layout="constrained")
    low, middle, high = zip(*rows.values(), strict=True)
    places = range(len(rows))
    panel.hlines(places, low, high, color="steelblue", linewidth=4)
    panel.plot(middle, places, "|", color="black", markersize=12)
    panel.set_yticks(places, list(rows))
    panel.invert_yaxis()
    panel.set_xlabel(title)
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)
