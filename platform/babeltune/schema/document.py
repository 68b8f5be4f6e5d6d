"""Reads the YAML of sweep and cluster files, and remembers where every value was written.

The syntax is YAML 1.2's core schema: `5e-4` is a number, `no` and `on` are words. Nothing but text, numbers, lists and
mappings can come out of a file, so a hostile one cannot run code; anchors, tags and repeated keys are refused.
`sweep_file.py` and `cluster.py` turn a `Document` into records."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError
from yaml.composer import Composer

from babeltune.errors import SpecError, nearest, to_utf8
from babeltune.files import plain
from babeltune.redaction import KEYS
from babeltune.schema.base import NO_KIND, default_of, either, fields_of, records_in
from babeltune.schema.bounds import OUT_OF_BOUNDS
from babeltune.schema.foreign import foreign_words, program_words
from babeltune.schema.mending import adapter_of, arms, hint_at, mend_words
from babeltune.schema.presets import NO_PRESET
from babeltune.schema.records import Parameter

if TYPE_CHECKING:
    from babeltune.files import JsonObject, JsonValue

Details = Mapping[str, Any]
"""A problem as pydantic tells it."""

Key = tuple[str | int, ...]
Record = TypeVar("Record")

LARGEST = 1_000_000
"""Bytes of the largest file that is read."""
INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
EXACT = 2.0**53
"""Up to this, a number with an exponent is exactly the whole number that it says."""
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that an escape can put into text and no file name, database or terminal takes: NUL, and half of a
surrogate pair."""
NOT_FINITE = re.compile(r"[-+]?\.?(inf|nan)", re.IGNORECASE)
WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}
CORE_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


@dataclass
class Document:
    """Plain values, and for each key the place that it came from, such as `quick.yaml:12`."""

    values: JsonObject
    places: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where the key was written, or the nearest thing around it."""
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, "")

    def error(self, key: Key, problem: str) -> str:
        """Formats a problem as one line: place in the file, key, and what is wrong with it."""
        name = dotted(key)
        return ": ".join(part for part in (self.place(key), name, problem) if part)

    def get(self, key: Key) -> JsonValue:
        """The value under that key, or None."""
        value: JsonValue = self.values
        for part in key:
            value, _ = item_of(value, part)
        return value

    def put(self, key: Key, value: JsonValue, places: Mapping[Key, str]) -> None:
        """Replaces the value under the key, which exists or belongs to a mapping, together with its places."""
        container, part = self.get(key[:-1]), key[-1]
        set_item(container, part, value)
        self.places = {old: place for old, place in self.places.items() if old[: len(key)] != key}
        self.places |= {key + rest: place for rest, place in places.items()}


def item_of(value: JsonValue, part: str | int) -> tuple[JsonValue, bool]:
    """The value under a key of a mapping or at an index of a list, and whether there is one."""
    if isinstance(value, dict) and isinstance(part, str):
        return value.get(part), part in value
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part], True
    return None, False


def set_item(container: JsonValue, part: str | int, value: JsonValue) -> None:
    """Puts a value under a key of a mapping, or at a place of a list."""
    if isinstance(container, dict):
        container[str(part)] = value
    elif isinstance(container, list):
        container[int(part)] = value
    else:
        raise TypeError(f"{describe(container)} has no {part!r}")


YAML = (".yaml", ".yml")
IF_TEXT = "`babeltune init FILE` makes a sweep file of text"
"""The next step if the file was text and no sweep file."""


def dotted(key: Key) -> str:
    """The key as a user writes it: `data.train.0.cap`."""
    return ".".join(str(part) for part in key)


def read_document(path: str | Path) -> Document:
    """The mapping in this file. Raises `SpecError` with file and line for anything that is not plain YAML."""
    name = str(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"{name}: cannot be read: {error.strerror}") from error
    if words := program_words(name, raw):
        raise SpecError(f"{name}: this is {words}")
    if len(raw) > LARGEST:
        raise SpecError(f"{name}: {len(raw):,} bytes; a sweep or cluster file has at most {LARGEST:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        advice = to_utf8(raw, name) if Path(path).suffix.lower() in YAML else IF_TEXT
        raise SpecError(f"{name}:{line}: byte {raw[error.start]:#04x} is not UTF-8; {advice}") from error
    try:
        value, places = parse_yaml(text, name)
    except SpecError as error:
        if Path(path).suffix.lower() in YAML:
            raise
        raise SpecError(f"{error}; {IF_TEXT}") from error
    if words := foreign_words(value):
        raise SpecError(f"{name}: this is {words}")
    if not isinstance(value, dict):
        raise SpecError(f"{name}:1: the file must be a mapping of keys to values, not {describe(value)}; {IF_TEXT}")
    return Document(value, places)


def parse_yaml(text: str, name: str, *, lines: bool = True) -> tuple[JsonValue, dict[Key, str]]:
    """The value that the text spells, and the place of each key: `name:line`, or `name` alone."""
    places: dict[Key, str] = {}

    def place(node: yaml.Node) -> str:
        return f"{name}:{node.start_mark.line + 1}" if lines else name

    def convert(node: yaml.Node, key: Key) -> JsonValue:
        if node.tag not in CORE_TAGS:
            raise SpecError(f"{place(node)}: the tag {node.tag!r} is not used here; write a plain value")
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                places[(*key, index)] = place(item)
            return [convert(item, (*key, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return mapping(node, key)
        return scalar(node, ": ".join(part for part in (place(node), dotted(key) if lines else "") if part))

    def mapping(node: yaml.MappingNode, key: Key) -> JsonObject:
        values: JsonObject = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{place(key_node)}: a key must be a word, not a list or mapping")
            word = checked(str(key_node.value), place(key_node))
            if word in values:
                first = places[(*key, word)]
                raise SpecError(f"{place(key_node)}: the key {word!r} is given twice; first at {first}; keep one")
            places[(*key, word)] = place(key_node)
            values[word] = convert(value_node, (*key, word))
        return values

    try:
        node = composed(text)
        return (None if node is None else convert(node, ())), places
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark is not None and lines else name
        raise SpecError(f"{where}: not valid YAML here: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{name}: not valid YAML here: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise SpecError(f"{name}: nested too deeply to be a sweep or cluster file") from error


def composed(text: str) -> yaml.Node | None:
    """The nodes of the text. libyaml is ten times as fast; PyYAML's parser words the errors."""
    with suppress(yaml.YAMLError, UnicodeEncodeError):
        return yaml.compose(text, Loader=ByLibyaml)
    return yaml.compose(text, Loader=ByPyYaml)


