"""The desk between a sweep's search and its lanes: trials wait here, reports and verdicts cross here.

Plain asyncio, so that it can be tested alone; `lanes.py` runs one as a small named actor. A trial is offered, a free
lane takes it, each of its reports waits for a verdict, and it ends once all ranks of its lane agree that it did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

NAMESPACE = "babeltune"
"""Of the actors that Ray knows by name."""
RESTARTS = 3
"""Restarts of a lane within one trial, without a new report, before that trial has failed."""
GRACE = 5.0
"""Seconds that one failed rank waits for the others before its lane is restarted."""
POLL = 10.0
"""Seconds after which an idle lane's question is answered with nothing, so that its ranks stay in touch."""

Ending = Literal["done", "refused", "raised", "peer"]
"""How a rank left a trial: finished or stopped; a `BabeltuneError`, which all ranks raise alike; any other exception;
or a collective that broke because another rank did."""

DIED = "a worker process of its lane died"


@dataclass
class _Attempt:
    """One run of a trial by a lane's group of ranks; a restart makes a new one."""

    endings: dict[int, tuple[Ending, str]] = field(default_factory=dict)
    go_on: bool | None = None
    """Whether the group may take the next trial; None until the ranks agreed."""


@dataclass
class _Work:
    """What the desk knows of one trial."""

    payload: dict[str, Any]
    reports: deque[dict[str, Any]] = field(default_factory=deque)
    seen: int = 0
    delivered: int = 0
    allowed: int = 0
    """Training may go past the report of this index."""
    stopped: bool = False
    ended: bool = False
    reason: str | None = None
    """Why it failed; None when it finished or was stopped."""
    restarts: int = 0
    trouble: str = DIED
    attempt: _Attempt = field(default_factory=_Attempt)


