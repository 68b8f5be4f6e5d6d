"""The front of `search_spaces/ladder.yaml` as a table of docs/how-to/promote.md.

`babeltune runs ladder --json | python -m benchmarks.ladder` writes it, and docs/measured/ladder.json."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import commit
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
SHOWN = {
    "NTREX": "dev/ntrex/accuracy",
    "search": "dev/search/ndcg_at_10",
    "STS": "dev/sts/spearman",
    "topics": "dev/topics/ari",
}
PARAMETERS, SPEED = "model/parameters", "model/sentences_per_second"
SETTINGS = ("student.kind", "student.keep_layers", "student.vocabulary")


def record_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the table: trials by their student, other models by their name. A teacher has no size."""
    students = []
    for row in rows:
        params, metrics = row["params"], row["metrics"]
        if PARAMETERS in metrics:
            scores = {title: metrics[metric] for title, metric in SHOWN.items()}
            student = {name: params[name] for name in SETTINGS if name in params}
            size = {"parameters": metrics[PARAMETERS], "speed": metrics[SPEED]}
            students.append({"name": row["name"], "student": student, **size, "scores": scores})
    return sorted(students, key=lambda row: row["parameters"])


def words_of(row: Mapping[str, Any]) -> str:
    """A row's student in words."""
    student = row["student"]
    if not student:
        return str(row["name"])
    if student["student.kind"] == "static":
        return f"static, {student['student.vocabulary']:,} tokens"
    return f"{student['student.keep_layers']} layers, trimmed"


def table(record: Mapping[str, Any]) -> str:
    """Size, speed and dev scores of each student, the smallest first, as Markdown."""
    heads = ["student", "million weights", "MB", "sentences/s", *SHOWN]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' --: |' * (len(heads) - 1)}"]
    for row in record["rows"]:
        millions = row["parameters"] / 1e6
        cells = [words_of(row), f"{millions:.1f}", f"{4 * millions:.0f}", f"{row['speed']:,.0f}"]
        lines.append(f"| {' | '.join([*cells, *(f'{score:.3f}' for score in row['scores'].values())])} |")
    return "\n".join(lines) + "\n"


FIGURES = Figures("ladder", "docs/how-to/promote.md", "ladder", table)


def main() -> None:
    try:
        rows = record_of(json.load(sys.stdin))
    except (ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"standard input is not what `babeltune runs SWEEP --json` prints ({error!r})") from error
    if not rows:
        raise SystemExit(
            "no row on standard input has a size: pipe `babeltune runs SWEEP --json` of a sweep that has run"
        )
    record = {"commit": commit(), "rows": rows}
    FIGURES.keep(record)


if __name__ == "__main__":
    main()
