"""The cluster's nodes: which are alive, how many worker groups they hold, and which placement groups use them.

The head's GCS knows this. Ray would wait for ever for one that stands still, and meanwhile Python would take no signal.
So all that `babeltune.sweep` asks of it goes through `from_head`."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from babeltune.errors import ClusterError, plural
from babeltune.signals import answered
from babeltune.sweep import ray_internals
from babeltune.sweep.ray_internals import PlacementGroupTableData

Answer = TypeVar("Answer")
HEAD_TIMEOUT_S = 60.0  # seconds within which the head must answer. Ray itself gives up placement groups after as long.
NODE_ID = "ray.io/node-id"  # the label that Ray gives each node
MOST_HELD, HOLD_TIMEOUT_S = 256, 2.0  # workers whose room is reserved on a node, and seconds to wait for it to be free


def from_head(question: Callable[..., Answer], *arguments: Any, **keywords: Any) -> Answer:
    """The head's answer to a question of Ray's. `ClusterError` if it does not come within `HEAD_TIMEOUT_S`."""
    late = ClusterError(
        f"the cluster's head has not answered for {HEAD_TIMEOUT_S:g} s: its GCS is stopped, or its machine hangs; "
        "every trial keeps its last checkpoint: `babeltune resume` goes on"
    )
    return answered(partial(question, *arguments, **keywords), HEAD_TIMEOUT_S, late)


def here() -> NodeAffinitySchedulingStrategy:
    """The scheduling strategy for actors that live and die with the driver: on its node."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def beside(node: str | None) -> NodeAffinitySchedulingStrategy:
    """The scheduling strategy for actors on this node, or on the driver's. If it is gone, the pool starts another."""
    return here() if node is None else NodeAffinitySchedulingStrategy(node, soft=False)


def least_taken(worker: Mapping[str, float], counts: Mapping[str, int]) -> str | None:
    """The node with the fewest controllers for its size that holds such a worker and is not the driver's, if any."""
    this_node = ray.get_runtime_context().get_node_id()
    room = {node: workers_held(worker, resources) for node, resources in nodes_there().items() if node != this_node}
    able = {node: count for node, count in room.items() if count > 0}
    return min(able, key=lambda node: (counts.get(node, 0) / able[node], node), default=None)


def nodes_there() -> dict[str, dict[str, float]]:
    """The resources of the nodes that are alive, by their ids."""
    return {node["NodeID"]: node["Resources"] for node in from_head(ray.nodes) if node["Alive"]}


def is_dead(node: str) -> bool:
    """Whether Ray holds the node with this id to be dead. A node that it does not know may be yet to come."""
    return any(each["NodeID"] == node and not each["Alive"] for each in from_head(ray.nodes))


def are_several() -> bool:
    """Whether more than one node has CPUs to work with."""
    return sum(resources.get("CPU", 0.0) > 0 for resources in nodes_there().values()) > 1


def node_words(node: str) -> str:
    """The address and short id of the node with this id, for messages."""
    places = [each["NodeManagerAddress"] for each in from_head(ray.nodes) if each["NodeID"] == node]
    return f"{places[0] if places else 'a node that is gone'} (node {node[:8]})"