class Desk:
    """Holds one assignment per lane, one report queue per trial, and who was told to stop."""

    def __init__(self) -> None:
        self._works: dict[str, _Work] = {}
        self._pending: deque[str] = deque()
        self._assigned: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._broken: dict[str, str] = {}
        self._closed = False
        self._changed = asyncio.Condition()

    async def _until(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """True once `ready()` holds, False after `seconds` without."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(ready), seconds)
            except TimeoutError:
                return False
            return True

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # The search's side

    async def offer(self, trial: str, payload: dict[str, Any]) -> None:
        """Puts a trial where the next free lane takes it."""
        self._works[trial] = _Work(payload)
        self._pending.append(trial)
        await self._tell()

    async def next_report(self, trial: str) -> dict[str, Any]:
        """Lets the trial go on past its last report and waits for the next: `{"report": …}` or `{"ended": reason}`."""
        work = self._works[trial]
        work.allowed = max(work.allowed, work.delivered)
        await self._tell()
        await self._until(lambda: bool(work.reports) or work.ended)
        if not work.reports:
            return {"ended": work.reason}
        report = work.reports.popleft()
        work.delivered = report["index"]
        if report.get("last"):
            work.allowed = work.delivered
            await self._tell()
        return {"report": report}

    async def stop(self, trial: str) -> None:
        """Ends the trial at its current or next report."""
        work = self._works[trial]
        work.stopped = True
        if trial in self._pending:
            self._pending.remove(trial)
            work.ended = True
        await self._tell()

    async def free(self) -> int:
        """How many lanes wait for a trial that nobody has offered yet."""
        return max(0, len(self._waiting) - len(self._pending))

    async def idle(self, seconds: float) -> bool:
        """True once no lane holds a trial, False after `seconds`."""
        return await self._until(lambda: not self._assigned, seconds)

    async def ready(self) -> None:
        """Waits for the first lane that can train, or that says why it cannot."""
        await self._until(lambda: bool(self._turns or self._broken))

    async def broken(self) -> dict[str, str]:
        """The lanes that cannot train at all, with reasons."""
        return dict(self._broken)

    async def close(self) -> None:
        """Sends every lane home: idle ones now, busy ones at their next report."""
        self._closed = True
        for work in self._works.values():
            work.stopped = True
        await self._tell()

    # A lane's side

    async def refuse(self, lane: str, reason: str) -> None:
        """A lane's word that it cannot load what it should run."""
        self._broken[lane] = reason
        await self._tell()

    async def next(self, lane: str) -> dict[str, Any]:
        """The lane's trial: the unfinished one after a restart, else the next offered.

        Returns `{"trial", "payload"}`, `{}` when none came within `POLL` seconds, or `{"closed": True}`.
        """
        turn = self._turns[lane] = self._turns.get(lane, 0) + 1
        if lane in self._assigned and self._restarted(lane):
            await self._tell()
            return self._assignment(lane)
        self._waiting.add(lane)
        await self._tell()
        try:
            await self._until(lambda: self._closed or bool(self._pending) or self._turns[lane] != turn, POLL)
        finally:
            if self._turns[lane] == turn:
                self._waiting.discard(lane)
        if self._closed:
            return {"closed": True}
        if not self._pending or self._turns[lane] != turn:
            return {}
        self._assigned[lane] = self._pending.popleft()
        return self._assignment(lane)

    def _assignment(self, lane: str) -> dict[str, Any]:
        trial = self._assigned[lane]
        return {"trial": trial, "payload": self._works[trial].payload}

    def _restarted(self, lane: str) -> bool:
        """Whether a restarted lane should run its trial again."""
        work = self._works[self._assigned[lane]]
        work.attempt.go_on = False
        work.restarts += 1
        if work.stopped or self._closed:
            self._end(lane, None)
        elif work.restarts > RESTARTS:
            self._end(lane, f"{work.trouble}; given up after {RESTARTS} restarts without a new report")
        else:
            work.attempt = _Attempt()
            work.trouble = DIED
        return lane in self._assigned

    def _end(self, lane: str, reason: str | None) -> None:
        work = self._works[self._assigned.pop(lane)]
        work.ended, work.reason, work.payload = True, reason, {}

    async def report(self, trial: str, report: dict[str, Any]) -> bool:
        """Hands over a report and waits for its verdict: True means go on.

        A report that a resumed trial repeats is known by its `index`, is not delivered twice, and has the same verdict.
        """
        work = self._works[trial]
        index = int(report["index"])
        if index > work.seen:
            work.seen, work.restarts = index, 0
            work.reports.append(report)
            await self._tell()
        await self._until(lambda: work.stopped or work.allowed >= index)
        return not work.stopped

    async def leave(self, lane: str, trial: str, rank: int, world: int, ending: Ending, reason: str) -> bool:
        """One rank's word that it left the trial; waits for the others. False means: restart the group.

        Ranks that all finished, or all refused alike, go on together. Any other exception leaves collectives out of
        step, so the group is restarted, and the trial has failed unless the only cause was a rank's death.
        """
        work = self._works[trial]
        attempt = work.attempt
        if attempt.go_on is None:
            attempt.endings[rank] = (ending, reason)
            patience = None if ending == "done" else GRACE
            if len(attempt.endings) < world:
                await self._until(lambda: attempt.go_on is not None or len(attempt.endings) == world, patience)
            if attempt.go_on is None:
                self._settle(lane, work, attempt, world)
                await self._tell()
        return bool(attempt.go_on)

    def _settle(self, lane: str, work: _Work, attempt: _Attempt, world: int) -> None:
        kinds = {ending for ending, _ in attempt.endings.values()}
        agreed = len(attempt.endings) == world and (world == 1 or kinds in ({"done"}, {"refused"}))
        attempt.go_on = agreed
        own = [why for ending, why in attempt.endings.values() if ending in ("refused", "raised")]
        if own:
            self._end(lane, own[0])
        elif agreed:
            self._end(lane, None)
        else:
            work.trouble = next(why for ending, why in attempt.endings.values() if ending == "peer")
