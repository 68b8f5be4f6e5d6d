"""Seconds and bytes on a GPU, measured after it has ended all that it was given."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def synchronized() -> float:
    """The time, once the GPU has ended all that it was given."""
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
    """Bytes on the GPU at the most, above those before."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
