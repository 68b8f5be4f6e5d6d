"""Training steps of two Transformer students against sentence-transformers' trainer, both in bf16, in batches of 512.

Ours is a trial's own step. The peer has its weights, batches, optimizer and precision. It runs with torch's attention
and with FlashAttention-2, each with and without processes that tokenize beside it, and the fastest counts. The first
steps do not count."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import is_flash_attn_2_available

from babeltune.training.averages import Averages
from benchmarks.gpu.first_batch import gradients
from benchmarks.gpu.timing import synchronized
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

GOAL = 1.5
"""How many times faster than the peer a step is to be."""
STUDENTS: dict[str, dict[str, Any]] = {
    "6 layers of 384": {"layers": 6, "width": 384, "heads": 12, "feed_forward": 1536},
    "12 layers of 768": {"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072},
}
STEPS, SKIPPED, BATCH, ROUNDS = 30, 6, 512, 2
WORKERS = 4
"""Processes that tokenize for the peer."""
FP32_DIFFERENCE = 1e-3
"""Largest difference of the gradients in fp32, relative to the largest gradient."""


class Clock(TrainerCallback):  # type: ignore[misc]
    """The trainer's seconds from the end of its first steps to the end of its last."""

    seconds = 0.0

    def on_step_end(self, _: object, state: Any, *__: object, **___: object) -> None:
        if state.global_step == SKIPPED:
            self.started = synchronized()
        elif state.global_step == STEPS:
            self.seconds = synchronized() - self.started


def in_bf16(trial: Trial) -> Trial:
    """The same trial in bf16."""
    return replace(trial, training=replace(trial.training, precision="bf16"))


def ours(trial: Trial, prepared: Prepared) -> float:
    """Seconds of the steps that count."""
    run, meter = start(trial, prepared, "cuda"), Averages(every=len(prepared.pairs()))
    started = 0.0
    for step in range(STEPS):
        if step == SKIPPED:
            started = synchronized()
        run.one_step(step, meter, flush=False)
    return synchronized() - started


def peers(trial: Trial, exported: Path, order: Batches, scratch: Path) -> dict[str, Callable[[], float]]:
    """sentence-transformers by how it runs, each a function that returns its seconds."""

    def run(attention: str, workers: int) -> float:
        model, clock = load(exported, "cuda", attn_implementation=attention), Clock()
        train_peer(model, trial, order, scratch, clock, bf16=True, dataloader_num_workers=workers)
        return clock.seconds

    kinds = ("sdpa", "flash_attention_2") if is_flash_attn_2_available() else ("sdpa",)
    return {
        f"{kind}, {workers} processes": functools.partial(run, kind, workers)
        for kind in kinds
        for workers in (0, WORKERS)
    }


def gradients_of_peer(exported: Path, batch: tuple[list[str], list[str]], *, bf16: bool) -> dict[str, Tensor]:
    """The peer's."""
    model = load(exported, "cuda", attn_implementation="sdpa")
    features = [
        {key: value.cuda() if isinstance(value, Tensor) else value for key, value in model.preprocess(side).items()}
        for side in batch
    ]
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        MultipleNegativesRankingLoss(model, scale=SCALE)(features, None).backward()
    return peer_gradients(model)


def train_one(student: dict[str, Any], storage: Path) -> dict[str, Any]:
    """Both trainers on one student."""
    given = {"vocabulary": 16_000, "max_tokens": 128, **student}
    trial, prepared, text = make_task(storage, STEPS, BATCH, **given)
    exported, half = storage / f"student-{student['layers']}", in_bf16(trial)
    export_untrained(trial, prepared, exported)
    order = batches(trial, prepared)
    exact, theirs = gradients(trial, prepared), gradients_of_peer(exported, order[0], bf16=False)
    difference = {
        "both in fp32": largest_difference(exact, theirs),
        "ours in bf16 and fp32": largest_difference(gradients(half, prepared), exact),
        "peer in bf16 and fp32": largest_difference(gradients_of_peer(exported, order[0], bf16=True), theirs),
    }
    racers: dict[str, Callable[[], float]] = {
        "ours": functools.partial(ours, half, prepared),
        **peers(trial, exported, order, storage / "peer"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in racers}
    for _ in range(ROUNDS):
        for name, racer in racers.items():
            seconds[name].append(racer())
            print(f"{name}: {seconds[name][-1]:.3g} s", flush=True)
    pairs = (STEPS - SKIPPED) * BATCH
    speeds = {name: pairs / statistics.median(found) for name, found in seconds.items()}
    fastest = max((name for name in speeds if name != "ours"), key=lambda name: speeds[name])
    ratios = [theirs / own for own, theirs in zip(seconds["ours"], seconds[fastest], strict=True)]
    found = {
        "text": f"{text}: {describe_lengths(prepared)}",
        "seconds": seconds,
        "pairs": pairs,
        "pairs_per_second": speeds,
        "fastest_peer": fastest,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "gradient_difference": difference,
    }
    print(json.dumps(found, indent=1), flush=True)
    return found


def faults(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is not as promised."""
    for name, row in found.items():
        if row["ratio"] < GOAL:
            yield f"{name}: {row['ratio']:.3g} times the peer's speed, and the goal is {GOAL:g}"
        if row["gradient_difference"]["both in fp32"] > FP32_DIFFERENCE:
            yield f"{name}: the gradients differ in fp32"


def measure(storage: Path) -> dict[str, Any]:
    """Pairs a second of both trainers on each student."""
    return {name: train_one(student, storage) for name, student in STUDENTS.items()}
