"""Quality at equal CPU seconds: our static student against sentence-transformers' own recipes.

All read the same pairs (`benchmarks/data/en_fra_rus_jpn_kor.yaml`) on one thread and are scored on the same sets as
exported folders. Each first measures its speed on a few batches, so that its schedule ends when its seconds do.

* `ours`: `search_spaces/encoder.yaml` with the settings below.
* `static RATE`: `StaticEmbedding` 384 wide with MultipleNegativesRankingLoss in batches of 1,024, without a teacher.
* `mse`: a Transformer of one layer that learns the teacher's vectors (MSELoss), as its multilingual example does.

The teacher's vectors are made once for all and are not in the seconds; their cost is printed, as `static` has none.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MSELoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from transformers import PrinterCallback
from transformers.utils import logging

from babeltune.data.eval_sets import read_tasks
from babeltune.data.prepare import prepare
from babeltune.data.prepared import Prepared, TextTask
from babeltune.data.store import open_matrix
from babeltune.promotion.export import export_trial
from babeltune.promotion.rescore import score
from babeltune.records import Student, Sweep, Trial
from babeltune.spec.space import default_params, make_trial
from babeltune.spec.sweep_file import data_root, read_sweep
from babeltune.training.meter import Meter
from benchmarks.race import one_thread
from benchmarks.train import Clock
from benchmarks.work import start, texts_of

SWEEP, REAL = "search_spaces/encoder.yaml", "benchmarks/data/en_fra_rus_jpn_kor.yaml"
SETTINGS = {
    "translation_ranking": 1,
    "mse_distillation": 10,
    "student.width": 384,
    "student.vocabulary": 12000,
    "training.learning_rate": 0.0015,
    "training.embedding_learning_rate": 10,
}
"""Of ours: of what the sweep searches."""
RATES = (0.05, 0.1, 0.2, 0.4)
TRIED = 12
"""Batches after which a trainer's speed is known."""
SHOWN = {
    "Tatoeba": "test/tatoeba/accuracy",
    "NTREX": "dev/ntrex/accuracy",
    "STS-B": "test/stsb_test/spearman",
    "KorSTS": "test/korsts_test/spearman",
}
GOALS = {"Tatoeba": 0.02, "NTREX": 0.02, "STS-B": 0.04}
"""By so much ours is to be above the best of the others."""


class Work:
    """The pairs, the teacher's vectors and the sets that all are scored on."""

    def __init__(self, storage: Path) -> None:
        fixed = [f"parameters.{key}={{const: {value}}}" for key, value in SETTINGS.items()]
        self.sweep: Sweep = read_sweep(SWEEP, overlays=[REAL], assignments=fixed)
        started = time.process_time()
        self.prepared: Prepared = prepare(self.sweep, storage)
        self.preparation = time.process_time() - started
        root = data_root(self.sweep)
        self.sets: dict[str, list[TextTask]] = {
            kind: read_tasks(tasks, root, self.sweep.data)
            for kind, tasks in (("dev", self.sweep.data.dev), ("test", self.sweep.data.test))
        }

    def trial(self, seed: int) -> Trial:
        return make_trial(replace(self.sweep, seed=seed), 0, default_params(self.sweep))

    def texts(self) -> tuple[list[str], list[str]]:
        """The anchors and the targets of all pairs."""
        texts, pairs = texts_of(self.prepared), self.prepared.pairs()
        return [texts[i] for i in pairs[:, 0]], [texts[i] for i in pairs[:, 1]]

    def scores(self, folder: Path) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind, tasks in self.sets.items():
            found |= score(str(folder), tasks, kind)
        return {name: found[metric] for name, metric in SHOWN.items()}


def ours(work: Work, seconds: float, seed: int, folder: Path) -> int:
    """Trains our student for so many CPU seconds into the folder; returns the pairs seen."""
    trial = work.trial(seed)
    run, meter = start(trial, work.prepared), Meter(every=10**9)
    run.one_step(0, meter, flush=False)
    started = time.process_time()
    for step in range(1, TRIED + 1):
        run.one_step(step, meter, flush=False)
    pairs = int(TRIED * trial.training.global_batch * seconds / (time.process_time() - started))
    trial = replace(trial, training=replace(trial.training, pairs=pairs, reports=1))
    run = start(trial, work.prepared)
    for step in range(len(run.schedule)):
        run.one_step(step, meter, flush=False)
    export_trial(work.sweep, trial, work.prepared, run.learner.encoder, run.learner.method, folder)
    return pairs


