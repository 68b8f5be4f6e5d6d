"""Quality at equal CPU seconds from one pretrained start: ours, and sentence-transformers' own recipe.

Both begin with the same trimmed encoder, read the same pairs (`benchmarks/data/en_fra_rus_jpn_kor_capped.yaml`) on one
thread, and are scored on the same sets as exported folders. Each first measures its speed on a few batches, so that
its schedule ends when its seconds do.

* `start`: the trimmed encoder, untrained.
* `ours`: `search_spaces/pretrained.yaml` at its first point, with the bundled teacher alone.
* `RATE`: MultipleNegativesRankingLoss at this rate, in batches as large as ours.

In pieces: `--rows FOLDER --only ours --seeds 0`, as often as it takes, and `--rows FOLDER --table` in the end."""

import argparse
import functools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export_trial
from babeltune.training.own_share import fit_temperatures
from benchmarks.encoder import peer
from benchmarks.quality import SHOWN, Contestant, Row, Work, add_options, run_rows, train_within
from benchmarks.work import start

SWEEP, TEXT = "search_spaces/pretrained.yaml", "benchmarks/data/en_fra_rus_jpn_kor_capped.yaml"
FIRST = {"lealla": 1.0, "training.average.share": 0.5, "training.learning_rate": 1.3e-4}  # the sweep's first point
RATES = (2e-5, 1e-4)
PROMPT = "query: "
NAMES = ("start", "ours", *(f"{rate:g}" for rate in RATES))


def read_pretrained(encoder: str, storage: Path) -> Work:
    """The sweep at its first point, from this encoder."""
    fixed = ", ".join(f"{name}: {{const: {value}}}" for name, value in FIRST.items())
    assignments = [f"student.model={encoder}", "teacher.beside=[]", "sampler.points=[]", f"parameters={{{fixed}}}"]
    return Work(read_sweep(SWEEP, overlays=[TEXT], assignments=assignments), storage)


def untrained(work: Work, seconds: float, seed: int, folder: Path) -> int:
    """The trimmed encoder as sentence-transformers loads it; no seconds are used."""
    trial = work.trial(seed)
    run = start(trial, work.prepared)
    export_trial(work.sweep, trial, work.prepared, run.train_step.encoder, run.train_step.method, folder)
    return 0


def ours(work: Work, seconds: float, seed: int, folder: Path) -> int:
    return train_within(work, fit_temperatures(work.trial(seed), work.prepared), seconds, folder)


def ranked(work: Work, seconds: float, seed: int, folder: Path, *, rate: float) -> int:
    """sentence-transformers' recipe for pairs."""
    first = folder.with_suffix(".untrained")
    untrained(work, seconds, seed, first)
    anchors, targets = work.texts()
    rows = Dataset.from_dict({"anchor": anchors, "positive": targets})

    def make() -> tuple[SentenceTransformer, torch.nn.Module]:
        model = SentenceTransformer(str(first), device="cpu", local_files_only=True)
        return model, MultipleNegativesRankingLoss(model)

    batch = work.sweep.training.global_batch
    settings = {"per_device_train_batch_size": batch, "learning_rate": rate, "prompts": PROMPT}
    return peer(make, rows, seconds, seed, folder, **settings)


def table(rows: Sequence[Row], seconds: float) -> str:
    """Means over the seeds with their spread, as Markdown."""
    lines = [f"| {seconds:g} CPU s | seeds | pairs | {' | '.join(SHOWN)} |", f"| --- |{' --: |' * (len(SHOWN) + 2)}"]
    for name in NAMES:
        runs = [row for row in rows if row.name == name and row.seconds == seconds]
        if not runs:
            continue
        cells = [str(len(runs)), f"{statistics.mean(row.pairs for row in runs):,.0f}"]
        for title in SHOWN:
            scores = [row.scores[title] for row in runs]
            cells.append(f"{statistics.mean(scores):.3f} ± {statistics.pstdev(scores):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default=os.environ.get("BABELTUNE_ENCODER", "intfloat/multilingual-e5-small"))
    add_options(parser, seconds=[300], seeds=[0, 1, 2])
    options = parser.parse_args(arguments)

    def contestants(storage: Path) -> Mapping[str, Contestant]:
        work = read_pretrained(options.encoder, storage)
        print(f"{len(work.prepared.pairs()):,} pairs", flush=True)
        training_functions: dict[str, Callable[[Work, float, int, Path], int]] = {"start": untrained, "ours": ours}
        training_functions |= {f"{rate:g}": functools.partial(ranked, rate=rate) for rate in RATES}

        def scored(train: Callable[[Work, float, int, Path], int]) -> Contestant:
            return lambda seconds, seed, folder: (train(work, seconds, seed, folder), work)

        return {name: scored(train) for name, train in training_functions.items()}

    rows = run_rows(options, NAMES, contestants)
    for seconds in sorted({row.seconds for row in rows}):
        print("\n" + table(rows, seconds))


if __name__ == "__main__":
    main()
