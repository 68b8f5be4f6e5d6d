"""The text, the sweep and the runs that the training benchmarks share.

Pairs are real ones of mixed lengths from `../shared/data` (or `BABELTUNE_DATA`) if it exists. Else they are the bundled
corpus: its sentences are short and of like length, so there is less padding to save."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from babeltune.data.prepared import TEXTS, Prepared
from babeltune.data.stored_arrays import open_ragged
from babeltune.errors import SpecError
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.schema.records import Report, Sweep, Transformer, Trial
from babeltune.training.trainer import TrialTrainer

SWEEP = "search_spaces/quickstart.yaml"
REAL = "benchmarks/data/mixed_lengths.yaml"
STUDENT: Mapping[str, Any] = {
    "layers": 2,
    "width": 256,
    "heads": 4,
    "feed_forward": 512,
    "vocabulary": 8_000,
    "max_tokens": 64,
    "projection": "teacher",
}
"""Fields of a benchmark's student that it does not name itself. The goals were set on these, whatever a shipped sweep
trains."""


def benchmark_sweep(method: str, config: Mapping[str, Any], student: Mapping[str, Any]) -> tuple[Sweep, str]:
    """The quickstart with one method, nothing searched, and real text where it is; and what its text is."""
    sweep = read_sweep(SWEEP)
    text = "the bundled corpus"
    real = read_sweep(SWEEP, overlays=[REAL])
    try:
        root = data_root(real)
    except SpecError as error:
        print(f"no real text, so short sentences and less to save: {error}", flush=True)
    else:
        sweep, text = real, f"{root.name}: news, chat and scripture"
    changed = Transformer().changed(**{**STUDENT, **student})
    return replace(sweep, method=method, config=dict(config), parameters={}, student=changed), text


def prepare_text(sweep: Sweep, storage: Path) -> Prepared:
    """Corpus and tokens of the sweep, without the teacher's vectors of its training text.

    The tokenizer learns from all of the text, so that sentences have the lengths that they have in a sweep."""
    without_teacher = replace(sweep, method="translation_ranking", config={"hard_negatives": 0})
    return prepare(without_teacher, storage)


def texts_of(prepared: Prepared) -> list[str]:
    """Every text by its id."""
    return prepared.all_texts()[:]


def part_of(prepared: Prepared, pairs: int, folder: Path) -> tuple[Prepared, list[str]]:
    """A sample of the pairs in a new folder, and their distinct anchors in the teacher store's order."""
    sampled_rows = np.random.default_rng(0).permutation(len(prepared.pairs()))[:pairs]
    texts = texts_of(prepared)
    rows = np.full(len(texts), -1, np.int32)
    places: dict[str, int] = {}
    for i in prepared.pairs()[sampled_rows, 0].tolist():
        rows[i] = places.setdefault(texts[i], len(places))
    folder.mkdir(parents=True)
    np.save(folder / "pairs.npy", prepared.pairs()[sampled_rows])
    np.save(folder / "groups.npy", prepared.pair_groups()[sampled_rows])
    np.save(folder / "weights.npy", prepared.pair_weights()[sampled_rows])
    np.save(folder / "teacher_rows.npy", rows)
    np.save(folder / "languages.npy", prepared.text_languages())
    prepared.all_texts().save(folder / TEXTS)
    return replace(prepared, folder=str(folder)), list(places)


def describe_lengths(prepared: Prepared) -> str:
    """Tokens per sentence, for the record."""
    (tokens,) = prepared.tokens.values()
    lengths = open_ragged(Path(tokens.train)).lengths()[np.unique(prepared.pairs())]
    spread = "/".join(f"{length:.0f}" for length in np.percentile(lengths, (10, 50, 90)))
    return f"{len(prepared.pairs())} pairs, {lengths.mean():.1f} tokens a side on average, 10/50/90 % at {spread}"


class NoReports:
    """A run's reporter, which benchmarks of single steps never call."""

    def report(self, report: Report) -> bool:
        return True

    def stopped(self) -> bool:
        return False

    def checkpoint_saved(self) -> None:
        """A checkpoint is on the disk; there is nothing more to do."""


def start(trial: Trial, prepared: Prepared, device: str = "cpu") -> TrialTrainer:
    """A trial before its first step, alone on the device. Nothing is resumed, and nothing is written."""
    folder = Path(prepared.folder) / "no-trial"
    return TrialTrainer(trial, prepared, folder, NoReports(), ProcessGroup(), torch.device(device))
