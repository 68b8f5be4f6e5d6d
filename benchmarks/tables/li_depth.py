"""Depth and dropout of aligners on a frozen encoder: Li's report, table 2."""

import itertools

from babeltune.schema.records import Scalar
from benchmarks.tables.definition import START, Claim, Column, Row, Table

FOUND, MIXED = "test/ntrex/accuracy", "test/sib200/mixed/ari"
ENGLISH, CHINESE = "test/sib200/eng/ari", "test/sib200/zho/ari"
TOPICS = (MIXED, ENGLISH, CHINESE)
CONTRAST = "table 2, best valid contrastive accuracy: {} against {}; extended by us to NTREX"
CLUSTERS = "table 2, test ARI: {} against {}; extended by us to SIB-200 and to each language alone"


def aligners(name: str, depth: int, dropout: float | None = None) -> Row:
    """Aligners of one depth; those without an inner layer have no dropout."""
    settings: dict[str, Scalar] = {"depth": depth} if dropout is None else {"depth": depth, "dropout": dropout}
    return Row(name=name, settings=settings, when={} if dropout is None else {"dropout": {"depth": [1, 2]}})


def deeper(better: str, worse: str, contrast: tuple[str, str], clusters: tuple[str, str]) -> tuple[Claim, Claim]:
    """The printed order of two depths."""
    setting = ", without dropout" if "no dropout" in worse else ""
    return (
        Claim(better=better, worse=worse, metrics=(FOUND,), paper=CONTRAST.format(*contrast) + setting),
        Claim(better=better, worse=worse, metrics=TOPICS, paper=CLUSTERS.format(*clusters) + setting),
    )


LI_DEPTH = Table(
    name="li_depth",
    title="Bilingual aligners: depth and dropout",
    paper="Li, table 2, English and Chinese.",
    budget="50 epochs over 104,858 pairs on a laptop, on a frozen multilingual DistilBERT that is not aligned. "
    "Clusters are those of biological titles.",
    ours="The frozen encoder is a static student of 384 dimensions, which is aligned already. Aligners have 512 inner "
    "and 384 outer units, and the loss with `reading: fixed`. NTREX has 1,997 candidates. Clusters are those of "
    "SIB-200's 510 sentences. Dropout is 0.5, as in the authors' code, unless the row says none.",
    sweep="search_spaces/reproduce/li_depth.yaml",
    before=("search_spaces/reproduce/li_start.yaml",),
    start_name="the frozen encoder",
    from_scratch=False,
    rows=(
        aligners("depth -1", -1),
        aligners("depth 0", 0),
        aligners("depth 1", 1, 0.5),
        aligners("depth 2", 2, 0.5),
        aligners("depth 1, no dropout", 1, 0.0),
        aligners("depth 2, no dropout", 2, 0.0),
    ),
    columns=(
        Column(metric=FOUND, title="NTREX, 1,997"),
        Column(metric=MIXED, title="ARI, mixed"),
        Column(metric=ENGLISH, title="ARI, English"),
        Column(metric=CHINESE, title="ARI, Chinese"),
    ),
    claims=tuple(
        itertools.chain(
            [
                Claim(
                    better=START,
                    worse="depth -1",
                    metrics=TOPICS,
                    paper=CLUSTERS.format("0.0317 of DistilBERT", "0.0224"),
                )
            ],
            deeper("depth -1", "depth 0", ("0.9823", "0.9623"), ("0.0224", "0.0192")),
            deeper("depth 0", "depth 1", ("0.9623", "0.9432"), ("0.0192", "0.0166")),
            deeper("depth 1", "depth 2", ("0.9432", "0.8537"), ("0.0166", "0.0079")),
            deeper("depth -1", "depth 2", ("0.9823", "0.8537"), ("0.0224", "0.0079")),
            deeper("depth -1", "depth 2, no dropout", ("0.9823", "0.8537"), ("0.0224", "0.0079")),
        )
    ),
    rates=(3e-4, 3e-3),
    heat_map=True,
)
