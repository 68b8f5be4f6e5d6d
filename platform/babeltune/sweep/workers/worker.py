"""The loop of one rank of a warm worker group: trial after trial, in one process."""

import gc
import importlib
import logging
import math
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
import ray.train
import ray.train.torch
import torch
from torch import distributed

from babeltune.errors import (
    BabeltuneError,
    ClusterError,
    NodeError,
    ObjectStoreError,
    ReplacedError,
    SilentDispatcherError,
    StorageError,
)
from babeltune.memory import uncollected
from babeltune.schema.records import Point, Report
from babeltune.sweep.state.lease_actor import NAMESPACE
from babeltune.sweep.state.messages import EndKind, Order, ReportMessage, TrialAssignment, TrialEnd
from babeltune.sweep.workers.dispatcher import StopReply
from babeltune.sweep.workers.dispatcher_state import DIED
from babeltune.sweep.workers.nodes import from_head, node_words
from babeltune.sweep.workers.process_state import ProcessState
from babeltune.sweep.workers.ray_train import WorkerSettings

NO_CUDA = (
    "torch sees no CUDA on {}: what trains there has a GPU share and uses the CPU; see that its driver and its build "
    "of torch fit, then resume"
)
GO_ON = "go on"  # rank 0's message to the others if the dispatcher's verdict is to go on
END = "end"  # rank 0's message if the dispatcher does not answer, or refuses this group of ranks. All ranks end then.
EARLY_S = 0.5
"""Seconds before its time at which a question whether to stop is still asked: the trainer's own clock has jitter."""
ANSWER_TIMEOUT_S = 300.0
"""Seconds within which the dispatcher must answer a rank. The driver ends the sweep, and its ranks, after one minute
without an answer. So only ranks whose driver cannot do that wait for so long."""
log = logging.getLogger(__name__)


MEGABYTE = 1e6


