"""The patterns of feature distillation: Mao and Nakagawa 2023, table 4 and figure 4."""

from collections.abc import Iterator

from benchmarks.tables.definition import Claim, Row, Table
from benchmarks.tables.mao_teacher import MAO_TEACHER, RANKING

WEIGHT = 100.0
REDUCED = ("teacher={model: 'models:/mao_reduced@champion', languages: [eng, fra, rus], max_tokens: 64}",)
"""The ranking teacher with its trained and frozen layer of 128 dimensions."""
AMS, FD, DF, SYN = "AMS", "AMS + FD", "AMS + DF", "AMS + SYN"
PRINTED = {AMS: ("80.3", "86.3"), FD: ("80.6", "87.0"), DF: ("80.0", "86.9"), SYN: ("80.2", "85.9")}
"""Means of Tatoeba and of UN, LEALLA-small."""
EXTENDED = f"extended by us to French and Russian, and news, at beta {WEIGHT:g}"


def distilled(name: str, variant: str, beta: float, changes: tuple[str, ...] = RANKING) -> Row:
    """AMS and a pattern of feature distillation; zero leaves it out."""
    return Row(name=name, settings={"variant": variant, "beta": beta, "gamma": 0.0}, changes=changes)


def better_than(worse: str) -> Iterator[Claim]:
    """That FD is above another row, which the paper prints of both scores."""
    for column, set_name, better, other in zip(
        MAO_TEACHER.columns, ("Tatoeba", "UN"), PRINTED[FD], PRINTED[worse], strict=True
    ):
        words = f"table 4, mean: {set_name} {better} against {other}; {EXTENDED}"
        yield Claim(better=FD, worse=worse, metrics=(column.metric,), paper=words)


MAO_PATTERNS = Table(
    name="mao_patterns",
    title="LEALLA: three patterns of feature distillation",
    paper="Mao and Nakagawa 2023, table 4, LEALLA-small.",
    budget="",
    ours="As in `mao_teacher`, a static student of 128 dimensions learns from a ranking teacher of 768. FD has a head "
    "to 768 dimensions that is dropped. DF, distillation-first, is on vectors of 768 dimensions, which a layer then "
    "projects to 128. SYN, synchronized, has a teacher of 128 dimensions: the same one with a layer that was trained "
    f"and frozen before. Their weight is {WEIGHT:g}.",
    sweep=MAO_TEACHER.sweep,
    before=(*MAO_TEACHER.before, "search_spaces/reproduce/mao_reduced.yaml"),
    start_name="the reduced teacher",
    rows=(
        distilled(AMS, "standard", 0.0),
        distilled(FD, "standard", WEIGHT),
        distilled(DF, "distillation_first", WEIGHT, (*RANKING, "student.projection=teacher")),
        distilled(SYN, "synchronized", WEIGHT, REDUCED),
    ),
    columns=MAO_TEACHER.columns,
    claims=tuple(claim for worse in (AMS, DF, SYN) for claim in better_than(worse)),
    rates=MAO_TEACHER.rates,
)
