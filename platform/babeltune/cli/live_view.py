"""The live view of a running sweep in the terminal: stage, bar, trials; plain lines where the output is no terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from babeltune.cli.table import TrialsTable, running_first
from babeltune.cli.words import minutes, stage_words
from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import SweepProgress, is_driven, read_stage, standing

SETTLED = 0.25
"""Share of the trials that must be done before the remaining time is estimated."""
LINES_EVERY = 15.0
"""Seconds between progress lines where the output is not a terminal."""
BAR = 60
"""Columns of the progress bar."""


def picture(progress: SweepProgress, height: int | None = None) -> RenderableType:
    """The live view: stage, progress bar, time gone and left, what happened last, trials.

    The table has running trials first, then the best ones, as many as fit in `height` lines.
    """
    rows = leaderboard(progress.folder) if (progress.folder.path / "baselines.json").exists() else []
    gone = minutes(time.monotonic() - progress.started)
    left = time_left(progress, rows)
    stage = progress.now()
    head = Text(f"{progress.folder.id} · {stage_words(stage)} · {gone} gone{left}")
    bar = bar_of(progress.done / max(progress.of, 1))
    latest = [Text(progress.latest, style="yellow")] if progress.latest else []
    room = None if height is None else height - 2 - len(latest)
    table = TrialsTable(running_first(rows), progress.sweep, height=room)
    return Group(head, bar, *latest, *([table] if rows else []))


def bar_of(share: float) -> Text:
    """A line of `BAR` columns, bright as far as the work is done. rich's own bar does not end its line in a group."""
    done = round(BAR * min(max(share, 0.0), 1.0))
    return Text.assemble(("━" * done, "cyan"), ("━" * (BAR - done), "bright_black"))


def time_left(progress: SweepProgress, rows: list[Row]) -> str:
    """How long the rest of the search takes at the pace of this submission, once some of it is done."""
    if progress.searching is None or progress.ended >= progress.sweep.budget.trials:
        return ""
    begun = progress.before + progress.begun
    done = progress.ended + sum(r.step / r.steps for r in rows if r.state == "running" and r.steps) - begun
    gone = time.monotonic() - progress.searching
    if done < SETTLED:
        return ""
    left = (progress.sweep.budget.trials - begun - done) * gone / done
    return f" · about {minutes(max(left, 0))} left"


def best_so_far(rows: list[Row], sweep: Sweep) -> str:
    """The leading trial and its first objective, or nothing before the first report."""
    metric = sweep.objectives[0].metric
    row = next((r for r in rows if r.best is not None), None)
    return f" · best {metric.removeprefix('dev/')} {row.metrics[metric]:.4f} ({row.name})" if row else ""


class _Picture:
    """Redraws at each refresh of the live view."""

    def __init__(self, progress: SweepProgress) -> None:
        self.progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield picture(self.progress, console.size.height)


@contextmanager
def live(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    """Shows a board while the body runs: a live table on a terminal, a line now and then elsewhere."""
    if console.is_terminal:
        with Live(Text("starting"), console=console, refresh_per_second=2, transient=True) as display:
            yield lambda progress: display.update(_Picture(progress))
        return
    with _lines(console) as watch:
        yield watch


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    import threading

    ended = threading.Event()
    boards: list[SweepProgress] = []

    def work() -> None:
        last, logged = ("", -1.0), 0
        while not ended.wait(0.5):
            for progress in boards:
                now = time.monotonic()
                for text in progress.messages[logged:]:
                    console.print(f"[{minutes(now - progress.started)}] {text}", markup=False, soft_wrap=True)
                    logged += 1
                if progress.stage != last[0] or now - last[1] > LINES_EVERY:
                    last = (progress.stage, now)
                    head = f"[{minutes(now - progress.started)}] {stage_words(progress.now())}"
                    rows = leaderboard(progress.folder) if progress.searching is not None else []
                    tail = best_so_far(rows, progress.sweep) + time_left(progress, rows)
                    console.print(head + running_words(rows) + tail, markup=False)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield boards.append
    finally:
        ended.set()
        thread.join()


def running_words(rows: list[Row]) -> str:
    """The trials that run, and how far each is."""
    running = sorted((row for row in rows if row.state == "running"), key=lambda row: row.name)
    words = ", ".join(row.name + (f" {row.step / row.steps:.0%}" if row.steps else "") for row in running)
    return f" · running {words}" if words else ""


class _Attached:
    """The live view of a sweep that another process drives."""

    def __init__(self, folder: SweepFolder, sweep: Sweep) -> None:
        self.folder, self.sweep = folder, sweep

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.folder.id} · {doing_words(self.folder)}")
        yield TrialsTable(running_first(standing(self.folder)), self.sweep, height=console.size.height - 1)


def doing_words(folder: SweepFolder) -> str:
    """What the sweep's driver is doing: its stage, or the last line of its log."""
    stage = read_stage(folder)
    return latest_note(folder) if stage is None else stage_words(stage)


def latest_note(folder: SweepFolder) -> str:
    """The last line of the sweep's log, without its time."""
    return (read_log(folder).splitlines() or [""])[-1][20:]


def attach(folder: SweepFolder, console: Console) -> SweepFolder:
    """Shows a sweep that another process runs until it ends: a live table on a terminal, else a line now and then."""
    while not (folder.path / "sweep.json").exists() and is_driven(folder):  # it has only just begun
        time.sleep(0.2)
    if not (folder.path / "sweep.json").exists():
        return folder
    sweep = folder.sweep()
    if not console.is_terminal:
        shown = -math.inf
        while is_driven(folder):
            if time.monotonic() - shown > LINES_EVERY:
                shown = time.monotonic()
                rows = standing(folder)
                doing = running_words(rows) or f" · {doing_words(folder)}"
                console.print(f"{folder.id}{doing}{best_so_far(rows, sweep)}", markup=False)
            time.sleep(1)
        return folder
    with Live(Text("attached"), console=console, refresh_per_second=1, transient=True) as display:
        while is_driven(folder):
            display.update(_Attached(folder, sweep))
            time.sleep(1)
    return folder
