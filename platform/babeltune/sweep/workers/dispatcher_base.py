"""The dispatcher's state, and how its calls wait for one another."""

import asyncio
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import ParamSpec, TypeVar

from babeltune.sweep.workers.dispatcher_state import DispatcherState

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DispatcherBase:
    """A state, and calls that wait for its changes."""

    def __init__(self) -> None:
        self._state = DispatcherState()
        self._waiting: dict[str, None] = {}
        """Idle worker groups that wait for a trial, the longest first."""
        self._idle: dict[str, float] = {}
        """When worker groups last had a trial or waited for one. Between two trials that is a moment ago."""
        self._waiters: dict[Hashable, set[asyncio.Future[None]]] = {}

    def _change(
        self, change: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Makes a change of the state, and wakes the driver if there are news."""
        result = change(*arguments, **named)
        if self._state.news:
            self._wake("driver")
        return result

    async def _until(self, key: Hashable, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """True once `ready()` holds, False after `seconds` without. Only `_wake` of this key has it asked again."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            future = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(key, set()).add(future)
            try:
                async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                    await future
            except TimeoutError:
                return ready()
            finally:
                if key in self._waiters:
                    self._waiters[key].discard(future)
        return True

    def _wake(self, *keys: Hashable) -> None:
        for key in keys:
            for future in self._waiters.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def _wake_idle(self) -> None:
        """Wakes as many idle worker groups as there are trials for them."""
        for worker_group in list(islice(self._waiting, len(self._state.pending))):
            self._wake(("next", worker_group))

    def _wake_trial(self, trial: str) -> None:
        self._wake(("report", trial), ("leave", trial))
