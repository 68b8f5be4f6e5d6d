"""The search space: how settings are proposed, which combinations exist, and how one proposal becomes a `Trial`.

`sweep.search` passes Optuna trials to `suggest`. `parameters.py` holds what is true of one setting alone. Settings
are drawn in an order that depends on their names only, so a sweep file's key order changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from babeltune.errors import MethodError, SpecError
from babeltune.files import plain
from babeltune.method import Method, Needs, load_method, make_config, trial_context
from babeltune.planning.parameters import (
    INNER,
    SETTINGS,
    allows,
    inner_setting,
    is_active,
    is_bare,
    of_method,
    ordered,
    proposable_methods,
    split_name,
    values_of,
    words_for,
)
from babeltune.planning.parameters import same as same
from babeltune.planning.rules import RANGES, kind_of
from babeltune.schema.base import changed
from babeltune.schema.records import Average, Parameter, Sampling, Scalar, Student, Sweep, Training, Trial

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Params = dict[str, Scalar]
SECTIONS: dict[str, object] = {
    "training": Training,
    "training.average": Average,
    "student": Student,
    "data.sampling": Sampling,
}
"""The records whose fields may be parameters with a dot in their names."""
TOKENIZED = (
    "student.kind",
    "student.model",
    "student.revision",
    "student.start",
    "student.embeddings_from",
    "student.token_vectors",
    "student.trim",
    "student.vocabulary",
    "student.lowercase",
    "student.max_tokens",
    "student.prompt",
)
"""Student fields that decide what is prepared before the first trial."""
GRIDDED = ("choice", "const", "int")  # the kinds of parameters that a grid can take every value of
AS_FAST = ("dropout", "seed", "token_vectors")  # Student fields that do not change how fast it encodes
MANY_SHAPES = 32  # at most this many shapes of students are measured before the search; it takes some seconds each
MANY = 4096  # at most this many combinations of choices are looked at


class Suggests(Protocol):
    """The part of an Optuna trial that `suggest` uses."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar: ...


@dataclass(frozen=True)
class Draw:
    """Suggests at random, the same for equal seed and number on every machine."""

    generator: random.Random

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        # Drawn as a power of the ratio, so that the ends stay the ends.
        part = self.generator.random()
        return low * (high / low) ** part if log else low + (high - low) * part

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        if not log:
            return self.generator.randint(low, high)
        return min(high, max(low, round(self.suggest_float(name, low - 0.5, high + 0.5, log=True))))

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar:
        return self.generator.choice(list(choices))


def suggest(parameters: Mapping[str, Parameter], trial: Suggests) -> Params:
    """Asks the trial for every parameter whose `when` holds; a `const` is returned without asking."""
    params: Params = {}
    for name in ordered(parameters):
        if is_active(parameters[name], params):
            params[name] = _ask(name, parameters[name], trial)
    return params


def _ask(name: str, parameter: Parameter, trial: Suggests) -> Scalar:
    kind = kind_of(parameter)
    if kind == "const":
        return parameter.const
    if kind == "choice":
        return trial.suggest_categorical(name, list(parameter.choice or ()))
    low, high = getattr(parameter, kind)
    log = kind.startswith("log")
    if kind.endswith("int"):
        return trial.suggest_int(name, int(low), int(high), log=log)
    return trial.suggest_float(name, float(low), float(high), log=log)


def sample(sweep: Sweep, number: int) -> Params:
    """Parameters drawn at random: the same for the same sweep seed and number."""
    return suggest(sweep.parameters, Draw(random.Random(f"{sweep.seed}:{number}")))


def combinations(
    parameters: Mapping[str, Parameter],
    names: Iterable[str] | None = None,
    *,
    end: int = 0,
    values: Callable[[Parameter], Iterable[Scalar]] | None = None,
) -> Iterator[Params]:
    """Every reachable combination of choices of these parameters (all, when None) and of those they depend on.

    A range stands at its low end (`end` 0) or its high end (1), or at what `values` gives. At most `MANY` are given."""
    closed, waiting = set[str](), [name for name in (parameters if names is None else names) if name in parameters]
    while waiting:
        if (name := waiting.pop()) not in closed:
            closed.add(name)
            waiting += [other for other in parameters[name].when if other in parameters]
    order = [name for name in ordered(parameters) if name in closed]

    def walk(index: int, params: Params) -> Iterator[Params]:
        if index == len(order):
            yield params
        elif not is_active(parameter := parameters[order[index]], params):
            yield from walk(index + 1, params)
        else:
            for value in values_of(parameter, end) if values is None else values(parameter):
                yield from walk(index + 1, {**params, order[index]: value})

    return itertools.islice(walk(0, {}), MANY)


def largest(sweep: Sweep, name: str) -> int:
    """The largest value that the training section's setting `name` can have in a trial."""
    return max(ends(sweep, name))


def smallest(sweep: Sweep, name: str) -> int:
    """The smallest value that the training section's setting `name` can have in a trial."""
    return min(ends(sweep, name))


