"""The desk between a sweep's search and its lanes: trials wait here, reports and verdicts cross here.

Plain asyncio, so that it can be tested alone; `pool.py` runs one as a small named actor. A trial is offered, a free
lane takes it, each of its reports waits for a verdict, and it ends once all ranks of its lane agree that it did.

What it knows is in a file before it answers, so a desk that died starts again where it was: every call may be made
twice, and the second has the first one's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from babeltune.files import write_whole

RESTARTS = 3
"""Restarts of a lane within one trial, without a new report, before that trial has failed."""
PEER_TIMEOUT_S = 5.0
"""Seconds that one failed rank waits for the others before its lane is restarted."""
POLL_TIMEOUT_S = 10.0
"""Seconds after which an idle lane's question is answered with nothing, so that its ranks stay in touch."""
WATCHED = 8
"""Ended trials whose last report is kept, for who watches them anew."""
KEPT = 100
"""Ended trials that are remembered, for those who have not heard of their end."""

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

    assignment: dict[str, Any]
    reports: list[dict[str, Any]] = field(default_factory=list)
    """Those that the search has not said it has."""
    seen: int = 0
    allowed: int = 0
    """Training may go past the report of this index."""
    stopped: bool = False
    ended: bool = False
    reason: str | None = None
    """Why it failed; None when it finished or was stopped."""
    restarts: int = 0
    trouble: str = DIED
    heartbeat: float = field(default_factory=time.monotonic)
    """When its ranks last gave a sign of life; infinite while they wait for a verdict, or to be started again."""
    attempt: _Attempt = field(default_factory=_Attempt)


