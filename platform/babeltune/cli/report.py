"""The command that writes a sweep's report, and the report at the end of every sweep."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from babeltune.cli.common import ClusterFile, Json, SweepName, app, cluster_of, err, folder_of, out, say, warn

if TYPE_CHECKING:
    from babeltune.schema.cluster import Cluster
    from babeltune.sweep.state.folder import SweepFolder


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

    Every sweep that finishes has one in its folder.
    """
    from babeltune.files import plain
    from babeltune.sweep.sync.view import StorageView
    from babeltune.sweep_report.write import check_place, write_report

    if out_ is not None:
        check_place(out_)
    written = write_report(folder_of(name, cluster), StorageView(cluster_of(cluster)), format_, out_)
    warn(note for note in written.notes if "damaged" in note)
    say(
        {**plain(written), "path": str(written.path)},
        as_json,
        lambda: out.print(f"report: {written.path}", markup=False, highlight=False, soft_wrap=True),
    )


def report_at_the_end(folder: SweepFolder, cluster: Cluster) -> Path | None:
    """The report of a sweep that finished, in its folder and in MLflow. What goes wrong is one line and fails nothing.

    One that is newer than the sweep's end is not made again.
    """
    path, ended = folder.path / "report.html", folder.path / "state.json"
    with suppress(OSError):
        if path.stat().st_mtime >= ended.stat().st_mtime:
            return path
    return _made(folder, cluster)


def report_again(sweep: str, cluster: Cluster) -> None:
    """The report of a sweep that has one, with what promotion has decided since."""
    from babeltune.sweep.sync.view import StorageView

    folder = StorageView(cluster).sweep(sweep)
    if (folder.path / "report.html").is_file():
        _made(folder, cluster)


def _made(folder: SweepFolder, cluster: Cluster) -> Path | None:
    path = folder.path / "report.html"
    try:
        from babeltune.sweep.sync.view import StorageView
        from babeltune.sweep_report.write import write_report
        from babeltune.tracking.artifacts import log_report

        write_report(folder, StorageView(cluster))
        if not (folder.read("tracking.json") or {}).get("unsent_bytes"):
            log_report(cluster.mlflow, folder.sweep().name, folder.id, path)
    except Exception as error:  # the sweep has finished, whatever its report lacks
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        err.print(f"report: {words}", markup=False, highlight=False, soft_wrap=True)
    return path if path.is_file() else None
