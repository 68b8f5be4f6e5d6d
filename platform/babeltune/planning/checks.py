"""Checks a sweep against the methods that it can propose, and those methods' needs against the teacher and the data.

Pure but for reading a model's configuration file: a sweep goes in, `(key, problem)` pairs come out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from babeltune.errors import MethodError
from babeltune.files import plain
from babeltune.method import Method, Needs, load_method
from babeltune.models.hub import ROUTED
from babeltune.planning.availability import (
    is_at_hand,
    model_dense,
    model_modules,
    model_pooling,
    model_positions,
    model_width,
)
from babeltune.planning.data_rules import languages, source_pairs
from babeltune.planning.goals import goal_problems, right_languages, task_languages
from babeltune.planning.name_checks import methods_with, name_problems
from babeltune.planning.rules import RANGES, kind_of
from babeltune.planning.space import (
    SECTIONS,
    combinations,
    config_for,
    configurations,
    fields_of,
    frozen_only,
    is_bare,
    largest,
    possible_needs,
    proposable_methods,
    section_of,
    smallest,
    split_name,
    values_of,
)
from babeltune.schema.base import record_from
from babeltune.schema.bounds import ATTENTION, POOLER_OR_PROJECTION, Key, Problem, record_problems, static_problems
from babeltune.schema.document import describe, refusal
from babeltune.schema.languages import known_by, script_of
from babeltune.schema.records import Parameter, Scalar, Student, Sweep, Task, Teacher

JUDGED_TOGETHER = ("pooling", "kind")
"""Fields of a student whose searched values are judged in `_config_combinations`, beside the others."""
MOST_STEPS = 10_000_000
"""The most steps of a trial: at a hundred a second, more than a day. All their sizes are in memory."""


def method_problems(sweep: Sweep) -> Iterator[Problem]:
    """Everything that the proposable methods, the teacher and the dev tasks have against the sweep.

    Later checks build on earlier ones, so the first stage that finds something is the last.
    """
    for stage in (name_problems, _values, _agreements, _right_models, _needs, goal_problems):
        found = list(stage(sweep))
        yield from found
        if found:
            return


# --- Values ---------------------------------------------------------------------------------------------------------


def _values(sweep: Sweep) -> Iterator[Problem]:
    single = list(_single_values(sweep))
    yield from single
    if not single:
        yield from _grace_past_the_end(sweep)
        yield from _config_combinations(sweep)
        yield from _reports_without_steps(sweep)


def _single_values(sweep: Sweep) -> Iterator[Problem]:
    for name, parameter in sweep.parameters.items():
        if "." in name:
            yield from _section_values(sweep, name, parameter)
        if name == "seed":
            for end in (0, 1):
                for value in values_of(parameter, end):
                    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
                        yield ("parameters", "seed"), f"{describe(value)} must be a whole number from 0 to 2**32 - 1"
    for method in [load_method(name) for name in proposable_methods(sweep)]:
        yield from _config_types(sweep, method)
        try:
            config_for(sweep, method, {})
        except MethodError as error:
            yield _blamed(sweep.fixed, "config", str(error)), str(error)


def _grace_past_the_end(sweep: Sweep) -> Iterator[Problem]:
    if sweep.scheduler.kind != "none" and sweep.scheduler.grace > (reports := largest(sweep, "reports")):
        yield (
            ("scheduler", "grace"),
            f"{sweep.scheduler.grace} must be at most training.reports ({reports}): else nothing stops",
        )


def _reports_without_steps(sweep: Sweep) -> Iterator[Problem]:
    """More reports than the shortest trial has steps, and more steps than a trial can have. How many steps a trial's
    compute pays for is known once it is counted."""
    if sweep.budget.unit == "compute":
        return
    pairs, batch, reports = smallest(sweep, "pairs"), largest(sweep, "global_batch"), largest(sweep, "reports")
    whole, rest = divmod(pairs, batch)  # a last batch of one pair is left out
    if reports > (steps := whole + (rest > 1 or not whole)):
        yield (
            ("training", "reports"),
            f"{reports} reports need as many steps, and training.pairs {pairs} in batches of {batch} are {steps}; "
            "give fewer reports, more pairs, or smaller batches",
        )
    if (steps := (most := largest(sweep, "pairs")) // (least := smallest(sweep, "global_batch"))) > MOST_STEPS:
        yield (
            ("training", "pairs"),
            f"{most:,} in batches of {least} are {steps:,} steps, and a trial "
            f"has at most {MOST_STEPS:,}; give fewer pairs or larger batches",
        )


def _both_ends(parameter: Parameter) -> list[object]:
    return [*values_of(parameter, 0), *values_of(parameter, 1)]


def _section_values(sweep: Sweep, name: str, parameter: Parameter) -> Iterator[Problem]:
    """Each value of a `training`, `student` or `data.sampling` parameter, as if the section had it."""
    prefix, last = split_name(name)
    section = section_of(sweep, prefix)
    adapter: TypeAdapter[Any] = TypeAdapter(SECTIONS[prefix])
    key: Key = ("parameters", name, kind_of(parameter))
    for value in dict.fromkeys(_both_ends(parameter)):
        try:
            record = adapter.validate_json(json.dumps(plain(section) | {last: value}), strict=True)
        except ValidationError as error:
            yield key, refusal(value, error.errors(include_url=False))
            continue
        if last in JUDGED_TOGETHER or (last == "heads" and record.heads >= 1):
            continue
        yield from ((key, problem) for where, problem in record_problems((), record) if where == (last,))


def _config_types(sweep: Sweep, method: type[Method]) -> Iterator[Problem]:
    """Fixed settings and each parameter's values against the types of the method's `Config`, one at a time.

    Two methods may have a setting of one name and different values; a parameter is judged by those that can get it.
    """
    known = fields_of(method)
    fixed = [(("config", name), name, value) for name, value in sweep.fixed.items()]
    searched = [
        (("parameters", name, kind_of(parameter)), name, value)
        for name, parameter in sweep.parameters.items()
        if is_bare(name) and method.name in methods_with(sweep, name)
        for end in (0, 1)
        for value in values_of(parameter, end)
    ]
    try:
        hints = typing.get_type_hints(method.Config)
    except NameError:
        return  # a type that only checkers import: the constructor alone judges
    for key, name, value in [*fixed, *searched]:
        if name not in known:
            continue
        try:
            TypeAdapter(hints[name]).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            yield key, f"{refusal(value, error.errors(include_url=False))} (method {method.name!r})"
        except PydanticUserError:
            continue  # a type that pydantic does not know: the constructor alone judges


def _config_combinations(sweep: Sweep) -> Iterator[Problem]:
    """Every combination of choices, with ranges at both ends, as the method's own checks see it."""
    names = [name for name in sweep.parameters if is_bare(name) or name == "method"]
    for end in (0, 1):
        for params in combinations(sweep.parameters, names, end=end):
            method = load_method(str(params.get("method", sweep.method)))
            try:
                config_for(sweep, method, params)
            except MethodError as error:
                yield _blamed(params, "parameters", str(error)), str(error)
    yield from _static_combinations(sweep)
    shape = ("student.kind", "student.preset", "student.width", "student.heads", "student.model")
    for params in combinations(sweep.parameters, shape):
        student = student_with(sweep, params)
        if (
            student.kind == "transformer"
            and student.model is None
            and student.heads >= 1
            and student.width % student.heads
        ):
            yield (
                ("parameters", "student.heads" if "student.heads" in params else "student.width"),
                f"student.heads {student.heads} does not divide student.width {student.width}, which can be proposed "
                "together; choose values that always do, or tie them with `when`",
            )
    for params in combinations(sweep.parameters, ("student.pooling", "student.projection")):
        student = student_with(sweep, params)
        if student.pooling == "pooler" and student.projection is not None:
            name = "student.projection" if "student.projection" in params else "student.pooling"
            yield ("parameters", name), f"{student.projection!r} can be proposed with it: {POOLER_OR_PROJECTION}"


