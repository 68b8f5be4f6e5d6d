"""Warnings of settings that are possible and probably not meant. Nothing here refuses anything."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from babeltune.errors import MethodError, TeacherError, plural
from babeltune.schema.records import Training, with_fitted

MANY_STRANGERS = 0.2  # the share of a source's pairs with a text in another language above which it is said
NEARLY_ALL = 0.9  # the share above which the file is misread, and no pair should be dropped for it
JUDGED = 200  # pairs of each two languages whose languages are looked at if the sweep file does not have them judged
MANY_EPOCHS = 1_000  # times that a trial may see a pair before it is said

MANY_TRIALS = 100_000  # trials of a sweep from which on it is said
RECORDING_S = 0.01  # seconds in which the ledger is on the disk with a trial of three reports (docs/architecture.md)

if TYPE_CHECKING:
    from torch import Tensor

    from babeltune.data.corpus import Corpus
    from babeltune.method import TeacherVectors
    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep, Trial

LABELLED = 128  # pairs by which the plan judges a teacher's labels: an English teacher encodes them in about a second


def about_sweep(sweep: Sweep) -> Iterator[str]:
    """The warnings that need no data."""
    yield from about_trials(sweep)
    yield from about_length(sweep)
    yield from about_memory(sweep)
    yield from about_languages(sweep)
    yield from about_prompts(sweep)
    yield from about_baselines(sweep)
    yield from about_projection(sweep)
    yield from about_word_thresholds(sweep)


def about_assignments(sweep: Sweep, assignments: Iterable[str]) -> Iterator[str]:
    """Values of `--set` that no trial takes, since the search proposes others."""
    for name in (assignment.partition("=")[0].strip() for assignment in assignments):
        if name in sweep.parameters:
            fixed = f"--set 'parameters.{name}={{const: VALUE}}'"
            yield f"{name} is among `parameters`, so trials do not take the value of --set; to fix it: {fixed}"


def about_trials(sweep: Sweep) -> Iterator[str]:
    """Trials that are all alike, and more than anybody waits for."""
    if sweep.budget.trials >= MANY_TRIALS and sweep.budget.minutes is None:
        hours = sweep.budget.trials * RECORDING_S / 3600
        enough = "50 to 200 trials usually find what there is; lower it, or end the search with budget.minutes"
        yield f"budget.trials {sweep.budget.trials:,}: recording alone takes about {hours:,.0f} hours, and {enough}"
    if not sweep.parameters and sweep.budget.trials > 1:
        todo = "search something, or seeds: --set 'parameters.seed={int: [0, 9]}'"
        yield f"nothing is searched, so all {sweep.budget.trials} trials are one and the same; {todo}"


def about_length(sweep: Sweep) -> Iterator[str]:
    """A number of pairs in a sweep whose trials are as long as their compute."""
    if sweep.budget.unit == "compute" and sweep.training.pairs != Training().pairs:
        why = "with budget.unit compute a trial is as long as training.compute"
        yield f"training.pairs {sweep.training.pairs:,} has no effect: {why}; remove it, or set budget.unit to pairs"


def about_plugins(names: Iterable[str]) -> Iterator[str]:
    """The packages that a job does not ship: the dependencies of the distributions that its methods are from."""
    from importlib.metadata import PackageNotFoundError, distribution

    from babeltune.method.plugins import needs_beside, plugin_words

    for name in names:
        with contextlib.suppress(PackageNotFoundError):  # then building its wheel is refused
            if needs := needs_beside(plugin := distribution(name)):
                lacks = f"the job ships {plugin_words(plugin)}, not what it depends on: {', '.join(needs)}"
                yield f"{lacks}; install these on the cluster's nodes, such as in their image"


def about_order(metric: str | None) -> Iterator[str]:
    """Trials ordered by their loss or a part of it."""
    if metric is not None and metric.startswith("train/") and not metric.startswith("train/pairs"):
        yield f"{metric} is of the training, by which trials with other settings do not compare; sort by dev/…"


def about_languages(sweep: Sweep) -> Iterator[str]:
    """Codes that nobody knows, languages that a frozen encoder is not said to know, and those for which a method has
    no layers."""
    from babeltune.planning.languages import task_languages, taught_languages
    from babeltune.planning.space import possible_needs
    from babeltune.schema.languages import code_of, known_by, match, meaning

    trained = list(dict.fromkeys(language for side in taught_languages(sweep) for language in side))
    needs = [need for _, _, need in possible_needs(sweep)]
    strange = [language for language in trained if not known_by(language, sweep.teacher.common_languages)]
    if strange and any(need.frozen for need in needs):
        why = "its vectors of that text are taken as they are, and only the layers after it are trained"
        yield f"the frozen encoder {sweep.teacher.title!r} is not said to know {', '.join(strange)}: {why}"
    scored = dict.fromkeys(itertools.chain(*map(task_languages, (*sweep.data.dev, *sweep.data.test))))
    lacking = [language for language in scored if match(language, trained) is None]
    teacher_codes = itertools.chain(*(each.languages for each in sweep.teacher.encoders))
    graded = itertools.chain(*map(task_languages, sweep.data.graded))
    for code in dict.fromkeys(itertools.chain(trained, scored, graded, teacher_codes)):
        if not meaning(code).is_language:
            written = code_of(code)
            todo = "it stands for a language of its own" + (f"; write {written}" if written else "")
            codes = "(with a script or region, as in zho_Hans or zho-CN, or without)"
            yield f"{code!r} is no code of a language in ISO 639 {codes}: {todo}"
    if lacking and any(need.per_language for need in needs):
        words = f"there are no layers for {', '.join(lacking)}, which is scored but not trained on"
        yield f"{words}: such texts take those of {trained[0]}"


def about_prompts(sweep: Sweep) -> Iterator[str]:
    """Encoders of the teacher whose files name another prompt."""
    from babeltune.planning.availability import encoders, model_prompt

    for key, encoder in encoders(sweep):
        file_prompt = model_prompt(encoder.model, encoder.revision)
        if file_prompt is not None and file_prompt != encoder.prompt:
            setting = ".".join(map(str, (*key, "prompt")))
            files = f"the files of {encoder.model!r} say {file_prompt!r}"
            yield f"{setting} is {encoder.prompt!r}, and {files}: its vectors differ"


def about_baselines(sweep: Sweep) -> Iterator[str]:
    """Sets that baselines get no score of: the teacher encodes the right side, and their vectors do not compare."""
    dev, test = sweep.data.against_teacher("dev"), sweep.data.against_teacher("test")
    by_itself = "`babeltune evaluate MODEL --test --target-model MODEL` scores one by itself"
    if sweep.baselines and dev:
        yield f"baselines get no score of {', '.join(dev)}: the teacher encodes the right side"
    if sweep.baselines and test:
        yield f"baselines get no score of any sealed test: the teacher encodes the right side of {test[0]}; {by_itself}"


def about_projection(sweep: Sweep) -> Iterator[str]:
    """A projection that a method does not read, and that its models therefore do not have."""
    from babeltune.planning.space import configurations

    searched = "student.projection" in sweep.parameters
    if sweep.student.projection is None and not searched:
        return
    blind = [method.name for _, method, config in configurations(sweep) if not method.needs(config).vectors]
    if blind:
        why = "which reads token states: its models have none, and the student's own width"
        yield f"student.projection has no effect on {', '.join(dict.fromkeys(blind))}, {why}"


def about_word_thresholds(sweep: Sweep) -> Iterator[str]:
    """Thresholds of words that no method of the sweep reads, or that a lexicon's words pass."""
    from babeltune.data.thresholds import WORD_THRESHOLDS, thresholds
    from babeltune.planning.space import possible_needs

    searched = [name for name in WORD_THRESHOLDS if f"data.sampling.{name}" in sweep.parameters]
    for name in dict.fromkeys([*thresholds(sweep.data.sampling, WORD_THRESHOLDS), *searched]):
        if not any(needs.words for _, _, needs in possible_needs(sweep)):
            yield f"data.sampling.{name} has no effect: no method of this sweep learns from words"
        elif sweep.data.words.align == "lexicon":
            yield f"data.sampling.{name} has no effect: the words of a lexicon have no scores"


