"""Processes that a test has started, known by a mark in their environment, which their own processes inherit."""

import contextlib

import psutil

MARK = "CHAOS"  # the variable


def end_marked(mark: str) -> None:
    """Ends by process id whatever is left with this mark: Ray's log monitor outlives a node that was killed."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()
