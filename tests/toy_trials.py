"""Small trial functions that worker groups run in tests. Workers import this file by name."""

import json
import os
import random
import signal
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import ray
import torch
from torch import distributed
from torch.backends import cuda, cudnn

from babeltune.errors import TrainingError
from babeltune.schema.records import Report
from babeltune.sweep.state.messages import EndMessage, ReportMessage, TrialAssignment
from babeltune.sweep.workers import worker
from babeltune.sweep.workers.dispatcher_driver_calls import POLL_TIMEOUT_S

LEAKED = []


def train(assignment, dispatcher, rank, world, device):
    """Sums ranks' contributions for `steps` reports, with a checkpoint file per report, and follows orders to fail."""
    folder, request = Path(assignment.folder), assignment.trial
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.json"
    start = json.loads(checkpoint.read_text())["index"] if checkpoint.exists() else 0
    if rank == 0:
        with (folder / "starts.jsonl").open("a") as file:
            began = {"from": start, "time": time.time(), "pid": os.getpid(), "world": world}
            began["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
            file.write(json.dumps({**began, "gpu_memory": torch.cuda.memory_reserved()}) + "\n")
    steps, orders = request["steps"], request.get("orders", {})
    if start == steps:
        dispatcher.report(report_of(request, start))
        return
    for index in range(start + 1, steps + 1):
        if index == orders.get("at"):
            _follow(orders, folder, rank, device)
        total = torch.ones(1)
        if world > 1:
            distributed.all_reduce(total)
        assert int(total) == world
        if request.get("seconds"):
            time.sleep(request["seconds"])
        if rank == 0:
            _write(checkpoint, {"index": index, "draw": float(torch.rand(1))})
        if not dispatcher.report(report_of(request, index)):
            return
    if orders.get("kind") == "hang_after":
        _hang_after_the_next_answer()


def impatient(assignment, dispatcher, rank, world, device):
    """`train` by ranks that wait for the dispatcher for 15 s. `endless`: the first time, they wait for a
    stop. Rank 0 hears of it."""
    worker.ANSWER_TIMEOUT_S = 1.5 * POLL_TIMEOUT_S
    stop, left = torch.zeros(1), Path(assignment.folder) / "left"
    while assignment.trial.get("endless") and not left.exists():
        (Path(assignment.folder) / "trains").touch()
        stop += rank == 0 and dispatcher.stopped()
        distributed.all_reduce(stop)
        if stop:
            left.touch()
            return
    train(assignment, dispatcher, rank, world, device)


def report_of(request, index):
    value = request.get("value", 0.5)
    metrics = {"dev/score": value * index / request["steps"], "dev/other": -value}
    if request.get("nan") == index:
        metrics["dev/score"] = float("nan")
    if request.get("missing"):
        del metrics["dev/score"]
    facts = {"collapsed": "collapsed: all vectors are alike"} if request.get("collapse") == index else {}
    return a_report(index, last=index == request["steps"], metrics=metrics, checkpoint=f"{index:06d}", facts=facts)


def a_report(index, **more):
    """A report of nothing but its number."""
    return Report(**{"index": index, "step": index, "pairs": 0, "seconds": 0.0, "metrics": {}, **more})


def toy(folder, **settings):
    """The assignment of a trial of `train`, which does as it is asked."""
    return TrialAssignment(folder=str(folder), seed=settings.pop("seed", 1), trial={"steps": 3, **settings})


def _write(path, value):
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def _follow(orders, folder, rank, device):
    kind = orders["kind"]
    if kind == "kill_once" and rank == orders["rank"] and not (folder / "killed").exists():
        (folder / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang_once" and not (folder / "hung").exists():
        (folder / "hung").touch()
        while True:
            time.sleep(1)
    if kind == "refuse":
        raise TrainingError("the loss is nan at step 7; lower the learning rate")
    if kind == "untidy":
        _change_whatever_a_process_shares()
    if kind == "look":
        assert torch.zeros(1).dtype == torch.float32
        assert torch.get_num_threads() == 1
        assert torch.is_grad_enabled()
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert float(torch.tensor(1e-310, dtype=torch.float64)) > 0
        assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (False, False, True)
        assert cuda.flash_sdp_enabled()
        assert cuda.math_sdp_enabled()
        assert not torch.is_anomaly_enabled()
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.is_autocast_cache_enabled()
        assert np.geterr()["over"] == "warn"
        assert "/left/by/a/trial" not in sys.path
        assert str(Path.cwd()) not in sys.path, "where the user stands"
        doors = [each.laddr.ip for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]
        assert {door.removeprefix("::ffff:") for door in doors} == {"127.0.0.1"}
        assert "LEFT_BY_A_TRIAL" not in os.environ
        assert Path.cwd() != Path("/")
    if kind == "map":
        with (folder / "store").open("wb") as file:
            file.truncate(600 * 2**20)
        LEAKED.append(np.memmap(folder / "store", mode="r"))
        assert not LEAKED[-1][::4096].any()
    if kind in ("fill", "leak"):
        tensor = torch.ones(300, 2**19, device=device)
        LEAKED.extend([tensor] if kind == "leak" else [])
    if kind == "raise" and rank == orders["rank"]:
        raise ValueError("a bug on one rank")


def _hang_after_the_next_answer():
    """The dispatcher records that the worker group left the trial; then the group asks for none."""
    get = ray.get

    def last(*arguments, **settings):
        get(*arguments, **settings)
        while True:
            time.sleep(1)

    ray.get = last


def _change_whatever_a_process_shares():
    random.seed(7)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_flush_denormal(True)
    torch.set_anomaly_enabled(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_autocast_cache_enabled(False)
    cuda.enable_math_sdp(False)
    np.seterr(over="raise")
    cudnn.deterministic = cudnn.benchmark = True
    cudnn.allow_tf32 = False
    cuda.enable_flash_sdp(False)
    sys.path.insert(0, "/left/by/a/trial")
    os.environ["LEFT_BY_A_TRIAL"] = "yes"
    os.chdir("/")


def train_for_real(assignment, dispatcher, rank, world, device):
    """`babeltune.sweep.workers.run_trial:run`, untidy after a trial in a folder named `between`; what has no method is
    for `train`."""
    from babeltune.sweep.workers.run_trial import run

    (run if "method" in assignment.trial else train)(assignment, dispatcher, rank, world, device)
    if Path(assignment.folder).name == "between":
        _change_whatever_a_process_shares()


def pool_of(**settings):
    """A pool with these settings and listeners; else of one group of one worker, for toy trials."""
    from babeltune.sweep.workers.pool import WorkerPool
    from babeltune.sweep.workers.pool_settings import PoolSettings

    listeners = {name: settings.pop(name) for name in ("note", "surveyed", "waiting") if name in settings}
    alone = {"count": 1, "workers": 1, "cpus_per_worker": 1, "gpus_per_worker": 0, "run_trial": "toy_trials:train"}
    return WorkerPool(PoolSettings(**{**alone, **settings}), **listeners)


def wait_until_free(pool, count):
    """As a search waits: a worker group whose run ended is started again."""
    from waiting import wait_until

    free = pool.dispatcher.free  # how many
    wait_until(lambda: free() >= count, free, meanwhile=pool.mend)


LAST_REPORTS = weakref.WeakKeyDictionary()
"""For each pool's dispatcher, the last report of each trial that `next_message` gave."""


def next_message(pool, name):
    """Lets the trial go on past the report that this gave before, and waits for its next message."""
    last = LAST_REPORTS.setdefault(pool.dispatcher, {})
    if name in last:
        pool.dispatcher.go_on(name, last[name])
    while (message := pool.dispatcher.take(name)) is None:
        pool.dispatcher.receive(1.0)
    if isinstance(message, ReportMessage):
        last[name] = message.report.index
    return message


def follow(pool, name):
    """Lets the trial run to its end: the indices of its reports, and how it ended."""
    reports = []
    while not isinstance(message := next_message(pool, name), EndMessage):
        reports.append(message.report.index)
    return reports, message.end


def groups_held():
    """The placement groups that hold something."""
    return {name for name, group in ray.util.placement_group_table().items() if group["state"] != "REMOVED"}


def seen_on_one_node(assignment, dispatcher, rank, world, device):
    """`train` on the node that asks first, and on those whose ids are beside its own; another does not see the sweep's
    storage."""
    from babeltune.sweep.workers.run_trial import run

    if not _is_known_here():
        run(replace(assignment, prepared="/nowhere/prepared.json"), dispatcher, rank, world, device)
    train(assignment, dispatcher, rank, world, device)


def __getattr__(name):
    """`on_one_node` is `train` on the node that asks first, and on whose id is beside its own; on another it cannot be
    imported."""
    if name != "on_one_node":
        raise AttributeError(name)
    if not _is_known_here():
        raise ImportError("not on this node")
    return train


def _is_known_here():
    mine, first = ray.get_runtime_context().get_node_id(), Path(os.environ["ONE_NODE"])
    try:
        with first.open("x") as file:
            file.write(mine)
    except FileExistsError:
        from waiting import wait_until

        return mine in wait_until(first.read_text)  # it is being written
    return True
