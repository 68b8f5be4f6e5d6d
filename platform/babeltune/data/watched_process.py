"""Runs a reader of untrusted files as a process whose memory is watched. Called by `spreadsheets` and `arrow_readers`.

A small file may need more memory than a machine has, and the libraries that read it have no limit."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WATCH_S = 0.02  # seconds between two looks at the memory of the process
SAID_BYTES = 1 << 16  # bytes of standard error that are read


@contextmanager
def watched(script: str, *arguments: str, memory: int) -> Iterator[subprocess.Popen[bytes]]:
    """A script of this folder in a process that is killed if it takes more than `memory` bytes, and at the end."""
    command = [sys.executable, "-P", str(Path(__file__).with_name(script)), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        threading.Thread(target=_watch, args=(process, memory), daemon=True).start()
        try:
            yield process
        finally:
            process.kill()


def exit_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code, negative if a signal ended the process, and what it said on standard error."""
    assert process.stderr is not None
    words = process.stderr.read(SAID_BYTES).decode(errors="replace")
    return process.wait(), words


def _watch(process: subprocess.Popen[bytes], memory: int) -> None:
    """Kills the process if it takes too much memory."""
    import psutil

    with contextlib.suppress(psutil.Error):
        child = psutil.Process(process.pid)
        while process.poll() is None:
            # A limit of the system would leave the process hanging.
            if child.memory_info().rss > memory:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WATCH_S)
