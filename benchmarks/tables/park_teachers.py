"""Students and teachers of soft contrastive learning: Park et al. 2024, tables 1 and 12."""

import itertools

from benchmarks.tables.definition import UNTRAINED, Row, Table
from benchmarks.tables.park import (
    BITEXT,
    COLUMNS,
    ENGLISH,
    FIVE_MATCHED,
    FLORES,
    LOGGED,
    MATCHED,
    ON_FLORES,
    OTHER,
    PARENT_MATCHED,
    SETS_SAID,
    orders,
)

ALIGNED, FRESH = "aligned", "fresh"
OWN, FIVE, PARENT = "own", "five languages", "English"
STUDENTS = {
    ALIGNED: (),
    FRESH: ("student={kind: static, width: 256, vocabulary: 12000, max_tokens: 64, projection: teacher}",),
}
"""The changes of the sweep file for each student."""
TEACHERS = {
    OWN: (),
    FIVE: ("teacher.model='models:/park_pairs_start@champion'",),
    PARENT: ("teacher={model: 'bundled:all-MiniLM-L6-v2', languages: [eng], max_tokens: 64}",),
}
"""The changes of the sweep file for each teacher."""
TEMPERATURES = {OWN: MATCHED, FIVE: FIVE_MATCHED, PARENT: PARENT_MATCHED}
"""The labels' temperature for each teacher, at which all labels are equally hard."""


def grid(student: str, teacher: str, labels: str = "priority") -> str:
    """The row of a student and a teacher."""
    return f"{student} student, {teacher}" + (f", {labels}" if labels != "priority" else "")


def row(student: str, teacher: str, labels: str = "priority") -> Row:
    """A student, a teacher, and labels that are as hard as all others."""
    return Row(
        name=grid(student, teacher, labels),
        settings={"labels": labels, "teacher_temperature": TEMPERATURES[teacher]},
        changes=(*STUDENTS[student], *TEACHERS[teacher]),
    )


GRID = [row(student, teacher) for student in STUDENTS for teacher in TEACHERS]
AVERAGES = [row(student, OWN, "average") for student in STUDENTS]
PARK_TEACHERS = Table(
    name="park_teachers",
    title="Soft contrastive learning: students and teachers",
    paper="Park et al. 2024, tables 1 and 12, English with French and with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32. The students are multilingual E5-base and "
    "XLM-R, the teachers multilingual E5-base, E5-base and MPNet.",
    ours="A static student learns French and Russian with English, without TCM. It goes on from an aligned one, or "
    "begins with random vectors. Its teacher is the aligned student, a static model of five languages, or "
    "all-MiniLM-L6-v2. Both static models were distilled from the last, which knows English alone and is made as the "
    f"paper's MPNet is. The student's temperature is {MATCHED:g}. Each teacher's is the one at which the own pair has "
    "about .09 of a label, as cosines of multilingual E5 have at the paper's 0.1. *Untrained* is the aligned student. "
    "The STS of a fresh student's random vectors is above that of any trained one, so its orders in STS say little. "
    f"{SETS_SAID}",
    sweep="search_spaces/reproduce/park_teachers.yaml",
    before=("search_spaces/reproduce/park_start.yaml", "search_spaces/reproduce/park_pairs_start.yaml"),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=tuple(GRID + AVERAGES),
    columns=COLUMNS,
    logged=LOGGED,
    claims=tuple(
        itertools.chain(
            orders(
                grid(ALIGNED, OWN),
                grid(ALIGNED, PARENT),
                {
                    BITEXT: "table 1, en-fr, student mE5, teachers mE5 and MPNet: 0.963 and 0.944 (E5: 0.956)",
                    FLORES: ON_FLORES,
                    ENGLISH: "table 1, en-fr, the same: 0.783 and 0.706 (E5: 0.764)",
                },
            ),
            orders(
                grid(ALIGNED, PARENT),
                grid(ALIGNED, OWN),
                {OTHER: "table 1, French, teachers MPNet and mE5: 0.785 and 0.775; Korean 0.685 and 0.762"},
            ),
            orders(
                grid(FRESH, OWN),
                grid(FRESH, PARENT),
                {
                    BITEXT: "table 1, en-fr, student XLM-R, teachers mE5 and MPNet: 0.951 and 0.942 (E5: 0.949)",
                    FLORES: ON_FLORES,
                    ENGLISH: "table 1, en-fr, the same: 0.699 and 0.637 (E5: 0.692)",
                },
            ),
            orders(
                grid(FRESH, PARENT),
                grid(FRESH, OWN),
                {OTHER: "table 1, French, teachers MPNet and mE5: 0.761 and 0.744; Korean 0.650 and 0.707"},
            ),
            orders(
                grid(ALIGNED, OWN),
                grid(FRESH, OWN),
                {
                    BITEXT: "table 1, en-fr, students mE5 and XLM-R: 0.963 and 0.951",
                    FLORES: ON_FLORES,
                    ENGLISH: "table 1, en-fr, the same: 0.783 and 0.699",
                    OTHER: "table 1, French, the same: 0.775 and 0.744",
                },
            ),
            orders(
                grid(ALIGNED, PARENT),
                grid(FRESH, PARENT),
                {
                    BITEXT: "table 1, en-fr, teacher MPNet, students mE5 and XLM-R: 0.944 and 0.942",
                    ENGLISH: "table 1, en-fr, the same: 0.706 and 0.637",
                    OTHER: "table 1, French, the same: 0.785 and 0.761",
                },
            ),
            orders(
                grid(ALIGNED, OWN, "average"),
                grid(FRESH, OWN, "average"),
                {
                    BITEXT: "table 12, en-ko, students mE5 and XLM-R: 0.912 and 0.904",
                    FLORES: ON_FLORES,
                    ENGLISH: "table 12, en-ko, the same: 0.771 and 0.698",
                    OTHER: "table 12, Korean, the same: 0.757 and 0.707",
                },
            ),
            orders(
                grid(ALIGNED, OWN, "average"),
                UNTRAINED,
                {BITEXT: "table 12, en-ko: 0.912 against 0.875", FLORES: ON_FLORES},
            ),
            orders(
                UNTRAINED,
                grid(ALIGNED, OWN, "average"),
                {ENGLISH: "table 12, en-ko: 0.802 against 0.771", OTHER: "table 12, Korean: 0.777 against 0.757"},
            ),
        )
    ),
    rates=(1e-4, 3e-4, 1e-3),
)
