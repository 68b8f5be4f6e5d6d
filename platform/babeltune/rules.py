"""What a well-typed sweep must also satisfy: ranges of numbers, names that exist, fields that go together.

Pure: a record goes in, `(key, problem)` pairs come out; `spec.py` adds file and line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from babeltune.errors import nearest
from babeltune.records import (
    Budget,
    Data,
    Gate,
    Parameter,
    Sampler,
    Sampling,
    Scheduler,
    Source,
    Split,
    Student,
    Sweep,
    Task,
    Teacher,
    Training,
    Words,
)

Key = tuple[str | int, ...]
Problem = tuple[Key, str]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
KINDS = ("float", "int", "log_float", "log_int", "choice", "const")
RANGES = ("float", "int", "log_float", "log_int")


@dataclass(frozen=True)
class Bound:
    """A condition on one value, and its words."""

    words: str
    holds: Callable[[Any], bool]


def at_least(low: float) -> Bound:
    return Bound(f"at least {low:g}", lambda value: value >= low)


positive = Bound("greater than 0", lambda value: value > 0)
share = Bound("at least 0 and less than 1", lambda value: 0 <= value < 1)
between_0_and_1 = Bound("greater than 0 and at most 1", lambda value: 0 < value <= 1)
not_empty = Bound("not empty", bool)

BOUNDS: dict[type[Any], dict[str, Bound]] = {
    Training: {
        "pairs": at_least(1),
        "reports": at_least(1),
        "global_batch": at_least(2),
        "chunk": at_least(1),
        "learning_rate": positive,
        "warmup": share,
        "weight_decay": at_least(0),
        "beta1": share,
        "beta2": share,
        "epsilon": positive,
        "clip": positive,
        "patience": at_least(1),
    },
    Student: {
        "model": not_empty,
        "layers": at_least(1),
        "width": at_least(1),
        "heads": at_least(1),
        "feed_forward": at_least(1),
        "vocabulary": at_least(300),
        "dropout": share,
        "max_tokens": at_least(3),
        "projection": Bound("at least 1, or `teacher`", lambda value: value == "teacher" or value >= 1),
    },
    Teacher: {"model": not_empty, "languages": not_empty, "max_tokens": at_least(3)},
    Sampling: {"temperature": positive},
    Split: {"pairs": at_least(1)},
    Source: {"cap": at_least(1), "weight": positive},
    Task: {"limit": at_least(1), "k": at_least(1)},
    Words: {"least": share, "stop_words": at_least(0)},
    Data: {"max_characters": at_least(1), "train": not_empty, "anchor_priority": not_empty},
    Scheduler: {"grace": at_least(1), "reduction": at_least(2)},
    Sampler: {"startup": at_least(0)},
    Gate: {"times_chance": at_least(0), "times_untrained": at_least(0)},
    Budget: {"trials": at_least(1), "minutes": positive, "workers": at_least(1)},
}


def problems(sweep: Sweep) -> Iterator[Problem]:
    """Everything about the sweep that its types could not say."""
    if not NAME.fullmatch(sweep.name):
        yield (
            ("name",),
            f"{sweep.name!r} must be letters, digits, `_`, `.` or `-`, at most 80, beginning with one of the first two",
        )
    if not 0 <= sweep.seed < 2**32:
        yield ("seed",), f"{sweep.seed} must be at least 0 and below 2**32"
    for section in ("training", "student", "teacher", "scheduler", "sampler", "budget"):
        yield from record_problems((section,), getattr(sweep, section))
    yield from data_problems(sweep.data)
    for name, parameter in sweep.parameters.items():
        yield from parameter_problems(("parameters", name), parameter)
    if not sweep.objectives:
        yield ("objectives",), "must name at least one metric, such as {metric: dev/everyday/accuracy}"
    yield from gate_problems(sweep)
    metrics = [objective.metric for objective in sweep.objectives]
    yield from repeated(metrics, lambda index: ("objectives", index, "metric"))
    if sweep.scheduler.kind == "asha" and sweep.scheduler.grace > sweep.training.reports:
        yield (
            ("scheduler", "grace"),
            f"{sweep.scheduler.grace} must be at most training.reports ({sweep.training.reports}): else nothing stops",
        )


def gate_problems(sweep: Sweep) -> Iterator[Problem]:
    """Promotion's name, and its gates' tests and multiples."""
    name = sweep.promotion.name
    if name is not None and not NAME.fullmatch(name):
        yield ("promotion", "name"), f"{name!r} must be letters, digits, `_`, `.` or `-`"
    tests = [task.name for task in sweep.data.test if task.task == "bitext"]
    for index, gate in enumerate(sweep.promotion.gates):
        key: Key = ("promotion", "gates", index)
        yield from record_problems(key, gate)
        if gate.test not in tests:
            yield (
                (*key, "test"),
                f"{gate.test!r} is not a bitext task of data.test; allowed: {', '.join(tests) or 'none'}"
                f"{nearest(gate.test, tests)}; an overlay that replaces data.test replaces promotion.gates too",
            )


def record_problems(key: Key, record: Any) -> Iterator[Problem]:
    """One section's values against `BOUNDS`, and its fields against one another."""
    for name, bound in BOUNDS.get(type(record), {}).items():
        value = getattr(record, name)
        if value is not None and not bound.holds(value):
            yield (*key, name), f"{value!r} must be {bound.words}"
    if isinstance(record, Student):
        yield from student_problems(key, record)
    if isinstance(record, Teacher) and any(not language for language in record.languages):
        yield (*key, "languages"), "a language code must not be empty"


