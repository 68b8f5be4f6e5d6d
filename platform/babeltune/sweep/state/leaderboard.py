"""The leaderboard of a sweep: its trials and baselines as rows, their order, the Pareto front, the winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import DamagedError, SpecError, SweepError, UnknownNameError, nearest
from babeltune.evaluation.metric_names import PARAMETERS, SPEED, SPREAD
from babeltune.schema.records import Goal, Objective, Scalar, Sweep
from babeltune.schema.trial_names import trial_number
from babeltune.stages import Stage
from babeltune.sweep.state.folder import SweepFolder, condition_of, read_of_trial
from babeltune.sweep.state.log import LEDGER, LoggedTrial, SweepLog, log_of
from babeltune.sweep.state.messages import State, TrialEnd
from babeltune.sweep.state.rebuild import damage, rebuilt
from babeltune.training.checkpoint import PROGRESS, best_report, stage_of

if TYPE_CHECKING:
    import numpy as np

    FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

MOST_NAMED = 6  # metrics that the error of an unknown one names: the nearest
LOST = "its last report is lost"  # the warning of a trial that finished and lacks its last report
SPEED_NOISE = 0.15  # two speeds that differ by no more of themselves are the same: one model, measured twice, does


@dataclass(frozen=True)
class Row:
    """One line of the leaderboard: a trial or a baseline."""

    name: str
    state: State
    params: dict[str, Scalar] = field(default_factory=dict)
    fitted: dict[str, float] = field(default_factory=dict)
    """The settings that were `auto`, and the numbers that were measured for them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the best report (`best_report`)."""
    reports: int = 0
    step: int = 0
    steps: int | None = None
    """Steps of the whole training, if it has begun."""
    loss: float | None = None
    """At the latest step of a trial that runs."""
    stage: Stage | None = None
    """The long work of a running trial between two steps: it evaluates, or sends a checkpoint."""
    pairs: int = 0
    seconds: float = 0.0
    best: int | None = None
    """The best report's number: its checkpoint is what promotion takes."""
    curve: tuple[float, ...] = ()
    """The first objective at each report that has it."""
    reason: str = ""
    kind: str = ""
    """How it ended (`EndKind`). Empty while it runs."""
    last_report_lost: bool = False
    """Whether it finished, and its last report is gone."""
    warning: str = ""
    """The method's warning about the training, such as labels that are nearly flat."""
    front: bool = False
    """Whether no other trial is better in one objective and as good in all (the Pareto front), if there are several."""
    condition: int = 1
    """The number of the sweep's condition that it began under; more than one if changes were accepted."""

    @property
    def settings(self) -> dict[str, Scalar]:
        """The searched settings, with numbers in place of `auto`, and all other measured ones."""
        return {**self.params, **self.fitted}


def trial_row(path: Path, *objectives: Objective) -> Row:
    """The row of the trial in this folder, with its best report. Raises `DamagedError` if its ledger is lost."""
    trial = log_of(path.parents[1]).trials.get(trial_number(path.name))
    if trial is None or trial.params is None:
        raise DamagedError(_lost(path.parents[1], path.name))
    return _row(path.parents[1], trial, objectives)


def _lost(folder: Path, name: str) -> str:
    return f"{folder / LEDGER} does not say what was searched in {name}; restore it from a copy"


def _row(folder: Path, trial: LoggedTrial, objectives: tuple[Objective, ...], condition: int = 1) -> Row:
    """The row of a trial whose settings the ledger has; until it ends, with what its `progress.json` says now."""
    row = logged_row(trial, objectives, condition)
    if trial.end is not None:
        return row
    place, running = folder / "trials" / trial.name, trial.state == "running"
    now = read_of_trial(place, PROGRESS) or {}
    steps = steps_in(now)
    return replace(
        row,
        step=max(row.step, steps.get("step", 0)),
        steps=steps.get("steps", row.steps),
        loss=number_in(now, "loss") if running else None,
        stage=stage_of(now) if running else None,
        seconds=max(row.seconds, number_in(now, "seconds") or 0.0),
    )


