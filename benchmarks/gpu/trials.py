"""Pairs a second of one, two and four trials that share a GPU, each in a process of its own, eager and captured.

All begin their steps together, after a pass over the same steps. The bytes of each say what share of a GPU a trial
needs: `gpus_per_worker` in the cluster file. With MPS their kernels run side by side; `mps` says whether it was on."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from babeltune.training.averages import Averages
from benchmarks.gpu.timing import DEVICE, OURS, Size, synchronized, with_training
from benchmarks.work import start

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial

WAIT_S = 300.0  # seconds within which all trials must be there, and end


def one_trial(trial: Trial, prepared: Prepared, size: Size, together: Any, pipe: Any) -> None:
    """A trial's process. For each of our racers: when its steps began and ended, its bytes, and what was captured."""
    try:
        if DEVICE == "cpu":
            torch.set_num_threads(1)
        for capture in OURS.values():
            run = start(with_training(trial, precision="bf16", capture=capture), prepared, DEVICE)
            meter = Averages(every=len(prepared.pairs()))
            for step in range(size.steps):
                run.one_step(step, meter, flush=False)
            together.wait(WAIT_S)
            began = synchronized()
            for step in range(size.steps):
                run.one_step(step, meter, flush=False)
            ended, captured = synchronized(), run.train_step.capture
            used = torch.cuda.max_memory_reserved() if DEVICE == "cuda" else 0
            pipe.send({"began": began, "ended": ended, "bytes": used, "capture": captured and captured.summary})
            if captured:
                captured.release()
    except Exception as error:  # the barrier ends the others
        together.abort()
        pipe.send({"failed": f"{type(error).__name__}: {error}"})


def shared(count: int, trial: Trial, prepared: Prepared, size: Size) -> dict[str, dict[str, Any]]:
    """Pairs a second of `count` concurrent trials, from the first step to the last, for each of our racers."""
    context = multiprocessing.get_context("spawn")
    together, pipes = context.Barrier(count), [context.Pipe(duplex=False) for _ in range(count)]
    processes = [context.Process(target=one_trial, args=(trial, prepared, size, together, write)) for _, write in pipes]
    for process in processes:
        process.start()
    rows = {}
    for name in OURS:
        replies: list[Mapping[str, Any]] = [
            receiver.recv() if receiver.poll(WAIT_S) else {"failed": f"no answer within {WAIT_S:g} s"}
            for receiver, _ in pipes
        ]
        if failed := [reply["failed"] for reply in replies if "failed" in reply]:
            rows[name] = {"failed": failed[0]}
            break
        seconds = max(reply["ended"] for reply in replies) - min(reply["began"] for reply in replies)
        rows[name] = {
            "pairs_per_second": count * size.steps * size.batch / seconds,
            "bytes": max(reply["bytes"] for reply in replies),
            "capture": replies[0]["capture"],
        }
    for process in processes:
        process.terminate()
        process.join()
    return rows


def measure(storage: Path, size: Size) -> dict[str, Any]:
    """Of each number of trials, eager and captured."""
    from benchmarks.train import make_task  # which brings the peer; a trial's process needs none

    trial, prepared, _ = make_task(storage, size.steps, size.batch, **size.first)
    together = {str(count): shared(count, trial, prepared, size) for count in size.trials}
    return {"mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ, **together}


def faults(results: dict[str, Any]) -> Iterator[str]:
    """The missed goals. Several trials need not do more together than one."""
    for count, rows in results.items():
        for name, row in rows.items() if isinstance(rows, dict) else ():
            if "failed" in row:
                yield f"{count} trials on one GPU, {name}: {row['failed']}"
