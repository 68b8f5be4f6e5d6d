"""The command line. Every command prints for people, or with `--json` one JSON document for programs."""

from __future__ import annotations

from rich.markup import escape

from babeltune.cli import filtering, health, mining, models, sweeps, transfer
from babeltune.cli.common import app, err
from babeltune.errors import BabeltuneError

__all__ = ["app", "filtering", "health", "main", "mining", "models", "sweeps", "transfer"]


def main() -> None:
    """Runs a command; an error of ours is one message without a traceback, and its exit code."""
    try:
        app()
    except BabeltuneError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(error.exit_code) from None
