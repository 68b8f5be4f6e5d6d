"""Reads a sweep file into a `Sweep`: typed, checked against the methods and the teacher, and named by its content.

The file comes first, then whole sections or parts from `--with` files, then single keys from `--set`. Everything
that is wrong is reported at once, each line with file, line, key, value, what is allowed and the nearest valid name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import babeltune
from babeltune.errors import BabeltuneError, SpecError
from babeltune.files import plain
from babeltune.planning.availability import Hub, data_problems, reach_problems
from babeltune.planning.checks import method_problems
from babeltune.planning.goals import dev_metrics, whole_name
from babeltune.planning.languages import respelled
from babeltune.planning.rules import KINDS, problems
from babeltune.planning.starts import pin_starts, start_problems
from babeltune.schema.bounds import Problem
from babeltune.schema.document import (
    Document,
    Key,
    assign,
    describe,
    dotted,
    item_of,
    read_document,
    set_item,
    validate,
)
from babeltune.schema.paths import expand_open, find_file, repository
from babeltune.schema.presets import FIELDS, PRESETS
from babeltune.schema.records import Data, Sweep, Teacher

if TYPE_CHECKING:
    from babeltune.files import JsonObject, JsonValue

__all__ = [
    "check_reachable",
    "data_root",
    "dev_metrics",
    "find_file",
    "read_data",
    "read_sweep",
    "read_teacher",
    "repository",
]

BUNDLED_ROOT = "bundled:"  # the `data.root` of the corpus that comes with the package
DATA_ROOT = "${BABELTUNE_DATA:-.}"
"""The `data.root` of an overlay that has parts of the section `data` only, if no sweep file gives one."""
PATHS = ("path", "paths", "gold", "model", "dataset", "baselines", "start", "embeddings_from")
"""Keys whose `${NAME:-default}` is replaced on reading; `data.root` keeps it until it is used, so that a sweep's id is
the same on two machines."""
SECTIONS = ("data", "student", "teacher")
REQUIRED = frozenset({"method", "name", "objectives", "data"})
"""Keys that every sweep file has. An overlay lacks `method` and another one."""
KNOWN_KEYS = frozenset(section.name for section in fields(Sweep))
"""Keys that a sweep file may have. A file with others is no overlay, either."""
ADDS = "+"  # ends an overlay's key whose list is added to the sweep file's own, such as `data.test+`
REGISTERED = "models:/"  # begins the name of a model in the registry, `models:/NAME@ALIAS`
EACH = "each"  # the key of a dev or test set that is given once for many values
NAME = re.compile(r"[A-Za-z_]\w*")  # a name that may stand in braces
IN_BRACES = re.compile(rf"(?<!\$)\{{({NAME.pattern})\}}")


def read_sweep(
    path: str | Path,
    *,
    overlays: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    check: bool = True,
    reachable: bool = False,
    fetch: Callable[[str], str] | None = None,
) -> Sweep:
    """The sweep of that file with these overlays and assignments.

    `check` also asks the methods and the teacher's languages, `reachable` also whether models, data sets and the data's
    root are there (`check_reachable`). `fetch` gives the folder of a registered model, which then
    stands in the sweep in place of `models:/NAME@ALIAS`, and that of a start. Raises `SpecError` naming every problem.
    """
    file = find_file(path)
    document = read_document(file)
    _refuse_cluster(file, document, "a sweep file")
    for overlay in overlays:
        place = find_file(overlay, "overlay")
        more = read_document(place)
        _refuse_cluster(place, more, "an overlay")
        _overlay(document, more)
    for assignment in assignments:
        assign(document, assignment)
    missing = REQUIRED - document.values.keys()
    is_sweep = all(key.partition(".")[0].removesuffix(ADDS) in KNOWN_KEYS for key in document.values)
    if "method" in missing and len(missing) > 1 and document.values and is_sweep:
        has = f"it has {', '.join(document.values)}, and no {', no '.join(sorted(missing))}"
        todo = f"name a sweep file, and this one behind it: `SWEEP.yaml --with {path}`"
        raise SpecError(f"{file}: an overlay, not a sweep file: {has}; {todo}")
    _fetch_models(document, fetch)
    starts = pin_starts(document, fetch, environ)
    sweep = _typed(document, environ)
    _refuse(problems(sweep), document.error)
    if check:
        _refuse(start_problems(sweep, starts), document.error)
        _refuse(method_problems(sweep), document.error)
    if reachable:
        _refuse(_reach(sweep, environ), document.error)
    return sweep


def read_data(path: str | Path, *, environ: Mapping[str, str] | None = None) -> tuple[Data, Path]:
    """The `data` section of a sweep file or of a file made for `--with`, and its root; one that is made for `evaluate`
    alone has no `train`. A file of parts such as `data.test+` has the root `DATA_ROOT`. Its files and data sets are
    there, or `SpecError` says which are not."""
    file = read_document(find_file(path))
    if not any(key.partition(".")[0] == "data" for key in file.values):
        raise SpecError(f"{path}: has no section `data`; it has: {', '.join(file.values) or 'nothing'}")
    document = Document({"data": {} if "data" in file.values else {"root": DATA_ROOT}})
    _overlay(document, file)
    write_out_sets(document)
    rest: JsonObject = {"name": "data", "method": "none", "objectives": []}
    section = document.values["data"]
    absent = isinstance(section, dict) and "train" not in section
    data = {"train": [], **section} if isinstance(section, dict) else section
    sweep = _typed(Document(rest | {"data": data}, document.places), environ)
    of_data = (problem for problem in problems(sweep) if problem[0][0] == "data")
    _refuse((problem for problem in of_data if not absent or problem[0] != ("data", "train")), document.error)
    root = data_root(sweep, environ)
    _refuse(data_problems(sweep, root, Hub(os.environ if environ is None else environ)), document.error)
    return sweep.data, root


def read_teacher(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Teacher | None:
    """The teacher of a sweep file, or of a file for `--with` that has such a section; None if it has none."""
    document = read_document(find_file(path))
    if not {"method", "teacher"} & document.values.keys():
        return None
    rest: JsonObject = {"name": "teacher", "method": "none", "objectives": [], "data": {"train": []}}
    teacher = {name: value for name, value in document.values.items() if name == "teacher"}
    sweep = _typed(Document(rest | teacher, document.places), environ)
    _refuse((problem for problem in problems(sweep) if problem[0][0] == "teacher"), document.error)
    return sweep.teacher


def data_root(sweep: Sweep, environ: Mapping[str, str] | None = None) -> Path:
    """The folder where the sweep's relative paths start. Raises `SpecError` when it does not exist."""
    written = sweep.data.root
    if written == BUNDLED_ROOT:
        return Path(babeltune.__file__).resolve().parent / "bundled"
    base = repository() or Path.cwd()
    # `Path.resolve` raises for links that form a circle.
    root = Path(os.path.realpath(base / Path(expand_open(written, environ)).expanduser()))
    if not root.is_dir():
        words = f"{written!r} means the folder {root}, which does not exist; change data.root or its variable"
        raise SpecError(f"data.root: {words}")
    return root


