"""The nodes on which a worker group could not train. Their room is reserved, as a restarted group may land anywhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from babeltune.sweep.workers.nodes import free_resources, is_placed, nodes_there, takes_room, workers_held

NODE_ID = "ray.io/node-id"  # the label that Ray gives each node
MOST_HELD, HOLD_TIMEOUT_S = 256, 2.0  # workers whose room is reserved on a node, and seconds to wait for it to be free


class NodeBlocklist:
    """The blocklist of one sweep, whose worker groups have `workers` ranks with these resources."""

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
