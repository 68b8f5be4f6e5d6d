"""The effect of a searched setting: a sweep's trials by its values, with the best and the mean objective of each.

`babeltune runs SWEEP --by SETTING` shows it."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from babeltune.errors import UnknownNameError, nearest
from babeltune.planning.rules import RANGES, kind_of
from babeltune.schema.records import Objective, Parameter, Scalar
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, best_first
from babeltune.sweep.state.progress import standing

PARTS = 3  # parts into which a range is cut: low, middle and high
NOT_SET = "not set"  # the label of trials without the setting


@dataclass(frozen=True, kw_only=True)
class Level:
    """The trials with one value of a setting, or with a value in one part of its range."""

    label: str
    """The value, or the part such as `0.03 to 0.056`. `not set` stands for trials without the setting."""
    trials: int
    scored: int
    """Trials that have a report."""
    best: float | None
    best_trial: str | None
    mean: float | None
    """Mean of the scored trials' best reports."""


@dataclass(frozen=True, kw_only=True)
class BySetting:
    """A sweep's trials by the values of one setting."""

    sweep: str
    setting: str
    objective: Objective
    levels: tuple[Level, ...]
    """In the order of the values."""


def by_setting(folder: SweepFolder, setting: str) -> BySetting:
    """The table of one searched setting, by its name or the last part of it.

    Raises `UnknownNameError` for a setting that is not searched; it names the nearest."""
    sweep, baselines = folder.sweep(), folder.baselines()
    name = _setting_of(setting, sweep.parameters, folder.id)
    rows = [row for row in standing(folder) if row.name not in baselines and row.params]
    objective = sweep.objectives[0]
    order = best_first(sweep, objective.metric)
    groups: dict[str, list[Row]] = {label: [] for label in _labels(sweep.parameters[name], name, rows)}
    for row in rows:
        groups.setdefault(_label(sweep.parameters[name], name, row, list(groups)), []).append(row)
    levels = []
    for label, members in groups.items():
        scored = sorted((row for row in members if row.best is not None), key=lambda row: order(row.metrics))
        values = [row.metrics[objective.metric] for row in scored]
        best, best_trial = (values[0], scored[0].name) if values else (None, None)
        mean, trials = statistics.fmean(values) if values else None, len(members)
        levels.append(
            Level(label=label, trials=trials, scored=len(values), best=best, best_trial=best_trial, mean=mean)
        )
    return BySetting(sweep=folder.id, setting=name, objective=objective, levels=tuple(levels))


def _setting_of(setting: str, parameters: Mapping[str, Parameter], sweep: str) -> str:
    ending = [name for name in parameters if name.rpartition(".")[2] == setting]
    if setting in parameters:
        return setting
    if len(ending) == 1:
        return ending[0]
    offered = ", ".join(sorted(parameters)) or "none"
    raise UnknownNameError(f"sweep {sweep} searches no {setting!r}; known: {offered}{nearest(setting, parameters)}")


def _labels(parameter: Parameter, name: str, rows: Sequence[Row]) -> list[str]:
    """The labels of the table's rows, in order. Trials without the setting get one of their own later."""
    if kind_of(parameter) in RANGES and len({row.params.get(name) for row in rows}) > PARTS:
        return [f"{low} to {high}" for low, high in itertools.pairwise(_distinct_texts(_bounds(parameter)))]
    values = {row.params[name] for row in rows if name in row.params}
    if all(isinstance(value, int | float) for value in values):
        return [short_value(value) for value in sorted(cast(set[float], values))]
    return sorted(map(short_value, values))


def _distinct_texts(numbers: Sequence[float]) -> list[str]:
    """The numbers with as many digits as make them differ, three or more."""
    for digits in range(3, 18):  # 17 are enough for any two
        texts = [f"{number:.{digits}g}" for number in numbers]
        if len(set(texts)) == len(numbers):
            break
    return texts


def _label(parameter: Parameter, name: str, row: Row, labels: Sequence[str]) -> str:
    if name not in row.params:
        return NOT_SET
    value = row.params[name]
    if short_value(value) in labels:
        return short_value(value)
    inner = _bounds(parameter)[1:-1]
    return labels[sum(cast(float, value) >= bound for bound in inner)]


def _bounds(parameter: Parameter) -> list[float]:
    """The ends of a range's parts, which are of one length on the scale that is searched."""
    kind = kind_of(parameter)
    low, high = (float(end) for end in getattr(parameter, kind))
    shares = [part / PARTS for part in range(PARTS + 1)]
    if kind.startswith("log"):
        return [low * (high / low) ** share for share in shares]
    return [low + (high - low) * share for share in shares]


def short_value(value: Scalar) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
