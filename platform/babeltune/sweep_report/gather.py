"""Reads a sweep's records and makes a `SweepReport` of them. The only module of this package that reads a sweep."""

import functools
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from babeltune.data.contamination import contaminated
from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import StoreError
from babeltune.evaluation.metric_names import COMPUTE, MAIN_METRICS, PARAMETERS, SPEED
from babeltune.planning.parameters import proposable_methods
from babeltune.planning.portfolio import is_number
from babeltune.planning.recorded import sweep_id
from babeltune.planning.rules import kind_of
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.promotion.decisions import read_decisions
from babeltune.promotion.statistics import Selection, error_of, selection
from babeltune.schema.base import number
from babeltune.schema.records import Report, Scalar, Sweep
from babeltune.schema.search import Parameter
from babeltune.schema.trial_names import trial_number
from babeltune.sweep.search.importance import Scored, parameter_importance
from babeltune.sweep.state.examples import read_examples
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import Row, front, goal_of, leading, winner
from babeltune.sweep.state.log import LoggedTrial, log_of
from babeltune.sweep.state.progress import standing, state_of
from babeltune.sweep.state.provenance import accepted_lines
from babeltune.sweep.state.rebuild import sealed_digests, submitted
from babeltune.sweep_report.record import (
    MOST_ROWS,
    Z95,
    Curve,
    DataFacts,
    Diagnostic,
    LanguagePair,
    LanguageScore,
    Overlap,
    Provenance,
    SourceRows,
    Standing,
    SweepCost,
    SweepReport,
)
from babeltune.training.checkpoint import MANIFEST, checkpoint_folder

DIAGNOSTICS = {
    "train/label_entropy": "Entropy of the teacher's labels as a share of log N. Near 1 they hardly say which "
    "sentences are alike; near 0 they are hard labels.",
    "dev/mean_cosine": "Mean cosine of different dev sentences. Near 1 the student has collapsed.",
    "train/filtered": "Share of the candidates that were left out as negatives.",
    "train/negatives_least": "Fewest negatives that any sentence kept.",
    "train/cosine": "Mean cosine of translations in a training batch.",
    "train/loss": "Training loss. Losses of trials with other temperatures or labels do not compare.",
}
"""The diagnostics that a report shows, and what each means."""
NEAR = 0.02  # the share of a range within which a value is at its end
WATCHED = 5  # trials whose diagnostics are shown: the best


def gather(folder: SweepFolder, *, unfinished: bool = False) -> SweepReport:
    """The sweep's results as its folder has them now.

    Raises `SweepError` when no trial has finished; with `unfinished`, when none has a report."""
    sweep, rows, baselines = folder.sweep(), standing(folder), folder.baselines()
    labels = log_of(folder.path).labels
    best = (leading(rows) if unfinished else None) or winner(folder, rows)
    prepared, notes = _prepared(folder)
    metric = sweep.objectives[0].metric
    errors = functools.cache(lambda value: None if prepared is None else error_of(metric, value, prepared))
    standings = tuple(_standing(row, metric, row.name in baselines, errors) for row in rows)
    logged = {trial.name: trial for trial in log_of(folder.path).trials.values()}
    trials = [logged[row.name] for row in rows if row.best is not None and row.name in logged]
    decisions, damaged = read_decisions(folder)
    metrics, on_front = front(folder, _front_metrics(sweep, rows), rows)
    varied = {name: each for name, each in sweep.parameters.items() if kind_of(each) != "const"}
    ours = [each for each in standings if not each.is_baseline]
    curves = [_curve(sweep, trial.name, trial.reports, metric) for trial in trials[:MOST_ROWS]]
    baseline_rows = [row for row in rows if row.name in baselines]
    front_metrics = [(name, goal_of(sweep, name)) for name in metrics]
    reports = {trial.name: trial.reports for trial in trials[:WATCHED]}
    notes += [f"{name} is damaged" for name in damaged]
    return SweepReport(
        sweep=folder.id,
        name=str(labels.get("name") or sweep.name),
        note=str(labels.get("note", "")),
        description=sweep.description,
        methods=tuple(sorted(proposable_methods(sweep))),
        state=state_of(folder),
        made_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        objectives=sweep.objectives,
        standings=standings,
        winner=next(each for each in ours if each.row.name == best.name),
        selection=_selection(sweep, best, ours, prepared),
        unit=sweep.budget.unit,
        curves=tuple(filter(None, curves)),
        scored=len(trials),
        languages=_languages(best, baseline_rows),
        examples=read_examples(folder),
        searched=tuple(varied),
        logarithmic=frozenset(name for name, each in varied.items() if kind_of(each).startswith("log")),
        at_ends=tuple(values_at_ends(varied, best.params)),
        importance=tuple(_importance(sweep, ours).items()),
        front_metrics=tuple(front_metrics),
        front=tuple(row.name for row in on_front),
        decisions=tuple(decisions),
        diagnostics=tuple(_diagnostics(sweep, reports)),
        data=_data_facts(sweep, prepared),
        cost=_cost(sweep, folder, ours, trials),
        provenance=_provenance(sweep, folder, best),
        notes=tuple(itertools.chain(notes, _trial_notes(rows))),
    )


