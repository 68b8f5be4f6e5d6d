"""The command line. Every command prints for people, or with `--json` one JSON document for programs."""

from __future__ import annotations

from rich.markup import escape

from babeltune.cli import (
    clean,
    filtering,
    health,
    inspect,
    mining,
    models,
    own_files,
    refit,
    report,
    reproduce,
    sweeps,
    transfer,
    watch,
)
from babeltune.cli.common import app, err
from babeltune.program import run_program
from babeltune.signals import end_when_asked

__all__ = [
    "app",
    "clean",
    "filtering",
    "health",
    "inspect",
    "main",
    "mining",
    "models",
    "own_files",
    "refit",
    "report",
    "reproduce",
    "sweeps",
    "transfer",
    "watch",
]


def main() -> None:
    """Runs a command. An error is one message without a traceback, and its exit code.

    SIGTERM and SIGHUP end it as Ctrl-C does, so that it leaves no draft and no process.
    """
    end_when_asked()
    run_program(app, lambda message: err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True))
