"""Quality at equal CPU seconds: our static student against sentence-transformers' own recipes.

All read the same pairs (`benchmarks/data/en_fra_rus_jpn_kor.yaml`) on one thread and are scored on the same sets as
exported folders. Each first measures its speed on a few batches, so that its schedule ends when its seconds do.

* `ours`: `search_spaces/encoder.yaml` with the settings below. After 300 seconds it is the average of three trainings
  from one start, as `babeltune refit --one-start` and `promote --soup 3` make it.
* `static RATE`: `StaticEmbedding` 384 wide with MultipleNegativesRankingLoss in batches of 1,024, without a teacher.
* `mse`: a Transformer of one layer that learns the teacher's vectors (MSELoss), as its multilingual example does.

The teacher's vectors are made once for all and are not in the seconds; their cost is printed, as `static` has none.
In pieces: `--rows FOLDER --only mse --seeds 0`, as often as it takes, and `--rows FOLDER --table` in the end."""

import argparse
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MSELoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from transformers import PrinterCallback

from babeltune.data.stored_arrays import open_matrix
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.promotion.export import export_trial
from babeltune.schema.records import Transformer
from benchmarks.quality import SHOWN, TRIED, Contestant, Row, Work, add_options, read_work, run_rows, train_averaged
from benchmarks.train import Clock
from benchmarks.work import start

SWEEP = "search_spaces/encoder.yaml"
SETTINGS = {
    "lealla": 2,
    "settings.lealla.margin": 0.4,
    "student.width": 512,
    "student.vocabulary": 48000,
    "student.ngrams": 50000,
    "data.sampling.temperature": 3,
    "training.learning_rate": 0.0004,
    "training.embedding_learning_rate": 10,
}
"""Settings of our runs: the first point of the sweep. Chosen by dev scores after 100 CPU seconds."""
RUN = 95.0
"""CPU seconds after which another training begins, whose weights are averaged with those before. By dev scores, one
training gains nothing more on this text (docs/quality.md)."""
RATES = (0.05, 0.1, 0.2, 0.4)
GOALS = {"Tatoeba": 0.02, "NTREX": 0.02, "STS-B": 0.04}
"""The least margin by which ours is to beat the best of the others."""


def ours(work: Work, seconds: float, seed: int, folder: Path) -> int:
    """Our student."""
    return train_averaged(work, work.trial(seed), seconds, max(1, int(seconds // RUN)), folder)


def peer(
    make: Callable[[], tuple[SentenceTransformer, torch.nn.Module]],
    rows: Dataset,
    seconds: float,
    seed: int,
    folder: Path,
    **settings: Any,
) -> int:
    """Trains a model of sentence-transformers for `seconds` CPU seconds into the folder. Returns the rows seen."""

    def train(steps: int) -> tuple[SentenceTransformer, float]:
        torch.manual_seed(seed)
        (model, loss), clock = make(), Clock()
        model.model_card_data.widget = [{"text": ""}]  # else the trainer encodes examples for the card
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(folder.with_suffix(".trainer")),
            max_steps=steps,
            seed=seed,
            lr_scheduler_type="linear",
            warmup_steps=steps // 10,
            optim="adamw_torch_fused",
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **settings,
        )
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        trainer.train()
        return model, clock.seconds

    steps = max(1, int(TRIED * seconds / train(TRIED)[1]))
    train(steps)[0].save(str(folder), create_model_card=False)
    return steps * int(settings["per_device_train_batch_size"])


def static(work: Work, seconds: float, seed: int, folder: Path, *, rate: float) -> int:
    """sentence-transformers' recipe for static models."""
    (tokens,) = (tokens for tokens in work.prepared.tokens.values())
    anchors, targets = work.texts()
    rows = Dataset.from_dict({"anchor": anchors, "positive": targets})

    def make() -> tuple[SentenceTransformer, torch.nn.Module]:
        tokenizer = Tokenizer.from_file(f"{tokens.tokenizer}/tokenizer.json")
        model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=384)], device="cpu")
        return model, MultipleNegativesRankingLoss(model)

    return peer(make, rows, seconds, seed, folder, per_device_train_batch_size=1024, learning_rate=rate)


