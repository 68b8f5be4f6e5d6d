"""Which pairs of five languages to learn from, with which labels: Park et al. 2024, tables 5 and 6."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import yaml

from babeltune.schema.paths import find_file
from babeltune.schema.records import Scalar
from benchmarks.tables.definition import Claim, Column, Row, Table
from benchmarks.tables.park import (
    BITEXT,
    ENGLISH,
    FIVE_MATCHED,
    FLORES,
    LOGGED,
    OF_ENGLISH,
    OF_FLORES,
    OF_TATOEBA,
    TEMPERATURE_SAID,
    orders,
)

SWEEP = "search_spaces/reproduce/park_pairs.yaml"
KOREAN, FRENCH, RUSSIAN = (f"test/sts_{language}/spearman" for language in ("kor", "fra", "rus"))
WITH_ENGLISH, WITH_FRENCH, WITH_RUSSIAN, ALL = "en-xx", "en-xx, fr-xx", "en-xx, ru-xx", "all pairs"


LABELS: dict[str, dict[str, Scalar]] = {
    "priority": {"labels": "priority", "tcm": False},
    "priority + TCM": {"labels": "priority", "tcm": True},
    "average": {"labels": "average", "tcm": False},
}


def joining(name: str, is_joined: Callable[[dict[str, Any]], object]) -> Row:
    """A row of priority labels that also learns from the joined texts that are chosen."""
    sources = yaml.safe_load(find_file(SWEEP).read_text(encoding="utf-8"))["data"]["train"]
    places = [place for place, source in enumerate(sources) if source.get("format") == "pivot" and is_joined(source)]
    return Row(
        name=name,
        settings=LABELS["priority"] | {"temperature": FIVE_MATCHED},
        changes=tuple(f"data.train.{place}.train=true" for place in places),
    )


def with_pairs(name: str, *languages: str) -> Row:
    """A row that also learns from the joined pairs that have one of these languages."""
    return joining(name, lambda source: set(source["pairs"][0].split("-")) & set(languages))


def labelled(row: Row, labels: str) -> Row:
    """The same text with other labels."""
    return replace(row, name=row_name(row.name, labels), settings=row.settings | LABELS[labels])


def row_name(texts: str, labels: str = "priority") -> str:
    """The row of these texts and labels."""
    return texts if labels == "priority" else f"{texts}, {labels}"


def from_texts(name: str, *texts: str) -> Row:
    """A row that also learns from these joined texts."""
    return joining(name, lambda source: source["name"] in texts)


OWN_ENGLISH = with_pairs(WITH_ENGLISH)
EVERY_PAIR = with_pairs(ALL, "fra", "rus", "jpn", "kor")

PARK_PAIRS = Table(
    name="park_pairs",
    title="Soft contrastive learning: the pairs of languages",
    paper="Park et al. 2024, tables 5 and 6, and table 10.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32, from multilingual E5-base, the teacher too.",
    ours="A static student for English, French, Russian, Japanese and Korean goes on from an aligned one, which is the "
    "teacher too. Each row sees equally many pairs, with priority labels and without TCM unless it says otherwise. "
    f"{TEMPERATURE_SAID} Pairs without English are joined through equal English sentences. Russian and Korean have a "
    "few dozen of them, the others have thousands. FLORES has all ten pairs of languages, and the 510 sentences that "
    "SIB-200 has, by accuracy. STS is STS-B and KorSTS, in French and Russian by machine translation. *Untrained* is "
    "the student that all rows go on from.",
    sweep=SWEEP,
    before=("search_spaces/reproduce/park_pairs_start.yaml",),
    start="models:/park_pairs_start@champion",
    from_scratch=False,
    rows=(
        *(labelled(row, labels) for row in (OWN_ENGLISH, EVERY_PAIR) for labels in LABELS),
        with_pairs(WITH_FRENCH, "fra"),
        with_pairs(WITH_RUSSIAN, "rus"),
    ),
    columns=(
        OF_TATOEBA,
        OF_FLORES,
        OF_ENGLISH,
        Column(metric=KOREAN, title="STS Korean"),
        Column(metric=FRENCH, title="STS French"),
        Column(metric=RUSSIAN, title="STS Russian"),
    ),
    logged=LOGGED,
    claims=tuple(
        itertools.chain(
            [
                Claim(better=better, worse=worse, metrics=(metric,), paper=f"table 6: {figures}")
                for better, worse, metric, figures in (
                    (WITH_FRENCH, WITH_RUSSIAN, BITEXT, "0.948 against 0.946"),
                    (WITH_FRENCH, WITH_RUSSIAN, FLORES, "xSIM error 0.04 against 0.07"),
                    (WITH_FRENCH, WITH_RUSSIAN, FRENCH, "0.742 against 0.718"),
                    (WITH_FRENCH, WITH_RUSSIAN, RUSSIAN, "0.589 against 0.586"),
                    (WITH_RUSSIAN, WITH_FRENCH, KOREAN, "0.696 against 0.694"),
                )
            ],
            [
                Claim(
                    better=WITH_FRENCH,
                    worse=WITH_RUSSIAN,
                    metrics=(ENGLISH,),
                    kind="level",
                    paper="table 6: 0.757 and 0.757",
                )
            ],
            orders(
                ALL,
                WITH_ENGLISH,
                {BITEXT: "table 5: 0.952 against 0.942", FLORES: "table 5: xSIM error 0.04 against 0.05"},
            ),
            orders(
                row_name(ALL, "average"), row_name(WITH_ENGLISH, "average"), {BITEXT: "table 5: 0.950 against 0.948"}
            ),
            orders(
                row_name(WITH_ENGLISH, "priority + TCM"),
                row_name(ALL, "priority + TCM"),
                {BITEXT: "table 5: 0.949 against 0.948", FLORES: "table 5: xSIM error 0.02 against 0.04"},
            ),
            orders(
                row_name(WITH_ENGLISH, "average"),
                WITH_ENGLISH,
                {BITEXT: "table 5: 0.948 against 0.942", FLORES: "table 5: xSIM error 0.04 against 0.05"},
            ),
            orders(
                row_name(WITH_ENGLISH, "priority + TCM"),
                WITH_ENGLISH,
                {BITEXT: "table 5: 0.949 against 0.942", FLORES: "table 5: xSIM error 0.02 against 0.05"},
            ),
            orders(
                WITH_ENGLISH,
                ALL,
                {
                    ENGLISH: "table 10: 0.764 against 0.741",
                    KOREAN: "table 10: 0.726 against 0.688",
                    FRENCH: "table 10: 0.728 against 0.695",
                    RUSSIAN: "table 10: 0.589 against 0.580",
                },
            ),
            orders(
                row_name(WITH_ENGLISH, "priority + TCM"),
                WITH_ENGLISH,
                {
                    ENGLISH: "table 10: 0.782 against 0.764",
                    KOREAN: "table 10: 0.769 against 0.726",
                    FRENCH: "table 10: 0.760 against 0.728",
                    RUSSIAN: "table 10: 0.624 against 0.589",
                },
            ),
            orders(ALL, row_name(ALL, "average"), {BITEXT: "table 5: 0.952 against 0.950"}),
            orders(ALL, row_name(ALL, "priority + TCM"), {BITEXT: "table 5: 0.952 against 0.948"}),
        )
    ),
    rates=(1e-4, 3e-4, 1e-3),
)

ALIKE_FRENCH, ALIKE_RUSSIAN = "en-xx, fr-xx, alike", "en-xx, ru-xx, alike"


PARK_PAIRS_ALIKE = Table(
    name="park_pairs_alike",
    title="Soft contrastive learning: French or Russian with like texts",
    paper="A table of our own, on orders that `park_pairs` does not find.",
    budget="",
    ours="As in `park_pairs`, but the joined pairs of both rows are from the same texts. Both have Russian and French "
    "of the news and of Tatoeba. One has Japanese and French of Tatoeba, the other Russian and Japanese of Tatoeba. "
    "*Untrained* is the student that both go on from.",
    sweep=SWEEP,
    before=PARK_PAIRS.before,
    start=PARK_PAIRS.start,
    from_scratch=False,
    rows=(
        from_texts(ALIKE_FRENCH, "wmt_rus_fra", "tatoeba_rus_fra", "tatoeba_jpn_fra"),
        from_texts(ALIKE_RUSSIAN, "wmt_rus_fra", "tatoeba_rus_fra", "tatoeba_rus_jpn"),
    ),
    columns=PARK_PAIRS.columns,
    logged=LOGGED,
    claims=tuple(
        Claim(
            better=ALIKE_FRENCH,
            worse=ALIKE_RUSSIAN,
            metrics=(metric,),
            kind="level",
            paper=f"with like texts neither language is the better one; table 6: {figures}",
        )
        for metric, figures in (
            (BITEXT, "0.948 against 0.946"),
            (FLORES, "xSIM error 0.04 against 0.07"),
            (KOREAN, "0.694 against 0.696"),
        )
    ),
    rates=PARK_PAIRS.rates,
)
