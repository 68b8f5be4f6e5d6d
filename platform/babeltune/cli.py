"""The command line. Every command prints for people, or with `--json` one JSON document for programs."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from babeltune.errors import BabeltuneError

if TYPE_CHECKING:
    from babeltune.cluster import Cluster
    from babeltune.ledger import SweepFolder
    from babeltune.records import Sweep

app = typer.Typer(
    help="Sweep the published ways to align a multilingual sentence encoder with a teacher, and promote the best.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
PAGE = 160
"""Columns where the output is not a terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal; a file or pipe gets `PAGE` columns."""
    return Console(stderr=stderr, width=None if (sys.stderr if stderr else sys.stdout).isatty() else PAGE)


out = console()
err = console(stderr=True)
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

File = Annotated[str, typer.Argument(help="A sweep file, such as search_spaces/quickstart.yaml.", metavar="FILE")]
With = Annotated[list[str] | None, typer.Option("--with", help="A file whose sections replace the sweep file's.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, such as training.pairs=50000.")]
ClusterFile = Annotated[str | None, typer.Option("--cluster", help="A cluster file; this machine when left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
TrialName = Annotated[
    str | None, typer.Argument(help="A sweep, a trial such as SWEEP/t0003, or the id of a trial's MLflow run.")
]
SweepName = Annotated[str | None, typer.Argument(help="A sweep's id or name; the latest when left out.")]


def say(value: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Prints the value as JSON, or shows it."""
    if as_json:
        sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")
    else:
        show()


def warn(problems: Iterable[str]) -> None:
    """Says what can be done and was probably not meant."""
    for problem in problems:
        err.print(f"[yellow]warning:[/] {escape(problem)}")


def read(
    file: str,
    overlays: list[str] | None,
    assignments: list[str] | None,
    cluster: str | None,
    trials: int | None = None,
) -> Sweep:
    from babeltune.advice import about_assignments
    from babeltune.spec import read_sweep

    def fetch(model: str) -> str:
        from babeltune.promote import model_folder

        return model_folder(model, cluster_of(cluster))

    if cluster is not None:
        cluster_of(cluster)
    extra = [f"budget.trials={trials}"] if trials is not None else []
    given = [*(assignments or ()), *extra]
    sweep = read_sweep(file, overlays=overlays or (), assignments=given, reach=True, fetch=fetch)
    warn(about_assignments(sweep, given))
    return sweep


def cluster_of(file: str | None) -> Cluster:
    from babeltune.cluster import read_cluster

    return read_cluster(file)


def folder_of(name: str | None, cluster: str | None) -> SweepFolder:
    from babeltune.ledger import find_sweep

    return find_sweep(Path(cluster_of(cluster).storage).absolute(), name)