def ends(sweep: Sweep, name: str) -> list[int]:
    """The values of the training section's setting `name`: the file's own, or a parameter's choices or both ends."""
    parameter = sweep.parameters.get(f"training.{name}")
    if parameter is None:
        return [int(getattr(sweep.training, name))]
    return [int(cast(float, value)) for end in (0, 1) for value in values_of(parameter, end)]


def grid(parameters: Mapping[str, Parameter]) -> list[Params]:
    """Every combination of choices, constants and whole numbers, those that exist only under a condition where it
    holds: what `sampler: {kind: grid}` proposes, in order, the last name varying fastest. At most `MANY`.

    Raises `SpecError` for a parameter with values in between."""
    for name, parameter in parameters.items():
        if kind_of(parameter) not in GRIDDED:
            todo = "give a choice, such as {choice: [0.05, 0.1]}, or another sampler"
            raise SpecError(f"{name}: {words_for(parameter)} has values in between, and a grid needs points; {todo}")
    return list(combinations(parameters, values=_points_of))


def _points_of(parameter: Parameter) -> Iterable[Scalar]:
    return values_of(parameter, 0) if parameter.int is None else range(int(parameter.int[0]), int(parameter.int[1]) + 1)


def within_grid(sweep: Sweep) -> Sweep:
    """The sweep with a budget of no more trials than its grid has points."""
    if sweep.sampler.kind != "grid":
        return sweep
    trials = min(sweep.budget.trials, len(grid(sweep.parameters)))
    return replace(sweep, budget=replace(sweep.budget, trials=trials))


def fields_of(method: type[Method]) -> set[str]:
    """The names of the method's settings."""
    return {field.name for field in dataclasses.fields(method.Config)}


def has_setting(method: type[Method], name: str) -> bool:
    """Whether the method has this setting, or combines others and one of them has it."""
    if not name.startswith(INNER):
        return name in fields_of(method)
    part, field = inner_setting(name)
    return {SETTINGS, part} <= fields_of(method) and field in fields_of(load_method(part))


def has_paper(method: type[Method]) -> bool:
    """Whether the method's `Config` has the literal paper's settings, `Config.paper()`."""
    return callable(getattr(method.Config, "paper", None))


def as_printed(method: type[Method]) -> dict[str, object]:
    """The fields of `Config.paper()`."""
    printed = method.Config.paper()  # type: ignore[attr-defined]
    return {name: getattr(printed, name) for name in fields_of(method)}


def config_for(sweep: Sweep, method: type[Method], params: Mapping[str, Scalar]) -> DataclassInstance:
    """The method's `Config`: its defaults, the sweep's fixed fields or the paper's, the proposal; fields of other
    methods left out.

    Raises `MethodError` for a value that the method refuses."""
    settings = fields_of(method)
    fixed = as_printed(method) if sweep.config == "paper" and has_paper(method) else sweep.fixed
    values: dict[str, Any] = {**fixed, **{name: value for name, value in params.items() if is_bare(name)}}
    if inner := {name: value for name, value in params.items() if name.startswith(INNER) and has_setting(method, name)}:
        by_method = {part: dict(fields) for part, fields in values.get(SETTINGS, {}).items()}
        for name, value in inner.items():
            part, field = inner_setting(name)
            by_method.setdefault(part, {})[field] = value
        values[SETTINGS] = by_method
    return make_config(method, {name: value for name, value in values.items() if name in settings})


def configurations(sweep: Sweep, extra: Iterable[str] = ()) -> Iterator[tuple[Params, type[Method], object]]:
    """Parameters, method and `Config` of every combination of choices, ranges at either end.

    `extra` names parameters with a dot that vary too. Raises `MethodError` as `config_for` does."""
    names = [name for name in sweep.parameters if of_method(name) or name == "method"] + list(extra)
    for end in (0, 1):
        for params in combinations(sweep.parameters, names, end=end):
            method = load_method(str(params.get("method", sweep.method)))
            yield params, method, config_for(sweep, method, params)


def possible_needs(sweep: Sweep) -> list[tuple[str, object, Needs]]:
    """Every distinct need of the configurations that can be proposed and of the default one, with an example."""
    by_need: dict[tuple[str, Needs], tuple[str, object, Needs]] = {}
    default = default_params(sweep)
    method = load_method(str(default.get("method", sweep.method)))
    first = (default, method, config_for(sweep, method, default))
    for _, method, config in (first, *configurations(sweep)):
        needs = method.needs(config).prepared
        by_need.setdefault((method.name, needs), (method.name, config, needs))
    return list(by_need.values())


def methods_used(sweep: Sweep) -> tuple[str, ...]:
    """The methods whose code a trial of this sweep can run: those that can be proposed, and those inside of these."""
    inside = [name for _, method, config in configurations(sweep) for name in method.uses(config)]
    return tuple(dict.fromkeys([*proposable_methods(sweep), *inside]))


