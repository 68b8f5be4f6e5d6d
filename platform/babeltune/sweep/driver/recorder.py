"""What happens in a sweep, told to MLflow and to the trials' outcome files."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from babeltune.data.contamination import contaminated
from babeltune.data.prepared import Prepared
from babeltune.data.store import facts_of
from babeltune.errors import DamagedError
from babeltune.files import plain
from babeltune.method import trial_context
from babeltune.schema.records import Point, Report, Scalar, Sweep
from babeltune.sweep.search.study import Ledger
from babeltune.sweep.search.tune_searcher import Event
from babeltune.sweep.state.folder import State, SweepFolder, condition_of, outcome, read_of_trial, read_outcome
from babeltune.sweep.state.leaderboard import trial_row
from babeltune.sweep.state.lease import OvertakenError
from babeltune.sweep.state.messages import TrialEnd, TrialOutcome, end_of
from babeltune.sweep.state.provenance import environment_facts
from babeltune.sweep.state.rebuild import ACCEPTED, ENDS, FACTS, SPEC, damage
from babeltune.tracking.tracker import Status, Told, Tracker
from babeltune.training.checkpoint import checkpoint_folder, is_good, read_reports, stopped_folder

LAST_WAIT, INTERRUPTED_WAIT = 60.0, 10.0
"""Seconds that a sweep waits at its end for MLflow to take everything, and after Ctrl-C."""


def contamination_tags(counts: dict[str, Any]) -> dict[str, str]:
    """Near-duplicates by source, set and side, each set's share, and which sets are contaminated."""
    found = counts.get("contamination", {})
    tags = {
        f"near.{source}.{name}.{side}": str(kinds["near"])
        for source, sets in found.get("sources", {}).items()
        for name, sides in sets.items()
        for side, kinds in sides.items()
        if "near" in kinds
    }
    tags |= {f"near_share.{name}": f"{facts['share']:.4f}" for name, facts in found.get("sets", {}).items()}
    for kind in ("dev", "test"):
        tags |= {f"contaminated.{kind}.{name}": words for name, words in contaminated(counts, kind).items()}
    return tags


def close_tracker(tracker: Tracker, folder: SweepFolder, wait: float = LAST_WAIT) -> None:
    """Waits so many seconds for MLflow and records what it has not taken."""
    tracker.flush(wait)
    unsent, trouble = tracker.waiting(), tracker.trouble
    try:
        folder.write("tracking.json", {"unsent_bytes": unsent, "refused": tracker.refused, "trouble": trouble})
    finally:
        tracker.close(timeout=0 if unsent else 10)


