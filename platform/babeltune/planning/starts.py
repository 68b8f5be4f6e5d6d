"""`student.start` and `student.embeddings_from`: what they name, pinned to its content, against what the file says.

What the file does not write of the student's shape is the start's; what it writes must be the start's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from babeltune.data.starts import pinned, split_pin
from babeltune.errors import BabeltuneError, SpecError
from babeltune.models.start import StartShape, embeddings_problem, read_start
from babeltune.planning.availability import model_vocabulary, teacher_width
from babeltune.planning.rules import setting_key
from babeltune.planning.space import combinations
from babeltune.planning.value_checks import student_with
from babeltune.schema.bounds import Key, Problem, place
from babeltune.schema.document import Document, describe
from babeltune.schema.paths import expand_open
from babeltune.schema.presets import FIELDS
from babeltune.schema.records import Student, Sweep

KINDS = ("start", "embeddings_from")  # the fields of a student that name a start
SHAPED = (
    "kind",
    "width",
    "layers",
    "heads",
    "feed_forward",
    "pooling",
    "projection",
    "normalize",
    "prompt",
    "max_tokens",
)
"""The fields of a student that are compared with a start's."""
FEWEST = 300  # tokens of the smallest vocabulary that a sweep file can name
ALLOWED = "give the folder of an exported model, models:/NAME@ALIAS, or a trial such as SWEEP/t0003"


@dataclass(frozen=True)
class Starts:
    """The starts of a sweep file whose files were looked at, by their pinned names."""

    shapes: dict[str, StartShape] = field(default_factory=dict)
    vocabulary: bool = False  # whether `student.vocabulary` is to be that of the one start of all trials


def pin_starts(
    document: Document, fetch: Callable[[str], str] | None, environ: Mapping[str, str] | None = None
) -> Starts:
    """Pins every start that the document names to its content, and fills in what it does not say of the student.

    `fetch` gives the folder of a registered model or a trial. Raises `SpecError` for a start that is not there."""
    student = document.values.get("student")
    written = student if isinstance(student, dict) else {}
    shapes: dict[str, StartShape] = {}
    for key in _start_keys(document):
        value = document.get(key)
        if not isinstance(value, str) or not place.holds(value):
            continue  # said by its bound
        try:
            name, shape = _looked_at(expand_open(value, environ), fetch)
        except BabeltuneError as error:
            raise SpecError(document.error(key, " ".join(str(error).split()))) from error
        document.put(key, name, {(): document.place(key)})
        if shape is not None:
            shapes[name] = shape
    names = [value for kind in KINDS if isinstance(value := written.get(kind), str)]
    fixed = next((shapes[each] for each in names if each in shapes), None)
    if fixed is not None and "vocabulary" not in written and fixed.tokens >= FEWEST:
        document.put(("student", "vocabulary"), fixed.tokens, {})
    _fill(document, written, shapes)
    return Starts(shapes, fixed is not None)


def _start_keys(document: Document) -> Iterator[Key]:
    """The keys that name a start."""
    for kind in KINDS:
        yield ("student", kind)
        parameter: Key = ("parameters", f"student.{kind}")
        yield (*parameter, "const")
        choices = document.get((*parameter, "choice"))
        yield from ((*parameter, "choice", index) for index in range(len(choices) if isinstance(choices, list) else 0))


def _looked_at(start: str, fetch: Callable[[str], str] | None) -> tuple[str, StartShape | None]:
    """The pinned name, and its shape; None for a pinned one whose storage cannot be asked here."""
    name, digest = split_pin(start)
    folder = Path(name).expanduser()
    if not folder.is_dir() or (digest and fetch and pinned(name, folder) != start):
        if fetch is None and digest is not None:
            return start, None
        if fetch is None:
            todo = "name a folder, or pin it as `babeltune plan` writes it where the storage is"
            raise SpecError(f"{name!r} is no folder here, and a registry or storage is not asked here; {todo}")
        folder = Path(fetch(start))
    shape = read_start(folder)
    now = pinned(name, folder)
    if digest is not None and now != start:
        mismatch = f"{name!r} has the digest {split_pin(now)[1]}, and the file asks for {digest}"
        raise SpecError(f"{mismatch}; write {now}, or leave the digest out")
    return now, shape


