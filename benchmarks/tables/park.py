"""Shared parts of the tables of Park et al. 2024: sealed scores, temperatures, and what soft labels log."""

from benchmarks.tables.definition import Claim, Column

BITEXT, FLORES = "test/tatoeba/accuracy", "test/flores/accuracy"
ENGLISH, OTHER = "test/sts_eng/spearman", "test/sts_other/spearman"
OF_TATOEBA, OF_FLORES = Column(metric=BITEXT, title="Tatoeba"), Column(metric=FLORES, title="FLORES")
OF_ENGLISH, OF_OTHER = Column(metric=ENGLISH, title="STS English"), Column(metric=OTHER, title="STS French, Russian")
COLUMNS = (OF_TATOEBA, OF_FLORES, OF_ENGLISH, OF_OTHER)
LOGGED = {"train/label_entropy": "label entropy, of log N", "train/label_own": "own pair"}
"""Metric of the training -> its title: how hard the teacher's labels are."""
MATCHED = 0.75
"""The temperature at which the own pair has about .09 of a label over 32 sentences, as cosines between .75 and 1 have
at the paper's 0.1. Multilingual E5's lie there; those of a static model are spread wider."""
FIVE_MATCHED = 0.75  # the same for the static teacher of five languages
PARENT_MATCHED = 0.8  # the same for all-MiniLM-L6-v2
TEMPERATURE_SAID = (
    f"The temperature is {MATCHED:g}: so the own pair has about .09 of a label, as cosines of multilingual E5 have at "
    "the paper's 0.1."
)
SETS_SAID = (
    "STS is STS-B, in other languages than English by machine translation, where the paper has STS22. FLORES is the "
    "accuracy over the 510 sentences that SIB-200 has, where the paper has xSIM errors."
)
EXTENDED = "extended by us"
"""Begins what is said of an order in a score, a language or a setting that the paper does not print."""


ON_FLORES = f"{EXTENDED} to FLORES"


def orders(better: str, worse: str, figures: dict[str, str]) -> list[Claim]:
    """One claim for each metric, with what is printed of it."""
    return [Claim(better=better, worse=worse, metrics=(metric,), paper=paper) for metric, paper in figures.items()]
