"""One searched setting: the values that it takes, when it exists, and how it is written.

`space.py` combines settings and makes proposals of them. `rules.py` knows their kinds."""

from collections.abc import Mapping
from typing import cast

from babeltune.errors import SpecError, nearest
from babeltune.planning.rules import RANGES, kind_of
from babeltune.schema.records import Parameter, Scalar, Sweep

OTHERS = ("method", "seed")  # bare names that are not fields of a method's `Config`
SETTINGS = "settings"  # the field of a method that combines others which holds their settings
INNER = f"{SETTINGS}."  # how `settings.lealla.margin` begins, the setting of a method that another one combines


def ordered(parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    """Names such that each comes after those in its `when`, otherwise alphabetically.

    Raises `SpecError` when conditions form a circle. Names that a `when` gives but nobody defines are passed over."""
    waiting, order = sorted(parameters), list[str]()
    while waiting:
        for name in waiting:
            if all(other in order or other not in parameters for other in parameters[name].when):
                order.append(name)
                waiting.remove(name)
                break
        else:
            raise SpecError(f"the conditions (`when`) of {', '.join(waiting)} depend on one another in a circle")
    return tuple(order)


def is_active(parameter: Parameter, params: Mapping[str, Scalar]) -> bool:
    """Whether the parameter exists, given those that its `when` names."""
    return all(
        name in params and any(same(params[name], value) for value in accepted)
        for name, accepted in ((name, accepted_values(values)) for name, values in parameter.when.items())
    )


def accepted_values(values: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """The values that a condition accepts, as a tuple also if it names one."""
    return values if isinstance(values, tuple) else (values,)


def same(a: object, b: object) -> bool:
    """Whether two values are equal. True is not equal to 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def allows(parameter: Parameter, value: Scalar) -> bool:
    """Whether the parameter can take that value."""
    kind = kind_of(parameter)
    if kind == "const":
        return same(parameter.const, value)
    if kind == "choice":
        return any(same(choice, value) for choice in parameter.choice or ())
    low, high = getattr(parameter, kind)
    number = isinstance(value, int if kind.endswith("int") else int | float) and not isinstance(value, bool)
    return number and low <= cast(float, value) <= high


def values_of(parameter: Parameter, end: int) -> tuple[Scalar, ...]:
    """The choices, the constant, or one end of the range in the range's own type."""
    kind = kind_of(parameter)
    if kind in RANGES:
        value = getattr(parameter, kind)[end]
        return (int(value) if kind.endswith("int") else float(value),)
    return (parameter.choice or ()) if kind == "choice" else (parameter.const,)


def is_bare(name: str) -> bool:
    """Whether a parameter names a field of the method's `Config`."""
    return "." not in name and name not in OTHERS


def of_method(name: str) -> bool:
    """Whether a parameter names a setting of the method, or of one that it combines."""
    return is_bare(name) or name.startswith(INNER)


def inner_setting(name: str) -> tuple[str, str]:
    """`settings.lealla.margin` as (`lealla`, `margin`)."""
    method, _, field = name.removeprefix(INNER).partition(".")
    return method, field


def split_name(name: str) -> tuple[str, str]:
    """`data.sampling.temperature` as (`data.sampling`, `temperature`); a bare name has the empty prefix."""
    prefix, _, last = name.rpartition(".")
    return prefix, last


def check_point(sweep: Sweep, point: Mapping[str, Scalar]) -> None:
    """Refuses a given point (`sampler.points`) that no proposal could equal. Raises `SpecError`."""
    for name, value in point.items():
        parameter = sweep.parameters.get(name)
        if parameter is None:
            allowed = ", ".join(sweep.parameters) or "none"
            raise SpecError(f"{name!r} is not a parameter; allowed: {allowed}{nearest(name, sweep.parameters)}")
        if not allows(parameter, value):
            raise SpecError(f"{name}: {value!r} is out of reach; allowed: {words_for(parameter)}")
        for other, values in parameter.when.items():
            accepted = accepted_values(values)
            if other not in point or not any(same(point[other], choice) for choice in accepted):
                has = f"it has {point[other]!r}" if other in point else "it leaves that out"
                choices = " or ".join(map(repr, accepted))
                raise SpecError(f"{name}: exists only when {other} is {choices}, and {has}; give both or neither")


def words_for(parameter: Parameter) -> str:
    """The values of the parameter, in the words of an error or a table."""
    kind = kind_of(parameter)
    if kind in RANGES:
        low, high = getattr(parameter, kind)
        return f"{low} to {high}" + (", whole" if kind.endswith("int") else "") + (", log" if "log" in kind else "")
    return ", ".join(repr(value) for value in values_of(parameter, 0))


def reports_of(sweep: Sweep, params: Mapping[str, Scalar]) -> int:
    """The reports of a trial with these parameters."""
    return int(cast(int, params.get("training.reports", sweep.training.reports)))


def proposable_methods(sweep: Sweep) -> tuple[str, ...]:
    """The methods that a trial of this sweep can have."""
    parameter = sweep.parameters.get("method")
    return (sweep.method,) if parameter is None else tuple(str(value) for value in values_of(parameter, 0))