def about_queue(sweep: Sweep, anchors: int) -> Iterator[str]:
    """A queue that a text with this number of distinct anchors cannot fill without repeats."""
    from babeltune.planning.space import configurations

    longest: dict[str, int] = {}
    for _, method, config in configurations(sweep):
        longest[method.name] = max(longest.get(method.name, 0), method.needs(config).warm_up)
    for name, entries in longest.items():
        if entries > anchors:
            few = f"{name} has a queue of up to {entries:,} entries, and the training text {anchors:,} distinct anchors"
            why = "the rest would be repeats, which are no more negatives; lower the queue to that"
            yield f"{few} to fill it with: {why}"


@dataclass(frozen=True)
class LabelFacts:
    """The teacher's labels of a sample of the training text."""

    warnings: tuple[str, ...] = ()
    temperatures: tuple[str, ...] = ()  # the numbers that `auto` stands for


def label_facts(sweep: Sweep, corpus: Corpus, samples: int) -> LabelFacts:
    """The temperatures that fit the teacher, and warnings of labels that are nearly flat or hard.

    It looks at the trials that the plan shows, and at the teacher's vectors of `LABELLED` pairs, drawn at random. A
    teacher that is not on this machine is not asked."""
    from babeltune.method import trial_context
    from babeltune.planning.availability import is_at_hand
    from babeltune.planning.parameters import allows
    from babeltune.planning.space import shown_trials

    if len(corpus.pairs) < 2 or not all(is_at_hand(each.model) for each in sweep.teacher.encoders):
        return LabelFacts()
    both = functools.cache(functools.partial(_teacher_vectors, sweep, corpus))
    by_words, by_numbers = dict[str, list[str]](), dict[str, list[str]]()
    for number, trial in enumerate(shown_trials(sweep, samples)):
        who, size = f"sample {number - 1}" if number else "default", trial.training.global_batch
        if not number and not all(allows(sweep.parameters[name], value) for name, value in trial.params.items()):
            continue  # the default is outside the searched ranges: no trial has its labels

        def vectors(size: int = size) -> tuple[Tensor, Tensor | None]:
            source, target = both()
            return source[:size], None if target is None else target[:size]

        try:
            trial, words = _with_sampled_temperatures(trial, vectors)
            by_numbers.setdefault(words, []).append(who)
            context = trial_context(trial.method, trial.config)
            words = context.method_class.label_warning(context.config, vectors)
        except TeacherError as error:
            return LabelFacts((f"the labels were not looked at: {error}",))
        except MethodError as error:
            words = str(error)
        by_words.setdefault(words, []).append(who)
    return LabelFacts(_by_trial(by_words), _by_trial(by_numbers))


