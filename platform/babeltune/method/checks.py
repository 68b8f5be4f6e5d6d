"""Checks of a method's settings, for `Config.__post_init__`. Each raises `ValueError` with the value and the rule."""

import math
from collections.abc import Collection


def one_of(config: object, **allowed: Collection[object]) -> None:
    """Each field has one of these values."""
    for field, values in allowed.items():
        if (value := getattr(config, field)) not in values:
            choices = ", ".join(str(each) for each in values if each is not None)
            raise ValueError(f"{field} is {value!r}; allowed: {choices}")


def above_zero(config: object, *fields: str) -> None:
    """Raises `ValueError` unless each field is a finite number above 0, or None."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{field} is {value}; it must be above 0")


def at_least(config: object, low: int, *fields: str) -> None:
    """Each field is a finite number, and not below `low`, or None."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not (value >= low and math.isfinite(value)):
            raise ValueError(f"{field} is {value}; it must be {f'at least {low}' if low else '0 or more'}")
