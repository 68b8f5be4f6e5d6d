"""One trial without a sweep's driver: what it trains with, from one configuration of Ray Tune's."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from babeltune.data.prepared import write_prepared
from babeltune.data.store import key_of
from babeltune.files import plain, write_json
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Scalar, Sweep
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.training.compute import measured_rates
from babeltune.training.own_share import fit_temperatures

SAMPLING = "data.sampling."


def standalone_assignment(method: str, settings: Mapping[str, object]) -> tuple[TrialAssignment, Sweep]:
    """The trial of a worker group for one of Tune's configurations, and its sweep.

    `sweep` names the file, `out` a folder (`.babeltune/tune` when absent), and every other key is a parameter by its
    name in sweep files, such as `training.learning_rate`."""
    params = {key: cast("Scalar", value) for key, value in settings.items() if key not in ("sweep", "out")}
    sweep = read_sweep(str(settings["sweep"]), assignments=[f"method={method}"], check=False)
    sampling: dict[str, Any] = {
        key.removeprefix(SAMPLING): value for key, value in params.items() if key.startswith(SAMPLING)
    }
    data = replace(sweep.data, sampling=replace(sweep.data.sampling, **sampling))  # its thresholds need scores of pairs
    sweep = replace(sweep, parameters={}, data=data)
    out = Path(str(settings.get("out") or ".babeltune/tune")).absolute()
    prepared = prepare(sweep, out)
    trial = fit_temperatures(make_trial(with_rates(sweep, out, "cpu"), 0, params), prepared)
    folder = out / "trials" / key_of(plain(trial))[:16]
    folder.mkdir(parents=True, exist_ok=True)
    write_prepared(prepared, folder / "prepared.json")
    return TrialAssignment(folder=str(folder), trial=plain(trial), prepared=str(folder / "prepared.json")), sweep


def with_rates(sweep: Sweep, out: Path, device: str) -> Sweep:
    """The sweep with the rates by which `training.compute` counts, measured once and kept in the folder `out`."""
    if sweep.budget.unit == "pairs" or sweep.training.rates is not None:
        return sweep
    if not (rates_file := out / "rates.json").exists():
        write_json(rates_file, {"rates": measured_rates(torch.device(device))})
    rates = tuple(json.loads(rates_file.read_text(encoding="utf-8"))["rates"])
    return replace(sweep, training=replace(sweep.training, rates=rates))