def _by_trial(by_words: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Each text after the names of its trials."""
    return tuple(f"{', '.join(names)}: {words}" for words, names in by_words.items() if words)


def _with_sampled_temperatures(trial: Trial, vectors: TeacherVectors) -> tuple[Trial, str]:
    """The trial with numbers in place of `auto`, as one sampled batch has them, and what they are."""
    from babeltune.method import trial_context
    from babeltune.method.own_share import compared, fitted_temperature

    numbers, words = dict[str, float](), list[str]()
    for name, fit in trial_context(trial.method, trial.config).fits.items():
        source, target = vectors()
        sides = {"source": source, "target": source if target is None else target}
        numbers[name] = fitted_temperature(fit, [compared([sides[side] for side in fit.sides])], rows=len(source))
        words.append(f"{name} about {numbers[name]:.3g}: a share of {fit.share:.3g} in a sample of {len(source)} pairs")
    return with_fitted(trial, numbers), ", ".join(words)


def _teacher_vectors(sweep: Sweep, corpus: Corpus) -> tuple[Tensor, Tensor | None]:
    """The teacher's vectors of some pairs' source sides, and of their target sides if a method reads these."""
    import numpy as np
    import torch

    from babeltune.data.teacher import load_teacher
    from babeltune.planning.preparation import wanted_of

    teacher = load_teacher(sweep.teacher)
    rows = np.random.default_rng(sweep.seed).permutation(len(corpus.pairs))[:LABELLED]

    def encoded(side: int) -> Tensor:
        return torch.from_numpy(teacher.encode(corpus.texts.at(corpus.pairs[rows, side])[:]))

    source = encoded(0)
    if "target" not in wanted_of(sweep).sides:
        return source, None
    return source, source if sweep.teacher.target_side == "copy_anchor" else encoded(1)


def about_corpus(sweep: Sweep, pairs: Mapping[str, int], dev: Mapping[str, int]) -> Iterator[str]:
    """Batches larger than the text, text that is seen too often to learn more of it, and scores of one row."""
    from babeltune.planning.parameters import values_of
    from babeltune.planning.space import largest

    total, size = sum(pairs.values()), max(pairs.values(), default=0)
    searched = sweep.parameters.get("data.sampling.batches")
    batches = {sweep.data.sampling.batches, *(values_of(searched, 0) if searched else ())}
    most, batch = (total if "mixed" in batches else size), largest(sweep, "global_batch")
    if batch > most:
        which = "all" if "mixed" in batches else "of the largest language pair"
        why = "batches are no larger, and fewer negatives; lower it, or give more text"
        held = f"{most:,} pairs that one batch can hold ({which})"
        yield f"training.global_batch {batch:,} is more than the {held}: {why}"
    seen = largest(sweep, "pairs")
    if sweep.budget.unit == "pairs" and seen > MANY_EPOCHS * total:
        often = f"training.pairs {seen:,} is each of the {total:,} pairs {seen // total:,} times"
        yield f"{often}, where more than {MANY_EPOCHS:,} teach nothing more; lower it, or give more text"
    if single := [name for name, rows in dev.items() if rows < 2]:
        yield f"{', '.join(single)}: one row, whose score is 0 or 1 and says nothing; it counts in the set's mean"


def about_text(sweep: Sweep, corpus: Corpus) -> Iterator[str]:
    """Warnings of the training text, before anything is computed from it."""
    yield from about_headers(sweep)
    yield from about_strangers(sweep, corpus.counts)
    yield from about_unjudged(sweep, corpus)


def about_strangers(sweep: Sweep, counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Sources with many pairs that have a text in another language than its column says."""
    from babeltune.planning.languages import strangers_in

    for name, steps in counts.items():
        judged = steps.get("no_near_overlap", steps.get("no_overlap", 0))  # the steps before
        share = sum(strangers_in(steps).values()) / max(1, judged)
        drop = sweep.data.clean.language != "drop" and share < NEARLY_ALL
        if share > MANY_STRANGERS:
            words = ", ".join(f"{count:,} {reason}" for reason, count in strangers_in(steps).items())
            more = ", or leave them out with `data.clean.language: drop`" if drop else ""
            yield f"source {name!r}: {words} of {judged:,} pairs; check its columns' languages{more}"


def about_unjudged(sweep: Sweep, corpus: Corpus) -> Iterator[str]:
    """Language pairs with many texts in another language, by a sample, if the sweep judges none."""
    import numpy as np

    from babeltune.data.language_id import labels_of, strangers

    for number, (left, right) in enumerate(corpus.group_languages if sweep.data.clean.language == "off" else ()):
        rows = np.random.default_rng(sweep.seed).permutation(np.flatnonzero(corpus.pair_groups == number))[:JUDGED]
        sources, targets = (corpus.texts.at(corpus.pairs[rows, side]) for side in (0, 1))
        labels = strangers(sources, left), strangers(targets, right)
        count = int(np.count_nonzero((labels[0] >= 0) | (labels[1] >= 0)))
        swapped = np.isin(labels[0], labels_of(right)) & np.isin(labels[1], labels_of(left))
        if count > MANY_STRANGERS * len(rows):
            words = f"{count:,} of {len(rows):,} pairs that were looked at have a text in another language"
            words += f", {swapped.sum():,} of them each in that of the other" if swapped.any() else ""
            todo = "exchange the columns" if 2 * swapped.sum() > len(rows) else "check the columns' languages"
            todo += ", or say `data.clean.language: drop`" if count < NEARLY_ALL * len(rows) else ""
            yield f"{left}-{right}: {words}; {todo}"


def about_headers(sweep: Sweep) -> Iterator[str]:
    """Tables whose first row names their languages, and is read as text."""
    from babeltune.data.file_readers import Fault, file_at
    from babeltune.data.sources import read_file
    from babeltune.planning.sweep_file import data_root
    from babeltune.schema.languages import code_of, known_by

    data, root = sweep.data, data_root(sweep)
    tasks = itertools.chain(*data.sets.values())
    for source in [*data.train, *(task.source for task in tasks if task.source is not None)]:
        if source.header or source.columns is None or source.path is None or source.format not in ("tsv", "csv"):
            continue
        path, names = file_at(source.path, root), list(source.columns.values())
        first = next(iter(read_file(source, path, names, hashlib.sha256(), data.max_line_bytes)), (0, Fault("", "")))[1]
        cells = [] if isinstance(first, Fault) else first
        by_language = zip(source.columns, cells, strict=True) if cells else ()
        if cells and all(known_by(language, (code_of(cell) or cell,)) for language, cell in by_language):
            words = f"source {source.name!r}: {path}:1 is read as text ({', '.join(cells)}), and names its columns"
            yield f"{words}; say `header: true`, with these names in `columns`"


def about_memory(sweep: Sweep) -> Iterator[str]:
    """A student from scratch whose weights, gradients and Adam's two moments are more than this machine's memory."""
    import psutil

    from babeltune.planning.availability import student_parameters
    from babeltune.planning.space import combinations
    from babeltune.planning.value_checks import student_with

    searched = [name for name in sweep.parameters if name.startswith("student.")]
    students = [student_with(sweep, params) for params in combinations(sweep.parameters, searched, end=1)]
    size = max(student_parameters(student, sweep.teacher) or 0 for student in students)
    adam_bytes, memory = 16 * size, psutil.virtual_memory().total
    if adam_bytes > memory:
        weighs = (
            f"the largest student has {size / 1e6:,.0f} M weights, and training one takes {adam_bytes / 2**30:,.0f} GiB"
        )
        has = f"this machine has {memory / 2**30:,.0f}: check student.layers, width, feed_forward and vocabulary"
        yield f"{weighs} a worker; {has}"


def about_precision(sweep: Sweep) -> Iterator[str]:
    """Half precision that this machine would emulate."""
    from babeltune.memory import emulates_bf16
    from babeltune.planning.availability import encoders

    half = ["training"] if sweep.training.precision == "bf16" else []
    half += [".".join(map(str, key)) for key, encoder in encoders(sweep) if encoder.precision == "bf16"]
    if half and emulates_bf16():
        keys = " ".join(f"--set {key}.precision=fp32" for key in half)
        yield f"this machine has no instructions for bf16 and would emulate it, tens of times slower than fp32: {keys}"


def about_gpus(cluster: Cluster) -> Iterator[str]:
    """GPUs of this machine that the cluster file gives to no worker, and those that it gives and this machine lacks."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needs = cluster.gpus * (cluster.least_workers or cluster.workers)
    if needs > gpus and cluster.address == "local":
        todo = "`submit` is refused here; run it on a machine that has them, or leave --cluster out"
        gives = f"cluster {cluster.name!r} gives a trial {plural(needs, 'GPU')}"
        yield f"{gives}, and this machine has {gpus or 'none'}: {todo}"
    if gpus and not cluster.gpus:
        none = f"cluster {cluster.name!r} gives a worker none of them: --cluster clusters/local_gpu.yaml"
        yield f"this machine has {plural(gpus, 'GPU')}, and {none}"
