"""Rules that stop a trial early, from its reports and those of the others. `tune_run.py` asks them at each report.

They are pure: a number, a report and a value go in, a verdict comes out. The same reports in the same order give the
same verdicts, so a resumed sweep shows them its ledger. A larger value is a better one."""

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

import numpy as np

from babeltune.schema import search
from babeltune.schema.search import Scheduler

LEAST_FINISHED = 3  # trials through which a line and its spread can be fitted


class Stopping(Protocol):
    """A rule that stops trials."""

    def stops(self, number: int, report: int, value: float) -> bool:
        """Whether trial `number` ends at this report, whose objective is `value`."""


@dataclass
class Pasha:
    """Progressive ASHA (Bohdal et al. 2023): trials end at a rung that moves up only if it must.

    It moves up when the last two rungs rank the trials that reached both differently. Below it, successive halving
    stops a trial that is not among the best of its rung."""

    grace: int
    reduction: int
    reports: int
    top: int = 1  # the index of the rung at which trials end
    values: dict[int, dict[int, float]] = field(default_factory=dict)  # rung -> trial -> value

    @property
    def rungs(self) -> list[int]:
        """The reports at which trials are judged; the last report is one."""
        powers = (self.grace * self.reduction**k for k in range(self.reports))
        return [*(rung for rung in powers if rung < self.reports), self.reports]

    def stops(self, number: int, report: int, value: float) -> bool:
        rungs = self.rungs
        if report not in rungs:
            return False
        here = self.values.setdefault(report, {})
        others = [other for its, other in here.items() if its != number]
        here[number] = value
        place = rungs.index(report)
        if place >= self.top and not self._agree(rungs):
            self.top = min(self.top + 1, len(rungs) - 1)
        if place >= self.top:
            return True
        return bool(others and value < np.percentile(others, 100 * (1 - 1 / self.reduction)))

    def _agree(self, rungs: list[int]) -> bool:
        """Whether the last two rungs rank their trials alike."""
        below, last = (self.values.get(rungs[place], {}) for place in (self.top - 1, self.top))
        both = [number for number in last if number in below]
        return sorted(both, key=lambda n: below[n]) == sorted(both, key=lambda n: last[n])


@dataclass
class RegretRule:
    """Stops a trial when little is lost by it: when its last report is expected to gain less than `regret`.

    A line through the trials that made all reports says where a value at this report leads, and how surely. The gain is
    the expected improvement on the best of all reports, as in Bayesian optimisation (Jones et al. 1998)."""

    reports: int
    grace: int
    regret: float
    startup: int = LEAST_FINISHED
    values: dict[int, dict[int, float]] = field(default_factory=dict)  # trial -> report -> value

    def stops(self, number: int, report: int, value: float) -> bool:
        self.values.setdefault(number, {})[report] = value
        finished = [reports for reports in self.values.values() if {report, self.reports} <= reports.keys()]
        if report < self.grace or report >= self.reports or len(finished) < max(self.startup, LEAST_FINISHED):
            return False
        best = max(max(reports.values()) for reports in self.values.values())
        early, last = (np.array([reports[index] for reports in finished]) for index in (report, self.reports))
        mean, deviation = predicted(early, last, value)
        return expected_improvement(mean, deviation, best) < self.regret


def predicted(early: np.ndarray, last: np.ndarray, value: float) -> tuple[float, float]:
    """Mean and standard deviation of the last value that an early one leads to, by a line whose slope is 0 to 1.

    A steeper line than 1 would promise a lead that grows."""
    spread = early - early.mean()
    slope = float(np.clip(spread @ (last - last.mean()) / max(float(spread @ spread), 1e-12), 0, 1))
    rest = last - last.mean() - slope * spread
    return float(last.mean() + slope * (value - early.mean())), math.sqrt(float(rest @ rest) / (len(rest) - 2))


def expected_improvement(mean: float, deviation: float, best: float) -> float:
    """By how much a normal value is expected to exceed the best; what does not exceed it counts as 0."""
    if deviation == 0:
        return max(mean - best, 0.0)
    z, unit = (mean - best) / deviation, NormalDist()
    return (mean - best) * unit.cdf(z) + deviation * unit.pdf(z)


def rule_of(scheduler: Scheduler, reports: int) -> Stopping:
    """The rule that the section `scheduler` names, for trials of `reports` reports."""
    if isinstance(scheduler, search.ExpectedRegret):
        return RegretRule(reports, scheduler.grace, scheduler.regret, scheduler.finished)
    return Pasha(grace=scheduler.grace, reduction=scheduler.reduction, reports=reports)
