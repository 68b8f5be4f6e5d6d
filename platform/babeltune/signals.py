"""The signals by which a process is asked to end: Ctrl-C, and what is treated as one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_when_asked() -> None:
    """Makes of SIGTERM, and of SIGHUP (a terminal that is closed), what Ctrl-C is; Ray, which has just started, would
    end this process with a dump of its stack."""
    if threading.current_thread() is threading.main_thread():
        for number in {signal.SIGTERM, signal.SIGHUP} & heeded():
            signal.signal(number, signal.default_int_handler)


def heeded() -> set[signal.Signals]:
    """The signals that ask this process to end: of a terminal that is closed `nohup` wants to hear nothing."""
    return {each for each in INTERRUPTS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN}


@contextmanager
def acknowledged() -> Iterator[None]:
    """Says on standard error at once that a Ctrl-C was received within the block, and raises `KeyboardInterrupt`.

    What the block has opened may take seconds to close. The words go to the file descriptor: a console may be in the
    middle of a line."""
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        words = "interrupted; closing what is open (Ctrl-C again ends sooner)" if count == 1 else "interrupted again"
        with suppress(OSError):
            os.write(2, f"{words}\n".encode())
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Makes a request of the first Ctrl-C (or SIGTERM, SIGHUP) within the block; the second raises `KeyboardInterrupt`.

    The first calls `on_first`, and from then on the yielded function returns True.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(number, frame)
        asked = True
        with suppress(OSError):  # such as a full disk, on which nothing can be noted
            on_first()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in (heeded() if main else ())}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