def distilled(work: Work, seconds: float, seed: int, folder: Path) -> int:
    """sentence-transformers' multilingual distillation, from scratch."""
    vocabulary = work.trial(seed).student.vocabulary
    student = Transformer(
        layers=1, width=256, heads=4, feed_forward=512, max_tokens=64, vocabulary=vocabulary, projection=384
    )
    sweep = replace(work.sweep, student=student, method="mse_distillation", config={}, parameters={})
    prepared = prepare(sweep, work.storage)
    trial = make_trial(replace(sweep, seed=seed), 0, {})
    run = start(trial, prepared)
    untrained = folder.with_suffix(".untrained")
    export_trial(sweep, trial, prepared, run.train_step.encoder, run.train_step.method, untrained)
    assert work.prepared.teacher is not None
    anchors, targets = work.texts()
    vectors = open_matrix(Path(work.prepared.teacher)).rows(work.prepared.teacher_rows()[work.prepared.pairs()[:, 0]])
    labels = np.repeat(vectors.astype(np.float32), 2, axis=0)
    rows = Dataset.from_dict(
        {"sentence": [text for pair in zip(anchors, targets, strict=True) for text in pair], "label": list(labels)}
    )

    def make() -> tuple[SentenceTransformer, torch.nn.Module]:
        model = SentenceTransformer(str(untrained), device="cpu", local_files_only=True)
        return model, MSELoss(model)

    return peer(make, rows, seconds, seed, folder, per_device_train_batch_size=128, learning_rate=1e-3)


TRAINED: dict[str, Callable[[Work, float, int, Path], int]] = {
    "ours": ours,
    **{f"static {rate:g}": functools.partial(static, rate=rate) for rate in RATES},
    "mse": distilled,
}
"""The function that trains each model, by the model's name."""


def contestants(storage: Path) -> Mapping[str, Contestant]:
    """Who trains, by name."""
    work = read_work(SWEEP, SETTINGS, storage)
    print(f"{len(work.prepared.pairs()):,} pairs; prepared in {work.preparation:.0f} CPU seconds", flush=True)

    def scored(train: Callable[[Work, float, int, Path], int]) -> Contestant:
        return lambda seconds, seed, folder: (train(work, seconds, seed, folder), work)

    return {name: scored(train) for name, train in TRAINED.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=[60, 300], seeds=[0, 1, 2])
    rows = run_rows(parser.parse_args(arguments), list(TRAINED), contestants)
    within_goal = [table(rows, seconds) for seconds in sorted({row.seconds for row in rows})]
    return 0 if all(within_goal) else 1


def table(rows: Sequence[Row], seconds: float) -> bool:
    """Prints the means over the seeds, with their spread and number; whether ours is above the others by the goals."""
    rows = [row for row in rows if row.seconds == seconds]
    names = [name for name in TRAINED if any(row.name == name for row in rows)]
    means: dict[str, dict[str, float]] = {}
    print(f"\n{f'{seconds:g} CPU s':<14}" + "".join(f"{metric:>16}" for metric in SHOWN))
    for name in names:
        scores_by_seed = [row.scores for row in rows if row.name == name]
        means[name] = {metric: statistics.mean(scores[metric] for scores in scores_by_seed) for metric in SHOWN}
        spread = {metric: statistics.pstdev([scores[metric] for scores in scores_by_seed]) for metric in SHOWN}
        print(
            f"{name:<14}" + "".join(f"{means[name][metric]:>9.3f} ± {spread[metric]:.3f}" for metric in SHOWN),
            f" ({len(scores_by_seed)})",
        )
    within_goal = True
    for metric, goal in GOALS.items() if {"ours"} < means.keys() else ():
        ahead = means["ours"][metric] - max(means[name][metric] for name in names if name != "ours")
        within_goal &= ahead >= goal
        print(f"{metric}: ours is {ahead:+.3f} from the best of the others; goal {goal:+.2f}")
    return within_goal


if __name__ == "__main__":
    raise SystemExit(main())
