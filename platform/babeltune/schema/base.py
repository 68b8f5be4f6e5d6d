"""The base of all records."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Made = TypeVar("Made")
Number = int | float
Scalar = bool | int | float | str | None


NO_KIND = "no_kind"
"""Pydantic's name for a record whose kind does not exist."""


class Strict:
    """A record for which pydantic refuses unknown keys."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    KIND: ClassVar[str] = ""
    """The key that tells a record from the others of its union."""
    IMPLIED: ClassVar[str] = ""
    """The word of `KIND` that no id of a sweep counts, as it goes without saying."""

    @classmethod
    @functools.cache
    def kinds(cls) -> tuple[str, ...]:
        """The words of `KIND` that mean this record."""
        return typing.get_args(typing.get_type_hints(cls)[cls.KIND]) if cls.KIND else ()


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Annotates a union of records that their `KIND` tells apart. Without that key it is the first record."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[Any], Any]) -> Any:
        from pydantic import Discriminator, Tag  # processes that train read no files, and need no pydantic

        records = records_in(source)
        kind = records[0].KIND
        names = {word: record.__name__ for record in records for word in record.kinds()}

        def name_of(value: Any) -> str | None:
            written = value.get(kind) if isinstance(value, dict) and kind in value else records[0].kinds()[0]
            return names.get(written) if isinstance(written, str) else None

        arms: list[Any] = [typing.Annotated[record, Tag(record.__name__)] for record in records]
        context: dict[str, Any] = {"key": kind, "expected": either(names)}
        by_kind = Discriminator(
            name_of, custom_error_type=NO_KIND, custom_error_message="{expected}", custom_error_context=context
        )
        return handler(typing.Annotated[functools.reduce(operator.or_, arms), by_kind])

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {"anyOf": handler(schema)["oneOf"]}  # a record without its kind may be several


def either(words: Iterable[str]) -> str:
    """The words as a choice: `'a', 'b' or 'c'`."""
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


def records_in(hint: object) -> list[type[Strict]]:
    """The record types inside a type such as `tuple[Source, ...] | None`."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [typing.cast("type[Strict]", hint)]
    return [record for argument in typing.get_args(hint) for record in records_in(argument)]


def fields_of(hint: object) -> dict[str, dataclasses.Field[Any]]:
    """The fields by name of a record, or of all records of a union."""
    records = typing.cast("list[type[DataclassInstance]]", records_in(hint))
    return {field.name: field for record in records for field in dataclasses.fields(record)}


def default_of(field: dataclasses.Field[Any]) -> object:
    """A field's default; `MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def record_of(hint: object, values: Mapping[str, object]) -> type[Any]:
    """The record of a union that the kind among these values names."""
    return next(record for record in records_in(hint) if values[record.KIND] in record.kinds())


def made_of(hint: object, values: Mapping[str, object]) -> Any:
    """The record of a union that the kind among these values names. Values that it has no field for are left out."""
    make = record_of(hint, values)
    return make(**{name: value for name, value in values.items() if name in fields_of(make)})


def changed(hint: object, record: Made, values: Mapping[str, object]) -> Made:
    """The record of a union with these values, as `made_of` makes it."""
    return typing.cast(Made, made_of(hint, {**vars(record), **values}))


def number(value: object) -> str:
    """Formats a value for a message: a float with four significant digits, anything else by `str`."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def flat(values: Mapping[str, object]) -> dict[str, object]:
    """Nested settings as one level with dots in the names: `settings.laser3_co.temperature`."""
    level: dict[str, object] = {}
    for name, value in values.items():
        inner = flat(value) if isinstance(value, Mapping) else None
        level |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return level


def from_plain(hint: type[Made], value: Any) -> Made:
    """The value of this type that `files.plain` wrote: records and tuples of its objects and lists.

    `TypeError` for a field that a record lacks, or one too many. The values of fields are not checked."""
    return typing.cast(Made, _reader(typing.cast("Any", hint))(value))


@functools.cache
def _of_fields(record: Any) -> dict[str, Callable[[Any], Any]]:
    """The readers of a record's fields that JSON does not have as they are."""
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(record).items()}
    return {name: read for name, read in readers.items() if read is not _same}


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """The function that makes a value of this type of JSON."""
    kind, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_record, typing.cast("Callable[..., Any]", kind))
    if kind in (typing.Union, types.UnionType):
        return _same if all(_reader(arm) is _same for arm in inside) else functools.partial(_of_union, inside)
    if kind in (tuple, Sequence) and (kind is Sequence or inside[-1] is ...):
        item = _reader(inside[0])
        return tuple if item is _same else lambda value: tuple(map(item, value))
    if kind is tuple:
        return lambda value: tuple(_reader(part)(each) for part, each in zip(inside, value, strict=True))
    if kind in (dict, Mapping) and _reader(inside[1]) is not _same:
        return lambda value: {name: _reader(inside[1])(each) for name, each in value.items()}
    return _same


def _same(value: Any) -> Any:
    return value


def _record(make: Callable[..., Any], value: dict[str, Any]) -> Any:
    return make(**{**value, **{name: read(value[name]) for name, read in _of_fields(make).items() if name in value}})


def _of_union(arms: tuple[Any, ...], value: Any) -> Any:
    """An object is the record that its kind names, a list the union's tuple; all else is as JSON has it."""
    records = [arm for arm in arms if dataclasses.is_dataclass(typing.get_origin(arm) or arm)]
    if isinstance(value, dict) and records:
        arm = next(arm for arm in records if len(records) == 1 or value[arm.KIND] in arm.kinds())
        return _reader(arm)(value)
    sequence = next((arm for arm in arms if typing.get_origin(arm) is tuple), None)
    return _reader(sequence)(value) if isinstance(value, list) and sequence else value
