"""The commands that look at sweeps: status, logs, runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeGuard

import typer

from babeltune.cli.common import (
    ClusterFile,
    Json,
    SweepName,
    app,
    cluster_of,
    err,
    folder_of,
    out,
    say,
    warn,
    with_cluster,
)

if TYPE_CHECKING:
    from babeltune.sweep.state.folder import SweepFolder


TrialOrSweep = Annotated[
    str | None, typer.Argument(help="A sweep's id or name, or a trial such as SWEEP/t0003; the latest sweep without.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep showing until it ends.")]


@app.command()
def status(
    name: TrialOrSweep = None,
    cluster: ClusterFile = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show a sweep: its state, its trials, and how far each one is. Or show one trial, `SWEEP/t0003`, on a page."""
    from babeltune.cli.remote import remote_of, status_there
    from babeltune.cli.render import attach, show_status
    from babeltune.sweep.state.progress import sweep_document

    if is_trial(name):
        if follow:
            raise typer.BadParameter("follows a sweep; leave out the trial", param_hint="--follow")
        one_trial(name, cluster, as_json)
        return
    remote = remote_of(cluster)
    if remote is not None:
        status_there(remote, name, follow_it=follow, as_json=as_json)
        return
    folder = folder_of(name, cluster)
    if follow:
        attach(folder, err)
    document = sweep_document(folder)
    say(document, as_json, lambda: show_status(folder, document["state"], document["reason"], out))


def is_trial(name: str | None) -> TypeGuard[str]:
    """Whether the name is of a trial, such as `SWEEP/t0003`."""
    return name is not None and "/" in name


def one_trial(name: str, cluster: str | None, as_json: bool) -> None:
    """Shows the page of a trial. Raises `UnknownNameError` that names the nearest one."""
    from babeltune.cli.remote import remote_of
    from babeltune.cli.trial import show_trial
    from babeltune.files import plain
    from babeltune.redaction import without_password
    from babeltune.sweep.state.folder import find_trial
    from babeltune.sweep.state.trial_page import trial_page

    remote = remote_of(cluster)
    if remote is not None:
        remote.show(["status", name], as_json)
        return
    sweep, _, trial = name.partition("/")
    folder = folder_of(sweep, cluster)
    page = trial_page(folder, find_trial(folder, trial))
    uri = cluster_of(cluster).mlflow
    server = without_password(uri).rstrip("/") if uri.startswith(("http://", "https://")) else None
    say(plain(page), as_json, lambda: show_trial(page, out, cluster, server))


