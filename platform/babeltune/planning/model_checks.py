"""Checks a sweep against the models that it names: their files, and the languages that the teacher knows.

Pure but for reading a model's configuration and tokenizer: a sweep goes in, `(key, problem)` pairs come out."""

import itertools
from collections.abc import Iterator, Sequence

from babeltune.data.tokens import load_tokenizer
from babeltune.errors import TeacherError
from babeltune.models.hub import ROUTED, tokenizer_folder
from babeltune.planning.availability import (
    encoders,
    is_at_hand,
    is_exported,
    local_folder,
    model_dense,
    model_layers,
    model_modules,
    model_pooling,
    model_positions,
)
from babeltune.planning.languages import right_languages, task_languages, taught_languages
from babeltune.planning.rules import setting_key
from babeltune.planning.space import combinations
from babeltune.planning.value_checks import student_with
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.document import describe
from babeltune.schema.languages import known_by, script_of
from babeltune.schema.layers import layers_problem
from babeltune.schema.records import StartAverage, Sweep, Task, Teacher, Transformer

TRIMMED = ("student.trim", "student.model")  # parameters that decide whether a vocabulary is trimmed
CUT = ("student.keep_layers", "student.model", "student.kind")  # parameters that decide which layers of a model stay


def right_models(sweep: Sweep) -> Iterator[Problem]:
    """Right sides of tasks and of held-out rows that the teacher encodes without knowing their language."""
    for kind, tasks in (("dev", sweep.data.dev), ("test", sweep.data.test)):
        yield from right_model_problems(("data", kind), tasks, sweep.teacher, sweep.data.anchor_priority)
    if sweep.data.split is not None and sweep.data.split.right_model == "teacher":
        yield from strange_right_side(("data", "split"), "heldout", taught_languages(sweep)[0], sweep.teacher)


def right_model_problems(
    key: Key, tasks: Sequence[Task], teacher: Teacher, priority: tuple[str, ...]
) -> Iterator[Problem]:
    """Tasks whose right side the teacher encodes without knowing its language."""
    for index, task in enumerate(tasks):
        if task.right_model == "teacher":
            yield from strange_right_side((*key, index), task.name, right_languages(task, priority), teacher)


def strange_right_side(key: Key, name: str, used: Sequence[str], teacher: Teacher) -> Iterator[Problem]:
    """Languages of a right side that the teacher does not know."""
    strange = [language for language in used if not known_by(language, teacher.common_languages)]
    if strange:
        knows = f"the teacher {teacher.title!r} knows {', '.join(teacher.common_languages)}"
        todo = "put a language that it knows first in data.anchor_priority (mining: second in `paths`)"
        words = f"the right side of task {name!r} is in {', '.join(strange)}, and {knows}; {todo}, score other pairs"
        yield (*key, "right_model"), f"'teacher': {words}, or remove right_model"


def unused_student(sweep: Sweep) -> Iterator[Problem]:
    """Settings of a student that nothing trains, and of vectors that the exported model would not give."""
    encoder = f"the encoder is the frozen teacher {sweep.teacher.title!r}, and no student is trained; remove it"
    for name, value in vars(sweep.student).items():
        if value != getattr(Transformer(), name, ...):
            yield ("student", name), f"{describe(value)}: {encoder}"
    yield from ((("parameters", name), encoder) for name in sweep.parameters if name.startswith("student."))
    if sweep.data.graded:
        yield ("data", "graded"), encoder
    if isinstance(sweep.training.average, StartAverage):
        yield ("training", "average", "kind"), f"'start': {encoder}"
    if sweep.evaluation.prompt is not None:
        yield ("evaluation", "prompt"), f"{describe(sweep.evaluation.prompt)}: {encoder}, or set teacher.prompt"
    if sweep.teacher.beside:
        words = "the exported model has one encoder, the frozen one; name one, and remove the others"
        yield ("teacher", "beside"), words
    if sweep.teacher.precision != "fp32":
        words = "the exported model's encoder runs in fp32, and so must the frozen one; remove it"
        yield ("teacher", "precision"), words