def steps_in(progress: Mapping[str, object]) -> dict[str, int]:
    """How far a trial is, `step` of `steps`, as far as its `progress.json` says so."""
    return {name: int(value) for name in ("step", "steps") if (value := number_in(progress, name)) is not None}


def logged_row(trial: LoggedTrial, objectives: tuple[Objective, ...], condition: int = 1) -> Row:
    """The row of a trial as the log alone has it."""
    row: Row | None = trial.derived.get(key := (objectives, condition))
    if row is None:
        row = trial.derived[key] = _logged_row(trial, objectives, condition)
    return row


def _logged_row(trial: LoggedTrial, objectives: tuple[Objective, ...], condition: int) -> Row:
    """The row by the ledger alone."""
    reports = trial.reports
    best = best_report(reports, *objectives)
    aim = objectives[0].metric
    last = reports[-1] if reports else None
    lost = trial.state == "finished" and not (last and last.last)
    end = trial.end or TrialEnd("stopped")
    row = Row(
        name=trial.name,
        state=trial.state,
        params=trial.params or {},
        fitted=trial.fitted,
        reports=len(reports),
        step=trial.step,
        steps=trial.steps or None,
        curve=tuple(each.metrics[aim] for each in reports if aim in each.metrics),
        reason=end.text,
        kind=end.kind if trial.end is not None else "",
        last_report_lost=lost,
        warning=LOST if lost else "",
        condition=condition,
    )
    if best is not None:
        row = replace(row, metrics=best.metrics, best=best.index)
    if last is not None:
        step, steps = max(last.step, trial.step), trial.steps or last.steps or None
        warning = LOST if lost else str(last.facts.get("warning", ""))
        row = replace(row, step=step, steps=steps, pairs=last.pairs, seconds=last.seconds, warning=warning)
    return row


def number_in(record: Mapping[str, object], name: str) -> float | None:
    """The finite number of this name in a record that may be damaged; None if there is none."""
    value = record.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def speed_words(metrics: Mapping[str, float]) -> str:
    """A model's speed and half of its spread; empty if it is not measured."""
    spread = f" ± {metrics[SPREAD] / 2:.0%}" if SPREAD in metrics else ""
    return f"{metrics[SPEED]:,.0f} sentences/s{spread}" if SPEED in metrics else ""


def noise_share(row: Row, metric: str) -> float:
    """Relative tolerance for equal values: the measured speed noise, 0 for other metrics."""
    return max(SPEED_NOISE, row.metrics.get(SPREAD, 0.0)) if metric == SPEED else 0.0


def pareto_front(rows: list[Row], objectives: tuple[Objective, ...]) -> set[str]:
    """The names of the trials that no other one dominates. Speeds differ only beyond `noise_share` of both."""
    names = [o.metric for o in objectives]
    scored = [row for row in rows if row.best is not None and all(name in row.metrics for name in names)]
    if not scored:
        return set()
    import numpy as np

    signs = np.array([1.0 if o.goal == "maximize" else -1.0 for o in objectives])
    values = np.array([[row.metrics[name] for name in names] for row in scored]) * signs
    spreads = np.array([noise_share(row, SPEED) for row in scored])
    # What beats a trial beats it too if it is exchanged for what has its spread and is as good in all respects. So the
    # exact front of each spread is all that must be compared with, and it is small.
    best = [(spread, each) for spread in np.unique(spreads) for each in exact_front(values[spreads == spread])]
    front, their = np.array([each for _, each in best]), np.array([spread for spread, _ in best])
    of_speed = np.array([name == SPEED for name in names])

    beaten = np.zeros(len(scored), bool)
    for other, spread in zip(front, their, strict=True):
        slack = np.maximum(spread, spreads)[:, None] * of_speed * np.abs(values)
        beaten |= (other >= values - slack).all(axis=1) & (other > values + slack).any(axis=1)
    return {row.name for row, lost in zip(scored, beaten.tolist(), strict=True) if not lost}


