"""What pays: terms that other models' authors praise, each beside the losses of `search_spaces/static.yaml`.

A static student learns from the bundled text and the bundled teacher. Every row has the same counted compute, and each
seed trains all of them. Nothing is chosen by a score. A stage begins with a training of three quarters of the compute,
with the losses of the first row. Scores are those of the bundled texts that no training reads. The table says which
terms pay, as the papers' tables judge an order."""

import argparse
import copy
import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import disable_progress_bars
from torch import Tensor
from transformers.utils import logging as of_transformers

from babeltune.data.prepared import TextTask
from babeltune.files import write_whole
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export_trial
from babeltune.promotion.fresh_scorer import score_items
from babeltune.schema.records import Scalar
from babeltune.training.averages import Averages
from benchmarks.__main__ import commit
from benchmarks.quality import Work
from benchmarks.race import one_thread
from benchmarks.tables.definition import SEEDS
from benchmarks.tables.sampling import Scored, sampling_error
from benchmarks.tables.verdict import Judged, judge, mean_of, over_seeds, table_of
from benchmarks.work import start

SWEEP = "search_spaces/static.yaml"
BASE = "the losses of static.yaml"
TEMPERATURE, SCALE, ALPHA = 0.05, 20.0, 5.0
"""Temperature and scale of the first row, and how much colder the colder row is."""
SETTINGS: Mapping[str, Scalar] = {
    "lealla": 1.0,
    "translation_ranking": 0.0,
    "mse_distillation": 0.0,
    "settings.lealla.margin": 0.3,
    "settings.lealla.scale": SCALE,
    "settings.laser3_co.temperature": TEMPERATURE,
    "settings.translation_ranking.hard_negatives": 0,
    "settings.translation_ranking.hard_negatives_below": 0.95,
    "settings.mse_distillation.scale": 192.0,
    "training.learning_rate": 3e-3,
    "training.global_batch": 256,
}
"""The first row's values. 192 times the mean of 384 squared differences of unit vectors is 1 - cos."""
METRICS = {"test/everyday/accuracy": "translations", "test/sts/spearman": "STS English"}
MINED_ROW, RANKED = "a stage with mined negatives", "a stage with ranking"
RANKING: Mapping[str, Scalar] = {"translation_ranking": 1.0}
MINED: Mapping[str, Scalar] = {**RANKING, "settings.translation_ranking.hard_negatives": 3}


@dataclass(frozen=True)
class Row:
    """One variant."""

    settings: Mapping[str, Scalar]
    other: str = BASE  # the row that differs from it by the term
    stage: bool = False


ROWS = {
    BASE: Row({}),
    "colder": Row(
        {
            "settings.laser3_co.temperature": round(1 / (1 / TEMPERATURE + ALPHA), 4),
            "settings.lealla.scale": SCALE + ALPHA,
        }
    ),
    "cosine distillation": Row({"mse_distillation": 1.0}),
    "a stage": Row({}, stage=True),
    RANKED: Row(RANKING, "a stage", stage=True),
    MINED_ROW: Row(MINED, RANKED, stage=True),
}


def searched(key: str) -> list[Scalar]:
    """The values of a setting in all rows."""
    return list(dict.fromkeys([SETTINGS[key], *(row.settings[key] for row in ROWS.values() if key in row.settings)]))


def read_work(storage: Path, compute: float) -> Work:
    """The bundled text, prepared for all rows; every row is a point of one sweep."""
    parameters = json.dumps({key: {"choice": searched(key)} for key in SETTINGS})
    student = "{kind: static, width: 384, vocabulary: 4000, max_tokens: 64, projection: teacher}"
    settings = "{laser3_co: {variant: in_batch}, lealla: {beta: 0, gamma: 0}}"
    training = f"{{compute: {compute}, rates: [29, 29], reports: 1, embedding_learning_rate: 3}}"
    words = [
        f"parameters={parameters}",
        f"config={{laser3_co: 1, settings: {settings}}}",
        f"training={training}",
        f"student={student}",
        "sampler={kind: random}",
        "scheduler={kind: none}",
        "budget={unit: compute, trials: 1}",
    ]
    return Work(read_sweep(SWEEP, assignments=words), storage)


def unread(work: Work) -> list[TextTask]:
    """Sets that nothing here is chosen by: the sealed one, and the similarities of the dev sets."""
    return [*work.sets["test"], *(task for task in work.sets["dev"] if task.kind == "sts")]


