"""The commands that drive sweeps: plan, submit, stop, resume, extend."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Annotated

import typer

from babeltune.cli.common import (
    ClusterFile,
    File,
    Json,
    Set,
    SweepName,
    With,
    any_cluster,
    app,
    cluster_of,
    err,
    folder_of,
    not_running,
    out,
    read,
    say,
    warn,
    with_cluster,
)
from babeltune.program import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from babeltune.cli.remote import Remote
    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep
    from babeltune.sweep.state.folder import SweepFolder

Accept = Annotated[bool, typer.Option("--accept-changes", help="Go on although code or packages changed.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="On a cluster that takes jobs: return at once, do not follow the log.")
]
Trials = Annotated[int | None, typer.Option(help="Trials in all; replaces budget.trials.", min=1)]
Insecure = Annotated[bool, typer.Option("--insecure", help="Use a cluster that wants no token.")]
NO_JOBS = "needs a cluster that takes jobs: --cluster with a file whose address is a dashboard's http://… or https://…"


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
    from babeltune.planning.warnings import about_corpus, about_plugins, about_queue, about_sweep

    sweep = read(file, with_, set_, cluster, trials)
    warn(about_sweep(sweep))
    if any_cluster(cluster).by_jobs:
        warn(about_plugins(plugins_of(sweep)))
    from babeltune.cli.plan_page import detectable, machine_of, show_plan

    machine = machine_of(any_cluster(cluster), sweep)
    report = make_plan(sweep, samples=samples, machine=machine if calibrate else None)
    warn([*about_queue(sweep, report.anchors), *about_corpus(sweep, report.pairs, report.dev), *report.warnings])
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
    as_json: Json = False,
) -> None:
    """Run a sweep: prepare, search, track. The same sweep again is continued, or watched while it runs."""
    sweep = read(file, with_, set_, cluster, trials)
    remote = jobs_of(cluster, detach=detach, insecure=insecure)
    if remote is None:
        run_sweep(sweep, cluster, accept_changes, as_json, insecure=insecure)
        return
    from babeltune.cli.remote import submit_there
    from babeltune.planning.warnings import about_sweep

    warn(about_sweep(sweep))
    submit_there(remote, sweep, accept_changes=accept_changes, detach=detach, as_json=as_json)


def jobs_of(cluster: str | None, *, detach: bool, insecure: bool) -> Remote | None:
    """The cluster where it takes jobs; the options that only such a one understands are refused elsewhere."""
    from babeltune.cli.remote import remote_of

    remote = remote_of(cluster, insecure=insecure)
    if remote is None and detach:
        raise typer.BadParameter(NO_JOBS, param_hint="--detach")
    if remote is None and insecure and any_cluster(cluster).address == "local":
        raise typer.BadParameter("is for a cluster that runs already", param_hint="--insecure")
    return remote


def run_sweep(
    sweep: Sweep,
    file: str | None,
    accept_changes: bool,
    as_json: bool,
    *,
    into: str | None = None,
    insecure: bool = False,
) -> None:
    """Submits the sweep to the cluster of this file, or watches it where it runs already. `into` is the id of one that
    goes on with this spec."""
    from babeltune.planning.sweep_file import sweep_id

    name = into or sweep_id(sweep)
    err.print(f"sweep {name}", markup=False, highlight=False)  # what follows takes some seconds to import
    from babeltune.cli.render import show_leaderboard
    from babeltune.cli.report import report_at_the_end
    from babeltune.planning.warnings import about_gpus, about_precision, about_sweep
    from babeltune.sweep.driver.run import submit
    from babeltune.sweep.state.progress import is_driven, sweep_document
    from babeltune.sweep.sync.view import StorageView

    cluster, where = cluster_of(file), with_cluster(file)
    if into is None and not is_driven(known := StorageView(cluster).at(name)):
        show_taken(known, sweep, accept_changes=accept_changes)
    if cluster.address == "local":
        warn([*about_sweep(sweep), *about_precision(sweep), *about_gpus(cluster)])
    run = functools.partial(submit, sweep, cluster, into=into, accept_changes=accept_changes, insecure=insecure)
    folder = watched_or_run(name, sweep, cluster, where, run)
    state = folder.state()
    made = report_at_the_end(folder, cluster) if state == "finished" else None
    say(sweep_document(folder), as_json, lambda: show_leaderboard(folder, out))
    if not as_json:
        say_what_next(folder, state, where, made)
    if state == "interrupted":  # while it was watched; as its driver ends
        raise typer.Exit(INTERRUPTED)


def watched_or_run(
    name: str, sweep: Sweep, cluster: Cluster, where: str, run: Callable[..., SweepFolder]
) -> SweepFolder:
    """The sweep's folder once it has ended: watched if another process drives it, else run in this one."""
    from babeltune.cli.render import attach, live
    from babeltune.errors import SweepError
    from babeltune.planning.space import within_grid
    from babeltune.signals import acknowledged
    from babeltune.sweep.driver.run import driven_folder
    from babeltune.sweep.state.fencing import DrivenError
    from babeltune.sweep.state.progress import sweep_document
    from babeltune.sweep.state.provenance import spec_changes

    while True:
        running = driven_folder(name, cluster)
        if running is not None:
            err.print(f"sweep {running.id} is running in another process; showing it (Ctrl-C leaves it running)")
            for change in spec_changes(running, within_grid(sweep)):
                err.print(f"not taken while it runs: {change}", markup=False, highlight=False, soft_wrap=True)
            folder = attach(running, err)
            state = folder.state()  # as its driver said
            if state == "failed":
                raise SweepError(f"sweep {folder.id} failed: {sweep_document(folder)['reason']}")
            if state in ("finished", "stopped", "interrupted"):
                return folder
            err.print(f"the driver of sweep {folder.id} is gone; going on with it")
        try:
            with acknowledged(), live(err) as watch:
                return run(watch=watch)
        except DrivenError:  # by a driver that began at the same moment
            if driven_folder(name, cluster) is None:
                raise
        except KeyboardInterrupt:
            err.print(f"interrupted; `babeltune resume {name}{where}` goes on from what is saved")
            raise typer.Exit(INTERRUPTED) from None


