"""Pairs per CPU-second of a training step against sentence-transformers' trainer.

Both train the same weights on the same batches of 64 pairs in the same order, in fp32 on one thread. The loss is
sentence-transformers' MultipleNegativesRankingLoss (scale 20), the optimizer fused AdamW with the same settings. Ours
is `TrialTrainer.one_step`, as a trial calls it: the sampler's rows, the token store, and `TrainStep.step`. The peer is
`SentenceTransformerTrainer.train` on our exported student, from its first batch to its last update: no logging, no
saving, no evaluation. Its tokenization is in its time, as it is in every run of it; ours is done once per sweep."""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

from babeltune.data.prepared import Prepared
from babeltune.data.tokens import load_tokenizer
from babeltune.models.encoder import Encoder
from babeltune.models.static import StaticEncoder
from babeltune.planning.space import make_trial
from babeltune.promotion.export import export
from babeltune.schema.records import Trial
from babeltune.training.averages import Averages
from babeltune.training.build import token_set
from babeltune.training.trainer import TrialTrainer
from benchmarks.race import Options, cpu_seconds, options, race, verdict
from benchmarks.work import benchmark_sweep, describe_lengths, prepare_text, start, texts_of

GOAL = 2.5
STEPS, BATCH = 16, 64
TOLERANCE = 1e-3  # largest difference of the gradients, relative to the largest gradient
SCALE = 20.0
LOSS = {"temperature": 1 / SCALE, "direction": "forward", "hard_negatives": 0, "mask_duplicates": False}
STUDENT = {"layers": 2, "width": 256, "heads": 4, "feed_forward": 1024, "vocabulary": 16_000, "max_tokens": 128}


def batches(trial: Trial, prepared: Prepared) -> list[tuple[list[str], list[str]]]:
    """The texts of both sides of every global batch."""
    texts, run = texts_of(prepared), start(trial, prepared)
    pairs = [run.steps.reader.pairs[run.steps.schedule.rows(step)] for step in range(len(run.steps.schedule))]
    return [([texts[i] for i in rows[:, 0]], [texts[i] for i in rows[:, 1]]) for rows in pairs]


def ours(trial: Trial, prepared: Prepared) -> float:
    """CPU seconds of all steps."""
    run, meter = start(trial, prepared), Averages(every=len(prepared.pairs()))

    def steps() -> None:
        for step in range(len(run.steps.schedule)):
            run.one_step(step, meter, flush=False)

    return cpu_seconds(steps)


class Clock(TrainerCallback):  # type: ignore[misc]
    """The trainer's CPU seconds from its first batch to the end of its last step."""

    seconds = 0.0

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.started = time.process_time()

    def on_step_end(self, *_: object, **__: object) -> None:
        self.seconds = time.process_time() - self.started


class InOrder(SentenceTransformerTrainer):  # type: ignore[misc]
    """The trainer without shuffling."""

    def get_batch_sampler(self, dataset: Dataset, batch_size: int, drop_last: bool, **_: object) -> Any:
        return torch.utils.data.BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def peer(trial: Trial, exported: Path, order: list[tuple[list[str], list[str]]], scratch: Path) -> float:
    """CPU seconds of all steps."""
    clock = Clock()
    train_peer(load(exported), trial, order, scratch, clock, use_cpu=True)
    return clock.seconds


