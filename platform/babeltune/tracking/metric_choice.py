"""Chooses the metrics of a trial that become charts of MLflow. Hundreds of charts would hide the few that decide."""

from collections.abc import Iterable, Mapping


def best_name(metric: str) -> str:
    """The metric of MLflow that has the best value so far of the sweep's first objective.

    MLflow's page of charts has a section for each first part of a name, in alphabetical order: it comes first."""
    return f"best/{metric}"


class MetricChoice:
    """Chooses which metrics of a trial MLflow gets: the `limit` most important ones, or all if it is None.

    Objectives are always among them. A metric that was chosen stays chosen. `_rank` has the order."""

    def __init__(self, objectives: Iterable[str], limit: int | None) -> None:
        names = tuple(objectives)
        self.objectives, self.limit = (*map(best_name, names[:1]), *names), limit
        self.chosen: set[str] = set()
        self.left_out: set[str] = set()

    def see(self, names: Iterable[str]) -> None:
        """Takes metrics of one report into account, the most important ones first."""
        new = [name for name in dict.fromkeys(names) if name not in self.chosen]
        for name in sorted(new, key=self._rank):
            full = self.limit is not None and len(self.chosen) >= self.limit and name not in self.objectives
            (self.left_out if full else self.chosen).add(name)

    def of(self, values: Mapping[str, float]) -> dict[str, float]:
        """Those values that MLflow gets."""
        return {name: value for name, value in values.items() if name in self.chosen}

    def _rank(self, name: str) -> int:
        """Objectives, the loss, scores over all languages, other training metrics, the machine's, single languages."""
        kind, parts = name.partition("/")[0], name.count("/")
        if name in self.objectives:
            return 0
        if name == "train/loss":
            return 1
        if kind == "dev" and parts <= 2:
            return 2 if any(name.endswith(f"/{objective.rpartition('/')[2]}") for objective in self.objectives) else 3
        if kind != "dev" and kind != "system":
            return 4
        if kind == "system":
            return 6
        return 5 if any(name.endswith(f"/{objective.rpartition('/')[2]}") for objective in self.objectives) else 7
