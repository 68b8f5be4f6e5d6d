"""The driver's calls to the dispatcher: hands it trials, takes their news, and asks how the worker groups are.

Calls wait here for one another's changes of the dispatcher's state."""

import asyncio
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import TypeVar, TypeVarTuple

from babeltune.sweep.workers.dispatcher_state import DispatcherState, News

POLL_TIMEOUT_S = 10.0  # seconds after which a long poll is answered with nothing, so that both sides stay in touch
BATCH = 256  # news in one answer to the driver: enough for its throughput, few enough that no answer takes long
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class DriverCalls:
    """A state, and the calls of the driver, which change it or wait for its changes."""

    def __init__(self) -> None:
        self._state = DispatcherState()
        self._waiting: dict[str, None] = {}  # idle worker groups that wait for a trial, the longest first
        self._idle: dict[str, float] = {}
        """When worker groups last had a trial or waited for one. Between two trials that is a moment ago."""
        self._waiters: dict[Hashable, set[asyncio.Future[None]]] = {}

    def _change(self, change: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Makes a change of the state, and wakes the driver if there are news."""
        result = change(*arguments)
        if self._state.news:
            self._wake("driver")
        return result

    async def _until(self, key: Hashable, ready: Callable[[], bool], seconds: float) -> bool:
        """True once `ready()` holds, False after `seconds` without. Only `_wake` of this key has it asked again."""
        deadline = time.monotonic() + seconds
        while not ready():
            future = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(key, set()).add(future)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
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

    async def offer(self, trial: str, assignment: str) -> None:
        """Puts a trial, with its encoded assignment, where the next free worker group takes it."""
        if trial not in self._state.trials:
            self._change(self._state.offer, trial, assignment)
            self._wake_idle()

    async def poll(self, after: int, seconds: float = POLL_TIMEOUT_S) -> list[News]:
        """The driver's long poll: the news after this number, oldest first. Waits for some; empty after `seconds`."""
        if self._state.news and self._state.news[0].number <= after:
            self._change(self._state.acknowledge, after)
        await self._until("driver", lambda: bool(self._state.news), seconds)
        return list(islice(self._state.news, BATCH))

    async def go_on(self, reports: list[tuple[str, int]]) -> None:
        """Lets each of these trials go on past its report of this index."""
        for trial, index in reports:
            record = self._state.trials.get(trial)
            if record is not None and record.allowed < index:
                record.allowed = index
                self._wake(("report", trial))

    async def stop(self, trial: str) -> None:
        """Ends the trial at its current report or, between two, when its ranks ask next."""
        record = self._state.trials.get(trial)
        if record is not None and not record.stopped:
            self._change(self._state.stop, trial)
            self._wake(("report", trial), ("leave", trial))

    async def free(self) -> int:
        """How many worker groups wait for a trial that nobody has offered yet."""
        return max(0, len(self._waiting) - len(self._state.pending))

    async def ready(self, seconds: float) -> bool:
        """True once there is a worker group that can train, False after `seconds`."""
        return await self._until("ready", lambda: bool(self._state.groups.keys() - self._state.retired), seconds)

    async def renew(self, worker_group: str) -> None:
        """Asks for a new group of ranks in the worker group, before its next trial."""
        self._state.renewed.add(worker_group)
        self._wake(("next", worker_group))

    async def retire(self, worker_group: str) -> str | None:
        """Forgets a worker group that has no place to train. Its trial, which is named, goes to the next free one."""
        trial: str | None = self._change(self._state.retire, worker_group)
        self._waiting.pop(worker_group, None)
        self._idle.pop(worker_group, None)
        self._wake(("next", worker_group))
        self._wake_idle()
        return None if trial is None else self._state.trials[trial].name

    async def holding(self) -> list[str]:
        """The worker groups that have a trial."""
        return list(self._state.assigned)

    async def broken(self) -> dict[str, tuple[str, str]]:
        """The worker groups that cannot train at all, with reasons and the ids of their nodes."""
        return dict(self._state.broken)

    async def messages(self, after: int) -> list[str]:
        """Messages for the sweep's log about trials and worker groups, without the first `after` ones."""
        return self._state.messages[after:]

    async def report_count(self, worker_group: str) -> int:
        """How many new reports the worker group's trials have handed over."""
        return self._state.report_counts.get(worker_group, 0)

    async def stalled(self, seconds: float, idle: float) -> dict[str, str | None]:
        """The worker groups whose trial has sent no heartbeat for `seconds`, with the trial's name. The value is None
        for those that have neither had a trial nor asked for one for `idle` seconds. Each is returned once per start of
        its ranks."""
        now = time.monotonic()
        busy = self._state.without_progress(now - seconds)
        for trial in busy.values():
            self._change(self._state.stalled, trial, f"no progress for {seconds:g} s")
        lost = [worker_group for worker_group, since in self._idle.items() if since < now - idle]
        self._idle |= dict.fromkeys(lost, float("inf"))
        return {**{group: self._state.trials[trial].name for group, trial in busy.items()}, **dict.fromkeys(lost)}

    async def abandon(self, seconds: float, unplaced: list[str]) -> dict[str, str]:
        """Ends the trials that were asked to stop and do not answer. Their worker groups have no node, or have sent no
        heartbeat for `seconds`. Returns their names by worker groups, whose ranks are of no more use."""
        deaf = self._state.without_progress(time.monotonic() - seconds, stopped=True)
        for worker_group in unplaced:
            trial = self._state.assigned.get(worker_group)
            if trial is not None and self._state.trials[trial].stopped:
                deaf[worker_group] = trial
        names = {worker_group: self._state.trials[trial].name for worker_group, trial in deaf.items()}
        for worker_group, trial in deaf.items():
            self._change(self._state.give_up_stopped_trial, worker_group)
            self._idle[worker_group] = time.monotonic()
            self._wake(("report", trial), ("leave", trial))
        return names

    async def close(self) -> None:
        """Sends every worker group home: idle ones now, busy ones as `stop` does."""
        self._change(self._state.close)
        self._wake(*list(self._waiters))
