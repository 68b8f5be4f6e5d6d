"""What a lane's process must not carry from one trial to the next: random state, global switches, memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
from pathlib import Path

import psutil
import torch

from babeltune.machine import give_back_memory

LEAK = 512 * 2**20
"""Bytes beyond what the first trial left behind, of the machine's memory or the GPU's, that make a process leaky."""


class Slate:
    """A process as it was before its first trial."""

    def __init__(self, threads: int) -> None:
        """`threads` is torch's number of them."""
        self._threads = threads
        self._environment, self._folder = dict(os.environ), Path.cwd()
        self._left: dict[str, int] = {}

    def clean(self, seed: int) -> None:
        """Puts random and global state where a new process would have it."""
        random.seed(seed)
        torch.manual_seed(seed)
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy").random.seed(seed % 2**32)
        torch.set_num_threads(self._threads)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.set_anomaly_enabled(False)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        os.chdir(self._folder)
        self._give_back()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def leak(self) -> str:
        """After a trial: what it has kept, in words; empty when that is little beside what the first one left."""
        self._give_back()
        held = {"memory": psutil.Process().memory_info().rss}
        if torch.cuda.is_available():
            held["GPU memory"] = torch.cuda.memory_allocated()
        self._left = self._left or held
        grown = {kind: held[kind] - before for kind, before in self._left.items()}
        return ", ".join(f"{size >> 20} MiB of {kind}" for kind, size in grown.items() if size > LEAK)

    def _give_back(self) -> None:
        gc.collect()
        give_back_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