def gather_data(folder: SweepFolder) -> DataFacts:
    """The facts of the sweep's data, before a trial has a report too."""
    return _data_facts(folder.sweep(), _prepared(folder)[0])


def _prepared(folder: SweepFolder) -> tuple[Prepared | None, list[str]]:
    """The record of the data, or why there is none."""
    try:
        return read_prepared(folder.prepared), []
    except StoreError as error:
        return None, [f"Intervals are missing: {error}"]


def _standing(row: Row, metric: str, is_baseline: bool, errors: Callable[[float], float | None]) -> Standing:
    value = row.metrics.get(metric)
    if value is None or (error := errors(value)) is None:
        return Standing(row=row, is_baseline=is_baseline, value=value, error=None, interval=None)
    least = -1.0 if metric.endswith("spearman") else 0.0
    limits = max(least, value - Z95 * error), min(1.0, value + Z95 * error)
    return Standing(row=row, is_baseline=is_baseline, value=value, error=error, interval=limits)


def _selection(sweep: Sweep, best: Row, ours: Sequence[Standing], prepared: Prepared | None) -> Selection | None:
    """The standard error of the winner's value and the luck in it, as promotion computes them."""
    objective = sweep.objectives[0]
    value = best.metrics[objective.metric]
    error = error_of(objective.metric, value, prepared) if prepared is not None else None
    if error is None:
        return None
    finished = [each.value for each in ours if each.row.state == "finished" and each.value is not None]
    among = max(1, sum(each.row.best is not None for each in ours))
    return selection(objective.metric, value, finished, error, among=among, goal=objective.goal)


def _curve(sweep: Sweep, trial: str, reports: Sequence[Report], metric: str) -> Curve | None:
    """A metric over the trial's reports; None if no report has it."""
    seconds = sweep.budget.unit == "compute"  # counted, in place of pairs
    reported = [each for each in reports if metric in each.metrics]
    x = tuple(each.metrics.get(COMPUTE, each.pairs) if seconds else each.pairs for each in reported)
    return Curve(trial=trial, x=x, y=tuple(each.metrics[metric] for each in reported)) if reported else None


def _diagnostics(sweep: Sweep, reports: Mapping[str, Sequence[Report]]) -> Iterator[Diagnostic]:
    logged = sorted({name for of_trial in reports.values() for report in of_trial for name in report.metrics})
    for diagnostic, meaning in DIAGNOSTICS.items():
        kind, _, quantity = diagnostic.partition("/")
        of_parts = [name for name in logged if name.split("/")[0::2] == [kind, quantity] and name.count("/") == 2]
        for name in (diagnostic, *of_parts):  # a combined method logs `train/laser3_co/filtered`
            of_trials = [_curve(sweep, trial, of_trial, name) for trial, of_trial in reports.items()]
            curves = tuple(filter(None, of_trials))
            if any(value for curve in curves for value in curve.y):
                yield Diagnostic(name=name, meaning=meaning, curves=curves)


def _languages(best: Row, others: Sequence[Row]) -> tuple[LanguageScore, ...]:
    """The winner's main metric in each subset of each dev set, beside the baselines'."""
    names = [
        name
        for name in best.metrics
        if name.startswith("dev/") and name.count("/") == 3 and name.rpartition("/")[2] in MAIN_METRICS
    ]
    models = [best, *others]
    return tuple(
        LanguageScore(metric=name, values=tuple((row.name, row.metrics[name]) for row in models if name in row.metrics))
        for name in sorted(names)
    )


