"""Gradient caching: a batch of 4,096 pairs in chunks of 64 sentences, against sentence-transformers' cached loss.

One forward and backward pass of the whole batch: both encode every chunk without a graph, take the gradient of the loss
in the vectors, and encode again with a graph. Same weights, pairs and loss (scale 20), fp32, one thread. Ours is
`TrainStep.backward`, as a trial calls it; the peer is `CachedMultipleNegativesRankingLoss` on our exported student,
which is given its tokens, so that its tokenization is not in its time. Then the memory of such a step on 8,192 pairs,
each in a process of its own: cached, which may take a quarter at most, and in one piece."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from torch import Tensor
from transformers.utils import logging

from babeltune.data.prepared import Prepared
from babeltune.schema.records import Trial
from babeltune.training.trainer import TrialTrainer
from benchmarks.race import cpu_seconds, options, peak_memory, race, verdict
from benchmarks.train import (
    SCALE,
    TOLERANCE,
    batches,
    export_untrained,
    largest_difference,
    load,
    make_task,
    own_gradients,
    peer_gradients,
)
from benchmarks.work import describe_lengths, start

GOAL = 2.2
BATCH, CHUNK = 4096, 64
LARGE = 8192
MEMORY_SHARE = 0.25  # the largest share of the memory of a step in one piece that a cached step may take
STUDENT = {"width": 128, "feed_forward": 512}


def make_cached_task(storage: Path, batch: int, chunk: int, **student: Any) -> tuple[Trial, Prepared, str]:
    """The trial of one step of `batch` pairs, what is prepared for it, and what its text is."""
    trial, prepared, text = make_task(storage, 1, **{**STUDENT, **student})
    training = replace(trial.training, pairs=batch, global_batch=batch, chunk=chunk)
    return replace(trial, training=training), prepared, text


def ours(run: TrialTrainer) -> float:
    """CPU seconds of the step's forward and backward passes."""
    rows = run.steps.schedule.rows(0)
    batch = run.steps.reader.batch(rows, len(rows))
    return cpu_seconds(lambda: run.train_step.backward(batch))


def peer(model: SentenceTransformer, features: list[dict[str, Tensor]], chunk: int) -> float:
    """The peer's CPU seconds."""
    model.zero_grad()
    loss = CachedMultipleNegativesRankingLoss(model, scale=SCALE, mini_batch_size=chunk)
    return cpu_seconds(lambda: loss(features, None).backward())


def tokenized(model: SentenceTransformer, batch: tuple[list[str], list[str]]) -> list[dict[str, Tensor]]:
    """Both sides as the peer's collator gives them to its loss."""
    return [model.preprocess(side) for side in batch]


def passes(trial: Trial, prepared: Prepared, backward: bool) -> None:
    """Makes a step's batch and, if so, its gradients: what either takes is measured in a process of its own."""
    run = start(trial, prepared)
    rows = run.steps.schedule.rows(0)
    batch = run.steps.reader.batch(rows, len(rows))
    if backward:
        run.train_step.backward(batch)


def memory(trial: Trial, prepared: Prepared) -> int:
    """Peak bytes of the passes above those of model and batch."""
    return peak_memory(passes, trial, prepared, True) - peak_memory(passes, trial, prepared, False)


def in_one_piece(trial: Trial) -> Trial:
    return replace(trial, training=replace(trial.training, chunk=None))


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with TemporaryDirectory() as temporary:
        storage = Path(temporary)
        trial, prepared, text = make_cached_task(storage, BATCH, CHUNK)
        lengths = describe_lengths(prepared)
        print(f"{text}: {lengths}; one batch of {BATCH} pairs in chunks of {CHUNK} sentences")
        export_untrained(trial, prepared, storage / "student")
        run, model = start(trial, prepared), load(storage / "student")
        (batch,) = batches(trial, prepared)
        features = tokenized(model, batch)
        rows = race(lambda: ours(run), lambda: peer(model, features, CHUNK), args.rounds)
        gradient = largest_difference(own_gradients(run), peer_gradients(model))
        large, prepared, _ = make_cached_task(storage / "large", LARGE, CHUNK)
        cached, whole = memory(large, prepared), memory(in_one_piece(large), prepared)
    print(f"memory of a batch of {LARGE}: {cached / 2**20:.0f} MiB cached, {whole / 2**20:.0f} MiB in one piece")
    print(f"largest difference of the gradients, relative to the largest gradient: {gradient:.2g}")
    broken = [f"the gradients differ by more than {TOLERANCE:g}"] if gradient > TOLERANCE else []
    if cached > MEMORY_SHARE * whole:
        broken.append(f"a cached step takes more than {MEMORY_SHARE:g} of the memory of one in one piece")
    verdict(
        "gradcache",
        rows,
        GOAL,
        args,
        broken=broken,
        text=text,
        lengths=lengths,
        gradient_difference=gradient,
        memory=[cached, whole],
    )


if __name__ == "__main__":
    main()
