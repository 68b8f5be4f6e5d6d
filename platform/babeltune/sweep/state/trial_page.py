"""Everything about one trial on one page: state, settings, curve, scores of each data set, cost, and where it is.

`babeltune status SWEEP/t0003` shows it. Only a trial's own records are read; MLflow is not asked."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import DamagedError
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.schema.records import Objective, Report, Trial, trial_from
from babeltune.sweep.state.folder import SweepFolder, read_of_trial
from babeltune.sweep.state.housekeeping import why_removed
from babeltune.sweep.state.leaderboard import Row
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.progress import standing
from babeltune.tracking.sweep_runs import SentRun, sent_runs
from babeltune.training.checkpoint import MANIFEST, checkpoint_folder

HIDDEN = ("_forward", "_backward", "_sd", "_least")
"""Endings of metrics that a page leaves out: they detail another one. `--json` has them."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The first objective at one report."""

    report: int
    pairs: int
    value: float


@dataclass(frozen=True, kw_only=True)
class SetScores:
    """The dev scores of one data set, in one language pair or over all of them."""

    name: str
    subset: str
    """`fra-eng`, or empty for the mean over the set's pairs."""
    scores: dict[str, float]
    """Metric -> value, such as `accuracy`."""


@dataclass(frozen=True, kw_only=True)
class TrialCost:
    """Pairs, seconds, workers and counted compute of a trial so far."""

    pairs: int
    seconds: float
    workers: int
    compute_s: float | None
    """Counted seconds of one worker. None if its reports do not count them."""


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """One trial, ready to be shown."""

    sweep: str
    row: Row
    trial: Trial
    objective: Objective
    curve: tuple[CurvePoint, ...]
    best: int | None
    """The number of the report with the best objective. Its checkpoint is what promotion takes."""
    scores: tuple[SetScores, ...]
    """Dev scores at that report, the set's mean before its language pairs."""
    cost: TrialCost
    checkpoint: Path | None
    """The folder of the best checkpoint, if it is on this machine."""
    removed: str | None
    """The command that removed it for good, such as `clean --top 1`."""
    run: SentRun | None
    """The trial's run in MLflow, if MLflow has taken it."""

    @property
    def name(self) -> str:
        return f"{self.sweep}/{self.row.name}"


def trial_page(folder: SweepFolder, number: int) -> TrialPage:
    """The page of trial `number`. Raises `DamagedError` for a trial whose settings are lost."""
    place, objective = folder.trial(number), folder.sweep().objectives[0]
    logged = log_of(folder.path).trials.get(number)
    row = next((row for row in standing(folder) if row.name == place.name), Row(name=place.name, state="waiting"))
    if row.state == "damaged":
        raise DamagedError(row.warning)
    record = read_of_trial(place, "trial.json")
    if record is None:
        raise DamagedError(f"{place / 'trial.json'} is gone; restore it from a copy")
    reports = logged.reports if logged else []
    checkpoint = None if row.best is None else checkpoint_folder(place, row.best)
    return TrialPage(
        sweep=folder.id,
        row=row,
        trial=trial_from(record),
        objective=objective,
        curve=tuple(
            CurvePoint(report=each.index, pairs=each.pairs, value=each.metrics[objective.metric])
            for each in reports
            if objective.metric in each.metrics
        ),
        best=row.best,
        scores=scores_by_set(row.metrics),
        cost=_cost(reports),
        checkpoint=checkpoint if checkpoint is not None and (checkpoint / MANIFEST).is_file() else None,
        removed=why_removed(place),
        run=sent_runs(folder.path).get(str(number)),
    )


def scores_by_set(metrics: Mapping[str, float]) -> tuple[SetScores, ...]:
    """Dev metrics by data set and language pair. A set's mean comes first."""
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for metric, value in metrics.items():
        parts = metric.split("/")
        if parts[0] != "dev" or len(parts) not in (3, 4):
            continue
        subset = parts[2] if len(parts) == 4 else ""
        scores.setdefault((parts[1], subset), {})[parts[-1]] = value
    sizes = Counter(name for name, subset in scores if subset)
    shown = [(name, subset) for name, subset in sorted(scores) if subset or sizes[name] != 1]
    return tuple(SetScores(name=name, subset=subset, scores=scores[name, subset]) for name, subset in shown)


def _cost(reports: list[Report]) -> TrialCost:
    """The cost by the last report; nothing before the first."""
    if not reports:
        return TrialCost(pairs=0, seconds=0.0, workers=1, compute_s=None)
    last, workers = reports[-1], int(reports[-1].facts.get("world_size") or 1)
    return TrialCost(pairs=last.pairs, seconds=last.seconds, workers=workers, compute_s=last.metrics.get(COMPUTE))
