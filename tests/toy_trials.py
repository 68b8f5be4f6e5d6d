"""Small trial functions that lanes run in tests. Workers import this file by name."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import ray
import torch
from torch import distributed

from babeltune.errors import TrainingError

LEAKED = []


def train(payload, desk, rank, world, device):
    """Sums ranks' contributions for `steps` reports, with a checkpoint file per report, and follows orders to fail."""
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.json"
    start = json.loads(checkpoint.read_text())["index"] if checkpoint.exists() else 0
    if rank == 0:
        with (folder / "starts.jsonl").open("a") as file:
            file.write(json.dumps({"from": start, "time": time.time(), "pid": os.getpid(), "world": world}) + "\n")
    steps, orders = payload["steps"], payload.get("orders", {})
    if start == steps:
        desk.report(report_of(payload, start))
        return
    for index in range(start + 1, steps + 1):
        if index == orders.get("at"):
            _follow(orders, folder, rank)
        total = torch.ones(1)
        if world > 1:
            distributed.all_reduce(total)
        assert int(total) == world
        if payload.get("seconds"):
            time.sleep(payload["seconds"])
        if rank == 0:
            _write(checkpoint, {"index": index, "draw": float(torch.rand(1))})
        if not desk.report(report_of(payload, index)):
            return


def report_of(payload, index):
    value = payload.get("value", 0.5)
    metrics = {"dev/score": value * index / payload["steps"], "dev/other": -value}
    if payload.get("nan") == index:
        metrics["dev/score"] = float("nan")
    if payload.get("missing"):
        del metrics["dev/score"]
    last = index == payload["steps"]
    facts = {"collapsed": "collapsed: all vectors are alike"} if payload.get("collapse") == index else {}
    checkpoint = f"{index:06d}"
    return {"index": index, "metrics": metrics, "last": last, "checkpoint": checkpoint, "points": [], "facts": facts}


def _write(path, value):
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def _follow(orders, folder, rank):
    kind = orders["kind"]
    if kind == "kill_once" and rank == orders["rank"] and not (folder / "killed").exists():
        (folder / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "refuse":
        raise TrainingError("the loss is nan at step 7; lower the learning rate")
    if kind == "untidy":
        random.seed(7)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        torch.set_autocast_enabled("cpu", True)
        os.environ["LEFT_BY_A_TRIAL"] = "yes"
        os.chdir("/")
    if kind == "look":
        assert torch.zeros(1).dtype == torch.float32
        assert torch.get_num_threads() == 1
        assert torch.is_grad_enabled()
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert "LEFT_BY_A_TRIAL" not in os.environ
        assert Path.cwd() != Path("/")
    if kind == "leak":
        LEAKED.append(torch.ones(300, 2**19))
    if kind == "raise" and rank == orders["rank"]:
        raise ValueError("a bug on one rank")


def groups_held():
    """The placement groups that hold something."""
    return {name for name, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"}