def check_reachable(sweep: Sweep, environ: Mapping[str, str] | None = None) -> None:
    """Checks that models and data sets are folders, in the local cache, or on a hub that answers within seconds.

    Raises `SpecError` naming each one that is not, and what to do."""
    _refuse(_reach(sweep, environ), Document(plain(sweep)).error)


def _reach(sweep: Sweep, environ: Mapping[str, str] | None) -> list[Problem]:
    try:
        root = data_root(sweep, environ)
    except SpecError as error:
        return [(("data", "root"), str(error).removeprefix("data.root: "))]
    return list(reach_problems(sweep, root, environ))


def _refuse(problems: Iterable[Problem], error: Callable[[Key, str], str]) -> None:
    lines = list(dict.fromkeys(error(key, problem) for key, problem in problems))
    if lines:
        raise SpecError("\n".join(lines))


def _refuse_cluster(file: Path, document: Document, kind: str) -> None:
    """`SpecError` for a cluster file, or one of `transfer`, if a sweep file or an overlay is wanted."""
    if "transfer" in document.values:
        raise SpecError(f"{file}: this is a data set of `babeltune transfer MODEL --with {file}`, not {kind}")
    if {"address", "storage"} & document.values.keys() and "method" not in document.values:
        raise SpecError(f"{file}: this is a cluster file, not {kind}; it goes behind --cluster")


def _overlay(document: Document, overlay: Document) -> None:
    """Replaces whole sections, or with a key such as `data.test` a part of one. With `data.test+` it adds to that."""
    for key, value in overlay.values.items():
        places = {old[1:]: place for old, place in overlay.places.items() if old[0] == key}
        parts = tuple(key.removesuffix(ADDS).split("."))
        if not isinstance(document.get(parts[:-1]), dict):
            words = f"there is no section {'.'.join(parts[:-1])!r} to change; give the whole section {parts[0]!r}"
            raise SpecError(overlay.error((key,), words))
        if key.endswith(ADDS):
            _add(document, overlay, parts, value, places)
        else:
            document.put(parts, value, places)


def _add(document: Document, overlay: Document, key: Key, value: JsonValue, places: Mapping[Key, str]) -> None:
    """Adds an overlay's list to the end of the document's, or its keys to a section's; the document's may be absent."""
    present = document.get(key)
    before = present if present is not None else {} if isinstance(value, dict) else []
    if not isinstance(before, list | dict) or type(value) is not type(before):
        wrong = value if isinstance(before, list | dict) else before
        words = f"{describe(wrong)} is not possible; a key that ends in {ADDS} adds to a list or a section"
        raise SpecError(overlay.error((f"{dotted(key)}{ADDS}",), words))
    all_places: dict[Key, str] = {(): places[()]}
    all_places |= {old[len(key) :]: where for old, where in document.places.items() if old[: len(key)] == key}
    if isinstance(before, dict) and isinstance(value, dict):
        document.put(key, before | value, all_places | dict(places))
        return
    for index in range(len(value)):
        inside = {old[1:]: where for old, where in places.items() if old[:1] == (index,)}
        all_places |= {(len(before) + index, *rest): where for rest, where in inside.items()}
    document.put(key, [*before, *value], all_places)


