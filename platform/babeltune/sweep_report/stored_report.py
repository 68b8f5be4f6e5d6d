"""The report that a sweep keeps in its folder and in MLflow: made at its end, and again after each decision."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from babeltune.errors import BabeltuneError
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.write import write_report
from babeltune.tracking.artifacts import log_report

Say = Callable[[str], object]  # gets the line that says why there is no report


def report_at_the_end(folder: SweepFolder, cluster: Cluster, say: Say) -> Path | None:
    """The report of a sweep that finished, in its folder and in MLflow. What goes wrong is one line and fails nothing.

    One that is newer than the sweep's end is not made again. MLflow gets it later if it was away at the end."""
    path, ended, is_newer = folder.path / "report.html", folder.path / "state.json", False
    with suppress(OSError):
        is_newer = path.is_file() and path.stat().st_mtime >= ended.stat().st_mtime
    return _write_and_track(folder, cluster, say, is_written=is_newer)


def report_again(sweep: str, cluster: Cluster, say: Say) -> None:
    """The report of a sweep that has one, with what promotion has decided since."""
    folder = StorageView(cluster).sweep(sweep)
    if (folder.path / "report.html").is_file():
        _write_and_track(folder, cluster, say, is_written=False)


def _write_and_track(folder: SweepFolder, cluster: Cluster, say: Say, *, is_written: bool) -> Path | None:
    """Writes the report, unless it is written, and gives it to MLflow once that has taken all else."""
    path = folder.path / "report.html"
    try:
        if not is_written:
            write_report(folder, StorageView(cluster))
        if not (folder.read("tracking.json") or {}).get("unsent_bytes"):
            log_report(cluster.mlflow, folder.sweep().name, folder.id, path, again=not is_written)
    except Exception as error:  # the sweep has finished, whatever its report lacks
        kind = "" if isinstance(error, BabeltuneError) else f"{type(error).__name__}: "
        say(" ".join(f"report: {kind}{error}".split())[:300])
    return path if path.is_file() else None
