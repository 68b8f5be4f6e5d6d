"""How large a margin: the losses of the main job, with LEALLA's additive margin from 0 to 0.5."""

from benchmarks.tables.definition import PAIRS, Claim, Column, Row, Table
from benchmarks.tables.which_method import ENGLISH, EVERYDAY, LONG, OTHER

MARGINS = (0.0, 0.15, 0.3, 0.5)
LOSSES = (
    "method=combined",
    "config={laser3_co: 1, lealla: 3.6, settings: {laser3_co: {variant: in_batch, temperature: 0.08}, "
    "lealla: {beta: 0, gamma: 0}}}",
)
"""The losses of `search_spaces/encoder.yaml`, less the margin."""
SCORES = (EVERYDAY, LONG, ENGLISH, OTHER)
WORDS, LEVEL = "search_spaces/encoder.yaml has a margin", "whether .15 or .5 would do as well"


def row_name(margin: float) -> str:
    """The row of this margin."""
    return f"margin {margin:g}"


MARGINS_TABLE = Table(
    name="margins",
    title="How large a margin",
    paper="A table of our own.",
    budget="",
    ours="English with French, Russian, Japanese and Korean: 36,000 pairs of everyday sentences, news and manuals. A "
    "static student of 384 dimensions and 24,000 tokens learns by LASER3-CO within the batch and by LEALLA's additive "
    "margin softmax without distillation. The teacher is all-MiniLM-L6-v2, which knows English alone. Compute is "
    "counted and not timed, and each row has the same.",
    sweep="search_spaces/reproduce/which_method.yaml",
    rows=tuple(
        Row(name=row_name(margin), settings={"settings.lealla.margin": margin}, changes=LOSSES) for margin in MARGINS
    ),
    columns=(
        Column(metric=EVERYDAY, title="Tatoeba"),
        Column(metric=LONG, title="FLORES"),
        Column(metric=ENGLISH, title="STS English"),
        Column(metric=OTHER, title="STS others"),
    ),
    logged={PAIRS: "pairs"},
    claims=(
        Claim(better=row_name(0.3), worse=row_name(0.0), metrics=SCORES, paper=WORDS),
        *(
            Claim(better=row_name(0.3), worse=row_name(other), metrics=SCORES, kind="level", paper=LEVEL)
            for other in (0.15, 0.5)
        ),
    ),
    rates=(3e-4, 1e-3, 3e-3),
)
