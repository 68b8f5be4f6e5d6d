"""Warm worker groups: long-lived Ray Train groups that take trial after trial.

Each worker group is one Ray Train run. Its ranks wait at the dispatcher (`dispatcher.py`), run a trial together
(`worker.py`), and wait again, so a trial starts in milliseconds. When a worker dies, Ray Train restarts all ranks of
its group. The dispatcher hands them the same trial, which resumes from its own checkpoint. A new node adds worker
groups; a lost node removes those that it held.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import ray
from ray._raylet import PlacementGroupID
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.util.placement_group import PlacementGroup, remove_placement_group

from babeltune.errors import ClusterError
from babeltune.schema.cluster import Isolation
from babeltune.sweep.state.lease_actor import NAMESPACE
from babeltune.sweep.state.messages import EndMessage, ReportMessage, TrialAssignment
from babeltune.sweep.workers.dispatcher import PENDING_CALLS, POLL_TIMEOUT_S, TrialDispatcher
from babeltune.sweep.workers.node_blocklist import NodeBlocklist
from babeltune.sweep.workers.nodes import (
    groups_of,
    here,
    least_taken,
    named,
    nodes_there,
    places_of,
    resources_of,
    room_for,
    worker_groups_held,
    worker_groups_that_fit,
)
from babeltune.sweep.workers.ray_train import WorkerGroupTrainer
from babeltune.sweep.workers.worker import worker_loop

RESPAWNS = 3
"""Restarts of a worker group whose Ray Train run ended, without a new report in between, before it is given up."""
TRIED = 3
"""Nodes on the blocklist after which a sweep without a working worker group ends with an error."""
TEAR_DOWN_TIMEOUT_S = 30.0
"""Seconds to wait for a worker group that was killed to free its resources."""
SURVEY = 5.0
"""Seconds between two surveys of the cluster's nodes."""
NO_ROOM_NOTICE_S = 5.0
"""Seconds without room for the first worker group before a note is logged."""
UNPLACED_TIMEOUT_S = 15.0
"""Seconds that a worker group without a node may wait for one before it is removed."""
STOP_TIMEOUT_S = 120.0
"""Seconds without a heartbeat after which a stopped trial counts as ended. A worker group without a trial counts as
stalled after as long, at least: a new group of ranks sends nothing until it has started."""

DISPATCHER_TIMEOUT_S = 60.0
"""Seconds within which the dispatcher must answer. It answers in milliseconds; this bears a machine that swaps."""
START_TIMEOUT_S = 600.0
"""Seconds within which its process must be there and answer for the first time."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds within which it must take the news that the sweep ends in a hurry, as after a second Ctrl-C."""
NO_ANSWER = (
    "the sweep's dispatcher has not answered for {:g} s: its process is stopped, or its machine hangs; every trial "
    "keeps its last checkpoint: `babeltune resume` goes on"
)


def worker_threads(cpus_per_worker: float) -> int:
    """Threads of torch in a worker."""
    return max(1, int(cpus_per_worker))


@dataclass
class _WorkerGroup:
    """One worker group's Ray Train run."""

    controller: Any
    run: Any
    """The future of the run's end."""
    node: str | None = None
    """The node on which its controller was started; None: the driver's."""
    unplaced: float | None = None
    """The time since when its ranks have had no node; None while they have one."""
    respawns: int = 0
    """Restarts since its last new report."""
    made: int = 0
    """Reports that it had made when it was last restarted."""


