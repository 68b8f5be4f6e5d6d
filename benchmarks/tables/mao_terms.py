"""LEALLA's losses alone and together: Mao and Nakagawa 2023, tables 4 and 8."""

from benchmarks.tables.definition import Claim, Column, Row, Table

FEW, MANY = "test/tatoeba/accuracy", "test/news/accuracy"
BOTH = (FEW, MANY)
FD = {beta: f"AMS + FD, beta {beta:g}" for beta in (1.0, 10.0, 100.0, 1000.0)}  # weight of FD -> the row with AMS
PRINTED = 1000.0  # the weight of FD in LEALLA-small


def extended(beta: float = PRINTED) -> str:
    """The figure of a claim that the paper does not print."""
    return "extended by us to French and Russian, and news" + ("" if beta == PRINTED else f", at beta {beta:g}")


ALONE = ("config={alpha: 0}",)  # leaves AMS out; beta is 1,000 by default

WITH_FD = [Row(name=name, settings={"variant": "standard", "beta": beta, "gamma": 0.0}) for beta, name in FD.items()]

MAO_TERMS = Table(
    name="mao_terms",
    title="LEALLA: the losses alone and together",
    paper="Mao and Nakagawa 2023, tables 4 and 8, LEALLA-small.",
    budget="100,000 steps of 8,192 sentences in 109 languages, and LaBSE as the teacher. It took 24 hours on a TPU v3 "
    "with 32 cores. Tatoeba has 1,000 candidates and UN about 9.5 million.",
    ours="A static student of 128 dimensions learns French and Russian with English. The teacher is "
    "all-MiniLM-L6-v2, and a translation has the teacher's vector of its English side. Tatoeba has 1,000 candidates "
    "and French news has 10,000.",
    sweep="search_spaces/reproduce/mao_terms.yaml",
    rows=(
        Row(name="AMS", settings={"variant": "standard", "beta": 0.0, "gamma": 0.0}),
        *WITH_FD,
        Row(name="AMS + LD", settings={"variant": "standard", "beta": 0.0, "gamma": 1e-2}),
        Row(name="AMS + FD + LD, beta 1000", settings={"variant": "standard", "beta": 1000.0, "gamma": 1e-2}),
        Row(
            name="AMS + DF, beta 10",
            settings={"variant": "distillation_first", "beta": 10.0, "gamma": 0.0, "student.projection": "teacher"},
            when={"student.projection": {"variant": "distillation_first"}},
        ),
        Row(name="FD", settings={"gamma": 0.0}, changes=ALONE),
        Row(name="LD", settings={"gamma": 1e-2, "beta": 0.0}, when={"beta": {"gamma": 1e-2}}, changes=ALONE),
    ),
    columns=(Column(metric=FEW, title="Tatoeba, 1,000"), Column(metric=MANY, title="news, 10,000")),
    claims=(
        *(
            Claim(
                better=name,
                worse="AMS",
                metrics=BOTH,
                paper=f"table 8, means: Tatoeba 80.6 against 80.3, UN 87.0 against 86.3; {extended(beta)}",
            )
            for beta, name in FD.items()
        ),
        Claim(
            better="AMS + LD",
            worse="AMS",
            metrics=BOTH,
            paper=f"table 8, means: Tatoeba 80.6 against 80.3, UN 87.1 against 86.3; {extended()}",
        ),
        Claim(
            better="AMS + FD + LD, beta 1000",
            worse="AMS + FD, beta 1000",
            metrics=BOTH,
            paper=f"table 8, means: Tatoeba 80.7 against 80.6, UN 87.3 against 87.0; {extended()}",
        ),
        Claim(
            better="AMS + FD + LD, beta 1000",
            worse="AMS + LD",
            metrics=BOTH,
            paper=f"table 8, means: Tatoeba 80.7 against 80.6, UN 87.3 against 87.1; {extended()}",
        ),
        Claim(
            better="FD",
            worse="LD",
            metrics=BOTH,
            paper=f"table 8, means: Tatoeba 78.2 against 75.1, UN 85.2 against 2.3; {extended()}",
        ),
        Claim(
            better="AMS",
            worse="FD",
            metrics=BOTH,
            paper=f"table 8, means: Tatoeba 80.3 against 78.2, UN 86.3 against 85.2; {extended()}",
        ),
        Claim(
            better="AMS",
            worse="LD",
            metrics=(FEW,),
            paper="table 8, mean: Tatoeba 80.3 against 75.1; extended by us to French and Russian",
        ),
        Claim(
            better="AMS",
            worse="LD",
            metrics=(MANY,),
            times=10,
            paper=f"table 8, mean: UN 86.3 against 2.3; {extended()}, by a factor of 10",
        ),
        Claim(
            better="AMS + FD, beta 10",
            worse="AMS + DF, beta 10",
            metrics=BOTH,
            paper=f"table 4, means: Tatoeba 80.6 against 80.0, UN 87.0 against 86.9; {extended(10)}",
        ),
    ),
    rates=(1e-3, 2e-3, 5e-3),
)
