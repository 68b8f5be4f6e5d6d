"""How far a sweep is, as metrics of Ray: each node's `/metrics` has them for Prometheus, beside Ray's own.

`clusters/grafana/sweep.json` shows them. A Ray that babeltune starts has no such server, and then they go nowhere."""

import time
from collections import Counter as Counts
from typing import Literal, get_args

from ray.util.metrics import Counter, Gauge

from babeltune.schema.records import Sweep
from babeltune.sweep.state.log import SweepLog
from babeltune.sweep.state.messages import State

INTERVAL_S = 5.0
"""Seconds between two looks at reports. A look takes longer with more trials, and Ray sends its metrics every ten."""


class SweepGauges:
    """The metrics of one sweep. Prometheus has their names with `ray_` before them."""

    def __init__(self, sweep: Sweep, name: str) -> None:
        """`name` is the sweep's id."""
        self._objectives, self._sweep = sweep.objectives, {"sweep": name}
        self._trials = Gauge("babeltune_trials", "Trials, by their state", ("sweep", "state"))
        self._best = Gauge("babeltune_best", "The best of the trials' last values", ("sweep", "metric"))
        self._pairs = Counter("babeltune_pairs_total", "Pairs seen since the driver began", ("sweep",))
        self._seen: int | None = None  # pairs at the last look, those before the driver included
        self._looked = 0.0

    def show(self, kind: Literal["start", "report", "end"], log: SweepLog) -> None:
        """Sets them after an event of a trial, as the sweep's log is now."""
        if kind == "report" and time.monotonic() - self._looked < INTERVAL_S:
            return
        self._looked, trials = time.monotonic(), list(log.trials.values())
        states = Counts(trial.state for trial in trials)
        for state in get_args(State):
            self._trials.set(states[state], {**self._sweep, "state": state})
        reports = [trial.logged[max(trial.logged)] for trial in trials if trial.logged]
        for objective in self._objectives:
            best = max if objective.goal == "maximize" else min
            values = [each.metrics[objective.metric] for each in reports if objective.metric in each.metrics]
            if values:
                self._best.set(best(values), {**self._sweep, "metric": objective.metric})
        before, self._seen = self._seen, sum(report.pairs for report in reports)
        if before is not None and self._seen > before:
            self._pairs.inc(self._seen - before, self._sweep)
