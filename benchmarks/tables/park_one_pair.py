"""Losses on one pair of languages at a time: Park et al. 2024, table 2."""

from __future__ import annotations

from babeltune.schema.records import Scalar
from benchmarks.tables.definition import UNTRAINED, Claim, Column, Row, Table
from benchmarks.tables.park import ENGLISH, OF_ENGLISH

PAIRS = {"fra": "en-fr", "rus": "en-ru"}
"""Language -> the paper's name of its pair with English."""
SOFT: dict[str, Scalar] = {"method": "soft_contrastive", "labels": "priority", "tcm": True}
LOSSES: dict[str, dict[str, Scalar]] = {
    "soft": SOFT,
    "hard": SOFT | {"labels": "hard", "tcm": False},
    "MSE": {"method": "mse_distillation"},
    "mUSE": {"method": "translation_ranking"},
}
WHEN: dict[str, dict[str, Scalar | list[Scalar]]] = {name: {"method": "soft_contrastive"} for name in ("labels", "tcm")}
ONE_PAIR = {
    "fra": ("data.train.1.train=false", "data.dev.0.source.paths={eng: ntrex/eng.tsv.gz, fra: ntrex/fra.tsv.gz}"),
    "rus": (
        "data.train.0.train=false",
        "data.train.2.train=false",
        "data.dev.0.source.paths={eng: ntrex/eng.tsv.gz, rus: ntrex/rus.tsv.gz}",
    ),
}
"""Language -> the changes that leave the other's text out."""
PRINTED = {
    "fra": {
        "soft": ("0.960", "0.796", "0.791"),
        "hard": ("0.937", "0.675", "0.748"),
        "MSE": ("0.959", "0.803", "0.704"),
        "mUSE": ("0.950", "0.713", "0.771"),
        UNTRAINED: ("0.951", "0.802", "0.781"),
    },
    "rus": {
        "soft": ("0.951", "0.787", "0.616"),
        "hard": ("0.949", "0.666", "0.545"),
        "MSE": ("0.945", "0.804", "0.601"),
        "mUSE": ("0.944", "0.720", "0.548"),
        UNTRAINED: ("0.936", "0.802", "0.615"),
    },
}
"""Language -> loss -> Tatoeba, STS in English, and STS in the language, as the table has them."""


def named(loss: str, language: str) -> str:
    """The row of this loss on this pair."""
    return loss if loss == UNTRAINED else f"{PAIRS[language]}, {loss}"


def claims(language: str) -> list[Claim]:
    """The order of soft contrastive learning and each other row, in each score."""
    metrics = (f"test/tatoeba/{language}-eng/accuracy", ENGLISH, f"test/sts_other/{language}/spearman")
    printed, found = PRINTED[language], []
    for other in printed:
        for metric, own, its in zip(metrics, printed["soft"], printed[other], strict=True):
            if other != "soft":
                better, worse = ("soft", other) if own > its else (other, "soft")
                found.append(
                    Claim(
                        better=named(better, language),
                        worse=named(worse, language),
                        metrics=(metric,),
                        paper=f"table 2: {max(own, its)} against {min(own, its)}",
                    )
                )
    return found


PARK_ONE_PAIR = Table(
    name="park_one_pair",
    title="Soft contrastive learning: one pair of languages",
    paper="Park et al. 2024, table 2, English with French or with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32, from multilingual E5-base, the teacher too.",
    ours="A static student goes on from one that is aligned in both languages, which is the teacher too. It learns "
    "French or Russian alone, with English. *Soft* is the priority label with TCM. *Untrained* is the student that it "
    "goes on from.",
    sweep="search_spaces/reproduce/park_labels.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=tuple(
        Row(
            name=named(loss, language),
            settings=settings,
            when=WHEN if "labels" in settings else {},
            changes=ONE_PAIR[language],
        )
        for language in PAIRS
        for loss, settings in LOSSES.items()
    ),
    columns=(
        Column(metric="test/tatoeba/fra-eng/accuracy", title="Tatoeba French"),
        Column(metric="test/tatoeba/rus-eng/accuracy", title="Tatoeba Russian"),
        OF_ENGLISH,
        Column(metric="test/sts_other/fra/spearman", title="STS French"),
        Column(metric="test/sts_other/rus/spearman", title="STS Russian"),
    ),
    claims=(*claims("fra"), *claims("rus")),
    rates=(1e-4, 1e-3),
)
