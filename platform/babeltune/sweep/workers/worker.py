"""What one rank of a warm worker group runs: trial after trial, in one process."""

from __future__ import annotations

import gc
import importlib
import json
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import ray
import ray.train
import ray.train.torch
import torch
from torch import distributed

from babeltune.errors import BabeltuneError, ClusterError, NodeError
from babeltune.sweep.state.lease_actor import NAMESPACE
from babeltune.sweep.workers.dispatcher import DIED, Ending
from babeltune.sweep.workers.nodes import named
from babeltune.sweep.workers.process_state import ProcessState
from babeltune.sweep.workers.system_metrics import SystemMetrics

NO_CUDA = (
    "torch sees no CUDA on {}: what trains there has a GPU share and uses the CPU; see that its driver and its build "
    "of torch fit, then resume"
)


class RunTrial(Protocol):
    """The function that a worker group's ranks call for each trial."""

    def __call__(
        self, assignment: dict[str, Any], dispatcher: Reporter, rank: int, world: int, device: str
    ) -> None: ...


class Reporter:
    """A trial's connection to the dispatcher. Every rank calls `report` for every report."""

    def __init__(self, dispatcher: Any, trial: str, rank: int, world: int, device: str) -> None:
        self._dispatcher, self._trial, self._rank, self._world, self._device = dispatcher, trial, rank, world, device
        self._system = SystemMetrics()

    def report(self, report: dict[str, Any]) -> bool:
        """Hands rank 0's report over and returns the verdict on all ranks: True means go on.

        `report["index"]` counts from 1, `report["metrics"]` holds the scores, `report["last"]` marks the end of the
        trial. Where it has `points` and a `step`, what the machine was doing is added. A resumed trial may repeat its
        last report: it is recognised by its index.
        """
        words = ""
        if self._rank == 0:
            if "points" in report and "step" in report:
                now = {"step": report["step"], "time_ms": time.time_ns() // 1_000_000, "values": self._system.read()}
                report = {**report, "points": [*report["points"], now]}
            words = json.dumps(ray.get(self._dispatcher.report.remote(self._trial, report)))
        return bool(json.loads(from_rank_0(words, self._rank, self._world, self._device)))

    def stopped(self) -> bool:
        """Whether the trial should stop before its next report. Rank 0 asks about once a second; a trial that does not
        ask counts as stalled."""
        return bool(ray.get(self._dispatcher.stopped.remote(self._trial)))


def from_rank_0(words: str, rank: int, world: int, device: str) -> str:
    """Rank 0's string on every rank, as bytes: nothing is pickled."""
    if world == 1:
        return words
    data = torch.tensor(list(words.encode()), dtype=torch.uint8)
    size = torch.tensor([len(data)], device=device)
    distributed.broadcast(size, 0)
    if rank:
        data = torch.empty(int(size.item()), dtype=torch.uint8)
    data = data.to(device)
    distributed.broadcast(data, 0)
    return bytes(data.cpu().tolist()).decode()


def _ending(error: Exception) -> Ending:
    if isinstance(error, BabeltuneError):
        return "refused"
    words = str(error).lower()
    broken = any(name in words for name in ("gloo", "nccl", "by peer", "store->", "tcpstore"))
    if isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and broken):
        return "peer"
    return "raised"


def _reason(error: Exception) -> str:
    """The exception's type and message, with where it was raised unless it is one of ours."""
    words = str(error) if isinstance(error, BabeltuneError) else f"{type(error).__name__}: {error}"
    if isinstance(error, BabeltuneError):
        return words
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return words + "".join(f"\n  {Path(f.filename).name}:{f.lineno} in {f.name}: {f.line}" for f in frames)


def load(path: str) -> Callable[..., Any]:
    """The function that an import path such as `babeltune.sweep.workers.run_trial:run` names."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def worker_loop(settings: dict[str, Any]) -> None:
    """One rank of one worker group, as Ray Train runs it: takes trials until the dispatcher closes."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    cuda = distributed.get_backend() == "nccl"
    device = str(ray.train.torch.get_device()) if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    worker_group, group = settings["worker_group"], uuid.uuid4().hex
    node = ray.get_runtime_context().get_node_id()
    dispatcher = ray.get_actor(settings["dispatcher"], namespace=NAMESPACE)
    if ray.get_gpu_ids() and not torch.cuda.is_available():
        ray.get(dispatcher.add_message.remote(NO_CUDA.format(named(node))))
    try:
        run = load(settings["run_trial"])
    except Exception as error:
        ray.get(dispatcher.refuse.remote(worker_group, f"cannot load {settings['run_trial']}: {_reason(error)}", node))
        return
    process_state = ProcessState(settings["threads"])
    gc.freeze()  # so that collecting before each trial walks the trials' objects, not the imported modules
    while True:
        words = json.dumps(ray.get(dispatcher.next.remote(worker_group, group))) if rank == 0 else ""
        answer = json.loads(from_rank_0(words, rank, world, device))
        if answer.get("closed"):
            return
        if answer.get("renew"):
            raise ClusterError(f"worker group {worker_group} restarts: it was asked to")
        if answer:
            trial, assignment = answer["trial"], answer["assignment"]
            process_state.clean(int(assignment.get("seed", 0)))
            try:
                ending, reason = _attempt(
                    run, assignment, Reporter(dispatcher, trial, rank, world, device), rank, world, device
                )
            except NodeError as unfit:
                ray.get(dispatcher.refuse.remote(worker_group, str(unfit), node))
                return
            leak = process_state.leak()
            renew = bool(leak) or settings["isolation"] == "process"
            if not ray.get(dispatcher.leave.remote(worker_group, trial, rank, world, ending, reason, renew)):
                why = reason or leak or DIED
                raise ClusterError(f"worker group {worker_group} restarts after trial {trial}: {why}")


def _attempt(
    run: RunTrial, assignment: dict[str, Any], reporter: Reporter, rank: int, world: int, device: str
) -> tuple[Ending, str]:
    """Runs the trial and returns how this rank left it. Only `NodeError` is raised: any other exception is a failure of
    the trial, not of the worker group."""
    try:
        run(assignment, reporter, rank, world, device)
    except NodeError:
        raise
    except Exception as error:
        return _ending(error), _reason(error)
    return "done", ""