def _static_combinations(sweep: Sweep) -> Iterator[Problem]:
    """Static students that are proposed with what only a Transformer has."""
    for params in combinations(
        sweep.parameters,
        ("student.kind", "student.pooling", "student.ngrams", *(f"student.{name}" for name in ATTENTION)),
    ):
        student = student_with(sweep, params)
        if student.ngrams and student.kind != "static":
            searched = "student.ngrams" in params
            yield (
                ("parameters", "student.ngrams") if searched else ("student", "ngrams"),
                f"{student.ngrams}: only a static student's token vectors are sums of n-grams; "
                + ("add `when: {student.kind: static}`" if searched else "set student.kind to static, or remove it"),
            )
        for name, _ in static_problems(student) if student.kind == "static" else ():
            if f"student.{name}" in params:
                yield (
                    ("parameters", f"student.{name}"),
                    "a static student has none, and `student.kind: static` can be proposed with it; "
                    "add `when: {student.kind: transformer}`",
                )


def _blamed(values: Mapping[str, object], section: str, message: str) -> Key:
    """The key of the setting that a method's message speaks of first, or the section."""
    places = {name: re.search(rf"\b{re.escape(name)}\b", message) for name in values}
    named = sorted((found.start(), name) for name, found in places.items() if found)
    return (section, named[0][1]) if named else (section,)