class Recorder:
    """Writes what happens to MLflow and to the trials' outcome files."""

    def __init__(
        self, sweep: Sweep, folder: SweepFolder, prepared: Prepared, tracker: Tracker, world: dict[str, Scalar]
    ) -> None:
        """`world` holds the tags that say how every trial runs: its world size and backend."""
        self.sweep, self.folder, self.prepared, self.tracker = sweep, folder, prepared, tracker
        self.world = world
        self.facts: dict[int, dict[str, Scalar]] = {}
        self.open: set[int] = set()
        """Trials that began and have not ended."""
        self.complete = False
        """Whether the sweep ended with all of its trials."""

    def __enter__(self) -> Recorder:
        facts = environment_facts()
        digests = {f"digest.{k}": v for k, v in self.prepared.digests.items()}
        overlap = {
            f"overlap.{source}.{test}": str(n)
            for source, tests in self.prepared.counts["overlap"].items()
            for test, n in tests.items()
        }
        overlap |= contamination_tags(self.prepared.counts)
        rows = {
            f"rows.{source}.{step}": str(n)
            for source, steps in self.prepared.counts["rows"].items()
            for step, n in steps.items()
        }
        self.tags = {**facts, "data": self.prepared.digest, **digests}
        params = {key: value for key, value in plain(self.sweep).items() if key != "data"}
        texts = {f"truncated.{key}": str(tokens.truncated) for key, tokens in self.prepared.tokens.items()}
        texts |= {f"words.{name}": str(n) for name, n in self.prepared.counts.get("words", {}).items()}
        if self.prepared.teacher:
            taught = facts_of(Path(self.prepared.teacher))
            texts |= {f"teacher.{name}": str(taught[name]) for name in ("forwarded", "truncated") if name in taught}
        facts_now = {
            name: value for name, value in (self.folder.read("facts.json") or {}).items() if name != "accepted"
        }
        spec = {SPEC: json.dumps(plain(self.sweep), ensure_ascii=False), FACTS: json.dumps(facts_now)}
        if history := self.folder.accepted():
            spec[ACCEPTED] = json.dumps(history, ensure_ascii=False)
        self.tracker.start_sweep(self.folder.id, params, {**self.tags, **overlap, **rows, **texts, **spec})
        for name, scores in self.folder.baselines().items():
            self.tracker.start_trial(name, {}, {"babeltune.baseline": name, **self.tags})
            self.tracker.metrics(name, [Point(step=0, time_ms=int(time.time() * 1000), values=scores)])
            self.tracker.end_trial(name, "FINISHED", {})
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(error[1], OvertakenError):  # the other driver says what becomes of the trials
            self.tracker.close(0)
            return
        with contextlib.suppress(OSError):  # a storage that refuses is what it ended with
            for number in sorted(self.open):
                self.end(number, "stopped", TrialEnd("stopped"))
            self.catch_up()
        raised = error[1]
        stopped = isinstance(raised, KeyboardInterrupt) or (raised is None and not self.complete)
        self.tracker.end_sweep("KILLED" if stopped else "FINISHED" if raised is None else "FAILED")
        close_tracker(
            self.tracker, self.folder, INTERRUPTED_WAIT if isinstance(raised, KeyboardInterrupt) else LAST_WAIT
        )

    def catch_up(self) -> None:
        """Tells what the ledger has and nobody has told: a driver died, or its disk was full, between the two."""
        told = self.tracker.told()
        recorded: dict[int, set[int]] = {}
        ended: dict[int, dict[str, Any]] = {}
        for line in Ledger(self.folder.path / "results.jsonl").lines:
            recorded.setdefault(line["number"], set())
            if line["event"] == "report":
                recorded[line["number"]].add(line["index"])
            elif line["event"] == "end":
                ended[line["number"]] = line
        for number, indices in recorded.items():
            known, place = told.get(str(number), Told()), self.folder.trial(number)
            if read_of_trial(place, "trial.json") is None:  # its method refused it, or it is lost: nothing to tell
                continue
            reports = [r for r in read_reports(place) if r.index in indices and r.step not in known.steps]
            state = ENDS[ended[number]["state"]] if number in ended else None
            late = state is not None and (not known.ended or state != read_outcome(place))
            if reports or late:
                self.folder.note(f"MLflow is told again of {place.name}")
                self.start(number, again=True)
                for report in reports:
                    self.report(number, report)
                self.end(number, state or "stopped", end_of(ended.get(number, {})), again=True)

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
        outcome(self.folder.trial(number), "running")
        if not again:
            self.folder.note(f"{self.folder.trial(number).name} {_beginning(self.folder.trial(number))}")
        settings = {key: trial[key] for key in ("method", "config", "training", "student", "sampling", "seed")}
        settings |= {"teacher": plain(self.sweep.teacher), "evaluation": plain(self.sweep.evaluation)}
        searched = {f"search.{key}": value for key, value in trial["params"].items()}
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
        self.tracker.start_trial(number, {**settings, **searched}, {**tags, **began})
        return None

    def report(self, number: int, report: Report) -> None:
        trained = [point.time_ms for point in report.points if "train/loss" in point.values]
        now = trained[-1] if trained else int(time.time() * 1000)  # whenever it is told, it is the same to MLflow
        scores = Point(step=report.step, time_ms=now, values=report.metrics)
        self.tracker.metrics(number, [*report.points, scores])
        self.facts[number] = {f"fact.{key}": value for key, value in report.facts.items()}

    def end(self, number: int, state: State, end: TrialEnd, *, again: bool = False) -> None:
        place = self.folder.trial(number)
        self.open.discard(number)
        outcome(place, state, end)
        row = trial_row(place, self.sweep.objectives[0])
        best = "".join(
            f" {o.metric} {row.metrics[o.metric]:.4f}" for o in self.sweep.objectives if o.metric in row.metrics
        )
        if not again:
            self.folder.note(
                f"{place.name} {state} after {row.reports} reports{best}{f' ({end.text})' if end.text else ''}"
            )
        status: Status = "FINISHED" if state in ("finished", "pruned") else "FAILED" if state == "failed" else "KILLED"
        tags = {"babeltune.state": state, "babeltune.reason": end.text, "babeltune.best_report": row.best or 0}
        self.tracker.end_trial(number, status, {**tags, **self.facts.get(number, {})})


def _beginning(place: Path) -> str:
    """How the trial in this folder begins: anew, or with which of its checkpoints."""
    reports = read_reports(place)
    last = [checkpoint_folder(place, reports[-1].index)] if reports else []
    there = [checkpoint for checkpoint in (*last, stopped_folder(place)) if checkpoint.exists()]
    damaged = ", ".join(str(checkpoint) for checkpoint in there if not is_good(checkpoint))
    if damaged:
        return f"goes on without its latest checkpoint, which is damaged: {damaged}"
    return f"goes on after {len(reports)} reports" if reports or there else "begins"