def exact_front(values: FloatArray) -> list[FloatArray]:
    """The rows of (trials, objectives), all to be maximized, that no other row beats: as good in all, better in one."""
    import numpy as np

    remaining, front = np.unique(values, axis=0), []
    while len(remaining):
        best = remaining[remaining.sum(axis=1).argmax()]
        front.append(best)
        remaining = remaining[(remaining > best).any(axis=1)]
    return front


def leaderboard(folder: SweepFolder, metric: str | None = None) -> list[Row]:
    """Trials and baselines, best first by the metric (the first objective when absent); unscored ones last.

    A trial that the ledger lacks in part, and a damaged file that no other record makes up for, are rows, too."""
    sweep = folder.sweep()
    objective = sweep.objectives[0]
    damaged = [
        Row(name=name, state="damaged", warning=words)
        for name in ("facts.json", "baselines.json")
        if (words := damage(folder.path / name)) and rebuilt(folder, name) is None
    ]
    damaged += [
        Row(name=trial.name, state="damaged", warning=_lost(folder.path, trial.name))
        for trial in list(log_of(folder.path).trials.values())
        if trial.params is None
    ]
    rows = trial_rows(folder, sweep)
    if len(sweep.objectives) > 1:
        unbeaten = pareto_front(rows, sweep.objectives)
        rows = [replace(row, front=row.name in unbeaten) for row in rows]
    rows += [*baseline_rows(folder.baselines()), *damaged]
    if metric is not None:
        check_known(folder, rows, metric)
    return _sorted(rows, sweep, metric or objective.metric)


def _sorted(rows: Iterable[Row], sweep: Sweep, metric: str) -> list[Row]:
    orders = [best_first(sweep, name) for name in dict.fromkeys([metric, sweep.objectives[0].metric])]
    return sorted(rows, key=lambda row: (*(order(row.metrics) for order in orders), row.name))


def logged_rows(log: SweepLog, sweep: Sweep, baselines: Mapping[str, dict[str, float]]) -> list[Row]:
    """Trials and baselines, best first, as this log alone has them."""
    trials = [trial for trial in log.trials.values() if trial.params is not None]
    rows = [logged_row(trial, sweep.objectives) for trial in trials]
    return _sorted([*rows, *baseline_rows(baselines)], sweep, sweep.objectives[0].metric)


def baseline_rows(baselines: Mapping[str, dict[str, float]]) -> list[Row]:
    """The rows of the untrained student and the teacher."""
    return [Row(name=name, state="finished", metrics=scores) for name, scores in baselines.items()]


def trial_rows(folder: SweepFolder, sweep: Sweep, *states: State) -> list[Row]:
    """The rows of the trials whose settings the ledger has, in these states or in any."""
    history = folder.accepted()
    return [
        _row(folder.path, trial, sweep.objectives, condition_of(trial.number, history))
        for trial in list(log_of(folder.path).trials.values())
        if trial.params is not None and (not states or trial.state in states)
    ]


def front(
    folder: SweepFolder, metrics: Sequence[str] = (), board: Sequence[Row] | None = None
) -> tuple[tuple[str, ...], list[Row]]:
    """The Pareto front of the finished trials by these metrics, best first by the first of them. The metrics are
    returned, too: the sweep's objectives, the model's size and its speed if none are named. `board` is the
    leaderboard, if it is at hand.

    Raises `UnknownNameError` for a metric that no trial has, and `SpecError` for one of the training."""
    sweep = folder.sweep()
    board = leaderboard(folder) if board is None else board
    rows = [row for row in board if row.best is not None and row.state == "finished"]
    names = tuple(dict.fromkeys(metrics or (*(o.metric for o in sweep.objectives), PARAMETERS, SPEED)))
    for name in names:
        check_known(folder, rows, name)
        if name.startswith("train/"):
            raise SpecError(f"{name!r} is of the training: trials with other settings do not compare by it; name dev/…")
    on_it = pareto_front(rows, tuple(Objective(metric=name, goal=goal_of(sweep, name)) for name in names))
    order = best_first(sweep, names[0])
    return names, sorted((row for row in rows if row.name in on_it), key=lambda row: (order(row.metrics), row.name))


