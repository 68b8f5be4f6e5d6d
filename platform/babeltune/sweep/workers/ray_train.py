"""Ray Train's run of one worker group: its controller on a given node, elastic, and without callbacks that worker
groups do not need.

The controller's process imports this file. Nothing here imports torch at once, because every worker group would wait
for it."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import psutil
import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from babeltune.sweep import ray_internals
from babeltune.sweep.workers.nodes import beside, is_dead, places_of, room_for
from babeltune.sweep.workers.pool_settings import PoolSettings

if TYPE_CHECKING:  # see above
    from babeltune.schema.cluster import Isolation

ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""Environment of a controller. A worker that is silent for two minutes counts as stalled: all ranks are restarted."""
LEFT_OUT = (
    ray_internals.DatasetsCallback,
    ray_internals.PlacementGroupCleanerCallback,
    ray_internals.WorkingDirectorySetupCallback,
    ray_internals.ControllerMetricsCallback,
    ray_internals.WorkerMetricsCallback,
)
"""Callbacks of Ray Train that a worker group does not need. Ray Data and the preemption watcher cost every group a
process each, and relative paths keep their meaning in the workers."""
FULL_SIZE_TIMEOUT_S = 10.0
"""Seconds that an elastic worker group waits for room for all of its workers before it goes on with fewer."""
TOGETHER = timedelta(minutes=30)  # the longest that a rank waits in a collective; the others may be scoring
POLL_INTERVAL_S = 0.5  # seconds between two checks for room
LOOPBACK = "127.0.0.1"  # address at which the ranks of a group meet if all of them are on one node
STORES: list[object] = []  # in rank 0, the server of the store at which the ranks met. It ends with the object.


class WorkerSettings(TypedDict):
    """The settings of each rank of a worker group."""

    worker_group: str
    dispatcher: str  # the name of the dispatcher's actor
    run_trial: str  # the import path of the function that trains a trial
    threads: int
    isolation: Isolation  # `process`: a new process for every trial


class WorkerGroupTrainer(ray_internals.DataParallelTrainer):  # type: ignore[misc]
    """A Ray Train run whose `fit` starts the controller and does not wait for its end."""

    controller: ray.actor.ActorHandle
    """The actor that starts, watches and restarts the group of ranks; `run` is what it does."""

    def __init__(
        self,
        loop: Callable[[WorkerSettings], None],
        settings: PoolSettings,
        *,
        dispatcher: str,
        name: str,
        node: str | None = None,
    ) -> None:
        """`dispatcher` names its actor, `name` the worker group. `node` has the controller; None: the driver's node."""
        resources = settings.resources
        super().__init__(
            loop,
            train_loop_config=WorkerSettings(
                worker_group=name,
                dispatcher=dispatcher,
                run_trial=settings.run_trial,
                threads=settings.threads,
                isolation=settings.isolation,
            ),
            backend_config=_Joined(),
            scaling_config=ray.train.ScalingConfig(
                num_workers=settings.workers, use_gpu="GPU" in resources, resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(
                name=name, storage_path=str(settings.storage), failure_config=ray.train.FailureConfig(max_failures=-1)
            ),
        )
        self._least, self._node = settings.least, node

    def _create_default_callbacks(self) -> list[object]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, LEFT_OUT)]

    def _initialize_and_run_controller(self, **parts: object) -> ray.train.Result:
        elastic = self._least < self.scaling_config.num_workers
        parts["scaling_policy"] = _Elastic(self.scaling_config, self._least) if elastic else _Fixed(self.scaling_config)
        controller = _remote_controller().options(scheduling_strategy=beside(self._node))
        self.controller = controller.remote(ENVIRONMENT, **parts)
        return ray.train.Result(metrics=None, checkpoint=None, error=None, path=None)


@functools.cache
def _remote_controller() -> ray.actor.ActorClass:
    """The controller as an actor's class. Ray exports a class once, so a thousand groups do not export it anew."""
    return ray.remote(num_cpus=0)(_Controller)


class _Controller(ray_internals.TrainController):  # type: ignore[misc]
    """Ray Train's controller. It sets its environment itself, and so can begin in a process that Ray keeps ready."""

    def __init__(self, environment: dict[str, str], **parts: object) -> None:
        os.environ.update(environment)
        ray_internals.replace_report_barrier(_NoBarrier())
        super().__init__(**parts)

    async def lives(self) -> bool:
        """True, unless this process is stopped."""
        return True


