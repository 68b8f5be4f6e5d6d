"""A method that trains as `soft_contrastive`, notes every step, and follows orders to fail where they say.

An order is a file that a test puts into `config.folder`; the worker that meets it does to itself what it says: the
fault is its process's own, at exactly that step. What a process did is in `steps.jsonl`, a line for each step."""

import json
import math
import os
import resource
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from babeltune.method import Batch, Encode, Gather, Loss
from babeltune.method.distributed import ProcessGroup
from babeltune_methods import soft_contrastive

STEPS, RELEASED = "steps.jsonl", "released"
LITTLE, MUCH = 64 * 2**20, 2**30  # bytes that a worker short of memory still gets, and how many it asks for


@dataclass(frozen=True)
class Config(soft_contrastive.Config):
    """Those of `soft_contrastive`, and where orders come from."""

    folder: str = ""  # holds the orders and the log; empty: neither
    pause: float = 0.0  # seconds that a step sleeps, so that a fault from outside meets it


class Faulty(soft_contrastive.SoftContrastive):
    name = "faulty"
    Config = Config

    def __init__(self, config: Any, **sizes: Any) -> None:
        super().__init__(config, **sizes)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        self.step += 1
        time.sleep(self.config.pause)
        self.rank = gather.rank
        found = super().loss(encode, batch, gather)
        if self.config.folder:
            note = {"mark": self.config.temperature, "rank": self.rank, "step": int(self.step)}
            with (Path(self.config.folder) / STEPS).open("a", encoding="utf-8") as log:
                log.write(json.dumps({**note, "time": time.time(), "pid": os.getpid()}) + "\n")
            if self.ordered("nan_loss"):
                return Loss(found.total * math.nan)
            self.follow()
        return found

    def finish(self, vectors: Tensor, languages: Any) -> Tensor:
        """The vectors of an evaluation, which an order makes useless."""
        if self.config.folder and self.ordered("nan_metric"):
            return torch.full_like(vectors, math.nan)
        return super().finish(vectors, languages)

    def follow(self) -> None:
        """Does what an order for this step says."""
        if self.ordered("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.ordered("hang"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.ordered("stall"):
            threading.Event().wait()
        if self.ordered("raise"):
            raise ValueError("a bug of the method")
        if self.ordered("gpu_memory"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if self.ordered("host_memory"):
            take_too_much()
        if self.ordered("hold"):
            while not (Path(self.config.folder) / RELEASED).exists():
                time.sleep(0.02)
        if order := self.ordered("clock"):
            wall = time.time
            time.time = lambda: wall() + 86_400 * order["days"]

    def ordered(self, kind: str) -> dict[str, Any]:
        """The order of this kind for this rank, this step and this trial, which is used up by that; empty without one.

        An order belongs to the trial that meets it first, unless it is for `any`, and counts `times`."""
        for path in Path(self.config.folder).glob(f"{kind}-*.order"):
            order = json.loads(path.read_text(encoding="utf-8"))
            if (order["at"], order["rank"]) != (int(self.step), getattr(self, "rank", ProcessGroup().rank)):
                continue
            taken = sorted(path.parent.glob(f"{path.name}.*.taken"))
            own = not taken or json.loads(taken[0].read_text(encoding="utf-8"))["mark"] == self.config.temperature
            if len(taken) < order["times"] and (own or order["any"]):
                words = {"mark": self.config.temperature, "time": time.time()}
                (path.parent / f"{path.name}.{len(taken):03d}.taken").write_text(json.dumps(words), encoding="utf-8")
                return order
        return {}


def take_too_much() -> None:
    """Asks for more memory than the process may have, as on a machine that has no more; the limit ends with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LITTLE, hard))
    try:
        torch.ones(MUCH, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
