"""Warm lanes: long-lived Ray Train groups that take trial after trial. The only door to Ray Train.

Each lane is one `TorchTrainer` run whose ranks wait at the desk (`desk.py`), run a trial together, and wait again. So
a trial starts in milliseconds. When a worker dies, Ray Train restarts the lane's group, the desk hands it the same
trial, and the trial resumes from its own checkpoint.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import ray
import ray.train
import ray.train.torch
import torch
from ray._private.state import state as cluster_state
from ray._raylet import PlacementGroupID
from ray.core.generated.gcs_pb2 import PlacementGroupTableData
from ray.train.v2._internal.callbacks import DatasetsCallback, WorkingDirectorySetupCallback
from ray.train.v2._internal.callbacks.metrics import ControllerMetricsCallback, WorkerMetricsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.util.placement_group import PlacementGroup, remove_placement_group
from torch import distributed

from babeltune.engine.desk import DIED, NAMESPACE, POLL, Desk, Ending
from babeltune.engine.system import SystemMetrics
from babeltune.errors import BabeltuneError, ClusterError

RESPAWNS = 3
"""How often a lane whose Ray Train run itself ended is started again."""
TEAR_DOWN = 30.0
"""Seconds to wait for a lane that was killed to free its resources."""
ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What the controller of a Ray Train run reads. A worker that does not answer for two minutes hangs: its lane's group
is restarted."""


class RunTrial(Protocol):
    """The function that a lane's ranks call for each trial."""

    def __call__(self, payload: dict[str, Any], desk: Reporter, rank: int, world: int, device: str) -> None: ...


class Reporter:
    """A trial's line to the desk. Every rank calls `report` for every report."""

    def __init__(self, desk: Any, trial: str, rank: int, world: int, device: str) -> None:
        self._desk, self._trial, self._rank, self._world, self._device = desk, trial, rank, world, device
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
            words = json.dumps(ray.get(self._desk.report.remote(self._trial, report)))
        return bool(json.loads(_from_rank_0(words, self._rank, self._world, self._device)))


def _from_rank_0(words: str, rank: int, world: int, device: str) -> str:
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


def _fresh(seed: int, threads: int) -> None:
    """Puts the process's random and torch state where a new process would have it, so that no trial sees the last."""
    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(seed % 2**32)
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


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
    """The function that an import path such as `babeltune.engine.trial:run` names."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def lane_loop(settings: dict[str, Any]) -> None:
    """One rank of one lane, as Ray Train runs it: takes trials until the desk closes."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    device = str(ray.train.torch.get_device())
    lane = settings["lane"]
    desk = ray.get_actor(settings["desk"], namespace=NAMESPACE)
    try:
        run = load(settings["run_trial"])
    except Exception as error:
        ray.get(desk.refuse.remote(lane, _reason(error)))
        return
    gc.freeze()  # so that collecting before each trial walks the trials' objects, not the imported modules
    while True:
        words = json.dumps(ray.get(desk.next.remote(lane))) if rank == 0 else ""
        answer = json.loads(_from_rank_0(words, rank, world, device))
        if answer.get("closed"):
            return
        if answer:
            trial, payload = answer["trial"], answer["payload"]
            _fresh(int(payload.get("seed", 0)), settings["threads"])
            reporter = Reporter(desk, trial, rank, world, device)
            ending, reason, cause = _attempt(run, payload, reporter, rank, world, device)
            if not ray.get(desk.leave.remote(lane, trial, rank, world, ending, reason)):
                raise ClusterError(f"lane {lane} restarts after trial {trial}: {reason or DIED}") from cause


def _attempt(
    run: RunTrial, payload: dict[str, Any], reporter: Reporter, rank: int, world: int, device: str
) -> tuple[Ending, str, Exception | None]:
    """Runs the trial and says how this rank left it. A trial's exception is a fact about the trial, not the lane."""
    try:
        run(payload, reporter, rank, world, device)
    except Exception as error:
        return _ending(error), _reason(error), error
    return "done", "", None


