"""The value that was probably meant, for the message about one that a key refuses: `{trials: 12}` for `budget: 12`.

Pure. A mend is offered only if it passes the type and the bounds of its key, or of its section."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter

from babeltune.schema.base import fields_of, records_in
from babeltune.schema.search import Parameter

if TYPE_CHECKING:
    from babeltune.files import JsonValue

MOST = 2
"""Mends that a message offers."""
WIDE = 50
"""The ratio of two ends from which on a range is offered on a logarithmic scale."""
TRUTH = {"yes": True, "y": True, "on": True, "true": True, "1": True} | dict.fromkeys(
    ("no", "n", "off", "false", "0"), False
)
TIMES = {"k": Fraction(10**3), "m": Fraction(10**6), "g": Fraction(10**9), "%": Fraction(1, 100)}
"""Letters behind a number, and their factors."""
GROUPED = re.compile(r"([-+]?[0-9]{1,3})((?:[ ,._'’][0-9]{3})+)")
POWER = re.compile(r"10(?:\^|\*\*)([-+]?[0-9]{1,3})")
BETWEEN = re.compile(r"(.+?[0-9%kKmM])\s*(?:-|–|\.\.+|,|;|:|\bto\b)\s*([-+.0-9].*)")
"""Two numbers in one word, such as `0.2-0.8`."""
ENDS = {"min": 0, "low": 0, "lower": 0, "from": 0, "max": 1, "high": 1, "upper": 1, "to": 1}
"""Other programs' names for the ends of a range."""
DRAWN = re.compile("uniform|rand")
"""In the name of a distribution."""
RANGE_WORDS = ("range", "interval", "between", "bounds", "float", "int", "log_float", "log_int")
CHOICE_WORDS = ("values", "choices", "options", "categorical", "grid", "grid_search", "one_of", "choice")
CONST_WORDS = ("value", "constant", "fixed", "const")
DISTRIBUTION = ("distribution", "type", "scale", "log")
"""Keys that say how other programs draw a value."""


@functools.cache
def adapter_of(record: Any) -> TypeAdapter[Any]:
    """The checks of a type by pydantic. They are made once, because a sweep's take 20 ms to make."""
    return TypeAdapter(record)


def mends(value: JsonValue, hint: object) -> list[JsonValue]:
    """Values near this one that the type takes, the likeliest first; at most `MOST`."""
    fitting: list[JsonValue] = []
    for each in _candidates(value, hint):
        if each not in fitting and _fits(each, hint):
            fitting.append(each)
            if len(fitting) == MOST or Parameter not in arms(hint):
                break
    return fitting


def mend_words(value: JsonValue, hint: object, name: str = "") -> str:
    """The words `; write budget: {trials: 12}`, or nothing if nobody knows what was meant."""
    if value is None and _fits({}, hint):
        return "; leave it out"
    offered = " or ".join(f"{name}: {flow(each)}" if name else flow(each) for each in mends(value, hint))
    return f"; write {offered}" if offered else ""


def flow(value: JsonValue) -> str:
    """The value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def hint_at(record: object, key: tuple[str | int, ...], *, bounds: bool = False) -> object:
    """The type of the value under this key of a record, with its bounds if asked for; None if the key leads nowhere."""
    hint: object = record
    for part in key:
        inner_hints = [inner for arm in arms(hint) if (inner := _inside(arm, part, bounds)) is not None]
        hint = functools.reduce(operator.or_, inner_hints) if inner_hints else None
    return hint


def arms(hint: object) -> tuple[object, ...]:
    """The types of a union; any other type stands alone."""
    if typing.get_origin(hint) is typing.Annotated:
        return arms(typing.get_args(hint)[0])
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


_hints = functools.cache(typing.get_type_hints)  # they are evaluated from text, as often as they are asked for


def _inside(hint: object, part: str | int, bounds: bool) -> object:
    """The type of what a record, mapping or list of this type holds there; None if it holds nothing there."""
    arguments = typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _hints(hint, include_extras=bounds)[str(part)] if part in fields_of(hint) else None
    if typing.get_origin(hint) is dict and isinstance(part, str):
        return arguments[1]
    if typing.get_origin(hint) is tuple and isinstance(part, int):
        return arguments[0] if arguments[-1] is Ellipsis else arguments[part] if part < len(arguments) else None
    return None


def _fits(value: JsonValue, hint: object) -> bool:
    try:
        adapter_of(typing.cast("type", hint)).validate_json(json.dumps(value), strict=True)
    except ValueError:  # pydantic's, and that of a number with too many digits
        return False
    return True


def _candidates(value: JsonValue, hint: object) -> Iterator[JsonValue]:
    if len(records := records_in(hint)) > 1 and not isinstance(value, list | dict):
        kind = records[0].KIND
        yield from ({kind: each} for each in _candidates(value, hint_at(hint, (kind,))))
    for arm in arms(hint):
        if arm is int or arm is float:
            yield from _numbers(value)
        elif arm is bool:
            yield from _truths(value)
        elif arm is str:
            yield from _texts(value)
        elif typing.get_origin(arm) is typing.Literal:
            yield from (each for each in typing.get_args(arm) if str(each).lower() == str(value).strip().lower())
        elif typing.get_origin(arm) is tuple:
            yield from _lists(value, typing.get_args(arm))
        elif typing.get_origin(arm) is dict:
            yield from _mappings(value)
        elif arm is Parameter:
            yield from _parameters(value)
        elif isinstance(arm, type) and dataclasses.is_dataclass(arm):
            yield from _records(value, arm)


def _numbers(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, list) and len(value) == 1:
        yield from _numbers(value[0])
    if isinstance(value, str):
        words = unicodedata.normalize("NFKC", value).strip().replace("−", "-")
        first, *rest = words.split(maxsplit=1) or [""]
        yield from _read(words)
        if rest and rest[0].isalpha():  # such as `12 trials`
            yield from _read(first)
    elif isinstance(value, float) and value.is_integer():
        yield int(value)


def _read(words: str) -> Iterator[JsonValue]:
    """The number that the words mean: in groups of thousands, with a decimal comma or a factor, or as a fraction."""
    readings: tuple[Callable[[], Fraction], ...] = (
        lambda: Fraction(re.sub("[ ,._'’]", "", words)) if GROUPED.fullmatch(words) else Fraction(words),
        lambda: Fraction(words.replace("⁄", "/").replace(",", ".").replace("_", "")),
        lambda: Fraction(int(words, 0)),
        lambda: Fraction(10) ** int(typing.cast("re.Match[str]", POWER.fullmatch(words))[1]),
        lambda: Fraction(words[:-1].strip().replace(",", ".")) * TIMES[words[-1:].lower()],
    )
    for read in readings:
        with suppress(ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError):
            number = read()
            yield int(number) if number.denominator == 1 else float(number)


def _truths(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, str | int) and str(value).strip().lower() in TRUTH:
        yield TRUTH[str(value).strip().lower()]


def _texts(value: JsonValue) -> Iterator[JsonValue]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _lists(value: JsonValue, items: tuple[object, ...]) -> Iterator[JsonValue]:
    """Lists from a single value, from text with commas, or from items that are mended one by one."""
    items_given = value
    if isinstance(value, str):
        pair = BETWEEN.fullmatch(value.strip(" []()")) if items[-1] is not Ellipsis else None
        items_given = (
            list(pair.groups()) if pair else [part for part in re.split(r"[,;\s]+", value.strip(" []()")) if part]
        )
    elif not isinstance(value, list):
        items_given = [value]
    if isinstance(value, dict) and set(value) & set(ENDS):
        items_given = _ends(value)
    assert isinstance(items_given, list)
    hints = [items[0]] * len(items_given) if items[-1] is Ellipsis else list(items)
    if len(hints) == len(items_given):
        mended = [
            [each] if _fits(each, hint) else mends(each, hint) for each, hint in zip(items_given, hints, strict=True)
        ]
        if all(mended):
            yield [each[0] for each in mended]


def _mappings(value: JsonValue) -> Iterator[JsonValue]:
    """One mapping of a list of mappings (a dash too many), or names that stand for themselves."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        yield {key: item for each in value if isinstance(each, dict) for key, item in each.items()}
    elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        yield {str(each): each for each in value}


