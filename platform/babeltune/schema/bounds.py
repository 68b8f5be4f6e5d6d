"""Bounds of single values, as annotations of a record's fields. pydantic checks them where it reads a file."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from babeltune.errors import nearest
from babeltune.schema.addresses import INSIDE, PLACE, is_inside, is_place
from babeltune.schema.layers import CHOICES, is_layer_choice
from babeltune.schema.presets import PRESETS

Key = tuple[str | int, ...]
Problem = tuple[Key, str]

OUT_OF_BOUNDS = "value_error"
"""Pydantic's name for a value that breaks a bound. Its message is the error's."""


@dataclass(frozen=True)
class Bound:
    """A condition on one value, and its words. A field that is null has no bound."""

    words: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    """The names that the value may have, for the nearest one."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> Any:
        from pydantic import AfterValidator  # processes that train read no files, and need no pydantic

        return handler(Annotated[source, AfterValidator(self._checked)])

    def _checked(self, value: Any) -> Any:
        if value is None or self.holds(value):
            return value
        near = nearest(value, self.names) if self.names else ""
        words = "must not be empty" if value in ("", ()) else f"{value_words(value)} must be {self.words}{near}"
        raise ValueError(words)


def at_least(low: float) -> Bound:
    return Bound(f"at least {low:g}", lambda value: value >= low)


def or_word(word: str, bound: Bound) -> Bound:
    """The bound of a number in whose place this word may stand."""
    return Bound(f"{bound.words}, or `{word}`", lambda value: value == word or bound.holds(value))


def within(low: float, high: float) -> Bound:
    """Bounds of a number that are wide, and refuse what only a typing error can mean."""
    return Bound(f"from {low if low < 1 else f'{low:,.0f}'} to {high:,.0f}", lambda value: low <= value <= high)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def is_name(text: str) -> bool:
    """Whether the text can name a sweep, a set or a model."""
    return NAME.fullmatch(text) is not None


NAME_WORDS = "letters, digits, `_`, `.` or `-`"
positive = Bound("greater than 0", lambda value: value > 0)
share = Bound("at least 0 and less than 1", lambda value: 0 <= value < 1)
part = Bound("above 0 and at most 1", lambda value: 0 < value <= 1)
seeds = Bound("from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
not_empty = Bound("not empty", bool)
place = Bound(PLACE, lambda value: value != "" and is_place(value))
inside = Bound(INSIDE, lambda value: value != "" and is_inside(value))
long_name = Bound(f"{NAME_WORDS}, at most 80, beginning with one of the first two", is_name)
a_name = Bound(NAME_WORDS, is_name)
two_rates = Bound("two numbers greater than 0", lambda values: all(rate > 0 for rate in values))
dimensions = Bound(
    "whole numbers of at least 2, none of them twice",
    lambda dims: all(dim >= 2 for dim in dims) and len(set(dims)) == len(dims),
)
layer_choice = Bound(CHOICES, is_layer_choice)
shape_name = Bound(
    f"one of {', '.join(list(PRESETS)[:3])} and thin-deep-LAYERS-WIDTH", PRESETS.__contains__, names=tuple(PRESETS)
)
delimiters = Bound("one character, and no quotation mark or line break", lambda c: len(c) == 1 and c not in '"\r\n')


def value_words(value: object) -> str:
    """The value as an error names it; of a long one, the beginning."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 120 else f"{text[:119]}…"


def repeated(names: list[str], key: Callable[[int], Key]) -> Iterator[Problem]:
    """Names that were used before."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield key(index), f"{name!r} is used twice; give each its own name"