class SystemMetrics:
    """Use of processor, memory, disk, network and GPU, under MLflow's names. Rates are means since the last reading."""

    def __init__(self) -> None:
        self.process, self.network = psutil.Process(), psutil.net_io_counters()
        self.read()

    def read(self) -> dict[str, float]:
        """Percentages, and megabytes (10^6 bytes); of a GPU, the memory that this process holds."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
        before, self.network = self.network, psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "process_cpu_utilization_percentage": self.process.cpu_percent(),
            "process_memory_usage_megabytes": self.process.memory_info().rss / MEGABYTE,
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_usage_percentage": disk.percent,
        }
        if self.network is not None and before is not None:
            values["network_receive_megabytes"] = (self.network.bytes_recv - before.bytes_recv) / MEGABYTE
            values["network_transmit_megabytes"] = (self.network.bytes_sent - before.bytes_sent) / MEGABYTE
        if torch.cuda.is_available():
            values["gpu_0_memory_usage_megabytes"] = torch.cuda.memory_allocated() / MEGABYTE
        return {f"system/{name}": float(value) for name, value in values.items()}


class Place(NamedTuple):
    """One rank of a group of ranks."""

    group: str  # names the group to the dispatcher
    rank: int
    world: int
    device: str


class DispatcherReporter:
    """A trial's connection to the dispatcher. Every rank calls `report` for every report."""

    def __init__(self, dispatcher: ray.actor.ActorHandle, trial: str, place: Place) -> None:
        self._dispatcher, self._trial, self._place = dispatcher, trial, place
        self._system, self._began_ms = SystemMetrics(), time.time_ns() // 1_000_000
        self._reply, self._asked_at = StopReply(stopped=False, ask_again_s=0.0), -math.inf
        self.unanswered: SilentDispatcherError | None = None
        """Why this rank has stopped the trial without having been asked to."""

    def report(self, report: Report) -> bool:
        """Hands rank 0's report over and returns the verdict on all ranks: True means go on.

        Adds machine metrics, unless an earlier process measured this report."""

        def ask() -> str:
            now = Point(step=report.step, time_ms=time.time_ns() // 1_000_000, values=self._system.read())
            # MLflow has one value for each step, and a resumed trial may repeat its last report
            repeated = bool(report.points) and report.points[-1].time_ms < self._began_ms
            points = report.points if repeated else (*report.points, now)
            encoded = ReportMessage(self._trial, replace(report, points=points)).encode()
            group = self._place.group
            go_on = wait_for_verdict(self._dispatcher.report, self._trial, report.index, report.last, encoded, group)
            return GO_ON if go_on else ""

        return ask_on_rank_0(ask, self._place) == GO_ON

    def stopped(self) -> bool:
        """Whether the trial was asked to stop since its last report.

        Rank 0 calls it about once a second. A trial that does not is taken for one that hangs. The dispatcher says when
        it wants to be asked again. One that does not answer counts as a stop."""
        if time.monotonic() - self._asked_at >= self._reply.ask_again_s - EARLY_S:
            try:
                self._reply = answer_of(self._dispatcher.stopped.remote(self._trial, self._place.group))
            except SilentDispatcherError as error:
                # A stop, and no exception, lets all ranks leave the trial at one step.
                self._reply, self.unanswered = StopReply(stopped=True, ask_again_s=math.inf), error
            self._asked_at = time.monotonic()
        return self._reply.stopped

    def checkpoint_saved(self) -> None:
        """A checkpoint is on the disk; there is nothing more to do."""


RunTrial = Callable[[TrialAssignment, DispatcherReporter, int, int, str], None]
"""Trains the trial of an assignment on one rank of the worker group, on this device (`run_trial.run`)."""


def answer_of(call: ray.ObjectRef) -> Any:
    """The result of a call. `SilentDispatcherError` if none comes within `ANSWER_TIMEOUT_S`, or the process died."""
    try:
        return ray.get(call, timeout=ANSWER_TIMEOUT_S)
    except ray.exceptions.GetTimeoutError as error:
        raise SilentDispatcherError(
            f"the sweep's dispatcher has not answered a worker for {ANSWER_TIMEOUT_S:g} s"
        ) from error
    except ray.exceptions.RayActorError as error:
        raise SilentDispatcherError("the sweep's dispatcher died") from error


def wait_for_verdict(method: Any, *arguments: object) -> bool:
    """The answer of a method that answers None every few seconds until it has decided."""
    while (answer := answer_of(method.remote(*arguments))) is None:
        pass
    return bool(answer)


def ask_on_rank_0(ask: Callable[[], str], place: Place) -> str:
    """The result of `ask` on rank 0, on every rank. If it raises `ReplacedError` there, all ranks do: none waits."""
    words, lost = "", ReplacedError("rank 0 ends: the dispatcher does not answer it, or refuses it")
    if place.rank == 0:
        try:
            words = ask()
        except ReplacedError as error:
            words, lost = END, error
    words = from_rank_0(words, place.rank, place.world, place.device)
    if words == END:
        raise lost
    return words


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


def _kind(error: Exception) -> EndKind:
    if isinstance(error, StorageError | ObjectStoreError):
        return "storage"
    if isinstance(error, BabeltuneError):
        return "refused"
    # gloo raises a plain RuntimeError, so its text alone tells a broken collective from a bug.
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


def import_function(path: str) -> RunTrial:
    """The function that an import path such as `babeltune.sweep.workers.run_trial:run` names."""
    module, _, name = path.partition(":")
    with uncollected():
        function: RunTrial = getattr(importlib.import_module(module), name)
    return function


def worker_loop(settings: WorkerSettings) -> None:
    """One rank of one worker group, as Ray Train runs it: takes trials until the dispatcher closes."""
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    cuda = distributed.get_backend() == "nccl"
    device = str(ray.train.torch.get_device()) if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    worker_group, group = settings["worker_group"], from_rank_0(uuid.uuid4().hex, rank, world, device)
    node = ray.get_runtime_context().get_node_id()
    dispatcher = from_head(ray.get_actor, settings["dispatcher"], namespace=NAMESPACE)
    try:
        if ray.get_gpu_ids() and not torch.cuda.is_available():
            answer_of(dispatcher.add_message.remote(NO_CUDA.format(node_words(node))))
        try:
            run = import_function(settings["run_trial"])
        except Exception as error:
            why = f"cannot load {settings['run_trial']}: {_reason(error)}"
            answer_of(dispatcher.refuse.remote(worker_group, why, node))
            return
        process_state = ProcessState(settings["threads"])
        gc.freeze()  # so that collecting before each trial walks the trials' objects, not the imported modules
        take_trials(dispatcher, settings, run, process_state, Place(group, rank, world, device))
    except ReplacedError as error:  # its node was taken for lost, or its dispatcher is
        log.warning("worker group %s ends: %s", worker_group, error)


def take_trials(
    dispatcher: ray.actor.ActorHandle, settings: WorkerSettings, run: RunTrial, state: ProcessState, place: Place
) -> None:
    """Takes trials until the dispatcher closes, or has no more use for this worker group."""
    name, node = settings["worker_group"], ray.get_runtime_context().get_node_id()
    group, rank, world, _ = place
    while True:
        order = Order.decode(ask_on_rank_0(lambda: answer_of(dispatcher.next.remote(name, group)).encode(), place))
        if order.kind == "close":
            return
        if order.kind == "renew":
            raise ClusterError(f"worker group {name} restarts: it was asked to")
        if order.assignment is not None:
            state.clean(order.assignment.seed)
            reporter = DispatcherReporter(dispatcher, order.trial, place)
            try:
                end = _attempt(run, order.assignment, reporter, place)
            except NodeError as unfit:
                answer_of(dispatcher.refuse.remote(name, str(unfit), node))
                return
            leak = state.leak()
            renew = bool(leak) or settings["isolation"] == "process"
            if not wait_for_verdict(dispatcher.leave, name, order.trial, rank, world, end.encode(), renew, group):
                why = end.text or leak or DIED
                raise ClusterError(f"worker group {name} restarts after trial {order.trial}: {why}")


def _attempt(run: RunTrial, assignment: TrialAssignment, reporter: DispatcherReporter, place: Place) -> TrialEnd:
    """Runs the trial and says how this rank left it. Of its exceptions, only those about this node are raised."""
    try:
        run(assignment, reporter, place.rank, place.world, place.device)
    except (NodeError, ReplacedError):
        raise
    except Exception as error:
        return TrialEnd(_kind(error), type(error).__name__, _reason(error))
    if reporter.unanswered is None:
        return TrialEnd("finished")
    if place.world == 1:
        raise reporter.unanswered
    # If the dispatcher wakes, the trial continues in new processes.
    return TrialEnd("peer", text=str(reporter.unanswered))