def train(
    work: Work, row: Row, seed: int, share: float, begin: Mapping[str, Tensor] | None, folder: Path | None
) -> tuple[dict[str, Tensor], int, float]:
    """Trains with a share of the compute; the student's weights, the pairs that it saw, and the CPU seconds."""
    trial = make_trial(replace(work.sweep, seed=seed), 0, {**SETTINGS, **row.settings})
    assert trial.training.compute is not None
    trial = replace(trial, training=replace(trial.training, compute=share * trial.training.compute))
    run, meter = start(trial, work.prepared), Averages(every=10**9)
    encoder = run.train_step.encoder
    if begin is not None:
        encoder.load_state_dict(begin)
    began = time.process_time()
    for step in range(len(run.steps.schedule)):
        run.one_step(step, meter, flush=False)
    cpu_s = time.process_time() - began
    if folder is not None:
        export_trial(work.sweep, trial, work.prepared, encoder, run.train_step.method, folder)
    return copy.deepcopy(encoder.state_dict()), run.trial.training.pairs, cpu_s


def trained(work: Work, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row with this seed: its pairs, its CPU seconds, its scores and what each test sentence came out as."""
    begin, before, spent_before = train(work, ROWS[BASE], seed, 0.75, None, None)
    for name, row in ROWS.items():
        with TemporaryDirectory() as draft:
            folder = Path(draft) / "model"
            share, first = (0.25, begin) if row.stage else (1.0, None)
            _, pairs, cpu_s = train(work, row, seed, share, first, folder)
            scores, outcomes = score_items(str(folder), unread(work), "test")
        figures = {"pairs": pairs + before * row.stage, "seconds": cpu_s + spent_before * row.stage}
        words = " ".join(f"{title} {scores[metric]:.4f}" for metric, title in METRICS.items())
        print(f"{name}, seed {seed}: {figures['pairs']:,} pairs, {figures['seconds']:.1f} CPU s, {words}", flush=True)
        yield name, {**figures, "scored": Scored(scores, outcomes)}


def verdicts(work: Work, rows: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each row against the one that lacks its term, in each metric."""
    orders = []
    for name, row in ROWS.items():
        for metric in METRICS if name != BASE else ():
            better, worse = ([run["scored"] for run in rows[row_name]] for row_name in (name, row.other))
            better_scores, worse_scores = ([result.scores[metric] for result in side] for side in (better, worse))
            differences = tuple(a - b for a, b in zip(better_scores, worse_scores, strict=True))
            error = sampling_error(metric, unread(work), better, worse)
            result = judge(
                Judged(
                    better=statistics.fmean(better_scores),
                    worse=statistics.fmean(worse_scores),
                    differences=differences,
                    sentence_error=error,
                    untrained=None,
                )
            )
            mean, low, high = over_seeds(differences)
            order = {"row": name, "other": row.other, "metric": metric, "difference": mean, "low": low, "high": high}
            orders.append({**order, "sentence_error": error, "verdict": result.outcome, "why": result.why})
    return orders


def page(record: Mapping[str, Any]) -> str:
    """The tables of a record, in Markdown."""
    rows = [
        [
            row["name"],
            *(mean_of(row["scores"][metric]) for metric in METRICS),
            f"{statistics.median(row['pairs']):,.0f}",
        ]
        for row in record["rows"]
    ]
    orders = []
    for each in record["orders"]:
        claim = [each["row"], each["other"], METRICS[each["metric"]]]
        interval = f"{each['low']:+.4f} to {each['high']:+.4f}"
        scores = [f"{each['difference']:+.4f}", interval, f"± {1.96 * each['sentence_error']:.4f}"]
        orders.append([*claim, *scores, f"**{each['verdict']}**", each["why"]])
    titles = ["row", *METRICS.values(), "pairs"]
    claims = ["row", "above", "score", "difference", "over seeds", "over sentences", "verdict", "why"]
    return f"{table_of(titles, rows)}\n\n{table_of(claims, orders)}\n"


def row_of(name: str, trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the record: the figures of each seed's training."""
    scores = {metric: [each["scored"].scores[metric] for each in trainings] for metric in METRICS}
    return {
        "name": name,
        "pairs": [each["pairs"] for each in trainings],
        "seconds": [round(each["seconds"], 2) for each in trainings],
        "scores": scores,
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute", type=float, default=3.0, help="counted seconds of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to this file")
    args = parser.parse_args()
    one_thread()
    disable_progress_bars()
    of_transformers.set_verbosity_error()
    logging.disable(logging.WARNING)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ROWS}
    with TemporaryDirectory() as storage:
        work = read_work(Path(storage), args.compute)
        for seed in args.seeds:
            for name, figures in trained(work, seed):
                rows[name].append(figures)
        record = {
            "commit": commit(),
            "compute": args.compute,
            "rows": [row_of(name, trainings) for name, trainings in rows.items()],
            "orders": verdicts(work, rows),
        }
    print(page(record))
    if args.json is not None:
        write_whole(args.json, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
