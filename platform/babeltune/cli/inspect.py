"""The commands that look at sweeps: status, logs, runs."""

from __future__ import annotations

from typing import Annotated, TypeGuard

import typer

from babeltune.cli.client import Tables, client_of
from babeltune.cli.common import ClusterFile, Json, SweepName, app

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
    if is_trial(name):
        if follow:
            raise typer.BadParameter("follows a sweep; leave out the trial", param_hint="--follow")
        client_of(cluster, as_json=as_json).trial(name)
        return
    client_of(cluster, as_json=as_json).status(name, follow=follow)


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
def logs(
    name: SweepName = None,
    cluster: ClusterFile = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show the log of a sweep."""
    client_of(cluster, as_json=as_json).logs(name, follow=follow)


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
    """List the sweeps. With a sweep, show its leaderboard, its Pareto front, its languages, or a table by settings."""
    tables = Tables(name, sort, tuple(over or ()), front, by, languages, tuple(metric or ()), markdown)
    check_table(tables)
    client = client_of(cluster, as_json=as_json)
    if is_trial(name):
        check_alone(name, tables)
        client.trial(name)
        return
    client.runs(tables)


def check_table(tables: Tables) -> None:
    """`typer.BadParameter` for options of `runs` that ask for two tables, or belong to another one."""
    over, sort, front = tables.over, tables.sort, tables.front
    if (tables.markdown and not over) or (tables.metric and not (over or front)):
        raise typer.BadParameter(
            "belongs to a table: add --over seed" + ("" if tables.markdown else " or --front"),
            param_hint="--markdown" if tables.markdown else "--metric",
        )
    if front and (over or sort):
        raise typer.BadParameter("is a table of its own; leave out --over and --sort", param_hint="--front")
    if tables.languages and (over or sort or front):
        raise typer.BadParameter(
            "is a table of its own; leave out --over, --sort and --front", param_hint="--languages"
        )
    if tables.by and (over or sort or front or tables.languages):
        raise typer.BadParameter(
            "is a table of its own; leave out --over, --sort, --front and --languages", param_hint="--by"
        )


def check_alone(name: str, tables: Tables) -> None:
    """`typer.BadParameter` for a table of a sweep that is asked of one trial."""
    for option in ("sort", "over", "front", "languages", "by"):
        if getattr(tables, option):
            sweep = name.partition("/")[0]
            raise typer.BadParameter(
                f"is a table of a sweep, and {name!r} is one trial; name {sweep!r} alone", param_hint=f"--{option}"
            )
