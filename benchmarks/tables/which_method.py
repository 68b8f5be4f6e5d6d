"""A leaderboard of our own: each paper's method and sums of them, at equal compute on the same text."""

from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.schema.records import Scalar
from benchmarks.tables.choices import NO_STUDENT
from benchmarks.tables.definition import MEGABYTES, PAIRS, Claim, Column, Row, Table

EVERYDAY, LONG = "test/tatoeba/accuracy", "test/flores/accuracy"
ENGLISH, OTHER = "test/sts_eng/spearman", "test/sts_other/spearman"
OURS, RANKED = "LASER3-CO + margin", "LASER3-CO + mUSE"
SETTINGS = (
    "{laser3_co: {variant: in_batch}, lealla: {beta: 0, gamma: 0}, translation_ranking: {hard_negatives: 0}, "
    "mse_distillation: {}}"
)
COMBINED = ("method=combined", f"config={{laser3_co: 1, settings: {SETTINGS}}}")
"""The terms of `search_spaces/encoder.yaml`, and mUSE in place of the margin, each at its defaults."""
MARGIN: dict[str, Scalar] = {"lealla": 1.0, "translation_ranking": 0.0}
RANKING: dict[str, Scalar] = {"lealla": 0.0, "translation_ranking": 1.0}
PAPERS = ("method=soft_contrastive",)  # the sweep whose methods are searched
SMALL = ("training.global_batch=128",)  # batches of methods whose negatives are not those of the batch
QUARTER, REST = "training.compute=3.75", "training.compute=11.25"
"""Parts of the compute of a row. Layers have a quarter, as their encoder has cost the rest. Transformers have the rest,
as their tokens have cost a quarter."""
ENCODER = (
    NO_STUDENT,
    'teacher={model: "models:/which_method_start@champion", languages: [eng, fra, jpn, kor, rus], max_tokens: 64}',
    QUARTER,
)
TRANSFORMER = (
    'student={embeddings_from: "models:/which_method_tokens@champion", layers: 1, width: 128, heads: 4, '
    "feed_forward: 256, max_tokens: 64, projection: %s}"
)
FEW = ("training.global_batch=8", "training.embedding_learning_rate=1", REST)


def of_paper(name: str, method: str, *more: str, **settings: Scalar) -> Row:
    """A paper's method on the static student."""
    when: dict[str, dict[str, Scalar | list[Scalar]]] = {key: {"method": method} for key in settings}
    return Row(name=name, settings={"method": method, **settings}, when=when, changes=(*PAPERS, *more))


STATIC = (
    of_paper("soft contrastive", "soft_contrastive"),
    of_paper("LEALLA", "lealla"),
    of_paper("mUSE", "translation_ranking", hard_negatives=0),
    of_paper("LASER3-CO", "laser3_co", *SMALL, variant="co"),
    of_paper("LASER3-CO-Filter", "laser3_co", *SMALL, variant="co_filter"),
    of_paper("MSE", "mse_distillation", *SMALL),
)
LAYERS = (
    Row(name="MSE, then dimension reduction", changes=("method=dimension_reduction", *ENCODER)),
    Row(name="MSE, then bilingual aligners", changes=("method=bilingual_aligner", *ENCODER)),
)

TRANSFORMERS = (
    Row(name=f"{OURS}, Transformer", settings=MARGIN, changes=(*COMBINED, TRANSFORMER % "teacher", *FEW)),
    Row(name="ML-CTL, Transformer", changes=("method=ml_ctl", TRANSFORMER % "null", *FEW)),
)
BEST_OF_ALL = tuple(
    Claim(better=OURS, worse=row.name, metrics=(EVERYDAY, LONG, ENGLISH), paper="search_spaces/encoder.yaml")
    for row in (Row(name=RANKED), *STATIC)
)
WHICH_METHOD = Table(
    name="which_method",
    title="Which method: all of them at equal compute",
    paper="A leaderboard of our own.",
    budget="",
    ours="English with French, Russian, Japanese and Korean: 36,000 pairs of everyday sentences, news and manuals. "
    "The teacher is all-MiniLM-L6-v2, which knows English alone. Compute is counted and not timed, and each row has "
    "the same. Every method has the package's defaults, and learning rates alone are searched, from the same three. "
    "The terms of a sum have their own defaults and weights of 1. mUSE has no mined negatives. *Margin* is LEALLA's "
    "additive margin without distillation. Students are static, with 384 dimensions and 24,000 tokens. Dimension "
    "reduction and aligners are layers on a frozen static student, which MSE trained in three quarters of the compute. "
    "Their parameters and speed are those of the layers alone. "
    "Two Transformers have one layer of 128. They begin with the 8,000 tokens of a small static student, which MSE "
    "trained in a quarter of the compute. A row's steps are its pairs over its batch. Batches have 512 pairs, but 128 "
    "for LASER3-CO, LASER3-CO-Filter and MSE, whose negatives are not those of the batch. Transformers see few pairs, "
    "so their batches have 8.",
    sweep="search_spaces/reproduce/which_method.yaml",
    before=("search_spaces/reproduce/which_method_start.yaml", "search_spaces/reproduce/which_method_tokens.yaml"),
    rows=(
        Row(name=OURS, settings=MARGIN, changes=COMBINED),
        Row(name=RANKED, settings=RANKING, changes=COMBINED),
        *STATIC,
        *LAYERS,
        *TRANSFORMERS,
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
    limits="One text, one small budget and one weak teacher decide these figures. At other settings, with more text "
    "or after a longer training the order may be another. The weights of `search_spaces/encoder.yaml` were searched, "
    "so no row has them. [How large a margin](margins.md) shows what they do at the same compute. A Transformer sees "
    "few pairs here. A pretrained one was not tried, and ML-CTL is meant for one. Bilingual aligners are meant for an "
    "encoder that is not aligned, and dimension reduction for one that is aligned better. For your own text run a "
    "sweep over the rows that are best here.",
    claims=BEST_OF_ALL,
    rates=(3e-4, 1e-3, 3e-3),
)