class WithoutAnchors(Composer):
    """Composes nodes without resolving or constructing anything, and refuses `&name` and `*name`."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[attr-defined]  # the parser
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem=f"the anchor or alias {event.anchor!r} is not used here; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


class ByPyYaml(WithoutAnchors, yaml.BaseLoader):
    """In Python."""


InC = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # PyYAML may be built without it


class ByLibyaml(WithoutAnchors, InC):  # type: ignore[misc, valid-type]
    """In C. Its parser would compose nodes itself: PyYAML's composer does, so that anchors are refused."""

    def __init__(self, text: str) -> None:
        InC.__init__(self, text)
        self.anchors: dict[str, yaml.Node] = {}


def scalar(node: yaml.Node, place: str) -> JsonValue:
    """A word, number, truth value or null, by YAML 1.2's core schema. Quoted values stay text."""
    text = checked(str(node.value), place)
    if getattr(node, "style", None):
        return text
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        if len(text) > 40:
            raise SpecError(f"{place}: {text[:20]}… has too many digits for a number")
        return int(text)
    if NUMBER.fullmatch(text) or NOT_FINITE.fullmatch(text):
        value = (
            float(text.replace(".inf", "inf").replace(".nan", "nan")) if not NOT_FINITE.fullmatch(text) else math.nan
        )
        if not math.isfinite(value):
            raise SpecError(
                f"{place}: {text} is not a finite number; write another number, or quote it if it is a word"
            )
        # `4e5` pairs are as whole as 400,000; a point without an exponent says that a number is not whole
        return int(value) if "e" in text.lower() and value.is_integer() and abs(value) <= EXACT else value
    return text


def checked(text: str, place: str) -> str:
    """The text, or a `SpecError` for a character that it cannot hold."""
    if character := NO_TEXT.search(text):
        raise SpecError(f"{place}: holds the character U+{ord(character[0]):04X}, which no text has; remove it")
    return text


def reads_as_text(text: str) -> bool:
    """Whether the text, written without quotes, would be read back as text."""
    return not (text in WORDS or any(form.fullmatch(text) for form in (INTEGER, NUMBER, NOT_FINITE)))


