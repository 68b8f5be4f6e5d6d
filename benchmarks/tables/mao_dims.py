"""How few dimensions a frozen encoder needs: Mao and Nakagawa 2023, table 6."""

import itertools
from dataclasses import replace

from benchmarks.tables.definition import START, Claim, Column, Row, Table

FEW, MANY = "test/tatoeba/accuracy", "test/news/accuracy"
DIMS = (512, 384, 256, 128, 64, 32)
TATOEBA = {768: "83.7", 512: "83.7", 384: "83.7", 256: "83.6", 192: "83.4", 128: "83.1", 64: "81.8", 32: "78.4"}
UN = {768: "89.6", 512: "88.8", 384: "88.8", 256: "88.7", 192: "88.5", 128: "87.7", 64: "86.0", 32: "77.9"}


def row_name(dim: int) -> str:
    """The row of this many dimensions."""
    return START if dim == 768 else f"{dim} dimensions"


def claims(more: int, fewer: int) -> tuple[Claim, Claim]:
    """The printed orders of two numbers of dimensions. Scores within 0.1 are level."""
    orderings = []
    ours = "extended by us to French and Russian"
    for metric, figures, name, extended in ((FEW, TATOEBA, "Tatoeba", ours), (MANY, UN, "UN", f"{ours}, of news")):
        level = abs(float(figures[more]) - float(figures[fewer])) < 0.15
        orderings.append(
            Claim(
                better=row_name(more),
                worse=row_name(fewer),
                metrics=(metric,),
                kind="level" if level else "above",
                paper=f"table 6, mean: {name} {figures[more]} against {figures[fewer]}; {extended}",
            )
        )
    return orderings[0], orderings[1]


MAO_DIMS = Table(
    name="mao_dims",
    title="Dimension reduction: how few dimensions are enough",
    paper="Mao and Nakagawa 2023, table 6.",
    budget="a dense layer on the frozen LaBSE, 5,000 steps of 8,192 sentences in 109 languages.",
    ours="A dense layer stands on a frozen static student of 768 dimensions, which has learnt to rank translations "
    "with an additive margin. It learns French and Russian with English. Tatoeba has 1,000 candidates and French news "
    "has 10,000.",
    sweep="search_spaces/reproduce/mao_dims.yaml",
    before=("search_spaces/reproduce/mao_dims_start.yaml",),
    start_name="768, the frozen encoder",
    from_scratch=False,
    rows=tuple(Row(name=row_name(dim), settings={"dim": dim}) for dim in DIMS),
    columns=(Column(metric=FEW, title="Tatoeba, 1,000"), Column(metric=MANY, title="news, 10,000")),
    claims=tuple(
        claim for more, fewer in ((768, 512), (768, 128), *itertools.pairwise(DIMS)) for claim in claims(more, fewer)
    ),
    rates=(5e-4, 3e-3),
)

LONGER = 4  # how many times as many pairs the experiment's rows see


def longer(dim: int) -> Row:
    """The layer of this many dimensions, trained for longer."""
    return Row(name=f"{row_name(dim)}, longer", settings={"dim": dim}, changes=(f"training.pairs={60_000 * LONGER}",))


MAO_DIMS_LONGER = Table(
    name="mao_dims_longer",
    title="Dimension reduction: whether the layer needs longer",
    paper="A table of our own, on orders that `mao_dims` does not find.",
    budget="",
    ours=f"Three layers of `mao_dims` see {LONGER} times as many pairs.",
    sweep=MAO_DIMS.sweep,
    before=MAO_DIMS.before,
    start_name=MAO_DIMS.start_name,
    from_scratch=False,
    rows=(Row(name=row_name(512), settings={"dim": 512}), longer(512), longer(384), longer(256)),
    columns=MAO_DIMS.columns,
    claims=(
        Claim(
            better=longer(512).name, worse=row_name(512), metrics=(FEW, MANY), paper="the layer is trained too briefly"
        ),
        Claim(better=START, worse=longer(512).name, metrics=(FEW,), kind="level", paper="the start is level then"),
        Claim(
            better=longer(384).name, worse=longer(256).name, metrics=(MANY,), kind="level", paper="they are level then"
        ),
    ),
    rates=MAO_DIMS.rates,
)

MAO_DIMS_192 = replace(
    MAO_DIMS,
    name="mao_dims_192",
    title="Dimension reduction: 192 dimensions",
    budget="",
    ours="The row of 192 dimensions, which `mao_dims` lacks, with its two neighbours. They are trained as there.",
    rows=tuple(Row(name=row_name(dim), settings={"dim": dim}) for dim in (256, 192, 128)),
    claims=(*claims(256, 192), *claims(192, 128)),
)
