"""Training steps of Transformer students against sentence-transformers' trainer, both in bf16, in batches of 512.

Ours is a trial's own step, eager and captured (`training.capture`). The peer has its weights, batches, optimizer and
precision. It runs with torch's attention and with FlashAttention-2, each with and without processes that tokenize
beside it, and the fastest counts. The first steps do not count; ours go over all steps once before."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import is_flash_attn_2_available

from babeltune.training.averages import Averages
from babeltune.training.compute import Counter
from benchmarks.gpu.first_batch import gradients
from benchmarks.gpu.timing import DEVICE, OURS, Size, synchronized, timed, with_training
from benchmarks.train import (
    SCALE,
    batches,
    export_untrained,
    largest_difference,
    load,
    make_task,
    peer_gradients,
    train_peer,
)
from benchmarks.work import describe_lengths, start

if TYPE_CHECKING:
    from babeltune.data.prepared import Prepared
    from babeltune.schema.records import Trial

    Batches = list[tuple[list[str], list[str]]]

GOAL, BOUND = 2.5, 0.4
"""How many times faster than the peer a step is to be, and what part of it the arithmetic alone is to take."""
FP32_DIFFERENCE = 1e-3  # largest difference of the gradients in fp32, relative to the largest gradient


class Clock(TrainerCallback):  # type: ignore[misc]
    """The trainer's seconds from the end of its first steps to the end of its last."""

    seconds = 0.0

    def __init__(self, size: Size) -> None:
        self.size = size

    def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
        if state.global_step == self.size.skipped:
            self.started = synchronized()
        elif state.global_step == self.size.steps:
            self.seconds = synchronized() - self.started


def ours(trial: Trial, prepared: Prepared, size: Size, facts: dict[str, str]) -> float:
    """Seconds of the steps that count, after all steps were made once; `facts` gets what was captured."""
    run, meter = start(trial, prepared, DEVICE), Averages(every=len(prepared.pairs()))
    for step in range(size.steps):
        run.one_step(step, meter, flush=False)
    started = synchronized()
    for step in range(size.skipped, size.steps):
        run.one_step(step, meter, flush=False)
    seconds = synchronized() - started
    if run.train_step.capture:
        facts["capture"] = run.train_step.capture.summary
        run.train_step.capture.release()
    return seconds


def peers(trial: Trial, exported: Path, order: Batches, scratch: Path, size: Size) -> dict[str, Callable[[], float]]:
    """sentence-transformers by how it runs, each a function that returns its seconds."""

    def run(attention: str, workers: int) -> float:
        model, clock = load(exported, DEVICE, attn_implementation=attention), Clock(size)
        where = {"bf16": True} if DEVICE == "cuda" else {"use_cpu": True}
        train_peer(model, trial, order, scratch, clock, dataloader_num_workers=workers, **where)
        return clock.seconds

    kinds = ("sdpa", "flash_attention_2") if is_flash_attn_2_available() else ("sdpa",)
    return {
        f"{kind}, {workers} processes": functools.partial(run, kind, workers)
        for kind in kinds
        for workers in size.workers
    }


def arithmetic(trial: Trial, prepared: Prepared, size: Size) -> float:
    """Seconds of a step's operations, at the rate of a large matrix product in the same precision."""
    run = start(trial, prepared, DEVICE)
    with Counter() as counter:
        run.train_step.step(run.steps.batch(0), 1)
    kind = torch.bfloat16 if trial.training.precision == "bf16" else torch.float32
    a, b = (torch.randn(size.product, size.product, device=DEVICE, dtype=kind) for _ in range(2))
    return float(counter.work.operations) * timed(lambda: a @ b) / (2 * size.product**3)


def gradients_of_peer(exported: Path, batch: tuple[list[str], list[str]], *, bf16: bool) -> dict[str, Tensor]:
    """The peer's."""
    model = load(exported, DEVICE, attn_implementation="sdpa")
    features = [
        {key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in model.preprocess(side).items()}
        for side in batch
    ]
    with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
        MultipleNegativesRankingLoss(model, scale=SCALE)(features, None).backward()
    return peer_gradients(model)


def train_one(student: Mapping[str, Any], storage: Path, size: Size) -> dict[str, Any]:
    """All trainers on one student."""
    settings = {"vocabulary": size.vocabulary, "max_tokens": 128, **student}
    trial, prepared, text = make_task(storage, size.steps, size.batch, **settings)
    exported, half = storage / f"student-{student['layers']}", with_training(trial, precision="bf16")
    export_untrained(trial, prepared, exported)
    order = batches(trial, prepared)
    exact, peers_exact = gradients(trial, prepared), gradients_of_peer(exported, order[0], bf16=False)
    difference = {
        "both in fp32": largest_difference(exact, peers_exact),
        "ours in bf16 and fp32": largest_difference(gradients(half, prepared), exact),
        "peer in bf16 and fp32": largest_difference(gradients_of_peer(exported, order[0], bf16=True), peers_exact),
    }
    facts: dict[str, str] = {}
    racers: dict[str, Callable[[], float]] = {
        **{
            name: functools.partial(ours, with_training(half, capture=capture), prepared, size, facts)
            for name, capture in OURS.items()
        },
        **peers(trial, exported, order, storage / "peer", size),
    }
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for number in range(size.rounds):
        for name, racer in list(racers.items())[:: -1 if number % 2 else 1]:
            seconds[name].append(racer())
            print(f"{name}: {seconds[name][-1]:.3g} s", flush=True)
    steps = size.steps - size.skipped
    speeds = {name: steps * size.batch / statistics.median(rounds) for name, rounds in seconds.items()}
    fastest = max((name for name in speeds if name not in OURS), key=lambda name: speeds[name])
    best = max(OURS, key=lambda name: speeds[name])
    ratios = [peer_s / ours_s for ours_s, peer_s in zip(seconds[best], seconds[fastest], strict=True)]
    bound = arithmetic(half, prepared, size)
    result = {
        "text": f"{text}: {describe_lengths(prepared)}",
        "seconds": seconds,
        "pairs": steps * size.batch,
        "pairs_per_second": speeds,
        **facts,
        "fastest_peer": fastest,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "arithmetic_seconds": bound,
        "arithmetic_share": bound * steps / statistics.median(seconds[best]),
        "gradient_difference": difference,
    }
    print(json.dumps(result, indent=1), flush=True)
    return result


def faults(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The missed goals."""
    for name, row in results.items():
        if row["ratio"] < GOAL:
            yield f"{name}: {row['ratio']:.3g} times the peer's speed, and the goal is {GOAL:g}"
        if row.get("arithmetic_share", BOUND) < BOUND:
            yield f"{name}: {row['arithmetic_share']:.0%} of a step is arithmetic, and the goal is {BOUND:.0%}"
        if row.get("capture", "").startswith("off"):
            yield f"{name}: capture is {row['capture']}"
        if row["gradient_difference"]["both in fp32"] > FP32_DIFFERENCE:
            yield f"{name}: the gradients differ in fp32"


def measure(storage: Path, size: Size) -> dict[str, Any]:
    """Pairs a second of all trainers on each student."""
    return {name: train_one(student, storage, size) for name, student in size.students.items()}


def measure_larger(storage: Path, size: Size) -> dict[str, Any]:
    """The same of a larger student."""
    return measure(storage, replace(size, students=size.larger))
