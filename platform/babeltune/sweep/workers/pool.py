"""Warm worker groups: long-lived Ray Train groups that take trial after trial.

Each worker group is one Ray Train run (`worker_groups.py`). Its ranks wait at the dispatcher (`dispatcher.py`), run a
trial together (`worker.py`), and wait again, so a trial starts in milliseconds. When a worker dies, Ray Train restarts
all ranks of its group. The dispatcher hands them the same trial, which resumes from its own checkpoint. A new node adds
worker groups; a lost node removes those that it held."""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Self

import ray

from babeltune.errors import ClusterError, plural
from babeltune.sweep.workers.dispatcher_client import DispatcherClient
from babeltune.sweep.workers.dispatcher_driver_calls import POLL_TIMEOUT_S
from babeltune.sweep.workers.nodes import Blocklist, from_head, node_words, nodes_there, room_for, worker_groups_held
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.worker_groups import WorkerGroups

MAX_RUN_RESTARTS = 3  # restarts of a Ray Train run without a new report. After more, the worker group is given up.
TRIED = 3  # nodes on the blocklist after which a sweep without a working worker group ends with an error
SURVEY_INTERVAL_S = 5.0  # seconds between two surveys of the cluster's nodes
NO_ROOM_NOTICE_S = 5.0  # seconds without room for the first worker group before a note is logged
STOP_TIMEOUT_S = 120.0
"""Seconds without a heartbeat after which a stopped trial counts as ended. A worker group without a trial counts as
stalled after as long, at least: a new group of ranks sends nothing until it has started."""
START_TIMEOUT_S = 600.0  # seconds within which the dispatcher must start and answer
CLOSE_TIMEOUT_S = 2.0  # seconds within which the dispatcher must accept a fast close