def train_peer(
    model: SentenceTransformer,
    trial: Trial,
    order: list[tuple[list[str], list[str]]],
    scratch: Path,
    clock: TrainerCallback,
    **more: Any,
) -> None:
    """sentence-transformers' trainer on these batches in this order, with the trial's settings; `more` are its own."""
    training = trial.training
    model.model_card_data.widget = [{"text": ""}]  # else the trainer encodes examples for the card
    rows = {side: [text for batch in order for text in batch[at]] for at, side in enumerate(("anchor", "positive"))}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(scratch),
        num_train_epochs=1,
        per_device_train_batch_size=training.global_batch,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        adam_beta1=training.beta1,
        adam_beta2=training.beta2,
        adam_epsilon=training.epsilon,
        max_grad_norm=training.clip or 0.0,
        lr_scheduler_type="linear",
        warmup_steps=int(training.warmup * len(order)),
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )
    loss = MultipleNegativesRankingLoss(model, scale=SCALE)
    trainer = InOrder(model, arguments, train_dataset=Dataset.from_dict(rows), loss=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(clock)  # after the trainer's own, so that what those do at the start is not counted
    trainer.train()


def load(exported: Path, device: str = "cpu", **model: Any) -> SentenceTransformer:
    """Our student as the peer has it; `model` are transformers' arguments."""
    student = SentenceTransformer(str(exported), device=device, local_files_only=True, model_kwargs=model)
    return student.train()


def export_untrained(trial: Trial, prepared: Prepared, folder: Path) -> None:
    """Writes the untrained student for the peer."""
    tokenizer = load_tokenizer(trial.student, Path(token_set(trial, prepared).tokenizer))
    encoder = start(trial, prepared).train_step.encoder
    assert isinstance(encoder, Encoder | StaticEncoder)
    export(encoder, tokenizer, trial.student, folder)


def gradient_difference(trial: Trial, prepared: Prepared, exported: Path, batch: tuple[list[str], list[str]]) -> float:
    """The largest difference of both gradients on the first batch, relative to the largest gradient."""
    run = start(trial, prepared)
    rows = run.steps.schedule.rows(0)
    run.train_step.backward(run.steps.reader.batch(rows, len(rows)))
    model = load(exported)
    features = [model.preprocess(side) for side in batch]
    MultipleNegativesRankingLoss(model, scale=SCALE)(features, None).backward()
    return largest_difference(own_gradients(run), peer_gradients(model))


def largest_difference(ours_by_name: dict[str, Tensor], peer_by_name: dict[str, Tensor]) -> float:
    """Between the gradients of the same parameters, relative to the peer's largest gradient."""
    if ours_by_name.keys() != peer_by_name.keys():
        raise AssertionError(
            f"not the same parameters have gradients: {sorted(ours_by_name.keys() ^ peer_by_name.keys())}"
        )
    largest = max(float(gradient.abs().max()) for gradient in peer_by_name.values())
    return max(float((ours_by_name[name] - peer_by_name[name]).abs().max()) for name in ours_by_name) / largest


def own_gradients(run: TrialTrainer) -> dict[str, Tensor]:
    """The gradients in our student's parameters after a backward pass."""
    gradients = {name: p.grad for name, p in run.train_step.encoder.named_parameters() if p.grad is not None}
    return {name: gradient.to_dense() for name, gradient in gradients.items()}


def peer_gradients(model: SentenceTransformer) -> dict[str, Tensor]:
    """The peer's gradients under our names."""
    if isinstance(model[0], StaticEmbedding):
        gradients = {"table.weight": model[0].embedding.weight.grad}
    else:
        gradients = {f"backbone.{name}": p.grad for name, p in model[0].auto_model.named_parameters()}
    for module in model:
        if hasattr(module, "linear"):
            gradients |= {f"projection.{name}": p.grad for name, p in module.linear.named_parameters()}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def make_task(storage: Path, steps: int, batch: int = BATCH, **student: Any) -> tuple[Trial, Prepared, str]:
    """The trial that both train, what is prepared for it, and what its text is."""
    sweep, text = benchmark_sweep("translation_ranking", LOSS, student or STUDENT)
    training = replace(sweep.training, pairs=steps * batch, global_batch=batch)
    sweep = replace(sweep, training=training)
    prepared = prepare_text(sweep, storage)
    return make_trial(sweep, 0, {}), prepared, text


def compare(name: str, goal: float, args: Options, steps: int, batch: int, **student: Any) -> None:
    """Races both trainers on this student, and ends the process with the verdict."""
    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with TemporaryDirectory() as temporary:
        storage = Path(temporary)
        trial, prepared, text = make_task(storage, steps, batch, **student)
        lengths = describe_lengths(prepared)
        print(f"{text}: {lengths}; {steps} steps of {batch} pairs")
        exported = storage / "student"
        export_untrained(trial, prepared, exported)
        order = batches(trial, prepared)
        gradient = gradient_difference(trial, prepared, exported, order[0])
        rows = race(lambda: ours(trial, prepared), lambda: peer(trial, exported, order, storage / "peer"), args.rounds)
    pairs = steps * batch
    speeds = {"ours": [pairs / row.ours for row in rows], "peer": [pairs / row.peer for row in rows]}
    print(f"pairs per CPU-second at best: ours {max(speeds['ours']):.0f}, peer {max(speeds['peer']):.0f}")
    print(f"largest difference of the gradients, relative to the largest gradient: {gradient:.2g}")
    broken = [f"the gradients differ by more than {TOLERANCE:g}"] if gradient > TOLERANCE else []
    verdict(
        name, rows, goal, args, broken=broken, text=text, lengths=lengths, pairs=pairs, gradient_difference=gradient
    )


def main() -> None:
    """Runs the benchmark."""
    compare("train", GOAL, options(__doc__), STEPS, BATCH, **STUDENT)


if __name__ == "__main__":
    main()
