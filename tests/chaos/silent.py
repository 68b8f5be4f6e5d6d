"""A worker group's trial function: the next trial's second report has its objective as an order's next line says, or
not at all (`null`)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from babeltune.schema.records import Report
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers import run_trial


class Silent:
    """A reporter that forgets."""

    def __init__(self, reporter: Any, objective: str, orders: Path) -> None:
        self._reporter, self._objective, self._orders = reporter, objective, orders

    def report(self, report: Report) -> bool:
        order = self._orders / "objectives"
        if report.index == 2 and (lines := order.read_text(encoding="utf-8").splitlines()):
            value = json.loads(lines[0])
            order.write_text("\n".join(lines[1:]), encoding="utf-8")
            others = {k: v for k, v in report.metrics.items() if k != self._objective}
            report = replace(report, metrics=others if value is None else {**others, self._objective: value})
        return bool(self._reporter.report(report))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)


def run(assignment: TrialAssignment, reporter: Any, rank: int, world: int, device: str) -> None:
    """`babeltune.sweep.workers.run_trial:run` with that reporter."""
    values = assignment.trial
    silent = Silent(reporter, values["objectives"][0]["metric"], Path(values["config"]["folder"]))
    run_trial.run(assignment, silent, rank, world, device)
