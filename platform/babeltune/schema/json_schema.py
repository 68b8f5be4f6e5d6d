"""JSON Schemas of sweep and cluster files, for editors' completion. They are generated from the records.

An editor's check is coarser than `babeltune plan`, which knows bounds, methods and data."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import typing
from functools import cache
from typing import Literal, TypedDict, cast

from pydantic import TypeAdapter

from babeltune.schema.base import Strict, records_in
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep

Kind = Literal["sweep", "cluster"]
RECORDS: dict[Kind, type] = {"sweep": Sweep, "cluster": Cluster}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Definition(TypedDict, total=False):
    """The parts of a JSON Schema that this module reads and changes."""

    description: str
    title: str
    type: str | list[str]
    default: object
    properties: dict[str, Definition]
    anyOf: list[Definition]
    additionalProperties: Definition


@cache
def json_schema(kind: Kind) -> dict[str, object]:
    """The schema of a kind of file, with the docstrings of records and fields as descriptions."""
    record = RECORDS[kind]
    schema = TypeAdapter(record).json_schema()
    definitions: dict[str, Definition] = {record.__name__: cast("Definition", schema), **schema.get("$defs", {})}
    for name, part in records_of(record).items():
        _describe(definitions[name], part)
    for definition in definitions.values():
        _allow_numbers(definition.get("properties", {}).get("columns", {}))
    return {"$schema": DIALECT, **schema}


def _describe(definition: Definition, record: type) -> None:
    """Puts the docstrings where editors show them; pydantic's titles repeat the keys."""
    definition["description"] = " ".join((inspect.getdoc(record) or "").split())
    notes = field_notes(record)
    for name, values in definition.get("properties", {}).items():
        values.pop("title", None)
        if name in notes:
            values["description"] = notes[name]
    for field in dataclasses.fields(record):
        values = definition["properties"][field.name]
        types = [values, *values.get("anyOf", ())]
        if values.get("default", ...) is None and all(each.get("type") != "null" for each in types):
            del values["default"]  # a number that a preset decides


def _allow_numbers(columns: Definition) -> None:
    """A file without a header has numbers for columns, which reading makes text."""
    for each in columns.get("anyOf", ()):
        if each.get("type") == "object":
            each["additionalProperties"] = {"type": ["string", "integer"]}


def records_of(record: type, records: dict[str, type] | None = None) -> dict[str, type]:
    """The record and those that its fields hold, by name, in reading order."""
    records = {} if records is None else records
    records[record.__name__] = record
    for hint in typing.get_type_hints(record).values():
        for part in records_in(hint):
            if part.__name__ not in records:
                records_of(part, records)
    return records


@cache  # reading the source of a class parses its whole file
def field_notes(record: type) -> dict[str, str]:
    """The docstrings that stand under a dataclass's fields."""
    shared = [
        each for each in reversed(record.__mro__[1:]) if issubclass(each, Strict) and dataclasses.is_dataclass(each)
    ]
    source = "".join(textwrap.dedent(inspect.getsource(each)) for each in [*shared, record])
    notes = re.findall(
        r'^    (\w+):[^\n]*\n(?:(?: {8}|    \])[^\n]*\n)*    """(.*?)"""', source, flags=re.MULTILINE | re.DOTALL
    )
    return {name: " ".join(text.split()) for name, text in notes}
