"""A Ray cluster of several nodes on this machine, in a process of its own that breaks it on request.

`python -m chaos.nodes [apart]` prints the address. With `apart` each worker node has a network of its own. Each line
that it then reads is a command, answered by one line of JSON:

    node PID     the number of the worker node on which this process runs
    lose PID     that node is lost, with everything on it
    halt PID     all processes of that node stand still (SIGSTOP)
    halt raylet PID     only its raylet does; what it has started goes on
    halt all     all worker nodes stand still
    halt gcs     the head's `gcs_server` does
    add          another worker node comes
    go on        and go on (SIGCONT)
    cut PID      nothing reaches the node on which this process runs, or comes from it
    join         and everything does again
    gcs down     the head's `gcs_server` is killed
    gcs up       and started again
    left         what there is of actors, placement groups and their processes"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from chaos.arena import own_path
from chaos.leftovers import leftovers
from chaos.networks import HEAD, Networks
from chaos.servers import end
from slow_starts import wait_for_nodes
from waiting import wait_until

WORKERS = 2
TOKEN = secrets.token_hex(32)  # of every cluster that this process starts
NODE = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 100 * 2**20}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    wait_for_nodes()
    networks = Networks() if "apart" in sys.argv[1:] else None
    head = {"node_ip_address": HEAD} if networks else {}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **head, "num_cpus": 0})

    def add() -> Any:
        if networks is None:
            return cluster.add_node(**NODE, num_cpus=1, num_gpus=1)
        with networks.another() as address:
            return cluster.add_node(**{**NODE, "node_ip_address": address}, num_cpus=1, num_gpus=1)

    nodes_here = [add() for _ in range(WORKERS)]
    answer(cluster.address)
    halted: list[psutil.Process] = []
    cut: list[int] = []
    for line in sys.stdin:
        match line.split():
            case ["node", pid]:
                answer(nodes_here.index(node_of(int(pid), nodes_here)))
            case ["lose", pid]:
                cluster.remove_node(node_of(int(pid), nodes_here), allow_graceful=False)
                answer(len(cluster.worker_nodes))
            case ["halt", "all"]:
                halted = stopped([process for node in nodes_here for process in family(node)])
                answer(len(halted))
            case ["halt", "gcs"]:
                halted = stopped(
                    [psutil.Process(each.process.pid) for each in cluster.head_node.all_processes["gcs_server"]]
                )
                answer(len(halted))
            case ["add"]:
                nodes_here.append(add())
                answer(len(nodes_here))
            case ["halt", pid]:
                halted = stopped(family(node_of(int(pid), nodes_here)))
                answer(len(halted))
            case ["halt", "raylet", pid]:
                halted = stopped([psutil.Process(each) for each in raylets(node_of(int(pid), nodes_here))])
                answer(len(halted))
            case ["go", "on"]:
                for process in reversed(halted):  # workers first, while their node does not yet know what it missed
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.resume()
                answer(len(halted))
            case ["cut", pid] if networks:
                cut.append(nodes_here.index(node_of(int(pid), nodes_here)))
                networks.cut(cut[-1])
                answer(cut)
            case ["join"] if networks:
                for number in cut:
                    networks.join(number)
                answer(cut)
            case ["gcs", "down"]:
                cluster.head_node.kill_gcs_server()
                answer("down")
            case ["gcs", "up"]:
                cluster.head_node.start_gcs_server()
                answer(cluster.address)
            case ["left"]:
                ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
                try:
                    answer(leftovers())
                finally:
                    ray.shutdown()


def node_of(pid: int, nodes: list[Any]) -> Any:
    """The node whose raylet has started that process."""
    family = {process.pid for process in psutil.Process(pid).parents()}
    (found,) = [node for node in nodes if family & set(raylets(node))]
    return found


def raylets(node: Any) -> list[int]:
    return [info.process.pid for info in node.all_processes["raylet"]]


def family(node: Any) -> list[psutil.Process]:
    """The processes of a node, its raylet first."""
    own = [psutil.Process(info.process.pid) for infos in node.all_processes.values() for info in infos]
    own.sort(key=lambda process: process.pid not in raylets(node))
    return [*own, *(child for process in own for child in process.children(recursive=True))]


def stopped(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes, which stand still now."""
    for process in processes:
        process.suspend()
    return processes


@dataclass
class Nodes:
    """The process that has them."""

    process: subprocess.Popen[str]
    address: str

    def tell(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline()
        assert words, f"the nodes' process ended at {command!r}"
        return json.loads(words)

    def nothing_is_left(self) -> None:
        """No actor, placement group or process of a job, once what has been ended is gone."""
        wait_until(lambda: not self.tell("left"), lambda: self.tell("left"), every=0.2)


def environment(place: Path, **more: str) -> dict[str, str]:
    """For the nodes' process. Sockets have short paths only."""
    path = os.pathsep.join([*own_path(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"PYTHONPATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": str(place)}
    return {**kept, **own, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", **more}


@contextlib.contextmanager
def nodes(environment: dict[str, str], *, apart: bool = False) -> Iterator[Nodes]:
    """A head without CPUs and two nodes of one CPU and one logical GPU each, until the end of the block; `apart`, in
    networks of their own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.nodes", *(["apart"] if apart else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline()
        assert words, "the cluster did not start"
        yield Nodes(process, json.loads(words))
    finally:
        end(process)


if __name__ == "__main__":
    main()
