"""Asks an autoscaler for the nodes of a sweep's worker groups, and releases them when the sweep ends.

Each worker without a node has a pending placement group, for which an autoscaler starts nodes. Ray's own
`request_resources` would outlive a driver that is killed, and each driver's would replace the others'. A placement
group ends with its driver."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from babeltune.errors import ClusterError
from babeltune.schema.cluster import Cluster
from babeltune.stages import Progress
from babeltune.sweep.workers.nodes import is_placed, resources_of, room_for, worker_groups_that_fit

POLL_INTERVAL_S = 1.0  # seconds between two checks for the first nodes


@contextmanager
def nodes_asked(
    cluster: Cluster, *, trials: int, note: Callable[[str], None], progress: Progress
) -> Iterator[Callable[[int], None]]:
    """Asks for the nodes of the worker groups of `trials` until the block ends. The block begins when one group has a
    node.

    It yields a function: call it now and then with the number of workers that have a node, and it asks for the rest.
    Raises `ClusterError` if no worker group fits within `cluster.nodes_within`, and whatever `progress` raises."""
    if not cluster.nodes_within:
        yield lambda _: None
        return
    worker_groups = 1 if cluster.worker_groups == "auto" else max(1, min(cluster.worker_groups, trials))
    request = _Asked(worker_groups * cluster.workers, cluster, note)
    deadline = time.monotonic() + cluster.nodes_within
    try:
        while not (fitting := request.poll(last=time.monotonic() > deadline)):
            progress("waiting for nodes", 0, 1)
            time.sleep(POLL_INTERVAL_S)
        request.keep(fitting * cluster.workers)
        yield request.keep
    finally:
        with contextlib.suppress(ray.exceptions.RayError, ClusterError):
            request.keep(worker_groups * cluster.workers)


class _Asked:
    """The placement groups of workers that have no nodes."""

    def __init__(self, workers: int, cluster: Cluster, note: Callable[[str], None]) -> None:
        self._workers, self._cluster, self._note = workers, cluster, note
        self._worker = resources_of(cluster.cpus_per_worker, cluster.gpus)
        self._elastic = cluster.least_workers is not None
        self._groups: list[PlacementGroup] = []
        self._missing = workers  # the number of workers without a node at the last call

    def poll(self, *, last: bool) -> int:
        """How many worker groups fit now. If none does, it asks for the nodes, or raises at the `last` attempt."""
        cluster = self._cluster
        try:
            least = min(cluster.workers, cluster.least_workers or cluster.workers)
            return worker_groups_that_fit(cluster.workers, cluster.cpus_per_worker, cluster.gpus, least=least)
        except ClusterError:
            if last:
                raise ClusterError(
                    f"no nodes have come within {cluster.nodes_within:g} s (`nodes_within`), asked for "
                    f"{self._requested(self._workers)}; `ray status` on the head says what keeps them; "
                    "`babeltune resume` asks again"
                ) from None
            self.keep(0)
            return 0

    def keep(self, nodes: int) -> None:
        """Asks for the nodes of all workers but the `there` that have one.

        Workers of a group that restarts have no node for a moment; none is asked for. When a node has come, its
        placement group is removed and a worker takes the room. Until then nothing more is asked for, as it would take
        that room. A worker group that waits for more room also comes first."""
        before, now = len(self._groups), max(0, self._workers - nodes)
        missing, self._missing = min(now, self._missing), now
        come = [group for group in self._groups if is_placed(group)]
        waiting = [group for group in self._groups if group not in come]
        for group in come + waiting[missing:]:
            remove_placement_group(group)
        worker_groups_first = come or (self._elastic and room_for(self._worker))
        more = 0 if worker_groups_first else missing - len(waiting)
        self._groups = waiting[:missing] + [placement_group([self._worker]) for _ in range(more)]
        if more > 0 and missing > before:
            self._note(f"waiting for nodes: asked for {self._requested(missing)}")

    def _requested(self, workers: int) -> str:
        worker = ", ".join(f"{name}: {share:g}" for name, share in self._worker.items())
        return f"{workers} × {{{worker}}}"
