"""One trial in this process, without worker groups: what Ray Tune runs for a method's registered name."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from babeltune.data.prepared import write_prepared
from babeltune.data.store import key_of
from babeltune.files import plain, write_json
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Report, Scalar, Sweep
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers.run_trial import run
from babeltune.training.compute import measured_rates


@dataclass
class Handover:
    """Hands reports to another thread and waits there for each verdict."""

    reports: queue.Queue[Report | BaseException | None]
    verdicts: queue.Queue[bool]
    closed: threading.Event

    def report(self, report: Report) -> bool:
        self.reports.put(report)
        return self.verdicts.get()

    def stopped(self) -> bool:
        return self.closed.is_set()

    def kept(self) -> None:
        """A checkpoint is on the disk; there is nothing more to do."""


def standalone(assignment: TrialAssignment, device: str = "cpu") -> Iterator[Report]:
    """The reports of a trial trained in this process, one at a time; closing the iterator stops the training."""
    handover = Handover(queue.Queue(), queue.Queue(), threading.Event())

    def work() -> None:
        try:
            run(assignment, handover, 0, 1, device)
            handover.reports.put(None)
        except BaseException as error:
            handover.reports.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (report := handover.reports.get()) is not None:
            if isinstance(report, BaseException):
                raise report
            yield report
            handover.verdicts.put(True)
    finally:
        handover.closed.set()
        handover.verdicts.put(False)
        thread.join()


def standalone_assignment(method: str, settings: Mapping[str, object]) -> TrialAssignment:
    """What `trial.run` trains for one of Tune's configurations.

    `sweep` names the file, `out` a folder (`.babeltune/tune` when absent), and every other key is a parameter by its
    name in sweep files, such as `training.learning_rate`.
    """
    params = {key: cast("Scalar", value) for key, value in settings.items() if key not in ("sweep", "out")}
    sweep = read_sweep(str(settings["sweep"]), assignments=[f"method={method}"], check=False)
    sweep = replace(sweep, parameters={})
    out = Path(str(settings.get("out") or ".babeltune/tune")).absolute()
    prepared = prepare(sweep, out)
    trial = make_trial(with_rates(sweep, out, "cpu"), 0, params)
    folder = out / "trials" / key_of(plain(trial))[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_prepared(prepared, folder / "prepared.json")
    return TrialAssignment(folder=str(folder), trial=plain(trial), prepared=str(folder / "prepared.json"))


def with_rates(sweep: Sweep, out: Path, device: str) -> Sweep:
    """The sweep with the rates by which `training.compute` counts, measured once and kept in the folder `out`."""
    if sweep.budget.unit == "pairs" or sweep.training.rates is not None:
        return sweep
    if not (kept := out / "rates.json").exists():
        write_json(kept, {"rates": measured_rates(torch.device(device))})
    rates = tuple(json.loads(kept.read_text(encoding="utf-8"))["rates"])
    return replace(sweep, training=replace(sweep.training, rates=rates))
