"""Records what happens in a sweep in MLflow and in the log."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from babeltune.data.contamination import contaminated
from babeltune.data.prepared import Prepared
from babeltune.data.store import facts_of
from babeltune.errors import BabeltuneError, DamagedError, counted
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.files import plain, write_whole
from babeltune.method import trial_context
from babeltune.planning.checks import exported_width, student_width
from babeltune.schema.cluster import DEFAULT_METRICS
from babeltune.schema.records import Point, Report, Scalar, Sweep, Trial, trial_from
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.driver.summary import (
    baseline_note,
    data_inputs,
    experiment_note,
    params_once,
    summary_of,
    trial_note,
    write_metrics,
)
from babeltune.sweep.search.tune_searcher import Event
from babeltune.sweep.state.fencing import OvertakenError
from babeltune.sweep.state.folder import SweepFolder, condition_of, read_of_trial
from babeltune.sweep.state.leaderboard import trial_row
from babeltune.sweep.state.ledger import Ledger
from babeltune.sweep.state.log import LEDGER, log_of
from babeltune.sweep.state.messages import ENDED, State, TrialEnd, TrialOutcome
from babeltune.sweep.state.provenance import environment_facts
from babeltune.sweep.state.rebuild import ACCEPTED, DIGESTS, FACTS, SPEC, damage
from babeltune.tracking.checkpoint_models import CheckpointModel
from babeltune.tracking.metric_choice import MetricChoice, best_name
from babeltune.tracking.mlflow_client import NOTE, SWEEP, TRIAL
from babeltune.tracking.tracker import SpooledRun, Status, Tracker
from babeltune.training.checkpoint import best_report, checkpoint_folder, is_good, last_stopped, read_reports

SUMMARY_EVERY_S = 30.0
"""Seconds between two summaries of a running sweep: each reads all of its trials."""
LAST_WAIT, INTERRUPTED_WAIT = 60.0, 10.0
"""Seconds that a sweep waits at its end for MLflow to take everything, and after Ctrl-C."""


def contamination_tags(counts: Mapping[str, object]) -> dict[str, str]:
    """Which sets are contaminated, in words."""
    found = ((kind, contaminated(counts, kind)) for kind in ("dev", "test"))
    return {f"contaminated.{kind}.{name}": words for kind, sets in found for name, words in sets.items()}


def write_corpus_facts(path: Path, prepared: Prepared) -> None:
    """What is known of the sweep's text: pairs by source and step, overlap and contamination, cut and aligned texts,
    and how much the teacher encoded. MLflow gets it as one artifact, for a sweep of many sets has hundreds of counts.
    """
    taught = facts_of(Path(prepared.teacher)) if prepared.teacher else {}
    facts = {
        **prepared.counts,
        "truncated": {key: tokens.truncated for key, tokens in prepared.tokens.items()},
        "teacher": {name: taught[name] for name in ("forwarded", "truncated") if name in taught},
        "digests": prepared.digests,
    }
    write_whole(path, json.dumps(facts, ensure_ascii=False, indent=1).encode())


def close_tracker(tracker: Tracker, folder: SweepFolder, wait: float = LAST_WAIT) -> None:
    """Waits so many seconds for MLflow and records what it has not taken."""
    tracker.flush(wait)
    unsent, trouble = tracker.waiting(), tracker.trouble
    try:
        folder.write("tracking.json", {"unsent_bytes": unsent, "refused": tracker.refused, "trouble": trouble})
    finally:
        tracker.close(timeout=0 if unsent else 10)


class Recorder:
    """Writes what happens to MLflow and to the log."""

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        prepared: Prepared,
        tracker: Tracker,
        world: dict[str, Scalar],
        metrics: int | None = DEFAULT_METRICS,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        """`world` holds the tags that say how every trial runs: its world size and backend. `metrics` is how many of a
        trial's metrics MLflow gets; None: all. `policy` hears of each trial that ends."""
        self.sweep, self.folder, self.prepared, self.tracker = sweep, folder, prepared, tracker
        self.world, self.metrics, self.policy = world, metrics, policy
        self.facts: dict[int, dict[str, Scalar]] = {}
        self.open: set[int] = set()
        """Trials that began and have not ended."""
        self.choices: dict[int, MetricChoice] = {}
        """What MLflow gets of each trial that began and has not ended."""
        self.summarized = 0.0
        """When the sweep's run was last given its summary, by the monotonic clock."""
        self.complete = False
        """Whether the sweep ended with all of its trials."""

    def __enter__(self) -> Recorder:
        facts = environment_facts()
        self.tags = {**facts, "data": self.prepared.digest}
        params = {key: value for key, value in plain(self.sweep).items() if key != "data"}
        facts_now = {
            name: value for name, value in (self.folder.read("facts.json") or {}).items() if name != "accepted"
        }
        spec = {
            SPEC: json.dumps(plain(self.sweep), ensure_ascii=False),
            FACTS: json.dumps(facts_now),
            DIGESTS: json.dumps(self.prepared.digests, ensure_ascii=False),
        }
        if history := self.folder.accepted():
            spec[ACCEPTED] = json.dumps(history, ensure_ascii=False)
        self.tracker.start_sweep(
            self.folder.id, params, {**self.tags, **contamination_tags(self.prepared.counts), **spec}
        )
        self._keep_corpus_facts()
        self.tracker.experiment_note(experiment_note(self.sweep))
        self.tracker.inputs(None, data_inputs(self.prepared.digests))
        for name, scores in self.folder.baselines().items():
            self._baseline(name, scores)
        self.summarize("running")
        if self.policy is not None:
            self.policy.catch_up()
        return self

    def _keep_corpus_facts(self) -> None:
        path = self.folder.path / "mlflow" / "corpus.json"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_corpus_facts(path, self.prepared)
            self.tracker.artifact(None, path)

    def _baseline(self, name: str, scores: dict[str, float]) -> None:
        aim = self.sweep.objectives[0].metric
        values = {best_name(aim): scores[aim], **scores} if aim in scores else scores
        choice = self._choice()
        choice.see(values)
        note = baseline_note(self.folder.id, name)
        self.tracker.start_trial(name, {}, {"babeltune.baseline": name, "state": "baseline", NOTE: note, **self.tags})
        self.tracker.inputs(name, data_inputs(self._digests("dev/")))
        self.tracker.metrics(name, [Point(step=0, time_ms=int(time.time() * 1000), values=choice.of(values))])
        self.tracker.end_trial(name, "FINISHED", {})

    def _digests(self, kind: str) -> dict[str, str]:
        return {name: digest for name, digest in self.prepared.digests.items() if name.startswith(kind)}

    def _choice(self) -> MetricChoice:
        return MetricChoice((o.metric for o in self.sweep.objectives), self.metrics)

    def summarize(self, state: str) -> None:
        """Gives the sweep's run its best values, counts, cost and description. A folder that cannot be read waits."""
        self.summarized = time.monotonic()
        with contextlib.suppress(OSError, BabeltuneError):
            summary = summary_of(self.sweep, self.folder)
            step = sum(n for name, n in summary.metrics.items() if name.startswith("trials/"))
            point = Point(step=round(step), time_ms=int(time.time() * 1000), values=summary.metrics)
            self.tracker.metrics(None, [point])
            self.tracker.tags(None, {NOTE: summary.note, "state": state})

    def __exit__(self, *error: object) -> None:
        try:
            with self.folder.guard():
                overtaken = isinstance(error[1], OvertakenError)
        except OvertakenError:
            self.tracker.close(0)
            raise
        if overtaken:  # the other driver says what becomes of the trials
            self.tracker.close(0)
            return
        with contextlib.suppress(OSError):  # a storage that refuses is what it ended with
            ledger = Ledger(self.folder.path / LEDGER)
            for number in sorted(self.open):
                with self.folder.guard():
                    ledger.add("stop", number)
                self.end(number, "stopped", TrialEnd("stopped"))
            self.catch_up()
            if self.policy is not None:
                self.policy.catch_up()
        raised = error[1]
        stopped = isinstance(raised, KeyboardInterrupt) or (raised is None and not self.complete)
        self.summarize("stopped" if stopped else "finished" if raised is None else "failed")
        self.tracker.end_sweep("KILLED" if stopped else "FINISHED" if raised is None else "FAILED")
        close_tracker(
            self.tracker, self.folder, INTERRUPTED_WAIT if isinstance(raised, KeyboardInterrupt) else LAST_WAIT
        )

    def catch_up(self) -> None:
        """Sends MLflow what the ledger has and it lacks, because a driver died or its disk was full."""
        spooled = self.tracker.spooled()
        for number, trial in log_of(self.folder.path).trials.items():
            known, place = spooled.get(str(number), SpooledRun()), self.folder.trial(number)
            if read_of_trial(place, "trial.json") is None:  # its method refused it, or it is lost: nothing to tell
                continue
            reports = [report for report in self._accepted(number) if report.step not in known.steps]
            late = trial.end is not None and not known.ended
            if reports or late:
                self.folder.note(f"MLflow is sent again what it lacks of {place.name}")
                self.start(number, again=True)
                for report in reports:
                    self.report(number, report)
                state = "stopped" if trial.end is None else trial.state
                self.end(number, state, trial.end or TrialEnd("stopped"), again=True)

    def on_event(self, _: str, number: int, event: Event) -> dict[str, Scalar] | None:
        """Records a trial's start, a report, or its end."""
        if isinstance(event, TrialOutcome):
            self.end(number, event.state, event.end)
            return None
        if isinstance(event, Report):
            self.report(number, event)
            run = self.tracker.run_id(number)
            return {"mlflow_run": run} if run else None
        return self.start(number)

    def start(self, number: int, *, again: bool = False) -> dict[str, Scalar] | None:
        trial = read_of_trial(self.folder.trial(number), "trial.json")
        if trial is None:
            raise DamagedError(damage(self.folder.trial(number) / "trial.json"))
        self.open.add(number)
        if not again:
            self.folder.note(f"{self.folder.trial(number).name} {_beginning(self.folder.trial(number))}")
        settings = {key: trial[key] for key in ("method", "config", "training", "student", "sampling", "seed")}
        settings |= {"teacher": plain(self.sweep.teacher), "evaluation": plain(self.sweep.evaluation)}
        context = trial_context(trial["method"], trial["config"])
        negatives = self.prepared.negatives_seen(context, trial["training"]["global_batch"])
        history = self.folder.accepted()
        began = {"babeltune.condition": condition_of(number, history)} if history else {}
        tags = {
            "babeltune.method": context.method_class.name,
            "fact.effective_negatives": negatives,
            **self.world,
            **self.tags,
        }
        params = params_once(settings, trial["params"])
        unit = "pairs" if trial["training"].get("compute") is None else "compute ms"
        self.choices[number] = self._choice()
        self.tracker.start_trial(number, params, {"state": "running", **tags, **began}, step_unit=unit)
        digests = {name: digest for name, digest in self.prepared.digests.items() if not name.startswith("test/")}
        self.tracker.inputs(number, data_inputs(digests))
        return None

    def report(self, number: int, report: Report) -> None:
        now = _time_of(report)
        values = {**self._best_so_far(number, report), **report.metrics}
        choice = self.choices.setdefault(number, self._choice())
        choice.see((*values, *(name for point in report.points for name in point.values)))
        points = [replace(point, values=choice.of(point.values)) for point in report.points]
        scores = Point(step=report.step, time_ms=now, values=choice.of(values))
        self.tracker.metrics(number, [*points, scores], per_step=_per_step(report))
        self.facts[number] = {f"fact.{key}": value for key, value in report.facts.items()}

    def _best_so_far(self, number: int, report: Report) -> dict[str, float]:
        """The first objective of the best report up to this one, by which MLflow sorts as the leaderboard does."""
        earlier = [known for known in read_reports(self.folder.trial(number)) if known.index < report.index]
        best = best_report([*earlier, report], *self.sweep.objectives)
        aim = self.sweep.objectives[0].metric
        return {} if best is None else {best_name(aim): best.metrics[aim]}

    def _accepted(self, number: int) -> list[Report]:
        """The reports that the search took of a trial. A trial may fail with one more in its folder."""
        logged = log_of(self.folder.path).trials[number].logged
        return [report for report in read_reports(self.folder.trial(number)) if report.index in logged]

    def _keep_checkpoint(self, number: int, choice: MetricChoice) -> None:
        """A model of MLflow for the trial's best checkpoint, if it has one."""
        place = self.folder.trial(number)
        values = read_of_trial(place, "trial.json")
        best = best_report(self._accepted(number), *self.sweep.objectives)
        if best is None or values is None:
            return
        trial, name, aim = trial_from(values), f"{self.folder.id}/{place.name}", self.sweep.objectives[0].metric
        scores = {name: value for name, value in best.metrics.items() if name.startswith("dev/")}
        checkpoint = f"sweeps/{self.folder.id}/trials/{place.name}/checkpoints/{best.index:06d}"
        if self.policy is not None:
            checkpoint = self.policy.key_of(place, best.index)
        model = CheckpointModel(
            name=f"{self.folder.id}-{place.name}",
            step=best.step,
            time_ms=_time_of(best),
            checkpoint=checkpoint,
            dimension=_dimension(trial, self.prepared) or -1,
            note=f"The best checkpoint of trial `{name}`, report {best.index}. Its weights are in the sweep's storage: "
            f"`{checkpoint}`. `babeltune promote {name}` makes a model of it that others can load.",
            tags={SWEEP: self.folder.id, TRIAL: place.name, "babeltune.report": str(best.index)},
            params={"method": trial.method, **trial.params},
            scores={best_name(aim): best.metrics[aim], **choice.of(scores)},
            digests=self._digests("dev/"),
        )
        self.tracker.model(number, model, per_step=_per_step(best))

    def _keep_left_out(self, number: int) -> MetricChoice:
        """An artifact with all of the trial's metrics, where MLflow did not get some. Returns which it got."""
        place = self.folder.trial(number)
        choice, reports = self.choices.pop(number, None) or self._choice(), read_reports(place)
        for report in reports:
            choice.see((*report.metrics, *(name for point in report.points for name in point.values)))
        if choice.left_out:
            path = self.folder.path / "mlflow" / place.name / "metrics.parquet"
            with contextlib.suppress(OSError):
                write_metrics(path, reports)
                self.tracker.artifact(number, path)
        return choice

    def end(self, number: int, state: State, end: TrialEnd, *, again: bool = False) -> None:
        place = self.folder.trial(number)
        self.open.discard(number)
        row = trial_row(place, *self.sweep.objectives)
        best = "".join(
            f" {o.metric} {row.metrics[o.metric]:.4f}" for o in self.sweep.objectives if o.metric in row.metrics
        )
        if not again:
            self.folder.note(
                f"{place.name} {state} after "
                f"{counted(row.reports, 'report')}{best}{f' ({end.text})' if end.text else ''}"
            )
        # MLflow marks a killed run as it marks a failed one, and a pruned trial has done all that was asked of it.
        status: Status = "FINISHED" if state in ("finished", "pruned") else "FAILED" if state == "failed" else "KILLED"
        tags = {"state": state, "reason": end.text, "best_report": row.best or 0, NOTE: trial_note(self.folder.id, row)}
        choice = self._keep_left_out(number)
        if state in ENDED:
            self._keep_checkpoint(number, choice)
        self.tracker.end_trial(number, status, {**tags, **self.facts.get(number, {})})
        if state in ENDED and self.policy is not None:
            self.policy.ended(row)
        if time.monotonic() - self.summarized > SUMMARY_EVERY_S:
            self.summarize("running")


