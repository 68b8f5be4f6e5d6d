"""Runs a sweep in this process, or shows one that another process runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from babeltune.cli.common import agreed, cluster_of, err, out, say, say_line, say_out, warn, with_cluster
from babeltune.errors import SpecError, SweepError, plural
from babeltune.program import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep
    from babeltune.sweep.state.folder import SweepFolder

QUICKSTART = "search_spaces/quickstart.yaml"
NO_JOBS = "needs a cluster that takes jobs: --cluster with a file whose address is a dashboard's http://… or https://…"


@dataclass(frozen=True)
class SubmitOptions:
    """How a sweep is submitted, or gone on with."""

    accept_changes: bool = False  # whether it goes on although code or packages changed
    detach: bool = False  # whether the command returns at once. Only a cluster that takes jobs can do that.
    insecure: bool = False  # whether a cluster that wants no token is used all the same
    over_quota: bool = False  # whether it runs although the user's quota is spent
    yes: bool = False  # whether a finished sweep is trained on without a question


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The state of a sweep that was asked to stop."""

    sweep: str
    stopped: bool
    """Whether its driver has ended in time."""


def check_submission(submission: SubmitOptions, file: str | None) -> None:
    """`typer.BadParameter` for options that another kind of cluster understands."""
    if submission.detach:  # a cluster that takes jobs has got the command by now
        raise typer.BadParameter(NO_JOBS, param_hint="--detach")
    if submission.insecure and cluster_of(file).address == "local":
        raise typer.BadParameter("is for a cluster that runs already", param_hint="--insecure")
    if submission.over_quota and not cluster_of(file).quota.over_quota:
        raise typer.BadParameter("`quota` of the cluster file has no `over_quota: true`", param_hint="--over-quota")


def run_sweep(
    sweep: Sweep, file: str | None, submission: SubmitOptions, *, as_json: bool, into: str | None = None
) -> None:
    """Submits the sweep to the cluster of this file, or watches it if it runs already. `into` is the id of one that
    goes on with this spec."""
    from babeltune.planning.recorded import sweep_id

    name, cluster = into or sweep_id(sweep), cluster_of(file)
    err.print(f"sweep {name}", markup=False, highlight=False)  # what follows takes some seconds to import
    try:
        _run_sweep(name, sweep, file, submission, as_json=as_json, into=into)
    except KeyboardInterrupt:  # after a Ctrl-C, SIGTERM or SIGHUP, wherever it came
        begun = (cluster.folder / "sweeps" / name / "sweep.json").exists()
        goes_on = f"`babeltune resume {name}{with_cluster(file)}` goes on from what is saved"
        words = goes_on if begun else "nothing has begun yet; the same command begins it"
        err.print(f"interrupted; {words}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _run_sweep(
    name: str, sweep: Sweep, file: str | None, submission: SubmitOptions, *, as_json: bool, into: str | None
) -> None:
    """`run_sweep`, after its name was shown."""
    from babeltune.cli.render import show_leaderboard
    from babeltune.planning.warnings import about_gpus, about_precision, about_sweep
    from babeltune.sweep.driver.run import submit
    from babeltune.sweep.state.progress import is_driven, sweep_document, sweep_facts
    from babeltune.sweep.sync.view import StorageView
    from babeltune.sweep_report.write import report_at_the_end

    cluster, where = cluster_of(file), with_cluster(file)
    if into is None and not is_driven(earlier := StorageView(cluster).at(name)):
        ask_to_train_on(earlier, sweep, where, yes=submission.yes)
        show_taken(earlier, sweep, accept_changes=submission.accept_changes)
    if cluster.address == "local":
        warn([*about_sweep(sweep), *about_precision(sweep), *about_gpus(cluster)])
    chosen = {name: getattr(submission, name) for name in ("accept_changes", "insecure", "over_quota")}
    run = functools.partial(submit, sweep, cluster, into=into, **chosen)
    folder = watched_or_run(name, sweep, cluster, run)
    state = folder.state()
    report_file = report_at_the_end(folder, cluster, say_line) if state == "finished" else None
    say(sweep_document(folder) if as_json else sweep_facts(folder), as_json, lambda: show_leaderboard(folder, out))
    if not as_json:
        say_what_next(folder, state, where, report_file)
    if state == "interrupted":  # while it was watched; as its driver ends
        raise typer.Exit(INTERRUPTED)