def peer(
    make: Callable[[], tuple[SentenceTransformer, torch.nn.Module]],
    rows: Dataset,
    seconds: float,
    seed: int,
    folder: Path,
    **settings: Any,
) -> int:
    """Trains a model of sentence-transformers for so many CPU seconds into the folder; returns the rows seen."""

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


def static(work: Work, rate: float, seconds: float, seed: int, folder: Path) -> int:
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
    student = Student(layers=1, width=256, heads=4, feed_forward=512, max_tokens=64, vocabulary=48_000, projection=384)
    sweep = replace(work.sweep, student=student, method="mse_distillation", config={}, parameters={}, seed=seed)
    prepared = prepare(sweep, Path(work.prepared.folder).parent.parent)
    trial = make_trial(sweep, 0, {})
    run = start(trial, prepared)
    untrained = folder.with_suffix(".untrained")
    export_trial(sweep, trial, prepared, run.learner.encoder, run.learner.method, untrained)
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


def contestants(work: Work) -> dict[str, Callable[[float, int, Path], int]]:
    """Who trains, by name."""
    peers = {f"static {rate:g}": functools.partial(static, work, rate) for rate in RATES}
    return {"ours": functools.partial(ours, work), **peers, "mse": functools.partial(distilled, work)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code is 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, nargs="+", default=[60, 300], help="CPU seconds of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="names of contestants; all by default")
    parser.add_argument("--storage", type=Path, help="where prepared text and teacher vectors are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    given = parser.parse_args(arguments)
    one_thread()
    disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as temporary:
        work = Work(given.storage or Path(temporary) / "storage")
        print(f"{len(work.prepared.pairs()):,} pairs; prepared in {work.preparation:.0f} CPU seconds", flush=True)
        for seconds in given.seconds:
            for name, train in contestants(work).items():
                for seed in given.seeds if not given.only or name in given.only else ():
                    folder = Path(temporary) / f"{name}-{seconds:g}-{seed}".replace(" ", "-")
                    started = time.process_time()
                    pairs = train(seconds, seed, folder)
                    spent = time.process_time() - started
                    scores = work.scores(folder)
                    rows.append(
                        {"name": name, "seconds": seconds, "seed": seed, "pairs": pairs, "spent": spent, **scores}
                    )
                    shown = " ".join(f"{metric} {value:.3f}" for metric, value in scores.items())
                    print(f"{name}, {seconds:g} s, seed {seed}: {pairs:,} rows, {shown}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    met = [table(rows, seconds) for seconds in given.seconds]
    return 0 if all(met) else 1


def table(rows: Sequence[dict[str, Any]], seconds: float) -> bool:
    """Prints the means over the seeds, with their spread; whether ours is above the others by the goals."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    means: dict[str, dict[str, float]] = {}
    print(f"\n{f'{seconds:g} CPU s':<14}" + "".join(f"{metric:>16}" for metric in SHOWN))
    for name in names:
        its = [row for row in rows if (row["name"], row["seconds"]) == (name, seconds)]
        means[name] = {metric: statistics.mean(row[metric] for row in its) for metric in SHOWN}
        spread = {metric: statistics.pstdev([row[metric] for row in its]) for metric in SHOWN}
        print(f"{name:<14}" + "".join(f"{means[name][metric]:>9.3f} ± {spread[metric]:.3f}" for metric in SHOWN))
    met = True
    for metric, goal in GOALS.items() if {"ours"} < means.keys() else ():
        ahead = means["ours"][metric] - max(means[name][metric] for name in names if name != "ours")
        met &= ahead >= goal
        print(f"{metric}: ours is {ahead:+.3f} from the best of the others; goal {goal:+.2f}")
    return met


if __name__ == "__main__":
    raise SystemExit(main())
