"""Losses and labels on one pair of languages at a time: Park et al. 2024, tables 2 and 4."""

from benchmarks.tables.definition import UNTRAINED, Claim, Column, Row, Table
from benchmarks.tables.park import ENGLISH, LOGGED, OF_ENGLISH, SETS_SAID, TEMPERATURE_SAID, orders
from benchmarks.tables.park_labels import AVERAGE, BEST, HARD, PRIORITY, labelled

PAIRS = {"fra": "en-fr", "rus": "en-ru"}  # language -> the paper's name of its pair with English
LOSSES = (
    labelled(BEST, "priority", tcm=True),
    labelled(PRIORITY, "priority", tcm=False),
    labelled(AVERAGE, "average", tcm=False),
    labelled(HARD, "hard", tcm=False),
    Row(name="MSE", settings={"method": "mse_distillation"}),
    Row(name="mUSE", settings={"method": "translation_ranking"}),
)
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
        BEST: ("0.960", "0.796", "0.791"),
        PRIORITY: ("0.963", "0.783", "0.775"),
        AVERAGE: ("0.959", "0.767", "0.794"),
        HARD: ("0.937", "0.675", "0.748"),
        "MSE": ("0.959", "0.803", "0.704"),
        "mUSE": ("0.950", "0.713", "0.771"),
        UNTRAINED: ("0.951", "0.802", "0.781"),
    },
    "rus": {
        BEST: ("0.951", "0.787", "0.616"),
        PRIORITY: ("0.953", "0.781", "0.607"),
        AVERAGE: ("0.955", "0.775", "0.612"),
        HARD: ("0.949", "0.666", "0.545"),
        "MSE": ("0.945", "0.804", "0.601"),
        "mUSE": ("0.944", "0.720", "0.548"),
        UNTRAINED: ("0.936", "0.802", "0.615"),
    },
}
"""Language -> loss -> Tatoeba, STS in English, and STS in the language, as the tables have them."""
COMPARED = (
    *((BEST, other) for other in (PRIORITY, HARD, "MSE", "mUSE", UNTRAINED)),
    (PRIORITY, AVERAGE),
    ("MSE", UNTRAINED),
    (HARD, UNTRAINED),
)
"""Rows whose order is asked for, whichever is above in the paper."""


def row_name(loss: str, language: str) -> str:
    """The row of this loss on this pair."""
    return loss if loss == UNTRAINED else f"{PAIRS[language]}, {loss}"


def claims(language: str) -> list[Claim]:
    """The printed order of each two that are compared, in each score."""
    metrics = (f"test/tatoeba/{language}-eng/accuracy", ENGLISH, f"test/sts_other/{language}/spearman")
    orderings = []
    for first_loss, second_loss in COMPARED:
        place = "table 4" if {PRIORITY, AVERAGE} & {first_loss, second_loss} else "table 2"
        for metric, *figures in zip(
            metrics, PRINTED[language][first_loss], PRINTED[language][second_loss], strict=True
        ):
            (high, above), (low, below) = sorted(zip(figures, (first_loss, second_loss), strict=True), reverse=True)
            orderings += orders(
                row_name(above, language), row_name(below, language), {metric: f"{place}: {high} against {low}"}
            )
    return orderings


PARK_ONE_PAIR = Table(
    name="park_one_pair",
    title="Soft contrastive learning: one pair of languages",
    paper="Park et al. 2024, tables 2 and 4, English with French or with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32, from multilingual E5-base, the teacher too.",
    ours="A static student goes on from one that is aligned in both languages, which is the teacher too. It learns "
    f"French or Russian alone, with English. {TEMPERATURE_SAID} mUSE has its own, 0.05. *Untrained* is the student "
    f"that it goes on from. {SETS_SAID}",
    sweep="search_spaces/reproduce/park_labels.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=tuple(
        Row(name=row_name(loss.name, language), settings=loss.settings, when=loss.when, changes=ONE_PAIR[language])
        for language in PAIRS
        for loss in LOSSES
    ),
    columns=(
        Column(metric="test/tatoeba/fra-eng/accuracy", title="Tatoeba French"),
        Column(metric="test/tatoeba/rus-eng/accuracy", title="Tatoeba Russian"),
        OF_ENGLISH,
        Column(metric="test/sts_other/fra/spearman", title="STS French"),
        Column(metric="test/sts_other/rus/spearman", title="STS Russian"),
    ),
    logged=LOGGED,
    claims=(*claims("fra"), *claims("rus")),
    rates=(1e-4, 3e-4, 1e-3),
)
