"""What a well-typed sweep must also satisfy: ranges of numbers, names that exist, fields that go together.

Pure: a record goes in, `(key, problem)` pairs come out; `sweep_file.py` adds file and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from babeltune.errors import nearest
from babeltune.models.hub import baseline_row
from babeltune.planning.data_rules import data_problems
from babeltune.schema.addresses import PLACE, is_place
from babeltune.schema.bounds import NAME, OF_AVERAGE, Key, Problem, record_problems, repeated
from babeltune.schema.records import Parameter, Scalar, Sweep

TRIAL = re.compile(r"t\d+")
"""The name of a trial's row."""
KINDS = ("float", "int", "log_float", "log_int", "choice", "const")
RANGES = ("float", "int", "log_float", "log_int")
STEPS = ("training.pairs", "training.global_batch", "training.average.")
"""How the names of parameters begin that decide how often an average reads the weights."""

OPTIONS = {
    ("sampler", "multivariate"): "tpe",
    ("sampler", "group"): "tpe",
    ("sampler", "population"): "nsga2",
    ("scheduler", "regret"): "expected_regret",
    ("scheduler", "finished"): "expected_regret",
}
"""Options that one kind alone reads. What several read, such as `startup`, may stay where another kind is tried."""


def problems(sweep: Sweep) -> Iterator[Problem]:
    """Everything about the sweep that its types could not say."""
    if not NAME.fullmatch(sweep.name):
        yield (
            ("name",),
            f"{sweep.name!r} must be letters, digits, `_`, `.` or `-`, at most 80, beginning with one of the first two",
        )
    if not 0 <= sweep.seed < 2**32:
        yield ("seed",), f"{sweep.seed} must be at least 0 and below 2**32"
    warm = sweep.sampler.warm_start
    if warm is not None and not NAME.fullmatch(warm):
        yield ("sampler", "warm_start"), f"{warm!r} must be a sweep's name or id: letters, digits, `_`, `.` or `-`"
    for section in ("training", "student", "teacher", "scheduler", "sampler", "budget", "keep", "promotion"):
        yield from record_problems((section,), getattr(sweep, section))
    yield from data_problems(sweep.data)
    for name, parameter in sweep.parameters.items():
        yield from parameter_problems(("parameters", name), parameter)
    if not sweep.objectives:
        yield ("objectives",), "must name at least one metric, such as {metric: dev/everyday/accuracy}"
    yield from length_problems(sweep)
    yield from gate_problems(sweep)
    yield from average_problems(sweep)
    yield from baseline_problems(sweep)
    metrics = [objective.metric for objective in sweep.objectives]
    yield from repeated(metrics, lambda index: ("objectives", index, "metric"))
    yield from search_problems(sweep)


def search_problems(sweep: Sweep) -> Iterator[Problem]:
    """Options of the sampler and the scheduler that their kinds do not have."""
    sampler = sweep.sampler
    for (section, name), kind in OPTIONS.items():
        record = getattr(sweep, section)
        if record.kind != kind and getattr(record, name) != getattr(type(record), name):
            yield (section, name), f"is an option of `kind: {kind}`, and this {section} is {record.kind}; remove it"
    if sampler.group and not sampler.multivariate and sampler.kind == "tpe":
        yield ("sampler", "group"), "groups settings that are modelled together; set multivariate to true, or remove it"
    if sampler.kind == "gp" and len(sweep.objectives) > 1:
        yield ("sampler", "kind"), f"gp: is for one objective, and there are {len(sweep.objectives)}; take nsga2 or tpe"


