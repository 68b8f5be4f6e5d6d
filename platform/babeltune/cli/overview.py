"""Lists on a terminal: all sweeps, and a sweep's trials by the values of a setting."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from babeltune.sweep.state.by_setting import BySetting
from babeltune.sweep.state.overview import SweepLine

LEAST_ABOUT = 40
"""Columns that data and differences need beside the list. With fewer they stand below it."""
GAP = 2
"""Columns between two columns of a list."""


def show_sweeps(lines: Sequence[SweepLine], console: Console) -> None:
    """One line per sweep, the latest first. What tells sweeps of one name apart stands beside it, or below the list."""
    if not lines:
        console.print("no sweep yet; start one with `babeltune submit search_spaces/quickstart.yaml`", markup=False)
        return
    columns = _columns(lines, console.width)
    beside = console.width - _width(columns) - GAP >= LEAST_ABOUT
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        table.add_column(title, no_wrap=True, overflow="ellipsis", justify="right" if title == "trials" else "left")
    if beside:
        table.add_column("data; what differs", overflow="fold")
    for index, line in enumerate(lines):
        cells = [escape(cells[index]) for cells in columns.values()]
        table.add_row(*cells, *([escape(about(line))] if beside else []))
    console.print(table)
    if not beside:
        for line in lines:
            console.print(f"{line.sweep}: {about(line)}", markup=False, highlight=False)


def _columns(lines: Sequence[SweepLine], width: int) -> dict[str, list[str]]:
    """Title -> cells. A narrow list leaves out the objective's name and the year."""
    columns = {
        "sweep": [f"{line.title} ({line.sweep})" if line.title else line.sweep for line in lines],
        "begun": [time.strftime("%Y-%m-%d %H:%M", time.localtime(line.begun)) for line in lines],
        "state": [line.state for line in lines],
        "trials": [f"{line.ended}/{line.budget}" for line in lines],
        "best": [f"{line.best or '–'}" + (f" {line.score:.4f}" if line.score is not None else "") for line in lines],
        "objective": [line.objective.removeprefix("dev/") for line in lines],
    }
    if _width(columns) > width:
        del columns["objective"]
    if _width(columns) > width:
        columns["begun"] = [cell[5:] for cell in columns["begun"]]
    return columns


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(max(len(title), *map(len, cells)) + GAP for title, cells in columns.items()) - GAP


def about(line: SweepLine) -> str:
    """What was noted of a sweep, its data, and the settings in which it differs from others of its name."""
    words = ["archived" * line.archived, line.note, line.data, " ".join(line.differs)]
    return "; ".join(filter(None, words))


def show_by_setting(summary: BySetting, console: Console) -> None:
    """A row for each value of the setting, or for each part of its range."""
    metric = summary.objective.metric.removeprefix("dev/")
    console.print(f"{metric} by {summary.setting}, {summary.objective.goal}", markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (summary.setting, "trials", "scored", "best", "trial", "mean"):
        table.add_column(title, no_wrap=True, justify="left" if title in (summary.setting, "trial") else "right")
    for level in summary.levels:
        best, mean = (f"{value:.4f}" if value is not None else "–" for value in (level.best, level.mean))
        table.add_row(escape(level.label), str(level.trials), str(level.scored), best, level.best_trial or "–", mean)
    console.print(table)
