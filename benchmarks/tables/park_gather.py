"""Negatives of all accelerators or of the own one: Park et al. 2024, table 13."""

from benchmarks.tables.definition import Row, Table
from benchmarks.tables.park import (
    BITEXT,
    COLUMNS,
    ENGLISH,
    EXTENDED,
    FLORES,
    LOGGED,
    MATCHED,
    ON_FLORES,
    OTHER,
    SETS_SAID,
    TEMPERATURE_SAID,
    orders,
)

PARTS = {1: "all", 2: "half", 4: "a quarter"}  # accelerators that gather nothing -> how much of the batch a pair sees
FIGURES = {
    BITEXT: "table 13, en-ko, 2 accelerators: 0.904 against 0.887",
    FLORES: ON_FLORES,
    ENGLISH: "table 13, en-ko, 2 accelerators: 0.698 against 0.695",
    OTHER: "table 13, Korean, 2 accelerators: 0.707 against 0.699",
}


def seen(parts: int) -> str:
    """The row if the batch has this many parts."""
    return f"{PARTS[parts]} of the batch"


PARK_GATHER = Table(
    name="park_gather",
    title="Soft contrastive learning: negatives across accelerators",
    paper="Park et al. 2024, table 13, English with French and with Russian.",
    budget="English and Korean with two RTX 3090 and a global batch of 32. The figures are table 12's of XLM-R, "
    "average labels and multilingual E5-base as the teacher.",
    ours="A static student begins with random vectors and learns French and Russian with English, by average labels. "
    f"The teacher is a static model that was distilled for these languages. {TEMPERATURE_SAID} "
    "`training.batch_parts` divides each batch into 1, 2 or 4 parts that do not see each other, as accelerators that "
    f"gather nothing. It does so on any number of workers, and here on one. {SETS_SAID}",
    sweep="search_spaces/reproduce/park_gather.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    rows=tuple(
        Row(name=seen(parts), settings={"labels": "average", "temperature": MATCHED, "training.batch_parts": parts})
        for parts in PARTS
    ),
    columns=COLUMNS,
    logged=LOGGED,
    claims=(
        *orders(seen(1), seen(2), FIGURES),
        *orders(seen(1), seen(4), dict.fromkeys(FIGURES, f"{EXTENDED} to 4 accelerators")),
    ),
    rates=(3e-4, 1e-3, 3e-3),
)
