"""The table of a sweep's trials, at any width from 80 columns on: no number is ever folded.

Columns that fit are shown, the most important ones first. Reasons and warnings stand whole below the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from babeltune.cli.words import ELLIPSIS, settings_words, short_names, sparkline
from babeltune.evaluation.metric_names import COMPUTE, PARAMETERS, SPEED
from babeltune.planning.parameters import reports_of
from babeltune.schema.records import Sweep
from babeltune.stages import minutes, stage_words
from babeltune.sweep.state.leaderboard import Row

COLORS = {
    "finished": "green",
    "running": "cyan",
    "pruned": "yellow",
    "stopped": "magenta",
    "failed": "red",
    "damaged": "red",
}
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    PARAMETERS: ("size", lambda size: f"{size / 1e6:.1f} M, {4 * size / 1e6:,.0f} MB"),
    COMPUTE: ("compute", lambda seconds: f"{seconds:.3g} s"),
    SPEED: ("sentences/s", lambda speed: f"{speed:,.0f}"),
}
"""Costs of a model: the metric, its title and how it is written. A weight has four bytes."""
BOLD = Style(bold=True)
GAP = 2  # columns between two columns of the table
SETTINGS_SHARE = 3  # settings get a third of the width, if they need it, before other columns may stay
LONGEST_NAME = 24  # characters of a row's name. Baselines are called as their models are.
SHORTEST_TITLE = 9  # characters to which an objective's title is cut if the table is narrow
DROPPED = (
    *(f"cost:{name}" for name in (SPEED, COMPUTE, PARAMETERS)),
    "condition",
    "time",
    "loss",
    "step",
    "curve",
    "report",
)
"""Columns that a narrow table goes without, the first of them first."""
MOST_NOTES = 3  # reasons and warnings below a table that has a limited height. They take at most half of it.


@dataclass(frozen=True)
class Column:
    """One column: its title and a cell for each row."""

    key: str
    title: str
    cells: tuple[str, ...]
    right: bool = False

    @cached_property
    def width(self) -> int:
        return max(cell_len(self.title), *map(cell_len, self.cells), 0)

    def padded(self, text: str) -> str:
        """The text of a cell, as wide as the column."""
        missing = " " * (self.width - cell_len(text))
        return missing + text if self.right else text + missing

    def with_cut_title(self) -> Column:
        """The column with the end of its title, so that the table gets narrower."""
        width = max(SHORTEST_TITLE, *map(cell_len, self.cells))
        title = self.title if len(self.title) <= width else ELLIPSIS + self.title[1 - width :]
        return Column(self.key, title, self.cells, self.right)

    def with_title_end(self) -> Column:
        """The column with the last two parts of its title, such as `fra-eng/accuracy`."""
        return Column(self.key, "/".join(self.title.split("/")[-2:]), self.cells, self.right)


@dataclass(frozen=True)
class TrialsTable:
    """Trials and baselines: state, how far, the objectives, the searched values.

    With several objectives, a star marks the trials on the Pareto front."""

    rows: Sequence[Row]
    sweep: Sweep
    metric: str | None = None  # one more metric, before the objectives
    costs: bool = False  # whether size, compute and speed are shown
    height: int | None = None  # lines that the table and its notes may take. What does not fit is counted.

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        notes = [*notes_of(self.rows)]
        shown = list(self.rows)
        if self.height is not None:
            most = min(self.height // 2, self.height - 3)
            notes = _note_lines(notes[:MOST_NOTES], most, console, options.max_width)
            shown = shown[: max(1, self.height - 2 - len(notes))]
        yield from self._table(shown, options.max_width)
        if (hidden := len(self.rows) - len(shown)) > 0:
            yield Text(f"{ELLIPSIS} and {hidden} more", style="dim")
        yield from notes

    def _table(self, rows: Sequence[Row], width: int) -> Iterator[Segment]:
        """Titles and rows as lines of text: rich's own table takes a minute for ten thousand trials."""
        names = short_names([*dict.fromkeys(name for row in rows for name in row.settings)])
        longest = max((len(settings_words(row.settings, names=names)) for row in rows), default=0)
        columns = columns_that_fit(self._columns(rows), width - min(longest, width // SETTINGS_SHARE))
        room = width - sum(column.width + GAP for column in columns)
        if max((len(settings_words(row.settings)) for row in rows), default=0) <= room:
            names = {}
        gap = " " * GAP
        yield Segment("".join(column.padded(column.title) + gap for column in columns) + "settings\n", BOLD)
        padded = [[column.padded(cell) for cell in column.cells] for column in columns]
        for row, (trial, state, *others) in zip(rows, zip(*padded, strict=True), strict=True):
            words = settings_words(row.settings, max(1, room), names)
            yield Segment(trial + gap)
            yield Segment(state + gap, Style.parse(COLORS[row.state]) if row.state in COLORS else None)
            cut = set_cell_size(words, room) if cell_len(words) > room else words
            yield Segment("".join(cell + gap for cell in others) + cut + "\n")

    def _columns(self, rows: Sequence[Row]) -> list[Column]:
        """All columns that these rows have something for, in order."""
        names = tuple(cut_name(row.name) + (" ★" if row.front else "") for row in rows)
        states = tuple(row.state for row in rows)
        columns = [Column("trial", "trial", names), Column("state", "state", states), *self._progress_columns(rows)]
        for metric in dict.fromkeys([self.metric, *(objective.metric for objective in self.sweep.objectives)]):
            if metric is None:
                continue
            values = tuple(f"{row.metrics[metric]:.4f}" if metric in row.metrics else "–" for row in rows)
            columns.append(Column(metric, metric.removeprefix("dev/"), values, right=True))
        for name, (title, write) in COSTS.items():
            if self.costs and any(name in row.metrics for row in rows):
                values = tuple(write(row.metrics[name]) if name in row.metrics else "–" for row in rows)
                columns.append(Column(f"cost:{name}", title, values, right=True))
        return columns

    def _progress_columns(self, rows: Sequence[Row]) -> Iterator[Column]:
        """How far the trials are. Baselines have empty cells, and columns without any content are left out."""

        def column(key: str, cell: Callable[[Row], str]) -> Column:
            return Column(key, key, tuple(cell(row) if is_trial(row) else "" for row in rows))

        columns = [
            column("report", lambda row: f"{row.reports}/{reports_of(self.sweep, row.params)}"),
            column("step", lambda row: f"{row.step}/{row.steps}" if row.steps else str(row.step)),
            column("time", lambda row: minutes(row.seconds)),
        ]
        if any(row.condition > 1 for row in rows):
            columns.append(column("condition", lambda row: str(row.condition)))
        columns.append(column("loss", lambda row: f"{row.loss:.3f}" if row.loss is not None else ""))
        if any(len(row.curve) > 1 for row in rows):
            columns.append(column("curve", lambda row: sparkline(row.curve)))
        yield from (each for each in columns if any(each.cells))


def is_trial(row: Row) -> bool:
    """Whether a row is a trial's, and not a baseline's."""
    return bool(row.reports or row.params or row.state != "finished")


def cut_name(name: str) -> str:
    """A name that fits its column. The beginning of a long one is left out, for its end tells models apart."""
    return name if len(name) <= LONGEST_NAME else ELLIPSIS + name[1 - LONGEST_NAME :]


def columns_that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit in the width: long titles are cut first, if they still differ, then columns are dropped."""

    def fits(some: Sequence[Column]) -> bool:
        return sum(column.width + GAP for column in some) <= width

    shown = list(columns)
    if not fits(shown):
        short = [column.with_cut_title() if column.right else column for column in shown]
        counts = Counter(column.title for column in short)
        shown = [
            each if counts[each.title] == 1 else whole.with_title_end()
            for whole, each in zip(shown, short, strict=True)
        ]
    for key in DROPPED:
        if fits(shown):
            break
        shown = [column for column in shown if column.key != key]
    return shown if fits(shown) else [column.with_cut_title() if column.right else column for column in shown]


def notes_of(rows: Sequence[Row]) -> Iterator[Text]:
    """Why trials ended badly, and what they warn of: whole, a line each. Trials with the same words share one."""
    notes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        reason = row.reason if row.kind != "pruned" else ""
        for text in (reason, row.warning):
            if text:
                notes.setdefault((row.state, " ".join(text.split())), []).append(row.name)
    for (state, text), names in notes.items():
        who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Text(f"{who} ({state}): {text}", style="" if state == "finished" else COLORS.get(state, ""))
    for row in rows:
        if row.stage is not None:
            yield Text(f"{row.name} ({row.state}): {stage_words(row.stage)}", style=COLORS["running"])


def _note_lines(notes: Sequence[Text], most: int, console: Console, width: int) -> list[Text]:
    """The notes as lines of the width, `most` at most."""
    lines = [line for note in notes for line in note.wrap(console, width)]
    return lines if len(lines) <= most else [*lines[: most - 1], Text(ELLIPSIS)] if most > 0 else []


def running_first(rows: Sequence[Row]) -> list[Row]:
    """The rows with those of running trials before all others; each part keeps its order."""
    return sorted(rows, key=lambda row: row.state != "running")
