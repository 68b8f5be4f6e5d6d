"""Records that a sweep's driver begins and leaves, and tells in `driver.log` what its trials do. MLflow follows the
sweep's own log (`mlflow_reader.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from babeltune.data.contamination import contaminated
from babeltune.data.prepared import Prepared
from babeltune.data.store import facts_of
from babeltune.errors import plural
from babeltune.files import plain
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report, Scalar, Sweep
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.search.tune_searcher import Event
from babeltune.sweep.state.fencing import OvertakenError
from babeltune.sweep.state.folder import SweepFolder, add_to_ledger
from babeltune.sweep.state.leaderboard import trial_row
from babeltune.sweep.state.messages import ENDED, Holder, State, Submission, TrialEnd, TrialOutcome
from babeltune.sweep.state.provenance import environment_facts
from babeltune.sweep.sync.audit import accountable
from babeltune.tracking.tracker import Tracker
from babeltune.training.checkpoint import checkpoint_folder, is_good, last_stopped, read_reports

FINAL_WAIT_S, INTERRUPTED_WAIT_S = 60.0, 10.0
"""Seconds that a sweep waits at its end for MLflow to take everything, and after Ctrl-C."""


def contamination_words(counts: Mapping[str, object]) -> dict[str, str]:
    """Which sets are contaminated, in words, such as `dev.everyday`."""
    by_kind = ((kind, contaminated(counts, kind)) for kind in ("dev", "test"))
    return {f"{kind}.{name}": words for kind, sets in by_kind for name, words in sets.items()}


def close_tracker(tracker: Tracker, folder: SweepFolder, wait_s: float = FINAL_WAIT_S) -> None:
    """Waits `wait_s` seconds for MLflow and records what it has not taken."""
    tracker.flush(wait_s)
    unsent, trouble = tracker.waiting(), tracker.trouble
    try:
        folder.write("tracking.json", {"unsent_bytes": unsent, "refused": tracker.refused, "trouble": trouble})
    finally:
        tracker.close(timeout=0 if unsent else 10)


class Recorder:
    """Records the driver's own events, and tells the trials' in words."""

    def __init__(
        self,
        sweep: Sweep,
        folder: SweepFolder,
        prepared: Prepared,
        tracker: Tracker,
        world: dict[str, Scalar],
        cluster: Cluster,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        """`world` says how every trial runs: its world size and backend. `policy` hears of each trial that ends."""
        self.sweep, self.folder, self.prepared, self.tracker = sweep, folder, prepared, tracker
        self.world, self.policy = world, policy
        self.metrics = None if cluster.mlflow_metrics == "all" else cluster.mlflow_metrics
        """How many of a trial's metrics MLflow gets; None: all."""
        user, by_system = accountable()
        shares = cluster.workers * cluster.cpus_per_worker, cluster.workers * cluster.gpus
        self.holder: Holder = {"user": user, "by_system": by_system, "cpus": shares[0], "gpus": shares[1]}
        self.open: set[int] = set()  # trials that began and have not ended
        self.complete = False  # whether the sweep ended with all of its trials

    def __enter__(self) -> Recorder:
        add_to_ledger(self.folder, "submit", **self._submission())
        if self.policy is not None:
            self.policy.catch_up()
        return self

    def _submission(self) -> Submission:
        """The sweep as it is from now on."""
        prepared, facts = self.prepared, self.folder.read("facts.json") or {}
        taught = facts_of(Path(prepared.teacher)) if prepared.teacher else {}
        return {
            "spec": plain(self.sweep),
            "facts": facts,
            "digests": prepared.digests,
            "environment": {**environment_facts(), "data": prepared.digest},
            "contaminated": contamination_words(prepared.counts),
            "teacher": {name: taught[name] for name in ("forwarded", "truncated") if name in taught},
            "world": self.world,
            "mlflow_metrics": self.metrics,
            "holder": self.holder,
        }

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
        raised = error[1]
        stopped = isinstance(raised, KeyboardInterrupt) or (raised is None and not self.complete)
        with contextlib.suppress(OSError):  # a storage that refuses is what it ended with
            for number in sorted(self.open):
                add_to_ledger(self.folder, "stop", number=number)
                self.end(number, "stopped", TrialEnd("stopped"))
            if self.policy is not None:
                self.policy.catch_up()
            state = "stopped" if stopped else "finished" if raised is None else "failed"
            add_to_ledger(self.folder, "leave", state=state)
        wait_s = INTERRUPTED_WAIT_S if isinstance(raised, KeyboardInterrupt) else FINAL_WAIT_S
        close_tracker(self.tracker, self.folder, wait_s)

    def on_event(self, _: str, number: int, event: Event) -> None:
        """Notes a trial's start or its end."""
        if isinstance(event, TrialOutcome):
            self.end(number, event.state, event.end)
        elif not isinstance(event, Report):
            self.open.add(number)
            self.folder.note(f"{self.folder.trial(number).name} {_beginning(self.folder.trial(number))}")

    def end(self, number: int, state: State, end: TrialEnd) -> None:
        """Notes the end of a trial, or that it was stopped."""
        place = self.folder.trial(number)
        self.open.discard(number)
        row, reason = trial_row(place, *self.sweep.objectives), f" ({end.text})" if end.text else ""
        metrics = [o.metric for o in self.sweep.objectives if o.metric in row.metrics]
        best = "".join(f" {metric} {row.metrics[metric]:.4f}" for metric in metrics)
        self.folder.note(f"{place.name} {state} after {plural(row.reports, 'report')}{best}{reason}")
        if state in ENDED and self.policy is not None:
            self.policy.ended(row)


def _beginning(place: Path) -> str:
    """How the trial in this folder begins: anew, or with which of its checkpoints."""
    reports = read_reports(place)
    last = [checkpoint_folder(place, reports[-1].index)] if reports else []
    checkpoints = [checkpoint for checkpoint in (*last, last_stopped(place)) if checkpoint.exists()]
    damaged = ", ".join(str(checkpoint) for checkpoint in checkpoints if not is_good(checkpoint))
    if damaged:
        return f"goes on without its latest checkpoint, which is damaged: {damaged}"
    return f"goes on after {plural(len(reports), 'report')}" if reports or checkpoints else "begins"