def workers_held(worker: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many workers with these resources the node holds."""
    return int(min(node.get(name, 0.0) / share for name, share in worker.items()) + 1e-6)


def worker_groups_held(workers: int, worker: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many worker groups the nodes hold together; one per node if a worker needs neither CPUs nor GPUs."""
    if not takes_room(worker):
        return len(nodes)
    return sum(workers_held(worker, node) for node in nodes) // workers


def worker_groups_that_fit(
    workers: int,
    cpus_per_worker: float,
    gpus_per_worker: float,
    *,
    least: int | None = None,
    nodes: Sequence[Mapping[str, float]] | None = None,
) -> int:
    """How many worker groups the nodes hold, and one if they hold `least` workers only. Raises `ClusterError` for none.

    Without `nodes`, those of the connected cluster count."""
    nodes = list(nodes_there().values()) if nodes is None else nodes
    worker = resources_of(cpus_per_worker, gpus_per_worker)
    count = worker_groups_held(workers, worker, nodes) or min(1, worker_groups_held(least or workers, worker, nodes))
    if count < 1:
        cpus, gpus = sum(n.get("CPU", 0) for n in nodes), sum(n.get("GPU", 0) for n in nodes)
        raise ClusterError(
            f"a worker group of {plural(least or workers, 'worker')} with {plural(cpus_per_worker, 'CPU')} and "
            f"{plural(gpus_per_worker, 'GPU')} each does not fit: the cluster has {plural(cpus, 'CPU')} and "
            f"{plural(gpus, 'GPU')} in all (nodes: {len(nodes)}); "
            "lower budget.workers in the sweep file, or cpus_per_worker or gpus_per_worker in the cluster file; "
            "`nodes_within` there asks for nodes where an autoscaler starts them"
        )
    return count


def resources_of(cpus_per_worker: float, gpus_per_worker: float) -> dict[str, float]:
    """The resources of one worker for Ray. It must need something: a byte of memory, if neither CPUs nor GPUs."""
    shares = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
    return {name: share for name, share in shares.items() if share} or {"memory": 1}


def takes_room(worker: Mapping[str, float]) -> bool:
    """Whether the worker needs CPUs or GPUs."""
    return bool({"CPU", "GPU"} & worker.keys())


def room_for(worker: Mapping[str, float]) -> int:
    """How many workers of these resources the nodes have room for now."""
    return sum(workers_held(worker, free) for free in free_resources().values())


def cpus_there() -> int:
    """How many CPUs the cluster has, at least one."""
    return max(1, int(from_head(ray.cluster_resources).get("CPU", 1)))


def free_resources() -> dict[str, dict[str, float]]:
    """The resources that are free on each node, by their ids."""
    return from_head(ray_internals.free_resources)


def is_placed(group: PlacementGroup) -> bool:
    """Whether the placement group has its resources."""
    return bool(from_head(placement_group_table, group)["state"] == "CREATED")


def groups_of(creators: set[bytes]) -> list[PlacementGroupTableData]:
    """The placement groups that these actors created and that were not removed."""
    groups = from_head(ray_internals.placement_groups)
    return [g for g in groups if g.creator_actor_id in creators and g.state != PlacementGroupTableData.REMOVED]


def places_of(creators: set[bytes]) -> int:
    """How many workers of these actors' placement groups have a node that is alive."""
    node_ids = {bytes.fromhex(node) for node in nodes_there()}
    return sum(bundle.node_id in node_ids for group in groups_of(creators) for bundle in group.bundles)


class Blocklist:
    """The nodes on which a worker group could not train. Their room is reserved: a restarted group may land anywhere.

    It is of one sweep, whose worker groups have `workers` ranks with these resources."""

    def __init__(self, workers: int, worker: dict[str, float]) -> None:
        self._workers, self._worker = workers, worker
        self._reserved: dict[str, list[PlacementGroup]] = {}

    def __len__(self) -> int:
        return len(self._reserved)

    def add(self, node: str) -> None:
        """Adds the node: no worker group is counted there from now on."""
        self._reserved.setdefault(node, [])

    def good(self) -> list[dict[str, float]]:
        """The resources of the other nodes that are alive."""
        return [resources for node, resources in nodes_there().items() if node not in self._reserved]

    @contextmanager
    def reserved(self, node: str) -> Iterator[None]:
        """Reserves what is free on the node, or is freed in the block, until the node is released. Each worker has a
        placement group of its own, so that work of others there blocks only its own part."""
        free = free_resources().get(node, {})
        slots = min(self._workers + workers_held(self._worker, free), MOST_HELD) if takes_room(self._worker) else 0
        groups = [placement_group([self._worker], bundle_label_selector=[{NODE_ID: node}]) for _ in range(slots)]
        self._reserved[node] += groups
        yield
        deadline = time.monotonic() + HOLD_TIMEOUT_S
        while (late := [group for group in groups if not is_placed(group)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for group in late:  # or else an autoscaler would look for another such node
            remove_placement_group(group)
            self._reserved[node].remove(group)

    def forget_those_gone(self) -> None:
        for node in self._reserved.keys() - nodes_there().keys():
            self._release(node)

    def release(self) -> None:
        """Releases all nodes."""
        for node in list(self._reserved):
            self._release(node)

    def _release(self, node: str) -> None:
        for group in self._reserved.pop(node):
            remove_placement_group(group)
