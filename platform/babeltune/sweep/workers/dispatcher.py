"""The actor between a sweep's search and its worker groups: trials wait here, reports and verdicts cross here.

A trial is offered, and a free worker group takes it. Each of its reports waits for a verdict. It ends once all ranks of
its group agree that it did. `DispatcherState` holds the rules. `dispatcher_driver_calls.py` answers the driver, and
this file the worker groups. `dispatcher_client.py` runs it as a small named actor. It is plain asyncio, so it also runs
alone.

Every call may be made twice, and the second has the first one's answer. Nothing of it is on a disk: a dispatcher that
died takes its worker groups with it. The driver starts new ones, and trials go on from their checkpoints."""

import time
from dataclasses import dataclass

from babeltune.errors import ReplacedError
from babeltune.sweep.state.messages import Order, TrialAssignment, TrialEnd
from babeltune.sweep.workers.dispatcher_driver_calls import POLL_TIMEOUT_S, DriverCalls

PEER_TIMEOUT_S = 5.0  # seconds that one failed rank waits for the others before its group is restarted
STOP_QUESTIONS_PER_S = 200.0
"""Questions whether to stop that all trials together may ask in a second. Each trial asks once a second if it can."""
PENDING_CALLS = 100_000
"""Calls that may wait at once. Ray's default of 1,000 blocks every later call, also those of the driver."""


@dataclass(frozen=True)
class StopReply:
    """Whether a trial should end, and in how many seconds its rank 0 should ask again."""

    stopped: bool
    ask_again_s: float


class TrialDispatcher(DriverCalls):
    """Holds one assignment per worker group, the news for the driver, and who was asked to stop."""

    async def refuse(self, worker_group: str, reason: str, node: str) -> None:
        """Notes that a worker group cannot train at all, and on which node."""
        self._state.broken[worker_group] = (reason, node)

    async def add_message(self, text: str) -> None:
        """Has the driver log a text once, although several ranks may say it."""
        if text not in self._state.messages:
            self._state.messages.append(text)

    async def next(self, worker_group: str, group: str) -> Order:
        """The worker group's trial: the unfinished one if this group of ranks is new, else the next offered."""
        state = self._state
        if group in state.replaced:
            return Order("close")
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
        self._change(self._state.assign, worker_group)
        del self._idle[worker_group]
        return self._order(worker_group)

    def _refuse_replaced(self, group: str) -> None:
        """Raises `ReplacedError` if other ranks have taken the place of this group."""
        if group in self._state.replaced:
            raise ReplacedError("other ranks have taken the place of these, which were lost for a while")

    def _join(self, worker_group: str, group: str) -> None:
        """A new group of ranks asks for the first time."""
        had = self._state.assigned.get(worker_group)
        self._change(self._state.join, worker_group, group)
        self._wake("ready", ("next", worker_group))
        if had is not None:
            self._wake(("leave", had))

    def _order(self, worker_group: str) -> Order:
        trial = self._state.assigned[worker_group]
        record = self._state.trials[trial]
        record.heartbeat = time.monotonic()
        return Order("train", trial, TrialAssignment.decode(record.assignment))

    async def report(
        self, trial: str, index: int, last: bool, text: str, group: str = "", seconds: float = POLL_TIMEOUT_S
    ) -> bool | None:
        """Hands over an encoded report and waits for its verdict: True means go on. None after `seconds` without one:
        the caller hands the report over again.

        A resumed trial may repeat a report. It is known by its index, is not delivered twice, and has the same verdict.
        `ReplacedError` from ranks of a group that others replaced."""
        self._refuse_replaced(group)
        record = self._state.trials.get(trial)
        if record is None:
            return False
        if index > record.seen:
            self._change(self._state.report, trial, index, last, text)
        record.heartbeat = float("inf")
        decided = await self._until(("report", trial), lambda: record.stopped or record.allowed >= index, seconds)
        record.heartbeat = time.monotonic()
        return not record.stopped if decided else None

    async def stopped(self, trial: str, group: str = "") -> StopReply:
        """Whether the trial should end before its next report: its heartbeat, until it stops. Raises as `report`."""
        self._refuse_replaced(group)
        record = self._state.trials.get(trial)
        if record is not None and not record.stopped:
            record.heartbeat = time.monotonic()
        return StopReply(record is None or record.stopped, max(1.0, len(self._state.assigned) / STOP_QUESTIONS_PER_S))

    async def leave(
        self, worker_group: str, trial: str, rank: int, world: int, end: str, renew: bool = False, group: str = ""
    ) -> bool | None:
        """Notes how one rank left the trial, waits for the others, and settles. False means: restart the group. None
        after some seconds without the others: the rank says it again. Raises as `report`."""
        self._refuse_replaced(group)
        record = self._state.trials.get(trial)
        if record is None or self._state.assigned.get(worker_group) != trial:
            return record is None or record.attempt.go_on is not False
        attempt = record.attempt
        if rank not in attempt.ends:
            self._change(self._state.rank_left, trial, rank, end, renew)
        if attempt.go_on is None:
            finished = TrialEnd.decode(end).kind == "finished"
            self._wake(("leave", trial))
            all_left = await self._until(
                ("leave", trial),
                lambda: attempt.go_on is not None or len(attempt.ends) == world,
                POLL_TIMEOUT_S if finished else PEER_TIMEOUT_S,
            )
            if finished and not all_left:
                return None
            if attempt.go_on is None and self._state.assigned.get(worker_group) == trial:
                self._change(self._state.settle, trial, world)
                if worker_group not in self._state.assigned:
                    self._idle[worker_group] = time.monotonic()
                self._wake(("report", trial), ("leave", trial))
        return bool(attempt.go_on)