class _NoBarrier:
    """The stand-in of `replace_report_barrier` for an actor."""

    def options(self, **_: object) -> _NoBarrier:
        return self

    def remote(self, **_: object) -> str:
        return "no actor"


class _Fixed(ray_internals.FixedScalingPolicy):  # type: ignore[misc]
    """Requests no resources: the placement group does, or `autoscaling.py`. Ray's coordinator of such requests is one
    more process, for which the first worker group of a cluster would wait."""

    def make_decision_for_non_running_worker_group(self) -> ray_internals.NoopDecision | ray_internals.ResizeDecision:
        end_if_taken_for_lost()
        return super().make_decision_for_non_running_worker_group()

    def after_controller_start(self, train_run_context: object) -> None:
        """Nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Nothing."""


def end_if_taken_for_lost() -> None:
    """Ends this process if Ray holds its node to be dead. A controller outlives a raylet that is stopped. It would ask
    for room for new ranks again and again, and the worker group that replaced its own would find none."""
    if is_dead(ray.get_runtime_context().get_node_id()):
        os._exit(1)


class _Elastic(_Fixed):
    """Starts a group with as many workers as there is room for, between the least and all."""

    def __init__(self, scaling_config: ray.train.ScalingConfig, least: int) -> None:
        super().__init__(scaling_config)
        self._least = least
        self._since: float | None = None

    def make_decision_for_non_running_worker_group(self) -> ray_internals.NoopDecision | ray_internals.ResizeDecision:
        decision = super().make_decision_for_non_running_worker_group()
        self._since = self._since or time.monotonic()
        actor = bytes.fromhex(ray.get_runtime_context().get_actor_id())
        # what its last group has, the next one gets
        room = room_for(decision.resources_per_worker) + places_of({actor})
        waits = time.monotonic() - self._since < FULL_SIZE_TIMEOUT_S
        if room < (decision.num_workers if waits else self._least):
            time.sleep(POLL_INTERVAL_S)  # the controller asks again at once
            return ray_internals.NoopDecision()
        self._since = None
        return dataclasses.replace(decision, num_workers=min(decision.num_workers, room))


class _Joined(BackendConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> type[Backend]:
        return _ProcessGroup


class _ProcessGroup(Backend):  # type: ignore[misc]
    """torch's process group of all ranks: over NCCL if torch sees each one's GPU, else over gloo. Nothing is torn down,
    because the processes end: with a rank that hangs, that would take 30 s."""

    share_cuda_visible_devices = True  # NCCL connects the GPUs of a node directly if every rank there sees all of them

    def on_start(self, worker_group: Any, _: BackendConfig) -> None:
        kind = "nccl" if all(worker_group.execute(_sees_gpu)) else "gloo"
        nodes = worker_group.execute(_node)
        host = LOOPBACK if len(set(nodes)) == 1 else nodes[0][1]
        port = worker_group.execute_single(0, _open_store, host)
        world = len(worker_group)
        calls = [worker_group.execute_single_async(r, _join, kind, (host, port), r, world) for r in range(world)]
        ray.get(calls, timeout=TOGETHER.total_seconds())


def _sees_gpu() -> bool:
    import torch

    return bool(ray.get_gpu_ids()) and torch.cuda.is_available()


def _node() -> tuple[str, str]:
    """The id and the address of this rank's node."""
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def _open_store(host: str) -> int:
    """Opens the store at which the ranks meet, for the life of this process: its port.

    Everybody who reaches it may write there. So it listens on this address alone, and not on all as torch's does."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    door = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port: int = door.getsockname()[1]
    STORES.append(TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach()))
    return port


def _join(kind: str, address: tuple[str, int], rank: int, world: int) -> None:
    from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

    if address[0] == LOOPBACK:
        interfaces = psutil.net_if_addrs().items()
        loopback = next(name for name, entries in interfaces if LOOPBACK in {entry.address for entry in entries})
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    store = TCPStore(*address, is_master=False, timeout=TOGETHER)
    init_process_group(kind, store=store, rank=rank, world_size=world, timeout=TOGETHER)