def student_problems(key: Key, student: Student) -> Iterator[Problem]:
    """The fields of a Transformer from scratch that must fit together."""
    if student.model is None and student.heads >= 1 and student.width % student.heads:
        yield (*key, "heads"), f"{student.heads} must divide student.width, {student.width}"
    if student.model is None and student.revision is not None:
        yield (*key, "revision"), f"{student.revision!r} needs student.model; a student from scratch has no revision"


def parameter_problems(key: Key, parameter: Parameter) -> Iterator[Problem]:
    """One searched setting by itself."""
    for kind in RANGES:
        bounds = getattr(parameter, kind)
        if bounds is None:
            continue
        low, high = bounds
        if not low < high:
            yield (*key, kind), f"[{low}, {high}]: the first must be below the second; for one value use const"
        if kind.startswith("log") and low <= 0:
            yield (*key, kind), f"[{low}, {high}]: both must be greater than 0 on a logarithmic scale"
        if kind.endswith("int") and not (isinstance(low, int) and isinstance(high, int)):
            yield (*key, kind), f"[{low}, {high}]: both must be whole numbers"
    if parameter.choice is not None:
        if not parameter.choice:
            yield (*key, "choice"), "must offer at least one value"
        distinct = {(type(value), value) for value in parameter.choice}
        if len(distinct) < len(parameter.choice):
            yield (*key, "choice"), f"{list(parameter.choice)} offers a value twice; keep one"


def kind_of(parameter: Parameter) -> str:
    """Which of the kinds the parameter is; `const` where no other is given."""
    return next((kind for kind in KINDS[:-1] if getattr(parameter, kind) is not None), "const")


# --- Data ----------------------------------------------------------------------------------------------------------


def data_problems(data: Data) -> Iterator[Problem]:
    """Sources, tasks, and what they say of one another."""
    yield from record_problems(("data",), data)
    yield from record_problems(("data", "sampling"), data.sampling)
    yield from words_problems(("data", "words"), data.words)
    if data.split is not None:
        yield from record_problems(("data", "split"), data.split)
        if all(source.synthetic for source in data.train if source.train):
            yield ("data", "split"), "needs a training source that is not synthetic"
    names = [source.name for source in data.train]
    yield from repeated(names, lambda index: ("data", "train", index, "name"))
    if data.train and not any(source.train for source in data.train):
        yield ("data", "train"), "every source has `train: false`; nothing would be trained on"
    by_name = {source.name: source for source in data.train}
    for index, source in enumerate(data.train):
        yield from source_problems(("data", "train", index), source, by_name)
    files = [source for source in data.train if source.format != "pivot"]
    there = sorted({language for source in files for language in languages(source, by_name)})
    if there and not set(there) & set(data.anchor_priority):
        yield (
            ("data", "anchor_priority"),
            f"none of {', '.join(data.anchor_priority)} is a language of data.train; allowed: {', '.join(there)}"
            f"{nearest(data.anchor_priority[0] if data.anchor_priority else '', there)}",
        )
    for kind, tasks in (("dev", data.dev), ("test", data.test)):
        yield from repeated_tasks(kind, tasks)
        for index, task in enumerate(tasks):
            yield from task_problems(("data", kind, index), task, data)