def student_with(sweep: Sweep, params: Mapping[str, Scalar]) -> Student:
    """The student that these proposed parameters ask for."""
    given = {split_name(name)[1]: value for name, value in params.items() if name.startswith("student.")}
    return sweep.student.changed(**given)


# --- What methods need ----------------------------------------------------------------------------------------------


def _agreements(sweep: Sweep) -> Iterator[Problem]:
    """Configurations that ask for what nobody can prepare, such as two combined methods that need different orders."""
    for params, method, config in configurations(sweep):
        try:
            method.needs(config)
        except MethodError as error:
            key = _blamed(params, "parameters", str(error))
            yield key if len(key) > 1 else _blamed(sweep.fixed, "config", str(error)), str(error)


def _needs(sweep: Sweep) -> Iterator[Problem]:
    yield from _needs_of_ranges(sweep)
    yield from _model_files(sweep)
    if any(needs.words for _, _, needs in possible_needs(sweep)):
        yield from _lexicons(sweep)
    teacher_width = model_width(sweep.teacher.model, sweep.teacher.revision)
    anchors, others = taught_languages(sweep)
    extra = ("student.kind", "student.preset", "student.width", "student.projection", "student.model")
    if frozen_only(sweep):
        yield from _unused_student(sweep)
    for params, method, config in configurations(sweep, extra):
        needs = method.needs(config)
        student = student_with(sweep, params)
        if needs.states and student.kind == "static":
            yield (
                ("parameters", "student.kind") if "student.kind" in sweep.parameters else ("student", "kind"),
                f"'static': method {method.name!r}{_chosen(sweep, params)} reads token states, and a static student "
                "has none; choose another method, or a Transformer",
            )
        yield from _teacher_languages(sweep, needs, f"method {method.name!r}{_chosen(sweep, params)}", anchors, others)
        width = None if needs.frozen else student_width(student)
        if sweep.training.matryoshka:
            named = f"method {method.name!r}{_chosen(sweep, params)}"
            follows = student.projection == "teacher" and not needs.frozen
            yield from matryoshka_problems(sweep.training.matryoshka, needs, named, teacher_width if follows else width)
        besides = " and another student.pooling" if student.pooling == "pooler" else ""
        if needs.same_dimension and width is not None and teacher_width is not None and width != teacher_width:
            yield (
                ("student", "projection"),
                f"{describe(student.projection)}: method {method.name!r} compares the student's vectors "
                f"({width} wide) with the teacher's ({teacher_width}); write `student.projection: teacher`{besides}",
            )
        elif tasks := (*sweep.data.against_teacher("dev"), *sweep.data.against_teacher("test")):
            width = exported_width(method, config, width, teacher_width)
            if None not in (width, teacher_width) and width != teacher_width:
                yield (
                    ("student", "projection"),
                    f"{describe(student.projection)}: task {tasks[0]!r} has `right_model: teacher`, and the vectors of "
                    f"method {method.name!r}{_chosen(sweep, params)} are {width} wide, the teacher's {teacher_width}; "
                    f"make them {teacher_width} wide (`student.projection: teacher`{besides}), or remove right_model",
                )


