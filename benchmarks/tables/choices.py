"""Which row to take for what: the part of a page that compares all rows with the best."""

import statistics
from collections import Counter
from collections.abc import Sequence

from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.sweep.state.leaderboard import SPEED_NOISE
from benchmarks.tables.definition import MEGABYTES, Record
from benchmarks.tables.verdict import logged_of, mean_of, table_of, verdict

CHOICE = "## Which to take"
CHOOSING = """\
A row is level with the best if an interval of their difference reaches zero, over seeds or over sentences. Each row has
the learning rate that suits it. The best is chosen by the scores that are shown, so its own score is a little too
high."""
NO_STUDENT = "student={}"  # the change by which a row trains layers on its teacher
FEW = 2  # rows that a sentence names


def choices_of(record: Record) -> str:
    """For each use, which row to take, and which are level with it."""
    titles = {column["metric"]: column["title"] for column in record["columns"]}
    values = {row["name"]: row["values"] for row in record["rows"]}
    rows = [
        [
            use["use"],
            titles[use["metric"]],
            f"**{use['best']}**",
            mean_of(values[use["best"]][use["metric"]]),
            ", ".join(level(use, record)) or "none",
        ]
        for use in record["uses"]
    ]
    return table_of(["you want to", "score", "take", "its score", "level with it"], rows)


def level(use: Record, record: Record) -> list[str]:
    """The rows that are not shown to be below the best one. Each may have the learning rate that suits it."""
    return [other["worse"] for other in use["others"] if verdict({**other, "searched": []}, record).outcome != "holds"]


def advice_on(record: Record) -> list[str]:
    """The conclusion of the table of choices."""
    first = Counter(name for use in record["uses"] for name in (use["best"], *level(use, record)))
    most, uses = max(first.values()), len(record["uses"])
    sentences = [
        f"`{row['name']}` is best, or level with the best, for {most} of {uses} uses."
        for row in record["rows"]
        if first[row["name"]] == most
    ]
    sentences.append(
        f"{len(record['rows']) - len(first)} of {len(record['rows'])} rows are behind the best for every use."
    )
    return [" ".join([*sentences, *speeds_of(record), *_sizes(record)])]


def _sizes(record: Record) -> list[str]:
    """The smallest and the largest exported folder."""
    by_size: dict[float, list[str]] = {}
    for row in record["rows"]:
        if MEGABYTES in row["logged"]:
            by_size.setdefault(round(statistics.fmean(row["logged"][MEGABYTES]), 1), []).append(row["name"])
    if not by_size:
        return []
    least, most = (
        f"{pick(by_size):,.1f}{unit} ({_row_names(by_size[pick(by_size)])})" for pick, unit in ((min, " MB"), (max, ""))
    )
    return [f"From {least} to {most}."]


def _is_layer(row: Record) -> bool:
    """Whether it has no student of its own: then layers are trained on the teacher."""
    return NO_STUDENT in row["changes"]


def speeds_of(record: Record) -> list[str]:
    """Groups of rows that differ in speed by more than the machine's noise, the slowest first.

    Rows with equally many parameters are one architecture. The largest ratio of their speeds, over all seeds, is
    noise. A row joins the group of the next slower one if the ratio of their speeds is no larger. A layer on a frozen
    encoder is left out, as its speed is not the model's."""
    rows = [row for row in record["rows"] if {SPEED, PARAMETERS} <= row["logged"].keys() and not _is_layer(row)]
    if not rows:
        return []
    alike: dict[float, list[float]] = {}
    for row in rows:
        alike.setdefault(statistics.fmean(row["logged"][PARAMETERS]), []).extend(row["logged"][SPEED])
    noise = max(1 + SPEED_NOISE, *(max(speeds) / min(speeds) for speeds in alike.values()))
    groups: list[list[Record]] = []
    for row in sorted(rows, key=lambda row: min(row["logged"][SPEED])):
        if groups and min(row["logged"][SPEED]) <= noise * max(max(member["logged"][SPEED]) for member in groups[-1]):
            groups[-1].append(row)
        else:
            groups.append([row])
    parts = [f"{_range(group)} ({_row_names([row['name'] for row in group])})" for group in groups]
    return [
        f"Sentences a second: {', then '.join(parts)}.",
        f"Measurements of one architecture may differ by a factor of {noise:.2f}, so a group has no order.",
    ]


def _range(group: Sequence[Record]) -> str:
    ends = [pick(speed for row in group for speed in row["logged"][SPEED]) for pick in (min, max)]
    return " to ".join(dict.fromkeys(logged_of(SPEED, [end]) for end in ends))


def _row_names(names: Sequence[str]) -> str:
    """A few rows by name, and more by their number."""
    return ", ".join(f"`{name}`" for name in names) if len(names) <= FEW else f"{len(names)} rows"
