"""Lists on a terminal: all sweeps, and a sweep's trials by the values of a setting."""

import time
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from babeltune.sweep.state.by_setting import BySetting
from babeltune.sweep.state.overview import SweepLine

LEAST_ABOUT = 40  # columns that data and differences need beside the list. With fewer they stand below it.
GAP = 2  # columns between two columns of a list


def show_sweeps(lines: Sequence[SweepLine], console: Console) -> None:
    """One line per sweep, the latest first. What tells sweeps of one name apart stands beside it, or below the list."""
    if not lines:
        console.print("no sweep yet; start one with `babeltune submit search_spaces/quickstart.yaml`", markup=False)
        return
    head, *rows = _rows(_columns(lines, console.width))
    room = console.width - cell_len(head)
    beside = room >= LEAST_ABOUT
    if beside:
        head += "data; what differs"
        rows = [row + _wrapped(about(line), room, console) for row, line in zip(rows, lines, strict=True)]
    # one text: a rich table of 500 rows takes 30 times as long
    console.print(Text(head, "bold"), Text("\n".join(rows)), sep="\n", no_wrap=True, overflow="ellipsis")
    if not beside:
        for line in lines:
            console.print(f"{line.sweep}: {about(line)}", markup=False, highlight=False)


def _rows(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The titles, and then the cells, side by side in columns."""
    padded = list[list[str]]()
    for title, cells in columns.items():
        width = max(cell_len(title), *map(cell_len, cells)) + GAP
        padded.append([set_cell_size(cell, width) for cell in (title, *cells)])
    return ["".join(row) for row in zip(*padded, strict=True)]


def _wrapped(words: str, width: int, console: Console) -> str:
    """The words in as many lines as they need; the lines after the first stand below it."""
    lines = Text(words).wrap(console, width) if cell_len(words) > width else [words]
    return ("\n" + " " * (console.width - width)).join(map(str, lines))


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
    """A sweep's note, its data, and the settings in which it differs from others of its name."""
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
