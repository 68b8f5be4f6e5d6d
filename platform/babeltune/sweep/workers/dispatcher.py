"""The dispatcher between a sweep's search and its worker groups: it holds trials, reports and verdicts.

Plain asyncio, so that it can be tested alone; `pool.py` runs one as a small named actor. The search offers a trial, and
a free worker group takes it. Each of its reports waits for a verdict. The trial ends once all ranks of its worker group
agree.

The dispatcher writes its state to a file before it answers, so one that died continues from there. Every call may be
made twice, and the second gets the same answer.
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
"""Restarts of a worker group within one trial, without a new report, before that trial has failed."""
PEER_TIMEOUT_S = 5.0
"""Seconds that one failed rank waits for the others before its worker group is restarted."""
POLL_TIMEOUT_S = 10.0
"""Seconds after which the poll of an idle worker group is answered with nothing, so that its ranks stay in step."""
WATCHED = 8
"""Ended trials whose last report is kept, for a caller that restarts."""
KEPT = 100
"""Ended trials that are remembered, for callers that have not yet read their end."""

Ending = Literal["done", "refused", "raised", "peer"]
"""How a rank left a trial. `done`: finished or stopped. `refused`: a `BabeltuneError`, which all ranks raise alike.
`raised`: any other exception. `peer`: a collective broke because another rank did."""

DIED = "one of its worker processes died"


@dataclass
class _Attempt:
    """One run of a trial by one start of a worker group's ranks; a restart makes a new one."""

    endings: dict[int, tuple[Ending, str]] = field(default_factory=dict)
    go_on: bool | None = None
    """Whether the group may take the next trial; None until the ranks agreed."""


@dataclass
class _Work:
    """What the dispatcher knows of one trial."""

    assignment: dict[str, Any]
    reports: list[dict[str, Any]] = field(default_factory=list)
    """Reports that the search has not acknowledged."""
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
    """When its ranks last sent a heartbeat; infinite while they wait for a verdict or for a restart."""
    attempt: _Attempt = field(default_factory=_Attempt)


