"""An average of the weights over the steps of a training (`training.average`), kept beside the weights themselves.

The training step calls it after each update. What is evaluated, checkpointed and exported is the average. One over
steps reads all weights at every `average.every`-th step alone, and at the last, so that a large table costs little."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from babeltune.schema.records import Average, LastAverage, MovingAverage, StartAverage


class WeightAverage:
    """avg ← decay · avg + (1 - decay) · weights, at every `every`-th step from `begin` on, and at the last step.

    `ema` has the decay min(`average.decay`, (1 + t) / (10 + t)) at step t, to the power of the steps since the last
    reading. So the first weights of a short training do not weigh for long. `last` is the plain mean: (n - 1) / n at
    its n-th time."""

    def __init__(self, average: MovingAverage | LastAverage, weights: Mapping[str, nn.Parameter], total: int) -> None:
        """`weights` are the trained ones, and `total` the pairs of the whole training."""
        self.average, self.weights = average, dict(weights)
        self.total = total
        self.begin = (1 - average.share) * total if isinstance(average, LastAverage) else 0.0
        self.steps = 0
        """Steps since the beginning."""
        self.values: dict[str, Tensor] = {}
        """The averages by the names of their weights; empty before the first."""

    def after_update(self, seen: int) -> None:
        """Takes in the weights after an update. `seen`: the pairs that the training has seen by then."""
        if seen < self.begin:
            return
        self.steps += 1
        if self.steps % self.average.every and seen + 1 < self.total:  # of the last batch, one pair may be left out
            return
        weights = [parameter.detach() for parameter in self.weights.values()]
        if self.values:
            torch._foreach_lerp_(list(self.values.values()), weights, 1 - self.decay())
        else:
            self.start()

    def decay(self) -> float:
        """The share of the old average at this step."""
        times = math.ceil(self.steps / self.average.every)
        if isinstance(self.average, LastAverage):
            return (times - 1) / times
        since = self.steps - (times - 1) * self.average.every
        return float(min(self.average.decay, (1 + self.steps) / (10 + self.steps)) ** since)

    def start(self) -> None:
        """Begins with the weights as they are."""
        self.values = {name: weights.detach().clone() for name, weights in self.weights.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the module has the averages in place of its weights, if there are any yet."""
        weights = {name: self.weights[name].data for name in self.values}
        for name, value in self.values.items():
            self.weights[name].data = value
        try:
            yield
        finally:
            for name, value in weights.items():
                self.weights[name].data = value

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint besides the averages, which are in the module's place: its own weights and the
        number of steps."""
        counts = {"average": {"steps": torch.tensor(self.steps)}}
        weights = {name: self.weights[name].data for name in self.values}
        return {**counts, "weights": weights} if weights else counts

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes on from a checkpoint, whose averages the module holds: takes them, and gives it its own weights."""
        self.steps = int(tensors["average"]["steps"])
        if "weights" in tensors:
            self.start()
            for name, parameter in self.weights.items():
                parameter.data.copy_(tensors["weights"][name])


class StartMean(WeightAverage):
    """first + share · (weights - first), made when it is asked for. A method's own layers have no such start."""

    def __init__(self, average: StartAverage, weights: Mapping[str, nn.Parameter]) -> None:
        """`weights` are those before the first step."""
        self.share, self.steps, self.values = average.share, 0, {}
        self.weights = {name: value for name, value in weights.items() if name.startswith("student.")}
        self.first = {name: value.detach().clone() for name, value in self.weights.items()}

    def after_update(self, seen: int) -> None:
        """Nothing: the latest weights decide."""

    def _make(self) -> None:
        self.values = {n: torch.lerp(first, self.weights[n].detach(), self.share) for n, first in self.first.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        self._make()
        with super().in_place():
            yield
        self.values = {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        self._make()
        return super().tensors()


def weight_average(average: Average, weights: Mapping[str, nn.Parameter], total: int) -> WeightAverage:
    """The average of this kind. `weights` are those before the first step, and `total` the training's pairs."""
    return StartMean(average, weights) if isinstance(average, StartAverage) else WeightAverage(average, weights, total)


def weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained weights of a module by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