def matryoshka_problems(dims: Sequence[int], needs: Needs, who: str, width: int | None) -> Iterator[Problem]:
    """Why vectors of this width cannot be trained at these dimensions with a method of these needs."""
    key: Key = ("training", "matryoshka")
    why = {
        "trains layers on a frozen encoder, whose vectors stay as they are": needs.frozen or needs.per_language,
        "reads token states, and no sentence vector is cut there": needs.states,
        "has a layer that takes the student's whole vectors": needs.fixed_width,
    }
    for reason in [reason for reason, holds in why.items() if holds][:1]:
        yield key, f"{list(dims)}: {who} {reason}; remove training.matryoshka, or choose another method"
    if width is not None and max(dims) > width:
        yield (
            key,
            f"{list(dims)}: {max(dims)} is above the {width} numbers of the student's vectors; name dimensions up to "
            f"{width}, or make the student wider (student.projection, student.width)",
        )


def _right_models(sweep: Sweep) -> Iterator[Problem]:
    for kind, tasks in (("dev", sweep.data.dev), ("test", sweep.data.test)):
        yield from right_model_problems(("data", kind), tasks, sweep.teacher, sweep.data.anchor_priority)
    if sweep.data.split is not None and sweep.data.split.right_model == "teacher":
        yield from strange_right_side(("data", "split"), "heldout", taught_languages(sweep)[0], sweep.teacher)


def right_model_problems(
    key: Key, tasks: Sequence[Task], teacher: Teacher, priority: tuple[str, ...]
) -> Iterator[Problem]:
    """Tasks whose right side the teacher encodes without knowing its language."""
    for index, task in enumerate(tasks):
        if task.right_model == "teacher":
            yield from strange_right_side((*key, index), task.name, right_languages(task, priority), teacher)


def strange_right_side(key: Key, name: str, used: Sequence[str], teacher: Teacher) -> Iterator[Problem]:
    """Languages of a right side that the teacher does not know."""
    strange = [language for language in used if language not in teacher.languages]
    if strange:
        yield (
            (*key, "right_model"),
            f"'teacher': the right side of task {name!r} is in {', '.join(strange)}, and the teacher "
            f"{teacher.model!r} knows {', '.join(teacher.languages)}; put a language that it knows first in "
            "data.anchor_priority (mining: second in `paths`), score other pairs, or remove right_model",
        )


def exported_width(
    method: type[Method], config: object, student_dim: int | None, teacher_dim: int | None
) -> int | None:
    """The width of the exported model's vectors, behind the layers that its method keeps. None if it follows the
    teacher's or is not known yet."""
    needs = method.needs(config)
    if method.layers is Method.layers:
        return student_dim if not needs.frozen else teacher_dim
    before = teacher_dim if needs.frozen or student_dim is None else student_dim
    if before is None:
        return None
    sizes: dict[str, object] = {"student_dim": before, "teacher_dim": teacher_dim or before}
    sizes |= {"languages": ("",)} if needs.per_language else {}
    sizes |= {"width": 1, "vocabulary": 1} if needs.states else {}
    with torch.random.fork_rng(devices=[]):
        layers = record_from(functools.partial(method, config), sizes).layers()
    linear = [module for layer in layers.values() for module in layer if isinstance(module, torch.nn.Linear)]
    return linear[-1].out_features if linear else student_dim


