"""The actor between a sweep's search and its worker groups: trials wait here, reports and verdicts cross here.

A trial is offered, and a free worker group takes it. Each of its reports waits for a verdict. It ends once all ranks of
its group agree that it did. `DispatcherState` holds the rules. This file adds waiting, the clock and the journal.
`pool.py` runs it as a small named actor; it is plain asyncio, so it also runs alone.

Each change is in the journal before its call is answered. A dispatcher that died starts again where it was: every call
may be made twice, and the second has the first one's answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from babeltune.sweep.state.messages import Order, TrialEnd
from babeltune.sweep.workers.dispatcher_state import DispatcherState, News
from babeltune.sweep.workers.journal import Journal

PEER_TIMEOUT_S = 5.0
"""Seconds that one failed rank waits for the others before its group is restarted."""
POLL_TIMEOUT_S = 10.0
"""Seconds after which a long poll is answered with nothing, so that both sides stay in touch."""
BATCH = 256
"""News in one answer to the driver: enough for its throughput, few enough that no answer takes long."""
STOP_QUESTIONS_PER_S = 200.0
"""Questions whether to stop that all trials together may ask in a second. Each trial asks once a second if it can."""
PENDING_CALLS = 100_000
"""Calls that may wait at once. Ray's default of 1,000 blocks every later call, also those of the driver."""


@dataclass(frozen=True)
class StopReply:
    """Whether a trial should end, and in how many seconds its rank 0 should ask again."""

    stopped: bool
    ask_again_s: float


