"""The commands that write a sweep as one file: its report, or its study."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from babeltune.cli.common import (
    ClusterFile,
    Json,
    SweepName,
    cluster_of,
    say,
    say_line,
    say_out,
    steps_shown,
    sweep_folder,
    warn,
)
from babeltune.cli.program import app
from babeltune.errors import plural
from babeltune.schema.paths import sqlite_url


@dataclass(frozen=True, kw_only=True)
class WrittenStudy:
    """The outcome of `study`."""

    path: str
    trials: int


@app.command()
def report(
    name: SweepName = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The file; report.html in the sweep's folder.")] = None,
    format_: Annotated[
        Literal["html", "md", "png"], typer.Option("--format", help="A web page, Markdown, or a picture of the page.")
    ] = "html",
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Write a sweep's report: which trial to take and why, in one file that needs no network.

    Every sweep that finishes has one in its folder."""
    from babeltune.sweep.sync.view import StorageView
    from babeltune.sweep_report.write import check_report_place, complete_examples, write_report

    if out_ is not None:
        check_report_place(out_, format_)
    with steps_shown("making the report"):
        folder, view = sweep_folder(name, cluster), StorageView(cluster_of(cluster))
        complete_examples(folder, view, say_line)
        written = write_report(folder, view, format_, out_)
    warn(note for note in written.notes if "damaged" in note)
    say(written, as_json, lambda: say_out(f"report: {written.path}"))


@app.command()
def study(
    name: SweepName = None,
    *,
    out_: Annotated[Path, typer.Option("--out", help="A new file, such as study.db.")],
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Write a sweep's Optuna study, for optuna-dashboard or a notebook. A sweep itself needs none."""
    from babeltune.files import check_place
    from babeltune.sweep.search.study import write_study

    check_place(out_)
    folder = sweep_folder(name, cluster)
    trials = write_study(folder.sweep(), folder.path, out_)
    say(
        WrittenStudy(path=str(out_), trials=trials),
        as_json,
        lambda: say_line(f"{plural(trials, 'trial')} in {out_}: optuna-dashboard {sqlite_url(out_.absolute())}"),
    )
