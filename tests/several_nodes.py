"""What tests play on a cluster of several nodes, in a process of its own: `python several_nodes.py SCENE FOLDER`.

The nodes are Ray's own, all on this machine, with tokens on. Each scene prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from babeltune.engine import lanes as lanes_module
from babeltune.engine.lanes import Lanes

PATIENCE = 180
HERE = {"node_ip_address": "127.0.0.1"}


@contextmanager
def nodes(*cpus):
    """A head without CPUs, on which this driver is, and nodes with so many: the cluster and its worker nodes."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **HERE})
    try:
        workers = [cluster.add_node(num_cpus=count, **HERE) for count in cpus]
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
        )
        yield cluster, workers
    finally:
        ray.shutdown()
        cluster.shutdown()


def until(lanes, ready):
    """As a search does while it waits."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        lanes.mend()
        assert time.monotonic() < deadline, "nothing more happens"
        time.sleep(0.1)


def ended(lanes, *names):
    """Lets the trials run to their ends, all at once; the reports of each and why it ended."""
    waiting = {lanes._desk.next_report.remote(name, 0): name for name in names}
    seen = {name: [] for name in names}
    reasons = {}
    while waiting:
        ready, _ = ray.wait(list(waiting), timeout=0.2)
        lanes.mend()
        for answer in ready:
            name, found = waiting.pop(answer), ray.get(answer)
            if "ended" in found:
                reasons[name] = found["ended"]
                continue
            seen[name].append(found["report"]["index"])
            waiting[lanes._desk.next_report.remote(name, seen[name][-1])] = name
    return seen, reasons


def worlds(folder, name):
    return [json.loads(line)["world"] for line in (folder / name / "starts.jsonl").read_text().splitlines()]


def come_and_go(folder):
    """A node comes and brings a lane; it goes, and the trial that its lane had goes on in the other."""
    notes = []
    with nodes(1) as (cluster, _), Lanes(**settings(folder, workers=1), note=notes.append) as lanes:
        counts = [lanes.count]
        second = cluster.add_node(num_cpus=1, **HERE)
        until(lanes, lambda: lanes.free() == 2)
        counts.append(lanes.count)
        for name in ("a", "b"):
            offer(lanes, folder, name, steps=60, seconds=0.1)
            assert lanes.next_report(name)["report"]["index"] == 1
        cluster.remove_node(second, allow_graceful=False)
        seen, reasons = ended(lanes, "a", "b")
        until(lanes, lambda: lanes.count == 1)
        counts.append(lanes.count)
    begun = {name: len(worlds(folder, name)) for name in ("a", "b")}
    return {
        "counts": counts,
        "last": {n: s[-1] for n, s in seen.items()},
        "why": reasons,
        "begun": begun,
        "notes": notes,
    }


def shrink_and_grow(folder):
    """A lane over two nodes goes on with one worker when one node goes, and has two again once it is back."""
    with nodes(1, 1) as (cluster, (_, second)), Lanes(**settings(folder, workers=2, least_workers=1)) as lanes:
        offer(lanes, folder, "a", steps=40, seconds=0.1)
        assert lanes.next_report("a")["report"]["index"] == 1
        cluster.remove_node(second, allow_graceful=False)
        seen, reasons = ended(lanes, "a")
        cluster.add_node(num_cpus=1, **HERE)
        deadline = time.monotonic() + PATIENCE
        tried = 0
        while not tried or worlds(folder, f"b{tried}")[-1] < 2:
            assert time.monotonic() < deadline, "the lane does not grow again"
            tried += 1
            offer(lanes, folder, f"b{tried}", steps=3)
            ended(lanes, f"b{tried}")
            until(lanes, lanes.free)
    return {"worlds": worlds(folder, "a"), "last": seen["a"][-1], "why": reasons, "later": worlds(folder, f"b{tried}")}


def settings(folder, **more):
    return {
        "count": 4,
        "cpus_per_worker": 1,
        "gpus_per_worker": 0,
        "run_trial": "toy_trials:train",
        "storage": folder,
        **more,
    }


def offer(lanes, folder, name, **payload):
    lanes.offer(name, {"folder": str(folder / name), "seed": 1, **payload})


if __name__ == "__main__":
    lanes_module.HOMELESS = lanes_module.SURVEY = 1.0
    print(json.dumps({"come_and_go": come_and_go, "shrink_and_grow": shrink_and_grow}[sys.argv[1]](Path(sys.argv[2]))))
