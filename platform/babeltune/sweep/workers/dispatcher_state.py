"""The state of the dispatcher: which trial each worker group trains, what was reported, who was asked to stop.

Plain data and rules, without Ray, clocks, files or waiting. `dispatcher.py` runs it as an actor."""

import math
from collections import deque
from dataclasses import dataclass, field

from babeltune.sweep.state.messages import TrialAssignment, TrialEnd

MAX_TRIAL_RESTARTS = 3  # restarts of the ranks while one trial makes no new report. After more, the trial fails.
MAX_ENDED_TRIALS = 100  # ended trials that are remembered, so that a late rank still gets the right answer
DIED = "a worker process of its worker group died"
ALIKE = ({"finished"}, {"refused"}, {"storage"}, {"refused", "storage"})
"""Kinds of the ranks' ends after which their processes can go on together."""


@dataclass
class TrialAttempt:
    """One run of a trial by a group of ranks. A restart makes a new one."""

    ends: dict[int, TrialEnd] = field(default_factory=dict)  # how each rank left
    go_on: bool | None = None  # whether the group may take the next trial. None until the ranks agreed.


@dataclass
class TrialRecord:
    """One trial in the dispatcher's state."""

    assignment: str  # the encoded `TrialAssignment`
    name: str  # the name of the trial's folder, for messages
    seen: int = 0  # the index of its latest report
    allowed: int = 0  # training may go past the report of this index
    stopped: bool = False
    end: TrialEnd | None = None
    restarts: int = 0
    trouble: TrialEnd | None = None  # why its group restarts. None if a worker process died.
    attempt: TrialAttempt = field(default_factory=TrialAttempt)
    worker_group: str | None = None
    heartbeat: float = math.inf
    """When its ranks last sent a heartbeat. Infinite while they wait for a verdict, or to be started again."""


@dataclass(frozen=True)
class News:
    """One thing for the driver, numbered: an encoded report, or the end of a trial."""

    number: int
    trial: str
    report: str | None = None
    end: TrialEnd | None = None