def model_files(sweep: Sweep) -> Iterator[Problem]:
    """Settings that contradict the files of the models that they name, as far as those are at hand."""
    for key, encoder in encoders(sweep):
        if "Router" in model_modules(encoder.model, encoder.revision):
            yield (*key, "model"), f"{encoder.model!r} {ROUTED}"
        yield from _too_long(key, encoder.model, encoder.revision, encoder.max_tokens)
    student = sweep.student
    if student.model is not None and is_exported(student.model):
        return  # that is said of all models
    yield from _trimming(sweep)
    yield from _cutting(sweep)
    yield from _tokenizing(sweep)
    if student.model is None:
        return
    static = model_modules(student.model, student.revision)[:1] == ("StaticEmbedding",)
    if is_at_hand(student.model) and static != (student.kind == "static") and "student.kind" not in sweep.parameters:
        kind = ("a", "static") if static else ("no", "transformer")
        words = f"{student.model!r} is {kind[0]} static model; set student.kind to {kind[1]}"
        yield ("student", "kind"), f"{student.kind!r}: {words}"
    yield from _too_long(("student",), student.model, student.revision, student.max_tokens)
    pooling = model_pooling(student.model, student.revision)
    if pooling is not None and pooling != student.pooling:
        words = f"{student.model!r} was trained with {pooling!r}; set student.pooling to that (a dense layer after it"
        yield ("student", "pooling"), f"{student.pooling!r}: {words}, with tanh or not, comes with the model)"
    brought = model_dense(student.model, student.revision)
    if brought is not None and isinstance(student.projection, int) and student.projection != brought:
        words = f"{student.model!r} comes with a projection to {brought}; set that, or leave it out"
        yield ("student", "projection"), f"{student.projection}: {words}"


def _too_long(key: Key, model: str, revision: str | None, tokens: int) -> Iterator[Problem]:
    """Texts of more tokens than the model can number."""
    positions = model_positions(model, revision)
    if positions is not None and tokens > positions:
        yield (*key, "max_tokens"), f"{tokens} is more than the {positions} positions of {model!r}; lower it"


def _trimming(sweep: Sweep) -> Iterator[Problem]:
    """A trimmed vocabulary without a model to trim, and tests in scripts that neither training nor dev text has."""
    students = [student_with(sweep, params) for params in combinations(sweep.parameters, TRIMMED)]
    if not any(student.trim for student in students):
        return
    key = setting_key(sweep, "student.trim")
    if any(student.trim and student.model is None for student in students):
        words = "a student from scratch has the corpus's tokens alone, and a start keeps its own"
        yield key, f"needs student.model; {words}"
    tasks = (*sweep.data.dev, *sweep.data.graded)
    languages = itertools.chain(*taught_languages(sweep), *map(task_languages, tasks))
    scripts = {script_of(language) for language in languages}
    tested = [language for task in sweep.data.test for language in task_languages(task)]
    if lost := dict.fromkeys(language for language in tested if script_of(language) not in scripts):
        listed = ", ".join(f"{language} ({script_of(language)})" for language in lost)
        words = f"data.test has text in {listed}, and neither data.train nor data.dev has that script"
        yield key, f"{words}, so its tokens would be dropped; add such text, or remove student.trim"


def _cutting(sweep: Sweep) -> Iterator[Problem]:
    """Layers that stay and that the model, as far as it is at hand, does not have."""
    for end in (0, 1):
        for student in [student_with(sweep, params) for params in combinations(sweep.parameters, CUT, end=end)]:
            layers = None if student.model is None else model_layers(student.model, student.revision)
            if student.keep_layers is None or layers is None:
                continue
            if problem := layers_problem(student.keep_layers, layers, student.model):
                yield setting_key(sweep, "student.keep_layers"), problem


def _tokenizing(sweep: Sweep) -> Iterator[Problem]:
    """Models in folders whose tokenizers cannot be had, or are slow ones."""
    students = [student_with(sweep, params) for params in combinations(sweep.parameters, ("student.model",))]
    for model in dict.fromkeys(student.model for student in students):
        folder = None if model is None else local_folder(model)
        if folder is None or (tokenizer_folder(folder) / "tokenizer.json").is_file():
            continue
        if next(folder.rglob("*.safetensors"), None) is None:
            continue  # said when the model is loaded
        try:
            load_tokenizer(Transformer(model=model), None)
        except TeacherError as error:
            yield setting_key(sweep, "student.model"), str(error)
