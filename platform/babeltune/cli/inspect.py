"""The commands that look at sweeps: status, logs, runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeGuard

import typer
from rich.cells import cell_len, set_cell_size
from rich.markup import escape
from rich.table import Column
from rich.text import Text

from babeltune.cli.common import (
    ClusterFile,
    Json,
    SweepName,
    cluster_of,
    err,
    out,
    plain_table,
    say,
    say_line,
    sweep_folder,
    warn,
    with_cluster,
)
from babeltune.cli.program import app

if TYPE_CHECKING:
    from rich.console import Console

    from babeltune.sweep.state.by_setting import BySetting
    from babeltune.sweep.state.folder import SweepFolder
    from babeltune.sweep.state.overview import SweepLine

LEAST_ABOUT = 40  # columns that data and differences need beside the list. With fewer they stand below it.
GAP = 2  # columns between two columns of a list
TrialOrSweep = Annotated[
    str | None, typer.Argument(help="A sweep's id or name, or a trial such as SWEEP/t0003; the latest sweep without.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep showing until it ends.")]


@dataclass(frozen=True)
class RunsView:
    """Which table `runs` shows: the sweeps, or one of a sweep."""

    name: str | None = None
    sort: str | None = None
    over: tuple[str, ...] = ()
    front: bool = False
    by: str | None = None
    languages: bool = False
    metric: tuple[str, ...] = ()
    markdown: bool = False
    archived: bool = False


@dataclass(frozen=True, kw_only=True)
class LogOutput:
    """The output of `logs`."""

    sweep: str
    state: str
    log: str


@dataclass(frozen=True, kw_only=True)
class LanguageScores:
    """The first objective of a trial by language pair."""

    name: str
    state: str
    scores: dict[str, float]
    """`mean`, and each language pair; empty before the first report."""


@app.command()
def status(
    name: TrialOrSweep = None, cluster: ClusterFile = None, follow: Follow = False, as_json: Json = False
) -> None:
    """Show a sweep: its state, its trials, and how far each one is. Or show one trial, `SWEEP/t0003`, on a page."""
    from babeltune.cli.render import show_status
    from babeltune.cli.terminal_view import attach
    from babeltune.sweep.state.progress import sweep_document, sweep_facts

    if is_trial(name):
        if follow:
            raise typer.BadParameter("follows a sweep; leave out the trial", param_hint="--follow")
        trial(name, cluster, as_json=as_json)
        return

    folder = sweep_folder(name, cluster)
    folder.sweep()  # a damaged sweep is an error, before anything is printed
    if follow:
        attach(folder, err)
    document = sweep_document(folder) if as_json else sweep_facts(folder)
    say(document, as_json, lambda: show_status(folder, document.state, document.reason, out))
    if document.state == "interrupted" and not as_json:
        say_line(f"its driver is gone; `babeltune resume {folder.id}{with_cluster(cluster)}` goes on")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A trial, such as SWEEP/t0003, or a sweep.", metavar="SWEEP/TRIAL")],
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Show one trial: settings, curve, scores by language, reason, checkpoint. A sweep has the page of `status`."""
    status(name, cluster, follow=False, as_json=as_json)


def is_trial(name: str | None) -> TypeGuard[str]:
    """Whether the name is of a trial, such as `SWEEP/t0003`."""
    return name is not None and "/" in name.rstrip("/")


@app.command()
def logs(name: SweepName = None, cluster: ClusterFile = None, follow: Follow = False, as_json: Json = False) -> None:
    """Show the log of a sweep."""
    from babeltune.sweep.state.folder import read_log
    from babeltune.sweep.state.progress import sweep_facts

    folder = sweep_folder(name, cluster)
    if follow and not as_json:
        for text in followed(folder):
            out.out(text, end="", highlight=False)
        state = sweep_facts(folder).state
        dead = f": its driver is gone; `babeltune resume {folder.id}{with_cluster(cluster)}` goes on"
        err.print(f"sweep {folder.id}: {state}{dead if state == 'interrupted' else ''}", soft_wrap=True)
        return
    text = read_log(folder)
    if not text:
        warn([f"{folder.id} has no log yet"])
    document = LogOutput(sweep=folder.id, state=sweep_facts(folder).state, log=text)
    say(document, as_json, lambda: out.out(text, end="", highlight=False))


