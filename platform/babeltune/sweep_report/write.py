"""Makes a sweep's report and puts it where it belongs: a file that the user names, or the sweep's folder.

The report in the folder is made at the sweep's end, and again after each decision. MLflow gets it, too."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from babeltune.errors import BabeltuneError, ObjectStoreError, SpecError, SweepError
from babeltune.files import check_place, write_out
from babeltune.promotion.decisions import settle_quietly
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.examples import EXAMPLES, read_examples
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from babeltune.sweep_report.page import document
from babeltune.sweep_report.picture import browser, picture
from babeltune.sweep_report.record import MOST_ROWS, SweepReport
from babeltune.sweep_report.render import Format, render
from babeltune.tracking.sweep_runs import log_report

LARGEST = 2_000_000  # bytes of a report. Above it, tables and charts show fewer trials.
PICTURED_ROWS = 80  # trials that tables and charts of a picture show at most
FEWEST_ROWS = 20  # below this many trials nothing is left out for the size
Say = Callable[[str], object]  # gets the line that says why there is no report
AnyFormat = Literal["html", "md", "png"]  # forms of a report: a web page, Markdown, or a picture of the page


@dataclass(frozen=True, kw_only=True)
class Written:
    """A report that was written."""

    sweep: str
    path: Path
    bytes: int
    winner: str
    notes: tuple[str, ...]


def page(report: SweepReport, format_: Format) -> str:
    """The report as text, with as many trials as its size allows."""
    most = MOST_ROWS
    while len((text := render(document(report, most), format_)).encode()) > LARGEST and most > FEWEST_ROWS:
        most //= 2
    return text


def draw_picture(report: SweepReport) -> bytes:
    """The report as a picture, with as many trials as its height allows."""
    most = PICTURED_ROWS
    while True:
        data, whole = picture(render(document(report, most), "html"), LARGEST)
        if whole or most <= FEWEST_ROWS:
            return data
        most //= 2


def write_report(
    folder: SweepFolder, places: StorageView, format_: AnyFormat = "html", out: Path | None = None
) -> Written:
    """Writes the sweep's report to `out`, or into the sweep's folder and the storage that it mirrors.

    Raises `SweepError` for a sweep without a finished trial and for a place that refuses. Raises `SpecError` for an
    `out` that is a folder or lies in none, and for a picture without Chromium."""
    if out is not None:
        check_report_place(out, format_)
    if format_ == "png":
        browser()  # before the sweep is read in vain
    settle_quietly(places)
    report = gather(folder)
    path = folder.path / f"report.{format_}" if out is None else out
    data = draw_picture(report) if format_ == "png" else page(report, format_).encode()
    try:
        write_out(path, data)
    except OSError as error:
        raise SweepError(f"{path} cannot be written ({error.strerror}); name a file that can be with --out") from error
    if out is None:
        places.upload_record(path)
    return Written(sweep=folder.id, path=path, bytes=len(data), winner=report.winner.row.name, notes=report.notes)


def complete_examples(folder: SweepFolder, places: StorageView, note: Callable[[str], None] = lambda _: None) -> None:
    """Makes the examples of translations that the sweep's end did not. `note` is called before that, with words for
    whoever waits. A storage that takes no examples changes nothing."""
    if not read_examples(folder).missing or is_driven(folder):  # its driver makes them
        return
    from babeltune.sweep.driver.examples import make_missing_examples  # and with it Ray, which takes seconds

    with suppress(OSError, SweepError, ObjectStoreError):
        make_missing_examples(folder, places.cluster.mirrored, note)
        places.upload_record(folder.path / EXAMPLES)


def check_report_place(out: Path, format_: AnyFormat) -> None:
    """`SpecError` unless a file of the format can be made at `out`."""
    check_place(out)
    if out.suffix.lower() not in ("", f".{format_}", ".htm"):
        raise SpecError(f"--out {out} does not end in .{format_}; rename it, or say --format html, md or png")


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