def words_problems(key: Key, words: Words) -> Iterator[Problem]:
    """How words are aligned: bounds, and lexicons where they are read."""
    yield from record_problems(key, words)
    if (words.align == "lexicon") != bool(words.lexicon):
        has = "lists none" if not words.lexicon else f"lists {len(words.lexicon)}, which {words.align!r} does not read"
        yield (*key, "lexicon"), f"{has}; give `align: lexicon` and the lexicons together, or neither"
    for index, lexicon in enumerate(words.lexicon):
        yield from source_problems((*key, "lexicon", index), lexicon, {})


def repeated_tasks(kind: str, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Tasks of one name are one set in several files: their kind agrees, and their sources have names of their own."""
    for index, task in enumerate(tasks):
        for earlier in tasks[:index]:
            if earlier.name == task.name and (earlier.task != task.task or parts_of(earlier) == parts_of(task)):
                problem = (
                    f"{task.name!r} is used twice; give each its own name, or name their sources apart if it is one set"
                )
                yield ("data", kind, index, "name"), problem
                break


def parts_of(task: Task) -> str | None:
    """What tells tasks of one name apart."""
    return task.language if task.source is None else task.source.name


def repeated(names: list[str], key: Callable[[int], Key]) -> Iterator[Problem]:
    """Names that were used before."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield key(index), f"{name!r} is used twice; give each its own name"


def source_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """One source: the fields of its format, its languages and its pairs."""
    if not NAME.fullmatch(source.name):
        yield (*key, "name"), f"{source.name!r} must be letters, digits, `_`, `.` or `-`"
    yield from record_problems(key, source)
    shape = list(shape_problems(key, source, others))
    yield from shape
    if shape:
        return
    known = languages(source, others)
    if len(known) < 2:
        yield key, f"source {source.name!r} holds only {', '.join(known)}; a source needs two languages"
    if isinstance(source.pairs, tuple):
        if not source.pairs:
            yield (*key, "pairs"), "must list a pair, or be `anchor` or `all`"
        for index, pair in enumerate(source.pairs):
            if split_pair(pair, known) is None:
                offered = [f"{a}-{b}" for a in known for b in known if a != b]
                yield (
                    (*key, "pairs", index),
                    f"{pair!r} is not two languages of {source.name!r} joined by `-`; "
                    f"languages: {', '.join(known)}{nearest(pair, offered)}",
                )


FIELDS_OF = {
    "path": ("path", "columns"),
    "paths": ("paths",),
    "dataset": ("dataset", "columns"),
    "pivot": ("left", "right"),
}
LOCATIONS = ("path", "columns", "paths", "dataset", "left", "right")


def shape_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether the fields that say where text lies go together, and with the format."""
    given = {name for name in LOCATIONS if getattr(source, name) is not None}
    shapes = {"moses": ("paths",), "hub": ("dataset",), "pivot": ("pivot",)}.get(source.format, ("path", "paths"))
    wanted = [set(FIELDS_OF[shape]) for shape in shapes]
    if given not in wanted:
        rule = " or ".join(" + ".join(FIELDS_OF[shape]) for shape in shapes)
        has = ", ".join(sorted(given)) or "none of them"
        yield key, f"a source of format {source.format!r} needs {rule}, and no other of these; it has {has}"
        return
    if source.where and source.columns is None:
        yield (*key, "where"), "chooses among the rows of one table; it goes with `columns`"
    if source.paths is not None:
        if source.format == "moses" and source.join not in ("id", "line"):
            yield (*key, "join"), f"{source.join!r} is not possible; Moses files are joined by line"
        elif source.format != "moses" and source.join not in ("id", "line"):
            yield (
                (*key, "join"),
                f"{source.join!r} is not possible; allowed: id, line{nearest(source.join, ['id', 'line'])}",
            )
        elif source.format != "moses" and source.join == "id" and source.id is None:
            yield (*key, "id"), "must name the column that joins the files, or say `join: line`"
    if source.format == "pivot":
        yield from pivot_problems(key, source, others)


def pivot_problems(key: Key, source: Source, others: dict[str, Source]) -> Iterator[Problem]:
    """Whether a pivot's two sources exist and share what joins them."""
    names = [name for name, other in others.items() if other.format != "pivot"]
    for side in ("left", "right"):
        name = getattr(source, side)
        if name not in names:
            why = "is a pivot itself" if name in others else "is not a training source"
            yield (*key, side), f"{name!r} {why}; allowed: {', '.join(names) or 'none'}{nearest(name, names)}"
            return
    if source.left == source.right:
        yield (*key, "right"), f"{source.right!r} is also the left source; name another"
        return
    left, right = (languages(others[name], others) for name in (source.left or "", source.right or ""))
    if source.join == "id":
        for side in ("left", "right"):
            if others[getattr(source, side)].id is None:
                yield (
                    (*key, side),
                    f"source {getattr(source, side)!r} has no `id` column; name it there, or join on a language",
                )
    elif source.join not in set(left) & set(right):
        shared = [language for language in left if language in right]
        yield (
            (*key, "join"),
            f"{source.join!r} is not in both; allowed: id{''.join(f', {s}' for s in shared)}"
            f"{nearest(source.join, ['id', *shared])}",
        )


def languages(source: Source, others: dict[str, Source]) -> tuple[str, ...]:
    """The languages that a source holds, in the order in which it names them."""
    if source.format == "pivot":
        sides = [others[name] for name in (source.left, source.right) if name in others]
        return tuple(dict.fromkeys(language for side in sides for language in languages(side, others)))
    return tuple(source.columns or source.paths or ())


def split_pair(pair: str, known: Iterable[str]) -> tuple[str, str] | None:
    """The two languages of `a-b`, either of which may hold a `-`; None when they are not two known ones."""
    codes = set(known)
    for index, character in enumerate(pair):
        left, right = pair[:index], pair[index + 1 :]
        if character == "-" and left in codes and right in codes and left != right:
            return left, right
    return None


def source_pairs(source: Source, others: dict[str, Source], priority: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (anchor, other) language pairs that a source yields, each once.

    The anchor comes first in `priority`; languages that are not in it come last, alphabetically.
    """
    known = languages(source, others)
    ranks = {language: rank for rank, language in enumerate(priority)}
    ordered = sorted(known, key=lambda language: (ranks.get(language, len(ranks)), language))
    if source.pairs == "anchor":
        return tuple((ordered[0], other) for other in known if other != ordered[0])
    pairs = tuple(itertools.combinations(ordered, 2))
    if source.pairs == "all":
        return pairs
    listed = [split_pair(pair, known) or ("", "") for pair in source.pairs]
    return tuple(dict.fromkeys(found for pair in listed for found in (pair, pair[::-1]) if found in pairs))


def task_problems(key: Key, task: Task, data: Data) -> Iterator[Problem]:
    """One dev or test task: the fields of its kind."""
    if not NAME.fullmatch(task.name) or task.name == "heldout":
        rule = "is kept for `data.split`" if task.name == "heldout" else "must be letters, digits, `_`, `.` or `-`"
        yield (*key, "name"), f"{task.name!r} {rule}"
    yield from record_problems(key, task)
    if task.task == "bitext":
        if task.source is None:
            yield key, f"bitext task {task.name!r} needs a source"
        elif task.source.format == "pivot":
            yield (*key, "source", "format"), "'pivot' is for training; give the task files that hold both languages"
        else:
            yield from source_problems((*key, "source"), task.source, {})
        if task.path is not None or task.language is not None:
            yield key, f"bitext task {task.name!r} takes its rows from `source`; remove `path` and `language`"
    else:
        if task.path is None or task.language is None:
            yield key, f"STS task {task.name!r} needs path and language"
        if task.source is not None:
            yield (*key, "source"), f"STS task {task.name!r} takes its rows from `path`; remove `source`"
