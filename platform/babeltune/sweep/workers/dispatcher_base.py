"""The dispatcher's state, kept in a journal, and how its calls wait for one another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from itertools import islice
from pathlib import Path
from typing import Any

from babeltune.sweep.workers.dispatcher_snapshot import replay, restore, snapshot
from babeltune.sweep.workers.dispatcher_state import DispatcherState
from babeltune.sweep.workers.journal import Journal


class DispatcherBase:
    """A state whose changes are in the journal before their calls are answered, and calls that wait for a change."""

    def __init__(self, file: str | Path | None = None) -> None:
        """`file` keeps its journal. An earlier dispatcher may have left one there."""
        self._state = DispatcherState()
        self._waiting: dict[str, None] = {}
        """Idle worker groups that wait for a trial, the longest first."""
        self._idle: dict[str, float] = {}
        """When worker groups last had a trial or waited for one. Between two trials that is a moment ago."""
        self._waiters: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._journal = None if file is None else Journal(Path(file), lambda: snapshot(self._state))
        if self._journal is not None:
            self._restore(self._journal)

    def _restore(self, journal: Journal) -> None:
        for number, line in enumerate(journal.read()):
            if number == 0:
                self._state = restore(line)
            else:
                replay(self._state, line)
        now = time.monotonic()
        for record in self._state.trials.values():
            record.heartbeat = now
        between = self._state.groups.keys() - self._state.assigned.keys() - self._state.retired
        self._idle = dict.fromkeys(between, now)

    def _change(self, name: str, *arguments: Any) -> Any:
        """Makes a change of the state and journals it."""
        result = getattr(self._state, name)(*arguments)
        if self._journal is not None:
            self._journal.add([name, *arguments])
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