def _fill(document: Document, written: Mapping[str, object], shapes: Mapping[str, StartShape]) -> None:
    """Writes into the student what only its start says."""
    preset = written.get("preset") or document.get(("parameters", "student.preset"))
    names = [document.get(key) for key in _start_keys(document) if key[-1] == "start" or "student.start" in key]
    shape = next((shapes[name] for name in names if isinstance(name, str) and name in shapes), None)
    if shape is None or (shape.kind != written.get("kind", "transformer") and not _searched(document, "kind")):
        return
    document.values.setdefault("student", {})
    lengths = {} if shape.max_tokens is None else {"max_tokens": shape.max_tokens}
    for name, value in {**shape.fields(), **lengths}.items():
        is_set = name in written or name == "kind" or (preset and name in FIELDS)
        if not is_set and not _searched(document, name):
            document.put(("student", name), value, {})


def _searched(document: Document, name: str) -> bool:
    """Whether a field of the student is a parameter."""
    return document.get(("parameters", f"student.{name}")) is not None


# --- Against the file -----------------------------------------------------------------------------------------------


def start_problems(sweep: Sweep, starts: Starts) -> Iterator[Problem]:
    """Everything that the sweep says of a student and its start does not have."""
    names = tuple(f"student.{name}" for name in (*KINDS, *SHAPED))
    for params in combinations(sweep.parameters, names):
        student = student_with(sweep, params)
        if (shape := starts.shapes.get(str(student.start))) is not None:
            differing = _differences(sweep, student, shape)
        elif (shape := starts.shapes.get(str(student.embeddings_from))) is not None:
            problem = embeddings_problem(student.width, shape)
            name = split_pin(str(student.embeddings_from))[0]
            differing = [("embeddings_from", f"{name!r} {problem}")] if problem else []
        else:
            continue
        if starts.vocabulary:
            differing = [*differing, *_other_tokens(sweep, student, shape)]
        for name, problem in differing:
            yield setting_key(sweep, f"student.{name}"), problem


def _differences(sweep: Sweep, student: Student, start: StartShape) -> list[tuple[str, str]]:
    """Fields of the student that are not the start's, and why."""
    name = split_pin(str(student.start))[0]
    if start.kind != student.kind:
        kind = "a static model" if start.kind == "static" else "a Transformer"
        more = "" if start.kind != "static" else "; a Transformer takes its token table alone: student.embeddings_from"
        words = f"{name!r} is {kind}, and student.kind is {student.kind}; write student.kind: {start.kind}{more}"
        return [("start", words)]
    differing = []
    for field_name, value in start.fields().items():
        here = getattr(student, field_name)
        if field_name == "projection" and here == "teacher":
            here = teacher_width(sweep.teacher) or value
        if field_name == "pooling" and here == "pooler" and start.projection:
            here = "cls"
        if here != value:
            words = f"{describe(here)}: the start {name!r} has {describe(value)}; set that, or leave it out"
            differing.append((field_name, words))
    if start.positions is not None and student.max_tokens > start.positions:
        words = f"{student.max_tokens}: the start {name!r} has {start.positions} positions; lower it"
        differing.append(("max_tokens", words))
    return differing


def _other_tokens(sweep: Sweep, student: Student, start: StartShape) -> list[tuple[str, str]]:
    """A written vocabulary that is not the start's."""
    vocabulary = student.vocabulary
    tokens = model_vocabulary(sweep.teacher.model, sweep.teacher.revision) if vocabulary == "teacher" else vocabulary
    if tokens is None or tokens == start.tokens or start.tokens < FEWEST:
        return []
    words = f"the start's tokenizer has {start.tokens} tokens, and it is the student's; leave student.vocabulary out"
    return [("vocabulary", f"{describe(vocabulary)}: {words}")]