def say_what_next(folder: SweepFolder, state: str, where: str, report: Path | None) -> None:
    """What to do with a sweep that has ended, and where its report is."""
    if state in ("stopped", "interrupted"):
        out.print(f"{state}; nothing is lost: `babeltune resume {folder.id}{where}` goes on")
        return
    rest = folder.read("tracking.json") or {}
    if rest.get("unsent_bytes"):
        again = f"babeltune resume {folder.id}{where}"
        out.print(f"MLflow did not take everything ({rest['trouble']}); `{again}` sends the rest")
    if report is not None:
        out.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"next: `babeltune promote {folder.id}{where}` · `babeltune ui{where}` shows every run in MLflow")


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
    from babeltune.cli.remote import remote_of, stop_there
    from babeltune.sweep.state.progress import is_driven, sweep_document
    from babeltune.sweep.sync.audit import audit
    from babeltune.sweep.sync.view import StorageView

    remote = remote_of(cluster)
    if remote is not None:
        stop_there(remote, name, wait=wait, as_json=as_json)
        return
    if ended_job is not None:  # before it ran: there may be no sweep in the storage yet
        audit(StorageView(cluster_of(cluster)), "stop", f"{name}, job {ended_job}")
        return
    folder, where = folder_of(name, cluster), with_cluster(cluster)
    if not is_driven(folder):
        state = sweep_document(folder)["state"]
        soon = "; if it was started just now, try again in a few seconds" if state in ("new", "interrupted") else ""
        raise not_running(folder.id, state, soon)
    view = StorageView(cluster_of(cluster))
    view.ask_to_stop(folder)
    audit(view, "stop", folder.id)
    err.print(f"asked sweep {folder.id} to stop; waiting for its driver, {wait} s at most")
    deadline, said = time.monotonic() + wait, False
    while is_driven(folder) and time.monotonic() < deadline:
        if folder.state() == "stopped" and not said:
            err.print("stopped; its driver is ending Ray")
            said = True
        time.sleep(0.3)
    stopped = not is_driven(folder)
    say(
        {"sweep": folder.id, "stopped": stopped},
        as_json,
        lambda: out.print(
            f"sweep {folder.id} stopped; `babeltune resume {folder.id}{where}` goes on"
            if stopped
            else f"sweep {folder.id} was asked to stop and has not yet; `babeltune status {folder.id}{where}` shows it"
        ),
    )
    if not stopped:
        raise typer.Exit(1)


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
    from babeltune.cli.remote import continue_there
    from babeltune.errors import SweepError
    from babeltune.sweep.state.progress import is_driven

    if spec is None and (with_ or set_):
        raise typer.BadParameter(
            "it changes a sweep file; name one with --spec FILE", param_hint="--with" if with_ else "--set"
        )
    sweep = read(spec, with_, set_, cluster, trials) if spec is not None else None
    changed = ("budget", f"--trials {trials}") if trials is not None else None
    if spec is not None:
        changed = ("spec", f"--spec {spec}")
    remote = jobs_of(cluster, detach=detach, insecure=insecure)
    if remote is not None:
        job = remote.jobs.find(name)
        if changed and job is not None and job.live:
            raise SweepError(running_words(job.sweep, remote.where, *changed))
        continue_there(
            remote,
            "resume",
            name,
            trials=trials,
            spec=sweep,
            accept_changes=accept_changes,
            detach=detach,
            as_json=as_json,
        )
        return
    folder = folder_of(name, cluster)
    if changed and is_driven(folder):
        raise SweepError(running_words(folder.id, with_cluster(cluster), *changed))
    if sweep is None:
        sweep = recorded(folder, trials)
    else:
        show_taken(folder, sweep, accept_changes=accept_changes)
    run_sweep(sweep, cluster, accept_changes, as_json, into=folder.id, insecure=insecure)


