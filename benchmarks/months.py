"""Months in which a challenger meets the champion: how often promotion's own comparison is wrong, by its confidence.

Two trials of the afternoon's sweep encode NTREX once. A model of a month gives the better trial's answer to a share of
the sentences, and the worse one's to the rest. So the truth is known: it is the share. Each month draws sealed tests
with replacement, a champion, and a challenger that is equal, worse or better. `promotion.compare.compare` decides, as
in `promote`. A promotion is wrong if the challenger is not better in truth. After `python -m benchmarks.afternoon
--place FOLDER`, `python -m benchmarks.months FOLDER --json docs/measured/months.json` also writes the table of
`docs/how-to/promote.md`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from babeltune.data.eval_sets import read_eval, subsets
from babeltune.data.prepared import TextTask
from babeltune.evaluation.evaluate import embedded_texts
from babeltune.files import json_text
from babeltune.promotion.compare import Outcomes, compare, outcomes
from babeltune.promotion.fresh_scorer import encoder_of
from babeltune.schema.records import Bitext, Promotion, TsvSource
from benchmarks.__main__ import commit
from benchmarks.afternoon import DATA, trial_at
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
LANGUAGES = ("fra", "deu", "jpn")
CONFIDENCES = (0.95, 0.99, 0.999)
CHAMPION = 0.5  # the share of sentences to which the champion gives the better trial's answer
CHALLENGERS = {"equal": 0.5, "slightly worse": 0.45, "slightly better": 0.55, "clearly better": 0.9}


def main() -> None:
    """Decides each month, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, help="the folder of the afternoon")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the corpora")
    parser.add_argument("--months", type=int, default=1_000, help="of each challenger")
    parser.add_argument("--items", type=int, default=1_000, help="of each sealed bitext")
    parser.add_argument("--json", type=Path, help=f"the record; {FIGURES.record.name} also writes the page")
    options = parser.parse_args()
    tasks = tasks_of(options.data)
    answers_by_trial = answers_of(options.place, tasks)
    record = {
        "commit": commit(),
        "months": options.months,
        "items": options.items,
        "margin": Promotion().margin,
        "confidences": CONFIDENCES,
        "rows": [challenger_row(tasks, answers_by_trial, kind, options) for kind in CHALLENGERS],
    }
    print(table(json.loads(json_text(record))))
    if options.json:
        FIGURES.keep(record, options.json)


def tasks_of(data: Path) -> list[TextTask]:
    """Translations of news, the same rows in each language."""
    paths = {code: f"ntrex/{code}.tsv.gz" for code in (*LANGUAGES, "eng")}
    return subsets(
        read_eval([Bitext(name="ntrex", source=TsvSource(name="ntrex", id="id", paths=paths))], data), ("eng",)
    )


def answers_of(place: Path, tasks: Sequence[TextTask]) -> tuple[Outcomes, Outcomes]:
    """The outcomes of every sentence by the worst of the three trials that keep their weights, and by the best."""
    by_trial = []
    for rank in (2, 0):
        with trial_at(place, rank) as folder:
            by_trial.append(outcomes(*embedded_texts(tasks, encoder_of(folder)), "test"))
    return by_trial[0], by_trial[1]


def challenger_row(
    tasks: Sequence[TextTask], by_trial: tuple[Outcomes, Outcomes], kind: str, options: argparse.Namespace
) -> dict[str, Any]:
    """How many months promote this challenger at each confidence, and its true gain."""
    share = CHALLENGERS[kind]
    whole = compare(by_trial, tasks, Promotion(), name="the worse trial", on="test").overall[0].difference
    decisions = [decided(tasks, by_trial, share, options.items, month) for month in range(options.months)]
    counts = [sum(month[level] for month in decisions) for level in range(len(CONFIDENCES))]
    print(kind, counts, flush=True)
    return {"kind": kind, "gain": (share - CHAMPION) * whole, "promoted": counts}


def decided(
    tasks: Sequence[TextTask], by_trial: tuple[Outcomes, Outcomes], share: float, items: int, seed: int
) -> list[bool]:
    """Whether a month's challenger is promoted, at each confidence."""
    random = np.random.default_rng(seed)
    rows = random.integers(len(tasks[0].left), size=items)
    champion, challenger = (answers(by_trial, rows, random.random(items) < part) for part in (CHAMPION, share))
    sealed = [replace(task, left=[task.left[row] for row in rows]) for task in tasks]
    rules = [Promotion(confidence=confidence) for confidence in CONFIDENCES]
    return [
        compare((champion, challenger), sealed, rule, name="champion", on="test").verdict == "promote" for rule in rules
    ]


def answers(by_trial: tuple[Outcomes, Outcomes], rows: np.ndarray, better: np.ndarray) -> Outcomes:
    """The outcomes of a model that answers these rows as the second trial, if `better` says so, or as the first."""

    def mixed(sides: Sequence[Sequence[float]]) -> list[float]:
        mixture: list[float] = np.where(better, *(np.array(side)[rows] for side in reversed(sides))).tolist()
        return mixture

    return {
        cell: {side: mixed([trial[cell][side] for trial in by_trial]) for side in sides}
        for cell, sides in by_trial[0].items()
    }


def table(record: dict[str, Any]) -> str:
    """The record as Markdown, and the least confidence without a wrong promotion."""
    levels, rows, months = record["confidences"], record["rows"], record["months"]
    lines = [
        f"| challenger | true gain | {' | '.join(f'at {confidence:g}' for confidence in levels)} |",
        f"|---|--:|{'--:|' * len(levels)}",
    ]
    for row in rows:
        lines.append(
            f"| {row['kind']} | {row['gain']:+.4f} | {' | '.join(f'{count:,}' for count in row['promoted'])} |"
        )
    wrong = [sum(row["promoted"][level] for row in rows if row["gain"] <= 0) for level in range(len(levels))]
    safe = next(
        (f"from {confidence:g}" for confidence, count in zip(levels, wrong, strict=True) if not count),
        "at none of these",
    )
    return "\n".join(lines) + (
        f"\n\nPromotions in {months:,} months, by `promotion.confidence`. Each of three sealed bitexts has "
        f"{record['items']:,} sentences, and the margin is {record['margin']:g}. At {levels[0]:g}, "
        f"{100 * rows[0]['promoted'][0] / months:.1f} of 100 equal challengers are promoted by chance. No challenger "
        f"that is not better is promoted {safe}.\n"
    )


FIGURES = Figures("months", "docs/how-to/promote.md", "months", table)


if __name__ == "__main__":
    main()
