"""Months of queries, with and without drift: how often `babeltune check` ends with 4, by the share that drifts.

The text is real news in three languages and English. The best trial of `python -m benchmarks.afternoon --place FOLDER`
encodes it once. Each month draws a training sample and other texts as queries. A month with drift has a share of them
replaced by real texts of another kind. `python -m benchmarks.drift FOLDER --json docs/measured/drift.json` also writes
the table of `docs/how-to/promote.md`. It fails if a quiet month has an alarm."""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from babeltune.errors import plural
from babeltune.promotion.drift import SAMPLE, Sample, drifts, sample_of
from benchmarks.__main__ import commit
from benchmarks.afternoon import DATA, texts, trial_at
from benchmarks.figures import Figures

ROOT = Path(__file__).parents[1]
LANGUAGES = ("fra", "deu", "jpn")  # of quiet months, each with its English translations
SHARES = (0.02, 0.05, 0.1, 0.2)  # of the queries that drift
FOUND = 0.95  # the share of months with an alarm from which on a drift counts as found
LONG = 10  # a long text is among the longest tenth of its language


def main() -> None:
    """Counts the alarms, and writes the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", type=Path, help="the folder of the afternoon")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the corpora")
    parser.add_argument("--months", type=int, default=100, help="of each kind and share")
    parser.add_argument("--queries", type=int, default=2_000, help="of a month")
    parser.add_argument("--pairs", type=int, default=1_500, help="of each language, from which months are drawn")
    parser.add_argument("--json", type=Path, help=f"the record; {FIGURES.record.name} also writes the page")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"no corpora in {options.data}; set BABELTUNE_DATA to the folder of the shared data")
    with trial_at(options.place, 0) as model:
        kinds = {
            kind: sample_of(model, kind_texts, kind)
            for kind, kind_texts in kinds_of_text(options.data, options.pairs).items()
        }
    usual = kinds.pop("none")
    rows = [drift_row(usual, usual, "none", 0.0, options)]
    rows += [drift_row(usual, other, kind, share, options) for kind, other in kinds.items() for share in SHARES]
    record = {
        "commit": commit(),
        "months": options.months,
        "queries": options.queries,
        "trained": min(SAMPLE, len(usual.vectors) - options.queries),
        "rows": rows,
    }
    print(table(record))
    if options.json:
        FIGURES.keep(record, options.json)
    if rows[0]["alarms"]:
        raise SystemExit(f"false alarms in {plural(rows[0]['alarms'], 'month')}")


def kinds_of_text(data: Path, pairs: int) -> dict[str, list[str]]:
    """The texts of quiet months, and those of each kind of drift. No text is of two kinds."""
    news = {language: texts(data, language, 3 * pairs) for language in LANGUAGES}
    usual, later = (
        [[pair[side] for pair in pairs_of[part]] for pairs_of in news.values() for side in (0, 1)]
        for part in (slice(pairs), slice(pairs, None))
    )
    spanish, khmer = ([left for left, _ in texts(data, language, pairs)] for language in ("spa", "khm"))
    documentation = [
        [pair[side] for pair in texts(data, language, pairs // 4, "python_docs")]
        for language in ("fra", "jpn")
        for side in (0, 1)
    ]
    columns = {
        "none": usual,
        "Spanish": [spanish],
        "documentation": documentation,
        "long texts": [sorted(column, key=len)[-len(column) // LONG :] for column in later],
        "unknown script": [khmer],
    }
    seen_texts: set[str] = set()
    kinds = {}
    for kind, some in columns.items():
        kinds[kind] = [
            text for text in dict.fromkeys(text for column in some for text in column) if text not in seen_texts
        ]
        seen_texts.update(kinds[kind])
    return kinds


def drift_row(usual: Sample, other: Sample, kind: str, share: float, options: argparse.Namespace) -> dict[str, Any]:
    """The months with an alarm, and how many of them each test had a part in."""
    count = round(share * options.queries)
    months = [compared(usual, other, options.queries, count, month) for month in range(options.months)]
    alarms = sum(map(bool, months))
    print(f"{kind}, {share:g}: an alarm in {alarms} of {plural(options.months, 'month')}", flush=True)
    return {
        "kind": kind,
        "share": share,
        "alarms": alarms,
        "tests": Counter(test for month in months for test in month),
    }


def compared(usual: Sample, other: Sample, queries: int, count: int, seed: int) -> tuple[str, ...]:
    """The kinds of drift that a month shows in which this number of queries is from `other`."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(usual.vectors))
    now = rows_of(usual, order[: queries - count])
    if count:
        now = union_of(now, rows_of(other, random.permutation(len(other.vectors))[:count]))
    return drifts(rows_of(usual, order[queries:][:SAMPLE]).profile(), now).drifted


def rows_of(sample: Sample, places: np.ndarray) -> Sample:
    """Some of the texts."""
    return replace(sample, **{name: values[places] for name, values in vars(sample).items()})


def union_of(sample: Sample, other: Sample) -> Sample:
    """The texts of both."""
    return replace(
        sample, **{name: np.concatenate([values, getattr(other, name)]) for name, values in vars(sample).items()}
    )


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    lines = [f"| of the queries | {shares} | found from | by |", f"|---|{'--:|' * len(SHARES)}--:|---|"]
    for kind in dict.fromkeys(row["kind"] for row in record["rows"] if row["share"]):
        rows = [row for row in record["rows"] if row["kind"] == kind]
        hits = [row for row in rows if row["alarms"] >= FOUND * record["months"]]
        least = f"{hits[0]['share']:.0%}" if hits else "none"
        tests = ", ".join(sorted(hits[0]["tests"], key=lambda test: -hits[0]["tests"][test])) if hits else ""
        lines.append(f"| {kind} | {' | '.join(str(row['alarms']) for row in rows)} | {least} | {tests} |")
    quiet = record["rows"][0]["alarms"]
    return "\n".join(lines) + (
        f"\n\nMonths with an alarm among {record['months']} of {record['queries']:,} queries each, if this share of "
        f"them drifts. A share is found if at least {FOUND:.0%} of its months have an alarm. Without drift "
        f"{plural(quiet, 'month')} of {record['months']} had one.\n"
    )


FIGURES = Figures("drift", "docs/how-to/promote.md", "drift", table)


if __name__ == "__main__":
    main()
