"""One configuration, one process, no Ray: `python -m babeltune.train FILE`, on a GPU where there is one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from babeltune.data.files import write_json
from babeltune.data.prepare import prepare
from babeltune.data.prepared import write_prepared
from babeltune.data.store import key_of
from babeltune.errors import SpecError
from babeltune.losses.gather import Ranks
from babeltune.program import run_program
from babeltune.promotion.export import export_trial
from babeltune.records import Sweep, plain
from babeltune.spec.space import default_params, make_trial
from babeltune.spec.sweep_file import read_sweep
from babeltune.training.compute import measured_rates
from babeltune.training.loop import Run


class Printer:
    """Prints each report's objectives."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = metrics

    def report(self, report: dict[str, Any]) -> bool:
        scores = " ".join(f"{name} {report['metrics'][name]:.4f}" for name in self.metrics)
        print(f"report {report['index']} step {report['step']} pairs {report['pairs']} {scores}", flush=True)
        if words := report["facts"].get("collapsed"):
            print(words, flush=True)
        return True

    def stopped(self) -> bool:
        return False


def progress(what: str, done: int, total: int) -> None:
    """Says on standard error what is being prepared."""
    print(f"{what} {done}/{total}", file=sys.stderr, flush=True)


def payload_alone(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `trial.run` trains for one of Tune's configurations.

    `sweep` names the file, `out` a folder (`.babeltune/tune` when absent), and every other key is a parameter by its
    name in sweep files, such as `training.learning_rate`.
    """
    params = {key: value for key, value in settings.items() if key not in ("sweep", "out")}
    sweep = read_sweep(settings["sweep"], assignments=[f"method={method}"], check=False)
    sweep = replace(sweep, parameters={})
    out = Path(settings.get("out") or ".babeltune/tune").absolute()
    prepared = prepare(sweep, out)
    trial = make_trial(with_rates(sweep, out, "cpu"), 0, params)
    folder = out / "trials" / key_of(plain(trial))[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_prepared(prepared, folder / "prepared.json")
    return {"trial": plain(trial), "prepared": str(folder / "prepared.json"), "folder": str(folder)}


def with_rates(sweep: Sweep, out: Path, device: str) -> Sweep:
    """The sweep with the rates by which `training.compute` counts, measured once and kept in the folder `out`."""
    if sweep.budget.unit == "pairs" or sweep.training.rates is not None:
        return sweep
    if not (kept := out / "rates.json").exists():
        write_json(kept, {"rates": measured_rates(torch.device(device))})
    rates = tuple(json.loads(kept.read_text(encoding="utf-8"))["rates"])
    return replace(sweep, training=replace(sweep.training, rates=rates))


def train_alone(
    file: str, overlays: Sequence[str], assignments: Sequence[str], out: Path, device: str
) -> tuple[Run, Sweep]:
    """Trains the default configuration of a sweep file into the folder `out`, resuming what is there.

    Raises `SpecError` before anything is prepared if the folder holds something else."""
    sweep = read_sweep(file, overlays=overlays, assignments=assignments, reach=True)
    if out.exists() and any(out.iterdir()) and not (out / "trial.json").exists():
        raise SpecError(
            f"--out {out}: the folder is not empty and holds no run of this command; name a new or empty one"
        )
    out.mkdir(parents=True, exist_ok=True)
    trial = make_trial(with_rates(sweep, out, device), 0, default_params(sweep))
    write_json(out / "trial.json", trial)
    prepared = prepare(sweep, out, progress=progress)
    write_prepared(prepared, out / "prepared.json")
    printer = Printer([objective.metric for objective in sweep.objectives])
    run = Run(trial, prepared, out, printer, Ranks(), torch.device(device))
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
    given = parser.parse_args(arguments)
    run, sweep = train_alone(given.file, given.overlays, given.assignments, given.out, given.device)
    if given.export:
        learner = run.learner
        with learner.averaged():
            learner.module.cpu()
            export_trial(sweep, run.trial, run.prepared, learner.encoder, learner.method, given.export)
        print(f"model: {given.export}")


if __name__ == "__main__":
    run_program(main)