@app.command()
def runs(
    name: Annotated[
        str | None, typer.Argument(help="A sweep's id or name, or a trial such as SWEEP/t0003; all sweeps without.")
    ] = None,
    sort: Annotated[str | None, typer.Option(help="A metric of one sweep, such as dev/everyday/accuracy.")] = None,
    over: Annotated[
        list[str] | None, typer.Option(help="Mean and deviation over this searched setting, such as seed.")
    ] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Only trials that no other beats in all: objectives, size and speed.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(help="Trials, best and mean by the values of this searched setting, such as temperature."),
    ] = None,
    languages: Annotated[
        bool, typer.Option("--languages", help="The objective of each trial in every language pair of its dev set.")
    ] = False,
    metric: Annotated[list[str] | None, typer.Option(help="With --over or --front: the columns.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --over: as a GitHub table.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="List archived sweeps, too.")] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """List the sweeps. With a sweep, show its leaderboard, its Pareto front, its languages, or a table by settings."""
    tables = RunsView(name, sort, tuple(over or ()), front, by, languages, tuple(metric or ()), markdown, archived)
    check_table(tables)
    if is_trial(name):
        check_alone(name, tables)
        trial(name, cluster, as_json=as_json)
    else:
        show_tables(tables, cluster, as_json=as_json)


def check_table(tables: RunsView) -> None:
    """`typer.BadParameter` for options of `runs` that ask for two tables, or belong to another one."""
    over, sort, front = tables.over, tables.sort, tables.front
    if tables.archived and (tables.name or over or sort or front or tables.by or tables.languages):
        raise typer.BadParameter("belongs to the list of all sweeps; leave out the others", param_hint="--archived")
    if (tables.markdown and not over) or (tables.metric and not (over or front)):
        option, other = ("--markdown", "") if tables.markdown else ("--metric", " or --front")
        raise typer.BadParameter(f"belongs to a table: add --over seed{other}", param_hint=option)
    others = ["over", "sort"]
    for option in ("front", "languages", "by"):
        if getattr(tables, option) and any(getattr(tables, other) for other in others):
            words = f"{', '.join(f'--{other}' for other in others[:-1])} and --{others[-1]}"
            raise typer.BadParameter(f"is a table of its own; leave out {words}", param_hint=f"--{option}")
        others.append(option)


def check_alone(name: str, tables: RunsView) -> None:
    """`typer.BadParameter` for a table of a sweep that is asked of one trial."""
    for option in ("sort", "over", "front", "languages", "by"):
        if getattr(tables, option):
            words = f"is a table of a sweep, and {name!r} is one trial; name {name.partition('/')[0]!r} alone"
            raise typer.BadParameter(words, param_hint=f"--{option}")


def trial(name: str, cluster: str | None, *, as_json: bool) -> None:
    """Shows a trial, `SWEEP/t0003`. `UnknownNameError` names the nearest one."""
    from babeltune.cli.trial import show_trial
    from babeltune.redaction import without_password
    from babeltune.sweep.state.folder import find_trial
    from babeltune.sweep.state.trial_page import trial_page

    sweep, _, trial = name.partition("/")
    folder = sweep_folder(sweep, cluster)
    page = trial_page(folder, find_trial(folder, trial))
    uri = cluster_of(cluster).mlflow
    server = without_password(uri).rstrip("/") if uri.startswith(("http://", "https://")) else None
    say(page, as_json, lambda: show_trial(page, out, cluster, server))


def show_tables(tables: RunsView, cluster: str | None, *, as_json: bool) -> None:
    """Shows the sweeps, or a table of one."""
    from babeltune.cli.render import show_comparison, show_front, show_leaderboard
    from babeltune.planning.goals import whole_name
    from babeltune.planning.warnings import about_order
    from babeltune.sweep.state.by_setting import by_setting
    from babeltune.sweep.state.leaderboard import front
    from babeltune.sweep.state.progress import standing
    from babeltune.sweep.state.seed_summary import compare_settings

    if tables.name is None and not any((tables.sort, tables.over, tables.front, tables.by, tables.languages)):
        all_sweeps(cluster, as_json, archived=tables.archived)
        return
    folder = sweep_folder(tables.name, cluster)
    data = folder.sweep().data
    sort = None if tables.sort is None else whole_name(data, tables.sort)
    metrics = tuple(whole_name(data, metric) for metric in tables.metric)
    if tables.front:
        columns, best = front(folder, metrics)
        say(best, as_json, lambda: show_front(columns, best, out))
    elif tables.languages:
        show_by_language(folder, as_json)
    elif tables.by:
        summary = by_setting(folder, tables.by)
        say(summary, as_json, lambda: show_by_setting(summary, out))
    elif tables.over:
        table = compare_settings(folder, tables.over, metrics, sort)
        say(table, as_json, lambda: show_comparison(table, out, markdown=tables.markdown))
    else:
        rows = standing(folder, sort)
        warn(about_order(sort))
        say(rows, as_json, lambda: show_leaderboard(folder, out, sort))


def followed(folder: SweepFolder) -> Iterator[str]:
    """The sweep's log as it grows, while it is driven."""
    from babeltune.sweep.state.folder import read_log
    from babeltune.sweep.state.progress import is_driven

    seen, driven = 0, True
    while driven:
        driven, text = is_driven(folder), read_log(folder)
        yield text[seen:]
        seen = len(text)
        time.sleep(0.5 * driven)


def show_by_language(folder: SweepFolder, as_json: bool) -> None:
    """Shows the first objective of each trial in every language pair."""
    from babeltune.cli.render import show_languages
    from babeltune.sweep.state.leaderboard import by_language
    from babeltune.sweep.state.progress import standing

    rows, objective = standing(folder), folder.sweep().objectives[0].metric
    scores = by_language(rows, objective)
    documents = [LanguageScores(name=row.name, state=row.state, scores=scores[row.name]) for row in rows]
    say(documents, as_json, lambda: show_languages(scores, objective, out))


def all_sweeps(cluster: str | None, as_json: bool, *, archived: bool) -> None:
    """Shows the sweeps of the storage; one that cannot be read is a warning."""
    from babeltune.errors import SweepError, plural
    from babeltune.sweep.state.folder import sweep_folders
    from babeltune.sweep.state.overview import ListedSweep, sweep_line, with_differences
    from babeltune.sweep.state.progress import SweepDocument, sweep_document
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    view.update(every=True)
    every = sweep_folders(view.folder)
    folders = [folder for folder in every if archived or not folder.labels().get("archived")]
    lines, specs, documents = [], {}, dict[str, SweepDocument]()
    for folder in folders:
        try:
            specs[folder.id] = folder.read("sweep.json") or {}
            line = sweep_line(folder, specs[folder.id])
            if as_json:
                documents[folder.id] = sweep_document(folder)
            lines.append(line)
        except SweepError as error:
            warn([f"sweep {folder.id} is left out: {error}"])
    lines = with_differences(lines, specs)
    rows = [ListedSweep(**{**vars(documents[line.sweep]), **vars(line)}) for line in lines if as_json]
    say(rows, as_json, lambda: show_sweeps(lines, out) if lines or not every else None)
    if (hidden := len(every) - len(folders)) and not as_json:
        err.print(f"{plural(hidden, 'sweep')} not listed; --archived lists them", highlight=False)


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
    rows = [_cells(line) for line in lines]
    columns = {title: [row[title] for row in rows] for title in rows[0]}
    if _width(columns) > width:
        del columns["objective"]
    if _width(columns) > width:
        columns["begun"] = [cell[5:] for cell in columns["begun"]]
    return columns


def _cells(line: SweepLine) -> dict[str, str]:
    """Title -> cell."""
    score = "" if line.score is None else f" {line.score:.4f}"
    return {
        "sweep": f"{line.title} ({line.sweep})" if line.title else line.sweep,
        "begun": time.strftime("%Y-%m-%d %H:%M", time.localtime(line.begun)),
        "state": line.state,
        "trials": f"{line.ended}/{line.budget}",
        "best": f"{line.best or '–'}{score}",
        "objective": line.objective.removeprefix("dev/"),
    }


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
    titles = ("trials", "scored", "best", "trial", "mean")
    others = (Column(title, justify="left" if title == "trial" else "right", no_wrap=True) for title in titles)
    table = plain_table(Column(summary.setting, no_wrap=True), *others)
    for level in summary.levels:
        best, mean = (f"{value:.4f}" if value is not None else "–" for value in (level.best, level.mean))
        table.add_row(escape(level.label), str(level.trials), str(level.scored), best, level.best_trial or "–", mean)
    console.print(table)
