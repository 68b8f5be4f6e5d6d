"""Networks of nodes on one machine: each node has one of its own, and a bridge joins them until a node is cut off."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

NEW_NETWORK = 0x40000000
BRIDGE, HEAD = "bridge", "10.77.0.1"  # the bridge in the head's network, and the head's address there
HERE = "/proc/thread-self/ns/net"


class Networks:
    """Those of the worker nodes, by their numbers. The head stays in the network of this process."""

    def __init__(self) -> None:
        self._nodes: list[str] = []
        remove(BRIDGE)
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{HEAD}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")

    @contextlib.contextmanager
    def another(self) -> Iterator[str]:
        """What is started in the block is in a new network. Gives its address."""
        number, network = len(self._nodes), new_network()
        address, port = f"10.77.0.{number + 2}", f"port{number}"
        self._nodes.append(network)
        remove(port)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", network)
        for words in (("link", "set", "lo", "up"), ("addr", "add", f"{address}/24", "dev", "eth0")):
            ip(*words, network=network)
        ip("link", "set", "eth0", "up", network=network)
        ip("link", "set", port, "master", BRIDGE, "up")
        with within(network):
            yield address

    def cut(self, number: int) -> None:
        """Nothing reaches that node any more, or comes from it, and nobody learns of that."""
        ip("link", "set", f"port{number}", "nomaster")

    def join(self, number: int) -> None:
        """It is reached again."""
        ip("link", "set", f"port{number}", "master", BRIDGE)


def ip(*words: str, network: str | None = None) -> None:
    """The command of iproute2, in another network if one is named."""
    there = ("nsenter", f"--net={network}") if network else ()
    subprocess.run([*there, "ip", *words], check=True, capture_output=True)


def remove(device: str) -> None:
    """What a process that has ended may have left."""
    with contextlib.suppress(subprocess.CalledProcessError):
        ip("link", "del", device)


def new_network() -> str:
    """The path of a new network, which is there while this process lives."""
    before = os.open(HERE, os.O_RDONLY)
    try:
        call("unshare", NEW_NETWORK)
        network = os.open(HERE, os.O_RDONLY)
        call("setns", before, NEW_NETWORK)
    finally:
        os.close(before)
    return f"/proc/{os.getpid()}/fd/{network}"


@contextlib.contextmanager
def within(network: str) -> Iterator[None]:
    """Moves this thread, and the processes that it starts, to that network for the block."""
    before, there = os.open(HERE, os.O_RDONLY), os.open(network, os.O_RDONLY)
    try:
        call("setns", there, NEW_NETWORK)
        yield
    finally:
        call("setns", before, NEW_NETWORK)
        os.close(before)
        os.close(there)


def call(name: str, *arguments: int) -> None:
    """A function of the C library; `OSError` where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name} failed: {os.strerror(ctypes.get_errno())}")
