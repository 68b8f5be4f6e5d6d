"""Nodes that a cluster starts when they are asked for: asked for with a sweep's lanes, and let go with its end.

Each worker without a node has a placement group that nothing has room for, of which an autoscaler makes nodes. Ray's
own `request_resources` would outlive a driver that is killed, and each driver's would replace the others'; a placement
group ends with its driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from babeltune.data.prepare import Progress
from babeltune.errors import ClusterError
from babeltune.schema.cluster import Cluster
from babeltune.sweep.workers.nodes import is_placed, resources_of, room_for, worker_groups_that_fit

POLL_INTERVAL_S = 1.0
"""Seconds between two looks for the first nodes."""


@contextmanager
def nodes_asked(
    cluster: Cluster, *, trials: int, note: Callable[[str], None], progress: Progress
) -> Iterator[Callable[[int], None]]:
    """Asks for the nodes of the lanes of `trials` until the end of the block, which begins when one lane has its own.

    The block is given what it tells, from time to time, how many workers have nodes: those of others are asked for.
    Raises `ClusterError` where not one lane fits within `cluster.nodes_within`; meanwhile, whatever `progress` raises.
    """
    if not cluster.nodes_within:
        yield lambda _: None
        return
    worker_groups = 1 if cluster.lanes == "auto" else max(1, min(cluster.lanes, trials))
    asked = _Asked(worker_groups * cluster.workers, cluster, note)
    deadline = time.monotonic() + cluster.nodes_within
    try:
        while not (fitting := asked.poll(last=time.monotonic() > deadline)):
            progress("waiting for nodes", 0, 1)
            time.sleep(POLL_INTERVAL_S)
        asked.keep(fitting * cluster.workers)
        yield asked.keep
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            asked.keep(worker_groups * cluster.workers)


class _Asked:
    """The placement groups of workers that have no nodes."""

    def __init__(self, workers: int, cluster: Cluster, note: Callable[[str], None]) -> None:
        self._workers, self._cluster, self._note = workers, cluster, note
        self._worker = resources_of(cluster.cpus_per_worker, cluster.gpus_per_worker)
        self._elastic = cluster.least_workers is not None
        self._groups: list[PlacementGroup] = []
        self._missing = workers
        """How many had none at the last look."""

    def poll(self, *, last: bool) -> int:
        """How many lanes fit now; asks for the nodes where none does, or raises if this was the `last` look."""
        cluster = self._cluster
        try:
            least = min(cluster.workers, cluster.least_workers or cluster.workers)
            return worker_groups_that_fit(
                cluster.workers, cluster.cpus_per_worker, cluster.gpus_per_worker, least=least
            )
        except ClusterError:
            if last:
                raise ClusterError(
                    f"no nodes have come within {cluster.nodes_within:g} s (`nodes_within`), asked for "
                    f"{self._wanted(self._workers)}; `ray status` on the head says what keeps them; `babeltune resume` "
                    "asks again"
                ) from None
            self.keep(0)
            return 0

    def keep(self, there: int) -> None:
        """Asks for the nodes of all workers but the `there` that have theirs.

        Those of a lane that starts again are missed for a moment only, and not asked for. A group for which a node has
        come is removed, and a worker takes its place; until it has, nothing more is asked for, which would take it. A
        lane that waits for more room than there is, too, comes first.
        """
        before, now = len(self._groups), max(0, self._workers - there)
        missing, self._missing = min(now, self._missing), now
        come = [group for group in self._groups if is_placed(group)]
        waiting = [group for group in self._groups if group not in come]
        for group in come + waiting[missing:]:
            remove_placement_group(group)
        lanes_first = come or (self._elastic and room_for(self._worker))
        more = 0 if lanes_first else missing - len(waiting)
        self._groups = waiting[:missing] + [placement_group([self._worker]) for _ in range(more)]
        if more > 0 and missing > before:
            self._note(f"waiting for nodes: asked for {self._wanted(missing)}")

    def _wanted(self, workers: int) -> str:
        worker = ", ".join(f"{name}: {share:g}" for name, share in self._worker.items())
        return f"{workers} × {{{worker}}}"
