"""The commands about models and methods: promote, evaluate, compare, export, adapter, push, methods, ui."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from babeltune.cli.common import (
    ClusterFile,
    Json,
    SweepName,
    cluster_of,
    err,
    finite,
    out,
    registered,
    say,
    say_out,
    steps_shown,
    sweep_folder,
    warn,
    warnings_said,
)
from babeltune.cli.program import app

if TYPE_CHECKING:
    from babeltune.schema.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class TrackingPage:
    """Where `ui` serves MLflow's pages."""

    url: str
    """The page of the sweep's trials."""
    store: str
    """MLflow's tracking URI, without a password."""


@app.command()
def promote(
    name: Annotated[
        str | None, typer.Argument(help="A sweep, a trial such as SWEEP/t0003, or a trial's MLflow run id.")
    ] = None,
    alias: Annotated[str | None, typer.Option(help="The registry alias to move.", show_default="champion")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="Where the model folder goes.")] = None,
    prefer: Annotated[
        str | None, typer.Option(help="Choose the trial by dev metrics, such as 'sts>=0.70, max tatoeba'.")
    ] = None,
    soup: Annotated[
        int | None,
        typer.Option(help="Average the checkpoints of this number of best trials that share a start, if dev says so."),
    ] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Each model of the sweep's front, with the aliases small, fast and best.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide and say so (this opens the sealed tests); register nothing.")
    ] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Export the best checkpoint, score the exported folder afresh, and register it if its numbers hold.

    If the alias has a model already, it must be better than that one. A tie moves nothing and ends with 0, a
    refusal with 3."""
    from babeltune import api
    from babeltune.cli.render import show_decision, show_rungs

    if front and any(option is not None for option in (alias, out_, prefer, soup)):
        words = "promotes several models, with aliases of their own; leave out --alias, --out, --prefer and --soup"
        raise typer.BadParameter(words, param_hint="--front")
    if front:
        with warnings_said(), steps_shown("reading the sweep"):
            rungs = api.promote_front(name, dry_run=dry_run, cluster=cluster)
        decisions = [decision for rung in rungs for decision in rung.decisions]
        say(rungs, as_json, lambda: show_rungs(rungs, out))
    else:
        with warnings_said(), steps_shown("reading the sweep"):
            decision = api.promote(
                name, alias=alias or "champion", out=out_, prefer=prefer, soup=soup, dry_run=dry_run, cluster=cluster
            )
        decisions = [decision]
        say(decision, as_json, lambda: show_decision(decision, out))
    if dry_run:
        err.print("dry run: this is what would be decided; nothing was registered")
    raise typer.Exit(min(decision.exit_code for decision in decisions))


@app.command()
def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            help="A model folder, hub id, SWEEP/t0003, or NAME@ALIAS; or, with --model, a sweep.",
            callback=registered,
            metavar="MODEL|SWEEP",
        ),
    ],
    with_: Annotated[
        str | None, typer.Option("--with", help="A sweep file or overlay whose data section is scored.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Score this model on the sets of the sweep that is named first.", callback=registered
        ),
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Open the sealed test sets; this is recorded.")] = False,
    prompt: Annotated[
        str | None, typer.Option(help="Put before every sentence that MODEL encodes; its own when left out.")
    ] = None,
    target_model: Annotated[
        str | None,
        typer.Option(
            "--target-model",
            help="What encodes the right side of bitext and mining sets, such as the teacher of MODEL.",
        ),
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Score a model on the dev sets of a data section or of a sweep, or on its sealed test sets."""
    from babeltune import api
    from babeltune.cli.render import show_scores

    if (with_ is None) == (model is None):
        raise typer.BadParameter(
            "say what is scored: `evaluate MODEL --with FILE`, or `evaluate SWEEP --model MODEL`", param_hint="--with"
        )
    with steps_shown("loading the model"):
        done = api.evaluate(
            name if model is None else model,
            data=with_,
            sweep=None if model is None else name,
            test=test,
            prompt=prompt,
            target_model=target_model,
            cluster=cluster,
        )
    warn(done.warnings)
    say(done.scores, as_json, lambda: show_scores(done.scores, out))


