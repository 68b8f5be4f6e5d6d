"""The rules of a well-typed sweep: ranges of numbers, names that exist, fields that go together.

Pure: a record goes in, `(key, problem)` pairs come out; `sweep_file.py` adds file and line."""

import math
from collections.abc import Iterator

from babeltune.errors import nearest
from babeltune.models.hub import baseline_row
from babeltune.planning.data_rules import data_problems
from babeltune.schema.addresses import PLACE, is_place
from babeltune.schema.bounds import NAME, Key, Problem, repeated
from babeltune.schema.records import (
    TEACHER,
    UNTRAINED,
    LastAverage,
    Parameter,
    Scalar,
    Static,
    StepsAverage,
    Student,
    Sweep,
    Teacher,
    Training,
    Transformer,
)
from babeltune.schema.search import Tpe
from babeltune.schema.trial_names import TRIAL

KINDS = ("float", "int", "log_float", "log_int", "choice", "const")
RANGES = ("float", "int", "log_float", "log_int")
POOLER_OR_PROJECTION = (
    "student.pooling pooler has a dense layer of its own; leave the projection out, or set student.pooling to cls"
)
STEPS = ("training.pairs", "training.global_batch", "training.average.")
"""How the names of parameters begin that decide how often an average reads the weights."""


def problems(sweep: Sweep) -> Iterator[Problem]:
    """Everything about the sweep that its types could not say."""
    yield from ((("student", *key), problem) for key, problem in student_problems(sweep.student))
    yield from mixture_problems(sweep.teacher)
    yield from data_problems(sweep.data)
    for name, parameter in sweep.parameters.items():
        yield from parameter_problems(("parameters", name), parameter)
    if not sweep.objectives:
        yield ("objectives",), "must name at least one metric, such as {metric: dev/everyday/accuracy}"
    yield from length_problems(sweep)
    yield from gate_problems(sweep)
    yield from average_problems(sweep)
    yield from graded_weight_problems(sweep)
    yield from baseline_problems(sweep)
    metrics = [objective.metric for objective in sweep.objectives]
    yield from repeated(metrics, lambda index: ("objectives", index, "metric"))
    yield from search_problems(sweep)


def student_problems(student: Student) -> Iterator[Problem]:
    """The fields of a student that do not go together, by name."""
    folder = student.model or student.start
    if isinstance(student, Transformer) and folder is None and student.width % student.heads:
        yield ("heads",), f"{student.heads} must divide student.width, {student.width}"
    if student.ngrams and folder:
        yield ("ngrams",), f"{student.ngrams}: a named model ({folder}) brings its own table; remove it"
    if student.token_vectors != "random" and folder:
        yield ("token_vectors",), f"{student.token_vectors!r}: a named model ({folder}) brings its own table; remove it"
    elif student.token_vectors != "random" and student.projection != "teacher":
        projection = student.projection or "null"
        words = f"they are as wide as the teacher's, and student.projection is {projection}; set it to teacher"
        yield ("token_vectors",), f"{student.token_vectors!r}: {words}"
    tokenizer = folder or student.embeddings_from
    tokenizer = tokenizer or ("student.vocabulary: teacher" if student.vocabulary == "teacher" else None)
    if student.lowercase and tokenizer is not None:
        yield ("lowercase",), f"true: the tokenizer is that of {tokenizer}, as it is; remove it"
    if student.model is None and student.revision is not None:
        yield ("revision",), f"{student.revision!r} needs student.model; a student from scratch has no revision"
    if student.model is not None and student.preset is not None:
        yield ("preset",), f"{student.preset!r}: a named model ({student.model}) brings its own shape; remove it"
    if student.keep_layers is not None and student.model is None:
        words = "needs student.model; of a student from scratch write student.layers, and a start keeps its layers"
        yield ("keep_layers",), f"{student.keep_layers!r} {words}"
    origins = [name for name in ("model", "start", "embeddings_from") if getattr(student, name) is not None]
    for name in origins[1:]:
        yield (name,), f"{getattr(student, name)!r} and student.{origins[0]} do not go together; keep one"
    if student.embeddings_from is not None and isinstance(student, Static):
        words = "a static student begins from another one with student.start"
        yield ("embeddings_from",), f"{student.embeddings_from!r}: {words}"
    if student.pooling == "pooler" and student.projection is not None:
        yield ("projection",), f"{student.projection!r}: {POOLER_OR_PROJECTION}"


