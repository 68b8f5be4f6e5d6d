"""The events that MLflow gets of each line of a sweep's log. The tracker calls it in its own thread; nothing here is a
record.

The log says what happened. A trial's folder has its settings and the points of its reports, `prepared.json` the data.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import BabeltuneError, StoreError
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.files import plain
from babeltune.method import trial_context
from babeltune.planning.checks import exported_width, student_width
from babeltune.planning.recorded import sweep_from
from babeltune.schema.records import Point, Report, Sweep, Trial, trial_from
from babeltune.sweep.driver import summary
from babeltune.sweep.state.folder import SweepFolder, condition_of, read_of_trial
from babeltune.sweep.state.leaderboard import logged_row, logged_rows
from babeltune.sweep.state.log import LEDGER, SweepLog, is_late, log_of
from babeltune.sweep.state.messages import ENDED, LedgerLine, State, Submission
from babeltune.tracking import events
from babeltune.tracking.checkpoint_models import CheckpointModel
from babeltune.tracking.events import Event, Status
from babeltune.tracking.metric_choice import MetricChoice, best_name
from babeltune.tracking.mlflow_client import NOTE, REPORT, SWEEP, TRIAL
from babeltune.tracking.tracker import Tracker
from babeltune.training.checkpoint import best_report, read_report, read_reports

if TYPE_CHECKING:
    from babeltune.files import JsonObject

SPEC, FACTS, ACCEPTED = "babeltune.spec", "babeltune.facts", "babeltune.accepted_changes"
"""Tags of the sweep's own run: JSON of the spec, of `facts.json`, and of the accepted changes."""
DIGESTS = "babeltune.digests"  # the tag of that run with the digests of its texts

SUMMARY_EVERY_MS = 30_000  # milliseconds between two summaries of a running sweep: each sorts all of its trials
POINTS_TIMEOUT_S = 30.0
"""Seconds that a report's points may take to come from another machine, before its scores are sent without them."""
WAYS_TO_LEAVE: dict[str, Status] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
KeyOf = Callable[[Path, int], str]
"""Gives the place of a checkpoint in the storage, by the trial's folder and the report's number."""


def track(uri: str, folder: SweepFolder, experiment: str, key_of: KeyOf) -> Tracker:
    """A tracker that follows the sweep's log."""
    return Tracker(uri, folder.path / LEDGER, experiment, functools.partial(MlflowReader, folder, key_of))


@dataclass
class _OpenTrial:
    """A trial that began and has not ended."""

    choice: MetricChoice  # which of its metrics MLflow gets
    reports: dict[int, LedgerLine] = field(default_factory=dict)  # the reports by number


