"""Portfolios: settings that were good on other text, which a sweep may try first (`sampler.first_points`).

A portfolio is a file in `portfolios/`. A sweep keeps its name alone, so a file is never changed: other points get
another name. `python -m benchmarks.search_replay.record --portfolio NAME` writes one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from babeltune.errors import SpecError
from babeltune.planning.parameters import is_active, ordered, values_of
from babeltune.planning.rules import RANGES, kind_of
from babeltune.schema.records import Parameter, Scalar, Sweep

if TYPE_CHECKING:
    from babeltune.planning.space import Params

FOLDER = Path(__file__).with_name("portfolios")
"""JSON, which is YAML too. By the suffix `.yaml` the files go into the wheel, where no `.json` may go."""


def portfolios() -> tuple[str, ...]:
    """The names of all portfolios."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def portfolio_points(sweep: Sweep) -> list[Params]:
    """The points of the portfolio that the sweep names, within its search space and without repeats.

    A value outside of a range becomes its nearest end, a number that is no choice the nearest one. What the portfolio
    lacks is left to be drawn. Empty when the sweep names no portfolio, or searches nothing that it knows."""
    if sweep.sampler.first_points is None:
        return []
    if sweep.sampler.first_points not in (offered := portfolios()):
        raise SpecError(f"sampler.first_points: {sweep.sampler.first_points!r} is none of {', '.join(offered)}")
    document = json.loads((FOLDER / f"{sweep.sampler.first_points}.yaml").read_text(encoding="utf-8"))
    points: list[Params] = []
    for point in document["points"]:
        inside = within_space(sweep.parameters, point)
        if inside and inside not in (*points, *sweep.sampler.points):
            points.append(inside)
    return points


def within_space(parameters: Mapping[str, Parameter], point: Mapping[str, Scalar]) -> Params:
    """The part of the point that these parameters can take, conditional ones if their condition is known to hold."""
    values: Params = {}
    inside: Params = {}
    for name in ordered(parameters):
        parameter = parameters[name]
        if not is_active(parameter, values):
            continue
        if kind_of(parameter) == "const":
            values[name] = parameter.const
        elif name in point and (value := _nearest(parameter, point[name])) is not None:
            values[name] = inside[name] = value
    return inside


def _nearest(parameter: Parameter, value: Scalar) -> Scalar:
    """The value that the parameter can take and that is nearest to this one; None if nothing compares."""
    kind = kind_of(parameter)
    if kind in RANGES:
        if not is_number(value):
            return None
        low, high = (cast(float, values_of(parameter, end)[0]) for end in (0, 1))
        inside = min(high, max(low, value))
        return round(inside) if kind.endswith("int") else float(inside)
    choices = parameter.choice or ()
    if value in choices:
        return value
    numbers = [choice for choice in choices if is_number(choice)]
    if not is_number(value) or not numbers:
        return None
    return min(numbers, key=lambda choice: abs(choice - value))


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
