"""Students and teachers of soft contrastive learning: Park et al. 2024, tables 1 and 12."""

from __future__ import annotations

from benchmarks.tables.definition import UNTRAINED, Claim, Row, Table
from benchmarks.tables.park import BITEXT, ENGLISH, FLORES, LOGGED, OF_ENGLISH, OF_FLORES, OF_OTHER, OF_TATOEBA, OTHER

ALIGNED, FRESH = "aligned", "fresh"
OWN, FIVE, PARENT = "own", "five languages", "English"
STUDENTS = {
    ALIGNED: (),
    FRESH: ("student={kind: static, width: 256, vocabulary: 12000, max_tokens: 64, projection: teacher}",),
}
"""What each student changes in the sweep file."""
TEACHERS = {
    OWN: (),
    FIVE: ("teacher.model='models:/park_pairs_start@champion'",),
    PARENT: ("teacher={model: 'bundled:all-MiniLM-L6-v2', languages: [eng], max_tokens: 64}",),
}
"""What each teacher changes in the sweep file."""


def both(metric: str) -> tuple[str, ...]:
    """What the paper says of Tatoeba is asked of FLORES too."""
    return (BITEXT, FLORES) if metric == BITEXT else (metric,)


def grid(student: str, teacher: str) -> str:
    """The row of a student and a teacher."""
    return f"{student} student, {teacher}"


PARK_TEACHERS = Table(
    name="park_teachers",
    title="Soft contrastive learning: students and teachers",
    paper="Park et al. 2024, tables 1 and 12, English with French and with Russian.",
    budget="up to 30 epochs on OPUS with two RTX 3090 in batches of 32. The students are multilingual E5-base and "
    "XLM-R, the teachers multilingual E5-base, E5-base and MPNet.",
    ours="A static student learns French and Russian with English, with priority labels and without TCM. It goes on "
    "from an aligned one, or begins with random vectors. Its teacher is the aligned student, a static model of five "
    "languages, or all-MiniLM-L6-v2. Both static models were distilled from the last, which knows English alone. "
    "*Untrained* is the aligned student.",
    sweep="search_spaces/reproduce/park_teachers.yaml",
    before=("search_spaces/reproduce/park_start.yaml", "search_spaces/reproduce/park_pairs_start.yaml"),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=tuple(
        Row(name=grid(student, teacher), changes=(*shape, *encoder))
        for student, shape in STUDENTS.items()
        for teacher, encoder in TEACHERS.items()
    ),
    columns=(
        OF_TATOEBA,
        OF_FLORES,
        OF_ENGLISH,
        OF_OTHER,
    ),
    logged=LOGGED,
    claims=(
        *(
            Claim(
                better=grid(student, better),
                worse=grid(student, worse),
                metrics=both(metric),
                paper=f"table 1, en-fr, the teachers mE5 and E5: {figures}",
            )
            for student, better, worse, metric, figures in (
                (ALIGNED, OWN, PARENT, BITEXT, "0.963 and 0.956"),
                (ALIGNED, OWN, PARENT, ENGLISH, "0.783 and 0.764"),
                (ALIGNED, PARENT, OWN, OTHER, "0.775 and 0.782"),
                (FRESH, OWN, PARENT, BITEXT, "0.951 and 0.949"),
                (FRESH, OWN, PARENT, ENGLISH, "0.699 and 0.692"),
                (FRESH, PARENT, OWN, OTHER, "0.744 and 0.747"),
            )
        ),
        *(
            Claim(
                better=grid(ALIGNED, OWN),
                worse=grid(FRESH, OWN),
                metrics=both(metric),
                paper=f"table 1, en-fr, the students mE5 and XLM-R: {figures}",
            )
            for metric, figures in (
                (BITEXT, "0.963 and 0.951"),
                (ENGLISH, "0.783 and 0.699"),
                (OTHER, "0.775 and 0.744"),
            )
        ),
        Claim(
            better=grid(ALIGNED, OWN),
            worse=UNTRAINED,
            metrics=(BITEXT, FLORES),
            paper="table 12, en-ko: 0.912 against 0.875",
        ),
        Claim(
            better=UNTRAINED, worse=grid(ALIGNED, OWN), metrics=(ENGLISH,), paper="table 12, en-ko: 0.802 against 0.771"
        ),
    ),
    rates=(3e-4, 3e-3),
)