class WorkerPool:
    """A sweep's dispatcher and worker groups, from `with` to the end of its block.

    There are at most `count` worker groups of `workers` ranks each, as many as the cluster holds at each time. Where
    nodes are gone, a group has at least `least_workers` ranks. `note` logs what happens to worker groups. `waiting` is
    called about once a second until the first worker group is up; an exception that it raises ends the wait. A worker
    group whose trial makes no progress for `progress_timeout` seconds is replaced. Raises `ClusterError` when not even
    one fits, or when the workers cannot load `run_trial` (an import path).
    """

    def __init__(
        self,
        *,
        count: int | Literal["auto"],
        workers: int,
        cpus_per_worker: float,
        gpus_per_worker: float,
        run_trial: str,
        storage: str | Path,
        least_workers: int | None = None,
        isolation: Isolation = "worker_group",
        progress_timeout: float = 1800.0,
        note: Callable[[str], None] = lambda _: None,
        surveyed: Callable[[int], None] = lambda _: None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.dispatcher_name = f"dispatcher-{uuid.uuid4().hex[:8]}"
        self._workers, self._least = workers, min(workers, least_workers or workers)
        self._shares = cpus_per_worker, gpus_per_worker
        self._limit = math.inf if count == "auto" else count
        self._tell_placed = surveyed
        """Called after each survey of the nodes with the number of workers that have a node."""
        self._first = int(min(self._limit, worker_groups_that_fit(workers, *self._shares, least=self._least)))
        self._resources = resources_of(cpus_per_worker, gpus_per_worker)
        self._settings = {
            "dispatcher": self.dispatcher_name,
            "run_trial": run_trial,
            "threads": worker_threads(cpus_per_worker),
            "isolation": isolation,
        }
        self._storage = str(storage)
        self._dispatcher_file = Path(storage).absolute() / f"{self.dispatcher_name}.jsonl"
        self._worker_groups: dict[str, _WorkerGroup] = {}
        self._started = 0
        self._progress_timeout = progress_timeout
        self._inbox: dict[str, deque[ReportMessage | EndMessage]] = {}
        """Received messages of the trials that somebody follows."""
        self._filled: dict[str, None] = {}
        """Trials with messages, the longest waiting first."""
        self._given: dict[str, int] = {}
        """The last report of each trial that `next_message` gave."""
        self._poll: Any = None
        """The call that waits at the dispatcher for news."""
        self._polled = 0.0
        self._acknowledged = 0
        """The number of the last news that was received."""
        self._surveyed = 0.0
        self._bad = NodeBlocklist(workers, self._resources)
        self._messages_noted = 0
        """How many of the dispatcher's messages are logged."""
        self._given_up: list[set[str]] = []
        """For each worker group that failed without a known reason, the nodes of the cluster at that time."""
        self._nowhere = False
        """Whether no node holds a worker group."""
        self._note, self._waiting = note, waiting

    @property
    def count(self) -> int:
        """The number of worker groups now; before the block, the number to begin with."""
        return len(self._worker_groups) or self._first

    def __enter__(self) -> Self:
        self._dispatcher_file.parent.mkdir(parents=True, exist_ok=True)
        dispatcher = ray.remote(TrialDispatcher).options(
            name=self.dispatcher_name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=PENDING_CALLS,
            scheduling_strategy=here(),
        )
        self._dispatcher = dispatcher.remote(str(self._dispatcher_file))
        try:
            for _ in range(self._first):
                self._add()
            self._wait_for_one()
            self.mend()
        except BaseException:
            self._tear_down(timeout=0)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._tear_down(timeout=0 if kind else 2 * POLL_TIMEOUT_S)

    def _wait_for_one(self) -> None:
        """Waits until a worker group can train; logs once what they wait for if there is no room."""
        since, messages = time.monotonic(), False
        while not self._ask("ready", 1.0, seconds=START_TIMEOUT_S):
            self._waiting()
            self.mend()
            late = time.monotonic() - since > NO_ROOM_NOTICE_S
            if late and not messages and not self._ranks() and room_for(self._resources) < self._least:
                messages, free = True, ray.available_resources()
                self._note(
                    f"the cluster has no room: a worker wants {self._shares[0]:g} CPUs and {self._shares[1]:g} GPUs, "
                    f"and {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free; waiting"
                )

    def _add(self) -> str:
        worker_group = f"{self.dispatcher_name}-group-{self._started}"
        self._started += 1
        self._start(worker_group)
        return worker_group

    def _start(self, worker_group: str) -> None:
        """A Ray Train run of the worker group's ranks. Its controller takes 115 MB, so it is where ranks may be, and
        not on the driver's node."""
        taken = Counter(each.node for each in self._worker_groups.values() if each.node is not None)
        node = least_taken(self._resources, taken)
        trainer = WorkerGroupTrainer(
            worker_loop,
            name=worker_group,
            settings={**self._settings, "worker_group": worker_group},
            workers=self._workers,
            least_workers=self._least,
            resources=self._resources,
            storage=self._storage,
            node=node,
        )
        trainer.fit()
        self._worker_groups[worker_group] = _WorkerGroup(trainer.controller, trainer.controller.run.remote(), node)

    def mend(self) -> None:
        """Restarts worker groups whose run ended, and adds as many as the nodes hold. Raises `ClusterError` if none can
        train.

        Call it every second or so."""
        broken = self._ask("broken")
        for worker_group, (reason, node) in broken.items():
            if worker_group not in self._worker_groups:
                continue
            words = f"worker group {worker_group} on {named(node)} {reason}"
            self._bad.add(node)
            if self._worker_groups.keys() <= broken.keys() and (len(self._bad) >= TRIED or self._room() < 1):
                raise ClusterError(words)
            with self._bad.held(node):
                self._leave_out(worker_group, f"{words.splitlines()[0]}; the sweep goes on without it")
        for words in self._ask("messages", self._messages_noted):
            self._messages_noted += 1
            self._note(words)
        for worker_group in self._ended(0):
            reason, before = self._why_ended(worker_group), self._worker_groups[worker_group]
            made = self._ask("made", worker_group)
            respawns = before.respawns + 1 if made == before.made else 1
            if before.node is not None and before.node not in nodes_there():  # it went with its node
                respawns = before.respawns
            if respawns > RESPAWNS:
                words = (
                    f"worker group {worker_group} cannot train: {reason}; see Ray's logs of its workers, then resume"
                )
                if len(self._worker_groups) == 1:
                    raise ClusterError(words)
                self._given_up.append(set(nodes_there()))
                self._leave_out(worker_group, f"{words}; the sweep goes on without it")
                continue
            self._note(f"worker group {worker_group} ended ({reason}) and is started again")
            self._again(worker_group, respawns=respawns, made=made)
        lost = self._lost()
        idle = max(self._progress_timeout, STOP_TIMEOUT_S)
        for worker_group, trial in self._ask("stalled", self._progress_timeout, idle).items():
            if trial is not None:
                self._note(
                    f"{trial} makes no progress for {self._progress_timeout:g} s; "
                    f"its worker group {worker_group} is started again"
                )
            elif worker_group in self._worker_groups and worker_group not in lost:
                self._note(f"worker group {worker_group} has asked for no trial for {idle:g} s; it is started again")
            else:
                continue
            self._again(worker_group)
        for worker_group, trial in self._ask("abandon", STOP_TIMEOUT_S, lost).items():
            self._note(f"{trial} cannot hear that it shall stop; it goes on from its last checkpoint")
            if worker_group not in lost:
                self._again(worker_group)
        if time.monotonic() - self._surveyed > SURVEY:
            self._surveyed = time.monotonic()
            self._survey()

    def _again(self, worker_group: str, *, respawns: int = 0, made: int = 0) -> None:
        """Ends the worker group and starts it again, with its trial."""
        self._end([worker_group])
        self._start(worker_group)
        self._worker_groups[worker_group] = replace(self._worker_groups[worker_group], respawns=respawns, made=made)

    def _held(self, workers: int) -> int:
        """The number of worker groups with `workers` ranks that fit on the nodes outside the blocklist."""
        return worker_groups_held(workers, self._resources, self._bad.good())

    def _room(self) -> int:
        """The largest number of worker groups now. A group that was given up counts again once another node has
        come."""
        there = nodes_there().keys()
        given_up = sum(there <= nodes for nodes in self._given_up)
        return (self._held(self._workers) or min(1, self._held(self._least))) - given_up

    def _survey(self) -> None:
        """Adds worker groups on new nodes, removes those whose node is gone, and lets smaller ones grow."""
        self._bad.forget_those_gone()
        while len(self._worker_groups) < min(self._limit, self._room()):
            self._note(f"there is room for another worker group: {self._add()}")
        ranks = self._ranks()
        now = time.monotonic()
        for name, worker_group in self._worker_groups.items():
            worker_group.unplaced = None if name in ranks else worker_group.unplaced or now
        lost = self._lost()
        nowhere = len(lost) == len(self._worker_groups) and not self._held(self._least)
        if nowhere and not self._nowhere:
            self._note("no node holds a worker group any more; waiting for one")
        self._nowhere = nowhere
        gone = lost[: max(0, len(self._worker_groups) - max(1, self._held(self._least)))]
        if ranks and room_for(self._resources) < self._least:  # others have what is left, and shall have the trials
            holding = self._ask("holding")
            gone += [name for name in lost if name in holding and name not in gone]
        for name in gone:
            self._leave_out(name, f"worker group {name} has lost its node")
        for name, count in ranks.items():
            if count < self._workers and room_for(self._resources):
                self._ask("renew", name)
        self._tell_placed(self._placed())

    def _placed(self) -> int:
        """How many workers need no node from the autoscaler. All of them if a worker group starts with all ranks or
        none: its own placement group asks. Else those that have a node, and as many as there is room for."""
        if self._least == self._workers:
            return len(self._worker_groups) * self._workers
        controllers = {worker_group.controller._actor_id.binary() for worker_group in self._worker_groups.values()}
        return places_of(controllers) + room_for(self._resources)

    def _lost(self) -> list[str]:
        """The worker groups without a node for longer than `UNPLACED_TIMEOUT_S`."""
        since = time.monotonic() - UNPLACED_TIMEOUT_S
        return [
            name
            for name, worker_group in self._worker_groups.items()
            if worker_group.unplaced is not None and worker_group.unplaced < since
        ]

    def _leave_out(self, worker_group: str, why: str) -> None:
        """Ends a worker group for good. Another one gets its trial once no process of this one writes to the trial's
        folder."""
        self._end([worker_group])
        trial = self._ask("retire", worker_group)
        self._note(f"{why}; {trial} goes on in another" if trial else why)

    def _ranks(self) -> dict[str, int]:
        """The number of ranks of each worker group that has nodes."""
        creators = {
            worker_group.controller._actor_id.binary(): name for name, worker_group in self._worker_groups.items()
        }
        placed = [g for g in groups_of(set(creators)) if g.state == PlacementGroupTableData.CREATED]
        return {creators[group.creator_actor_id]: len(group.bundles) for group in placed}

    def _ended(self, seconds: float) -> list[str]:
        """The worker groups whose run is over; waits at most `seconds` until all are."""
        runs = [worker_group.run for worker_group in self._worker_groups.values()]
        ended = ray.wait(runs, num_returns=len(runs), timeout=seconds)[0] if runs else []
        return [name for name, worker_group in self._worker_groups.items() if worker_group.run in ended]

    def _why_ended(self, worker_group: str) -> str:
        try:
            ray.get(self._worker_groups[worker_group].run)
            error = ray.get(self._worker_groups[worker_group].controller.get_result.remote()).error
        except ray.exceptions.RayError as died:
            error = died
        return str(error).strip().splitlines()[-1] if error else "its training loop ended"

    def _ask(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """The dispatcher's answer. `ClusterError` if it gives none in time: it is stopped, or its machine hangs."""
        seconds = DISPATCHER_TIMEOUT_S if seconds is None else seconds
        try:
            return ray.get(getattr(self._dispatcher, method).remote(*arguments), timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise ClusterError(NO_ANSWER.format(seconds)) from error

    def offer(self, trial: str, assignment: TrialAssignment) -> None:
        """Hands a trial to the next free worker group. Its messages are kept until `forget`."""
        self._inbox.setdefault(trial, deque())
        self._ask("offer", trial, assignment.encode())

    def stop(self, trial: str) -> None:
        """Ends the trial, if it listens within about a second, else at its next report."""
        self._ask("stop", trial)

    def stop_all(self, trials: Iterable[str]) -> None:
        """`stop` of several trials, without waiting for an answer: it is also called on the way out."""
        for trial in trials:
            self._dispatcher.stop.remote(trial)

    def free(self) -> int:
        """Worker groups that wait for a trial."""
        return int(self._ask("free"))

    def go_on(self, trial: str, index: int) -> None:
        """Lets the trial train past its report of this index. Does not wait: a call that is lost is made again."""
        self._dispatcher.go_on.remote([(trial, index)])

    def receive(self, seconds: float) -> bool:
        """Waits at most so many seconds for messages of any trial; True if there are some now.

        One call waits at the dispatcher for all trials together. `ClusterError` if it has not come back long after it
        should have."""
        if self._poll is None:
            self._poll, self._polled = self._dispatcher.poll.remote(self._acknowledged), time.monotonic()
        if not ray.wait([self._poll], timeout=seconds)[0]:
            if time.monotonic() - self._polled > POLL_TIMEOUT_S + DISPATCHER_TIMEOUT_S:
                raise ClusterError(NO_ANSWER.format(DISPATCHER_TIMEOUT_S))
            return False
        poll, self._poll = self._poll, None
        for news in ray.get(poll):
            self._acknowledged = news.number
            if news.trial not in self._inbox:
                continue
            message = EndMessage(news.trial, news.end) if news.end else ReportMessage.decode(news.report)
            self._inbox[news.trial].append(message)
            self._filled[news.trial] = None
        return bool(self._filled)

    def with_messages(self) -> list[str]:
        """The trials with messages, the longest waiting first."""
        return list(self._filled)

    def take(self, trial: str) -> ReportMessage | EndMessage | None:
        """The trial's oldest message that was received, if there is one."""
        waiting = self._inbox.get(trial)
        message = waiting.popleft() if waiting else None
        if not waiting:
            self._filled.pop(trial, None)
        return message

    def forget(self, trial: str) -> None:
        """Drops the trial's messages, those to come included."""
        self._inbox.pop(trial, None)
        self._filled.pop(trial, None)

    def next_message(self, trial: str) -> ReportMessage | EndMessage:
        """Lets the trial go on past the report that this gave before, and waits for its next message."""
        if trial in self._given:
            self.go_on(trial, self._given[trial])
        while (message := self.take(trial)) is None:
            self.receive(1.0)
        if isinstance(message, ReportMessage):
            self._given[trial] = message.report.index
        return message

    def _tear_down(self, timeout: float) -> None:
        """Ends the worker groups, by force those that are late, and frees their resources."""
        with contextlib.suppress(ray.exceptions.RayError, ClusterError):
            self._ask("close", seconds=max(timeout, CLOSE_TIMEOUT_S))
            self._ended(timeout)
        self._end(list(self._worker_groups))
        self._bad.release()
        ray.kill(self._dispatcher)
        self._dispatcher_file.unlink(missing_ok=True)

    def _end(self, names: list[str]) -> None:
        """Ends worker groups by force and waits until what they held is free.

        Ray frees a dead controller's placement groups only with the whole job. The last one may be unknown to every
        rank, so they are found by their creator once it is dead.
        """
        worker_groups = [self._worker_groups.pop(name) for name in names]
        for worker_group in worker_groups:
            ray.kill(worker_group.controller)
        if worker_groups:
            ray.wait(
                [worker_group.run for worker_group in worker_groups],
                num_returns=len(worker_groups),
                timeout=TEAR_DOWN_TIMEOUT_S,
            )
        deadline = time.monotonic() + TEAR_DOWN_TIMEOUT_S
        while (
            held := groups_of({worker_group.controller._actor_id.binary() for worker_group in worker_groups})
        ) and time.monotonic() < deadline:
            for group in held:
                remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
            time.sleep(0.05)
