"""The sealed scores of a pretrained student as a table of docs/how-to/choose-a-student.md.

`babeltune promote SWEEP --json | python -m benchmarks.sealed` writes it, and docs/measured/sealed.json. Models to
buy that the sweep has as `baselines` are rows, too."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from babeltune.evaluation.metric_names import MAIN_METRICS
from babeltune.promotion.verdict import AGAINST_BASELINE
from benchmarks.__main__ import commit
from benchmarks.figures import Figures

AGAINST = tuple(f"{words} the baseline" for words in AGAINST_BASELINE.values())
"""Beginnings of what promotion says of a model to buy."""


def main_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """The means of each sealed set: `test/tatoeba/accuracy`."""
    return {
        name: value
        for name, value in scores.items()
        if name.count("/") == 2 and name.rpartition("/")[2] in MAIN_METRICS
    }


def record_of(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the student, of its start and of the models to buy, and what promotion says of these."""
    baselines = {"the start, untrained": decision["untrained"], **decision["baselines"]}
    rows = {name: main_scores(scores) for name, scores in {**baselines, "the student": decision["test"]}.items()}
    reasons = [reason for reason in decision["reasons"] if reason.startswith(AGAINST)]
    return {
        "commit": commit(),
        "sweep": decision["sweep"],
        "verdict": decision["verdict"],
        "rows": rows,
        "said": reasons,
    }


def table(record: Mapping[str, Any]) -> str:
    """The scores as Markdown, and a line for each comparison."""
    names = list(record["rows"]["the student"])
    heads = ["", *(name.removeprefix("test/").replace("/", ", ") for name in names)]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' --: |' * len(names)}"]
    for title, scores in record["rows"].items():
        lines.append(f"| {' | '.join([title, *(f'{scores[name]:.3f}' for name in names)])} |")
    return "\n".join([*lines, "", *(f"* {reason}" for reason in record["said"])]) + "\n"


FIGURES = Figures("sealed", "docs/how-to/choose-a-student.md", "sealed", table)


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    decision = json.load(sys.stdin)
    if not decision["test"]:
        sys.exit(f"{decision['sweep']}: {decision['verdict']}, and no sealed scores: promoted before")
    FIGURES.keep(record_of(decision))


if __name__ == "__main__":
    main()
