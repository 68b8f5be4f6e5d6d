"""A whole training step as one CUDA graph for each shape of its batches: a GPU then waits for no Python.

`training.capture: auto` asks for it. Batches of one shape (`batches.py`) first run eagerly, which warms torch up and
finds out what a graph cannot hold. Then the step is recorded, and later batches are copied into its inputs and
replayed. Some replayed steps are compared with eager ones. Whatever is in the way ends it for the trial: one line says
why, and steps run eagerly. Every call of torch.cuda is in `CudaGraphs`; a test plays the same on a CPU."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from babeltune.errors import plural
from babeltune.method import Batch

if TYPE_CHECKING:
    from torch._ops import OpOverload

Values = dict[str, Tensor]
Replay = Callable[[], Values]
WARM_UP = 3  # eager steps of a shape before it is recorded; the last of them looks for what a graph cannot hold
MOST = 6  # graphs of a trial. They share one pool of memory, so it holds the largest of them and each one's results.
GUARD_EVERY = 1000  # replayed steps from one comparison with an eager step to the next; the first is compared, too
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""Largest relative difference of the loss and of the gradient's norm. On a GPU sums have no fixed order."""
COMPARED = ("loss", "gradient_norm")
aten = torch.ops.aten
OF_THE_HOST = {
    aten._local_scalar_dense,
    aten.bincount,
    aten.equal,
    aten.is_nonzero,
    aten.lift_fresh,
    aten.masked_select,
    aten.nonzero,
    aten.unique_consecutive,
    aten._unique2,
}
"""Kernels for which the program waits for the GPU, or that take their data from the program."""
BY_MASK = {aten.index, aten.index_put, aten.index_put_}  # kernels that wait if one of their indices is a mask


class HostOps(TorchDispatchMode):
    """Records the names of kernels that CUDA graphs cannot capture, including backward passes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        packet = func._overloadpacket
        masks = packet in BY_MASK and any(leaf.dtype == torch.bool for leaf in tree_leaves(args[1]) if leaf is not None)
        if packet in OF_THE_HOST or masks:
            self.names.append(str(packet).removeprefix("aten."))
        return func(*args, **(kwargs or {}))


class CudaGraphs:
    """torch's CUDA graphs on one device. Eager steps take the stream of the recordings, as torch asks for."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)

    def eager(self, work: Replay) -> Values:
        """Does the work, and records nothing."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            values = work()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return values

    def record(self, work: Replay) -> tuple[Replay, Values]:
        """Does the work once. Returns what does it again, on the same tensors, and the result. Raises `RuntimeError`,
        and has done nothing, if it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            values = work()
        self.graphs.append(graph)

        def replay() -> Values:
            graph.replay()
            return values

        return replay, replay()

    def shortage(self) -> str:
        """Why there is no memory for another recording; empty if there is."""
        torch.cuda.empty_cache()
        step = torch.cuda.max_memory_allocated(self.device) - self.before
        free = torch.cuda.mem_get_info(self.device)[0]
        # The guard's eager step needs room beside the recorded one.
        return "" if free > 2 * step else f"two steps take {step / 5e8:.1f} GB, and {free / 1e9:.1f} GB are free"

    def release(self) -> None:
        """Gives the memory of all recordings back."""
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        torch.cuda.empty_cache()


@dataclass
class Capture:
    """The steps of a trial, recorded by the shape of their batches."""

    update: Callable[[Batch], Values]
    """A whole step but for the learning rate: forward, loss, backward, clipping and update."""
    gradients_without_update: Callable[[Batch], Values]  # the same without the update and without any other effect
    recorder: CudaGraphs | None
    tolerance: float
    off: str = ""  # why steps run eagerly; empty while they may be recorded
    steps: int = 0
    replayed: int = 0
    compared: int = 0
    difference: float = 0.0  # the largest of the comparisons
    recorded: dict[object, tuple[Batch, Replay]] = field(default_factory=dict)
    """Inputs of each shape, and what runs the step on them."""
    seen: Counter[object] = field(default_factory=Counter)

    def run(self, batch: Batch) -> Values:
        """One step on this batch. Its values are overwritten by the next step."""
        self.steps += 1
        shape = shape_of(batch)
        if self.off or shape is None:
            return self._eager(batch)
        if shape in self.recorded:
            return self._replay(*self.recorded[shape], batch)
        self.seen[shape] += 1
        if self.seen[shape] == WARM_UP:
            with HostOps() as host:
                values = self._eager(batch)
            if host.names:
                self._end(f"a graph cannot hold {', '.join(sorted(set(host.names)))}")
            return values
        if self.seen[shape] < WARM_UP or len(self.recorded) == MOST:
            return self._eager(batch)
        return self._record(shape, batch)

    @property
    def summary(self) -> str:
        """The outcome, in a line."""
        steps, graphs = plural(self.steps, "step"), plural(len(self.recorded), "graph")
        guard = f", {self.compared:,} compared with eager ones, which differ by {self.difference:.1e} at most"
        words = f"{self.replayed:,} of {steps} replayed from {graphs}{guard if self.compared else ''}"
        return f"off: {self.off}" if self.off else words

    def release(self) -> None:
        """Gives the graphs and their memory back."""
        self.recorded.clear()
        if self.recorder is not None:
            self.recorder.release()

    def _eager(self, batch: Batch) -> Values:
        return self.update(batch) if self.recorder is None else self.recorder.eager(lambda: self.update(batch))

    def _end(self, reason: str) -> None:
        self.off = reason
        self.release()

    def _record(self, shape: object, batch: Batch) -> Values:
        assert self.recorder is not None
        inputs = copy.deepcopy(batch)
        try:
            if reason := self.recorder.shortage():
                raise RuntimeError(reason)
            replay, values = self.recorder.record(lambda: self.update(inputs))
        except RuntimeError as error:
            self._end(str(error).splitlines()[0])
            return self._eager(batch)
        self.recorded[shape] = inputs, replay
        return values

    def _replay(self, inputs: Batch, replay: Replay, batch: Batch) -> Values:
        assert self.recorder is not None
        for (_, place), (_, tensor) in zip(tensors_of(inputs), tensors_of(batch), strict=True):
            place.copy_(tensor)
        guarded = self.replayed % GUARD_EVERY == 0
        expected = self.recorder.eager(lambda: self.gradients_without_update(batch)) if guarded else {}
        values = replay()
        self.replayed += 1
        if guarded:
            self._compare(values, expected)
        return values

    def _compare(self, values: Values, expected: Values) -> None:
        """Ends the recording if a replayed step is not the eager one. Its update has been made by then."""
        self.compared += 1
        for name in COMPARED:
            one, other = float(values[name]), float(expected[name])
            difference = abs(one - other) / max(abs(other), 1e-6)
            self.difference = max(self.difference, difference)
            if difference > self.tolerance or math.isnan(difference):
                self._end(f"step {self.steps}: {name} is {one:.6g} by the graph and {other:.6g} eagerly")
                return


def shape_of(batch: Batch) -> object | None:
    """The shape that two batches of one graph share; None if the batch has no fixed shape."""
    if not batch.source.longest:
        return None
    shapes = tuple((at, tensor.shape, tensor.dtype) for at, tensor in tensors_of(batch))
    return batch.total, batch.alone, batch.cut, batch.source.longest, shapes


def tensors_of(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a batch, by its path such as `batch.source.ids`."""
    waiting: list[tuple[str, object]] = [("batch", batch)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, Tensor):
            yield at, value
        elif dataclasses.is_dataclass(value):
            waiting += [(f"{at}.{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
