"""Sizes of a benchmark of a GPU, and seconds and bytes there, measured after it has ended all that it was given.

With `--tiny` all parts run on a CPU within seconds, so that a test sees whether they are whole. Its figures say
nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from babeltune.schema.records import Trial

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OURS = {"ours": "off", "ours, captured": "auto"}  # `training.capture` of our two racers


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    students: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"6 layers of 384": {"layers": 6, "width": 384, "heads": 12, "feed_forward": 1536}}
    )
    larger: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"12 layers of 768": {"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072}}
    )
    vocabulary: int = 16_000
    steps: int = 30
    skipped: int = 6  # steps that do not count
    batch: int = 512
    rounds: int = 2  # every other one goes through the racers backwards
    workers: tuple[int, ...] = (0, 4)  # processes that tokenize for the peer
    trials: tuple[int, ...] = (1, 2, 4)  # trials that share the GPU
    soft_loss: tuple[int, ...] = (16_384, 65_536)
    vectors: tuple[int, ...] = (200_000, 1_000_000)
    product: int = 8192  # rows and columns of the matrices whose product says what the GPU can do
    seconds: float = 480.0
    """Seconds of training the pretrained encoder. With preparation and scores they are ten minutes."""
    encoder: str | None = None  # the folder of the pretrained encoder

    @property
    def first(self) -> dict[str, Any]:
        """The student of the parts that have one."""
        return {"vocabulary": self.vocabulary, "max_tokens": 128, **next(iter(self.students.values()))}


TINY = Size(
    students={"1 layer of 32": {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64}},
    larger={},
    vocabulary=1000,
    steps=4,
    skipped=1,
    batch=8,
    rounds=1,
    workers=(0,),
    trials=(1, 2),
    soft_loss=(64,),
    vectors=(200,),
    product=64,
    seconds=2.0,
)


def with_training(trial: Trial, **fields: Any) -> Trial:
    """The same trial with other settings of its training."""
    return replace(trial, training=replace(trial.training, **fields))


def synchronized() -> float:
    """The time, once the GPU has ended all that it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(function: Callable[[], object], times: int = 5) -> float:
    """Median seconds of one call, after one that does not count."""
    function()
    seconds = []
    for _ in range(times):
        started = synchronized()
        function()
        seconds.append(synchronized() - started)
    return statistics.median(seconds)


def peak(function: Callable[[], object]) -> int:
    """Bytes on the GPU at the most, above those before; 0 on a CPU."""
    if DEVICE == "cpu":
        function()
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