@app.command()
def plan(
    file: File,
    with_: With = None,
    set_: Set = None,
    trials: Annotated[int, typer.Option(help="How many trials to sample.", min=0, max=1000)] = 3,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Check a sweep file and show what it would do: spec, id, sampled trials, pairs left, work."""
    from babeltune.advice import about_languages, about_memory, about_projection
    from babeltune.plan import make_plan, render
    from babeltune.records import plain

    sweep = read(file, with_, set_, cluster)
    warn([*about_memory(sweep), *about_languages(sweep), *about_projection(sweep)])
    report = make_plan(sweep, samples=trials)
    say(plain(report), as_json, lambda: out.print(render(report)))


@app.command()
def submit(
    file: File,
    cluster: ClusterFile = None,
    trials: Annotated[int | None, typer.Option(help="Trials in all; replaces budget.trials.", min=1)] = None,
    with_: With = None,
    set_: Set = None,
    accept_changes: Annotated[bool, typer.Option(help="Go on although code or packages changed.")] = False,
    as_json: Json = False,
) -> None:
    """Run a sweep: prepare, search, track. The same sweep again is continued, or watched while it runs."""
    run_sweep(read(file, with_, set_, cluster, trials), cluster, accept_changes, as_json)


def with_cluster(file: str | None) -> str:
    """What a suggested command needs to find the sweep again."""
    return f" --cluster {shlex.quote(file)}" if file else ""


def run_sweep(sweep: Sweep, file: str | None, accept_changes: bool, as_json: bool) -> None:
    """Submits the sweep to the cluster of this file, or watches it where it runs already."""
    from babeltune.advice import about_gpus, about_languages, about_memory, about_precision, about_projection
    from babeltune.board import sweep_document
    from babeltune.spec import sweep_id
    from babeltune.sweep import driven_folder, submit
    from babeltune.view import attach, live, show_leaderboard

    cluster, where = cluster_of(file), with_cluster(file)
    if cluster.address == "local":
        words = [*about_memory(sweep), *about_languages(sweep), *about_projection(sweep), *about_precision(sweep)]
        warn([*words, *about_gpus(cluster)])
    running = driven_folder(sweep, cluster)
    if running is not None:
        err.print(f"sweep {running.id} is running in another process; showing it (Ctrl-C leaves it running)")
        folder = attach(running, err)
    else:
        try:
            with live(err) as watch:
                folder = submit(sweep, cluster, accept_changes=accept_changes, watch=watch)
        except KeyboardInterrupt:
            name = sweep_id(sweep)
            err.print(f"interrupted; every trial keeps its last checkpoint: `babeltune resume {name}{where}` goes on")
            raise typer.Exit(INTERRUPTED) from None
    say(sweep_document(folder), as_json, lambda: show_leaderboard(folder, out))
    if not as_json:
        if folder.state() == "stopped":
            out.print(f"stopped; nothing is lost: `babeltune resume {folder.id}{where}` goes on")
        else:
            rest = folder.read("tracking.json") or {}
            if rest.get("unsent_bytes"):
                again = f"babeltune resume {folder.id}{where}"
                out.print(f"MLflow did not take everything ({rest['trouble']}); `{again}` sends the rest")
            out.print(f"next: `babeltune promote {folder.id}{where}` · `babeltune ui{where}` shows every run in MLflow")


@app.command()
def status(
    name: SweepName = None,
    cluster: ClusterFile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing until it ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show a sweep: its state, its trials, and how far each one is."""
    from babeltune.board import sweep_document
    from babeltune.view import attach, show_status

    folder = folder_of(name, cluster)
    if follow:
        attach(folder, err)
    document = sweep_document(folder)
    say(document, as_json, lambda: show_status(folder, document["state"], document["reason"], out))


@app.command()
def stop(
    name: SweepName = None,
    cluster: ClusterFile = None,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the driver.", min=0)] = 120,
    as_json: Json = False,
) -> None:
    """Stop a running sweep; every trial keeps its last checkpoint."""
    from babeltune.board import is_driven, sweep_document
    from babeltune.errors import SweepError

    folder, where = folder_of(name, cluster), with_cluster(cluster)
    if not is_driven(folder):
        raise SweepError(f"sweep {folder.id} is not running; its state is {sweep_document(folder)['state']}")
    folder.stop_request.touch()
    deadline = time.monotonic() + wait
    while is_driven(folder) and time.monotonic() < deadline:
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


@app.command()
def resume(
    name: SweepName = None,
    cluster: ClusterFile = None,
    trials: Annotated[int | None, typer.Option(help="Raise the number of trials.", min=1)] = None,
    accept_changes: Annotated[bool, typer.Option(help="Go on although code or packages changed.")] = False,
    as_json: Json = False,
) -> None:
    """Go on with a stopped or interrupted sweep, exactly where its checkpoints are."""
    import dataclasses

    from babeltune.errors import SweepError
    from babeltune.spec import sweep_id

    folder = folder_of(name, cluster)
    sweep = folder.sweep()
    if sweep_id(sweep) != folder.id:
        raise SweepError(
            f"sweep {folder.id} was begun by another version of babeltune, for which the same file means other "
            "settings; resume it with that version, or submit its file as a new sweep"
        )
    if trials is not None:
        sweep = dataclasses.replace(sweep, budget=dataclasses.replace(sweep.budget, trials=trials))
    run_sweep(sweep, cluster, accept_changes, as_json)


@app.command()
def runs(
    name: Annotated[str | None, typer.Argument(help="A sweep's id or name; all sweeps when left out.")] = None,
    sort: Annotated[str | None, typer.Option(help="A metric, such as dev/everyday/accuracy.")] = None,
    over: Annotated[
        list[str] | None, typer.Option(help="Mean and deviation over this searched setting, such as seed.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="With --over: the columns.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --over: as a GitHub table.")] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """List the sweeps, or the leaderboard of one, or its table over seeds."""
    from babeltune.board import sweep_document
    from babeltune.ledger import leaderboard, sweep_folders
    from babeltune.records import plain
    from babeltune.table import compare
    from babeltune.view import show_comparison, show_leaderboard, show_sweeps

    if (metric or markdown) and not over:
        raise typer.BadParameter(
            "belongs to a table: add --over seed", param_hint="--metric" if metric else "--markdown"
        )
    if over:
        table = compare(folder_of(name, cluster), over, metric or (), sort)
        say(plain(table), as_json, lambda: show_comparison(table, out, markdown=markdown))
        return
    if name is not None:
        folder = folder_of(name, cluster)
        rows = leaderboard(folder, sort)
        say([plain(row) for row in rows], as_json, lambda: show_leaderboard(folder, out, sort))
        return
    folders = sweep_folders(Path(cluster_of(cluster).storage).absolute())
    documents = [sweep_document(f) for f in folders]
    say(documents, as_json, lambda: show_sweeps(documents, out))


@app.command()
def promote(
    name: Annotated[
        str | None, typer.Argument(help="A sweep, a trial such as SWEEP/t0003, or a trial's MLflow run id.")
    ] = None,
    alias: Annotated[str, typer.Option(help="The registry alias to move.")] = "champion",
    out_: Annotated[Path | None, typer.Option("--out", help="Where the model folder goes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide and say so (this opens the sealed tests); register nothing.")
    ] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Export the best checkpoint, score the exported folder afresh, and register it if its numbers hold."""
    from babeltune.promote import promote as decide
    from babeltune.records import plain
    from babeltune.view import show_decision

    chosen = cluster_of(cluster)
    decision = decide(name, chosen, alias=alias, out=out_, dry_run=dry_run)
    say(plain(decision), as_json, lambda: show_decision(decision, out))
    if decision.verdict == "refuse":
        raise typer.Exit(3)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, hub id, SWEEP/t0003, or models:/NAME@ALIAS.")],
    with_: Annotated[str, typer.Option("--with", help="A sweep file or overlay whose data section is scored.")],
    test: Annotated[bool, typer.Option("--test", help="Open the sealed test sets; this is recorded.")] = False,
    prompt: Annotated[
        str | None, typer.Option(help="Put before every sentence; the model's own when left out.")
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Score a model on the dev sets of a data section, or on its sealed test sets."""
    from babeltune.promote import evaluate_model
    from babeltune.view import show_scores

    scores = evaluate_model(model, with_, cluster_of(cluster), test=test, prompt=prompt)
    say(scores, as_json, lambda: show_scores(scores, out))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its settings.")] = None, as_json: Json = False
) -> None:
    """List the methods, or the settings of one with their sources in the paper."""
    from babeltune.view import method_document, show_method, show_methods

    if name is None:
        from babeltune.method import available

        listed = {method: method_document(method)["paper"].partition("\n")[0] for method in available()}
        say(listed, as_json, lambda: show_methods(listed, out))
    else:
        document = method_document(name)
        say(document, as_json, lambda: show_method(document, out))


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="The port on this machine.", min=1, max=65535)] = 5000,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Serve the MLflow pages of the cluster's store on this machine only."""
    from babeltune.mlflow_store import artifact_folder, serve_command

    chosen = cluster_of(cluster)
    uri = chosen.mlflow
    if uri.startswith(("http://", "https://")):
        say({"url": uri}, as_json, lambda: out.print(f"the tracking server is at {uri}"))
        return
    artifacts = artifact_folder(uri) or Path(chosen.storage).absolute() / "artifacts"
    url = f"http://127.0.0.1:{port}"
    say({"url": url, "store": uri}, as_json, lambda: out.print(f"MLflow of {uri} at {url} (Ctrl-C ends it)"))
    sys.stdout.flush()
    command, environment = serve_command(uri, artifacts, port)
    os.execvpe(command[0], command, environment)


def main() -> None:
    """Runs a command; an error of ours is one message without a traceback, and its exit code."""
    try:
        app()
    except BabeltuneError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