def show_taken(folder: SweepFolder, sweep: Sweep, *, accept_changes: bool) -> None:
    """Says what a given spec changes without deciding a result, unless it is refused for what decides one."""
    from babeltune.planning.space import within_grid
    from babeltune.sweep.state.provenance import spec_changes

    changes = spec_changes(folder, within_grid(sweep))
    refused = any(change.decides for change in changes) and not accept_changes
    for change in changes:
        if not (change.decides or refused):
            err.print(f"taken: {change}", markup=False, highlight=False, soft_wrap=True)


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
    """Give a sweep more trials. It stays the same sweep: what it found leads what it proposes next."""
    from babeltune.cli.remote import continue_there
    from babeltune.errors import SpecError, SweepError
    from babeltune.sweep.state.progress import is_driven

    remote = jobs_of(cluster, detach=detach, insecure=insecure)
    if remote is not None:
        job = remote.jobs.find(name)
        if job is not None and job.live:
            raise SweepError(running_words(job.sweep, remote.where, "budget", f"--trials {trials}", "extend"))
        continue_there(
            remote, "extend", name, trials=trials, accept_changes=accept_changes, detach=detach, as_json=as_json
        )
        return
    folder = folder_of(name, cluster)
    before = folder.sweep().budget.trials
    if trials <= before:
        raise SpecError(f"--trials {trials}: sweep {folder.id} has a budget of {before} trials; give more than that")
    if is_driven(folder):
        raise SweepError(running_words(folder.id, with_cluster(cluster), "budget", f"--trials {trials}", "extend"))
    run_sweep(recorded(folder, trials), cluster, accept_changes, as_json, into=folder.id, insecure=insecure)


def running_words(sweep: str, where: str, what: str, options: str, then: str = "resume") -> str:
    return (
        f"sweep {sweep} is running with the {what} that it began with; `babeltune stop {sweep}{where}`, then "
        f"`babeltune {then} {sweep} {options}{where}`: nothing is lost"
    )


def recorded(folder: SweepFolder, trials: int | None) -> Sweep:
    """The sweep as its folder has it, with so many trials."""
    import dataclasses

    from babeltune.errors import SpecError, SweepError
    from babeltune.planning.sweep_file import sweep_id
    from babeltune.schema.document import LARGEST

    sweep = folder.sweep()
    if sweep_id(sweep) != (folder.read("facts.json") or {}).get("spec", folder.id):
        cut_off = "; if it was cut off as it took another file, give that again: --spec FILE --accept-changes"
        raise SweepError(
            f"sweep {folder.id} was begun by another version of babeltune, for which the same file means other "
            f"settings; resume it with that version, or submit its file as a new sweep"
            f"{cut_off if folder.accepted() else ''}"
        )
    if trials is None:
        return sweep
    if trials > LARGEST:
        raise SpecError(f"--trials {trials}: must be from 1 to {LARGEST:,}")
    if trials < sweep.budget.trials:
        raise SpecError(f"--trials {trials}: sweep {folder.id} has a budget of {sweep.budget.trials}; give no less")
    return dataclasses.replace(sweep, budget=dataclasses.replace(sweep.budget, trials=trials))
