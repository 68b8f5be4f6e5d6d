"""Trials and points that a new study takes over: trials of an earlier sweep that was judged alike, and points that a
user gives."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from babeltune.errors import SpecError
from babeltune.files import plain, write_json
from babeltune.planning.space import Suggests
from babeltune.schema.records import Scalar, Sweep
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, log_of

if TYPE_CHECKING:
    from babeltune.files import JsonObject

Suggest = Callable[[Suggests], dict[str, Scalar]]
"""Asks an Optuna trial for every parameter of the sweep, conditional ones if they exist."""
Distributions = dict[str, BaseDistribution]  # the distribution from which each parameter of a trial is drawn
WARM = "warm_start"  # the attribute of trials that were taken over
TAKEN_OVER_FILE = "warm_start.json"  # the file of trials that a sweep has taken over


def warm_trials(folder: Path, sweep: Sweep, suggest: Suggest) -> list[FrozenTrial]:
    """The finished trials of the earlier sweep, beside this one, that `sampler.warm_start` names.

    Leaves out trials whose values lie outside of this search space. Raises `SpecError` if there is no such sweep, it
    was judged by other objectives or dev sets, or none of its trials fits."""
    name = sweep.sampler.warm_start
    if name is None:
        return []
    if (recorded := kept_trials(folder, sweep, suggest)) is not None:
        return recorded
    usable = _earlier(name, folder, sweep, suggest)
    trials = [{"number": one.number, "params": one.params, "values": one.values} for one in usable]
    # A resumed sweep must have the same trials, whatever has become of the earlier sweep.
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TAKEN_OVER_FILE, {"from": name, **_comparability(sweep), "trials": trials})
    return usable


def kept_trials(folder: Path, sweep: Sweep, suggest: Suggest) -> list[FrozenTrial] | None:
    """The trials that the sweep in `folder` has taken over; None if none fit, or their file is damaged."""
    of = {"from": sweep.sampler.warm_start, **_comparability(sweep)}
    try:
        recorded = json.loads((folder / TAKEN_OVER_FILE).read_bytes())
        if {key: recorded[key] for key in of} == of:
            return [_trial(distributions_of(one["params"], suggest), **one) for one in recorded["trials"]]
    except (FileNotFoundError, ValueError, TypeError, KeyError, SpecError):
        pass
    return None


def _comparability(sweep: Sweep) -> JsonObject:
    """The settings that decide whether two sweeps' results compare."""
    return plain({"objectives": sweep.objectives, "data.root": sweep.data.root, "data.dev": sweep.data.dev})


def _trial(distributions: Distributions, *, number: int, params: dict[str, Scalar], values: list[float]) -> FrozenTrial:
    trial = optuna.create_trial(params=params, distributions=distributions, values=values)
    trial.number = number
    return trial


def _earlier(name: str, folder: Path, sweep: Sweep, suggest: Suggest) -> list[FrozenTrial]:
    """Those of the earlier sweep itself."""
    ledgers = sorted(folder.parent.glob(f"{name}/{LEDGER}")) or sorted(folder.parent.glob(f"{name}-*/{LEDGER}"))
    folders = [path.parent for path in ledgers if path.parent != folder]  # it may start from an earlier one of its name
    if len(folders) != 1:
        have = sorted(p.parent.name for p in folder.parent.glob(f"*/{LEDGER}") if p.parent != folder)
        raise SpecError(
            f"sampler.warm_start: {name!r} names {len(folders)} sweeps in {folder.parent}; available: {have}"
        )
    before = _comparability(SweepFolder(folders[0]).sweep())
    other = [name for name, value in _comparability(sweep).items() if value != before[name]]
    if other:
        raise SpecError(
            f"sampler.warm_start: sweep {folders[0].name} has other {', '.join(other)}, so its results do not "
            "compare with this sweep's; name one that was judged alike, or leave warm_start out"
        )
    trials = sorted(log_of(folders[0]).trials.items())
    finished = [(number, trial) for number, trial in trials if trial.state == "finished" and trial.logged]
    usable = [
        _trial(
            distributions,
            number=number,
            params=trial.params or {},
            values=[trial.reports[-1].metrics[objective.metric] for objective in sweep.objectives],
        )
        for number, trial in finished
        if (distributions := distributions_if_inside(trial.params or {}, suggest))
    ]
    if not usable:
        raise SpecError(
            f"sampler.warm_start: none of the {len(finished)} finished trials of {folders[0].name} lies in this "
            "search space; give both sweeps the same parameters, or leave warm_start out"
        )
    return usable


def distributions_if_inside(params: Mapping[str, Scalar], suggest: Suggest) -> Distributions:
    """Today's distributions of an earlier trial's parameters; empty when its values lie outside of them."""
    try:
        fitted = distributions_of(params, suggest)
    except SpecError:
        return {}
    return fitted if set(fitted) == set(params) else {}


def distributions_of(params: Mapping[str, Scalar], suggest: Suggest) -> Distributions:
    """The distributions asked for when `params` are given; `SpecError` when a value is outside of its own."""
    scratch = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    scratch.enqueue_trial(params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = scratch.ask()
        try:
            suggest(trial)
        except ValueError as error:
            raise SpecError(f"sampler.points: {params} is outside of the search space: {error}") from error
    for name, distribution in trial.distributions.items():
        if name in params:
            try:
                inside = distribution._contains(distribution.to_internal_repr(params[name]))
            except ValueError:
                inside = False
            if not inside:
                raise SpecError(f"sampler.points: {name} = {params[name]!r} is outside of its range, {distribution}")
    return dict(trial.distributions)
