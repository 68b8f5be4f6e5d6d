"""Bounds of single values: what a well-typed section must also satisfy.

Pure: a record goes in, `(key, problem)` pairs come out; `sweep_file.py` adds file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from babeltune.errors import nearest
from babeltune.schema.addresses import INSIDE, PLACE, is_inside, is_place
from babeltune.schema.presets import NO_PRESET, PRESETS
from babeltune.schema.records import (
    Average,
    Budget,
    Data,
    Gate,
    Keep,
    Mined,
    Promotion,
    Sampler,
    Sampling,
    Scheduler,
    Source,
    Split,
    Student,
    Task,
    Teacher,
    Training,
    Words,
)
from babeltune.schema.text import Translation

Key = tuple[str | int, ...]
Problem = tuple[Key, str]

POOLER_OR_PROJECTION = (
    "student.pooling pooler has a dense layer of its own; leave the projection out, or set student.pooling to cls"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True)
class Bound:
    """A condition on one value, and its words."""

    words: str
    holds: Callable[[Any], bool]


def at_least(low: float) -> Bound:
    return Bound(f"at least {low:g}", lambda value: value >= low)


def within(low: float, high: float) -> Bound:
    """Bounds of a number that are wide, and refuse what only a typing error can mean."""
    return Bound(f"from {low if low < 1 else f'{low:,.0f}'} to {high:,.0f}", lambda value: low <= value <= high)


positive = Bound("greater than 0", lambda value: value > 0)
share = Bound("at least 0 and less than 1", lambda value: 0 <= value < 1)
not_empty = Bound("not empty", bool)
place = Bound(PLACE, lambda value: value != "" and is_place(value))
inside = Bound(INSIDE, lambda value: value != "" and is_inside(value))

BOUNDS: dict[type, dict[str, Bound]] = {
    Training: {
        "pairs": within(1, 1e12),
        "compute": within(1e-3, 1e9),
        "rates": Bound("two numbers greater than 0", lambda rates: all(rate > 0 for rate in rates)),
        "reports": within(1, 1e6),
        "global_batch": within(2, 1e7),
        "batch_parts": within(1, 1e6),
        "chunk": at_least(1),
        "learning_rate": positive,
        "embedding_learning_rate": within(1e-3, 1e4),
        "warmup": share,
        "weight_decay": at_least(0),
        "beta1": share,
        "beta2": share,
        "epsilon": positive,
        "clip": positive,
        "patience": at_least(1),
        "checkpoint_minutes": positive,
        "matryoshka": Bound(
            "whole numbers of at least 2, none of them twice",
            lambda dims: all(dim >= 2 for dim in dims) and len(set(dims)) == len(dims),
        ),
    },
    Average: {
        "decay": Bound("above 0 and below 1", lambda value: 0 < value < 1),
        "share": Bound("above 0 and at most 1", lambda value: 0 < value <= 1),
        "every": within(1, 1e6),
    },
    Student: {
        "model": place,
        "revision": inside,
        "start": place,
        "embeddings_from": place,
        "layers": within(1, 1000),
        "width": within(1, 1e5),
        "heads": within(1, 1e5),
        "feed_forward": within(1, 1e6),
        "preset": Bound(f"one of {', '.join(list(PRESETS)[:3])} and thin-deep-LAYERS-WIDTH", PRESETS.__contains__),
        "vocabulary": Bound("300 to 10,000,000, or `teacher`", lambda value: value == "teacher" or 300 <= value <= 1e7),
        "ngrams": Bound("0, or 100 to 10,000,000 rows", lambda value: value == 0 or 100 <= value <= 1e7),
        "dropout": share,
        "max_tokens": within(3, 1e6),
        "seed": Bound("from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32),
        "projection": Bound("at least 1, or `teacher`", lambda value: value == "teacher" or value >= 1),
    },
    Teacher: {"model": place, "revision": inside, "languages": not_empty, "max_tokens": within(3, 1e6)},
    Sampling: {"temperature": positive},
    Split: {"pairs": at_least(1)},
    Source: {
        "cap": at_least(1),
        "weight": within(0.001, 1000),
        "max_dropped": Bound("from 0 to 1", lambda value: 0 <= value <= 1),
        "delimiter": Bound(
            "one character, and no quotation mark or line break", lambda c: len(c) == 1 and c not in '"\r\n'
        ),
        "path": place,
        "dataset": place,
        "subset": inside,
        "split": inside,
        "revision": inside,
    },
    Translation: {
        "model": place,
        "revision": inside,
        "into": not_empty,
        "beams": at_least(1),
        "max_tokens": within(3, 1e6),
    },
    Task: {
        "limit": at_least(2),
        "k": at_least(1),
        "path": place,
        "gold": place,
        "qrels": inside,
        "cutoff": within(1, 10_000),
    },
    Mined: {"gold": place},
    Words: {"least": share, "stop_words": at_least(0)},
    Data: {
        "root": place,
        "max_characters": at_least(1),
        "max_line_bytes": within(1, 2**30),
        "train": not_empty,
        "anchor_priority": not_empty,
    },
    Scheduler: {"grace": at_least(1), "reduction": at_least(2), "regret": at_least(0), "finished": at_least(3)},
    Sampler: {"startup": at_least(0), "population": at_least(2)},
    Promotion: {
        "margin": share,
        "confidence": Bound("at least 0.5 and below 1", lambda value: 0.5 <= value < 1),
        "resamples": at_least(100),
    },
    Gate: {"times_chance": at_least(0), "times_untrained": at_least(0)},
    Keep: {"trials": within(1, 1e6)},
    Budget: {
        "trials": within(1, 1e6),
        "minutes": positive,
        "workers": within(1, 1e5),
        "failures": Bound("greater than 0 and at most 1", lambda value: 0 < value <= 1),
    },
}


def record_problems(key: Key, record: object) -> Iterator[Problem]:
    """One section's values against `BOUNDS`, and its fields against one another."""
    for name, bound in BOUNDS.get(type(record), {}).items():
        value = getattr(record, name)
        if value is not None and not bound.holds(value):
            near = nearest(value, PRESETS) if name == "preset" else ""
            empty = value in ("", ())
            yield (*key, name), "must not be empty" if empty else f"{shown(value)} must be {bound.words}{near}"
    if isinstance(record, Student):
        yield from student_problems(key, record)
    if isinstance(record, Training) and record.average is not None:
        yield from record_problems((*key, "average"), record.average)
    if isinstance(record, Average):
        yield from average_problems(key, record)
    for language, path in (getattr(record, "paths", None) or {}).items():
        if not place.holds(path):
            yield (*key, "paths", language), f"{shown(path)} must be {place.words}"
    if isinstance(record, Teacher) and any(not language for language in record.languages):
        yield (*key, "languages"), "a language code must not be empty"


