"""Writes out the dev and test sets that a sweep file gives once for many values, by the key `each`.

It works on the document, before records are made of it. So a sweep has the same id as one whose sets are written out,
and an error names the line of the set in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from babeltune.errors import SpecError
from babeltune.schema.document import Document, Key, describe

if TYPE_CHECKING:
    from babeltune.files import JsonValue

EACH = "each"
NAME = re.compile(r"[A-Za-z_]\w*")  # a name that may stand in braces
IN_BRACES = re.compile(rf"(?<!\$)\{{({NAME.pattern})\}}")


def write_out_sets(document: Document) -> None:
    """Replaces every dev or test set that has `each` by one set for each of its values. An empty `each` is the default.

    Raises `SpecError` with the place of an `each` that is no such table, or whose names are not used in the set."""
    for key in (("data", "dev"), ("data", "test")):
        sets = document.get(key)
        if not isinstance(sets, list) or not any(map(_each, sets)):
            continue
        written: list[JsonValue] = []
        places: dict[Key, str] = {(): document.place(key)}
        for index, task in enumerate(sets):
            here = (*key, index)
            inside = {place[3:]: where for place, where in document.places.items() if place[:3] == here}
            for one, names in _sets(document, here, task):
                for place, where in inside.items():
                    filled = (str(_filled(part, names)) if isinstance(part, str) else part for part in place)
                    places[len(written), *filled] = where
                written.append(one)
        document.put(key, written, places)


def _each(task: JsonValue) -> JsonValue:
    """The values of the set's `each`; an empty one is left to the set's own check."""
    return task.get(EACH) if isinstance(task, dict) else None


def _sets(document: Document, key: Key, task: JsonValue) -> Iterator[tuple[JsonValue, Mapping[str, str]]]:
    """The set itself, or one for each row of its `each`, with that row."""
    if not isinstance(task, dict) or not _each(task):
        yield task, {}
        return
    template = {name: value for name, value in task.items() if name != EACH}
    columns = _columns(document, (*key, EACH), task[EACH])
    unused = [name for name in columns if _filled(template, {name: ""}) == template]
    if unused:
        words = f"nothing in this set has {{{unused[0]}}} to put the values into; add it, or remove {unused[0]!r}"
        raise SpecError(document.error((*key, EACH, unused[0]), words))
    for values in zip(*columns.values(), strict=True):
        names = dict(zip(columns, values, strict=True))
        yield _filled(template, names), names


def _columns(document: Document, key: Key, each: JsonValue) -> dict[str, list[str]]:
    """The lists of `each` by name; `SpecError` if they are not lists of text, all equally long."""
    columns: dict[str, list[str]] = {}
    for name, values in each.items() if isinstance(each, dict) else ():
        texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
        if not NAME.fullmatch(name) or not isinstance(values, list) or not texts or len(texts) != len(values):
            words = f"{describe(values)} is not possible; allowed: a name, and a list of texts such as [fra, deu]"
            raise SpecError(document.error((*key, name), words))
        columns[name] = texts
    if not columns:
        words = f"{describe(each)} is not possible; allowed: lists by name, such as {{language: [fra, deu]}}"
        raise SpecError(document.error(key, words))
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise SpecError(document.error(key, f"the lists go together and are equally long; they have: {counts}"))
    return columns


def _filled(value: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """The value with every `{name}` in its keys and texts replaced. `${NAME}` is a variable, and stays."""
    if isinstance(value, dict):
        return {str(_filled(key, names)): _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if not isinstance(value, str):
        return value
    return IN_BRACES.sub(lambda match: names.get(match[1], match[0]), value)
