"""A proposal of a sweep on a user's rows: teacher, student, lengths and budget for this machine."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from babeltune.apps.own_files.splits import LanguageSet
from babeltune.errors import DataError
from babeltune.models.hub import baseline_row
from babeltune.planning.rules import can_be_row
from babeltune.schema.languages import by_priority, known_by, meaning
from babeltune.schema.records import Teacher

LARGE = 20_000
"""Training rows from which the settings of `search_spaces/encoder.yaml` are taken, below it those of `static.yaml`."""
PASSES = 20  # times that a trial sees each row, within the bounds below
FEWEST_PAIRS, MOST_PAIRS = 40_000, 1_000_000
"""Pairs of a trial on two cores; a larger machine takes more, at most `MOST_TIMES` as many, and so does a GPU."""
MOST_TIMES = 8
TRIALS = 12
MOST_BASELINES = 3  # baselines that are proposed: each encodes all dev sets


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The facts by which a budget and a student are chosen."""

    cores: int
    gpu: bool  # whether torch sees one


def this_machine() -> MachineFacts:
    """The machine that `init` runs on."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return MachineFacts(cores=cores, gpu=torch.cuda.is_available())


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The numbers of the sweep file, and which student it has."""

    teacher: Teacher
    languages: tuple[str, ...]  # all languages, those that the teacher knows first
    rows: int  # training rows
    large: bool
    vocabulary: int
    pairs: int
    global_batch: int
    gpu: bool  # whether the student is a small Transformer, which a GPU trains; else it is static
    trials: int = TRIALS
    baselines: tuple[str, ...] = ()  # models to buy instead that are at hand


def teacher_of(model: str | None, languages: Sequence[str], knows: Sequence[str]) -> Teacher:
    """The teacher, and what it knows: `knows`, or English if the text has it, or else all languages of the text.

    Raises `DataError` for the bundled one, which knows English alone, if the text has no English."""
    if knows:
        return Teacher(languages=tuple(knows)) if model is None else Teacher(model=model, languages=tuple(knows))
    english = [language for language in languages if known_by(language, ("eng",))]
    if model is None:
        if not english:
            words = f"the bundled teacher knows English, and your text is in {', '.join(languages)}"
            strange = [language for language in languages if not meaning(language).is_language]
            words += f" ({', '.join(strange)}: no code of ISO 639)" if strange else ""
            todo = "name a teacher that knows one of these: --teacher sentence-transformers/LaBSE, or a folder; "
            todo += "a language that is misread is named with --columns eng=COLUMN,fra=COLUMN"
            raise DataError(f"{words}; {todo}")
        return Teacher(languages=tuple(english))
    return Teacher(model=model, languages=tuple(english or languages))


def check_sets(groups: Sequence[LanguageSet], teacher: Teacher) -> None:
    """`DataError` for a set whose languages the teacher does not know: nothing could be learnt from its rows."""
    for group in groups:
        if not any(known_by(language, teacher.languages) for language in group.texts):
            todo = "leave these files out, or name another --teacher, with --teacher-languages"
            words = f"the teacher knows {', '.join(teacher.languages)}, none of these languages"
            raise DataError(f"{group.name}: {words}; {todo}")


def baselines_among(models: Iterable[str], teacher: Teacher) -> tuple[str, ...]:
    """The first models that can be rows of a leaderboard beside each other, less the teacher, which has its row."""
    baselines: dict[str, str] = {}
    for name in models:
        if name != teacher.model and can_be_row(row := baseline_row(name)):
            baselines.setdefault(row, name)
    return tuple(baselines.values())[:MOST_BASELINES]


def propose(
    groups: Sequence[LanguageSet], teacher: Teacher, machine: MachineFacts, models: Iterable[str] = ()
) -> Proposal:
    """The sweep for these rows on this machine, with these models at hand."""
    languages = dict.fromkeys(language for group in groups for language in group.texts)
    rows = sum(group.size("train") for group in groups)
    times = MOST_TIMES if machine.gpu else max(1, min(MOST_TIMES, machine.cores // 2))
    vocabulary, global_batch = (4_000, 128) if rows < 2_000 else (8_000, 512) if rows < LARGE else (24_000, 1_024)
    return Proposal(
        teacher=teacher,
        languages=tuple(by_priority(languages, teacher.languages)),
        rows=rows,
        large=rows >= LARGE,
        vocabulary=vocabulary,
        pairs=round(min(MOST_PAIRS * times, max(FEWEST_PAIRS, PASSES * rows)), -3),
        gpu=machine.gpu,
        baselines=baselines_among(models, teacher),
        global_batch=global_batch,
    )