def _fetch_models(document: Document, fetch: Callable[[str], str] | None) -> None:
    """Puts folders in place of the registered models that student and teacher name."""
    choice: Key = ("parameters", "student.model", "choice")
    choices, beside = document.get(choice), document.get(("teacher", "beside"))
    keys: list[Key] = [("student", "model"), ("teacher", "model")]
    keys += [("teacher", "beside", i, "model") for i in range(len(beside) if isinstance(beside, list) else 0)]
    keys += [(*choice, i) for i in range(len(choices) if isinstance(choices, list) else 0)]
    for key in keys:
        name = document.get(key)
        if not isinstance(name, str) or not name.startswith(REGISTERED):
            continue
        if fetch is None:
            raise SpecError(document.error(key, f"{name!r} is in a registry, which is not asked here; name a folder"))
        try:
            folder = fetch(name)
        except BabeltuneError as error:
            raise SpecError(document.error(key, str(error))) from error
        document.put(key, folder, {(): document.place(key)})


def _typed(document: Document, environ: Mapping[str, str] | None) -> Sweep:
    """The document as a `Sweep`, with the variables in its paths replaced."""
    write_out_sets(document)
    lines: list[str] = []
    for section in SECTIONS:
        lines += _prepare_values(document, (section,), document.values.get(section), environ)
    lines += _kind_problems(document) + _preset_problems(document)
    try:
        sweep = validate(document, Sweep)
    except SpecError as error:
        raise SpecError("\n".join([*lines, str(error)])) from error
    if lines:
        raise SpecError("\n".join(lines))
    objectives = (replace(each, metric=whole_name(sweep.data, each.metric)) for each in sweep.objectives)
    return replace(sweep, data=respelled(sweep.data), objectives=tuple(objectives))


def _prepare_values(document: Document, key: Key, value: JsonValue, environ: Mapping[str, str] | None) -> list[str]:
    """Replaces variables in paths and makes column numbers text, in place; the problems met."""
    lines: list[str] = []
    places = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    parts: list[str | int] = [*places]
    for part in parts:
        here, item = (*key, part), item_of(value, part)[0]
        if isinstance(item, str) and (part in PATHS or key[-1] in ("paths", "stop_list")):
            try:
                set_item(value, part, expand_open(item, environ))
            except SpecError as error:
                lines.append(document.error(here, str(error)))
        elif key[-1] == "columns" and isinstance(item, int) and not isinstance(item, bool):
            set_item(value, part, str(item))
        else:
            lines += _prepare_values(document, here, item, environ)
    return lines


def _preset_problems(document: Document) -> list[str]:
    """Problems of a shape beside searched presets, and of a whole shape beside a preset."""
    # On the document, because a record does not distinguish a default from an absent key.
    student, searched = document.values.get("student"), document.get(("parameters", "student.preset"))
    written = student if isinstance(student, dict) else {}
    choice, const = (searched.get(kind) if isinstance(searched, dict) else None for kind in ("choice", "const"))
    choices = choice if isinstance(choice, list) and choice else [choice or const]
    set_fields = [name for name in FIELDS if name in written]
    if searched is None:
        without_effect = written.get("preset") in PRESETS and len(set_fields) == len(FIELDS)
        words = f"student gives {', '.join(set_fields)}, so the preset decides nothing"
        words += "; remove those that it is to decide"
        return [document.error(("student", "preset"), words)] if without_effect else []
    if written.get("preset") is None and None in choices:
        return []
    words = "each searched student.preset decides it; remove it, or give it to all of them: parameters.student."
    values = {name: describe(written[name]) for name in set_fields}
    return [document.error(("student", name), f"{words}{name}: {{const: {values[name]}}}") for name in set_fields]


def _kind_problems(document: Document) -> list[str]:
    """Parameters that have no kind or several."""
    # On the document, because a record does not distinguish `const: null` from an absent key.
    parameters = document.values.get("parameters")
    lines = []
    for name, parameter in parameters.items() if isinstance(parameters, dict) else ():
        keys = parameter.keys() if isinstance(parameter, dict) else set[str]()
        kinds = [kind for kind in KINDS if kind in keys]
        if isinstance(parameter, dict) and len(kinds) != 1 and keys <= {*KINDS, "when"}:
            has = " and ".join(kinds) or describe(parameter)
            lines.append(document.error(("parameters", name), f"has {has}; give exactly one of {', '.join(KINDS)}"))
    return lines


def write_out_sets(document: Document) -> None:
    """Replaces every set that has `each` by one set for each of its values. An empty `each` is the default.

    It works on the document, before records are made of it. So a sweep has the same id as one whose sets are written
    out, and an error names the line of the set in the file.

    Raises `SpecError` with the place of an `each` that is no such table, or whose names are not used in the set."""
    for key in (("data", "dev"), ("data", "test"), ("data", "graded")):
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