@dataclass
class DispatcherState:
    """All that the dispatcher knows."""

    trials: dict[str, TrialRecord] = field(default_factory=dict)
    pending: deque[str] = field(default_factory=deque)
    assigned: dict[str, str] = field(default_factory=dict)  # the trial of each busy worker group
    groups: dict[str, str] = field(default_factory=dict)  # the group of ranks of each worker group that asked last
    replaced: set[str] = field(default_factory=set)
    """Groups of ranks that others took the place of. A node that was lost may still have their processes."""
    broken: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Worker groups that cannot train, with the reason and the node's id."""
    report_counts: dict[str, int] = field(default_factory=dict)
    """How many new reports the trials of each worker group have handed over."""
    renewed: set[str] = field(default_factory=set)
    """Worker groups that need a new group of ranks before their next trial."""
    retired: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)  # events of trials and worker groups, for the driver's log
    closed: bool = False
    news: deque[News] = field(default_factory=deque)  # messages that the driver has not acknowledged, oldest first
    numbered: int = 0  # the number of the latest news
    ended: deque[str] = field(default_factory=deque)  # ended trials that are remembered, the oldest first

    # The driver's side

    def offer(self, trial: str, assignment: str) -> None:
        """Puts a trial where the next free worker group takes it."""
        if trial not in self.trials:
            self.trials[trial] = TrialRecord(assignment, TrialAssignment.decode(assignment).name)
            self.pending.append(trial)

    def stop(self, trial: str) -> None:
        """Ends the trial at its current report or, between two, when its ranks ask next."""
        if (record := self.trials.get(trial)) is None:
            return
        record.stopped = True
        if trial in self.pending:
            self.pending.remove(trial)
            self._finish(trial, TrialEnd("stopped"))

    def retire(self, worker_group: str) -> str | None:
        """Forgets a worker group that has no place to train. Its trial, the result, goes to the next free one."""
        self.retired.add(worker_group)
        self.replaced |= {group for name, group in self.groups.items() if name == worker_group}
        trial = self.assigned.pop(worker_group, None)
        if trial is not None:
            record = self.trials[trial]
            record.attempt, record.worker_group = TrialAttempt(), None
            self.pending.appendleft(trial)
        return trial

    def give_up_stopped_trial(self, worker_group: str) -> None:
        """Ends the trial of a worker group that was asked to stop and does not answer. Its ranks are of no more use."""
        self.trials[self.assigned[worker_group]].attempt.go_on = False
        self._end_trial_of(worker_group, TrialEnd("stopped"))

    def close(self) -> None:
        """Ends every worker group: idle ones now, busy ones as `stop` does."""
        self.closed = True
        for record in self.trials.values():
            record.stopped = True

    def stalled(self, trial: str, text: str) -> None:
        """Notes why the trial's group is about to restart: it shows no progress."""
        self.trials[trial].trouble = TrialEnd("restarts", text=text)
        self.trials[trial].heartbeat = math.inf

    def acknowledge(self, number: int) -> None:
        """Forgets the news up to this number, which the driver has."""
        while self.news and self.news[0].number <= number:
            self.news.popleft()

    def without_progress(self, since: float, *, stopped: bool = False) -> dict[str, str]:
        """Busy worker groups and their trials without a heartbeat since then; if `stopped`, those asked to stop."""
        return {
            worker_group: trial
            for worker_group, trial in self.assigned.items()
            if self.trials[trial].heartbeat < since and (self.trials[trial].stopped or not stopped)
        }

    # A worker group's side

    def join(self, worker_group: str, group: str) -> None:
        """A new group of ranks asks for work. If its worker group has a trial, that trial restarts or ends."""
        self.replaced |= {self.groups.get(worker_group, group)} - {group}
        self.groups[worker_group] = group
        self.renewed.discard(worker_group)
        if (trial := self.assigned.get(worker_group)) is None:
            return
        record = self.trials[trial]
        record.attempt.go_on = False
        record.restarts += 1
        if record.stopped or self.closed:
            self._end_trial_of(worker_group, TrialEnd("stopped"))
        elif record.restarts > MAX_TRIAL_RESTARTS:
            cause = record.trouble.text if record.trouble else DIED
            text = f"{cause}; given up after {MAX_TRIAL_RESTARTS} restarts without a new report"
            self._end_trial_of(worker_group, TrialEnd("restarts", text=text))
        else:
            if record.trouble is None:
                self.messages.append(f"{record.name} lost a worker process; it goes on from its last checkpoint")
            record.attempt, record.trouble = TrialAttempt(), None

    def assign(self, worker_group: str) -> None:
        """Gives a worker group the next trial."""
        trial = self.pending.popleft()
        self.assigned[worker_group], self.trials[trial].worker_group = trial, worker_group

    def report(self, trial: str, index: int, last: bool, text: str) -> None:
        """Takes a new report. The last one needs no verdict: nothing comes after it."""
        record = self.trials[trial]
        record.seen, record.restarts = index, 0
        if last:
            record.allowed = max(record.allowed, index)
        if (worker_group := record.worker_group) is not None:
            self.report_counts[worker_group] = self.report_counts.get(worker_group, 0) + 1
        self._tell(trial, report=text)

    def rank_left(self, trial: str, rank: int, end: str, renew: bool) -> None:
        """Notes how one rank left the trial, and whether its group needs new processes."""
        record = self.trials[trial]
        if renew and record.worker_group is not None:
            self.renewed.add(record.worker_group)
        if record.attempt.go_on is None:
            record.attempt.ends[rank] = TrialEnd.decode(end)

    def settle(self, trial: str, world: int) -> None:
        """Decides what becomes of the trial and its group, from what the ranks said.

        Ranks that all finished, or all refused alike, go on together, unless one needs new processes. Otherwise the
        group restarts. The trial has failed unless the only cause was another rank's death."""
        record = self.trials[trial]
        attempt, worker_group = record.attempt, record.worker_group
        if worker_group is None:
            return
        kinds = {str(end.kind) for end in attempt.ends.values()}
        agreed = len(attempt.ends) == world and (world == 1 or kinds in ALIKE)
        # An exception that not all ranks had leaves collectives out of step.
        attempt.go_on = agreed and worker_group not in self.renewed
        blamed = {"refused", "storage", "raised"} | ({"peer"} if world == 1 else set())  # alone, one has no peer
        blamed_ends = [end for _, end in sorted(attempt.ends.items()) if end.kind in blamed]
        if blamed_ends:
            self._end_trial_of(worker_group, blamed_ends[0])
        elif agreed:
            self._end_trial_of(worker_group, TrialEnd("stopped" if record.stopped else "finished"))
        else:
            record.trouble = next(end for end in attempt.ends.values() if end.kind == "peer")

    def _end_trial_of(self, worker_group: str, end: TrialEnd) -> None:
        self._finish(self.assigned.pop(worker_group), end)

    def _finish(self, trial: str, end: TrialEnd) -> None:
        record = self.trials[trial]
        record.end, record.assignment, record.worker_group = end, "", None
        self._tell(trial, end=end)
        self.ended.append(trial)
        while len(self.ended) > MAX_ENDED_TRIALS:
            del self.trials[self.ended.popleft()]

    def _tell(self, trial: str, *, report: str | None = None, end: TrialEnd | None = None) -> None:
        self.numbered += 1
        self.news.append(News(self.numbered, trial, report, end))