def mixture_problems(teacher: Teacher) -> Iterator[Problem]:
    """Encoders that cannot stand side by side: one twice, vectors of other lengths, or no language that all know."""
    if not teacher.beside:
        if teacher.weight != 1:
            words = "is of several encoders; list others in beside, or remove it"
            yield ("teacher", "weight"), f"{teacher.weight:g}: {words}"
        return
    for index, encoder in enumerate(teacher.encoders):
        key: Key = ("teacher", "beside", index - 1) if index else ("teacher",)
        if (encoder.model, encoder.revision) in [(each.model, each.revision) for each in teacher.encoders[:index]]:
            yield (*key, "model"), f"{encoder.model!r} is there already; name it once, and give it a weight"
        if not encoder.normalize:
            yield (*key, "normalize"), "false: the lengths of vectors would weigh beside the weights; remove it"
    if not teacher.common_languages:
        listed = "; ".join(f"{each.model!r} {', '.join(each.languages)}" for each in teacher.encoders)
        words = f"no language is known to all encoders: {listed}; mend their languages, or remove one"
        yield ("teacher", "beside"), words


def search_problems(sweep: Sweep) -> Iterator[Problem]:
    """The rules of a kind of sampler for its options and the objectives."""
    sampler = sweep.sampler
    if isinstance(sampler, Tpe) and sampler.group and not sampler.multivariate:
        yield ("sampler", "group"), "groups settings that are modelled together; set multivariate to true, or remove it"
    if sampler.kind == "gp" and len(sweep.objectives) > 1:
        yield ("sampler", "kind"), f"gp: is for one objective, and there are {len(sweep.objectives)}; take nsga2 or tpe"


def length_problems(sweep: Sweep) -> Iterator[Problem]:
    """How long a trial is must be said in the unit of the budget."""
    searched = {name for name in ("pairs", "compute") if f"training.{name}" in sweep.parameters}
    has_compute = sweep.training.compute is not None or "compute" in searched
    if sweep.budget.unit == "compute" and not has_compute:
        yield ("budget", "unit"), "compute: say how long a trial is, in seconds of a worker: training.compute: 60"
    if sweep.budget.unit == "compute" and "pairs" in searched:
        yield ("parameters", "training.pairs"), "trials are as long as training.compute says; remove it"
    if sweep.budget.unit == "pairs" and has_compute:
        words = "trials are as long as training.pairs says; set budget.unit to compute, or remove it"
        yield setting_key(sweep, "training.compute"), words
    if sweep.budget.unit == "pairs" and sweep.training.rates is not None:
        yield ("training", "rates"), "nothing is counted in compute; set budget.unit to compute, or remove it"


def graded_weight_problems(sweep: Sweep) -> Iterator[Problem]:
    """Weight and batch of graded pairs in a sweep without graded pairs."""
    for name in ("graded_weight", "graded_batch"):
        key = f"training.{name}"
        written = key in sweep.parameters or getattr(sweep.training, name) != getattr(Training, name)
        if written and not sweep.data.graded:
            yield setting_key(sweep, key), "is of graded pairs, and data.graded lists none; add some, or remove it"


def average_problems(sweep: Sweep) -> Iterator[Problem]:
    """An average of one reading."""
    average, training = sweep.training.average, sweep.training
    free = any(name.startswith(STEPS) for name in sweep.parameters)
    if isinstance(average, StepsAverage) and sweep.budget.unit == "pairs" and not free:
        share = average.share if isinstance(average, LastAverage) else 1.0
        steps = math.ceil(share * training.pairs / max(training.global_batch, 1))
        if steps <= average.every:
            advice = f"lower it below {steps}" if steps > 1 else "give more pairs, or a larger share"
            over = f"the average is over {steps} step{'s' if steps > 1 else ''}"
            words = f"{average.every}: {over}, so the weights would be read once; {advice}"
            yield ("training", "average", "every"), words