def describe(value: object) -> str:
    """The value as an error names it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    return shortened(json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list) else repr(value), 80)


def shortened(text: str, most: int = 200) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 3] + "..."


# --- Validation against a record -----------------------------------------------------------------------------------

SECRET = re.compile(f"{KEYS}|url", re.IGNORECASE)
"""Keys that a message names without their value: a webhook's URL lets whoever has it write there."""
UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
"""Pydantic's name for a key that a record does not have."""
EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text (put quotes around it)",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "null",
}


def validate(document: Document, record: type[Record]) -> Record:
    """The document as that record. Raises one `SpecError` with a line for each thing that is wrong."""
    try:
        checked_record: Record = adapter_of(typing.cast("type", record)).validate_json(
            json.dumps(document.values), strict=True
        )
        return checked_record
    except ValidationError as error:
        if _without_defaults(document, record, error):
            return validate(document, record)
        raise SpecError("\n".join(explain(document, record, error))) from error


def _without_defaults(document: Document, record: type, error: ValidationError) -> bool:
    """Removes defaults of other kinds of a record, as files with all defaults have them; whether there were any."""
    keys = [written_key(document.values, problem) for problem in error.errors() if problem["type"] in UNKNOWN]
    removed = False
    for *outer, name in keys:
        field, values = fields_of(hint_at(record, tuple(outer))).get(str(name)), document.get(tuple(outer))
        if not isinstance(values, dict) or field is None:
            continue
        default, written = plain(default_of(field)), values[str(name)]
        if written is None or written == (getattr(NO_PRESET, field.name, None) if default is None else default):
            del values[str(name)]
            removed = True
    return removed


def explain(document: Document, record: type, error: ValidationError) -> list[str]:
    """Each problem of a validation as one line; the branches of a union become one problem."""
    grouped: dict[Key, list[Details]] = {}
    for problem in error.errors(include_url=False):
        grouped.setdefault(written_key(document.values, problem), []).append(problem)
    lines = (document.error(*problem_at(document, record, key, problems)) for key, problems in grouped.items())
    return list(dict.fromkeys(lines))


def problem_at(document: Document, record: type, key: Key, problems: Sequence[Details]) -> tuple[Key, str]:
    """The key that a problem is shown at, and its sentence. Parts of a searched setting that is written as in another
    program are one problem of the whole setting."""
    outer = key[:-1]
    if any(problem["type"] in UNKNOWN for problem in problems) and hint_at(record, outer) is Parameter:
        value = document.get(outer)
        if words := mend_words(value, Parameter, str(outer[-1])):
            return outer, f"{describe(value)} is not possible; allowed: one of {', '.join(fields_of(Parameter))}{words}"
    return key, sentence(document, record, key, problems)


def written_key(values: JsonValue, problem: Details) -> Key:
    """The problem's key in the file: pydantic's location without the names of union branches."""
    key: list[str | int] = []
    current = values
    for part in problem["loc"]:
        inner, inside = item_of(current, part)
        if inside:
            current = inner
        elif problem["type"] == "missing" and part == problem["loc"][-1]:
            current = None
        else:
            continue
        key.append(part)
    if problem["type"] == NO_KIND:
        key.append(problem["ctx"]["key"])
    return tuple(key)


def sentence(document: Document, record: type, key: Key, problems: Sequence[Details]) -> str:
    """Writes pydantic's problems of one key as a sentence: what is wrong, what is allowed, and the nearest name."""
    value = document.get(key)
    kinds = {problem["type"] for problem in problems}
    if kinds & UNKNOWN:
        return unknown_key(document, record, key, problems[0]["loc"][:-1])
    if "missing" in kinds and len(kinds) == 1:
        missing = "a second value" if isinstance(key[-1], int) else "this key"
        return f"{missing} is missing; add it"
    return refusal(value, problems, hint_at(record, key), str(key[-1]) if key and isinstance(key[-1], str) else "")


