"""The command check: whether queries have drifted from a model's training text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from babeltune.cli.common import ClusterFile, Json, cluster_of, out, registered, say, say_out, steps_shown
from babeltune.cli.mining import FIRST, Codec
from babeltune.cli.program import app

if TYPE_CHECKING:
    from babeltune.promotion.drift import Drift

DRIFTED = 4  # the exit code for drift: no error (1, 2) and no refusal (3)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A promoted folder, SWEEP/t0003, or NAME@ALIAS.", callback=registered)],
    queries: Annotated[Path, typer.Option(help="What users asked: text, one query a line, or a table.")],
    against: Annotated[
        Path | None, typer.Option(help="Earlier queries, which count in place of the training text.")
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="The sweep whose training text counts; MODEL's own.")] = None,
    column: Annotated[str | None, typer.Option(help="The column of the queries, if they are in a table.")] = None,
    codec: Codec = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Compare queries with the text that MODEL was trained on. Drift ends with 4, for a scheduler.

    Languages, lengths, unknown tokens and mean vectors are tested together."""
    from babeltune.apps.drift import Queries, check_queries

    if against is not None and sweep is not None:
        raise typer.BadParameter("is text in place of a sweep's; leave out --sweep", param_hint="--against")
    files = Queries(path=queries, earlier=against, column=column, codec=codec)
    with steps_shown(FIRST):
        drift = check_queries(model, files, cluster_of(cluster), sweep=sweep)
    say(drift, as_json, lambda: show(drift, model))
    raise typer.Exit(DRIFTED if drift.drifted else 0)


def show(drift: Drift, model: str) -> None:
    """Prints the tests, the worst slices, and what to do."""
    numbers = (Column(title, justify="right") for title in ("difference", "counts from", "p"))
    table = Table("what", *numbers, "drift", title=f"{drift.queries:,} queries beside {drift.trained:,} texts")
    for name, test in drift.tests.items():
        interval = "" if test.low is None else f" [{test.low:.3f}, {test.high:.3f}]"
        values = (f"{test.value:.3f}{interval}", f"{test.least:.2f}", f"{test.p:.2g}")
        table.add_row(name, *values, "yes" if test.drifted else "no")
    titles = ("share before", "of queries", "distance before", "of queries")
    numbers = (Column(title, justify="right") for title in titles)
    slices = Table("worst slices", *numbers, title="Shares, and distances from the mean of the texts before")
    for each in drift.slices:
        shares, distances = (f"{share:.1%}" for share in each.shares), (f"{value:.2f}" for value in each.distances)
        slices.add_row(each.name, *shares, *distances)
    out.print(table, slices)
    say_out(drift.words(model))
