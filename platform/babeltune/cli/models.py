"""The commands about models and methods: promote, evaluate, methods, ui."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from babeltune.cli.common import ClusterFile, Json, app, cluster_of, err, out, say, warn


@app.command()
def promote(
    name: Annotated[
        str | None, typer.Argument(help="A sweep, a trial such as SWEEP/t0003, or a trial's MLflow run id.")
    ] = None,
    alias: Annotated[str, typer.Option(help="The registry alias to move.")] = "champion",
    out_: Annotated[Path | None, typer.Option("--out", help="Where the model folder goes.")] = None,
    prefer: Annotated[
        str | None, typer.Option(help="Choose the trial by dev metrics, such as 'sts>=0.70, max tatoeba'.")
    ] = None,
    soup: Annotated[
        int | None,
        typer.Option(help="Average the checkpoints of so many best trials that share a start, if dev says so."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide and say so (this opens the sealed tests); register nothing.")
    ] = False,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Export the best checkpoint, score the exported folder afresh, and register it if its numbers hold.

    Where the alias has a model already, it must be better than that one. A tie moves nothing and ends with 0, a
    refusal with 3.
    """
    from babeltune.cli.render import show_decision
    from babeltune.files import plain
    from babeltune.promotion.promote import promote as decide

    chosen = cluster_of(cluster)
    decision = decide(name, chosen, alias=alias, out=out_, dry_run=dry_run, prefer=prefer, soup=soup)
    say(plain(decision), as_json, lambda: show_decision(decision, out))
    if dry_run:
        err.print("dry run: this is what would be decided; nothing was registered")
    if decision.verdict == "refuse":
        raise typer.Exit(3)


@app.command()
def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            help="A model folder, hub id, SWEEP/t0003, or models:/NAME@ALIAS; or, with --model, a sweep.",
            metavar="MODEL|SWEEP",
        ),
    ],
    with_: Annotated[
        str | None, typer.Option("--with", help="A sweep file or overlay whose data section is scored.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Score this model on the sets of the sweep that is named first.")
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
    from babeltune.cli.render import show_scores
    from babeltune.promotion.promote import evaluate_model
    from babeltune.promotion.sweep_scores import evaluate_in_sweep

    if (with_ is None) == (model is None):
        raise typer.BadParameter(
            "say what is scored: `evaluate MODEL --with FILE`, or `evaluate SWEEP --model MODEL`", param_hint="--with"
        )
    chosen = cluster_of(cluster)
    if model is not None:
        done = evaluate_in_sweep(name, model, chosen, test=test, prompt=prompt, target_model=target_model)
    else:
        assert with_ is not None
        done = evaluate_model(name, with_, chosen, test=test, prompt=prompt, target_model=target_model)
    warn(done.warnings)
    say(done.scores, as_json, lambda: show_scores(done.scores, out))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its settings.")] = None, as_json: Json = False
) -> None:
    """List the methods, or the settings of one with their sources in the paper."""
    from babeltune.cli.render import method_document, show_method, show_methods

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
    from babeltune.redaction import without_password
    from babeltune.tracking.mlflow_client import artifact_folder, serve_command

    chosen = cluster_of(cluster)
    uri, shown = chosen.mlflow, without_password(chosen.mlflow)
    if uri.startswith(("http://", "https://")):
        say({"url": shown}, as_json, lambda: out.print(f"the tracking server is at {shown}"))
        return
    artifacts = artifact_folder(uri) or chosen.folder / "artifacts"
    url = f"http://127.0.0.1:{port}"
    say({"url": url, "store": shown}, as_json, lambda: out.print(f"MLflow of {shown} at {url} (Ctrl-C ends it)"))
    sys.stdout.flush()
    command, environment = serve_command(uri, artifacts, port)
    os.execvpe(command[0], command, environment)
