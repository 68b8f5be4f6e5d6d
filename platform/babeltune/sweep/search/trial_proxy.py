"""A trial as Ray Tune sees it. Its process imports neither torch nor Optuna, so that it is there in a moment."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import ray
from ray import tune

from babeltune.sweep.state.lease_actor import NAMESPACE


class TrialProxy(tune.Trainable):  # type: ignore[misc]
    """A trial as Tune sees it: each report that its worker group hands to the dispatcher is one step.

    It only watches. The searcher alone stops a trial: Tune may throw away an actor that it has just started for a
    trial, because a used one became free for it.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._dispatcher = ray.get_actor(config["dispatcher"], namespace=NAMESPACE)
        self._trial, self._objectives = config["trial"], config["objectives"]
        self._seen = 0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Watches the next trial."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        answer = self._next()
        if "ended" in answer:
            return self._ended(answer["ended"])
        report = answer["report"]
        values = {name: report["metrics"].get(name) for name in self._objectives}
        if not finite(values.values()):
            bad = ", ".join(f"{name} is {value}" for name, value in values.items() if not finite([value]))
            return {"done": True, "failed": f"objective {bad} at report {report['index']}"}
        result = {"reports": report["index"], "objective": values[self._objectives[0]], "report": json.dumps(report)}
        if collapsed := report.get("facts", {}).get("collapsed"):
            return result | {"done": True, "pruned": collapsed}
        if report.get("last"):
            result |= {"last": True, **self._ended(self._next()["ended"])}
        return result

    def _next(self) -> dict[str, Any]:
        """The report after the last one, or the trial's end."""
        answer: dict[str, Any] = ray.get(self._dispatcher.next_report.remote(self._trial, self._seen))
        if "report" in answer:
            self._seen = answer["report"]["index"]
        return answer

    def _ended(self, reason: str | None) -> dict[str, Any]:
        """A trial that ended without its last report has neither `failed` nor `last`: it is left to be resumed."""
        return {"done": True, "failed": reason} if reason is not None else {"done": True}


def finite(values: Iterable[Any]) -> bool:
    """Whether every value is a finite number."""
    return all(isinstance(v, int | float) and math.isfinite(v) for v in values)