def unknown_key(document: Document, record: type, key: Key, place: tuple[int | str, ...]) -> str:
    """The sentence about a key that a record does not have, or that another record of its union has. pydantic's place
    of the record ends in the name of the one that was chosen."""
    value = document.get(key)
    records, name = records_in(hint_at(record, key[:-1])), str(key[-1])
    chosen = next((each for each in records if each.__name__ in place[-1:]), records[0])
    if having := [each for each in records if name in fields_of(each) and each is not chosen]:
        kind, container = chosen.KIND, document.get(key[:-1])
        others = [word for each in having for word in each.kinds()]
        this = container.get(kind, chosen.kinds()[0]) if isinstance(container, dict) else ""
        near = "" if others[1:] else f", or write {kind}: {others[0]}"
        return f"{describe(value)} is for {kind} {either(others)}, and this one is {this!r}; remove it{near}"
    fields = fields_of(chosen)
    near = nearest(name, fields)
    if not near and value in [word for each in records for word in each.kinds()]:
        near = f"; write {chosen.KIND}: {value}"
    near = near or _section_of(record, name)
    shown = "" if SECRET.fullmatch(name) else f" with value {describe(value)}"
    return f"unknown key {name!r}{shown}; allowed: {', '.join(fields)}{near}"


def _section_of(record: type, name: str) -> str:
    """The words `; it is a key of training`, for a key that another section of the file has."""
    having = [key for key, hint in typing.get_type_hints(record).items() if name in fields_of(hint)]
    return f"; it is a key of {' and '.join(having)}" if having else ""


def refusal(value: Any, problems: Sequence[Details], hint: object = None, name: str = "") -> str:
    """One value that pydantic refused, what it wanted instead, and what was probably meant: by the key's type, if that
    is known, else by the words that were offered."""
    allowed: list[str] = []
    words: list[str] = []
    for problem in problems:
        if problem["type"] == OUT_OF_BOUNDS:
            return str(problem["ctx"]["error"])
        literal = problem.get("ctx", {}).get("expected", "") if problem["type"] in ("literal_error", NO_KIND) else ""
        words += re.findall(r"'([^']*)'", literal)
        expected = literal or EXPECTED.get(problem["type"], problem["msg"][:1].lower() + problem["msg"][1:])
        if expected not in allowed:
            allowed.append(expected)
    if any(typing.get_origin(arm) is tuple and Ellipsis not in typing.get_args(arm) for arm in arms(hint)):
        allowed = ["a list of two numbers, such as [0.1, 0.5]" if each == "a list" else each for each in allowed]
    near = mend_words(value, hint, name) if hint is not None else ""
    near = near or (nearest(value, words) if isinstance(value, str) else "")
    return f"{describe(value)} is not possible; allowed: {' or '.join(allowed)}{near}"


# --- `--set` -------------------------------------------------------------------------------------------------------


def assign(document: Document, assignment: str) -> None:
    """Applies `a.b=c`, the value read as YAML; a number in the key is an index of a list."""
    name, equals, text = assignment.partition("=")
    place = f"--set {shortened(assignment)}"
    if not equals or not name.strip():
        raise SpecError(f"{place}: write KEY=VALUE, for example training.learning_rate=1e-4")
    value, places = parse_yaml(text, place, lines=False)
    key = target(document, name.strip().split("."), place)
    for depth in range(1, len(key)):
        if document.get(key[:depth]) is None:
            document.put(key[:depth], {}, {(): place})
    document.put(key, value, {(): place} | places)


def target(document: Document, parts: list[str], place: str) -> Key:
    """The key that the dotted parts mean; keys with dots in them, such as `student.layers`, count as one part."""
    key: list[str | int] = []
    while parts:
        container = document.get(tuple(key))
        if isinstance(container, list):
            key.append(index_of(container, parts[0], tuple(key), place))
            parts = parts[1:]
        elif container is None or isinstance(container, dict):
            used = part_length(container or {}, parts, tuple(key))
            key.append(".".join(parts[:used]))
            parts = parts[used:]
        else:
            raise SpecError(f"{place}: {dotted(tuple(key))} is {describe(container)}, which has no key {parts[0]!r}")
    return tuple(key)


def part_length(container: JsonObject, parts: list[str], key: Key) -> int:
    """How many of the parts make the next key."""
    for used in range(len(parts), 0, -1):
        if ".".join(parts[:used]) in container:
            return used
    if key == ("parameters",):
        return max(1, len(parts) - 1) if parts[-1] in fields_of(Parameter) else len(parts)
    return 1


def index_of(container: list[JsonValue], part: str, key: Key, place: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", part) or int(part) >= len(container):
        last = f"0 to {len(container) - 1}" if container else "none, the list is empty"
        raise SpecError(f"{place}: {shortened(part, 40)!r} is not an item of the list {dotted(key)}; allowed: {last}")
    return int(part)
