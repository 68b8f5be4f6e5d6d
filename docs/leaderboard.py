"""Draws the leaderboard of a sweep on this machine as docs/leaderboard.svg: `python docs/leaderboard.py [SWEEP]`."""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from babeltune.cli.common import sweep_folder
from babeltune.cli.render import show_leaderboard
from babeltune.files import write_whole

PICTURE = Path(__file__).parent / "leaderboard.svg"
COLUMNS = 165


def main(name: str = "quickstart") -> None:
    """Writes the picture. It names no font of another server, so it can be shown without a network."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    show_leaderboard(sweep_folder(name, None), console)
    svg = console.export_svg(title=f"babeltune runs {name}", unique_id="leaderboard")
    local = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    write_whole(PICTURE, (local.rstrip() + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
