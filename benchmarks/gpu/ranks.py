"""Two ranks on one GPU by NCCL and by gloo, and the distance of their gradients from those of one rank."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from benchmarks.gpu.first_batch import gradients
from benchmarks.gpu.timing import DEVICE, Size
from benchmarks.train import TOLERANCE, largest_difference, make_task

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial

DONE = "trained"
ANSWER_S = 60.0 if DEVICE == "cuda" else 300.0
"""Seconds within which a rank must have trained or failed. A busy CPU takes long."""


def one_rank(rank: int, backend: str, meeting: str, trial: Trial, prepared: Prepared, pipe: Any) -> None:
    """A rank's process: what came of it, and its gradients."""
    try:
        if DEVICE == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=2)
        pipe.send((DONE, {name: gradient.cpu().numpy() for name, gradient in gradients(trial, prepared).items()}))
    except Exception as error:  # what a backend says is what is asked
        pipe.send((f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}", {}))


def together(backend: str, trial: Trial, prepared: Prepared, storage: Path) -> list[tuple[str, dict[str, Any]]]:
    """The replies of two ranks on one GPU."""
    context, meeting = multiprocessing.get_context("spawn"), storage / f"meeting-{backend}"
    ends = [context.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context.Process(target=one_rank, args=(rank, backend, str(meeting), trial, prepared, ends[rank][1]))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    replies = [end.recv() if end.poll(ANSWER_S) else (f"no answer within {ANSWER_S:g} s", {}) for end, _ in ends]
    for process in processes:
        process.terminate()
        process.join()
    return replies


def measure(storage: Path, size: Size) -> dict[str, Any]:
    """Both replies, and the difference of the gradients if the ranks train."""
    trial, prepared, _ = make_task(storage, 2, min(256, size.batch), **size.first)
    alone = {name: gradient.cpu() for name, gradient in gradients(trial, prepared).items()}
    results: dict[str, dict[str, Any]] = {}
    for backend in ("nccl", "gloo"):
        replies = together(backend, trial, prepared, storage)
        results[backend] = {"ranks": [words for words, _ in replies]}
        if all(words == DONE for words, _ in replies):
            by_rank = [{name: torch.from_numpy(value) for name, value in values.items()} for _, values in replies]
            results[backend]["gradient_difference"] = max(largest_difference(values, alone) for values in by_rank)
    return results


def faults(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The missed goals. A backend may refuse two ranks on one GPU."""
    for name, row in results.items():
        if row.get("gradient_difference", 0.0) > TOLERANCE:
            yield f"two ranks by {name}: the gradients differ from those of one rank"
