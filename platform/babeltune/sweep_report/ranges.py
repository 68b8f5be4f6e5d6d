"""Whether a search may have been too narrow: values at an end of what was searched."""

import math
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from babeltune.planning.rules import kind_of
from babeltune.schema.base import number
from babeltune.schema.records import Scalar
from babeltune.schema.search import Parameter

NEAR = 0.02  # the share of a range within which a value is at its end


def values_at_ends(varied: Mapping[str, Parameter], values: Mapping[str, Scalar]) -> Iterator[str]:
    """The values at an end of their range, or of three choices or more that are numbers."""
    for name, parameter in varied.items():
        kind, value = kind_of(parameter), values.get(name)
        among = getattr(parameter, kind)
        if not _is_number(value) or not all(map(_is_number, among)) or (kind == "choice" and len(among) < 3):
            continue
        scale = math.log if kind.startswith("log") else float
        low, high, at = scale(min(among)), scale(max(among)), scale(value)
        if kind == "choice" and value not in (min(among), max(among)):
            continue
        if high > low and min(at - low, high - at) <= NEAR * (high - low):
            yield f"{name} {number(value)} (of {number(min(among))} to {number(max(among))})"


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
