"""Checks the values that a sweep can propose, alone and together, against sections and methods' settings.

Pure: a sweep goes in, `(key, problem)` pairs come out."""

import json
import re
import typing
from collections.abc import Iterator, Mapping

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from babeltune.errors import MethodError, plural
from babeltune.method import Method, load_method
from babeltune.planning.name_checks import methods_with
from babeltune.planning.parameters import (
    INNER,
    accepted_values,
    inner_setting,
    of_method,
    proposable_methods,
    split_name,
    values_of,
)
from babeltune.planning.rules import POOLER_OR_PROJECTION, kind_of, student_problems
from babeltune.planning.space import SECTIONS, combinations, config_for, fields_of, has_setting, largest, smallest
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.document import describe, refusal
from babeltune.schema.mending import adapter_of, hint_at
from babeltune.schema.records import Parameter, Scalar, Student, Sweep, Transformer
from babeltune.training.parts import FEWEST

JUDGED_TOGETHER = ("pooling", "kind")
"""Fields of a student whose searched values are judged in `_config_combinations`, beside the others."""
MOST_STEPS = 10_000_000
"""The most steps of a trial: at a hundred a second, more than a day. All their sizes are in memory."""


def value_problems(sweep: Sweep) -> Iterator[Problem]:
    """Values that are wrong alone; if there are none, those that do not go together."""
    single = list(_single_values(sweep))
    yield from single
    if not single:
        reports = largest(sweep, "reports")
        if sweep.scheduler.kind != "none" and (grace := sweep.scheduler.grace) > reports:
            words = f"{grace} must be at most training.reports ({reports}): else nothing stops"
            yield ("scheduler", "grace"), words
        yield from _config_combinations(sweep)
        yield from _reports_without_steps(sweep)
        parts, batch = largest(sweep, "batch_parts"), smallest(sweep, "global_batch")
        if batch < FEWEST * parts:
            words = f"{parts} parts need {plural(FEWEST * parts, 'pair')}, and training.global_batch is {batch}"
            yield ("training", "batch_parts"), f"{words}; give fewer parts"


def _single_values(sweep: Sweep) -> Iterator[Problem]:
    for name, parameter in sweep.parameters.items():
        if "." in name and not of_method(name):
            yield from _section_values(sweep, name, parameter)
        for value in (*values_of(parameter, 0), *values_of(parameter, 1)) if name == "seed" else ():
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
                yield ("parameters", "seed"), f"{describe(value)} must be a whole number from 0 to 2**32 - 1"
    for method in [load_method(name) for name in proposable_methods(sweep)]:
        of_types = list(_config_types(sweep, method))
        yield from of_types
        if of_types:
            continue  # its own checks expect values of these types
        try:
            config_for(sweep, method, {})
        except MethodError as error:
            yield blamed(sweep.fixed, "config", str(error)), str(error)