class TrialDispatcher:
    """Holds one assignment per worker group, one report queue per trial, and which trials are stopped."""

    def __init__(self, file: str | Path | None = None) -> None:
        """`file` keeps the state; if it exists, the dispatcher continues from it."""
        self._file = Path(file) if file is not None else None
        self._works: dict[str, _Work] = {}
        self._pending: deque[str] = deque()
        self._assigned: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        """For each worker group, the id of the start of its ranks that asked last."""
        self._waiting: set[str] = set()
        self._idle: dict[str, float] = {}
        """For each worker group that neither has a trial nor waits for one, the time since when. This lasts a moment.
        """
        self._broken: dict[str, tuple[str, str]] = {}
        """For each worker group that cannot train, the reason and the node's id."""
        self._made: dict[str, int] = {}
        """For each worker group, the number of new reports of its trials."""
        self._renewed: set[str] = set()
        """Worker groups whose ranks must restart before their next trial."""
        self._retired: set[str] = set()
        self._messages: list[str] = []
        """Messages about trials and worker groups for the driver's log."""
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
        """Queues a trial for the next free worker group."""
        if trial not in self._works:
            self._works[trial] = _Work(assignment)
            self._pending.append(trial)
            await self._tell()

    async def next_report(self, trial: str, after: int) -> dict[str, Any]:
        """Lets the trial go on past report `after` and waits for the next: `{"report": …}` or `{"ended": reason}`."""
        work = self._works[trial]
        work.allowed = max(work.allowed, after)
        # The last one stays: the trial's proxy may die before anybody else has read it.
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
        """The number of worker groups that wait for a trial, less the trials in the queue."""
        return max(0, len(self._waiting) - len(self._pending))

    async def ready(self, seconds: float) -> bool:
        """True once a worker group can train, False after `seconds`."""
        return await self._until(lambda: bool(self._groups.keys() - self._retired), seconds)

    async def renew(self, worker_group: str) -> None:
        """Asks the worker group to restart its ranks before its next trial."""
        self._renewed.add(worker_group)
        await self._tell()

    async def retire(self, worker_group: str) -> str | None:
        """Removes a worker group that has no node. Its trial, whose name is returned, goes to the next free one."""
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
        """The worker groups that have a trial."""
        return list(self._assigned)

    async def broken(self) -> dict[str, tuple[str, str]]:
        """The worker groups that cannot train at all, with reasons and the ids of their nodes."""
        return dict(self._broken)

    async def messages(self, after: int) -> list[str]:
        """The messages about trials and worker groups from number `after` on."""
        return self._messages[after:]

    async def made(self, worker_group: str) -> int:
        """The number of new reports of the worker group's trials."""
        return self._made.get(worker_group, 0)

    async def stalled(self, seconds: float, idle: float) -> dict[str, str | None]:
        """The worker groups whose trial (the value) has sent no heartbeat for `seconds`. The value is None for those
        that have neither had a trial nor asked for one for `idle` seconds. Each is returned once per start of its
        ranks."""
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
        """Ends the stopped trials that do not react: their worker groups have no node, or have sent no heartbeat for
        `seconds`. Returns the trials by worker group; these groups must be replaced."""
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
        """Ends every worker group: idle ones now, busy ones as `stop` does."""
        self._closed = True
        for work in self._works.values():
            work.stopped = True
        await self._tell()

    # A worker group's side

    async def refuse(self, worker_group: str, reason: str, node: str) -> None:
        """Records that a worker group cannot train at all, and on which node."""
        self._broken[worker_group] = (reason, node)
        await self._tell()

    async def add_message(self, words: str) -> None:
        """Adds a message to the driver's log, once if several ranks send the same."""
        if words not in self._messages:
            self._messages.append(words)
            self._write()

    async def next(self, worker_group: str, group: str) -> dict[str, Any]:
        """The worker group's trial: after a restart the unfinished one, else the next offered.

        Returns `{"trial", "assignment"}`, `{}` when none came within `POLL_TIMEOUT_S` seconds, `{"renew": True}` if the
        ranks must restart, or `{"closed": True}`.
        """
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
        """Whether a restarted worker group should run its trial again."""
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
                self._messages.append(f"{name} lost a worker process; it goes on from its last checkpoint")
            work.attempt = _Attempt()
            work.trouble = DIED
        return worker_group in self._assigned

    def _name(self, trial: str) -> str:
        """The trial's name in messages: its folder's name if it has a folder."""
        return Path(self._works[trial].assignment.get("folder", trial)).name

    def _end(self, worker_group: str, reason: str | None) -> None:
        self._idle[worker_group] = time.monotonic()
        work = self._works[self._assigned.pop(worker_group)]
        work.ended, work.reason, work.assignment = True, reason, {}

    async def report(self, trial: str, report: dict[str, Any]) -> bool:
        """Hands over a report and waits for its verdict: True means go on.

        A resumed trial may repeat a report. It is known by its `index`, is not delivered twice, and gets the same
        verdict.
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
        """Whether the trial should end before its next report. Each call counts as a heartbeat until the answer is
        yes."""
        work = self._works[trial]
        if not work.stopped:
            work.heartbeat = time.monotonic()
        return work.stopped

    async def leave(
        self, worker_group: str, trial: str, rank: int, world: int, ending: Ending, reason: str, renew: bool = False
    ) -> bool:
        """Records how one rank left the trial, and waits for the others. False means: restart the ranks.

        Ranks that all finished, or all refused alike, go on together, unless one asks for a restart (`renew`). Any
        other exception leaves collectives out of step, so the ranks are restarted. The trial has failed then, unless
        the only cause was a rank's death.
        """
        work = self._works.get(trial)
        if work is None or self._assigned.get(worker_group) != trial:
            return work is None or work.attempt.go_on is not False
        attempt = work.attempt
        if renew:
            self._renewed.add(worker_group)
        if attempt.go_on is None:
            attempt.endings[rank] = (ending, reason)
            timeout = None if ending == "done" else PEER_TIMEOUT_S
            if len(attempt.endings) < world:
                await self._until(lambda: attempt.go_on is not None or len(attempt.endings) == world, timeout)
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
