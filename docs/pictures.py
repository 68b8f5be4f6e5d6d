"""Takes pictures of a real sweep for docs/pictures: `python docs/pictures.py PART [SWEEP] [URL]`.

A part is `terminal`, `report`, `live` or `mlflow`. The last one needs `babeltune ui` and the address that it prints.
A picture that would show a path, a host or a user of this machine is refused.
"""

import getpass
import io
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from babeltune.cli.common import cluster_of, sweep_folder
from babeltune.cli.terminal_view import picture
from babeltune.cli.watch import HOST, server_of
from babeltune.files import write_whole
from babeltune.stages import SEARCHING
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.lease import only_driver
from babeltune.sweep.state.log import LEDGER
from babeltune.sweep.state.progress import SweepProgress
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.picture import browser
from babeltune.sweep_report.write import write_report

PICTURES = Path(__file__).parent / "pictures"
LARGEST = 60_000  # bytes of one picture
LINES = 16  # lines of the terminal
SCREEN = {"width": 1400, "height": 800}  # the window for MLflow's pages
PAGE_WIDTH = 1040  # pixels of MLflow's page; the rest of the window is its assistant, which answers no question here
WAIT_MS = 120_000  # milliseconds that a page may take on a busy machine
PRIVATE = re.compile(
    rf"/(home|root|tmp|work|Users)/|\b({re.escape(getpass.getuser())}|{re.escape(socket.gethostname())})\b"
)
"""What no picture shows."""


@contextmanager
def running_again(folder: SweepFolder) -> Iterator[SweepProgress]:
    """A copy of a finished sweep as it was while its last trial ran, with this process as its driver."""
    with TemporaryDirectory() as place:
        copy = SweepFolder(Path(place) / "sweeps" / folder.id)
        shutil.copytree(
            folder.path, copy.path, ignore=shutil.ignore_patterns("checkpoints", "mlflow", "promotions", "*.lock")
        )
        trials = sorted((copy.path / "trials").iterdir())
        end = f'"event": "end", "number": {int(trials[-1].name[1:])},'.encode()
        ledger = copy.path / LEDGER
        ledger.write_bytes(b"".join(line for line in ledger.read_bytes().splitlines(keepends=True) if end not in line))
        copy.set_state("running")
        progress = SweepProgress(copy.sweep(), copy)
        with only_driver(copy):
            progress.progress(SEARCHING, len(trials) - 1, len(trials))
            elapsed_s = sum(row.seconds for row in leaderboard_of(copy))
            progress.started, progress.stage_begun = time.monotonic() - elapsed_s, time.time() - elapsed_s
            progress.stage_first = 0
            yield progress


def draw_terminal(folder: SweepFolder) -> None:
    """The live view of a running sweep at 80 and 160 columns. It names no font of another server."""
    PICTURES.mkdir(exist_ok=True)
    with running_again(folder) as progress:
        for width in (80, 160):
            console = Console(record=True, width=width, height=LINES, file=io.StringIO(), force_terminal=True)
            console.print(picture(progress, LINES))
            svg = console.export_svg(title=f"{width} columns", unique_id=f"terminal-{width}")
            local = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
            text = local.replace("Fira Code, monospace", "monospace").rstrip() + "\n"
            check_private(text, f"terminal-{width}")
            write_whole(PICTURES / f"terminal-{width}.svg", text.encode())


def draw_report(folder: SweepFolder) -> None:
    """The report in light, in dark, and as it is printed."""
    with TemporaryDirectory() as place, window() as page_of:
        path = Path(place) / "report.html"
        write_report(folder, StorageView(cluster_of(None)), "html", path)
        for scheme in ("light", "dark"):
            page = page_of(color_scheme=scheme)
            page.goto(path.as_uri())
            keep(page, f"report-{scheme}")
        page = page_of(viewport={"width": 794, "height": 1123})
        page.emulate_media(media="print")
        page.goto(path.as_uri())
        keep(page, "report-print")


def draw_live(folder: SweepFolder) -> None:
    """The page that `babeltune watch` serves while the last trial runs."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with running_again(folder) as progress, window() as page_of:
        server = server_of(progress.folder, port)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                thread.join(0.1)
            page = page_of()
            page.goto(f"http://{HOST}:{port}/", wait_until="domcontentloaded")
            page.get_by_role("heading", name="Leaderboard").wait_for()
            keep(page, "live-page")
            page.close()
        finally:
            server.should_exit = True
            thread.join()


def draw_mlflow(folder: SweepFolder, link: str) -> None:
    """The pages of the sweep in MLflow: `link` is what `babeltune ui SWEEP` prints."""
    best = next(row.name for row in leaderboard_of(folder))
    with window() as page_of:
        page = page_of(viewport=SCREEN)
        page.goto(link)
        page.get_by_role("link", name=best).wait_for()
        page.get_by_text("finished").first.wait_for()
        keep(page, "mlflow-sweep", PAGE_WIDTH)
        for row in (1, 2):
            page.get_by_role("checkbox").nth(row).click()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.get_by_text("Comparing 2 Runs").first.wait_for()
        page.get_by_text(best).first.wait_for()
        page.locator(".js-plotly-plot").first.wait_for()
        keep(page, "mlflow-compared", PAGE_WIDTH)
        page.goto(f"{link}&compareRunsMode=CHART")
        page.get_by_text("Step", exact=True).first.wait_for()
        keep(page, "mlflow-charts", PAGE_WIDTH)
        page.goto(f"{link.partition('#')[0]}#/models/{folder.sweep().name}/versions/1")
        page.get_by_text("Sealed test").first.wait_for()
        keep(page, "mlflow-model", PAGE_WIDTH)


def leaderboard_of(folder: SweepFolder) -> list[Any]:
    """The sweep's trials, the best first."""
    from babeltune.sweep.state.leaderboard import leaderboard

    return [row for row in leaderboard(folder) if row.name.startswith("t0")]


@contextmanager
def window() -> Iterator[Callable[..., Any]]:
    """Opens pages in Chromium."""
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser(), args=["--no-sandbox"])

        def page_of(**settings: Any) -> Any:
            page = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **settings}).new_page()
            page.set_default_timeout(WAIT_MS)
            return page

        yield page_of
        chromium.close()


def keep(page: Any, name: str, width: int | None = None) -> None:
    """Writes what the window shows, or its left part of this width, as WebP, as good as `LARGEST` bytes allow."""
    PICTURES.mkdir(exist_ok=True)
    check_private(page.inner_text("body"), name)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image = image.crop((0, 0, width or image.width, image.height))
    for quality in (80, 65, 50, 35, 20):
        data = io.BytesIO()
        image.save(data, "WEBP", quality=quality, method=6)
        if data.tell() <= LARGEST:
            write_whole(PICTURES / f"{name}.webp", data.getvalue())
            return
    raise SystemExit(f"{name} needs more than {LARGEST:,} bytes; make the window smaller")


def check_private(text: str, name: str) -> None:
    """Ends the program if the text names something of this machine."""
    if (match := PRIVATE.search(text)) is not None:
        raise SystemExit(f"{name} would show {text[max(0, match.start() - 60) : match.end() + 20]!r}")


def main(part: str, name: str = "quickstart", link: str = "") -> None:
    """Takes the pictures of one part."""
    folder = sweep_folder(name, None)
    parts: dict[str, Callable[[], None]] = {
        "terminal": lambda: draw_terminal(folder),
        "report": lambda: draw_report(folder),
        "live": lambda: draw_live(folder),
        "mlflow": lambda: draw_mlflow(folder, link),
    }
    parts[part]()


if __name__ == "__main__":
    main(*sys.argv[1:])
