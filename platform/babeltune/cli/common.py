"""The common parts of the commands: their options, their output, and where files and sweeps are found."""

from __future__ import annotations

import json
import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Column, Table

from babeltune.errors import BabeltuneWarning, ObjectStoreError, SpecError, bounded, printable
from babeltune.files import json_text

if TYPE_CHECKING:
    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep
    from babeltune.stages import Progress
    from babeltune.sweep.state.folder import SweepFolder


METER_EVERY_S = 2.0  # the fewest seconds between two lines about a long step, if the output is not a terminal
PAGE = 160  # columns if the output is not a terminal


class SafeConsole(Console):
    """Writes no control character or escape that comes from a file, a name or a record; its own ones stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text printable."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield Segment(text, segment.style, segment.control)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal; a file or pipe gets `PAGE` columns."""
    stream = sys.stderr if stderr else sys.stdout  # None if it is closed
    return SafeConsole(stderr=stderr, emoji=False, width=None if stream and stream.isatty() else PAGE)


out = console()
err = console(stderr=True)

File = Annotated[str, typer.Argument(help="A sweep file, such as search_spaces/quickstart.yaml.", metavar="FILE")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="A file whose sections replace the sweep file's, or change parts of them."),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as training.pairs=50000.")]
ClusterFile = Annotated[str | None, typer.Option("--cluster", help="A cluster file; this machine when left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
SweepName = Annotated[str | None, typer.Argument(help="A sweep's id or name; the latest when left out.")]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def agreed(question: str, unasked: str, *, ask: bool = True) -> None:
    """Asks on the terminal. Raises `SpecError` with the words `unasked` if nobody is there who could answer, and ends
    the command with 1 after a no."""
    if not (ask and sys.stdin.isatty() and err.is_terminal):
        raise SpecError(unasked)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def say(value: object, as_json: bool, show: Callable[[], None]) -> None:
    """Prints the value as JSON, or shows it."""
    if as_json:
        text = json_text(value, indent=2, default=str)
        escaped = (each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
        sys.stdout.write((text if text.replace("\n", "").isprintable() else "".join(escaped)) + "\n")
    else:
        show()


def say_out(words: str) -> None:
    """Prints one line to standard output, without markup or wrapping."""
    out.print(words, markup=False, highlight=False, soft_wrap=True)


def say_line(words: str) -> None:
    """Prints one line to standard error, without markup or wrapping."""
    err.print(bounded(words), markup=False, highlight=False, soft_wrap=True)


def warn(problems: Iterable[str]) -> None:
    """Says what can be done and was probably not meant."""
    for problem in problems:
        err.print(f"[yellow]warning:[/] {escape(bounded(problem))}")


def plain_table(*titles: str | Column, numbers: Sequence[str] = ()) -> Table:
    """A table without lines: columns with these titles, and columns of numbers behind them."""
    columns = (Column(title, justify="right") for title in numbers)
    return Table(*titles, *columns, box=None, pad_edge=False, header_style="bold")


@contextmanager
def warnings_said() -> Iterator[None]:
    """Writes what `babeltune.api` warns of within the block as lines on standard error."""
    import warnings

    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, BabeltuneWarning):
            say_line(str(message))
        else:
            usual(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BabeltuneWarning)
        warnings.showwarning = show
        yield


def line_interval_s(gone_s: float) -> float:
    """Seconds between two lines about a step that has taken `gone_s`, on no terminal: a log of hours stays short."""
    return min(max(METER_EVERY_S, gone_s / 20), 60.0)


class Meter:
    """Writes progress to standard error: at the begin and end of a stage, and every few seconds between, with its rate
    and the time left. Nothing in the first `silent_s` seconds."""

    def __init__(self, first: str, silent_s: float = 0.0) -> None:
        from babeltune.stages import timed

        self._stage_of, self._shown = timed(), dict[str, tuple[float, int]]()
        self._words, self._begun = first, time.monotonic()
        self._written, self._silent_s = self._begun, silent_s

    def __call__(self, name: str, done: int, of: int) -> None:
        from babeltune.stages import stage_words

        stage = self._stage_of(name, done, of)
        last, before = self._shown.get(name, (-math.inf, -1))
        if done != before and (done == of or stage.time - last >= line_interval_s(stage.time - stage.begun)):
            self._shown[name] = stage.time, done
            self._words = stage_words(stage)
            if time.monotonic() - self._begun >= self._silent_s:
                self._write(self._words)

    def _write(self, words: str) -> None:
        self._written = time.monotonic()
        say_line(words)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Also writes how long the block has taken, if a step says nothing for some seconds."""
        from babeltune.stages import minutes

        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(METER_EVERY_S / 4):
                if (now := time.monotonic()) - self._written >= line_interval_s(now - self._begun):
                    self._write(f"{self._words} · {minutes(now - self._begun)} gone")

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(METER_EVERY_S)


@contextmanager
def steps_shown(first: str, again: str = "does it", *, silent_s: float = 0.0) -> Iterator[None]:
    """Shows the long steps of the block: as one changing line on a terminal, else as lines. All on standard error.

    The time moves also in a step that does not say how far it is. `first`: the step that the block begins with.
    `again`: what the same command does after a Ctrl-C. Lines begin after `silent_s` seconds: most are done by then."""
    from babeltune.stages import listening

    try:
        if err.is_interactive:
            with _changing_line(first) as change, listening(change):
                yield
        else:
            with listening(meter := Meter(first, silent_s)), meter.ticking():
                yield
    except KeyboardInterrupt:
        say_line(f"interrupted; the same command again {again}")
        raise


@contextmanager
def _changing_line(first: str) -> Iterator[Progress]:
    from rich import progress as bars

    from babeltune.stages import stage_words, timed

    stage_of, text = timed(), bars.TextColumn("{task.description}")
    columns = (bars.SpinnerColumn(), text, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=err, transient=True) as shown:
        line = shown.add_task(first, total=None)
        yield lambda *step: shown.update(line, description=escape(stage_words(stage_of(*step))))


def read(
    file: str, overlays: list[str] | None, assignments: list[str] | None, cluster: str | None, trials: int | None = None
) -> Sweep:
    """The sweep of these files. If it goes to a cluster as a job, that cluster looks whether its data are there."""
    from babeltune.apps.sweep_plan import read_for
    from babeltune.planning.warnings import about_assignments

    settings = [*(assignments or ()), *([f"budget.trials={trials}"] if trials is not None else [])]
    sweep = read_for(any_cluster(cluster), file, overlays or (), settings)
    warn(about_assignments(sweep, settings))
    return sweep


def any_cluster(file: str | None) -> Cluster:
    from babeltune.schema.cluster import read_cluster

    return read_cluster(file)


def cluster_of(file: str | None) -> Cluster:
    """The cluster of the file, for a command that runs where its storage is."""
    cluster = any_cluster(file)
    if cluster.by_jobs:
        raise SpecError(
            f"{cluster.title} takes jobs only, and this command is not a job; run it on the "
            "cluster's head with a file that says `address: auto`"
        )
    return cluster


def sweep_folder(name: str | None, cluster: str | None) -> SweepFolder:
    """The sweep's folder as it is now; as this machine knows it if a storage behind a URI is away."""
    from babeltune.sweep.state.folder import find_sweep, sweep_folders
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    if view.deciding():
        from babeltune.promotion.decisions import settle_quietly

        settle_quietly(view)
    try:
        return view.sweep(name)
    except ObjectStoreError as error:
        if not sweep_folders(view.folder):
            raise
        warn([f"{error}; this is what this machine has"])
        return find_sweep(view.folder, name)


def with_cluster(file: str | None) -> str:
    """The option ` --cluster FILE` for a command in a message; empty for this machine."""
    return f" --cluster {shlex.quote(file)}" if file else ""


def registered(value: str | None) -> str | None:
    """A model's name; NAME@ALIAS stands for models:/NAME@ALIAS, unless it is a folder."""
    if value is None or "@" not in value or "/" in value or Path(value).is_dir():
        return value
    return f"models:/{value}"


def finite(value: float | None) -> float | None:
    """A number that is compared with others, which `nan` and `inf` are not."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number; write one such as 1.2")
    return value
