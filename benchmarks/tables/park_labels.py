"""Labels of contrastive learning: Park et al. 2024, tables 2 and 4."""

import itertools

from babeltune.schema.records import Scalar
from benchmarks.tables.definition import UNTRAINED, Row, Table
from benchmarks.tables.park import (
    BITEXT,
    COLUMNS,
    ENGLISH,
    EXTENDED,
    FLORES,
    LOGGED,
    MATCHED,
    ON_FLORES,
    OTHER,
    SETS_SAID,
    TEMPERATURE_SAID,
    orders,
)

TEMPERATURES = (0.1, 0.2, 0.5)  # other temperatures of labels and student
SOFT: dict[str, Scalar] = {"method": "soft_contrastive"}
WHEN: dict[str, dict[str, Scalar | list[Scalar]]] = {
    name: {"method": "soft_contrastive"} for name in ("labels", "tcm", "temperature")
}
"""Settings that the other methods of these tables do not have."""
HARD, AVERAGE, PRIORITY, BEST = "hard", "average", "priority", "priority + TCM"
NO_TEMPERATURE = f"{EXTENDED} to this temperature"


def labelled(name: str, labels: str, *, tcm: bool, temperature: float = MATCHED) -> Row:
    """A row of hard or soft labels. One temperature serves labels and student, as in the authors' code."""
    return Row(name=name, settings=SOFT | {"labels": labels, "tcm": tcm, "temperature": temperature}, when=WHEN)


def at(name: str, temperature: float) -> str:
    """The row with another temperature."""
    return f"{name}, {temperature:g}"


PARK_LABELS = Table(
    name="park_labels",
    title="Soft contrastive learning: the labels",
    paper="Park et al. 2024, tables 2 and 4, English with French and with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32, from multilingual E5-base, the teacher too.",
    ours="A static student goes on from an aligned one, which is the teacher too. It learns French and Russian with "
    f"English. {TEMPERATURE_SAID} Rows with a number have that temperature instead, and mUSE has its own, 0.05. "
    f"*Untrained* is the student that it goes on from. {SETS_SAID}",
    sweep="search_spaces/reproduce/park_labels.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=(
        labelled(HARD, "hard", tcm=False),
        labelled("hard + TCM", "hard", tcm=True),
        labelled(AVERAGE, "average", tcm=False),
        labelled("average + TCM", "average", tcm=True),
        labelled(PRIORITY, "priority", tcm=False),
        labelled(BEST, "priority", tcm=True),
        labelled(at(HARD, 0.1), "hard", tcm=False, temperature=0.1),
        *(labelled(at(BEST, t), "priority", tcm=True, temperature=t) for t in TEMPERATURES),
        Row(name="MSE", settings={"method": "mse_distillation"}),
        Row(name="mUSE", settings={"method": "translation_ranking"}),
    ),
    columns=COLUMNS,
    logged=LOGGED,
    claims=tuple(
        itertools.chain(
            orders(
                BEST,
                HARD,
                {
                    BITEXT: "table 2: en-fr 0.960 against 0.937, en-ru 0.951 against 0.949",
                    # On Tatoeba a loss may gain by learning what the training text is like. FLORES is unlike that text.
                    FLORES: ON_FLORES,
                    ENGLISH: "table 2: en-fr 0.796 against 0.675, en-ru 0.787 against 0.666",
                    OTHER: "table 2: French 0.791 against 0.748, Russian 0.616 against 0.545",
                },
            ),
            orders(
                BEST,
                "mUSE",
                {
                    BITEXT: "table 2: en-fr 0.960 against 0.950, en-ru 0.951 against 0.944",
                    FLORES: ON_FLORES,
                    ENGLISH: "table 2: en-fr 0.796 against 0.713, en-ru 0.787 against 0.720",
                    OTHER: "table 2: French 0.791 against 0.771, Russian 0.616 against 0.548",
                },
            ),
            orders(
                BEST,
                "MSE",
                {
                    BITEXT: "table 3, four pairs: 0.949 against 0.942",
                    FLORES: "table 3, four pairs: xSIM error 0.02 against 0.05",
                    OTHER: "table 2: French 0.791 against 0.704, Russian 0.616 against 0.601",
                },
            ),
            orders("MSE", BEST, {ENGLISH: "table 2: en-fr 0.803 against 0.796, en-ru 0.804 against 0.787"}),
            orders(
                AVERAGE,
                PRIORITY,
                {
                    BITEXT: "table 5, five languages: 0.948 against 0.942; table 4 has both orders",
                    FLORES: "table 5, five languages: xSIM error 0.04 against 0.05",
                    OTHER: "table 4: French 0.794 against 0.775, Russian 0.612 against 0.607",
                },
            ),
            orders(PRIORITY, AVERAGE, {ENGLISH: "table 4: en-fr 0.783 against 0.767, en-ru 0.781 against 0.775"}),
            orders(
                BEST,
                PRIORITY,
                {
                    FLORES: "table 5, five languages: xSIM error 0.02 against 0.05",
                    ENGLISH: "table 4: en-fr 0.796 against 0.783, en-ru 0.787 against 0.781",
                    OTHER: "table 4: French 0.791 against 0.775, Russian 0.616 against 0.607",
                },
            ),
            orders(
                PRIORITY,
                BEST,
                {BITEXT: "table 4: en-fr 0.963 against 0.960, en-ru 0.953 against 0.951; table 5 has the other order"},
            ),
            orders(
                BEST,
                at(HARD, 0.1),
                dict.fromkeys(
                    (BITEXT, FLORES, ENGLISH, OTHER), f"{EXTENDED} to hard labels at a temperature that suits them"
                ),
            ),
            orders(
                "average + TCM",
                AVERAGE,
                dict.fromkeys((BITEXT, FLORES, ENGLISH, OTHER), f"{EXTENDED} to average labels"),
            ),
            orders(
                BEST,
                UNTRAINED,
                {
                    BITEXT: "table 5, five languages: 0.949 against 0.923",
                    FLORES: "table 5, five languages: xSIM error 0.02 against 0.16",
                    OTHER: "table 2: French 0.791 against 0.781, Russian 0.616 against 0.615",
                },
            ),
            orders(UNTRAINED, BEST, {ENGLISH: "table 2: 0.802 against 0.796 (en-fr) and 0.787 (en-ru)"}),
            orders(
                UNTRAINED,
                HARD,
                {
                    ENGLISH: "table 2: 0.802 against 0.675 (en-fr) and 0.666 (en-ru)",
                    OTHER: "table 2: French 0.781 against 0.748, Russian 0.615 against 0.545",
                },
            ),
            orders(at(BEST, 0.1), at(HARD, 0.1), dict.fromkeys((BITEXT, FLORES, ENGLISH, OTHER), NO_TEMPERATURE)),
        )
    ),
    rates=(1e-4, 3e-4, 1e-3),
)