def by_language(rows: Sequence[Row], metric: str) -> dict[str, dict[str, float]]:
    """Each row's scores by its name: `mean` is the metric, then one for each language pair (or language) of its set.

    `dev/ntrex/accuracy` is the mean of `dev/ntrex/fra-eng/accuracy` and its like. Without reports there is no score."""
    task, _, measure = metric.rpartition("/")
    parts = metric.count("/") + 2
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        each = {
            key.split("/")[-2]: value
            for key, value in sorted(row.metrics.items())
            if key.startswith(f"{task}/") and key.endswith(f"/{measure}") and len(key.split("/")) == parts
        }
        scores[row.name] = ({"mean": row.metrics[metric]} if metric in row.metrics else {}) | each
    return scores


def check_known(folder: SweepFolder, rows: Sequence[Row], metric: str) -> None:
    """Raises `UnknownNameError` for a metric that no row has."""
    metrics = {key for row in rows for key in row.metrics}
    if metric not in metrics and metrics:
        near = get_close_matches(metric, metrics, n=MOST_NAMED, cutoff=0.0)
        more = f" and {len(metrics) - len(near)} more" if len(metrics) > len(near) else ""
        offered = f"{', '.join(near)}{more}{nearest(metric, metrics)}"
        raise UnknownNameError(f"no metric {metric!r} in sweep {folder.id}; known: {offered}")


def goal_of(sweep: Sweep, metric: str) -> Goal:
    """Which way a metric is better."""
    objective = next((o.goal for o in sweep.objectives if o.metric == metric), None)
    low = metric.endswith(("error", "error_pooled", "loss")) or metric == PARAMETERS
    return objective or ("minimize" if low else "maximize")


def best_first(sweep: Sweep, metric: str) -> Callable[[Mapping[str, float]], tuple[bool, float]]:
    """Sorts scores by this metric, the best first and those without it last."""
    sign = 1 if goal_of(sweep, metric) == "minimize" else -1
    return lambda scores: (metric not in scores, sign * scores.get(metric, 0.0))


def leading(rows: Sequence[Row]) -> Row | None:
    """The best finished trial of a leaderboard, which `winner` gives; if none has finished, the best so far."""
    reported = [row for row in rows if row.best is not None]
    return next((row for row in reported if row.state == "finished"), reported[0] if reported else None)


def winner(folder: SweepFolder, board: Sequence[Row] | None = None) -> Row:
    """The best finished trial by the first objective, which is on the front of all of them. `board` is the
    leaderboard, if it is at hand.

    Raises `SweepError` when none has finished."""
    rows = leaderboard(folder) if board is None else board
    for row in rows:
        if row.state == "finished" and row.best is not None:
            return row
    trials = sorted((row for row in rows if row.name not in folder.baselines()), key=lambda row: row.name)
    shown = ", ".join(f"{row.name} {row.state}{f' ({LOST})' if row.last_report_lost else ''}" for row in trials)
    state = folder.state()
    wait = "wait for one; if its driver is gone, " if state == "running" else ""
    step = f"`babeltune status {folder.id}` says why; `babeltune extend {folder.id} --trials N` tries more settings"
    step = step if state == "finished" else f"{wait}`babeltune resume {folder.id}` goes on"
    raise SweepError(f"sweep {folder.id} has no finished trial; states: {shown or 'no trials'}; {step}")
