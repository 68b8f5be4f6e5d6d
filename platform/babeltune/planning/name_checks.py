"""The names in a sweep file: methods, their settings, parameters and what conditions refer to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from babeltune.errors import MethodError, SpecError, nearest
from babeltune.method import Method, available, load_method
from babeltune.planning.parameters import (
    INNER,
    SETTINGS,
    accepted_values,
    allows,
    inner_setting,
    of_method,
    ordered,
    proposable_methods,
    split_name,
    values_of,
    words_for,
)
from babeltune.planning.rules import RANGES, kind_of
from babeltune.planning.space import (
    MANY,
    SECTIONS,
    TOKENIZED,
    combinations,
    fields_of,
    grid,
    has_paper,
    has_setting,
    section_of,
)
from babeltune.schema.base import either, records_in
from babeltune.schema.base import fields_of as record_fields
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.document import describe
from babeltune.schema.presets import FIELDS
from babeltune.schema.records import Parameter, Sweep

COMPARED = ("training.pairs", "training.compute", "training.rates", "training.reports")
"""Settings by which trials are compared, so they are the same in all of them."""


def name_problems(sweep: Sweep) -> Iterator[Problem]:
    """Problems of method, setting and parameter names."""
    unknown = list(_method_names(sweep))
    yield from unknown
    if unknown:
        return
    methods = [load_method(name) for name in proposable_methods(sweep)]
    settings = set().union(*(fields_of(method) for method in methods))
    yield from _without_paper(sweep, methods)
    for name in sweep.fixed:
        if name not in settings:
            allowed = f"{', '.join(sorted(settings))}{nearest(name, settings)}"
            yield ("config", name), f"method {either_of(methods)} has no setting {name!r}; allowed: {allowed}"
    for name, parameter in sweep.parameters.items():
        yield from _parameter_name(sweep, name, parameter, methods)
    yield from _conditions(sweep)
    if sweep.sampler.kind == "grid":
        yield from _grid(sweep)


def _without_paper(sweep: Sweep, methods: list[type[Method]]) -> Iterator[Problem]:
    """Methods without a configuration as printed, if `config: paper` asks for it."""
    lacking = [method for method in methods if sweep.config == "paper" and not has_paper(method)]
    if lacking:
        having = ", ".join(name for name in available() if has_paper(load_method(name)))
        words = f"'paper': method {either_of(lacking)} has no Config.paper(); methods that have one: {having}"
        yield ("config",), f"{words}; otherwise give fields: {', '.join(sorted(fields_of(lacking[0])))}"


def _grid(sweep: Sweep) -> Iterator[Problem]:
    """Parameters that have no finite list of values, and points given beside a grid."""
    for name, parameter in sweep.parameters.items():
        try:
            grid({name: replace(parameter, when={})})
        except SpecError as error:
            yield ("parameters", name, kind_of(parameter)), str(error)
            return
    for field in ("points", "first_points"):
        if getattr(sweep.sampler, field):
            yield ("sampler", field), "a grid proposes every combination by itself; remove the points"
    if len(grid(sweep.parameters)) >= MANY:
        yield ("sampler", "kind"), f"the grid has {MANY} points or more; search fewer settings, or take another sampler"


def _method_names(sweep: Sweep) -> Iterator[Problem]:
    """Methods that are not installed, and a `method` parameter that is not a choice."""
    installed = list(available())
    parameter = sweep.parameters.get("method")
    if parameter is not None and kind_of(parameter) not in ("choice", "const"):
        yield ("parameters", "method", kind_of(parameter)), "methods have names; give a choice or a const"
        return
    proposed = [(("parameters", "method", kind_of(parameter)), v) for v in values_of(parameter, 0)] if parameter else []
    for key, name in [(("method",), sweep.method), *proposed]:
        try:
            load_method(str(name))
        except MethodError as error:
            yield key, f"{describe(name)}: {error}"
        except (ImportError, AttributeError) as error:
            yield key, f"{describe(name)} is installed, but cannot be loaded: {error}; install its distribution again"
    if not installed:
        yield ("method",), "no method is installed; install babeltune, or another distribution that offers methods"


def _parameter_name(sweep: Sweep, name: str, parameter: Parameter, methods: list[type[Method]]) -> Iterator[Problem]:
    """Whether a parameter names something that can be searched."""
    key: Key = ("parameters", name)
    if not of_method(name):
        if "." in name:
            yield from _section_name(sweep, name, parameter)
        return
    lacking = [method for method in methods if not has_setting(method, name)]
    if len(lacking) == len(methods):
        yield key, _no_inner_setting(name, methods) if name.startswith(INNER) else _no_setting(name, methods)
        return
    proposed_with = methods_with(sweep, name)
    having = ", ".join(method.name for method in methods if method not in lacking)
    for method in lacking:
        if method.name in proposed_with:
            yield key, f"method {method.name!r} has no setting {name!r}; add `when: {{method: [{having}]}}`"
    if name.startswith(INNER) and not _has_weight(sweep, part := inner_setting(name)[0]):
        yield key, f"{name!r}: {part!r} has no weight, so it is no part of the sum; give `config: {{{part}: 1}}`"
    if _is_fixed(sweep, name) and not parameter.when:
        yield key, f"{name!r} is fixed in `config` and searched here; keep one"


def _no_setting(name: str, methods: list[type[Method]]) -> str:
    settings = sorted(set().union(*(fields_of(method) for method in methods)) | {"method", "seed"})
    dotted = [f"{prefix}.{key}" for prefix, record in SECTIONS.items() for key in record_fields(record)]
    ending = next((f"; did you mean {each!r}?" for each in dotted if each.rpartition(".")[2] == name), "")
    near = nearest(name, settings) or nearest(name, dotted) or ending
    keys = f"or a key of {', '.join(SECTIONS)} such as training.learning_rate{near}"
    return f"{name!r} is not a setting of method {either_of(methods)}; allowed: {', '.join(settings)}, {keys}"


def _no_inner_setting(name: str, methods: list[type[Method]]) -> str:
    """Why a name such as `settings.lealla.margin` is no setting of a method that is combined."""
    part, field = inner_setting(name)
    combining = [fields_of(method) for method in methods if SETTINGS in fields_of(method)]
    parts = sorted(set(available()).intersection(set().union(*combining)))
    if not combining:
        is_outer = any(field in fields_of(method) for method in methods)
        advice = f"name its own setting: {field!r}" if is_outer else "`method: combined` does"
        return f"{name!r}: method {either_of(methods)} combines no other methods; {advice}"
    if part not in parts:
        return f"{name!r}: {part!r} is no method to combine; allowed: {', '.join(parts)}{nearest(part, parts)}"
    settings = sorted(fields_of(load_method(part)))
    if not field:
        weight = f"its weight is {part!r} alone"
        return f"{name!r}: name a setting of method {part!r}, such as {name}.{settings[0]}; {weight}"
    allowed = f"{', '.join(settings)}{nearest(field, settings)}"
    return f"{name!r}: method {part!r} has no setting {field!r}; allowed: {allowed}"


def _has_weight(sweep: Sweep, part: str) -> bool:
    """Whether the combined method can have a weight above 0."""
    parameter = sweep.parameters.get(part)
    values = [sweep.fixed.get(part)] if parameter is None else [*values_of(parameter, 0), *values_of(parameter, 1)]
    return any(values)


def _is_fixed(sweep: Sweep, name: str) -> bool:
    """Whether `config` has the setting, or its `settings` that of a combined method."""
    if not name.startswith(INNER):
        return name in sweep.fixed
    part, field = inner_setting(name)
    settings = sweep.fixed.get(SETTINGS)
    fields = settings.get(part) if isinstance(settings, Mapping) else None
    return isinstance(fields, Mapping) and field in fields


def methods_with(sweep: Sweep, name: str) -> set[str]:
    """The methods under which the parameter is proposed, following its conditions."""
    try:
        proposals = list(combinations(sweep.parameters, (name, "method")))
    except SpecError:
        return set()  # a circle of conditions, which `_conditions` reports
    return {str(params.get("method", sweep.method)) for params in proposals if name in params}


FROM_SCRATCH = tuple(f"student.{name}" for name in ("preset", *FIELDS, "vocabulary"))
"""Fields that only a student from scratch has."""


def _section_name(sweep: Sweep, name: str, parameter: Parameter) -> Iterator[Problem]:
    """Whether a name with a dot is a key of a section that can be searched."""
    key: Key = ("parameters", name)
    prefix, last = split_name(name)
    dotted = [f"{section}.{key}" for section, record in SECTIONS.items() for key in record_fields(record)]
    if name not in dotted:
        inside = [field for field in dotted if field.startswith(f"{prefix}.")] or [f"{s}.*" for s in SECTIONS]
        yield key, f"{name!r} cannot be searched; allowed: {', '.join(inside)}{nearest(name, dotted)}"
    elif section_of(sweep, prefix) is None:
        yield key, f"needs {prefix}, which the file does not have; add {prefix}: {{kind: ema}}"
    elif words := _of_other_kind(sweep, name):
        yield key, words
    elif name in TOKENIZED and kind_of(parameter) in RANGES:
        yield key, "decides how text is tokenized, once before the first trial; give a choice or a const"
    elif name in COMPARED and sweep.scheduler.kind != "none" and kind_of(parameter) != "const":
        kind = sweep.scheduler.kind
        yield key, f"must be the same in all trials, which `scheduler: {{kind: {kind}}}` compares report by report"
    elif name in FROM_SCRATCH and sweep.student.model is not None and "student.model" not in sweep.parameters:
        yield key, f"a named model ({sweep.student.model}) brings its own {last}; leave one of the two out"
    elif name in FROM_SCRATCH and sweep.student.start is not None and "student.start" not in sweep.parameters:
        yield key, f"the start ({sweep.student.start}) brings its own {last}; leave one of the two out"
    elif last == "patience" and kind_of(parameter) in ("float", "log_float"):
        yield key, "counts reports; give a choice of whole numbers"


def _of_other_kind(sweep: Sweep, name: str) -> str:
    """The problem if a searched field may be proposed beside a kind of its section without that field."""
    prefix, last = split_name(name)
    section, kind = section_of(sweep, prefix), f"{prefix}.kind"
    having = [word for each in records_in(SECTIONS[prefix]) if last in record_fields(each) for word in each.kinds()]
    try:
        proposed = [params for params in combinations(sweep.parameters, (name, kind)) if name in params]
    except SpecError:
        return ""  # a circle of conditions, which `_conditions` reports
    for other in (params.get(kind, section.kind) for params in proposed if section.KIND):
        if other not in having:
            advice = f"`{kind}: {other}` can be proposed with it; add `when: {{{kind}: {having[0]}}}`"
            advice = advice if kind in sweep.parameters else f"{kind} is {other!r}; remove it"
            return f"is for kind {either(having)}, and {advice}"
    return ""


def _conditions(sweep: Sweep) -> Iterator[Problem]:
    """Conditions on what is not a parameter, or on values that never occur, and circles of them."""
    for name, parameter in sweep.parameters.items():
        for other, values in parameter.when.items():
            key: Key = ("parameters", name, "when", other)
            if other not in sweep.parameters:
                allowed = ", ".join(each for each in sweep.parameters if each != name)
                yield key, f"{other!r} is not a parameter; allowed: {allowed}{nearest(other, sweep.parameters)}"
                continue
            for value in accepted_values(values):
                if not allows(sweep.parameters[other], value):
                    words = words_for(sweep.parameters[other])
                    near = nearest(str(value), [str(v) for v in values_of(sweep.parameters[other], 0)])
                    yield key, f"{other} is never {value!r}; allowed: {words}{near}"
    try:
        ordered(sweep.parameters)
    except SpecError as error:
        yield ("parameters",), str(error)


def either_of(methods: list[type[Method]]) -> str:
    return " or ".join(repr(method.name) for method in methods)
