"""Negatives of all accelerators or of the own one: Park et al. 2024, table 13."""

from __future__ import annotations

from benchmarks.tables.definition import Claim, Row, Table
from benchmarks.tables.park import BITEXT, ENGLISH, FLORES, OF_ENGLISH, OF_FLORES, OF_OTHER, OF_TATOEBA, OTHER

LABELS = ("average", "hard")
PARTS = {1: "all", 2: "half", 4: "a quarter"}
"""Accelerators that gather nothing -> how much of the batch a pair sees."""
FIGURES = {
    (BITEXT, FLORES): "Tatoeba 0.904 against 0.887",
    (ENGLISH,): "0.698 against 0.695",
    (OTHER,): "0.707 against 0.699",
}


def seen(labels: str, parts: int) -> str:
    """The row of these labels if the batch has so many parts."""
    return f"{labels}, {PARTS[parts]} of the batch"


PARK_GATHER = Table(
    name="park_gather",
    title="Soft contrastive learning: negatives across accelerators",
    paper="Park et al. 2024, table 13, English with French and with Russian.",
    budget="English and Korean with two RTX 3090, a global batch of 32, average labels, XLM-R as the student and "
    "multilingual E5-base as the teacher.",
    ours="A static student begins with random vectors and learns French and Russian with English. The teacher is a "
    "static model that was distilled for these languages. `training.batch_parts` divides each batch into 1, 2 or 4 "
    "parts that do not see each other, as accelerators that gather nothing. It does so on any number of workers, and "
    "here on one.",
    sweep="search_spaces/reproduce/park_gather.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    rows=tuple(
        Row(name=seen(labels, parts), settings={"labels": labels, "training.batch_parts": parts})
        for labels in LABELS
        for parts in PARTS
    ),
    columns=(
        OF_TATOEBA,
        OF_FLORES,
        OF_ENGLISH,
        OF_OTHER,
    ),
    logged={"train/label_own": "own pair"},
    claims=tuple(
        Claim(better=seen(labels, 1), worse=seen(labels, parts), metrics=metrics, paper=f"table 13, en-ko: {figures}")
        for labels in LABELS
        for parts in (2, 4)
        for metrics, figures in FIGURES.items()
    ),
    rates=(1e-3, 3e-3),
)
