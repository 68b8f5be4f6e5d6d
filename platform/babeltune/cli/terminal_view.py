"""The live view of a running sweep in the terminal: stage, bar, trials; plain lines if the output is no terminal."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from babeltune.cli.common import line_interval_s
from babeltune.cli.table import TrialsTable, running_first
from babeltune.schema.records import Sweep
from babeltune.signals import before_sudden_end, interruption
from babeltune.stages import SEARCHING, minutes, stage_words
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import SweepProgress, doing_words, is_driven, running_words, standing, time_left

LAST_LINE_TIMEOUT_S = 10.0
"""Seconds to wait at the end for the thread that prints lines. It reads the sweep's folder, which may hang."""
LEAVE = b"\x1b[?1049l\x1b[?25h"  # leaves the terminal's second screen and shows the cursor
BAR = 60  # columns of the progress bar


def picture(progress: SweepProgress, height: int | None = None) -> RenderableType:
    """The live view: stage, progress bar, time gone and left, what happened last, trials.

    The table has running trials first, then the best ones, as many as fit in `height` lines."""
    rows = leaderboard(progress.folder) if (progress.folder.path / "baselines.json").exists() else []
    elapsed = minutes(time.monotonic() - progress.started)
    stage = progress.now()
    remaining = time_left(stage, rows, stage.time)
    head = Text(f"{progress.folder.id} · {stage_words(stage)} · {elapsed} gone{remaining}")
    bar = bar_of(progress.done / max(progress.of, 1))
    latest = [Text(text, style="yellow") for text in (progress.latest, interruption()) if text]
    return _Screen((head, bar, *latest), TrialsTable(running_first(rows), progress.sweep, height=height))


@dataclass(frozen=True)
class _Screen:
    """Lines of text, which may wrap, above a table that gets the rest of its height."""

    above: tuple[Text, ...]
    table: TrialsTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.above
        if not self.table.rows:
            return
        above = sum(len(text.wrap(console, options.max_width)) for text in self.above)
        yield self.table if self.table.height is None else replace(self.table, height=self.table.height - above)


def bar_of(share: float) -> Text:
    """A line of `BAR` columns, bright as far as the work is done. rich's own bar does not end its line in a group."""
    done = round(BAR * min(max(share, 0.0), 1.0))
    return Text.assemble(("━" * done, "cyan"), ("━" * (BAR - done), "bright_black"))


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
def full_screen(console: Console) -> Iterator[Live]:
    """A view on the terminal's second screen, which leaves nothing behind, however it ends and whatever its size was.

    What is printed meanwhile stands below the last line of the first screen afterwards."""
    screen, printed = Console(file=console.file, force_terminal=True), StringIO()
    try:
        with (
            redirect_stdout(printed),
            redirect_stderr(printed),
            Live(
                Text("starting"), console=screen, screen=True, redirect_stdout=False, redirect_stderr=False
            ) as display,
            before_sudden_end(lambda: os.write(2, LEAVE)),
        ):
            yield display
    finally:
        console.file.write(printed.getvalue())
        console.file.flush()


@contextmanager
def live(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    """Shows the progress while the body runs: a live table on a terminal, a line every few seconds elsewhere."""
    if console.is_interactive:
        with full_screen(console) as display:
            yield lambda progress: display.update(_Picture(progress))
        return
    with _lines(console) as watch:
        yield watch


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[SweepProgress], None]]:
    import threading

    ended, threads = threading.Event(), list[threading.Thread]()

    def work(progress: SweepProgress) -> None:
        last, logged = ("", -1.0), 0
        while not ended.wait(0.5):
            now = time.monotonic()
            for text in progress.messages[logged:]:
                console.print(f"[{minutes(now - progress.started)}] {text}", markup=False, soft_wrap=True)
                logged += 1
            if progress.stage != last[0] or now - last[1] >= line_interval_s(now - progress.started):
                last = (progress.stage, now)
                stage = progress.now()
                head = f"[{minutes(now - progress.started)}] {stage_words(stage)}"
                rows = leaderboard(progress.folder) if stage.name == SEARCHING else []
                tail = best_so_far(rows, progress.sweep) + time_left(stage, rows, stage.time)
                console.print(head + running_words(rows) + tail, markup=False)

    def watch(progress: SweepProgress) -> None:
        threads.append(threading.Thread(target=work, args=(progress,), daemon=True))
        threads[-1].start()

    try:
        yield watch
    finally:
        ended.set()
        for thread in threads:
            thread.join(LAST_LINE_TIMEOUT_S)


class _Attached:
    """The live view of a sweep that another process drives."""

    def __init__(self, folder: SweepFolder, sweep: Sweep) -> None:
        self.folder, self.sweep = folder, sweep

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = standing(self.folder)
        head = Text(f"{self.folder.id} · {doing_words(self.folder, rows)}")
        yield _Screen((head,), TrialsTable(running_first(rows), self.sweep, height=console.size.height))


def attach(folder: SweepFolder, console: Console) -> SweepFolder:
    """Shows a sweep that another process runs, until it ends: a live table on a terminal, else lines."""
    while not (folder.path / "sweep.json").exists() and is_driven(folder):  # it has only just begun
        time.sleep(0.2)
    if not (folder.path / "sweep.json").exists():
        return folder
    sweep = folder.sweep()
    if not console.is_interactive:
        begun, shown = time.monotonic(), -math.inf
        while is_driven(folder):
            if (now := time.monotonic()) - shown >= line_interval_s(now - begun):
                shown = now
                rows = standing(folder)
                doing = f"{doing_words(folder, rows)}{running_words(rows)}"
                console.print(f"{folder.id} · {doing}{best_so_far(rows, sweep)}", markup=False)
            time.sleep(1)
        return folder
    with full_screen(console) as display:
        while is_driven(folder):
            display.update(_Attached(folder, sweep))
            time.sleep(1)
    return folder
