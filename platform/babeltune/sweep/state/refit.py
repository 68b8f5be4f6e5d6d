"""From a search to its final model: a sweep that trains the best settings of another longer, with several seeds.

Pure but for reading the earlier sweep's folder. The result is a sweep like any other. Its points are given, nothing is
searched, and nothing is stopped early. The data, the teacher's vectors and the tokens are reused."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from babeltune.errors import SpecError, SweepError, plural
from babeltune.planning.rules import kind_of
from babeltune.schema.records import Halving, Parameter, PlainSampler, Scalar, Sweep, Training
from babeltune.schema.trial_names import TRIAL
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.seed_summary import seed_groups

LENGTHS = ("training.pairs", "training.compute")
LENGTH = re.compile(r"(?P<times>[0-9]{1,6}(\.[0-9]{1,6})?)x|(?P<pairs>[0-9][0-9_,]{0,15})")
"""How long the final training is: `10x` or `1000000`."""


def best_settings(folder: SweepFolder, top: int) -> list[Row]:
    """The best finished trials with the `top` best settings, whatever their seed. `SweepError` if there is none."""
    rows: list[Row] = []
    for row in leaderboard(folder):
        settings = [settings_of(other) for other in rows]
        if TRIAL.fullmatch(row.name) and row.state == "finished" and row.best and settings_of(row) not in settings:
            rows.append(row)
    if not rows:
        raise SweepError(f"sweep {folder.id} has no finished trial to train longer; `babeltune status {folder.id}`")
    return rows[:top]


def settings_of(row: Row) -> dict[str, Scalar]:
    """The trial's searched settings, without its seed and its length of training."""
    return {name: value for name, value in row.params.items() if name not in ("seed", *LENGTHS)}


def refit_of(folder: SweepFolder, *, top: int, length: str, seeds: int, one_start: bool = False) -> Sweep:
    """The sweep that trains the best `top` settings of a sweep for this `length`, each with `seeds` seeds. With
    `one_start` all begin with the same weights.

    Raises `SpecError` for a length that is no number or below the sweep's, and `SweepError` if nothing has finished."""
    sweep = folder.with_rates(folder.sweep())  # a second of compute is as long as it was
    rows = best_settings(folder, top)
    numbers = tuple(sweep.seed + number for number in range(seeds))
    parameters = {name: p for name, p in sweep.parameters.items() if name not in ("seed", *LENGTHS)}
    searched = [name for name, parameter in parameters.items() if kind_of(parameter) != "const"]
    points = tuple(
        {**{name: value for name, value in settings_of(row).items() if name in searched}, "seed": seed}
        for row in rows
        for seed in numbers
    )
    trials = ", ".join(row.name for row in rows)
    return replace(
        sweep,
        name=f"{sweep.name[:74]}-refit",
        description=f"Best settings of sweep {folder.id} ({trials}), trained longer, with {plural(seeds, 'seed')}.",
        refit_of=tuple(f"{folder.id}/{row.name}" for row in rows),
        parameters={**parameters, "seed": Parameter(choice=numbers)},
        student=replace(sweep.student, seed=sweep.seed) if one_start else sweep.student,
        training=_longer(sweep, rows[0], length),
        scheduler=Halving(kind="none"),
        sampler=PlainSampler(kind="random", points=points),
        budget=replace(sweep.budget, trials=len(points), minutes=None),
        promotion=replace(sweep.promotion, name=sweep.promotion.name or sweep.name),
    )


def _longer(sweep: Sweep, row: Row, length: str) -> Training:
    """The sweep's training for this length."""
    unit = "compute" if sweep.budget.unit == "compute" else "pairs"
    before = row.params.get(f"training.{unit}", getattr(sweep.training, unit))
    assert isinstance(before, int | float)
    match = LENGTH.fullmatch(length.strip().lower())
    if match is None:
        raise SpecError(f"--pairs {length[:40]!r}: give a multiple such as 10x, or a number of pairs such as 2000000")
    if match["times"]:
        after = before * float(match["times"])
    elif unit == "compute":
        raise SpecError(f"--pairs {length}: trials of this sweep are as long as their compute; give a multiple: 10x")
    else:
        after = float(match["pairs"].replace(",", "").replace("_", ""))
    if after < before:
        raise SpecError(f"--pairs {length}: {after:g} is below the sweep's own {before:g}; a refit trains longer")
    if unit == "compute":
        return replace(sweep.training, compute=after)
    return replace(sweep.training, pairs=round(after))


# --- What it gained -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One setting after its refit, by the first objective on the dev sets."""

    trial: str  # name of the trial in the earlier sweep
    before: float
    after: tuple[float, ...]  # scores of each seed that has finished
    mean: float
    gain: float  # above 0 is better, whichever way the objective points
    low: float | None
    high: float | None  # the 95 % interval of the gain over the seeds (Student's t); None for one seed


def gains(earlier: SweepFolder, refit: SweepFolder) -> list[Gain]:
    """The gain on the dev sets of each setting of the refit that has a finished trial, the best first."""
    sweep = refit.sweep()
    objective = sweep.objectives[0]
    sign = 1 if objective.goal == "maximize" else -1
    trials = [row for row in leaderboard(refit) if TRIAL.fullmatch(row.name)]
    groups = seed_groups(refit.id, sweep, trials, {}, ["seed"], [objective.metric]).groups
    befores = {row.name: row for row in leaderboard(earlier)}
    by_trial = []
    for group in groups:
        names = [name.rpartition("/")[2] for name in sweep.refit_of]
        row = next(befores[n] for n in names if n in befores and group.settings.items() <= befores[n].params.items())
        before, after = row.metrics[objective.metric], group.values[objective.metric]
        mean = statistics.fmean(after)
        gain, half = sign * (mean - before), _half_width(after)
        low, high = (None, None) if half is None else (gain - half, gain + half)
        by_trial.append(Gain(trial=row.name, before=before, after=after, mean=mean, gain=gain, low=low, high=high))
    return by_trial


def _half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a mean."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # here, since other commands do without

    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def gain_words(gain: Gain) -> str:
    """One line on what a refit gained: scores before and after, and the interval of the gain."""
    spread = f" ({', '.join(f'{value:.4f}' for value in gain.after)})" if len(gain.after) > 1 else ""
    interval = "" if gain.low is None else f" [{gain.low:+.4f}, {gain.high:+.4f}]"
    return f"settings of {gain.trial}: {gain.before:.4f} -> {gain.mean:.4f}{spread}, gain {gain.gain:+.4f}{interval}"
