"""The output of `babeltune plan`: a summary that fits a screen, and with `--yaml` all the rest."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, Group
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from babeltune.apps.sweep_plan import TYPICAL, detectable, free_bytes
from babeltune.cli.words import ELLIPSIS, duration, weights
from babeltune.data.language_id import labels_of
from babeltune.errors import plural
from babeltune.models.hub import baseline_row, split_revision
from babeltune.planning.availability import is_at_hand
from babeltune.planning.calibration import Machine, gpu_share
from babeltune.planning.languages import strangers_in, taught_pairs
from babeltune.planning.parameters import proposable_methods, words_for
from babeltune.planning.plan import PlanReport
from babeltune.planning.rules import kind_of
from babeltune.planning.sizes import NamedSize
from babeltune.planning.space import default_params, make_trial
from babeltune.schema.records import Student, Sweep, Teacher
from babeltune.stages import size
from babeltune.sweep.state.by_setting import short_value

MOST_GROUPS = 4  # language pairs that a summary names
MOST_SEARCHED = 6  # searched settings that a summary names
LONGEST_RANGE = 40  # characters of a setting's range or choices in a summary


def show_plan(report: PlanReport, sweep: Sweep, machine: Machine | None, console: Console, *, whole: bool) -> None:
    """The summary, and all details below it if they are wanted."""
    console.print(f"sweep {report.id}", markup=False, highlight=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=8, no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in summary(report, sweep, machine):
        table.add_row(f"[bold]{title}[/]", escape(text))
    for text in report.quota:
        table.add_row("[bold]quota[/]", escape(text))
    console.print(table, highlight=False)
    if whole:
        console.print(details(report))
    else:
        console.print("--yaml prints the whole sweep file, sampled trials and what cleaning left", markup=False)


def summary(report: PlanReport, sweep: Sweep, machine: Machine | None) -> Iterator[tuple[str, str]]:
    """The lines of the summary, each with its title."""
    yield "method", ", ".join(proposable_methods(sweep))
    yield "data", _data_words(report)
    if sweep.data.clean.language != "off":
        yield "language", _language_words(report, sweep)
    if sweep.data.graded:
        yield "graded", _graded_words(report, sweep)
    yield "dev", _dev_words(report, sweep)
    yield "detects", _detects_words(report, sweep)
    sealed = dict.fromkeys(task.name for task in sweep.data.test)
    yield "sealed", ", ".join(sealed) or "no test set: a model has no gate"
    yield "student", student_words(sweep.student, report) + _dimensions_words(sweep)
    yield "teacher", _teacher_words(sweep.teacher, report)
    if report.temperatures:
        yield "auto", "; ".join(report.temperatures)
    yield "searched", _searched_words(sweep)
    yield "trials", _trials_words(report, sweep)
    yield "time", _time_words(report, sweep, machine)
    yield "memory", _memory_words(report, machine)
    yield "disk", _disk_words(report, machine)
    yield "beside", _baseline_words(sweep)


def _teacher_words(teacher: Teacher, report: PlanReport) -> str:
    """The encoders, how their cosines are made and mixed, and what each encodes."""
    names = []
    for each in teacher.encoders:
        words = [f"weight {each.weight:g}"] * bool(teacher.beside) + ["centered"] * each.center
        names.append(each.model + (f" ({', '.join(words)})" if words else ""))
    sentences = plural(report.teacher_sentences, "sentence")
    return f"{' + '.join(names)} {'each encode' if teacher.beside else 'encodes'} {sentences}, once"


def _first(parts: Sequence[str], most: int, noun: str) -> str:
    """Some of the parts, and how many others there are."""
    more = f" and {len(parts) - most} more{noun}" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _data_words(report: PlanReport) -> str:
    groups = sorted(report.pairs.items(), key=lambda item: -item[1])
    by_languages = _first([f"{name} {count:,}" for name, count in groups], MOST_GROUPS, " language pairs")
    thinned = report.pairs_left is not None and report.pairs_left < report.total_pairs
    left = f"; the mildest thresholds leave {report.pairs_left:,}" if thinned else ""
    return f"{plural(report.total_pairs, 'pair')} of {plural(report.anchors, 'anchor')}: {by_languages}{left}"


def _language_words(report: PlanReport, sweep: Sweep) -> str:
    """How many pairs of each source have a text in another language, and which languages nobody can judge."""
    left_out = [
        f"{name}: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"
        for name, counts in report.counts.items()
        if (reasons := strangers_in(counts))
    ]
    judged = dict.fromkeys(language for pair in taught_pairs(sweep) for language in pair)
    unjudged = [language for language in judged if not labels_of(language)]
    done = "dropped" if sweep.data.clean.language == "drop" else "counted, and trained on"
    words = f"{_first(left_out, MOST_GROUPS, ' sources')}; {done}" if left_out else ""
    words = words or "all pairs are in their columns' languages"
    return words + (f"; py3langid does not know {', '.join(unjudged)}" if unjudged else "")


def _dev_words(report: PlanReport, sweep: Sweep) -> str:
    sets: dict[str, list[int]] = {}
    for name, rows in report.dev.items():
        sets.setdefault(name.partition("/")[0], []).append(rows)
    words = [
        plural(rows[0], "row") if len(rows) == 1 else f"{len(rows)} × {_span(rows)} rows" for rows in sets.values()
    ]
    by_set = _first([f"{name} {each}" for name, each in zip(sets, words, strict=True)], MOST_GROUPS, " sets")
    aims = ", ".join(f"{aim.goal} {aim.metric.removeprefix('dev/')}" for aim in sweep.objectives)
    return f"{by_set} · {aims}"


def _graded_words(report: PlanReport, sweep: Sweep) -> str:
    """The graded pairs of each set that train, and the weight of their loss."""
    left = {name: counts["train"] for name, counts in report.counts.items() if name.startswith("graded/")}
    sets = _first([f"{name.removeprefix('graded/')} {count:,}" for name, count in left.items()], MOST_GROUPS, " sets")
    training = sweep.training
    weight = "searched" if "training.graded_weight" in sweep.parameters else f"{training.graded_weight:g}"
    return f"{sets}; {training.graded_batch} pairs a step, weight {weight}"


def _detects_words(report: PlanReport, sweep: Sweep) -> str:
    difference, metric = detectable(report, sweep), sweep.objectives[0].metric.removeprefix("dev/")
    if difference is None:
        return f"nobody knows the standard error of {metric}"
    rows = plural(report.objective_rows, "row")
    return f"two trials near {TYPICAL:.2f} that differ by less than ±{difference:.4f} may do so by chance ({rows})"


def student_words(student: Student, report: PlanReport) -> str:
    """The default student in a few words."""
    count, shape_of = report.default.student_parameters, report.default.named_size
    if shape_of is not None:
        return f"{student.model}: {cut_words(student, shape_of)}"
    weights_words = f", about {weights(count)} weights" if count is not None else ""
    if student.model or student.start:
        return f"{student.model or student.start}{weights_words}"
    if student.kind == "static":
        begun = {"teacher": "token vectors", "teacher_tokens": "vectors of single tokens"}.get(student.token_vectors)
        tokens = f", {begun} of the teacher" if begun else ""
        return f"static, width {student.width}, vocabulary {student.vocabulary}{weights_words}{tokens}"
    return f"{plural(student.layers, 'layer')} of width {student.width}, vocabulary {student.vocabulary}{weights_words}"


def cut_words(student: Student, size: NamedSize) -> str:
    """The weights of a named model, and those that are left of it."""
    settings = [name for name in ("keep_layers", "trim") if getattr(student, name) not in (None, False)]
    remaining = f"{weights(size.cut)} after {' and '.join(settings)}"
    if size.texts_read is not None:
        remaining = f"at least {remaining} (by the tokens of {size.texts_read:,} texts; the others may add some)"
    return f"{weights(size.whole)} weights, {remaining}"


def _baseline_words(sweep: Sweep) -> str:
    """The rows that are scored beside the trials, and where their models come from."""
    at_hand = {name: is_at_hand(split_revision(name)[0]) for name in sweep.baselines}
    bought = [baseline_row(name) + ("" if here else " (from the hub)") for name, here in at_hand.items()]
    none = "; `baselines` names models to buy instead" if not bought else ""
    return ", ".join(["untrained", "teacher", *bought]) + none


def _dimensions_words(sweep: Sweep) -> str:
    """The shorter vectors that the default trial trains too, if there are any."""
    dimensions = make_trial(sweep, 0, default_params(sweep)).training.matryoshka
    return f"; its first {', '.join(map(str, dimensions))} dimensions are trained too" if dimensions else ""


def _searched_words(sweep: Sweep) -> str:
    ranges = {name: words_for(parameter) for name, parameter in sweep.parameters.items()}
    shown = [
        f"{name} {text if len(text) <= LONGEST_RANGE else text[: LONGEST_RANGE - 1] + ELLIPSIS}"
        for name, text in list(ranges.items())[:MOST_SEARCHED]
    ]
    more = [f"and {len(ranges) - MOST_SEARCHED} more"] if len(ranges) > MOST_SEARCHED else []
    return "; ".join([*shown, *more]) or "nothing"


def _trials_words(report: PlanReport, sweep: Sweep) -> str:
    training, trials = make_trial(sweep, 0, default_params(sweep)).training, sweep.budget.trials
    steps = f" ({plural(report.default.steps, 'step')})" if report.default.steps is not None else ""
    pairs = f"{plural(training.pairs, 'pair')}{steps}"
    length = pairs if training.compute is None else f"{training.compute:,g} s of compute"
    stops = "none stops early" if sweep.scheduler.kind == "none" else f"{sweep.scheduler.kind} stops some early"
    count = plural(trials, "trial")
    searched = {f"training.{name}" for name in ("pairs", "compute", "reports")} & sweep.parameters.keys()
    each = "by default" if any(kind_of(sweep.parameters[name]) != "const" for name in searched) else "each"
    first = f" after the points of portfolio {sweep.sampler.first_points!r}" if sweep.sampler.first_points else ""
    return f"{count} by {sweep.sampler.kind}{first}; {each} {length} and {plural(training.reports, 'report')}; {stops}"


def _time_words(report: PlanReport, sweep: Sweep, machine: Machine | None) -> str:
    estimate, trials = report.estimate, sweep.budget.trials
    if estimate is None or machine is None:
        why = report.not_measured or ("the cluster is elsewhere" if machine is None else "--no-calibrate")
        return f"not measured: {why}"
    abreast = f", {machine.groups} at a time" if machine.groups > 1 else ""
    most = "at most " if sweep.scheduler.kind != "none" else ""
    return (
        f"{most}about {duration(estimate.total_s)} on this machine: the teacher {duration(estimate.teacher_s)}, then "
        f"{trials:,} × {duration(estimate.trial_s)}{abreast}; "
        "measured with the default settings, without the start of Ray"
    )


def _memory_words(report: PlanReport, machine: Machine | None) -> str:
    if report.estimate is None or machine is None:
        return "not measured"
    if used := report.estimate.gpu_bytes:
        share = gpu_share(used, machine.gpu_bytes)
        return (
            f"the first steps of a trial take {size(used)} of a GPU's {size(machine.gpu_bytes)}: `gpus_per_worker: "
            f"{share:g}` in the cluster file lets {plural(int(1 / share), 'trial')} of one worker share it, and "
            "`auto` measures every kind of trial"
        )
    if report.estimate.memory_bytes is None:
        return "not measured"
    workers = machine.groups * machine.workers
    each = plural(workers, "worker")
    return f"about {size(report.estimate.memory_bytes)} for {each}; this machine has {size(machine.memory_bytes)}"


def _disk_words(report: PlanReport, machine: Machine | None) -> str:
    estimate = report.estimate
    if estimate is None or machine is None or machine.storage is None:
        return "not measured"
    parts = {
        "stores": estimate.stores_bytes,
        "checkpoints": estimate.checkpoints_bytes,
        "logs and MLflow": estimate.records_bytes,
        "an exported model": estimate.model_bytes,
    }
    listed = ", ".join(f"{name} {size(part)}" for name, part in parts.items())
    free = f"{size(free_bytes(machine.storage))} are free in {machine.storage}"
    return f"at most about {size(estimate.disk_bytes)}: {listed}; {free}"


# --- The rest ------------------------------------------------------------------------------------------------------


def details(report: PlanReport) -> Group:
    """The resolved sweep file, sampled trials, and what each cleaning step left."""

    def heading(text: str) -> Text:
        return Text(f"\n{text}", style="bold")

    steps = [trial.steps for trial in (report.default, *report.trials) if trial.steps is not None]
    length = (
        f"{_span(steps)} steps a trial; {plural(report.budget_pairs, 'pair')} seen by all trials if none stops early"
        if steps
        else f"{report.budget_compute:,g} s of a worker's compute for all trials if none stops early"
    )
    work = (
        f"{plural(report.total_pairs, 'pair')} of {plural(report.anchors, 'anchor')} to train on; "
        f"{plural(report.teacher_sentences, 'sentence')} for the teacher, once; {length}"
    )
    sources = [Text(f"{name}: {_steps(counts)}") for name, counts in report.counts.items()]
    words = [heading("aligned words"), Text(_steps(report.words))] if report.words else []
    return Group(
        heading(f"id {report.id}"),
        Syntax(report.spec, "yaml", background_color="default", word_wrap=True),
        heading("the default, and examples of what may be tried (the search makes its own proposals)"),
        _trials_table(report),
        heading("rows after each cleaning step"),
        *sources,
        heading("pairs"),
        Text(", ".join(f"{name} {count:,}" for name, count in report.pairs.items())),
        *words,
        heading("work"),
        Text(work),
    )


def _steps(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{step} {rows:,}" for step, rows in counts.items())


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _trials_table(report: PlanReport) -> Table:
    """One row per sampled trial, the default configuration first, a column per parameter."""
    names = list(dict.fromkeys(name for trial in (report.default, *report.trials) for name in trial.params))
    table = Table(*(Column(title, overflow="fold") for title in ("", *names, "steps", "student")), box=None)
    for number, trial in enumerate((report.default, *report.trials)):
        shape = "" if trial.student_parameters is None else weights(trial.student_parameters)
        values = [short_value(trial.params[name]) if name in trial.params else "" for name in names]
        steps = "" if trial.steps is None else f"{trial.steps:,}"
        table.add_row("default" if number == 0 else f"sample {number - 1}", *values, steps, shape)
    return table
