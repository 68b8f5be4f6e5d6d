"""Months of queries, with and without drift: how often `babeltune check` ends with 4.

The text is the bundled one, and the bundled teacher encodes it. Each month has a training sample and other texts of
the same kind in four languages as queries. A month with drift has some of them replaced: by a fifth language, by one
topic (the nearest neighbours of one text), by two texts joined, or with letters that the tokenizer does not have.
`python -m benchmarks.drift --json docs/measured/drift.json` fails if a quiet month has an alarm, or drift is missed."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import babeltune
from babeltune.data.teacher import teacher_folder
from babeltune.errors import plural
from babeltune.files import json_text, write_whole
from babeltune.promotion.drift import SAMPLE, Sample, compare, sample_of
from babeltune.schema.records import Teacher
from benchmarks.__main__ import commit

BUNDLED = Path(babeltune.__file__).parent / "bundled"
LANGUAGES, NEW = ("eng", "fra", "jpn", "kor"), "rus"
UNKNOWN = " 𓀀𓁐"  # hieroglyphs
TOPIC = 400  # texts about one topic


def main() -> None:
    """Prints and writes the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=int, default=100, help="of each kind")
    parser.add_argument("--queries", type=int, default=2_000, help="of a month")
    parser.add_argument("--share", type=float, default=0.2, help="of the queries that drift")
    parser.add_argument("--json", type=Path, help="the record")
    asked = parser.parse_args()
    kinds = samples(str(teacher_folder(Teacher())))
    usual, alarms = kinds.pop("none"), {}
    for kind, other in {"none": usual, **kinds}.items():
        moved = round(asked.share * asked.queries) if kind != "none" else 0
        alarms[kind] = [compared(usual, other, asked.queries, moved, month) for month in range(asked.months)]
        found = {name: sum(name in month for month in alarms[kind]) for month in alarms[kind] for name in month}
        print(f"{kind}: an alarm in {sum(map(bool, alarms[kind]))} of {plural(asked.months, 'month')} {found or ''}")
    record = {
        "commit": commit(),
        "months": asked.months,
        "queries": asked.queries,
        "trained": min(SAMPLE, len(usual.vectors) - asked.queries),
        "share": asked.share,
        "alarms": {kind: sum(map(bool, months)) for kind, months in alarms.items()},
    }
    if asked.json:
        write_whole(asked.json, (json_text(record, indent=1) + "\n").encode())
    missed = [kind for kind in kinds if not all(alarms[kind])]
    if missed or any(alarms["none"]):
        raise SystemExit(f"{sum(map(bool, alarms['none']))} false alarms; missed in some month: {missed or 'nothing'}")


def samples(folder: str) -> dict[str, Sample]:
    """The texts of quiet months, and those of each kind of drift, as the model sees them."""
    usual = list(texts_of("templates.tsv", *LANGUAGES))
    random = np.random.default_rng(0)
    some = [usual[place] for place in random.permutation(len(usual))[:TOPIC]]
    texts = {
        "none": usual,
        "a new language": list(texts_of("templates.tsv", NEW)),
        "two texts joined": [f"{one} {other}" for one, other in zip(some, some[::-1], strict=True)],
        "unknown letters": [text + UNKNOWN for text in some],
    }
    kinds = {kind: sample_of(folder, each, f"encoding: {kind}") for kind, each in texts.items()}
    near = np.argsort(-(kinds["none"].vectors @ kinds["none"].vectors[0]))
    return {**kinds, "one topic": rows(kinds["none"], near[:TOPIC])}


def texts_of(file: str, *languages: str) -> Iterator[str]:
    """The different texts of these columns."""
    header, *rows = (line.split("\t") for line in (BUNDLED / file).read_text(encoding="utf-8").splitlines())
    yield from dict.fromkeys(row[header.index(language)] for row in rows for language in languages)


def compared(usual: Sample, other: Sample, queries: int, moved: int, seed: int) -> tuple[str, ...]:
    """The kinds of drift that a month shows in which this number of queries is from `other`."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(usual.vectors))
    now = rows(usual, order[: queries - moved])
    if moved:
        now = joined(now, rows(other, random.permutation(len(other.vectors))[:moved]))
    return compare(rows(usual, order[queries:][:SAMPLE]).profile(), now).drifted


def rows(sample: Sample, places: np.ndarray) -> Sample:
    """Some of the texts."""
    return replace(sample, **{name: values[places] for name, values in vars(sample).items()})


def joined(one: Sample, other: Sample) -> Sample:
    """The texts of both."""
    return replace(one, **{name: np.concatenate([values, getattr(other, name)]) for name, values in vars(one).items()})


if __name__ == "__main__":
    main()