class TrialDispatcher:
    """Holds one assignment per lane, one report queue per trial, and who was told to stop."""

    def __init__(self, file: str | Path | None = None) -> None:
        """`file` keeps its state, which an earlier desk may have left there."""
        self._file = Path(file) if file is not None else None
        self._works: dict[str, _Work] = {}
        self._pending: deque[str] = deque()
        self._assigned: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        """Of each lane, the group of ranks that asked last."""
        self._waiting: set[str] = set()
        self._idle: dict[str, float] = {}
        """Since when lanes have neither had a trial nor waited for one, which is a moment between two."""
        self._broken: dict[str, tuple[str, str]] = {}
        """Of lanes that cannot train, the reason and the node's id."""
        self._made: dict[str, int] = {}
        """Of each lane, how many new reports its trials have handed over."""
        self._renewed: set[str] = set()
        """Lanes whose groups shall be new ones before their next trial."""
        self._retired: set[str] = set()
        self._messages: list[str] = []
        """What has become of trials and lanes, for the driver's log."""
        self._closed = False
        self._changed = asyncio.Condition()
        if self._file is not None and self._file.exists():
            self._read(json.loads(self._file.read_text(encoding="utf-8")))

    def _read(self, state: dict[str, Any]) -> None:
        for trial, work in state["works"].items():
            attempt = _Attempt(go_on=work["attempt"]["go_on"])
            self._works[trial] = _Work(**{**work, "attempt": attempt, "heartbeat": time.monotonic()})
        self._pending.extend(state["pending"])
        self._assigned, self._groups, self._made = state["assigned"], state["groups"], state["made"]
        self._broken = {worker_group: (reason, node) for worker_group, (reason, node) in state["broken"].items()}
        self._renewed, self._retired, self._closed = set(state["renewed"]), set(state["retired"]), state["closed"]
        self._messages = state["messages"]
        between = self._groups.keys() - self._assigned.keys() - self._retired
        self._idle = dict.fromkeys(between, time.monotonic())

    def _write(self) -> None:
        if self._file is None:
            return
        state = {
            "works": {trial: asdict(work) for trial, work in self._works.items()},
            "pending": list(self._pending),
            "assigned": self._assigned,
            "groups": self._groups,
            "broken": self._broken,
            "made": self._made,
            "renewed": sorted(self._renewed),
            "retired": sorted(self._retired),
            "messages": self._messages,
            "closed": self._closed,
        }
        try:
            write_whole(self._file, json.dumps(state).encode())
        except OSError:  # without its file, its death ends the sweep, which is resumed; an old one would mislead
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)

    async def _until(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """True once `ready()` holds, False after `seconds` without."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(ready), seconds)
            except TimeoutError:
                return False
            return True

    async def _tell(self) -> None:
        """Keeps what has changed and wakes those who wait for it."""
        self._write()
        async with self._changed:
            self._changed.notify_all()

    # The search's side

    async def offer(self, trial: str, assignment: dict[str, Any]) -> None:
        """Puts a trial where the next free lane takes it."""
        if trial not in self._works:
            self._works[trial] = _Work(assignment)
            self._pending.append(trial)
            await self._tell()

    async def next_report(self, trial: str, after: int) -> dict[str, Any]:
        """Lets the trial go on past report `after` and waits for the next: `{"report": …}` or `{"ended": reason}`."""
        work = self._works[trial]
        work.allowed = max(work.allowed, after)
        # The last one stays: who watches the trial may die before anybody else has heard of it.
        work.reports = [report for report in work.reports if report["index"] > after or report.get("last")]
        await self._tell()

        def news() -> dict[str, Any] | None:
            return next((report for report in work.reports if report["index"] > after), None)

        await self._until(lambda: news() is not None or work.ended)
        if (report := news()) is None:
            return {"ended": work.reason}
        if report.get("last") and work.allowed < report["index"]:
            work.allowed = report["index"]
            await self._tell()
        return {"report": report}

    async def stop(self, trial: str) -> None:
        """Ends the trial at its current report or, between two, within about a second."""
        work = self._works.get(trial)
        if work is None:
            return
        work.stopped = True
        if trial in self._pending:
            self._pending.remove(trial)
            work.ended = True
        await self._tell()

    async def free(self) -> int:
        """How many lanes wait for a trial that nobody has offered yet."""
        return max(0, len(self._waiting) - len(self._pending))

    async def ready(self, seconds: float) -> bool:
        """True once there is a lane that can train, False after `seconds`."""
        return await self._until(lambda: bool(self._groups.keys() - self._retired), seconds)

    async def renew(self, worker_group: str) -> None:
        """Asks for a new group of ranks in the lane, before its next trial."""
        self._renewed.add(worker_group)
        await self._tell()

    async def retire(self, worker_group: str) -> str | None:
        """Forgets a lane that has no place to train; its trial, which is returned, goes to the next free one."""
        self._retired.add(worker_group)
        self._waiting.discard(worker_group)
        self._idle.pop(worker_group, None)
        trial = self._assigned.pop(worker_group, None)
        if trial is not None:
            self._works[trial].attempt = _Attempt()
            self._pending.appendleft(trial)
        await self._tell()
        return trial and self._name(trial)

    async def holding(self) -> list[str]:
        """The lanes that have a trial."""
        return list(self._assigned)

    async def broken(self) -> dict[str, tuple[str, str]]:
        """The lanes that cannot train at all, with reasons and the ids of their nodes."""
        return dict(self._broken)

    async def messages(self, after: int) -> list[str]:
        """What has become of trials and lanes since so much was said."""
        return self._messages[after:]

    async def made(self, worker_group: str) -> int:
        """How many new reports the lane's trials have handed over."""
        return self._made.get(worker_group, 0)

    async def stalled(self, seconds: float, idle: float) -> dict[str, str | None]:
        """The lanes whose trial, which is given, has shown no sign of life for so long, and those that have neither had
        one nor asked for one for so many seconds `idle`. Each once for a group."""
        bound = time.monotonic() - seconds
        busy = {
            worker_group: trial
            for worker_group, trial in self._assigned.items()
            if self._works[trial].heartbeat < bound
        }
        for trial in busy.values():
            work = self._works[trial]
            work.heartbeat, work.trouble = math.inf, f"no progress for {seconds:g} s"
        lost = [worker_group for worker_group, since in self._idle.items() if since < time.monotonic() - idle]
        self._idle |= dict.fromkeys(lost, math.inf)
        return {**{worker_group: self._name(trial) for worker_group, trial in busy.items()}, **dict.fromkeys(lost)}

    async def abandon(self, seconds: float, unplaced: list[str]) -> dict[str, str]:
        """Ends the trials that were told to stop and cannot hear it: their lanes have no place, or they have shown no
        sign of life for so long. Returns them by their lanes, whose groups are of no use any more."""
        bound = time.monotonic() - seconds
        unreachable = {
            worker_group: trial
            for worker_group, trial in self._assigned.items()
            if self._works[trial].stopped and (worker_group in unplaced or self._works[trial].heartbeat < bound)
        }
        named = {worker_group: self._name(trial) for worker_group, trial in unreachable.items()}
        for worker_group, trial in unreachable.items():
            self._works[trial].attempt.go_on = False
            self._end(worker_group, None)
        if unreachable:
            await self._tell()
        return named

    async def close(self) -> None:
        """Sends every lane home: idle ones now, busy ones as `stop` does."""
        self._closed = True
        for work in self._works.values():
            work.stopped = True
        await self._tell()

    # A lane's side

    async def refuse(self, worker_group: str, reason: str, node: str) -> None:
        """A lane's word that it cannot train at all, and on which node."""
        self._broken[worker_group] = (reason, node)
        await self._tell()

    async def add_message(self, words: str) -> None:
        """Has the driver log what several ranks may have to say, once."""
        if words not in self._messages:
            self._messages.append(words)
            self._write()

    async def next(self, worker_group: str, group: str) -> dict[str, Any]:
        """The lane's trial: the unfinished one where this group of ranks is new, else the next offered.

        Returns `{"trial", "assignment"}`, `{}` when none came within `POLL_TIMEOUT_S` seconds, `{"renew": True}` for a
        group that a new one shall replace, or `{"closed": True}`."""
        new = self._groups.get(worker_group) != group
        self._groups[worker_group] = group
        if new:
            self._renewed.discard(worker_group)
        if worker_group in self._assigned and (not new or self._restarted(worker_group)):
            await self._tell()
            return self._assignment(worker_group)
        self._idle.pop(worker_group, None)
        self._waiting.add(worker_group)
        await self._tell()

        def called() -> bool:
            return (
                self._closed
                or worker_group in self._renewed
                or self._groups[worker_group] != group
                or worker_group in self._retired
            )

        try:
            await self._until(lambda: called() or bool(self._pending), POLL_TIMEOUT_S)
        finally:
            if self._groups[worker_group] == group:
                self._waiting.discard(worker_group)
                self._idle[worker_group] = time.monotonic()
        if self._groups[worker_group] != group:
            return {}
        if self._closed or worker_group in self._retired:
            return {"closed": True}
        if worker_group in self._renewed:
            return {"renew": True}
        if not self._pending:
            return {}
        self._assigned[worker_group] = self._pending.popleft()
        del self._idle[worker_group]
        ended = [name for name, work in self._works.items() if work.ended]
        for trial in ended[:-WATCHED]:
            self._works[trial].reports.clear()
        for trial in ended[:-KEPT]:
            del self._works[trial]
        self._write()
        return self._assignment(worker_group)

    def _assignment(self, worker_group: str) -> dict[str, Any]:
        trial = self._assigned[worker_group]
        self._works[trial].heartbeat = time.monotonic()
        return {"trial": trial, "assignment": self._works[trial].assignment}

    def _restarted(self, worker_group: str) -> bool:
        """Whether a restarted lane should run its trial again."""
        work = self._works[self._assigned[worker_group]]
        work.attempt.go_on = False
        work.restarts += 1
        if work.stopped or self._closed:
            self._end(worker_group, None)
        elif work.restarts > RESTARTS:
            self._end(worker_group, f"{work.trouble}; given up after {RESTARTS} restarts without a new report")
        else:
            if work.trouble == DIED:
                name = self._name(self._assigned[worker_group])
                self._messages.append(f"{name} lost a worker of its lane; it goes on from its last checkpoint")
            work.attempt = _Attempt()
            work.trouble = DIED
        return worker_group in self._assigned

    def _name(self, trial: str) -> str:
        """What the trial is called: as its folder is, if it has one."""
        return Path(self._works[trial].assignment.get("folder", trial)).name

    def _end(self, worker_group: str, reason: str | None) -> None:
        self._idle[worker_group] = time.monotonic()
        work = self._works[self._assigned.pop(worker_group)]
        work.ended, work.reason, work.assignment = True, reason, {}

    async def report(self, trial: str, report: dict[str, Any]) -> bool:
        """Hands over a report and waits for its verdict: True means go on.

        A report that a resumed trial repeats is known by its `index`, is not delivered twice, and has the same verdict.
        """
        work = self._works[trial]
        index = int(report["index"])
        if index > work.seen:
            work.seen, work.restarts = index, 0
            work.reports.append(report)
            for worker_group in [worker_group for worker_group, own in self._assigned.items() if own == trial]:
                self._made[worker_group] = self._made.get(worker_group, 0) + 1
            await self._tell()
        work.heartbeat = math.inf
        await self._until(lambda: work.stopped or work.allowed >= index)
        work.heartbeat = time.monotonic()
        return not work.stopped

    async def stopped(self, trial: str) -> bool:
        """Whether the trial should end before its next report. That it asks is its sign of life, until it is told."""
        work = self._works[trial]
        if not work.stopped:
            work.heartbeat = time.monotonic()
        return work.stopped

    async def leave(
        self, worker_group: str, trial: str, rank: int, world: int, ending: Ending, reason: str, renew: bool = False
    ) -> bool:
        """One rank's word that it left the trial; waits for the others. False means: restart the group.

        Ranks that all finished, or all refused alike, go on together, unless one wants a new group (`renew`). Any other
        exception leaves collectives out of step, so the group is restarted, and the trial has failed unless the only
        cause was a rank's death.
        """
        work = self._works.get(trial)
        if work is None or self._assigned.get(worker_group) != trial:
            return work is None or work.attempt.go_on is not False
        attempt = work.attempt
        if renew:
            self._renewed.add(worker_group)
        if attempt.go_on is None:
            attempt.endings[rank] = (ending, reason)
            patience = None if ending == "done" else PEER_TIMEOUT_S
            if len(attempt.endings) < world:
                await self._until(lambda: attempt.go_on is not None or len(attempt.endings) == world, patience)
            if attempt.go_on is None:
                self._settle(worker_group, work, attempt, world)
                await self._tell()
        return bool(attempt.go_on)

    def _settle(self, worker_group: str, work: _Work, attempt: _Attempt, world: int) -> None:
        kinds = {ending for ending, _ in attempt.endings.values()}
        agreed = len(attempt.endings) == world and (world == 1 or kinds in ({"done"}, {"refused"}))
        attempt.go_on = agreed and worker_group not in self._renewed
        blamed = ("refused", "raised", "peer") if world == 1 else ("refused", "raised")  # alone, one has no peer
        own = [why for ending, why in attempt.endings.values() if ending in blamed]
        if own:
            self._end(worker_group, own[0])
        elif agreed:
            self._end(worker_group, None)
        else:
            work.trouble = next(why for ending, why in attempt.endings.values() if ending == "peer")