@app.command()
def logs(
    name: SweepName = None,
    cluster: ClusterFile = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show what a sweep's driver did and does, a line each."""
    from babeltune.cli.remote import logs_there, remote_of

    remote = remote_of(cluster)
    if remote is not None:
        logs_there(remote, name, follow_it=follow, as_json=as_json)
        return
    from babeltune.sweep.state.folder import read_log
    from babeltune.sweep.state.progress import sweep_document

    folder = folder_of(name, cluster)
    if follow and not as_json:
        for text in followed(folder):
            out.out(text, end="", highlight=False)
        state = sweep_document(folder)["state"]
        dead = f": its driver is gone; `babeltune resume {folder.id}{with_cluster(cluster)}` goes on"
        err.print(f"sweep {folder.id}: {state}{dead if state == 'interrupted' else ''}", soft_wrap=True)
        return
    text = read_log(folder)
    if not text:
        warn([f"{folder.id} has no log yet"])
    document = {"sweep": folder.id, "state": sweep_document(folder)["state"], "log": text}
    say(document, as_json, lambda: out.out(text, end="", highlight=False))


def followed(folder: SweepFolder) -> Iterator[str]:
    """The sweep's log as it grows, while it is driven."""
    from babeltune.sweep.state.folder import read_log
    from babeltune.sweep.state.progress import is_driven

    seen = 0
    while True:
        driven = is_driven(folder)
        text = read_log(folder)
        yield text[seen:]
        seen = len(text)
        if not driven:
            return
        time.sleep(0.5)


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
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """List the sweeps, or of one the leaderboard, the Pareto front, the languages, or the tables over settings."""
    from babeltune.cli.remote import remote_of
    from babeltune.cli.render import show_comparison, show_front, show_languages, show_leaderboard
    from babeltune.files import plain
    from babeltune.planning.warnings import about_order
    from babeltune.sweep.state.leaderboard import by_language
    from babeltune.sweep.state.leaderboard import front as front_of
    from babeltune.sweep.state.progress import standing
    from babeltune.sweep.state.seed_summary import compare

    check_table(sort, over, front, languages, by, metric, markdown)
    if is_trial(name):
        check_alone(name, sort=sort, over=over, front=front, languages=languages, by=by)
        one_trial(name, cluster, as_json)
        return
    remote = remote_of(cluster)
    if remote is not None:
        asked = [*((name,) if name else ()), *(("--sort", sort) if sort else ())]
        asked += ["--by", by] if by else []
        asked += [word for setting in over or () for word in ("--over", setting)]
        asked += [word for column in metric or () for word in ("--metric", column)]
        asked += ["--front"] * front + ["--languages"] * languages + ["--markdown"] * markdown
        remote.show(["runs", *asked], as_json)
        return
    if front:
        metrics, rows = front_of(folder_of(name, cluster), metric or ())
        say([plain(row) for row in rows], as_json, lambda: show_front(metrics, rows, out))
        return
    if languages:
        folder = folder_of(name, cluster)
        rows, objective = standing(folder), folder.sweep().objectives[0].metric
        scores = by_language(rows, objective)
        documents = [{"name": row.name, "state": row.state, "scores": scores[row.name]} for row in rows]
        say(documents, as_json, lambda: show_languages(scores, objective, out))
        return
    if by:
        show_by(folder_of(name, cluster), by, as_json)
        return
    if over:
        table = compare(folder_of(name, cluster), over, metric or (), sort)
        say(plain(table), as_json, lambda: show_comparison(table, out, markdown=markdown))
        return
    if name is not None or sort:
        folder = folder_of(name, cluster)
        rows = standing(folder, sort)
        warn(about_order(sort))
        say([plain(row) for row in rows], as_json, lambda: show_leaderboard(folder, out, sort))
        return
    all_sweeps(cluster, as_json)


def check_table(
    sort: str | None,
    over: list[str] | None,
    front: bool,
    languages: bool,
    by: str | None,
    metric: list[str] | None,
    markdown: bool,
) -> None:
    """`typer.BadParameter` for options of `runs` that ask for two tables, or belong to another one."""
    if (markdown and not over) or (metric and not (over or front)):
        raise typer.BadParameter(
            "belongs to a table: add --over seed" + ("" if markdown else " or --front"),
            param_hint="--markdown" if markdown else "--metric",
        )
    if front and (over or sort):
        raise typer.BadParameter("is a table of its own; leave out --over and --sort", param_hint="--front")
    if languages and (over or sort or front):
        raise typer.BadParameter(
            "is a table of its own; leave out --over, --sort and --front", param_hint="--languages"
        )
    if by and (over or sort or front or languages):
        raise typer.BadParameter(
            "is a table of its own; leave out --over, --sort, --front and --languages", param_hint="--by"
        )


def show_by(folder: SweepFolder, setting: str, as_json: bool) -> None:
    """Shows a sweep's trials by the values of a searched setting."""
    from babeltune.cli.overview import show_by_setting
    from babeltune.files import plain
    from babeltune.sweep.state.by_setting import by_setting

    table = by_setting(folder, setting)
    say(plain(table), as_json, lambda: show_by_setting(table, out))


def check_alone(name: str, **tables: str | list[str] | bool | None) -> None:
    """`typer.BadParameter` for a table of a sweep that is asked of one trial."""
    for option, value in tables.items():
        if value:
            sweep = name.partition("/")[0]
            raise typer.BadParameter(
                f"is a table of a sweep, and {name!r} is one trial; name {sweep!r} alone", param_hint=f"--{option}"
            )


def all_sweeps(cluster: str | None, as_json: bool) -> None:
    """Shows every sweep of the storage; one that cannot be read is a warning."""
    from babeltune.cli.overview import show_sweeps
    from babeltune.errors import SweepError
    from babeltune.files import plain
    from babeltune.sweep.state.folder import sweep_folders
    from babeltune.sweep.state.overview import sweep_line, with_differences
    from babeltune.sweep.state.progress import sweep_document
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    view.update(every=True)
    folders = sweep_folders(view.folder)
    lines, specs, documents = [], {}, {}
    for folder in folders:
        try:
            line, specs[folder.id] = sweep_line(folder), folder.read("sweep.json") or {}
            documents[folder.id] = sweep_document(folder) if as_json else {}
            lines.append(line)
        except SweepError as error:
            warn([f"sweep {folder.id} is left out: {error}"])
    lines = with_differences(lines, specs)
    said = [{**documents[line.sweep], **plain(line)} for line in lines]
    say(said, as_json, lambda: show_sweeps(lines, out) if lines or not folders else None)