def preparations(sweep: Sweep) -> list[Student]:
    """Every student whose text must be tokenized on its own: combinations of `TOKENIZED`, and the default one."""
    students = [sweep.student.changed(**_fields_of("student", default_params(sweep)))]
    for params in combinations(sweep.parameters, TOKENIZED):
        chosen = {name: params[name] for name in TOKENIZED if name in params}
        student = sweep.student.changed(**_fields_of("student", chosen))
        if student not in students:
            students.append(student)
    return students


def shape_of(trial: Trial) -> str:
    """Equal for trials whose students are equally fast."""
    student = {name: value for name, value in plain(trial.student).items() if name not in AS_FAST}
    return json.dumps([student, trial_context(trial.method, trial.config).needs.vectors])


def shapes(sweep: Sweep) -> dict[str, Trial]:
    """A trial of every shape of students (`shape_of`) that can be proposed, a range at its low end; of the default one
    alone if there are more than `MANY_SHAPES`. Encoders that are not trained have none."""
    default = make_trial(sweep, 0, default_params(sweep))
    names = [name for name in sweep.parameters if name == "method" or split_name(name)[0] == "student"]
    trials = [default]
    for params in combinations(sweep.parameters, names):
        with contextlib.suppress(MethodError):  # settings that this leaves out may mend it
            trials.append(make_trial(sweep, 0, params))
    trained = [trial for trial in trials if not trial_context(trial.method, trial.config).needs.frozen]
    by_shape = {shape_of(trial): trial for trial in reversed(trained)}
    shown = by_shape if len(by_shape) <= MANY_SHAPES else by_shape.keys() & {shape_of(default)}
    return {shape: by_shape[shape] for shape in shown}


def make_trial(sweep: Sweep, number: int, params: Mapping[str, Scalar]) -> Trial:
    """The trial of these parameters; what they leave out stays as the sweep file has it.

    All trials share the sweep's seed, unless `seed` is searched. They start from the same weights and meet the pairs in
    the same order. So two trials differ by their settings alone."""
    method = load_method(str(params.get("method", sweep.method)))
    return Trial(
        number=number,
        seed=int(cast(int, params.get("seed", sweep.seed))),
        method=method.name,
        config={**plain(config_for(sweep, method, params))},
        student=sweep.student.changed(**_fields_of("student", params)),
        training=_training(sweep.training, params),
        sampling=replace(sweep.data.sampling, **_fields_of("data.sampling", params)),
        objectives=sweep.objectives,
        params=dict(params),
    )


def _training(training: Training, params: Mapping[str, Scalar]) -> Training:
    """The section with the proposed values, those of its average too."""
    proposed, average = replace(training, **_fields_of("training", params)), training.average
    if average is None:
        return proposed
    return replace(proposed, average=changed(Average, average, _fields_of("training.average", params)))


def section_of(sweep: Sweep, prefix: str) -> Any:
    """The section whose fields parameters of this prefix name."""
    records = {"training": sweep.training, "training.average": sweep.training.average, "student": sweep.student}
    return {**records, "data.sampling": sweep.data.sampling}[prefix]


def _fields_of(prefix: str, params: Mapping[str, Scalar]) -> dict[str, Any]:
    """The values of `prefix.field` parameters, by field."""
    return {split_name(n)[1]: v for n, v in params.items() if split_name(n)[0] == prefix}


def default_params(sweep: Sweep) -> Params:
    """The parameters' values before anything is searched: constants, the sweep file's own values, and defaults."""
    method_parameter = sweep.parameters.get("method")
    fixed = method_parameter is not None and kind_of(method_parameter) == "const"
    method = load_method(str(method_parameter.const) if method_parameter and fixed else sweep.method)
    config = cast("dict[str, Scalar]", plain(config_for(sweep, method, {})))
    params: Params = {}
    for name in ordered(sweep.parameters):
        parameter = sweep.parameters[name]
        prefix, last = split_name(name)
        if not is_active(parameter, params) or (of_method(name) and not has_setting(method, name)):
            continue
        if kind_of(parameter) == "const":
            params[name] = parameter.const
        elif name.startswith(INNER):
            part, field = inner_setting(name)
            inner: Any = plain(make_config(load_method(part), cast("Any", config[SETTINGS]).get(part, {})))
            params[name] = _within(parameter, inner[field])
        elif prefix:
            params[name] = getattr(section_of(sweep, prefix), last)
        else:
            outer: Params = {"method": method.name, "seed": sweep.seed}
            params[name] = outer[name] if name in outer else _within(parameter, config[name])
    return params


def _within(parameter: Parameter, value: Scalar) -> Scalar:
    """The value; if the parameter cannot take it, the nearest end of its range or its first choice."""
    if value is None or allows(parameter, value):  # None stands for a rule rather than a value
        return value
    low, high = (values_of(parameter, end)[0] for end in (0, 1))
    above = isinstance(value, int | float) and kind_of(parameter) in RANGES and value > cast(float, high)
    return high if above else low


def shown_trials(sweep: Sweep, samples: int) -> list[Trial]:
    """The default configuration, and examples of what may be tried."""
    sampled = (make_trial(sweep, number, sample(sweep, number)) for number in range(samples))
    return [make_trial(sweep, 0, default_params(sweep)), *sampled]