class MlflowReader:
    """Makes events of a sweep's log (`tracker.LogReader`): of the same lines and folder the same events again."""

    def __init__(self, folder: SweepFolder, key_of: KeyOf) -> None:
        self._folder, self._key_of = folder, key_of
        self._log = SweepLog(folder.path / LEDGER)
        """The trials as of the latest line, of their metrics the objectives and the compute."""
        self._submission: Submission
        self._sweep: Sweep
        self._open: dict[int, _OpenTrial] = {}
        self._ended_last: int | None = None
        self._began_ms, self._late = 0, False  # late: an overtaken driver wrote the latest line, which does not count
        self._summarized_ms, self._summary_due = 0, False
        self._waits: tuple[int, int, float] | None = None
        """The trial and the report whose points are on their way, and since when, by the monotonic clock."""

    def follow(self, line: JsonObject) -> None:
        """Takes the line into account."""
        event = cast("LedgerLine", line)
        kind, now = event["event"], event.get("time_ms", 0)
        self._late = is_late(event, self._log.token)
        if self._late:
            return
        if self._ended_last is not None:
            self._open.pop(self._ended_last, None)
        self._ended_last = event["number"] if kind == "end" else None
        if kind == "report":
            event = self._follow_report(event)
        self._log.take(event)
        if kind == "submit":
            self._submission = self._log.submissions[-1]
            self._sweep = sweep_from(self._submission["spec"])
            self._began_ms = self._began_ms or now
        elif kind == "start" and self._log.submissions:
            self._open.setdefault(event["number"], _OpenTrial(self._choice()))
        late = now - self._summarized_ms >= SUMMARY_EVERY_MS
        self._summary_due = kind in ("submit", "leave", "label") or (kind in ("end", "stop") and late)
        if self._summary_due:
            self._summarized_ms = now

    def _follow_report(self, line: LedgerLine) -> LedgerLine:
        """The line with the metrics that are remembered of ended trials, too."""
        metrics = line.get("metrics", {})
        if trial := self._open.get(line["number"]):
            trial.reports.setdefault(line["index"], line)
            trial.choice.see((best_name(self._aim), *metrics))
        names = {*(o.metric for o in self._sweep.objectives), COMPUTE} if self._log.submissions else ()
        return {**line, "metrics": {name: metrics[name] for name in names if name in metrics}}

    def events(self, line: JsonObject) -> list[Event] | None:
        """The events of the line; None if the points of a report are not here yet."""
        event = cast("LedgerLine", line)
        if self._late or not self._log.submissions:
            return []
        if (of_line := self._events_of(event)) is None:
            return None
        if self._summary_due:
            of_line += self._summary(event)
        if event["event"] == "leave":
            of_line.append(events.end_sweep(WAYS_TO_LEAVE[event["state"]]))
        return [{**each, "time_ms": event.get("time_ms", 0)} for each in of_line]

    def _events_of(self, line: LedgerLine) -> list[Event] | None:
        if line["event"] == "submit":
            return self._opened()
        trial = self._trial(line.get("number", -1))
        if trial is None:
            return []
        if line["event"] == "start":
            return self._started(trial)
        if line["event"] == "report":
            return self._reported(trial, line)
        return self._ended(trial) if line["event"] in ("end", "stop") else []

    # The sweep

    @property
    def _aim(self) -> str:
        return self._sweep.objectives[0].metric

    def _choice(self) -> MetricChoice:
        return MetricChoice((o.metric for o in self._sweep.objectives), self._submission["mlflow_metrics"])

    def _prepared(self) -> Prepared:
        return read_prepared(self._folder.prepared)

    def _digests(self, *kinds: str) -> dict[str, str]:
        """Of the texts whose name begins so."""
        return {name: digest for name, digest in self._submission["digests"].items() if name.startswith(kinds)}

    def _opened(self) -> list[Event]:
        """The sweep's own run and those of the baselines."""
        new, sweep = self._submission, self._sweep
        params = {key: value for key, value in new["spec"].items() if key != "data"}
        tags: dict[str, Any] = {**new["environment"], SPEC: new["spec"], FACTS: new["facts"], DIGESTS: new["digests"]}
        tags |= {f"contaminated.{name}": words for name, words in new["contaminated"].items()}
        tags |= {ACCEPTED: self._log.accepted} if self._log.accepted else {}
        opened = [
            events.start_sweep(self._folder.id, params, tags),
            events.experiment_note(summary.experiment_note(sweep)),
            events.inputs(None, summary.data_inputs(new["digests"])),
        ]
        with suppress(StoreError):  # a later submission makes the record of the data again
            opened.append(events.artifact(None, "corpus.json", summary.corpus_facts(self._prepared(), new["teacher"])))
        for name, scores in self._folder.baselines().items():
            opened += self._baseline(name, scores)
        return opened

    def _baseline(self, name: str, scores: dict[str, float]) -> list[Event]:
        aim = self._aim
        values = {best_name(aim): scores[aim], **scores} if aim in scores else scores
        choice = self._choice()
        choice.see(values)
        tags = {"babeltune.baseline": name, "state": "baseline", NOTE: summary.baseline_note(self._folder.id, name)}
        return [
            events.start_trial(name, {}, {**tags, **self._submission["environment"]}),
            events.inputs(name, summary.data_inputs(self._digests("dev/"))),
            events.metrics(name, [Point(step=0, time_ms=self._began_ms, values=choice.of(values))]),
            events.end_trial(name, "FINISHED", {}),
        ]

    def _summary(self, line: LedgerLine) -> list[Event]:
        """The sweep's best values, counts, cost and description as of this line."""
        baselines = self._folder.baselines()
        rows = logged_rows(self._log, self._sweep, baselines)
        labels = self._log.labels
        totals = summary.summary_of(self._sweep, self._folder.id, rows, baselines)
        note = "\n\n".join(filter(None, (str(labels.get("note", "")), totals.note)))
        step = sum(value for name, value in totals.metrics.items() if name.startswith("trials/"))
        point = Point(step=round(step), time_ms=line.get("time_ms", 0), values=totals.metrics)
        tags = {NOTE: note, **{f"babeltune.{key}": value for key, value in labels.items()}}
        if line["event"] != "label":  # which may come after its end
            tags["state"] = line["state"] if line["event"] == "leave" else "running"
        return [events.metrics(None, [point]), events.tags(None, tags)]

    # A trial

    def _trial(self, number: int) -> Trial | None:
        """A trial that has begun; None if its method refused it, or if what it is made of is lost."""
        values = read_of_trial(self._folder.trial(number), "trial.json") if number in self._open else None
        return None if values is None else trial_from(values)

    def _started(self, trial: Trial) -> list[Event]:
        values, history = plain(trial), self._folder.accepted()
        settings = {key: values[key] for key in ("method", "config", "training", "student", "sampling", "seed")}
        settings |= {"teacher": plain(self._sweep.teacher), "evaluation": plain(self._sweep.evaluation)}
        context, tags = trial_context(trial.method, trial.config), dict[str, Any]()
        with suppress(OSError, StoreError):  # if the data are on another machine, a report says it
            tags["fact.effective_negatives"] = self._prepared().negatives_seen(context, trial.training.global_batch)
        tags["babeltune.method"] = context.method_class.name
        tags |= self._submission["world"] | self._submission["environment"]
        if history:
            tags["babeltune.condition"] = condition_of(trial.number, history)
        unit = "pairs" if trial.training.compute is None else "compute ms"
        digests = {name: digest for name, digest in self._submission["digests"].items() if not name.startswith("test/")}
        params = summary.params_once(settings, {**trial.params, **trial.fitted})
        return [
            events.start_trial(trial.number, params, {"state": "running", **tags}, step_unit=unit),
            events.inputs(trial.number, summary.data_inputs(digests)),
        ]

    def _reported(self, trial: Trial, line: LedgerLine) -> list[Event] | None:
        number, index = trial.number, line["index"]
        report = read_report(self._folder.trial(number), index)
        if report is None and self._may_come(number, index):
            return None
        choice, first = self._open[number].choice, self._open[number].reports[index]
        scores = _scores(first, report)
        best = best_report(self._log.trials[number].reports, *self._sweep.objectives)
        values = ({} if best is None else {best_name(self._aim): best.metrics[self._aim]}) | scores
        points = [replace(point, values=choice.of(point.values)) for point in report.points] if report else []
        points.append(Point(step=first["step"], time_ms=first["time_ms"], values=choice.of(values)))
        return [events.metrics(number, points, per_step=_per_step(first))]

    def _may_come(self, number: int, index: int) -> bool:
        """Whether the points of a report may still come from the machine that made them."""
        trial, now = log_of(self._folder.path).trials.get(number), time.monotonic()
        if trial is None or trial.end is not None or max(trial.logged, default=0) > index:
            return False
        if self._waits is None or self._waits[:2] != (number, index):
            self._waits = number, index, now
        return now - self._waits[2] < POINTS_TIMEOUT_S

    def _ended(self, trial: Trial) -> list[Event]:
        """The end of a trial, or that it was stopped."""
        number, logged = trial.number, self._log.trials[trial.number]
        row = logged_row(logged, self._sweep.objectives)
        state: State = row.state
        # MLflow marks a killed run as it marks a failed one, and a pruned trial has done all that was asked of it.
        status: Status = "FINISHED" if state in ("finished", "pruned") else "FAILED" if state == "failed" else "KILLED"
        facts = {f"fact.{key}": value for report in logged.reports[-1:] for key, value in report.facts.items()}
        tags = {"state": state, "reason": row.reason, "best_report": row.best or 0}
        choice = self._open[number].choice
        last: list[Event] = []
        if choice.left_out:
            table = summary.table_of_metrics(read_reports(self._folder.trial(number)))
            last.append(events.artifact(number, "metrics.parquet", table))
        if state in ENDED and row.best is not None:
            last.append(self._model(trial, row.best, choice))
        tags |= {NOTE: summary.trial_note(self._folder.id, row)}
        return [*last, events.end_trial(number, status, {**tags, **facts})]

    def _model(self, trial: Trial, best: int, choice: MetricChoice) -> Event:
        """A model of MLflow for the trial's best checkpoint."""
        place, report = self._folder.trial(trial.number), self._open[trial.number].reports[best]
        name, key = f"{self._folder.id}/{place.name}", self._key_of(place, best)
        scores = {name: value for name, value in report["metrics"].items() if name.startswith("dev/")}
        model = CheckpointModel(
            name=f"{self._folder.id}-{place.name}",
            step=report["step"],
            time_ms=report["time_ms"],
            checkpoint=key,
            dimension=self._dimension(trial) or -1,
            note=f"The best checkpoint of trial `{name}`, report {best}. Its weights are in the sweep's storage: "
            f"`{key}`. `babeltune promote {name}` makes a model of it that others can load.",
            tags={SWEEP: self._folder.id, TRIAL: place.name, REPORT: str(best)},
            params={"method": trial.method, **trial.params, **trial.fitted},
            scores={best_name(self._aim): report["metrics"][self._aim], **choice.of(scores)},
            digests=self._digests("dev/"),
        )
        return events.model(trial.number, model, per_step=_per_step(report))

    def _dimension(self, trial: Trial) -> int | None:
        """The width of the trial's vectors as they are exported; None if only its export knows it."""
        with suppress(BabeltuneError):
            context, teacher = trial_context(trial.method, trial.config), self._prepared().teacher_dim
            width = teacher if trial.student.projection == "teacher" else student_width(trial.student)
            if width is not None or context.needs.frozen:
                return exported_width(context.method_class, context.config, width, teacher)
        return None


def _scores(line: LedgerLine, report: Report | None) -> dict[str, float]:
    """The metrics of a report without the means of its points, which the log has, too."""
    # The log alone has the load of the worker's machine: it is measured after the trial's folder has the report.
    if report is None:
        return {name: value for name, value in line["metrics"].items() if not name.startswith("train/")}
    means = {name for point in report.points for name in point.values} - report.metrics.keys()
    return {name: value for name, value in line["metrics"].items() if name not in means}


def _per_step(report: LedgerLine) -> float:
    """The length of an optimizer step in the unit of the run's steps: pairs, or ms of compute."""
    cost = 1000 * report["metrics"][COMPUTE] if COMPUTE in report["metrics"] else report["pairs"]
    return cost / max(report["step"], 1)
