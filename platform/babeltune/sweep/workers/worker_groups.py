"""The worker groups of a pool as Ray Train's runs: started, found on the nodes, and ended."""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from babeltune.sweep.ray_internals import PlacementGroupTableData, id_of, placement_group_id
from babeltune.sweep.workers.nodes import groups_of, least_taken, places_of, room_for
from babeltune.sweep.workers.pool_settings import PoolSettings
from babeltune.sweep.workers.ray_train import WorkerGroupTrainer
from babeltune.sweep.workers.worker import worker_loop

TEAR_DOWN_TIMEOUT_S = 30.0  # seconds to wait for a worker group that was killed to free its resources
CONTROLLER_TIMEOUT_S = 10.0
"""Seconds within which a controller whose run is over must say why. It answers at once unless it is stopped."""
UNANSWERED_SURVEYS = 60
"""Surveys in a row, five minutes, that a question to a controller may wait. It answers none while its ranks start. A
count, because a driver that was stopped for a while has not waited for an answer."""
UNPLACED_TIMEOUT_S = 15.0  # seconds that a worker group without a node may wait for one before it counts as lost


@dataclass
class WorkerGroup:
    """One worker group's Ray Train run."""

    controller: Any
    run: Any  # the future of the run's end
    node: str | None = None  # the node on which its controller was started; None: the driver's
    unplaced: float | None = None  # the time since when its ranks have had no node; None while they have one
    respawns: int = 0  # restarts since its last new report
    reports_at_restart: int = 0  # reports that its trials had made when it was last restarted
    answer: ray.ObjectRef | None = None  # the last question to its controller, whether it lives; None: none is open
    unanswered: int = 0  # surveys that this question has waited

    @property
    def creator(self) -> bytes:
        """The id of the actor that creates the placement groups of its ranks."""
        return id_of(self.controller)


class WorkerGroups(dict[str, WorkerGroup]):
    """Worker groups by name. Their ranks ask the dispatcher of this name for trials."""

    def __init__(self, settings: PoolSettings, dispatcher: str) -> None:
        self._settings, self._dispatcher = settings, dispatcher
        super().__init__()
        self._started = 0
        self._ended: set[bytes] = set()
        """The creators of worker groups that were ended. Their processes may live on, if their node was lost."""

    def add(self) -> str:
        """Starts one more, and returns its name."""
        name = f"{self._dispatcher}-group-{self._started}"
        self._started += 1
        self._start(name)
        return name

    def start_again(self, name: str, *, respawns: int = 0, report_count: int = 0) -> None:
        """Ends the worker group and starts it again; the dispatcher hands it its trial."""
        self.end([name])
        self._start(name)
        self[name].respawns, self[name].reports_at_restart = respawns, report_count

    def _start(self, name: str) -> None:
        """A Ray Train run of the worker group's ranks."""
        # Its controller takes 115 MB, so it is where ranks may be, and not on the driver's node.
        by_node = Counter(group.node for group in self.values() if group.node is not None)
        node = least_taken(self._settings.resources, by_node)
        trainer = WorkerGroupTrainer(worker_loop, self._settings, dispatcher=self._dispatcher, name=name, node=node)
        trainer.fit()
        self[name] = WorkerGroup(trainer.controller, trainer.controller.run.remote(), node)

    def ranks(self) -> dict[str, int]:
        """The number of ranks of each worker group that has nodes."""
        creators = {group.creator: name for name, group in self.items()}
        placed = [g for g in groups_of(set(creators)) if g.state == PlacementGroupTableData.CREATED]
        return {creators[group.creator_actor_id]: len(group.bundles) for group in placed}

    def placed(self) -> int:
        """How many workers need no node from the autoscaler. All of them if a worker group starts with all ranks or
        none: its own placement group asks. Else those that have a node, and as many as there is room for."""
        if self._settings.least == self._settings.workers:
            return len(self) * self._settings.workers
        return places_of({group.creator for group in self.values()}) + room_for(self._settings.resources)

    def note_unplaced(self, placed: Collection[str]) -> None:
        """Notes since when each of the others has had no node."""
        now = time.monotonic()
        for name, group in self.items():
            group.unplaced = None if name in placed else group.unplaced or now

    def lost(self) -> list[str]:
        """The worker groups without a node for longer than `UNPLACED_TIMEOUT_S`."""
        since = time.monotonic() - UNPLACED_TIMEOUT_S
        return [name for name, group in self.items() if group.unplaced is not None and group.unplaced < since]

    def unresponsive(self, names: Collection[str]) -> list[str]:
        """Asks the controllers of these groups whether they live. Returns the groups whose controller has not answered
        in `UNANSWERED_SURVEYS` calls: it is stopped, and would not see that its ranks die."""
        group_of = {group.answer: group for group in self.values() if group.answer is not None}
        for answer in ray.wait(list(group_of), num_returns=len(group_of), timeout=0)[0] if group_of else []:
            group_of[answer].answer, group_of[answer].unanswered = None, 0
        groups = [(name, self[name]) for name in names if name in self]
        for _, group in groups:
            group.unanswered += group.answer is not None
            group.answer = group.answer or group.controller.lives.remote()
        return [name for name, group in groups if group.unanswered >= UNANSWERED_SURVEYS]

    def ended(self, seconds: float) -> list[str]:
        """The worker groups whose run is over; waits at most `seconds` until all are."""
        runs = [group.run for group in self.values()]
        ended = ray.wait(runs, num_returns=len(runs), timeout=seconds)[0] if runs else []
        return [name for name, group in self.items() if group.run in ended]

    def why_ended(self, name: str) -> str:
        """The last line of the error that ended the worker group's run."""
        group = self[name]
        try:
            ray.get(group.run, timeout=CONTROLLER_TIMEOUT_S)
            error = ray.get(group.controller.get_result.remote(), timeout=CONTROLLER_TIMEOUT_S).error
        except ray.exceptions.GetTimeoutError:
            return f"its controller has not said why within {CONTROLLER_TIMEOUT_S:g} s"
        except ray.exceptions.RayError as died:
            error = died
        return str(error).strip().splitlines()[-1] if error else "its training loop ended"

    def end(self, names: Collection[str]) -> None:
        """Ends worker groups by force and waits until what they held is free."""
        groups = [self.pop(name) for name in names]
        for group in groups:
            ray.kill(group.controller)
        if groups:
            ray.wait([group.run for group in groups], num_returns=len(groups), timeout=TEAR_DOWN_TIMEOUT_S)
        # Ray frees a dead controller's placement groups only with the whole job. The last one may be unknown to every
        # rank, so they are found by their creator once it is dead.
        self._ended |= {group.creator for group in groups}
        deadline = time.monotonic() + TEAR_DOWN_TIMEOUT_S
        while self.free_ended() and time.monotonic() < deadline:
            time.sleep(0.05)

    def free_ended(self) -> bool:
        """Frees what ended worker groups hold; False if that is nothing. A controller that lives may ask for more."""
        placement_groups = groups_of(self._ended) if self._ended else []
        for placement in placement_groups:
            remove_placement_group(PlacementGroup(placement_group_id(placement.placement_group_id)))
        return bool(placement_groups)
