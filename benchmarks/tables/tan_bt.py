"""Back-translated text, with and without contrastive distillation: Tan et al. 2023, tables 2 and 6, appendix C."""

from benchmarks.tables.back_translation import PAIRS, SENTENCES, write_translations
from benchmarks.tables.definition import Claim, Column, Row, Table

XSIM, FOUND = "test/flores/xsim_error_forward", "test/flores/accuracy"
BOTH = (XSIM, FOUND)
EXTENDED = "extended by us to our languages and accuracy"
FIRST = 6  # the place of the first back-translated text among the sweep file's
CLEAN = tuple(f"data.train.{FIRST + i}.train=false" for i in range(len(PAIRS)))  # trains on the clean pairs alone
FROM_BOTH = "student={kind: static, start: models:/tan_bt_start@champion}"


def level(better: str, worse: str, paper: str) -> Claim:
    """Where the paper sees no difference."""
    return Claim(better=better, worse=worse, metrics=BOTH, kind="level", margin=0.02, paper=paper)


TAN_BT = Table(
    name="tan_bt",
    title="LASER3-CO: back-translation",
    paper="Tan et al. 2023, tables 2 and 6 and appendix C.",
    budget="at most 3 million back-translated pairs of each language, whose text NLLB-200 with 1.3 billion parameters "
    "translated into English.",
    ours="No text of the languages alone is at hand. So English news is translated into Hausa, Kinyarwanda, Swahili "
    f"and Zulu, {SENTENCES:,} sentences each. The translator is IBM model 1, a statistical one, which learns from the "
    "clean pairs. One static student for the four languages goes on from a distilled one. *BT* has both texts, and "
    "the others have the clean pairs alone. *BT, then CO* begins with a student that was distilled on both. The "
    "teacher is all-MiniLM-L6-v2, which encodes the English side of every set. The scores are of the 510 sentences of "
    "FLORES that SIB-200 has. *Untrained* is the student that was distilled on clean pairs.",
    sweep="search_spaces/reproduce/tan_bt.yaml",
    text=write_translations,
    before=("search_spaces/reproduce/tan_start.yaml", "search_spaces/reproduce/tan_bt_start.yaml"),
    start="models:/tan_start@champion",
    from_scratch=False,
    rows=(
        Row(name="LASER3", settings={"variant": "laser3"}, changes=CLEAN),
        Row(name="LASER3, BT", settings={"variant": "laser3"}),
        Row(name="CO", settings={"variant": "co"}, changes=CLEAN),
        Row(name="CO, BT", settings={"variant": "co"}),
        Row(name="BT, then CO", settings={"variant": "co"}, changes=(FROM_BOTH, *CLEAN)),
    ),
    columns=(Column(metric=XSIM, title="xSIM error"), Column(metric=FOUND, title="accuracy")),
    claims=(
        level(
            "LASER3, BT",
            "LASER3",
            "appendix C, African languages: a statistical translator was not useful; "
            f"table 6, with NLLB-200: 6.7 against 13.7; {EXTENDED}",
        ),
        Claim(
            better="BT, then CO",
            worse="LASER3, BT",
            metrics=BOTH,
            paper=f"table 6, xSIM error, mean: 4.2 against 6.7; {EXTENDED}, and to our translator",
        ),
        Claim(
            better="BT, then CO",
            worse="CO",
            metrics=BOTH,
            paper=f"appendix C, extremely low-resource languages; {EXTENDED}, and to our translator",
        ),
        level("CO, BT", "CO", f"appendix C: no noticeable improvement; {EXTENDED}, and to our translator"),
    ),
    rates=(1e-4, 1e-3),
)