def shown(value: object) -> str:
    """The value as an error names it; of a long one, the beginning."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 120 else f"{text[:119]}…"


OF_AVERAGE = {"decay": "ema", "share": "last"}
"""A field of an average -> the only kind that reads it."""


def average_problems(key: Key, average: Average) -> Iterator[Problem]:
    """Fields of the kind of average that this one is not."""
    for name, kind in OF_AVERAGE.items():
        if average.kind != kind and getattr(average, name) != getattr(Average(), name):
            yield (*key, name), f"{getattr(average, name)} is for kind {kind!r}, and this one is {average.kind!r}"


def student_problems(key: Key, student: Student) -> Iterator[Problem]:
    """The fields that must fit together."""
    if student.kind == "static":
        yield from (((*key, name), problem) for name, problem in static_problems(student))
    elif student.model is None and student.start is None and student.heads >= 1 and student.width % student.heads:
        yield (*key, "heads"), f"{student.heads} must divide student.width, {student.width}"
    if student.ngrams and (named := student.model or student.start):
        yield (*key, "ngrams"), f"{student.ngrams}: a named model ({named}) brings its own table; remove it"
    if student.token_vectors == "teacher":
        yield from (((*key, "token_vectors"), f"'teacher': {problem}") for problem in vectors_problems(student))
    if student.lowercase:
        named = student.model or student.start or student.embeddings_from
        named = named or ("student.vocabulary: teacher" if student.vocabulary == "teacher" else None)
        if named is not None:
            yield (*key, "lowercase"), f"true: the tokenizer is that of {named}, as it is; remove it"
    if student.model is None and student.revision is not None:
        yield (*key, "revision"), f"{student.revision!r} needs student.model; a student from scratch has no revision"
    if student.model is not None and student.preset is not None:
        yield (*key, "preset"), f"{student.preset!r}: a named model ({student.model}) brings its own shape; remove it"
    for name, others in EXCLUDED.items():
        taken = [other for other in others if getattr(student, other) not in (None, False)]
        if getattr(student, name) is not None and taken:
            yield (*key, name), f"{getattr(student, name)!r} and student.{taken[0]} do not go together; keep one"
    if student.embeddings_from is not None and student.kind == "static":
        words = "a static student begins from another one with student.start"
        yield (*key, "embeddings_from"), f"{student.embeddings_from!r}: {words}"
    if student.pooling == "pooler" and student.projection is not None:
        yield (*key, "projection"), f"{student.projection!r}: {POOLER_OR_PROJECTION}"


def vectors_problems(student: Student) -> Iterator[str]:
    """What keeps the student's table from beginning with the teacher's vectors."""
    if student.kind != "static":
        yield "a Transformer does not begin with them; remove it"
    elif named := student.model or student.start:
        yield f"a named model ({named}) brings its own table; remove it"
    elif student.projection != "teacher":
        given = student.projection or "null"
        yield f"they are as wide as the teacher's, and student.projection is {given}; set it to teacher"


EXCLUDED = {"start": ("model", "revision", "trim", "embeddings_from"), "embeddings_from": ("model", "revision", "trim")}
"""Fields of a student that say where its weights or tokens come from, and the others that a file cannot give beside."""
ATTENTION = ("preset", "layers", "heads", "feed_forward")
"""The fields of a student that only a Transformer has."""


def static_problems(student: Student) -> Iterator[tuple[str, str]]:
    """The fields of a static student, by name, that it does not have."""
    usual = {"preset": None, **vars(NO_PRESET)}
    for name in ATTENTION if student.preset is None else ("preset",):
        if getattr(student, name) != usual[name]:
            yield name, f"{getattr(student, name)!r}: a static student has no attention; remove it"
    if student.pooling != "mean":
        yield "pooling", f"{student.pooling!r}: a static student is the mean of its token vectors; remove it"


def repeated(names: list[str], key: Callable[[int], Key]) -> Iterator[Problem]:
    """Names that were used before."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield key(index), f"{name!r} is used twice; give each its own name"