def _front_metrics(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The objectives, the model's size and its speed, as far as the trials have them."""
    logged = {name for row in rows if row.best is not None for name in row.metrics}
    return [name for name in (*(o.metric for o in sweep.objectives), PARAMETERS, SPEED) if name in logged]


def _importance(sweep: Sweep, ours: Sequence[Standing]) -> dict[str, float]:
    scored = [Scored(params=each.row.params, value=each.value) for each in ours if each.value is not None]
    return parameter_importance(sweep.parameters, scored, sweep.objectives[0].goal)


def _data_facts(sweep: Sweep, prepared: Prepared | None) -> DataFacts:
    if prepared is None:
        return DataFacts(sealed=tuple(task.name for task in sweep.data.test))
    counts: dict[str, Any] = prepared.counts
    judged = contaminated(counts) | contaminated(counts, "dev")
    synthetic = {source.name for source in sweep.data.train if source.synthetic}
    pair_counts = zip(prepared.groups, prepared.group_rows, strict=True)
    pairs = [LanguagePair(name=name, pairs=rows) for name, rows in pair_counts]
    sources = [
        SourceRows(name=name, steps=tuple(steps.items()), synthetic=name in synthetic)
        for name, steps in counts.get("rows", {}).items()
    ]
    overlaps: list[Overlap] = []
    for name, facts in counts.get("contamination", {}).get("sets", {}).items():
        words = judged.get(name.split("/")[1], "")
        overlaps.append(
            Overlap(name=name, texts=facts["texts"], near=facts["near"], share=facts["share"], judged=words)
        )
    sealed = dict.fromkeys(task.name for task in sweep.data.test)
    return DataFacts(pairs=tuple(pairs), sources=tuple(sources), overlaps=tuple(overlaps), sealed=tuple(sealed))


def _cost(sweep: Sweep, folder: SweepFolder, ours: Sequence[Standing], trials: Sequence[LoggedTrial]) -> SweepCost:
    last = [trial.reports[-1] for trial in trials]
    compute = sum(each.metrics.get(COMPUTE, 0.0) for each in last)
    states = Counter(each.row.state for each in ours)
    worker_s = sum(each.seconds * float(each.facts.get("world_size") or 1) for each in last)
    return SweepCost(
        states=tuple(states.most_common()),
        training_s=sum(each.seconds for each in last),
        worker_s=worker_s,
        pairs=sum(each.pairs for each in last),
        compute_s=compute if sweep.budget.unit == "compute" else None,
        wall_s=_wall_seconds(read_log(folder)),
    )


def _wall_seconds(log: str) -> float | None:
    """From the log's first line to its last; None if it has no times."""
    lines = log.splitlines()
    with suppress(ValueError, IndexError):
        first, last = (datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in (lines[0], lines[-1]))
        return (last - first).total_seconds()
    return None


def _provenance(sweep: Sweep, folder: SweepFolder, best: Row) -> Provenance:
    facts, submission = folder.read("facts.json") or {}, submitted(folder)
    tags: Mapping[str, str] = {} if submission is None else submission["environment"]
    code = facts.get("code", {})
    facts_shown = {"commit": tags.get("git.commit"), "data": facts.get("data")}
    facts_shown |= (
        {f"code of {name}": digest for name, digest in code.items()} if isinstance(code, dict) else {"code": code}
    )
    versions = {key.removeprefix("version."): tags[key] for key in sorted(tags) if key.startswith("version.")}
    machine = {key: tags[key] for key in ("python", "platform", "cpus") if key in tags}
    return Provenance(
        spec=spec_yaml(sweep),
        file=f"{sweep.name}.yaml",
        id=sweep_id(sweep),
        code=tuple((name, str(value)) for name, value in facts_shown.items() if value),
        versions=tuple((versions | machine).items()),
        digests=tuple(sorted(sealed_digests(folder).items())),
        weights=_weights(folder, best),
        changes=tuple(accepted_lines(folder)),
    )


def _weights(folder: SweepFolder, best: Row) -> tuple[tuple[str, str], ...]:
    """SHA-256 of each file of the winner's checkpoint; empty if the checkpoint is not on this machine."""
    place = checkpoint_folder(folder.trial(trial_number(best.name)), best.best or 0)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        files = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["files"]
        return tuple((str(name), str(digest)) for name, digest in files.items())
    return ()


def _trial_notes(rows: Sequence[Row]) -> Iterator[str]:
    """The problems of single trials: damage, warnings, and why they failed or collapsed."""
    for row in sorted(rows, key=lambda row: row.name):
        ended_badly = row.state in ("failed", "pruned") and row.kind != "pruned"
        for text in (row.warning, row.reason if ended_badly else ""):
            if text:
                yield f"{row.name} ({row.state}): {' '.join(text.split())[:300]}"


def values_at_ends(varied: Mapping[str, Parameter], values: Mapping[str, Scalar]) -> Iterator[str]:
    """The values at an end of their range, or of three choices or more that are numbers."""
    for name, parameter in varied.items():
        kind, value = kind_of(parameter), values.get(name)
        among = getattr(parameter, kind)
        if not is_number(value) or not all(map(is_number, among)) or (kind == "choice" and len(among) < 3):
            continue
        scale = math.log if kind.startswith("log") else float
        low, high, at = scale(min(among)), scale(max(among)), scale(value)
        if kind == "choice" and value not in (min(among), max(among)):
            continue
        if high > low and min(at - low, high - at) <= NEAR * (high - low):
            yield f"{name} {number(value)} (of {number(min(among))} to {number(max(among))})"