LEFT_OUT = (
    DatasetsCallback,
    PlacementGroupCleanerCallback,
    WorkingDirectorySetupCallback,
    ControllerMetricsCallback,
    WorkerMetricsCallback,
)
"""What Ray Train would do besides, of which a lane has no use: Ray Data and a watcher cost every group a process of
their own, and relative paths keep their meaning in the workers."""


class _Trainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """A Ray Train run whose `fit` starts the controller and does not wait for its end."""

    controller: Any
    """The actor that starts, watches and restarts the group of ranks; `run` is what it does."""

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, LEFT_OUT)]

    def _initialize_and_run_controller(self, **parts: Any) -> ray.train.Result:
        kind = ray.remote(num_cpus=0, runtime_env={"env_vars": ENVIRONMENT})(TrainController)
        self.controller = kind.remote(**parts)
        return ray.train.Result(metrics=None, checkpoint=None, error=None, path=None)


class Lanes:
    """A sweep's desk and lanes, from `with` to the end of its block.

    `count` lanes of `workers` ranks each, or as many as the cluster holds (`auto`). Raises `ClusterError` when not
    even one fits, or when `run_trial` (an import path) cannot be loaded on the workers.
    """

    def __init__(
        self,
        *,
        count: int | Literal["auto"],
        workers: int,
        cpus_per_worker: float,
        gpus_per_worker: float,
        run_trial: str,
        storage: str | Path,
    ) -> None:
        self.desk_name = f"desk-{uuid.uuid4().hex[:8]}"
        fit = lanes_that_fit(workers, cpus_per_worker, gpus_per_worker)
        self.count = fit if count == "auto" else min(count, fit)
        asked = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
        resources = {name: share for name, share in asked.items() if share} or {"memory": 1}
        self._scaling = {"num_workers": workers, "use_gpu": gpus_per_worker > 0, "resources_per_worker": resources}
        self._settings = {
            "desk": self.desk_name,
            "run_trial": run_trial,
            "storage": str(storage),
            "threads": max(1, int(cpus_per_worker)),
        }
        self._lanes: dict[str, Any] = {}
        self._runs: dict[str, Any] = {}
        self._respawns = 0

    def __enter__(self) -> Self:
        self._desk = ray.remote(Desk).options(name=self.desk_name, namespace=NAMESPACE, num_cpus=0).remote()
        try:
            for index in range(self.count):
                self._start(f"{self.desk_name}-lane-{index}")
            ready = self._desk.ready.remote()
            while ready not in ray.wait([ready, *self._runs.values()], num_returns=1)[0]:
                self.mend()
            self.mend()
        except BaseException:
            self._tear_down(patience=0)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._tear_down(patience=0 if kind else 2 * POLL)

    def _start(self, lane: str) -> None:
        """A Ray Train run of the lane's ranks."""
        gpu = self._scaling["use_gpu"]
        trainer = _Trainer(
            lane_loop,
            train_loop_config={**self._settings, "lane": lane},
            scaling_config=ray.train.ScalingConfig(**self._scaling),
            torch_config=ray.train.torch.TorchConfig(backend="nccl" if gpu else "gloo"),
            run_config=ray.train.RunConfig(
                name=lane,
                storage_path=self._settings["storage"],
                failure_config=ray.train.FailureConfig(max_failures=-1),
            ),
        )
        trainer.fit()
        self._lanes[lane] = trainer.controller
        self._runs[lane] = trainer.controller.run.remote()

    def mend(self) -> None:
        """Starts a lane again whose run ended; its trial goes on in it. `ClusterError` when that is in vain."""
        for lane, reason in ray.get(self._desk.broken.remote()).items():
            raise ClusterError(f"lane {lane} cannot load {self._settings['run_trial']}: {reason}")
        for lane in self._ended(0):
            reason = self._why_ended(lane)
            self._respawns += 1
            if self._respawns > RESPAWNS:
                raise ClusterError(f"lane {lane} cannot train: {reason}; see Ray's logs of its workers, then resume")
            self._end([lane])
            self._start(lane)

    def _ended(self, seconds: float) -> list[str]:
        """The lanes whose run is over; waits at most `seconds` until all are."""
        ended = (
            ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=seconds)[0] if self._runs else []
        )
        return [lane for lane, run in self._runs.items() if run in ended]

    def _why_ended(self, lane: str) -> str:
        try:
            ray.get(self._runs[lane])
            error = ray.get(self._lanes[lane].get_result.remote()).error
        except ray.exceptions.RayError as died:
            error = died
        return str(error).strip().splitlines()[-1] if error else "its training loop ended"

    def offer(self, trial: str, payload: dict[str, Any]) -> None:
        """Hands a trial (a JSON payload) to the next free lane."""
        ray.get(self._desk.offer.remote(trial, payload))

    def stop(self, trial: str) -> None:
        """Ends the trial at its next report."""
        ray.get(self._desk.stop.remote(trial))

    def free(self) -> int:
        """Lanes that wait for a trial."""
        return int(ray.get(self._desk.free.remote()))

    def next_report(self, trial: str) -> dict[str, Any]:
        """`Desk.next_report`, for callers without Tune."""
        answer: dict[str, Any] = ray.get(self._desk.next_report.remote(trial))
        return answer

    def wait_idle(self, seconds: float) -> bool:
        """True once no lane holds a trial."""
        return bool(ray.get(self._desk.idle.remote(seconds)))

    def _tear_down(self, patience: float) -> None:
        """Sends the lanes home, ends by force those that are late, and frees what they held."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._desk.close.remote())
            self._ended(patience)
        self._end(list(self._lanes))
        ray.kill(self._desk)

    def _end(self, lanes: list[str]) -> None:
        """Ends lanes by force and waits until what they held is free.

        Ray frees a dead controller's groups only with the whole job, and its last group may be one that no rank has
        told of yet: so they are found by their creator, once it is dead.
        """
        controllers, runs = [self._lanes.pop(lane) for lane in lanes], [self._runs.pop(lane) for lane in lanes]
        for controller in controllers:
            ray.kill(controller)
        if runs:
            ray.wait(runs, num_returns=len(runs), timeout=TEAR_DOWN)
        deadline = time.monotonic() + TEAR_DOWN
        while (held := _groups_of(controllers)) and time.monotonic() < deadline:
            for group in held:
                remove_placement_group(group)
            time.sleep(0.05)


def _groups_of(controllers: list[Any]) -> list[PlacementGroup]:
    """The placement groups that these actors created and that still hold something."""
    creators = {controller._actor_id.binary() for controller in controllers}
    rows = cluster_state._connect_and_get_accessor().get_placement_group_table()
    groups = [PlacementGroupTableData.FromString(row) for row in rows]
    return [
        PlacementGroup(PlacementGroupID(group.placement_group_id))
        for group in groups
        if group.creator_actor_id in creators and group.state != PlacementGroupTableData.REMOVED
    ]


def lanes_that_fit(workers: int, cpus_per_worker: float, gpus_per_worker: float) -> int:
    """How many lanes the cluster's nodes hold; `ClusterError` when none."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = sum(n.get("CPU", 0) for n in nodes), sum(n.get("GPU", 0) for n in nodes)

    def fit(node: dict[str, float]) -> int:
        shares = [node.get("CPU", 0) / cpus_per_worker] if cpus_per_worker else []
        shares += [node.get("GPU", 0) / gpus_per_worker] if gpus_per_worker else []
        return int(min(shares, default=workers) + 1e-6)

    count = sum(fit(node) for node in nodes) // workers
    if count < 1:
        raise ClusterError(
            f"a lane of {workers} workers with {cpus_per_worker:g} CPUs and {gpus_per_worker:g} GPUs each does not "
            f"fit: the cluster has {len(nodes)} nodes with {cpus:g} CPUs and {gpus:g} GPUs in all; "
            "ask for fewer workers, or less per worker, in the cluster file"
        )
    return count


@contextlib.contextmanager
def local_ray(num_cpus: int | None = None, num_gpus: int = 0, env: dict[str, str] | None = None) -> Iterator[None]:
    """A Ray of our own on this machine, listening for 127.0.0.1, ended with the block.

    It has the machine's CPUs unless told otherwise. Ray's token authentication stays on, unless the environment says
    `RAY_AUTH_MODE=disabled`. `env` reaches every worker. Ray reports no usage, unless the environment says so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": env} if env else None,
    )
    try:
        yield
    finally:
        ray.shutdown()