def _unused_student(sweep: Sweep) -> Iterator[Problem]:
    """Settings of a student that nothing trains, and of vectors that the exported model would not give."""
    encoder = f"the encoder is the frozen teacher {sweep.teacher.model!r}, and no student is trained; remove it"
    for field in dataclasses.fields(Student):
        value = getattr(sweep.student, field.name)
        if value != getattr(Student(), field.name):
            yield ("student", field.name), f"{describe(value)}: {encoder}"
    yield from ((("parameters", name), encoder) for name in sweep.parameters if name.startswith("student."))
    if sweep.evaluation.prompt is not None:
        yield ("evaluation", "prompt"), f"{describe(sweep.evaluation.prompt)}: {encoder}, or set teacher.prompt"
    if sweep.teacher.precision != "fp32":
        yield (
            ("teacher", "precision"),
            "the exported model's encoder runs in fp32, and so must the frozen one; remove it",
        )


def _lexicons(sweep: Sweep) -> Iterator[Problem]:
    """Language pairs that no lexicon lists, where words come from lexicons alone."""
    words = sweep.data.words
    bare = [
        f"{a}-{b}"
        for a, b in taught_pairs(sweep)
        if words.align == "lexicon" and not any({a, b} <= set(languages(lexicon, {})) for lexicon in words.lexicon)
    ]
    if bare:
        yield (
            ("data", "words", "lexicon"),
            f"no lexicon has columns of {', '.join(bare)}; add one, or align words with `align: mutual`",
        )


def _model_files(sweep: Sweep) -> Iterator[Problem]:
    """Settings that contradict the files of the models that they name, as far as those are at hand."""
    if "Router" in model_modules(sweep.teacher.model, sweep.teacher.revision):
        yield ("teacher", "model"), f"{sweep.teacher.model!r} {ROUTED}"
    positions = model_positions(sweep.teacher.model, sweep.teacher.revision)
    if positions is not None and sweep.teacher.max_tokens > positions:
        yield (
            ("teacher", "max_tokens"),
            f"{sweep.teacher.max_tokens} is more than the {positions} positions of {sweep.teacher.model!r}; lower it",
        )
    student = sweep.student
    yield from _trimming(sweep)
    if student.model is None:
        return
    static = model_modules(student.model, student.revision)[:1] == ("StaticEmbedding",)
    if is_at_hand(student.model) and static != (student.kind == "static") and "student.kind" not in sweep.parameters:
        yield (
            ("student", "kind"),
            f"{student.kind!r}: {student.model!r} is {'a' if static else 'no'} static model; "
            f"set student.kind to {'static' if static else 'transformer'}",
        )
    positions = model_positions(student.model, student.revision)
    if positions is not None and student.max_tokens > positions:
        yield (
            ("student", "max_tokens"),
            f"{student.max_tokens} is more than the {positions} positions of {student.model!r}; lower it",
        )
    pooling = model_pooling(student.model, student.revision)
    if pooling is not None and pooling != student.pooling:
        yield (
            ("student", "pooling"),
            f"{student.pooling!r}: {student.model!r} was trained with {pooling!r}; set student.pooling to that "
            "(a dense layer after it, with tanh or not, comes with the model)",
        )
    brought = model_dense(student.model, student.revision)
    if brought is not None and isinstance(student.projection, int) and student.projection != brought:
        yield (
            ("student", "projection"),
            f"{student.projection}: {student.model!r} comes with a projection to {brought}; set that, or leave it out",
        )


