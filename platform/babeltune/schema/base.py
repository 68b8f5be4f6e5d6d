"""What all records share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

Made = TypeVar("Made")
Number = int | float
Scalar = bool | int | float | str | None


class Strict:
    """A record that pydantic, where it is at the door, refuses unknown keys for."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


def number(value: object) -> str:
    """Formats a value for a message: a float with four significant digits, anything else by `str`."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flat(values: Mapping[str, object]) -> dict[str, object]:
    """Nested settings as one level with dots in the names: `settings.laser3_co.temperature`."""
    found: dict[str, object] = {}
    for name, value in values.items():
        inner = flat(value) if isinstance(value, Mapping) else None
        found |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return found


def record_from(make: Callable[..., Made], values: Mapping[str, object]) -> Made:
    """The record with these fields, as `files.plain` wrote them. `TypeError` for a name that it lacks, or one too
    many."""
    return make(**values)
