"""The standard error of a dev metric, by the rows of the tasks behind it. Loads no model and no library for one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from babeltune.data.prepared import IdTask, Prepared
from babeltune.promotion.statistics import standard_error


def error_of(metric: str, value: float, prepared: Prepared) -> float | None:
    """The standard error of a dev metric with this value; None for a metric whose error is not known."""
    named = metric.split("/")[1:-1]
    tasks = [t for t in prepared.tasks if named in ([t.name], [t.group], [t.name, t.subset])]
    return standard_error(metric, value, distinct_rows(tasks))


def distinct_rows(tasks: Sequence[IdTask]) -> int:
    """How many rows the tasks have. Translations of one another count once: languages of a multi-way set share a
    side, its grades or its labels, so they are no independent evidence."""
    sets: list[tuple[set[Hashable], int]] = []
    for task in tasks:
        rows = len(task.left)
        sides = (("text", task.left), ("text", task.right[:rows]), ("grades", task.scores), ("labels", task.labels))
        own: set[Hashable] = {side for side in sides if side[1]}
        joined = own.union(*(known for known, _ in sets if known & own))
        sets = [(joined, rows), *(one for one in sets if not one[0] & own)]
    return sum(rows for _, rows in sets)
