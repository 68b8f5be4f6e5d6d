"""A Ray cluster of several nodes on this machine, in a process of its own that breaks it when it is told to.

`python -m chaos.nodes` prints the address; each line that it then reads is a command, answered by one line of JSON:

    lose PID     the worker node on which this process runs is lost, with everything on it
    gcs down     the head's `gcs_server` is killed
    gcs up       and started again
    left         what there is of actors, placement groups and their processes
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from chaos.leftovers import leftovers
from chaos.servers import end

WORKERS = 2
NODE = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 100 * 2**20}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    for _ in range(WORKERS):
        cluster.add_node(**NODE, num_cpus=1)
    answer(cluster.address)
    for line in sys.stdin:
        match line.split():
            case ["lose", pid]:
                family = {process.pid for process in psutil.Process(int(pid)).parents()}
                (lost,) = [node for node in cluster.worker_nodes if family & set(raylets(node))]
                cluster.remove_node(lost, allow_graceful=False)
                answer(len(cluster.worker_nodes))
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


def raylets(node: Any) -> list[int]:
    return [info.process.pid for info in node.all_processes["raylet"]]


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


@contextlib.contextmanager
def nodes(environment: dict[str, str]) -> Iterator[Nodes]:
    """A head without CPUs and two nodes of one CPU each, until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chaos.nodes"],
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
