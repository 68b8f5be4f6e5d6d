"""The signals by which a process is asked to end: Ctrl-C, and what is treated as one."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar, TypeVar

Answer = TypeVar("Answer")
LAST_S = 4.0  # seconds that a program has after a second Ctrl-C to close what is open
POLL_INTERVAL_S = 0.25  # seconds between two checks whether a second Ctrl-C waits for a main thread that cannot take it
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


_LAST_ACTIONS: list[Callable[[], object]] = []  # the functions that `before_sudden_end` calls


@contextmanager
def before_sudden_end(action: Callable[[], object]) -> Iterator[None]:
    """Calls the action if the process ends within the block without leaving it."""
    _LAST_ACTIONS.append(action)
    try:
        yield
    finally:
        _LAST_ACTIONS.remove(action)


def interruption() -> str:
    """The words of a view of the whole screen after a Ctrl-C, until all is closed."""
    return _Acknowledgement.words


@contextmanager
def acknowledged() -> Iterator[None]:
    """Says on standard error at once that a Ctrl-C was received within the block, and raises `KeyboardInterrupt`.

    What the block has opened may take seconds to close. The words go to the file descriptor: a console may be in the
    middle of a line."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Acknowledgement()
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        handler.ended.set()
        _Acknowledgement.words = ""


class _Acknowledgement:
    """The handler of `acknowledged`. From the second Ctrl-C on, the program ends soon whatever hangs."""

    words: ClassVar[str] = ""  # the last words of the view, while the block closes files and servers

    def __init__(self) -> None:
        self.count = 0
        self.ended = threading.Event()
        """Set at the end of the block."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        text = (
            "interrupted; closing what is open (Ctrl-C again ends sooner)" if self.count == 1 else "interrupted again"
        )
        _Acknowledgement.words = text
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())
        if self.count == 1:
            self.watch()
        if self.count == 2:
            threading.Thread(target=self._end_soon, daemon=True).start()
        signal.default_int_handler(number, frame)

    def watch(self) -> None:
        """From the first Ctrl-C on: ends the program also if its main thread cannot take the second one.

        A thread that waits for a disk that hangs takes no signal but SIGKILL, so the second one stays pending."""
        threading.Thread(target=self._end_if_pending, daemon=True).start()

    def _end_if_pending(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # `sigpending` tells of what this thread blocks
        looks = 0
        while not self.ended.wait(POLL_INTERVAL_S):
            looks = looks + 1 if signal.SIGINT in signal.sigpending() else 0
            if looks == 2:
                self._end_soon()
                return

    def _end_soon(self) -> None:
        """Ends this process and those that it started, unless the block ends by itself in time."""
        import psutil  # training does without

        if self.ended.wait(LAST_S):
            return
        with suppress(OSError):
            for action in _LAST_ACTIONS:
                action()
            os.write(2, b"something hangs and is left as it is; the same command again goes on\n")
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        os._exit(128 + signal.SIGINT)


class StopRequestedError(KeyboardInterrupt):
    """`babeltune stop`, a Ctrl-C from afar, came before the search began."""


@dataclass
class StopSignal:
    """Whether a driver goes on. One object is passed to all that must ask."""

    requested: Callable[[], bool] = lambda: False  # whether somebody asked for an end by `babeltune stop`
    refused: Callable[[], None] = lambda: None
    """Raises if this driver must not go on: another one took over, or the storage is gone."""
    requests: Callable[[], None] = lambda: None  # does what other processes ask of this driver besides that
    guard: Callable[[], AbstractContextManager[int | None]] = nullcontext
    """Within it this driver writes to the sweep's folder. It raises if another one took over."""
    paused: Callable[[], bool] = lambda: False  # whether the whole sweep is paused
    pausing: bool = False
    """Whether it was seen paused since trials began to run. It holds, so that no end of a trial is taken for another
    one when the sweep is continued in between."""
    last_start: float = math.inf  # the time of the monotonic clock after which no trial starts
    interrupted: bool = False  # whether this process received a Ctrl-C

    def interrupt(self) -> None:
        self.interrupted = True

    def stops(self) -> bool:
        """Whether running trials should end, to be resumed later."""
        self.pausing = self.pausing or self.paused()
        return self.interrupted or self.pausing or self.requested()

    def start_minutes(self, minutes: float) -> None:
        """Begins the minutes in which trials may start. A second call changes nothing."""
        if self.last_start == math.inf:
            self.last_start = time.monotonic() + 60 * minutes

    def starts_no_more(self) -> bool:
        """Whether the time is up in which trials may start."""
        return time.monotonic() > self.last_start

    def check(self) -> None:
        """Raises what keeps this driver from going on, and does what was asked of it."""
        self.refused()
        self.requests()

    def raise_if_stopped(self) -> None:
        """Raises what keeps this driver from going on, or `StopRequestedError`. For work before the search."""
        self.check()
        if self.requested():
            raise StopRequestedError


@contextmanager
def interrupts(stop: StopSignal, on_first: Callable[[], None]) -> Iterator[None]:
    """Makes of the first Ctrl-C (or SIGTERM, SIGHUP) within the block a request to `stop`, and calls `on_first`. The
    second raises `KeyboardInterrupt`."""

    def handle(number: int, frame: FrameType | None) -> None:
        outer = before.get(signal.Signals(number))
        if stop.interrupted:
            (outer if isinstance(outer, _Acknowledgement) else signal.default_int_handler)(number, frame)
        if isinstance(outer, _Acknowledgement) and not outer.count:
            outer.count = 1
            outer.watch()
        stop.interrupt()
        with suppress(OSError):  # such as a full disk, on which nothing can be noted
            on_first()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in (heeded() if main else ())}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answered(question: Callable[[], Answer], seconds: float, late: Exception) -> Answer:
    """The answer to a question that may hang, and would let no signal through. Raises `late` after these seconds."""
    answer = Future[Answer]()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        raise late
    return answer.result(timeout=0)
