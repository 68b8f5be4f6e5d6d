"""A lane's trial function whose first trial leaves its objective out of its second report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from babeltune.engine import trial


class Silent:
    """A reporter that forgets."""

    def __init__(self, reporter: Any, objective: str, orders: Path) -> None:
        self._reporter, self._objective, self._orders = reporter, objective, orders

    def report(self, report: dict[str, Any]) -> bool:
        order = self._orders / "silent"
        if report["index"] == 2 and order.exists():
            order.unlink()
            report = {**report, "metrics": {k: v for k, v in report["metrics"].items() if k != self._objective}}
        return bool(self._reporter.report(report))


def run(payload: dict[str, Any], reporter: Any, rank: int, world: int, device: str) -> None:
    """`babeltune.engine.trial:run` with that reporter."""
    values = payload["trial"]
    silent = Silent(reporter, values["objectives"][0]["metric"], Path(values["config"]["folder"]))
    trial.run(payload, silent, rank, world, device)
