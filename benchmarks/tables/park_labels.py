"""Labels of contrastive learning: Park et al. 2024, tables 2 and 4."""

from __future__ import annotations

from babeltune.schema.records import Scalar
from benchmarks.tables.definition import UNTRAINED, Claim, Row, Table
from benchmarks.tables.park import BITEXT, ENGLISH, FLORES, LOGGED, OF_ENGLISH, OF_FLORES, OF_OTHER, OF_TATOEBA, OTHER

TEMPERATURES = (0.05, 0.1, 0.2, 0.5)
"""Temperatures of priority labels. The student has 0.1 in every row."""
MIDDLE = 0.1
"""Temperature of the labels in the other rows, which is the paper's."""
SOFT = {"method": "soft_contrastive"}


def labelled(name: str, labels: str, temperature: float, *, tcm: bool) -> Row:
    """A row of hard or soft labels."""
    settings: dict[str, Scalar] = {**SOFT, "labels": labels, "tcm": tcm, "teacher_temperature": temperature}
    return Row(
        name=name, settings=settings, when={"labels": {**SOFT}, "tcm": {**SOFT}, "teacher_temperature": {**SOFT}}
    )


PARK_LABELS = Table(
    name="park_labels",
    title="Soft contrastive learning: the labels",
    paper="Park et al. 2024, tables 2 and 4, English with French and with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32, from multilingual E5-base, the teacher too.",
    ours="A static student goes on from an aligned one, which is the teacher too. It learns French and Russian with "
    "English. *Untrained* is the student that it goes on from.",
    sweep="search_spaces/reproduce/park_labels.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=(
        labelled("hard", "hard", MIDDLE, tcm=False),
        labelled("hard + TCM", "hard", MIDDLE, tcm=True),
        *(labelled(f"priority, {t:g}", "priority", t, tcm=False) for t in TEMPERATURES),
        labelled("priority + TCM, 0.1", "priority", MIDDLE, tcm=True),
        labelled("average, 0.1", "average", MIDDLE, tcm=False),
        labelled("average + TCM, 0.1", "average", MIDDLE, tcm=True),
        Row(name="MSE", settings={"method": "mse_distillation"}),
        Row(name="mUSE", settings={"method": "translation_ranking"}),
    ),
    columns=(
        OF_TATOEBA,
        OF_FLORES,
        OF_ENGLISH,
        OF_OTHER,
    ),
    logged=LOGGED,
    claims=(
        # FLORES is unlike the training text: on Tatoeba a loss may gain by learning what that text is like.
        Claim(
            better="priority + TCM, 0.1",
            worse="hard",
            metrics=(BITEXT, FLORES),
            paper="table 2, Tatoeba: en-fr 0.960 against 0.937",
        ),
        Claim(
            better="priority + TCM, 0.1", worse="hard", metrics=(ENGLISH,), paper="table 2: en-fr 0.796 against 0.675"
        ),
        Claim(better="priority + TCM, 0.1", worse="hard", metrics=(OTHER,), paper="table 2: en-fr 0.791 against 0.748"),
        *(
            Claim(better="priority + TCM, 0.1", worse="mUSE", metrics=(metric,), paper=f"table 2: en-fr {figures}")
            for metric, figures in (
                (BITEXT, "0.960 against 0.950"),
                (FLORES, "Tatoeba 0.960 against 0.950"),
                (ENGLISH, "0.796 against 0.713"),
                (OTHER, "0.791 against 0.771"),
            )
        ),
        Claim(better="priority + TCM, 0.1", worse="MSE", metrics=(BITEXT,), paper="table 2: en-ru 0.951 against 0.945"),
        Claim(
            better="MSE", worse="priority + TCM, 0.1", metrics=(ENGLISH,), paper="table 2: en-fr 0.803 against 0.796"
        ),
        Claim(better="priority + TCM, 0.1", worse="MSE", metrics=(OTHER,), paper="table 2: en-fr 0.791 against 0.704"),
        Claim(
            better="priority, 0.1", worse="average, 0.1", metrics=(BITEXT,), paper="table 4: en-fr 0.963 against 0.959"
        ),
        Claim(
            better="priority + TCM, 0.1",
            worse="priority, 0.1",
            metrics=(ENGLISH,),
            paper="table 4: en-fr 0.796 against 0.783",
        ),
        Claim(
            better="priority + TCM, 0.1",
            worse="priority, 0.1",
            metrics=(OTHER,),
            paper="table 4: en-fr 0.791 against 0.775",
        ),
        Claim(
            better="priority + TCM, 0.1",
            worse=UNTRAINED,
            metrics=(BITEXT,),
            paper="table 2: en-fr 0.960 against 0.951",
        ),
        Claim(
            better="priority + TCM, 0.1", worse=UNTRAINED, metrics=(OTHER,), paper="table 2: en-fr 0.791 against 0.781"
        ),
        Claim(better=UNTRAINED, worse="hard", metrics=(ENGLISH,), paper="table 2: en-fr 0.802 against 0.675"),
    ),
    rates=(1e-4, 1e-3),
)
