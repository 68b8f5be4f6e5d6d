"""The commands that drive sweeps: plan, submit, stop, resume, extend."""

from __future__ import annotations

from typing import Annotated

import typer

from babeltune.cli.client import Change, Submission, client_of
from babeltune.cli.common import (
    ClusterFile,
    File,
    Json,
    Set,
    SweepName,
    With,
    Yes,
    any_cluster,
    app,
    cluster_of,
    out,
    read,
    say,
    steps_shown,
    warn,
)

Accept = Annotated[bool, typer.Option("--accept-changes", help="Go on although code or packages changed.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="On a cluster that takes jobs: return at once, do not follow the log.")
]
Trials = Annotated[int | None, typer.Option(help="Trials in all; replaces budget.trials.", min=1)]
Insecure = Annotated[bool, typer.Option("--insecure", help="Use a cluster that wants no token.")]


@app.command()
def plan(
    file: File,
    with_: With = None,
    set_: Set = None,
    trials: Trials = None,
    samples: Annotated[int, typer.Option(help="How many trials --yaml shows as examples.", min=0, max=1000)] = 3,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the whole resolved file, sampled trials and cleaning, too.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Time some steps of the default trial on this machine.")
    ] = True,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Check a sweep file and show what it would do: data, search, time, memory, and what its dev set can tell apart."""
    from babeltune.cli.remote import plugins_of
    from babeltune.files import plain
    from babeltune.planning.plan import make_plan
    from babeltune.planning.warnings import (
        about_corpus,
        about_gpus,
        about_headers,
        about_plugins,
        about_queue,
        about_strangers,
        about_sweep,
    )

    sweep, chosen = read(file, with_, set_, cluster, trials), any_cluster(cluster)
    warn(about_sweep(sweep))
    warn(about_plugins(plugins_of(sweep)) if chosen.by_jobs else about_gpus(chosen.with_workers(sweep.budget.workers)))
    from babeltune.cli.plan_page import about_disk, detectable, machine_of, show_plan

    with steps_shown():
        machine = machine_of(chosen, sweep)
        report = make_plan(sweep, samples=samples, machine=machine if calibrate else None)
    warn([*about_queue(sweep, report.anchors), *about_corpus(sweep, report.pairs, report.dev)])
    warn(
        [*about_headers(sweep), *about_strangers(sweep, report.counts), *report.warnings, *about_disk(report, machine)]
    )
    document = {**plain(report), "detectable": detectable(report, sweep)}
    say(document, as_json, lambda: show_plan(report, sweep, machine, out, whole=yaml))


@app.command()
def submit(
    file: File,
    cluster: ClusterFile = None,
    trials: Trials = None,
    with_: With = None,
    set_: Set = None,
    accept_changes: Accept = False,
    detach: Detach = False,
    insecure: Insecure = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run a sweep: prepare, search, track. The same sweep again is continued, or watched while it runs.

    A finished one asks before it gets more trials; `--yes` answers.
    """
    sweep = read(file, with_, set_, cluster, trials)
    asked = Submission(accept_changes, detach, insecure, yes)
    client_of(cluster, as_json=as_json, asked=asked).submit(sweep, asked)


@app.command()
def stop(
    name: SweepName = None,
    cluster: ClusterFile = None,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the driver.", min=0)] = 120,
    ended_job: Annotated[
        str | None, typer.Option("--ended-job", hidden=True, help="The Ray job that ended, for the audit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Stop a running sweep; every trial keeps its last checkpoint. Fails where its driver takes longer than `--wait`;
    a Ray job is then ended."""
    if ended_job is not None and not any_cluster(cluster).by_jobs:  # before it ran: there may be no sweep yet
        from babeltune.sweep.sync.audit import audit
        from babeltune.sweep.sync.view import StorageView

        audit(StorageView(cluster_of(cluster)), "stop", f"{name}, job {ended_job}")
        return
    client_of(cluster, as_json=as_json).stop(name, wait=wait)


@app.command()
def resume(
    name: SweepName = None,
    cluster: ClusterFile = None,
    trials: Annotated[int | None, typer.Option(help="Raise the number of trials.", min=1)] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", help="A sweep file to go on with; what it changes is shown.")
    ] = None,
    with_: With = None,
    set_: Set = None,
    accept_changes: Accept = False,
    detach: Detach = False,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Go on with a stopped or interrupted sweep, exactly where its checkpoints are.

    With `--spec` it goes on, under its id, with another file. Changes that decide no result, such as the budget, are
    taken; others are refused unless accepted, which `status` shows from then on.
    """
    if spec is None and (with_ or set_):
        raise typer.BadParameter(
            "it changes a sweep file; name one with --spec FILE", param_hint="--with" if with_ else "--set"
        )
    sweep = read(spec, with_, set_, cluster, trials) if spec is not None else None
    asked = Submission(accept_changes, detach, insecure)
    client_of(cluster, as_json=as_json, asked=asked).resume(name, Change(trials, sweep, spec or ""), asked)


@app.command()
def extend(
    trials: Annotated[int, typer.Option(help="Trials in all, more than before.", min=1)],
    name: SweepName = None,
    cluster: ClusterFile = None,
    accept_changes: Accept = False,
    detach: Detach = False,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Give a sweep more trials. It stays the same sweep, and learns from the trials that it has."""
    asked = Submission(accept_changes, detach, insecure)
    client_of(cluster, as_json=as_json, asked=asked).extend(name, trials, asked)