def watched_or_run(name: str, sweep: Sweep, cluster: Cluster, run: Callable[..., SweepFolder]) -> SweepFolder:
    """The sweep's folder once it has ended: watched if another process drives it, else run in this one."""
    from babeltune.cli.terminal_view import attach, live
    from babeltune.planning.space import within_grid
    from babeltune.signals import acknowledged
    from babeltune.sweep.driver.run import driven_folder
    from babeltune.sweep.state.fencing import DrivenError
    from babeltune.sweep.state.progress import sweep_facts
    from babeltune.sweep.state.provenance import spec_changes

    while True:
        running = driven_folder(name, cluster)
        if running is not None:
            err.print(f"sweep {running.id} is running in another process; showing it (Ctrl-C leaves it running)")
            for change in spec_changes(running, within_grid(sweep)):
                err.print(f"not taken while it runs: {change}", markup=False, highlight=False, soft_wrap=True)
            try:
                folder = attach(running, err)
            except KeyboardInterrupt:
                shown = f"`babeltune status -f {running.id}` shows it"
                err.print(f"sweep {running.id} goes on in the other process; {shown}")
                raise typer.Exit(INTERRUPTED) from None
            state = folder.state()  # as its driver said
            if state == "failed":
                raise SweepError(f"sweep {folder.id} failed: {sweep_facts(folder).reason}")
            if state in ("finished", "stopped", "interrupted"):
                return folder
            err.print(f"the driver of sweep {folder.id} is gone; going on with it")
        try:
            with acknowledged(), live(err) as watch:
                return run(watch=watch)
        except DrivenError:  # by a driver that began at the same moment
            if driven_folder(name, cluster) is None:
                raise


def say_what_next(folder: SweepFolder, state: str, where: str, report: Path | None) -> None:
    """The next steps with a sweep that has ended, and the place of its report."""
    if state in ("stopped", "interrupted"):
        say_out(f"{state}; nothing is lost: `babeltune resume {folder.id}{where}` goes on")
        return
    rest = folder.read("tracking.json") or {}
    if rest.get("unsent_bytes"):
        again = f"babeltune resume {folder.id}{where}"
        say_out(f"MLflow did not take everything ({rest['trouble']}); `{again}` sends the rest")
    if report is not None:
        say_out(f"report: {report}")
    from babeltune.sweep.state.leaderboard import winner

    try:
        winner(folder)
        out.print(f"next: `babeltune promote {folder.id}{where}` · `babeltune ui{where}` shows every run in MLflow")
    except SweepError as error:
        warn([str(error)])


def show_taken(folder: SweepFolder, sweep: Sweep, *, accept_changes: bool) -> None:
    """Says what a given spec changes without deciding a result, unless it is refused for what decides one."""
    from babeltune.planning.space import within_grid
    from babeltune.sweep.state.provenance import spec_changes

    changes = spec_changes(folder, within_grid(sweep))
    refused = any(change.decides for change in changes) and not accept_changes
    for change in changes:
        if not (change.decides or refused):
            err.print(f"taken: {change}", markup=False, highlight=False, soft_wrap=True)


def ask_to_train_on(folder: SweepFolder, sweep: Sweep, where: str, *, yes: bool) -> None:
    """Asks before a sweep that has finished gets more trials. `SpecError` if nobody can answer."""
    if yes or folder.state() != "finished" or not folder.path.exists():
        return
    before, trials = folder.sweep().budget.trials, sweep.budget.trials
    if trials > before:
        finished = f"sweep {folder.id} is finished with {plural(before, 'trial')}"
        extends = f"`babeltune extend --trials {trials} {folder.id}{where}` trains on, and so does --yes"
        agreed(f"{finished}; train on up to {trials:,}?", f"{finished}, and this asks for {trials:,}; {extends}")


def running_words(sweep: str, where: str, noun: str, options: str, then: str = "resume") -> str:
    return (
        f"sweep {sweep} is running with the {noun} that it began with; `babeltune stop {sweep}{where}`, then "
        f"`babeltune {then} {sweep} {options}{where}`: nothing is lost"
    )


def recorded_sweep(folder: SweepFolder, trials: int | None) -> Sweep:
    """The sweep as its folder has it, with this number of trials."""
    import dataclasses

    from babeltune.planning.recorded import sweep_id
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


def say_stopped(sweep: str, stopped: bool, where: str, *, as_json: bool) -> int:
    """Says whether a sweep has stopped. The exit code."""
    words = (
        f"sweep {sweep} stopped; `babeltune resume {sweep}{where}` goes on"
        if stopped
        else f"sweep {sweep} was asked to stop and has not yet; `babeltune status {sweep}{where}` shows it"
    )
    say(Stopped(sweep=sweep, stopped=stopped), as_json, lambda: say_out(words))
    return int(not stopped)
