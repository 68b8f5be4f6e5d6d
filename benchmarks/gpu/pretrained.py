"""Tatoeba after ten minutes of training a cut and trimmed multilingual-e5-small on one GPU.

`--encoder FOLDER` names it, a sentence-transformers folder. `search_spaces/pretrained.yaml` trains on the capped text
of five languages: six of twelve layers, and the 22,000 most frequent tokens. The schedule ends with the seconds, by the
speed of the first batches. Preparation, steps and scores are timed apart."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.export import export_trial
from babeltune.promotion.fresh_scorer import score
from babeltune.training.averages import Averages
from babeltune.training.own_share import fit_temperatures
from benchmarks.gpu.timing import DEVICE, TINY, Size, synchronized, with_training
from benchmarks.quality import Work
from benchmarks.work import start

SWEEP, TEXT = "search_spaces/pretrained.yaml", "benchmarks/data/en_fra_rus_jpn_kor_capped.yaml"
GOAL, METRIC = 0.93, "test/tatoeba/accuracy"


def settings(size: Size) -> list[str]:
    """Assignments to the sweep file: one encoder, cut, in whole batches on a GPU."""
    return [
        f"student.model={size.encoder}",
        f"teacher.beside.0.model={size.encoder}",
        "parameters={}",
        "sampler.points=[]",
        "student.keep_layers=6",
        "training.chunk=null",
        "training.capture=auto",
        "training.learning_rate=2e-4",
        f"training.global_batch={size.batch}",
        f"training.precision={'bf16' if DEVICE == 'cuda' else 'fp32'}",
    ]


def measure(storage: Path, size: Size) -> dict[str, Any]:
    """The score, and the seconds of each part."""
    if size.encoder is None:
        return {"not measured": "no --encoder was named"}
    tiny = size.seconds <= TINY.seconds
    started = time.perf_counter()
    work = Work(read_sweep(SWEEP, overlays=[] if tiny else [TEXT], assignments=settings(size)), storage)
    trial = fit_temperatures(work.trial(0), work.prepared)
    prepared_at = time.perf_counter()
    run, meter = start(with_training(trial, pairs=2 * size.steps * size.batch), work.prepared, DEVICE), Averages(10**9)
    for step in range(size.skipped):
        run.one_step(step, meter, flush=False)
    began = synchronized()
    for step in range(size.skipped, size.steps):
        run.one_step(step, meter, flush=False)
    speed = (run.steps.seen(size.steps) - run.steps.seen(size.skipped)) / (synchronized() - began)
    pairs = max(2 * size.batch, int(speed * (size.seconds - (synchronized() - prepared_at))))
    trial = replace(trial, training=replace(trial.training, pairs=pairs, reports=1))
    run, meter = start(trial, work.prepared, DEVICE), Averages(10**9)
    for step in range(len(run.steps.schedule)):
        run.one_step(step, meter, flush=False)
    trained_at = synchronized()
    folder, step_state = storage / "student", run.train_step
    with step_state.averaged():
        step_state.module.cpu()
        export_trial(work.sweep, trial, work.prepared, step_state.encoder, step_state.method, folder)
    scores = {
        metric: value for kind, tasks in work.sets.items() for metric, value in score(str(folder), tasks, kind).items()
    }
    return {
        "pairs": pairs,
        "capture": step_state.capture.summary if step_state.capture else "off",
        "seconds": {
            "preparation": prepared_at - started,
            "training": trained_at - prepared_at,
            "scores": time.perf_counter() - trained_at,
        },
        "scores": scores,
    }


def faults(result: dict[str, Any]) -> Iterator[str]:
    """The missed goals."""
    if result.get("scores", {}).get(METRIC, GOAL) < GOAL:
        yield f"pretrained: Tatoeba {result['scores'][METRIC]:.3f}, and the goal is {GOAL:g}"