class TrialDispatcher:
    """Holds one assignment per worker group, the news for the driver, and who was asked to stop."""

    def __init__(self, file: str | Path | None = None) -> None:
        """`file` keeps its journal. An earlier dispatcher may have left one there."""
        self._state = DispatcherState()
        self._waiting: dict[str, None] = {}
        """Idle worker groups that wait for a trial, the longest first."""
        self._idle: dict[str, float] = {}
        """When worker groups last had a trial or waited for one. Between two trials that is a moment ago."""
        self._waiters: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._journal = None if file is None else Journal(Path(file), lambda: self._state.snapshot())
        if self._journal is not None:
            self._restore(self._journal)

    def _restore(self, journal: Journal) -> None:
        for number, line in enumerate(journal.read()):
            if number == 0:
                self._state = DispatcherState.restore(line)
            else:
                self._state.replay(line)
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

    # The driver's side

    async def offer(self, trial: str, assignment: str) -> None:
        """Puts a trial, with its encoded assignment, where the next free worker group takes it."""
        if trial not in self._state.trials:
            self._change("offer", trial, assignment)
            self._wake_idle()

    async def poll(self, after: int, seconds: float = POLL_TIMEOUT_S) -> list[News]:
        """The driver's long poll: the news after this number, oldest first. Waits for some; empty after `seconds`."""
        if self._state.news and self._state.news[0].number <= after:
            self._change("acknowledge", after)
        await self._until("driver", lambda: bool(self._state.news), seconds)
        return list(islice(self._state.news, BATCH))

    async def go_on(self, reports: list[tuple[str, int]]) -> None:
        """Lets each of these trials go on past its report of this index."""
        for trial, index in reports:
            record = self._state.trials.get(trial)
            if record is not None and record.allowed < index:
                self._change("go_on", trial, index)
                self._wake(("report", trial))

    async def stop(self, trial: str) -> None:
        """Ends the trial at its current report or, between two, when its ranks ask next."""
        record = self._state.trials.get(trial)
        if record is not None and not record.stopped:
            self._change("stop", trial)
            self._wake_trial(trial)

    async def free(self) -> int:
        """How many worker groups wait for a trial that nobody has offered yet."""
        return max(0, len(self._waiting) - len(self._state.pending))

    async def ready(self, seconds: float) -> bool:
        """True once there is a worker group that can train, False after `seconds`."""
        return await self._until("ready", lambda: bool(self._state.groups.keys() - self._state.retired), seconds)

    async def renew(self, worker_group: str) -> None:
        """Asks for a new group of ranks in the worker group, before its next trial."""
        self._change("renew", worker_group)
        self._wake(("next", worker_group))

    async def retire(self, worker_group: str) -> str | None:
        """Forgets a worker group that has no place to train. Returns the name of its trial, which goes to the next free
        one."""
        trial: str | None = self._change("retire", worker_group)
        self._waiting.pop(worker_group, None)
        self._idle.pop(worker_group, None)
        self._wake(("next", worker_group))
        self._wake_idle()
        return None if trial is None else self._state.name(trial)

    async def holding(self) -> list[str]:
        """The worker groups that have a trial."""
        return list(self._state.assigned)

    async def broken(self) -> dict[str, tuple[str, str]]:
        """The worker groups that cannot train at all, with reasons and the ids of their nodes."""
        return dict(self._state.broken)

    async def messages(self, after: int) -> list[str]:
        """What has become of trials and worker groups, after the first so many."""
        return self._state.messages[after:]

    async def made(self, worker_group: str) -> int:
        """How many new reports the worker group's trials have handed over."""
        return self._state.made.get(worker_group, 0)

    async def stalled(self, seconds: float, idle: float) -> dict[str, str | None]:
        """The worker groups whose trial has sent no heartbeat for `seconds`, with the trial's name. The value is None
        for those that have neither had a trial nor asked for one for `idle` seconds. Each is returned once per start of
        its ranks."""
        now = time.monotonic()
        busy = self._state.without_progress(now - seconds)
        for trial in busy.values():
            self._change("stalled", trial, f"no progress for {seconds:g} s")
        lost = [worker_group for worker_group, since in self._idle.items() if since < now - idle]
        self._idle |= dict.fromkeys(lost, float("inf"))
        return {**{group: self._state.name(trial) for group, trial in busy.items()}, **dict.fromkeys(lost)}

    async def abandon(self, seconds: float, unplaced: list[str]) -> dict[str, str]:
        """Ends the trials that were asked to stop and do not answer. Their worker groups have no node, or have sent no
        heartbeat for `seconds`. Returns their names by worker groups, whose ranks are of no more use."""
        deaf = self._state.without_progress(time.monotonic() - seconds, stopped=True)
        for worker_group in unplaced:
            trial = self._state.assigned.get(worker_group)
            if trial is not None and self._state.trials[trial].stopped:
                deaf[worker_group] = trial
        named = {worker_group: self._state.name(trial) for worker_group, trial in deaf.items()}
        for worker_group, trial in deaf.items():
            self._change("let_go", worker_group)
            self._idle[worker_group] = time.monotonic()
            self._wake_trial(trial)
        return named

    async def close(self) -> None:
        """Sends every worker group home: idle ones now, busy ones as `stop` does."""
        self._change("close")
        self._wake(*list(self._waiters))

    # A worker group's side

    async def refuse(self, worker_group: str, reason: str, node: str) -> None:
        """Notes that a worker group cannot train at all, and on which node."""
        self._change("refuse", worker_group, reason, node)

    async def add_message(self, text: str) -> None:
        """Has the driver log a text once, although several ranks may say it."""
        if text not in self._state.messages:
            self._change("add_message", text)

    async def next(self, worker_group: str, group: str) -> Order:
        """The worker group's trial: the unfinished one if this group of ranks is new, else the next offered."""
        state = self._state
        new = state.groups.get(worker_group) != group
        if new:
            self._join(worker_group, group)
        if worker_group in state.assigned:
            return self._order(worker_group)
        self._idle.pop(worker_group, None)
        self._waiting[worker_group] = None

        def called() -> bool:
            sent_home = state.closed or worker_group in state.renewed or worker_group in state.retired
            return sent_home or state.groups[worker_group] != group

        try:
            await self._until(("next", worker_group), lambda: called() or bool(state.pending), POLL_TIMEOUT_S)
        finally:
            if state.groups[worker_group] == group:
                self._waiting.pop(worker_group, None)
                self._idle[worker_group] = time.monotonic()
        if state.groups[worker_group] != group:
            return Order("wait")
        if state.closed or worker_group in state.retired:
            return Order("close")
        if worker_group in state.renewed:
            return Order("renew")
        if not state.pending:
            return Order("wait")
        self._change("assign", worker_group)
        del self._idle[worker_group]
        return self._order(worker_group)

    def _join(self, worker_group: str, group: str) -> None:
        """A new group of ranks asks for the first time."""
        had = self._state.assigned.get(worker_group)
        self._change("join", worker_group, group)
        self._wake("ready", ("next", worker_group))
        if had is not None:
            self._wake(("leave", had))

    def _order(self, worker_group: str) -> Order:
        self._state.trials[self._state.assigned[worker_group]].heartbeat = time.monotonic()
        return self._state.order(worker_group)

    async def report(self, trial: str, index: int, last: bool, text: str) -> bool:
        """Hands over an encoded report and waits for its verdict: True means go on.

        A resumed trial may repeat a report. It is known by its index, is not delivered twice, and has the same verdict.
        """
        record = self._state.trials.get(trial)
        if record is None:
            return False
        if index > record.seen:
            self._change("report", trial, index, last, text)
        record.heartbeat = float("inf")
        await self._until(("report", trial), lambda: record.stopped or record.allowed >= index)
        record.heartbeat = time.monotonic()
        return not record.stopped

    async def stopped(self, trial: str) -> StopReply:
        """Whether the trial should end before its next report. The question is its heartbeat, until it stops."""
        record = self._state.trials.get(trial)
        if record is not None and not record.stopped:
            record.heartbeat = time.monotonic()
        asked_in = max(1.0, len(self._state.assigned) / STOP_QUESTIONS_PER_S)
        return StopReply(record is None or record.stopped, asked_in)

    async def leave(self, worker_group: str, trial: str, rank: int, world: int, end: str, renew: bool = False) -> bool:
        """Notes how one rank left the trial, waits for the others, and settles. False means: restart the group."""
        record = self._state.trials.get(trial)
        if record is None or self._state.assigned.get(worker_group) != trial:
            return record is None or record.attempt.go_on is not False
        attempt = record.attempt
        self._change("rank_left", trial, rank, end, renew)
        if attempt.go_on is None:
            timeout = None if TrialEnd.decode(end).kind == "finished" else PEER_TIMEOUT_S
            self._wake(("leave", trial))
            await self._until(
                ("leave", trial), lambda: attempt.go_on is not None or len(attempt.ends) == world, timeout
            )
            if attempt.go_on is None and self._state.assigned.get(worker_group) == trial:
                self._change("settle", trial, world)
                if worker_group not in self._state.assigned:
                    self._idle[worker_group] = time.monotonic()
                self._wake_trial(trial)
        return bool(attempt.go_on)