def can_be_row(row: str) -> bool:
    """Whether a baseline's row of the leaderboard is taken for no other."""
    return row not in (UNTRAINED, TEACHER) and not TRIAL.fullmatch(row) and bool(NAME.fullmatch(row))


def baseline_problems(sweep: Sweep) -> Iterator[Problem]:
    """Baselines that are no names, and those whose rows could be taken for others."""
    rows = [baseline_row(name) for name in sweep.baselines]
    for index, (name, row) in enumerate(zip(sweep.baselines, rows, strict=True)):
        key: Key = ("baselines", index)
        if name == "" or not is_place(name):
            yield key, f"{name!r} must be {PLACE}"
        elif not can_be_row(row):
            yield key, f"{name!r} would be row {row!r} of the leaderboard; give the folder another name"
        elif row in rows[:index]:
            yield key, f"{name!r} would be row {row!r}, as {sweep.baselines[rows.index(row)]!r} is; keep one"


def gate_problems(sweep: Sweep) -> Iterator[Problem]:
    """Gates of tests that do not exist."""
    tests = [task.name for task in sweep.data.test if task.task == "bitext"]
    for index, gate in enumerate(sweep.promotion.gates):
        if gate.test not in tests:
            allowed = f"{', '.join(tests) or 'none'}{nearest(gate.test, tests)}"
            words = (
                f"is not a bitext task of data.test; allowed: {allowed}; an overlay that replaces data.test replaces"
            )
            yield ("promotion", "gates", index, "test"), f"{gate.test!r} {words} promotion.gates too"


def parameter_problems(key: Key, parameter: Parameter) -> Iterator[Problem]:
    """One searched setting by itself."""
    for kind in RANGES:
        bounds = getattr(parameter, kind)
        if bounds is None:
            continue
        low, high = bounds
        if not low < high:
            yield (*key, kind), f"[{low}, {high}]: the first must be below the second; for one value use const"
        if kind.startswith("log") and low <= 0:
            yield (*key, kind), f"[{low}, {high}]: both must be greater than 0 on a logarithmic scale"
        if kind.endswith("int") and not (isinstance(low, int) and isinstance(high, int)):
            whole = float(low).is_integer() and float(high).is_integer()
            words = f"; write {kind}: [{low:.0f}, {high:.0f}]" if whole else ""
            yield (*key, kind), f"[{low}, {high}]: both must be whole numbers{words}"
    if parameter.choice is not None:
        if not parameter.choice:
            yield (*key, "choice"), "must offer at least one value"
        yield from choice_problems((*key, "choice"), parameter.choice)


def choice_problems(key: Key, values: tuple[Scalar, ...]) -> Iterator[Problem]:
    """Values that could be taken for one another. Null and text such as `teacher` may stand beside numbers."""
    for index, value in enumerate(values):
        for earlier in values[:index]:
            if earlier == value and isinstance(earlier, bool) == isinstance(value, bool):
                yield key, f"{list(values)} offers a value twice; keep one"
                return
            if str(earlier).lower() == str(value).lower():
                yield key, f"{earlier!r} and {value!r} look the same in every table; keep one of the two"
                return
    if len({isinstance(value, bool) for value in values if value is not None}) > 1:
        yield key, f"{list(values)} mixes true or false with other values; give values of one kind"


def setting_key(sweep: Sweep, name: str) -> Key:
    """The place of a setting such as `student.trim`: that of the parameter if it is searched, else of its section."""
    return ("parameters", name) if name in sweep.parameters else tuple(name.split("."))


def kind_of(parameter: Parameter) -> str:
    """Which of the kinds the parameter is; `const` if no other is given."""
    return next((kind for kind in KINDS[:-1] if getattr(parameter, kind) is not None), "const")