def _trimming(sweep: Sweep) -> Iterator[Problem]:
    """A trimmed vocabulary without a model to trim, and tests in scripts that neither training nor dev text has."""
    if not sweep.student.trim:
        return
    key: Key = ("student", "trim")
    if sweep.student.model is None and "student.model" not in sweep.parameters:
        yield key, "true needs student.model; the tokenizer of a student from scratch has the corpus's tokens alone"
    read = [
        *itertools.chain(*taught_languages(sweep)),
        *(one for task in sweep.data.dev for one in task_languages(task)),
    ]
    scripts = {script_of(language) for language in read}
    tested = [language for task in sweep.data.test for language in task_languages(task)]
    if lost := dict.fromkeys(language for language in tested if script_of(language) not in scripts):
        named = ", ".join(f"{language} ({script_of(language)})" for language in lost)
        yield (
            key,
            f"true: data.test has text in {named}, and neither data.train nor data.dev has that script, so its tokens "
            "would be dropped; add such text, or remove student.trim",
        )


def _needs_of_ranges(sweep: Sweep) -> Iterator[Problem]:
    """Ranges over settings that decide what is prepared once for all trials."""
    for params, method, config in configurations(sweep):
        for name in params:
            if is_bare(name) and kind_of(sweep.parameters[name]) in RANGES:
                for end in (0, 1):
                    value = values_of(sweep.parameters[name], end)[0]
                    other = config_for(sweep, method, {**params, name: value})
                    if method.needs(other).prepared != method.needs(config).prepared:
                        yield (
                            ("parameters", name, kind_of(sweep.parameters[name])),
                            f"decides what method {method.name!r} needs prepared before the first trial; "
                            "give a choice or a const",
                        )


def _teacher_languages(
    sweep: Sweep, needs: Needs, who: str, anchors: tuple[str, ...], others: tuple[str, ...]
) -> Iterator[Problem]:
    """Whether the teacher knows the text that it is asked to encode."""
    known = sweep.teacher.languages
    says = f"the teacher {sweep.teacher.model!r} knows {', '.join(known)}"
    strange = [language for language in anchors if not known_by(language, known)]
    if strange and ("source" in needs.teacher or needs.hard_negatives):
        yield (
            ("teacher", "languages"),
            f"{says}, and {who} needs its vectors of the anchor side, which is in {', '.join(strange)} too; put a "
            "language that it knows first in data.anchor_priority, leave out the pairs without one, or name a "
            "multilingual teacher and list its languages",
        )
    strange = [language for language in others if not known_by(language, known)]
    if strange and "target" in needs.teacher and sweep.teacher.target_side == "encode":
        yield (
            ("teacher", "languages"),
            f"{says}, so it can teach only that side, and {who} needs its vectors of {', '.join(strange)} too; "
            "either name a multilingual teacher and list its languages (for example a student distilled beforehand "
            "with mse_distillation), or let the target side copy the anchor's vectors with "
            "`teacher.target_side: copy_anchor`",
        )


def _chosen(sweep: Sweep, params: Mapping[str, Scalar]) -> str:
    """The fixed and chosen settings of a configuration, in words."""
    chosen = ({"config": "paper"} if sweep.config == "paper" else sweep.fixed) | {
        name: value for name, value in params.items() if is_bare(name) and kind_of(sweep.parameters[name]) not in RANGES
    }
    return f" with {', '.join(f'{name} {value}' for name, value in chosen.items())}" if chosen else ""


def taught_languages(sweep: Sweep) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The languages of the training pairs: those on the anchor side, and those on the other."""
    pairs = taught_pairs(sweep)
    return tuple(dict.fromkeys(a for a, _ in pairs)), tuple(dict.fromkeys(b for _, b in pairs))


def taught_pairs(sweep: Sweep) -> tuple[tuple[str, str], ...]:
    """The language pairs of the training text, anchor first."""
    by_name = {source.name: source for source in sweep.data.train}
    pairs = [source_pairs(s, by_name, sweep.data.anchor_priority) for s in sweep.data.train if s.train]
    return tuple(dict.fromkeys(pair for of_source in pairs for pair in of_source))


def student_width(student: Student) -> int | None:
    """The width of the student's vectors. None if it follows the teacher's or is not known yet."""
    if student.projection is not None:
        return student.projection if isinstance(student.projection, int) else None
    return student.width if student.model is None else model_width(student.model, student.revision)
