"""Why an English teacher is above the own one: both teachers with labels that are about equally hard."""

from __future__ import annotations

from benchmarks.tables.definition import Claim, Row, Table
from benchmarks.tables.park import BITEXT, FLORES, LOGGED, OF_ENGLISH, OF_FLORES, OF_OTHER, OF_TATOEBA, OTHER
from benchmarks.tables.park_teachers import PARENT, TEACHERS

TEMPERATURES = (0.1, 0.13, 0.15)
"""Temperatures of the English teacher's labels. At 0.13 they are about as hard as the own teacher's at 0.1."""
OWN = "own, 0.1"
REASON = "at equal hardness the own teacher is above"


def english(temperature: float) -> str:
    """The row of the English teacher at this temperature."""
    return f"English, {temperature:g}"


PARK_HARDNESS = Table(
    name="park_hardness",
    title="Soft contrastive learning: teachers whose labels are equally hard",
    paper="A table of our own, on orders that `park_teachers` does not find.",
    budget="",
    ours="As in the table of students and teachers, the aligned static student goes on with priority labels and "
    "without TCM. Its teacher is the aligned student itself at temperature 0.1, or all-MiniLM-L6-v2 at several. "
    "*Own pair* shows how hard the labels are. *Untrained* is the aligned student.",
    sweep="search_spaces/reproduce/park_teachers.yaml",
    before=("search_spaces/reproduce/park_start.yaml",),
    start="models:/park_start@champion",
    from_scratch=False,
    rows=(
        Row(name=OWN, settings={"teacher_temperature": 0.1}),
        *(Row(name=english(t), settings={"teacher_temperature": t}, changes=TEACHERS[PARENT]) for t in TEMPERATURES),
    ),
    columns=(OF_TATOEBA, OF_FLORES, OF_ENGLISH, OF_OTHER),
    logged=LOGGED,
    claims=(
        Claim(better=OWN, worse=english(0.13), metrics=(BITEXT, FLORES), paper=REASON),
        Claim(better=english(0.13), worse=OWN, metrics=(OTHER,), paper="at equal hardness the English one is above"),
        Claim(better=english(0.1), worse=english(0.15), metrics=(BITEXT,), paper="harder labels are above"),
    ),
    rates=(1e-4, 3e-4),
)
