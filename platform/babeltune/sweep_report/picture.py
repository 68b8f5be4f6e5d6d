"""A report as one PNG picture, for slides and chats: Chromium draws the page, and what is blank below it is cut off.

Chromium gets one local file. The page forbids scripts and the network (its Content-Security-Policy)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.errors import SpecError, SweepError
from babeltune.files import draft_folder

if TYPE_CHECKING:
    from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The names of Chromium and its like on a PATH."""
WIDTH, HEIGHT = 1200, 16_000
"""Pixels of the window. The page has to end above the window's end, and Chromium draws no higher one."""
MARGIN = 24  # pixels that stay below the page's last line
TIMEOUT_S = 120  # seconds that Chromium may take. It takes two on an idle machine.
COLORS = 128  # colours of a picture that would be larger than a report may be


def browser() -> str:
    """The path of Chromium. Raises `SpecError` if there is none."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SpecError(
            f"--format png needs Chromium, and none of {', '.join(BROWSERS)} is on the PATH; install it (Debian: "
            "apt-get install chromium), or write --format html"
        )
    return program


def picture(html: str, most: int) -> tuple[bytes, bool]:
    """The page as a PNG of at most `most` bytes if fewer colours can do that, and whether all of the page is on it.

    Raises `SpecError` without Chromium, `SweepError` if it fails."""
    with draft_folder("picture") as place:
        from PIL import Image, UnidentifiedImageError

        page, shot = place / "report.html", place / "report.png"
        page.write_text(html, encoding="utf-8")
        _draw(browser(), page, shot)
        try:
            image = Image.open(shot).convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise SweepError(f"Chromium has drawn no picture ({error}); write --format html") from error
    rows = np.flatnonzero((np.asarray(image) != np.asarray(image)[-1, 0]).any(axis=(1, 2)))
    end = min(image.height, (int(rows[-1]) if len(rows) else 0) + MARGIN)
    image = image.crop((0, 0, image.width, end))
    data = _png(image)
    return data if len(data) <= most else _png(image.quantize(COLORS)), end < HEIGHT


def _draw(chromium: str, page: Path, shot: Path) -> None:
    """Has Chromium write the picture. Its profile lies beside the page and goes with it."""
    command = [chromium, "--headless", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    command += [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={WIDTH},{HEIGHT}"]
    if os.geteuid() == 0:  # Chromium refuses to run as root in its sandbox
        command.append("--no-sandbox")
    try:
        done = subprocess.run(
            [*command, f"--screenshot={shot}", page.as_uri()], capture_output=True, check=False, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"{chromium} has drawn no picture ({error}); write --format html") from error
    if not shot.is_file():
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SweepError(f"{chromium} has drawn no picture ({last[0][:200]}); write --format html")


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
