"""An average of the weights over the steps of a training (`training.average`), kept beside the weights themselves.

The training step calls it around each update. What is evaluated, checkpointed and exported is the average. A dense
weight is averaged at every step. A row of a sparse table is averaged when a batch is about to change it: between two
changes it is constant, so that all the steps in between have one closed form. A step costs what its batch touches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from jaxtyping import Float64, Int

    from babeltune.records import Average

CACHED = 1 << 17
"""Numbers of a block of rows: half a megabyte, which stays in the processor's cache."""
NOTHING = 1e-30
"""The share of the old average that the first weights leave: a zero whose logarithm is finite."""


class WeightAverage:
    """avg ← decay · avg + (1 - decay) · weights, after every update from `begin` on.

    `ema` has the decay min(`average.decay`, (1 + t) / (10 + t)) at its t-th update, so that the first weights of a
    short training do not weigh for long. `last` has the decay (t - 1) / t, which is the plain mean. The product of the
    decays since a row was averaged is exp(now - then), of the sums of their logarithms.
    """

    def __init__(
        self, average: Average, named: Mapping[str, nn.Parameter], by_row: Sequence[Tensor], total: int
    ) -> None:
        """`named` are the trained weights, `by_row` those with sparse gradients, and `total` the pairs of the whole
        training."""
        rows = {id(parameter) for parameter in by_row}
        self.average, self.named = average, dict(named)
        self.dense = [name for name, parameter in named.items() if id(parameter) not in rows]
        self.tables = [name for name, parameter in named.items() if id(parameter) in rows]
        self.begin = 0.0 if average.kind == "ema" else (1 - average.share) * total
        self.updates, self.log = 0, 0.0
        self.values: dict[str, Tensor] = {}
        """The averages by the names of their weights; empty before the first."""
        self.settled: dict[str, Float64[Tensor, "rows"]] = {}
        """Of each row of a table: what `log` was when it was last averaged."""

    def before_update(self) -> None:
        """Brings the rows that the next update changes up to the steps before it."""
        for name in self.tables if self.values else ():
            gradient = self.named[name].grad
            if gradient is not None:
                self._settle(name, gradient.indices()[0])

    def after_update(self, seen: int) -> None:
        """Takes in the weights after an update, up to which the training has seen so many pairs."""
        if seen < self.begin:
            return
        if not self.values:
            self.start()
        self.updates += 1
        decay = self._decay()
        self.log += math.log(decay)
        weights = [self.named[name].detach() for name in self.dense]
        if weights:
            torch._foreach_lerp_([self.values[name] for name in self.dense], weights, 1 - decay)

    def start(self) -> None:
        """Begins with the weights as they are."""
        self.values = {name: weights.detach().clone() for name, weights in self.named.items()}
        self.settled = {
            name: torch.full((len(self.named[name]),), self.log, dtype=torch.float64, device=self.named[name].device)
            for name in self.tables
        }

    def _decay(self) -> float:
        if self.average.kind == "ema":
            return min(self.average.decay, (1 + self.updates) / (10 + self.updates))
        return max(NOTHING, (self.updates - 1) / self.updates)

    def settle(self) -> None:
        """Brings every row up to the latest step."""
        for name in self.tables if self.values else ():
            self._settle(name, torch.arange(len(self.values[name]), device=self.values[name].device))

    def _settle(self, name: str, rows: Int[Tensor, "changed"]) -> None:
        values, weights, settled = self.values[name], self.named[name].detach(), self.settled[name]
        for part in torch.split(rows, max(1, CACHED // max(1, values.shape[1]))):
            left = (self.log - settled.index_select(0, part)).exp_().to(values.dtype)
            old = values.index_select(0, part)
            values.index_copy_(0, part, torch.lerp(weights.index_select(0, part), old, left[:, None]))
            settled.index_fill_(0, part, self.log)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the module has the averages in place of its weights, where there are any yet."""
        weights = {name: self.named[name].data for name in self.values}
        for name, value in self.values.items():
            self.named[name].data = value
        try:
            yield
        finally:
            for name, value in weights.items():
                self.named[name].data = value

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs besides the averages and the weights."""
        counts = {"updates": torch.tensor(self.updates), "log": torch.tensor(self.log, dtype=torch.float64)}
        return counts | {f"settled/{name}": settled for name, settled in self.settled.items()}

    def restore(self, state: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Goes on from a checkpoint, whose averages the module holds: takes them, and gives it its own `weights`."""
        self.start()
        self.updates, self.log = int(state["updates"]), float(state["log"])
        for name in self.tables:
            self.settled[name].copy_(state[f"settled/{name}"])
        for name, parameter in self.named.items():
            parameter.data.copy_(weights[name])


def weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained weights of a module by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def tensors_of(average: WeightAverage) -> dict[str, dict[str, Any]]:
    """What a checkpoint holds of an average that has begun: its counts, and the weights that it is the average of."""
    if not average.values:
        return {}
    return {"average": average.state(), "weights": {name: p.data for name, p in average.named.items()}}