def _records(value: JsonValue, record: type) -> Iterator[JsonValue]:
    """The value under the first key that takes it; a record whose first key is its name needs more than that."""
    if isinstance(value, list):
        yield from _mappings(value)
        if len(value) == 1:
            yield from _records(value[0], record)
    if value is None or isinstance(value, list | dict):
        return
    hints = _hints(record)
    for field in dataclasses.fields(record):
        if field.name == "name" and field.default is dataclasses.MISSING:
            return
        hint = hints[field.name]
        mended = [value] if _fits(value, hint) else mends(value, hint)
        yield from ({field.name: each} for each in mended if isinstance(value, str) or not isinstance(each, str))


# --- A searched setting as it is written elsewhere -----------------------------------------------------------------


def _parameters(value: JsonValue) -> Iterator[JsonValue]:
    """The value as a searched setting: a bare list, word or number, or what W&B, Optuna and Ray Tune call its parts."""
    if isinstance(value, dict):
        yield from ({**each, "when": value["when"]} if "when" in value else each for each in _translated(value))
    elif isinstance(value, list):
        yield from _ranges(value)
        if value:
            yield {"choice": value}
    elif isinstance(value, str) and (pair := BETWEEN.fullmatch(value)):
        yield from _ranges(list(pair.groups()))
    elif value is not None:
        yield {"const": value}


def _translated(value: dict[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
    words = {str(key).lower(): item for key, item in value.items() if key != "when"}
    supported = set(ENDS).union(RANGE_WORDS, CHOICE_WORDS, CONST_WORDS, DISTRIBUTION)
    if any(key not in supported and not DRAWN.search(key) for key in words):
        return  # such as the step of a range, which no kind of ours has
    how = " ".join(f"{key} {item}" for key, item in words.items() if key in DISTRIBUTION or "log" in key).lower()
    log = "log" in how and words.get("log") is not False
    for key, item in words.items():
        if key in CHOICE_WORDS and isinstance(item, list):
            yield {"choice": item}
        elif key in CONST_WORDS:
            yield {"const": item}
        elif isinstance(item, list) and (key in RANGE_WORDS or key == "log" or DRAWN.search(key)):
            yield from _ranges(item, log=log, real="float" in key or "uniform" in key)
    if set(words) & set(ENDS):
        yield from _ranges(_ends(words), log=log)


def _ends(value: dict[str, JsonValue]) -> list[JsonValue]:
    """Both ends of a range that has a word for each."""
    by_end = {ENDS[key]: item for key, item in value.items() if key in ENDS}
    return [by_end[end] for end in sorted(by_end)]


def _ranges(ends: list[JsonValue], *, log: bool = False, real: bool = False) -> Iterator[dict[str, JsonValue]]:
    """The range between two numbers; none if they do not rise."""
    read = [each if isinstance(each, int | float) else next(_numbers(each), None) for each in ends]
    numbers = [each for each in read if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) != 2 or len(ends) != 2 or not numbers[0] < numbers[1]:
        return
    low, high = numbers
    whole = not real and isinstance(low, int) and isinstance(high, int)
    log = log or (not whole and low > 0 and high / low >= WIDE)
    yield {f"{'log_' if log and low > 0 else ''}{'int' if whole else 'float'}": [low, high]}
