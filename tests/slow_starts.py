"""Ray's nodes on a busy machine: Ray gives a node 30 s to register, and tests have more patience."""

from collections.abc import Callable
from typing import Any

from ray._private import services

from waiting import wait_until


def wait_for_nodes() -> None:
    """Lets each node that this process starts take as long as a test may wait."""
    find: Callable[..., Any] = services.get_node

    def found(*arguments: Any) -> Any:
        nodes: list[Any] = []

        def registered() -> bool:
            try:
                nodes.append(find(*arguments))
            except RuntimeError:  # the head does not know it yet
                return False
            return True

        wait_until(registered, every=0.2)
        return nodes[-1]

    services.get_node = found
