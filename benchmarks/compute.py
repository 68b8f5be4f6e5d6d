"""How far counted seconds are from measured ones, for unlike students, batches and methods.

Each line is a training step: its counted seconds by the rates that this machine was measured to have, its measured CPU
seconds, and the ratio. What compares trials is whether the ratios are alike: the goal is that the largest is at most
`WITHIN` times the smallest."""

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from babeltune.files import write_whole
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Sweep, Training
from babeltune.training.build import make_reader, make_schedule, make_train_step
from babeltune.training.compute import measured_rates, with_length, work_of_a_pair
from babeltune.training.step import step_seed
from benchmarks.race import one_thread

WITHIN = 2.0
STEPS, REPEATS = 4, 3
STATIC = {"kind": "static", "vocabulary": 16_000}
SMALL = {"kind": "transformer", "vocabulary": 4000, "heads": 4}
STUDENTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "static 256, batch 256": ("encoder", STATIC | {"width": 256}, {"global_batch": 256}),
    "static 512, batch 256": ("encoder", STATIC | {"width": 512}, {"global_batch": 256}),
    "static 512, batch 2,048": ("encoder", STATIC | {"width": 512}, {"global_batch": 2048}),
    "static 1,024, batch 1,024": ("encoder", STATIC | {"width": 1024}, {"global_batch": 1024}),
    "static 512, matryoshka": ("encoder", STATIC | {"width": 512}, {"global_batch": 1024, "matryoshka": (128, 64)}),
    "1 × 128, batch 128": (
        "soft_contrastive",
        SMALL | {"layers": 1, "width": 128, "feed_forward": 256},
        {"global_batch": 128},
    ),
    "1 × 256, batch 256": (
        "soft_contrastive",
        SMALL | {"layers": 1, "width": 256, "feed_forward": 512},
        {"global_batch": 256},
    ),
    "4 × 384, batch 32": (
        "soft_contrastive",
        SMALL | {"layers": 4, "width": 384, "feed_forward": 1536},
        {"global_batch": 32},
    ),
    "2 × 256 in chunks": (
        "soft_contrastive",
        SMALL | {"layers": 2, "width": 256, "feed_forward": 1024},
        {"global_batch": 128, "chunk": 32},
    ),
    "laser3_co": ("laser3_co", {}, {}),
    "ml_ctl": ("ml_ctl", {}, {}),
    "lealla": ("lealla", {}, {}),
}
"""Sweep file, and what differs from its student and its training."""


def sweep_of(file: str, student: dict[str, Any], training: dict[str, Any]) -> Sweep:
    """A sweep file's default with this student and training."""
    sweep = replace(read_sweep(f"search_spaces/{file}.yaml"), parameters={})
    changed: Training = replace(sweep.training, reports=1, **training)
    return replace(sweep, student=sweep.student.changed(**student), training=changed)


def seconds_of_a_step(sweep: Sweep, storage: Path, rates: tuple[float, float]) -> tuple[float, float]:
    """Counted, and measured: the least CPU time of some rounds of the same steps."""
    prepared, device = prepare(sweep, storage), torch.device("cpu")
    batch = sweep.training.global_batch
    trial = with_length(make_trial(sweep, 0, default_params(sweep)), STEPS * batch)
    estimate = work_of_a_pair(trial, prepared, device).seconds(rates) * batch
    train_step, reader = make_train_step(trial, prepared, ProcessGroup(), device), make_reader(trial, prepared, device)
    needs = train_step.method.needs(train_step.method.config)
    schedule = make_schedule(trial, prepared, reader, needs)
    if needs.warm_up:
        train_step.method.warm_up(*reader.anchors(needs.warm_up, trial.seed))
    measurements = []
    for _ in range(REPEATS + 1):
        started = time.thread_time()
        for step in range(len(schedule)):
            rows = schedule.rows(step)
            torch.manual_seed(step_seed(trial.seed, step, 0))
            train_step.step(reader.batch(rows, len(rows), step=step), int(schedule.seen[step]))
        measurements.append((time.thread_time() - started) * batch / int(schedule.seen[-1]))
    return estimate, min(measurements[1:])


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    args = parser.parse_args()
    one_thread()
    rates = measured_rates(torch.device("cpu"))
    print(f"rates: {rates[0]:.1f} * 10^9 operations, {rates[1]:.1f} * 10^9 bytes a second", flush=True)
    ratios: dict[str, float] = {}
    with TemporaryDirectory() as storage:
        for name, differing in STUDENTS.items():
            estimate, cpu_s = seconds_of_a_step(sweep_of(*differing), Path(storage), rates)
            ratios[name] = estimate / cpu_s
            print(f"{name:<28} counted {estimate:.4f} s measured {cpu_s:.4f} s ratio {ratios[name]:.2f}", flush=True)
    low, high = min(ratios.values()), max(ratios.values())
    if args.json:
        spread = {"ratios": [WITHIN * low / high], "goal": 1.0, "broken": [], "students": ratios, "rates": rates}
        write_whole(args.json, json.dumps(spread).encode())
    print(
        f"compute counted / measured {statistics.median(ratios.values()):.2f} min {low:.2f} max {high:.2f}; "
        f"max / min {high / low:.2f} goal at most {WITHIN:g}"
    )
    sys.exit(0 if high / low <= WITHIN else 1)


if __name__ == "__main__":
    main()
