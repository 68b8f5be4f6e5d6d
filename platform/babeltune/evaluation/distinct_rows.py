"""How many independent rows are behind a metric: what its standard error is computed from."""

from collections.abc import Hashable, Sequence

from babeltune.data.prepared import IdTask


def tasks_behind(metric: str, tasks: Sequence[IdTask]) -> list[IdTask]:
    """The tasks that a dev metric is the score of, or the mean over."""
    parts = metric.split("/")[1:-1]
    return [task for task in tasks if parts in ([task.name], [task.group], [task.name, task.subset])]


def distinct_rows(tasks: Sequence[IdTask]) -> int:
    """How many rows the tasks have. Translations of one another count once: languages of a multi-way set share a
    side, its grades or its labels, so they are no independent evidence."""
    sets: list[tuple[set[Hashable], int]] = []
    for task in tasks:
        rows = len(task.left)
        sides = (("text", task.left), ("text", task.right[:rows]), ("grades", task.scores), ("labels", task.labels))
        row_texts: set[Hashable] = {side for side in sides if side[1]}
        merged = row_texts.union(*(texts for texts, _ in sets if texts & row_texts))
        sets = [(merged, rows), *(one for one in sets if not one[0] & row_texts)]
    return sum(rows for _, rows in sets)