class WorkerPool:
    """A sweep's dispatcher and worker groups, from `with` to the end of its block.

    There are as many worker groups as the cluster holds at each time, and no more than the settings' count. Callers
    hand trials to `dispatcher`. `note` logs what happens to worker groups. `surveyed` is called after each survey of
    the nodes with the number of workers that have a node. `waiting` is called about once a second until the first
    worker group is up; an exception that it raises ends the wait. Raises `ClusterError` when not even one fits, or when
    the workers cannot load the function that trains a trial."""

    def __init__(
        self,
        settings: PoolSettings,
        *,
        note: Callable[[str], None] = lambda _: None,
        surveyed: Callable[[int], None] = lambda _: None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.dispatcher = DispatcherClient()  # hands trials to worker groups, and brings their messages
        self._settings = settings
        self._limit = math.inf if settings.count == "auto" else settings.count
        self._first = int(min(self._limit, settings.fitting_groups()))
        self._groups = WorkerGroups(settings, self.dispatcher.name)
        self._bad = Blocklist(settings.workers, settings.resources)
        self._given_up: list[set[str]] = []
        """For each worker group that failed without a known reason, the nodes of the cluster at that time."""
        self._surveyed = 0.0
        self._messages_noted = 0  # how many of the dispatcher's messages are logged
        self._nowhere = False  # whether no node holds a worker group
        self._note, self._tell_placed, self._waiting = note, surveyed, waiting

    @property
    def count(self) -> int:
        """The number of worker groups now; before the block, the number to begin with."""
        return len(self._groups) or self._first

    def __enter__(self) -> Self:
        self.dispatcher.start()
        try:
            for _ in range(self._first):
                self._groups.add()
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
        since, noted = time.monotonic(), False
        while not self.dispatcher.ask("ready", 1.0, seconds=START_TIMEOUT_S):
            self._waiting()
            self.mend()
            late = time.monotonic() - since > NO_ROOM_NOTICE_S
            if late and not noted and not self._groups.ranks() and self._is_full():
                noted, free = True, from_head(ray.available_resources)
                cpus, gpus = self._settings.cpus_per_worker, self._settings.gpus_per_worker
                self._note(
                    f"the cluster has no room: a worker wants {plural(cpus, 'CPU')} and {plural(gpus, 'GPU')}, "
                    f"and {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free; waiting"
                )

    def mend(self) -> None:
        """To be called every second or so: restarts worker groups whose run ended, and adds as many as the nodes hold.

        Raises `ClusterError` if none can train."""
        self._leave_out_broken(self.dispatcher.ask("broken"))
        for words in self.dispatcher.ask("messages", self._messages_noted):
            self._messages_noted += 1
            self._note(words)
        for name in self._groups.ended(0):
            self._start_ended(name)
        lost = self._groups.lost()
        self._start_stalled(lost)
        for name, trial in self.dispatcher.ask("abandon", STOP_TIMEOUT_S, lost).items():
            self._note(f"{trial} cannot hear that it shall stop; it goes on from its last checkpoint")
            if name not in lost:
                self._groups.start_again(name)
        if time.monotonic() - self._surveyed > SURVEY_INTERVAL_S:
            self._surveyed = time.monotonic()
            self._survey()

    def _leave_out_broken(self, broken: Mapping[str, tuple[str, str]]) -> None:
        """Leaves out worker groups that refused to train, each with its reason and node, which the blocklist gets."""
        for name, (reason, node) in broken.items():
            if name not in self._groups:
                continue
            words = f"worker group {name} on {node_words(node)} {reason}"
            self._bad.add(node)
            if self._groups.keys() <= broken.keys() and (len(self._bad) >= TRIED or self._room() < 1):
                raise ClusterError(words)
            with self._bad.reserved(node):
                self._leave_out(name, f"{words.splitlines()[0]}; the sweep goes on without it")

    def _start_ended(self, name: str) -> None:
        """Starts a worker group whose run ended again, or gives it up after some restarts without a new report."""
        reason, before = self._groups.why_ended(name), self._groups[name]
        report_count = self.dispatcher.ask("report_count", name)
        respawns = before.respawns + 1 if report_count == before.reports_at_restart else 1
        if before.node is not None and before.node not in nodes_there():  # it went with its node
            respawns = before.respawns
        if respawns <= MAX_RUN_RESTARTS:
            self._note(f"worker group {name} ended ({reason}) and is started again")
            self._groups.start_again(name, respawns=respawns, report_count=report_count)
            return
        words = f"worker group {name} cannot train: {reason}; see Ray's logs of its workers, then resume"
        if len(self._groups) == 1:
            raise ClusterError(words)
        self._given_up.append(set(nodes_there()))
        self._leave_out(name, f"{words}; the sweep goes on without it")

    def _start_stalled(self, lost: Collection[str]) -> None:
        """Starts worker groups again whose trial makes no progress, or that ask for none though they have a node."""
        timeout = self._settings.progress_timeout
        idle = max(timeout, STOP_TIMEOUT_S)
        for name, trial in self.dispatcher.ask("stalled", timeout, idle).items():
            if trial is not None:
                self._note(f"{trial} makes no progress for {timeout:g} s; its worker group {name} is started again")
            elif name in self._groups and name not in lost:
                self._note(f"worker group {name} has asked for no trial for {idle:g} s; it is started again")
            else:
                continue
            self._groups.start_again(name)

    def _fitting(self, workers: int) -> int:
        """The number of worker groups with `workers` ranks that fit on the nodes outside the blocklist."""
        return worker_groups_held(workers, self._settings.resources, self._bad.good())

    def _is_full(self) -> bool:
        """Whether the nodes have no room for a worker group now."""
        return room_for(self._settings.resources) < self._settings.least

    def _room(self) -> int:
        """The largest number of worker groups now. One that was given up counts again once another node has come."""
        node_names = nodes_there().keys()
        given_up = sum(node_names <= nodes for nodes in self._given_up)
        return (self._fitting(self._settings.workers) or min(1, self._fitting(self._settings.least))) - given_up

    def _survey(self) -> None:
        """Adds worker groups on new nodes, removes those whose node is gone, and lets smaller ones grow."""
        self._bad.forget_those_gone()
        self._groups.free_ended()
        while len(self._groups) < min(self._limit, self._room()):
            self._note(f"there is room for another worker group: {self._groups.add()}")
        ranks = self._groups.ranks()
        self._groups.note_unplaced(ranks)
        lost = self._groups.lost()
        holding = self.dispatcher.ask("holding")
        for name in self._groups.unresponsive([name for name in holding if name not in lost]):
            self._note(f"the controller of worker group {name} does not answer; the group is started again")
            self._groups.start_again(name)
        nowhere = len(lost) == len(self._groups) and not self._fitting(self._settings.least)
        if nowhere and not self._nowhere:
            self._note("no node holds a worker group any more; waiting for one")
        self._nowhere = nowhere
        groups_to_remove = lost[: max(0, len(self._groups) - max(1, self._fitting(self._settings.least)))]
        if ranks and self._is_full():  # others have what is left, and shall have the trials
            groups_to_remove += [name for name in lost if name in holding and name not in groups_to_remove]
        for name in groups_to_remove:
            self._leave_out(name, f"worker group {name} has lost its node")
        for name, count in ranks.items():
            if count < self._settings.workers and room_for(self._settings.resources):
                self.dispatcher.ask("renew", name)
        self._tell_placed(self._groups.placed())

    def _leave_out(self, worker_group: str, why: str) -> None:
        """Ends a worker group for good. Another one gets its trial once none of its processes writes there."""
        self._groups.end([worker_group])
        trial = self.dispatcher.ask("retire", worker_group)
        self._note(f"{why}; {trial} goes on in another" if trial else why)

    def _tear_down(self, timeout: float) -> None:
        """Ends the worker groups, by force those that are late, and frees their resources."""
        with contextlib.suppress(ray.exceptions.RayError, ClusterError):
            self.dispatcher.ask("close", seconds=max(timeout, CLOSE_TIMEOUT_S))
            self._groups.ended(timeout)
        with contextlib.suppress(ray.exceptions.RayError, ClusterError):  # a head that stands still frees nothing
            self._groups.end(list(self._groups))
            self._bad.release()
        self.dispatcher.close()
