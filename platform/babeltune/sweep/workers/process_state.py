"""Restores a worker process between two trials: random state, global switches, environment, memory."""

import contextlib
import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.backends import cuda, cudnn

from babeltune.memory import give_back_memory

LEAK = 512 * 2**20  # bytes of memory of the machine or the GPU that a trial may keep before its process is replaced
FIRST = 2 * 2**30
"""Bytes of the machine's memory that the first trial may keep besides, for what all trials import and read."""
Switch = tuple[Callable[[], object], Callable[[Any], object]]  # how a global switch is read, and how it is put back


def _flag(owner: object, name: str) -> Switch:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _autocast(device: str) -> tuple[Switch, ...]:
    return (
        (lambda: torch.is_autocast_enabled(device), lambda value: torch.set_autocast_enabled(device, value)),
        (lambda: torch.get_autocast_dtype(device), lambda value: torch.set_autocast_dtype(device, value)),
    )


SWITCHES: tuple[Switch, ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: None, torch.set_default_device),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (lambda: False, torch.set_flush_denormal),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *_autocast("cpu"),
    *_autocast("cuda"),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    _flag(cudnn, "enabled"),
    _flag(cudnn, "benchmark"),
    _flag(cudnn, "deterministic"),
    _flag(cudnn, "allow_tf32"),
    (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    (lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
    (Path.cwd, os.chdir),
    (np.geterr, lambda value: np.seterr(**value)),
    (lambda: torch.cuda.current_device() if torch.cuda.is_available() else -1, torch.cuda.set_device),
)
"""How each global switch is read in a new process, and put back. Those that cannot be read have a known default."""


class ProcessState:
    """The state of a process before its first trial."""

    def __init__(self, threads: int) -> None:
        """`threads` is torch's number of threads."""
        torch.set_num_threads(threads)
        self._switches = [(put, read()) for read, put in SWITCHES]
        self._environment = dict(os.environ)
        self._baseline = _gpu_memory()
        """Bytes that do not count as a leak, by kind. Of the GPU's memory, what is held before the first trial."""
        self._bound = own_memory() + FIRST

    def clean(self, seed: int) -> None:
        """Restores random and global state to that of a new process."""
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        for put, value in self._switches:
            put(value)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        self._give_back()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def leak(self) -> str:
        """The memory that the last trial has not freed, as text; empty if that is little."""
        self._give_back()
        now = {"memory": own_memory(), **_gpu_memory()}
        # Of the machine's memory, growth counts since the first trial, which imports and reads what all need.
        self._baseline = {**now, "memory": min(now["memory"], self._bound), **self._baseline}
        grown = {kind: now[kind] - before for kind, before in self._baseline.items()}
        return ", ".join(f"{size >> 20} MiB of {kind}" for kind, size in grown.items() if size > LEAK)

    def _give_back(self) -> None:
        gc.collect()
        give_back_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def own_memory() -> int:
    """Bytes of this process's own memory. Pages of files that it maps, such as the stores', do not count."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def _gpu_memory() -> dict[str, int]:
    return {"GPU memory": torch.cuda.memory_allocated()} if torch.cuda.is_available() else {}
