"""How a test waits: for an event, never for a time. Only this file compares clocks."""

import contextlib
import threading
import time
import urllib.request

PATIENCE_S = 600
"""Seconds after which a wait gives up: more than any event takes on a busy machine, less than a test may take."""


def wait_until(condition, shown=str, *, meanwhile=lambda: None, every=0.02):
    """Waits until the condition holds, and returns its value.

    `meanwhile` is called between two looks. If the condition never holds, the error has what `shown` returns."""
    deadline = time.monotonic() + PATIENCE_S
    while not (held := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S} s {shown()}"
        meanwhile()
        time.sleep(every)
    return held


def wait_for_server(process, uri, log):
    """Waits until MLflow's server answers; if it ends instead, the error has the end of its log."""

    def answers():
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=30):
            return True

    wait_until(answers, every=0.1)


def when(condition, action):
    """Does the action in another thread once the condition holds.

    If it never holds, the action ends the wait all the same, and the test fails with the thread's error."""

    def work():
        try:
            wait_until(condition)
        finally:
            action()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
