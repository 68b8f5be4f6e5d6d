"""The effect of our departures from print: LEALLA's scale and temperature, Park's rate and readings, Li's rate."""

from dataclasses import replace

from benchmarks.tables.definition import Claim, Row, Table
from benchmarks.tables.li_depth import FOUND, LI_DEPTH, MIXED, aligners
from benchmarks.tables.mao_terms import BOTH, MAO_TERMS
from benchmarks.tables.park import COLUMNS
from benchmarks.tables.park_labels import BEST, PARK_LABELS, labelled

OURS = "our departure from print"
SCALES = (1.0, 10.0, 20.0, 50.0)
PRINTED_RATE, LI_PRINTED_RATE = 5e-3, 0.1


def scaled(scale: float) -> Row:
    """LEALLA's additive margin softmax with this scale of its cosines."""
    return Row(name=f"scale {scale:g}", settings={"variant": "standard", "beta": 0.0, "gamma": 0.0, "scale": scale})


MAO_SCALE = replace(
    MAO_TERMS,
    name="mao_scale",
    title="LEALLA: the scale of the cosines",
    paper="Mao and Nakagawa 2023, equation 2, which prints no scale.",
    budget="",
    ours=f"{MAO_TERMS.ours} The loss is additive margin softmax alone. A scale of 1 is the equation as printed.",
    rows=tuple(map(scaled, SCALES)),
    claims=tuple(
        Claim(better=scaled(scale).name, worse=scaled(1.0).name, metrics=BOTH, paper=OURS) for scale in SCALES[1:]
    ),
)

SEARCHED, PRINTED = labelled("searched", "priority", tcm=True), labelled("printed", "priority", tcm=True)
PARK_RATE = replace(
    PARK_LABELS,
    name="park_rate",
    title="Soft contrastive learning: the learning rate",
    paper="Park et al. 2024, section 4.1, which prints 5e-3.",
    budget="",
    ours=f"{BEST} of `park_labels`, at a learning rate that dev sets choose and at the printed one. A static student "
    "bears larger rates than the paper's Transformers.",
    rows=(SEARCHED, replace(PRINTED, rate=PRINTED_RATE, changes=("description=at the printed learning rate",))),
    columns=COLUMNS,
    claims=(Claim(better="searched", worse="printed", metrics=tuple(column.metric for column in COLUMNS), paper=OURS),),
)


def reading(name: str) -> Row:
    """Priority labels with TCM in this reading of the paper."""
    row = labelled(name, "priority", tcm=True)
    return replace(row, settings={**row.settings, "reading": name})


READINGS = ("fixed", "paper", "authors_code")
PARK_READING = replace(
    PARK_LABELS,
    name="park_reading",
    title="Soft contrastive learning: the readings",
    paper="Park et al. 2024, section 3, and the authors' code.",
    budget="",
    ours=f"{BEST} of `park_labels`. `fixed` is our default: the paper's numbers, and every cross-entropy a proper one.",
    rows=tuple(map(reading, READINGS)),
    claims=tuple(
        Claim(better="fixed", worse=other, metrics=tuple(column.metric for column in COLUMNS), paper=OURS)
        for other in READINGS[1:]
    ),
)


def divided(mode: str) -> Row:
    """AMS and LD, whose similarities are multiplied or divided by the temperature."""
    return Row(name=mode, settings={"variant": "standard", "beta": 0.0, "gamma": 1e-2, "temperature_mode": mode})


MAO_LD = replace(
    MAO_TERMS,
    name="mao_ld",
    title="LEALLA: the temperature of logit distillation",
    paper="Mao and Nakagawa 2023, equation 4, which divides by T.",
    budget="",
    ours=f"{MAO_TERMS.ours} The losses are AMS and LD.",
    rows=(divided("multiply"), divided("divide")),
    claims=(Claim(better="multiply", worse="divide", metrics=BOTH, paper=OURS),),
)

LI_RATE = replace(
    LI_DEPTH,
    name="li_rate",
    title="Bilingual aligners: the learning rate",
    paper="Li, the report's code, whose learning rate is 0.1.",
    budget="",
    ours=f"{LI_DEPTH.ours} Depth is -1, the report's best.",
    rows=(
        aligners("searched", -1),
        replace(aligners("printed", -1), rate=LI_PRINTED_RATE, changes=("description=at the rate of the code",)),
    ),
    claims=(Claim(better="searched", worse="printed", metrics=(FOUND, MIXED), paper=OURS),),
    heat_map=False,
)

DEPARTURES: tuple[Table, ...] = (MAO_SCALE, MAO_LD, PARK_RATE, PARK_READING, LI_RATE)
