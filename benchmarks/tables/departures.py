"""What our departures from print change: a table for each paper's scale, rate, reading, denominator or word list."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from babeltune.schema.records import Scalar
from benchmarks.tables.chen_losses import CHEN_LOSSES, row
from benchmarks.tables.definition import Claim, Row, Table
from benchmarks.tables.li_depth import FOUND, LI_DEPTH, MIXED, aligners
from benchmarks.tables.mao_terms import BOTH, MAO_TERMS
from benchmarks.tables.park import COLUMNS
from benchmarks.tables.park_labels import BEST, PARK_LABELS, labelled
from benchmarks.tables.tan_variants import BOTH as XSIM_AND_FOUND
from benchmarks.tables.tan_variants import TAN_VARIANTS

OURS = "our departure from print"
SCALES = (1.0, 10.0, 20.0, 50.0)
PRINTED_RATE, LI_PRINTED_RATE = 5e-3, 0.1
READINGS = ("fixed", "paper", "authors_code")


def changed(name: str, base: Row, **settings: Scalar) -> Row:
    """The row with other settings of its method."""
    return replace(base, name=name, settings={**base.settings, **settings})


def against(rows: Iterable[Row], metrics: tuple[str, ...]) -> tuple[Claim, ...]:
    """That the first row, which is ours, is better than each of the others."""
    first, *others = rows
    return tuple(Claim(better=first.name, worse=other.name, metrics=metrics, paper=OURS) for other in others)


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


SOFT = labelled("fixed", "priority", tcm=True)
READ = tuple(changed(name, SOFT, reading=name) for name in READINGS)
PARK_READING = replace(
    PARK_LABELS,
    name="park_reading",
    title="Soft contrastive learning: the readings",
    paper="Park et al. 2024, section 3, and the authors' code.",
    budget="",
    ours=f"{BEST} of `park_labels`. `fixed` is our default: the paper's numbers, and every cross-entropy a proper one.",
    rows=READ,
    claims=against(READ, tuple(column.metric for column in COLUMNS)),
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

FILTER = Row(name="ours", settings={"variant": "co_filter"})
DENOMINATORS = (
    changed("ours", FILTER, denominator="alg1", equal_m=False, mask_duplicates=True),
    changed("equation 1", FILTER, denominator="eq1", equal_m=False, mask_duplicates=True),
    changed("equal M", FILTER, denominator="alg1", equal_m=True, mask_duplicates=True),
    changed("repeats are negatives", FILTER, denominator="alg1", equal_m=False, mask_duplicates=False),
)
TAN_PRINTED = replace(
    TAN_VARIANTS,
    name="tan_printed",
    title="LASER3-CO-Filter: the denominator and the negatives as printed",
    paper="Tan et al. 2023, equation 1, algorithm 1 and appendix A.",
    budget="",
    ours="CO-Filter of `tan_variants`. Ours has the positive in the denominator, as algorithm 1 has it, and each "
    "sentence keeps all of its negatives. Equation 1 leaves the positive out. With equal M every sentence keeps as "
    "many negatives as the one with the fewest. Repeats of the positive's text are no negatives, unless the row says "
    "so.",
    rows=DENOMINATORS,
    claims=against(DENOMINATORS, XSIM_AND_FOUND),
)

BOTH_LOSSES = Row(name="ours", settings={"variant": "standard", "beta": 1e3, "gamma": 0.0})
REDUCTIONS = (
    changed("ours", BOTH_LOSSES, reduction="mean", mask_duplicates=True),
    changed("a sum", BOTH_LOSSES, reduction="sum", mask_duplicates=True),
    changed("repeats are negatives", BOTH_LOSSES, reduction="mean", mask_duplicates=False),
)
MAO_PRINTED = replace(
    MAO_TERMS,
    name="mao_printed",
    title="LEALLA: feature distillation and negatives as printed",
    paper="Mao and Nakagawa 2023, equation 2 and equation 3.",
    budget="",
    ours=f"{MAO_TERMS.ours} The losses are AMS and FD with a weight of 1,000. Ours takes the mean over the teacher's "
    "dimensions, and repeats of the positive's text are no negatives. Equation 3 prints a sum, and equation 2 leaves "
    "nothing out.",
    rows=REDUCTIONS,
    claims=against(REDUCTIONS, BOTH),
)

ALIGNERS = tuple(changed(name, aligners("fixed", -1), reading=name) for name in READINGS)
LI_READING = replace(
    LI_DEPTH,
    name="li_reading",
    title="Bilingual aligners: the readings",
    paper="Li, section 5.1, and the report's code.",
    budget="",
    ours=f"{LI_DEPTH.ours} Depth is -1, the report's best. `paper` has NT-Xent's negatives of the same language, which "
    "the code has not. `fixed` is our default: as the code, but repeats of a positive's text are no negatives.",
    rows=ALIGNERS,
    claims=against(ALIGNERS, (FOUND, MIXED)),
    heat_map=False,
)

WORDS = Row(name="fixed", settings={"variant": "ml_ctl_cz", "training.global_batch": 32})
POSTERS = tuple(changed(name, WORDS, reading=name) for name in READINGS)
CHEN_READING = replace(
    CHEN_LOSSES,
    name="chen_reading",
    title="ML-CTL: the readings",
    paper="Chen et al. 2023 and the authors' code.",
    budget="",
    ours=f"{CHEN_LOSSES.ours} The loss is that of `{row('ml_ctl_cz', 32)}`. `paper` averages the first and the last "
    "layer and has both sides as anchors. `authors_code` adds the layers, has one side as anchors and contrasts masked "
    "sentences. `fixed` is our default: `paper`, but texts of an anchor's own pair are no negatives.",
    rows=POSTERS,
    claims=against(POSTERS, CHEN_LOSSES.claims[0].metrics),
)

LISTED = "stop_words.txt"


def write_stop_words(data: Path, folder: Path) -> None:
    """scikit-learn's English stop words, a word a line."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    folder.mkdir(parents=True, exist_ok=True)
    (folder / LISTED).write_text("".join(f"{word}\n" for word in sorted(ENGLISH_STOP_WORDS)), encoding="utf-8")


LISTS = (
    replace(WORDS, name="most frequent"),
    replace(WORDS, name="a list", changes=(f"data.words.stop_list={{eng: '${{BABELTUNE_MADE:-.}}/{LISTED}'}}",)),
    replace(WORDS, name="none", changes=("data.words.stop_words=0",)),
)
CHEN_STOP_WORDS = replace(
    CHEN_LOSSES,
    name="chen_stop_words",
    title="ML-CTL: stop words by number or by list",
    paper="Chen et al. 2023, whose code has a list of words.",
    budget="",
    ours=f"{CHEN_LOSSES.ours} The loss is that of `{row('ml_ctl_cz', 32)}`. Ours leaves out the 50 most frequent words "
    "of each language. The list is scikit-learn's of English, and French and Russian keep the most frequent ones.",
    rows=LISTS,
    claims=tuple(
        Claim(better=LISTS[0].name, worse=other.name, metrics=CHEN_LOSSES.claims[0].metrics, kind="level", paper=OURS)
        for other in LISTS[1:]
    ),
    text=write_stop_words,
)

DEPARTURES: tuple[Table, ...] = (
    MAO_SCALE,
    MAO_LD,
    MAO_PRINTED,
    PARK_RATE,
    PARK_READING,
    LI_RATE,
    LI_READING,
    TAN_PRINTED,
    CHEN_READING,
    CHEN_STOP_WORDS,
)
