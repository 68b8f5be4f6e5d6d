"""Why feature distillation fails among many candidates: a teacher that ranks translations, beside the English one."""

from benchmarks.tables.definition import Claim, Column, Row, Table
from benchmarks.tables.mao_terms import BOTH, FEW, MANY

RANKING = ("teacher={model: 'models:/mao_dims_start@champion', languages: [eng, fra, rus], max_tokens: 64}",)
"""A teacher that is better at the test sets than the students are."""
WEIGHTS = (100.0, 1000.0)
AMS, ENGLISH = "AMS", "AMS + FD, beta 1000, English teacher"
REASON = "FD copies what its teacher can do"


def ranking(beta: float) -> str:
    """The row of FD with this weight and the teacher that ranks translations."""
    return f"AMS + FD, beta {beta:g}, ranking teacher"


def distilled(name: str, beta: float, changes: tuple[str, ...] = ()) -> Row:
    """AMS and FD with this weight; zero leaves FD out."""
    return Row(name=name, settings={"variant": "standard", "beta": beta, "gamma": 0.0}, changes=changes)


BY_RANKING = [distilled(ranking(beta), beta, RANKING) for beta in WEIGHTS]
MAO_TEACHER = Table(
    name="mao_teacher",
    title="LEALLA: why FD fails among many candidates",
    paper="A table of our own, on an order that `mao_terms` does not find.",
    budget="",
    ours="As in the table of LEALLA's losses, a static student of 128 dimensions learns French and Russian with "
    "English. The English teacher is all-MiniLM-L6-v2, which was not trained to rank translations. The ranking "
    "teacher is a static model of 768 dimensions, which learnt that from the same text. It encodes both sides.",
    sweep="search_spaces/reproduce/mao_terms.yaml",
    before=("search_spaces/reproduce/mao_dims_start.yaml",),
    start_name="the ranking teacher",
    rows=(distilled(AMS, 0.0), distilled(ENGLISH, 1000.0), *BY_RANKING),
    columns=(Column(metric=FEW, title="Tatoeba, 1,000"), Column(metric=MANY, title="news, 10,000")),
    claims=(
        *(Claim(better=ranking(beta), worse=AMS, metrics=BOTH, paper=REASON) for beta in WEIGHTS),
        Claim(better=ranking(1000.0), worse=ENGLISH, metrics=(MANY,), paper=REASON),
    ),
    rates=(2e-3, 5e-3),
)
