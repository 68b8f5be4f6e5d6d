"""The command line. Every command prints for people, or with `--json` one JSON document for programs."""

from __future__ import annotations

import errno

from rich.markup import escape

from babeltune.cli import filtering, health, looks, mining, models, sweeps, transfer
from babeltune.cli.common import app, err
from babeltune.errors import REFUSALS, BabeltuneError

__all__ = ["app", "filtering", "health", "looks", "main", "mining", "models", "sweeps", "transfer"]


def main() -> None:
    """Runs a command; an error of ours, or what the system refuses, is one message without a traceback, and its exit
    code."""
    try:
        app()
    except BabeltuneError as error:
        words, code = str(error), error.exit_code
    except OSError as error:
        if error.errno not in {*REFUSALS, errno.EISDIR, errno.ENOTDIR}:
            raise
        words, code = f"{error.filename or 'a file'}: {error.strerror}; make it usable, or name another", 1
    else:
        return
    err.print(f"[bold red]error:[/] {escape(words)}", soft_wrap=True)
    raise SystemExit(code)