@app.command()
def compare(
    first: Annotated[
        str,
        typer.Argument(help="A model folder, hub id, SWEEP/t0003, or NAME@ALIAS.", metavar="A", callback=registered),
    ],
    second: Annotated[
        str, typer.Argument(help="The model that is compared with it.", metavar="B", callback=registered)
    ],
    sweep: Annotated[
        str | None, typer.Option(help="The sweep whose dev sets count; that of A or B, if one is a trial.")
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Compare two models on a sweep's dev sets, sentence by sentence, with intervals."""
    from babeltune import api
    from babeltune.cli.render import show_compared

    with steps_shown("loading the models"):
        comparison = api.compare(first, second, sweep=sweep, cluster=cluster)
    warn(comparison.warnings)
    say(comparison, as_json, lambda: show_compared(comparison, out))


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A folder, SWEEP/t0003, or NAME@ALIAS.", callback=registered)],
    out_: Annotated[Path, typer.Option("--out", help="Where the new folder goes.")],
    format_: Annotated[
        Literal["static", "onnx"] | None,
        typer.Option("--format", help="A table for numpy, or a graph for onnxruntime; by what MODEL is."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Eight bits a number; of a table unless --int4, and not of a graph else.")
    ] = False,
    int4: Annotated[bool, typer.Option("--int4", help="Four bits a number, of a table.")] = False,
    dim: Annotated[int | None, typer.Option(help="Keep the first numbers of each vector.", min=1)] = None,
    sweep: Annotated[str | None, typer.Option(help="The sweep whose dev sets count; the model's own.")] = None,
    most_lost: Annotated[
        float, typer.Option(help="What a mean of scores may lose; else nothing is written.", callback=finite)
    ] = 0.01,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Make a static model a table of whole numbers, which numpy reads, or a Transformer a graph for onnxruntime.

    Both are scored on a sweep's dev sets. A loss above --most-lost is a refusal, and ends with 3."""
    from babeltune import api
    from babeltune.cli.render import show_exported

    if int8 and int4:
        raise typer.BadParameter("and --int4 exclude each other; give one of them", param_hint="--int8")
    if int4 and format_ == "onnx":
        raise typer.BadParameter("is for tables of static models; give --int8, or neither", param_hint="--int4")
    bits: Literal[4, 8] | None = 4 if int4 else 8 if int8 else None
    with steps_shown("loading the model"):
        done = api.export(
            model, out_, format=format_, bits=bits, dim=dim, sweep=sweep, most_lost=most_lost, cluster=cluster
        )
    warn(done.comparison.warnings)
    say(done, as_json, lambda: show_exported(done, most_lost, out))
    raise typer.Exit(0 if done.folder is not None else 3)


@app.command()
def adapter(
    old: Annotated[
        str, typer.Argument(help="The model of the index: a folder, SWEEP/t0003, or NAME@ALIAS.", callback=registered)
    ],
    new: Annotated[str, typer.Argument(help="The model that encodes queries from now on.", callback=registered)],
    out_: Annotated[Path, typer.Option("--out", help="Where the new folder goes.")],
    sweep: Annotated[str | None, typer.Option(help="The sweep whose text and dev sets count; NEW's own.")] = None,
    least: Annotated[
        float, typer.Option(help="The share of the recall that must be kept; else nothing is written.", callback=finite)
    ] = 0.95,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Make NEW's queries fit an index of OLD's vectors, which then need not be made again.

    A recall below --least is a refusal, and ends with 3."""
    from babeltune.cli.render import show_adapted
    from babeltune.promotion.adapter import make_adapter

    with steps_shown("loading the models"):
        done = make_adapter(old, new, out_, cluster_of(cluster), sweep=sweep, least=least)
    say(done, as_json, lambda: show_adapted(done, least, out))
    raise typer.Exit(0 if done.folder is not None else 3)


@app.command()
def push(
    model: Annotated[
        str, typer.Argument(help="A model folder or NAME@ALIAS, with the card of its promotion.", callback=registered)
    ],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME of the Hugging Face hub, or a new folder such as ./out.")],
    license_: Annotated[
        str | None, typer.Option("--license", help="The model's licence, an id of the hub such as apache-2.0.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository open to all, not private.")] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Send a promoted model to a repository of the hub, with its card: licence, languages and every sealed figure.

    The token is that of the variable HF_TOKEN."""
    from babeltune.promotion.push import push as send

    with steps_shown("reading the model"):
        done = send(model, repo, cluster_of(cluster), license=license_, public=public)
    warn(done.warnings)
    words = f"{len(done.files)} files ({done.license}) are in {done.url}"
    say(done, as_json, lambda: say_out(words))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its settings.")] = None, as_json: Json = False
) -> None:
    """List the methods, or the settings of one with their sources in the paper."""
    from babeltune.cli.render import method_document, show_method, show_methods

    if name is None:
        from babeltune.method import available

        listed = {method: method_document(method).paper.partition("\n")[0] for method in available()}
        say(listed, as_json, lambda: show_methods(listed, out))
    else:
        document = method_document(name)
        say(document, as_json, lambda: show_method(document, out))


@app.command()
def ui(
    name: SweepName = None,
    port: Annotated[int, typer.Option(help="The port on this machine.", min=1, max=65535)] = 5000,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the link in a browser; by default on a desktop.")
    ] = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Serve the MLflow pages of the cluster's store on this machine only, and link to a sweep's trials, the best first.

    Without a name it is the latest sweep."""
    from babeltune.redaction import without_password
    from babeltune.tracking.mlflow_client import artifact_folder, serve_command

    chosen = cluster_of(cluster)
    uri, shown = chosen.mlflow, without_password(chosen.mlflow)
    served = uri.startswith(("http://", "https://"))
    if not served:
        check_port(port)
    page = page_of(name, cluster, chosen)
    url = (shown.rstrip("/") if served else f"http://127.0.0.1:{port}") + page
    place = "the tracking server is at" if served else f"MLflow of {shown} at"
    words = f"{place} {url}" + ("" if served else " (Ctrl-C ends it)")
    say(TrackingPage(url=url, store=shown), as_json, lambda: say_out(words))
    sys.stdout.flush()
    open_later(url, choice=open_, as_json=as_json)
    if not served:
        command, environment = serve_command(uri, artifact_folder(uri) or chosen.folder / "artifacts", port, page)
        os.execvpe(command[0], command, environment)


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """`SweepError` if another program listens on the port."""
    from babeltune.errors import SweepError

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((host, port))
        except OSError as error:
            raise SweepError(
                f"--port {port}: {host}:{port} cannot be used ({error.strerror}); end what listens there, or give "
                "another port"
            ) from error


def page_of(name: str | None, file: str | None, cluster: Cluster) -> str:
    """The page of the sweep's trials; that of all experiments where nobody names a sweep and there is none, or where
    MLflow has no run of the latest one."""
    from babeltune.errors import BabeltuneError
    from babeltune.tracking.mlflow_client import EXPERIMENTS
    from babeltune.tracking.sweep_runs import trials_page

    try:
        folder = sweep_folder(name, file)
        sweep = folder.sweep()
        return trials_page(cluster.mlflow, sweep.name, folder.id, sweep.objectives[0], tuple(sweep.parameters))
    except BabeltuneError as error:
        if name is not None:
            raise
        warn([str(error)])
        return EXPERIMENTS


def open_later(url: str, *, choice: bool | None, as_json: bool) -> None:
    """Opens the link in a browser once the server answers, from a process of its own: this one becomes the server.

    With `choice` None, only for a person who reads what is printed at a desktop."""
    desktop = sys.platform in ("darwin", "win32") or any(os.environ.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not (choice or (choice is None and not as_json and desktop and sys.stdout.isatty())):
        return
    wait = (
        "import sys, time, urllib.request, webbrowser\n"
        "for _ in range(120):\n"
        "    try:\n"
        "        urllib.request.urlopen(sys.argv[1].partition('/#')[0] + '/health', timeout=5)\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.5)\n"
        "webbrowser.open(sys.argv[1])\n"
    )
    subprocess.Popen([sys.executable, "-c", wait, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
