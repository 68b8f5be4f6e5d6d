"""One configuration, one process, no Ray: `python -m babeltune.train FILE`, on a GPU if there is one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from babeltune.data.prepared import write_prepared
from babeltune.errors import SpecError
from babeltune.files import write_json
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.program import run_program
from babeltune.promotion.export import export_trial
from babeltune.schema.records import Report, Sweep
from babeltune.sweep.workers.standalone import with_rates
from babeltune.training.own_share import fit_temperatures
from babeltune.training.trainer import Reporter, TrialTrainer


class Printer(Reporter):
    """Prints each report's objectives."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = metrics

    def report(self, report: Report) -> bool:
        scores = " ".join(f"{name} {report.metrics[name]:.4f}" for name in self.metrics)
        print(f"report {report.index} step {report.step} pairs {report.pairs} {scores}", flush=True)
        if words := report.facts.get("collapsed"):
            print(words, flush=True)
        return True


def progress(stage: str, done: int, total: int) -> None:
    """Says on standard error what is being prepared."""
    print(f"{stage} {done}/{total}", file=sys.stderr, flush=True)


def train_alone(
    file: str, overlays: Sequence[str], assignments: Sequence[str], out: Path, device: str
) -> tuple[TrialTrainer, Sweep]:
    """Trains the default configuration of a sweep file into the folder `out`, resuming what is there.

    Raises `SpecError` before anything is prepared if the folder holds something else."""
    sweep = read_sweep(file, overlays=overlays, assignments=assignments, reachable=True)
    if out.exists() and any(out.iterdir()) and not (out / "trial.json").exists():
        raise SpecError(
            f"--out {out}: the folder is not empty and holds no run of this command; name a new or empty one"
        )
    out.mkdir(parents=True, exist_ok=True)
    trial = make_trial(with_rates(sweep, out, device), 0, default_params(sweep))
    write_json(out / "trial.json", trial)  # before anything else: it says whose folder this is
    prepared = prepare(sweep, out, progress=progress)
    trial = fit_temperatures(trial, prepared)
    write_json(out / "trial.json", trial)
    write_prepared(prepared, out / "prepared.json")
    printer = Printer([objective.metric for objective in sweep.objectives])
    run = TrialTrainer(trial, prepared, out, printer, ProcessGroup(), torch.device(device))
    run.train()
    return run, sweep


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(prog="python -m babeltune.train", description=__doc__)
    parser.add_argument("file", help="a sweep file; its fixed settings are trained, searched ones at their defaults")
    parser.add_argument("--with", dest="overlays", action="append", default=[], metavar="FILE")
    parser.add_argument("--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path(".babeltune/alone"), help="stores, checkpoints and reports")
    parser.add_argument("--export", type=Path, help="write the last state as a sentence-transformers folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    run, sweep = train_alone(options.file, options.overlays, options.assignments, options.out, options.device)
    if options.export:
        train_step = run.train_step
        with train_step.averaged():
            train_step.module.cpu()
            export_trial(sweep, run.trial, run.prepared, train_step.encoder, train_step.method, options.export)
        print(f"model: {options.export}")


if __name__ == "__main__":
    run_program(main)
