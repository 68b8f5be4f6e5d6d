"""A leaderboard of our own: each paper's method and sums of them, at equal compute on the same text."""

from __future__ import annotations

from babeltune.evaluation.evaluate import PARAMETERS, SPEED
from babeltune.schema.records import Scalar
from benchmarks.tables.definition import MEGABYTES, PAIRS, Claim, Column, Row, Table

EVERYDAY, LONG = "test/tatoeba/accuracy", "test/flores/accuracy"
ENGLISH, OTHER = "test/sts_eng/spearman", "test/sts_other/spearman"
OURS, RANKED = "LASER3-CO + margin", "LASER3-CO + mUSE"
SETTINGS = (
    "{laser3_co: {variant: in_batch, temperature: 0.08}, lealla: {beta: 0, gamma: 0}, "
    "translation_ranking: {hard_negatives: 0, temperature: 0.05}}"
)
COMBINED = ("method=combined", f"config={{laser3_co: 1, settings: {SETTINGS}}}")
"""The losses of `search_spaces/encoder.yaml`, and mUSE's in place of the margin, less their weights."""
MARGIN: dict[str, Scalar] = {"lealla": 3.6, "translation_ranking": 0.0}
RANKING: dict[str, Scalar] = {"lealla": 0.0, "translation_ranking": 3.6}
PAPERS = ("method=soft_contrastive",)
"""The sweep whose methods are searched."""
SCRATCH = "layers: 1, width: 256, heads: 4, feed_forward: 512, vocabulary: 24000, lowercase: true, max_tokens: 64"
FROM_SCRATCH = ("training.global_batch=128", "training.embedding_learning_rate=1")


def of_paper(name: str, method: str, **settings: Scalar) -> Row:
    """A paper's method on the static student."""
    when: dict[str, dict[str, Scalar | list[Scalar]]] = {key: {"method": method} for key in settings}
    return Row(name=name, settings={"method": method, **settings}, when=when, changes=PAPERS)


STATIC = (
    of_paper("soft contrastive", "soft_contrastive", labels="priority", tcm=True),
    of_paper("LASER3-CO", "laser3_co", variant="co"),
    of_paper("LEALLA", "lealla", beta=1000.0),
    of_paper("MSE", "mse_distillation"),
    of_paper("mUSE", "translation_ranking", hard_negatives=0),
)

WHICH_METHOD = Table(
    name="which_method",
    title="Which method: all of them at equal compute",
    paper="A leaderboard of our own.",
    budget="",
    ours="English with French, Russian, Japanese and Korean: 36,000 pairs of everyday sentences, news and manuals. "
    "Students are static, with 384 dimensions and 24,000 tokens, but for two Transformers of one layer. "
    "The teacher is all-MiniLM-L6-v2, which knows English alone. Static students have batches of 512, and "
    "Transformers of 128. Compute is counted and not timed, and each row has the same. Temperatures and "
    "weights are the defaults of each method, or those of `search_spaces/encoder.yaml`; only learning rates are "
    "searched. *Margin* is LEALLA's additive margin without distillation. Layers on a frozen encoder have tables of "
    "their own.",
    sweep="search_spaces/reproduce/which_method.yaml",
    rows=(
        Row(name=OURS, settings=MARGIN, changes=COMBINED),
        Row(name=RANKED, settings=RANKING, changes=COMBINED),
        *STATIC,
        Row(
            name=f"{OURS}, Transformer",
            settings=MARGIN,
            changes=(*COMBINED, f"student={{{SCRATCH}, projection: teacher}}", *FROM_SCRATCH),
        ),
        Row(name="ML-CTL, Transformer", changes=("method=ml_ctl", f"student={{{SCRATCH}}}", *FROM_SCRATCH)),
    ),
    columns=(
        Column(metric=EVERYDAY, title="Tatoeba"),
        Column(metric=LONG, title="FLORES"),
        Column(metric=ENGLISH, title="STS English"),
        Column(metric=OTHER, title="STS others"),
    ),
    logged={PAIRS: "pairs", PARAMETERS: "parameters", MEGABYTES: "MB", SPEED: "sentences a second"},
    uses={
        EVERYDAY: "find translations of everyday sentences",
        LONG: "find translations of long sentences",
        ENGLISH: "compare English sentences",
        OTHER: "compare sentences in the other languages",
    },
    limits="One text, one small budget and one weak teacher decide these figures. A method may need other "
    "temperatures, more text or a longer training. A Transformer from scratch sees few pairs here. A pretrained one "
    "was not tried, and ML-CTL is meant for one. For your own text run a sweep over the rows that are best here.",
    claims=tuple(
        Claim(better=OURS, worse=row.name, metrics=(EVERYDAY, LONG, ENGLISH), paper="search_spaces/encoder.yaml")
        for row in (Row(name=RANKED), *STATIC)
    ),
    rates=(3e-4, 1e-3, 3e-3),
)
