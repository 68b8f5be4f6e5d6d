"""How many independent rows are behind a metric: what its standard error is computed from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from babeltune.data.prepared import IdTask


def tasks_behind(metric: str, tasks: Sequence[IdTask]) -> list[IdTask]:
    """The tasks that a dev metric is the score of, or the mean over."""
    named = metric.split("/")[1:-1]
    return [task for task in tasks if named in ([task.name], [task.group], [task.name, task.subset])]


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