def length_problems(sweep: Sweep) -> Iterator[Problem]:
    """How long a trial is must be said in the unit of the budget."""
    searched = {name for name in ("pairs", "compute") if f"training.{name}" in sweep.parameters}
    given = sweep.training.compute is not None or "compute" in searched
    if sweep.budget.unit == "compute" and not given:
        yield ("budget", "unit"), "compute: say how long a trial is, in seconds of a worker: training.compute: 60"
    if sweep.budget.unit == "compute" and "pairs" in searched:
        yield ("parameters", "training.pairs"), "trials are as long as training.compute says; remove it"
    if sweep.budget.unit == "pairs" and given:
        key: Key = ("parameters", "training.compute") if "compute" in searched else ("training", "compute")
        yield key, "trials are as long as training.pairs says; set budget.unit to compute, or remove it"
    if sweep.budget.unit == "pairs" and sweep.training.rates is not None:
        yield ("training", "rates"), "nothing is counted in compute; set budget.unit to compute, or remove it"


def average_problems(sweep: Sweep) -> Iterator[Problem]:
    """A searched setting of an average that its kind does not read, and an average of one reading."""
    average, training = sweep.training.average, sweep.training
    for name, kind in OF_AVERAGE.items():
        searched = f"training.average.{name}"
        free = "training.average.kind" in sweep.parameters
        if average is not None and searched in sweep.parameters and average.kind != kind and not free:
            yield ("parameters", searched), f"is for kind {kind!r}, and training.average.kind is {average.kind!r}"
    free = any(name.startswith(STEPS) for name in sweep.parameters)
    if (
        average is not None
        and sweep.budget.unit == "pairs"
        and not free
        and average.every > 0
        and 0 < average.share <= 1
    ):
        share = average.share if average.kind == "last" else 1.0
        steps = math.ceil(share * training.pairs / max(training.global_batch, 1))
        if steps <= average.every:
            advice = f"lower it below {steps}" if steps > 1 else "give more pairs, or a larger share"
            yield (
                ("training", "average", "every"),
                f"{average.every}: the average is over {steps} step{'s' if steps > 1 else ''}, so the weights would be "
                f"read once; {advice}",
            )


def baseline_problems(sweep: Sweep) -> Iterator[Problem]:
    """Baselines that are no names, and those whose rows could be taken for others."""
    rows = [baseline_row(name) for name in sweep.baselines]
    for index, (name, row) in enumerate(zip(sweep.baselines, rows, strict=True)):
        key: Key = ("baselines", index)
        if name == "" or not is_place(name):
            yield key, f"{name!r} must be {PLACE}"
        elif row in ("untrained", "teacher") or TRIAL.fullmatch(row) or not NAME.fullmatch(row):
            yield key, f"{name!r} would be row {row!r} of the leaderboard; give the folder another name"
        elif row in rows[:index]:
            yield key, f"{name!r} would be row {row!r}, as {sweep.baselines[rows.index(row)]!r} is; keep one"


def gate_problems(sweep: Sweep) -> Iterator[Problem]:
    """Promotion's name, and its gates' tests and multiples."""
    name = sweep.promotion.name
    if name is not None and not NAME.fullmatch(name):
        yield ("promotion", "name"), f"{name!r} must be letters, digits, `_`, `.` or `-`"
    tests = [task.name for task in sweep.data.test if task.task == "bitext"]
    for index, gate in enumerate(sweep.promotion.gates):
        key: Key = ("promotion", "gates", index)
        yield from record_problems(key, gate)
        if gate.test not in tests:
            yield (
                (*key, "test"),
                f"{gate.test!r} is not a bitext task of data.test; allowed: {', '.join(tests) or 'none'}"
                f"{nearest(gate.test, tests)}; an overlay that replaces data.test replaces promotion.gates too",
            )


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
    if any(isinstance(value, bool) for value in values) and not all(
        value is None or isinstance(value, bool) for value in values
    ):
        yield key, f"{list(values)} mixes true or false with other values; give values of one kind"


def kind_of(parameter: Parameter) -> str:
    """Which of the kinds the parameter is; `const` where no other is given."""
    return next((kind for kind in KINDS[:-1] if getattr(parameter, kind) is not None), "const")