def _time_of(report: Report) -> int:
    """When the report was made, in ms: the same whenever it is sent."""
    trained = [point.time_ms for point in report.points if "train/loss" in point.values]
    return trained[-1] if trained else int(time.time() * 1000)


def _per_step(report: Report) -> float:
    """What an optimizer step counts for in the unit of the run's steps: pairs, or ms of compute."""
    cost = 1000 * report.metrics[COMPUTE] if COMPUTE in report.metrics else report.pairs
    return cost / max(report.step, 1)


def _dimension(trial: Trial, prepared: Prepared) -> int | None:
    """The width of the trial's vectors as they are exported; None where only its export knows it."""
    context, teacher = trial_context(trial.method, trial.config), prepared.teacher_dim
    width = teacher if trial.student.projection == "teacher" else student_width(trial.student)
    if width is None and not context.needs.frozen:
        return None
    return exported_width(context.method_class, context.config, width, teacher)


def _beginning(place: Path) -> str:
    """How the trial in this folder begins: anew, or with which of its checkpoints."""
    reports = read_reports(place)
    last = [checkpoint_folder(place, reports[-1].index)] if reports else []
    there = [checkpoint for checkpoint in (*last, last_stopped(place)) if checkpoint.exists()]
    damaged = ", ".join(str(checkpoint) for checkpoint in there if not is_good(checkpoint))
    if damaged:
        return f"goes on without its latest checkpoint, which is damaged: {damaged}"
    return f"goes on after {counted(len(reports), 'report')}" if reports or there else "begins"