def _reports_without_steps(sweep: Sweep) -> Iterator[Problem]:
    """More reports than the shortest trial has steps, and more steps than a trial can have."""
    if sweep.budget.unit == "compute":
        return  # how many steps that pays for is known once it is counted
    pairs, batch, reports = smallest(sweep, "pairs"), largest(sweep, "global_batch"), largest(sweep, "reports")
    whole, rest = divmod(pairs, batch)  # a last batch of one pair is left out
    if reports > (steps := whole + (rest > 1 or not whole)):
        words = f"{plural(reports, 'report')} need as many steps, and training.pairs {pairs} in batches of {batch} are"
        yield ("training", "reports"), f"{words} {steps}; give fewer reports, more pairs, or smaller batches"
    if (steps := (most := largest(sweep, "pairs")) // (least := smallest(sweep, "global_batch"))) > MOST_STEPS:
        words = f"{most:,} in batches of {least} are {plural(steps, 'step')}, and a trial has at most {MOST_STEPS:,}"
        yield ("training", "pairs"), f"{words}; give fewer pairs or larger batches"


def _section_values(sweep: Sweep, name: str, parameter: Parameter) -> Iterator[Problem]:
    """Each value of a parameter as if its section had it, beside what its `when` names and constants that then hold."""
    prefix, last = split_name(name)
    conditions = ((*split_name(other), accepted_values(values)) for other, values in parameter.when.items())
    beside = {f"{prefix}.{field}": values[0] for part, field, values in conditions if part == prefix}
    for other, constant in sweep.parameters.items():
        if constant.const is not None and constant.when.items() <= parameter.when.items():
            beside[other] = constant.const
    key: Key = ("parameters", name, kind_of(parameter))
    for value in dict.fromkeys([*values_of(parameter, 0), *values_of(parameter, 1)]):
        try:
            adapter_of(hint_at(SECTIONS[prefix], (last,), bounds=True)).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            hint = hint_at(SECTIONS[prefix], (last,))
            yield key, refusal(value, error.errors(include_url=False), hint)
            continue
        if prefix == "student" and last not in (*JUDGED_TOGETHER, "heads"):
            student = student_with(sweep, beside | {name: value})
            yield from ((key, problem) for where, problem in student_problems(student) if where == (last,))


def _config_types(sweep: Sweep, method: type[Method]) -> Iterator[Problem]:
    """Fixed settings and each parameter's values against the types of the method's `Config`, one at a time."""
    # Two methods may have a setting of one name and different values: a parameter is judged by those that can get it.
    types = fields_of(method)
    searched = [
        (("parameters", name, kind_of(parameter)), name, value)
        for name, parameter in sweep.parameters.items()
        if of_method(name) and method.name in methods_with(sweep, name)
        for end in (0, 1)
        for value in values_of(parameter, end)
    ]
    try:
        hints = typing.get_type_hints(method.Config)
    except NameError:
        return  # a type that only checkers import: the constructor alone judges
    for key, name, value in [*_fixed_settings(sweep), *searched]:
        if name not in types and not has_setting(method, name):
            continue
        try:
            part, field = inner_setting(name) if name.startswith(INNER) else ("", name)
            hint = typing.get_type_hints(load_method(part).Config)[field] if part else hints[name]
            TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            yield key, f"{refusal(value, error.errors(include_url=False), hint)} (method {method.name!r})"
        except PydanticUserError:
            continue  # a type that pydantic does not know: the constructor alone judges


def _fixed_settings(sweep: Sweep) -> Iterator[tuple[Key, str, object]]:
    """Key, name and value of each setting in `config`, and of those of the methods that a method combines."""
    for name, value in sweep.fixed.items():
        inner = value if f"{name}." == INNER and isinstance(value, dict) else {}
        if not inner:
            yield ("config", name), name, value
        for part, settings in inner.items():
            if not isinstance(settings, dict):
                yield ("config", name, part), name, settings
                continue
            for field, each in settings.items():
                yield ("config", name, part, field), f"{INNER}{part}.{field}", each


def _config_combinations(sweep: Sweep) -> Iterator[Problem]:
    """Every combination of choices, with ranges at both ends, as the method's own checks see it."""
    names = [name for name in sweep.parameters if of_method(name) or name == "method"]
    for params in (each for end in (0, 1) for each in combinations(sweep.parameters, names, end=end)):
        try:
            config_for(sweep, load_method(str(params.get("method", sweep.method))), params)
        except MethodError as error:
            yield blamed(params, "parameters", str(error)), str(error)
    shape = ("student.kind", "student.preset", "student.width", "student.heads", "student.model")
    for params in combinations(sweep.parameters, shape):
        student = student_with(sweep, params)
        if isinstance(student, Transformer) and student.model is None and student.width % student.heads:
            name = "student.heads" if "student.heads" in params else "student.width"
            words = (
                f"student.heads {student.heads} does not divide student.width {student.width}, which can be proposed"
            )
            yield ("parameters", name), f"{words} together; choose values that always do, or tie them with `when`"
    for params in combinations(sweep.parameters, ("student.pooling", "student.projection")):
        student = student_with(sweep, params)
        if student.pooling == "pooler" and student.projection is not None:
            name = "student.projection" if "student.projection" in params else "student.pooling"
            yield ("parameters", name), f"{student.projection!r} can be proposed with it: {POOLER_OR_PROJECTION}"


def blamed(values: Mapping[str, object], section: str, message: str) -> Key:
    """The key of the setting that a method's message speaks of first, or the section."""
    about = re.sub(r"^method '\w+': ", "", message)  # a weight has the name of its method
    words = {name: inner_setting(name)[1] if name.startswith(INNER) else name for name in values}
    places = {name: re.search(rf"\b{re.escape(word)}\b", about) for name, word in words.items()}
    by_place = sorted((match.start(), name) for name, match in places.items() if match)
    return (section, by_place[0][1]) if by_place else (section,)


def student_with(sweep: Sweep, params: Mapping[str, Scalar]) -> Student:
    """The student that these proposed parameters ask for."""
    fields = {split_name(name)[1]: value for name, value in params.items() if name.startswith("student.")}
    return sweep.student.changed(**fields)
