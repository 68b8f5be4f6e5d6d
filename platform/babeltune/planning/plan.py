"""Says what a sweep would do before it does it: its spec, its id, sampled trials, the pairs left, the work.

`make_plan` reads and cleans the corpus; `describe` is pure, from the sweep and what the corpus counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from babeltune.evaluation.distinct_rows import distinct_rows, tasks_behind
from babeltune.files import draft_folder
from babeltune.method import needs_of
from babeltune.planning.availability import student_parameters
from babeltune.planning.goals import dev_metrics
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import default_params, make_trial, shown_trials
from babeltune.planning.sweep_file import check_reachable, data_root
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.planning.warnings import about_text, label_facts
from babeltune.schema.records import Scalar, Sweep, Teacher, TranslateSource, Trial
from babeltune.stages import tell
from babeltune.training.sampler import batch_counts, with_negatives

if TYPE_CHECKING:
    from babeltune.data.corpus import Corpus
    from babeltune.planning.calibration import Estimate, Machine
    from babeltune.planning.sizes import NamedSize


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One trial that the sweep could propose (the real proposals also depend on results)."""

    params: dict[str, Scalar]
    steps: int | None
    """None if compute says how long a trial is: a worker counts it when the trial begins."""
    student_parameters: int | None
    """About this many, without the method's own; None for a frozen encoder, and a model by name that is not cut."""
    named_size: NamedSize | None = None
    """The size of a model by name that is cut and at hand."""


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """The contents of a cleaned corpus, under the names of `PlanReport`."""

    counts: Mapping[str, Mapping[str, int]]
    pairs: Mapping[str, int]
    dev: Mapping[str, int]
    anchors: int
    teacher_sentences: int
    words: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """The plan of a sweep, as `babeltune plan` shows it."""

    id: str
    spec: str
    """The resolved sweep file as YAML, defaults written out."""
    metrics: tuple[str, ...]
    """Names of the metrics of the dev tasks."""
    default: Sampled
    trials: tuple[Sampled, ...]
    counts: dict[str, dict[str, int]]
    """Source -> cleaning step -> rows left after it."""
    pairs: dict[str, int]
    """Language pair -> training pairs."""
    dev: dict[str, int]
    """Dev set and subset, such as `everyday/fra-eng` -> rows that are scored."""
    anchors: int
    """Distinct texts on the anchor side of these pairs."""
    teacher_sentences: int
    """Distinct sentences that the teacher encodes, once for all trials."""
    words: dict[str, int]
    """Aligned words, and how many pairs have one or none; empty if no method needs them."""
    budget_pairs: int | None
    """Pairs seen by all trials together if none stops early, or None, and …"""
    budget_compute: float | None
    """… the seconds of a worker that all trials cost together."""
    warnings: tuple[str, ...] = ()
    """Warnings of the sweep and its text, and those of the methods about the teacher's labels on one batch
    of it."""
    temperatures: tuple[str, ...] = ()
    """The numbers that `auto` stands for, by that batch."""
    pairs_left: int | None = None
    """Training pairs that the mildest thresholds leave, without that of margins, which takes the teacher's vectors.
    None if the corpus is too large for a plan to look."""
    objective_rows: int = 0
    """Independent rows behind the first objective."""
    dev_texts: int = 0
    """Distinct dev sentences that a student encodes at each report."""
    estimate: Estimate | None = None
    """Time and memory on this machine, if they were measured."""
    not_measured: str = ""
    """Why they were not."""
    detectable: float | None = None
    """The difference of two trials, at a score of 0.7, that chance explains in one of twenty cases; None if the
    standard error of the first objective is not known."""
    quota: tuple[str, ...] = ()
    """The rest of the user's quota on the cluster, a line each; empty without one."""

    @property
    def total_pairs(self) -> int:
        return sum(self.pairs.values())


def make_plan(sweep: Sweep, *, samples: int = 3, machine: Machine | None = None) -> PlanReport:
    """The plan of a sweep whose corpus and models are at hand. With a machine, some training steps are timed on it.

    Raises `SpecError` for what cannot be reached, `DataError` for text that cannot be read."""
    from babeltune.data.corpus import build_corpus, check_corpus
    from babeltune.data.pair_scores import SCORES
    from babeltune.data.translation import StandIn
    from babeltune.planning.sizes import READ_TEXTS, named_sizes
    from babeltune.planning.thresholds import pairs_left

    check_reachable(sweep)
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed, StandIn(sweep.seed), progress=tell)
    check_corpus(corpus)
    left = None
    if len(corpus.texts) <= READ_TEXTS:
        left = pairs_left(sweep, corpus.pair_groups, lambda name: SCORES[name](corpus), tuple(SCORES))
    for source in sweep.data.train:
        if isinstance(source, TranslateSource) and source.train:
            counts = corpus.counts[source.name]
            corpus.counts[source.name] = {"to translate": counts["rows"], **counts}
    tell("looking at the teacher's labels")
    labels = label_facts(sweep, corpus, samples)
    described = describe(sweep, corpus_size(sweep, corpus), samples)
    sizes = named_sizes(sweep, shown_trials(sweep, samples), corpus)
    trials = [described.default, *described.trials]
    for place, size in enumerate(sizes):
        if size:
            trials[place] = dataclasses.replace(trials[place], student_parameters=size.cut, named_size=size)
    report = dataclasses.replace(
        described,
        default=trials[0],
        trials=tuple(trials[1:]),
        warnings=(*about_text(sweep, corpus), *labels.warnings),
        temperatures=labels.temperatures,
        pairs_left=left,
        objective_rows=distinct_rows(tasks_behind(sweep.objectives[0].metric, corpus.tasks)),
        dev_texts=len({text for task in corpus.tasks for text in task.texts_of("student")}),
    )
    return report if machine is None else _estimated(report, sweep, corpus, machine)


def corpus_size(sweep: Sweep, corpus: Corpus) -> CorpusSize:
    """The contents of the sweep's cleaned corpus. `DataError` if aligned words are too few."""
    from babeltune.data.arrays import histogram
    from babeltune.data.prepare import asked_of_teacher
    from babeltune.data.student_tokens import ids_among
    from babeltune.planning.preparation import wanted_of

    needs, copy_anchor = wanted_of(sweep), sweep.teacher.target_side == "copy_anchor"
    rows = histogram(corpus.pair_groups, len(corpus.groups))
    return CorpusSize(
        counts=corpus.counts,
        pairs=dict(zip(corpus.groups, rows.tolist(), strict=True)),
        dev={f"{task.name}/{task.subset}": len(task.left) for task in corpus.tasks},
        anchors=len(ids_among(len(corpus.texts), corpus.pairs[:, 0])),
        teacher_sentences=len(asked_of_teacher(corpus, needs, copy_anchor=copy_anchor)[0]),
        words=_word_counts(sweep, corpus) if needs.words else {},
    )


def _word_counts(sweep: Sweep, corpus: Corpus) -> dict[str, int]:
    """How many aligned words the corpus has, and pairs with few. `DataError` if they are too few."""
    from babeltune.data.alignment import check_words, word_counts, word_samples

    data, pairs = sweep.data, len(corpus.pairs)
    with draft_folder("plan") as stores:
        samples, _ = word_samples(corpus, data.words, data_root(sweep), stores, sweep.seed, longest=data.max_line_bytes)
    check_words(samples, pairs, data.words)
    return dict(word_counts(samples, pairs))


def _estimated(report: PlanReport, sweep: Sweep, corpus: Corpus, machine: Machine) -> PlanReport:
    """The plan with time and memory, or why these are not known."""
    from babeltune.planning.calibration import NotMeasuredError, calibrate, estimate

    tell("timing some training steps")
    try:
        measured = calibrate(sweep, corpus, machine)
    except NotMeasuredError as error:
        return dataclasses.replace(report, not_measured=str(error))
    trial, texts = make_trial(sweep, 0, default_params(sweep)), len(corpus.texts)
    counts = {"dev_texts": report.dev_texts, "teacher_sentences": report.teacher_sentences, "texts": texts}
    return dataclasses.replace(report, estimate=estimate(sweep, trial, measured, machine, **counts))


def describe(sweep: Sweep, counts: CorpusSize, samples: int = 3) -> PlanReport:
    """The plan, from the sweep and what its corpus holds."""
    default, *trials = shown_trials(sweep, samples)
    compute = default.training.compute
    rows = {source: dict(steps) for source, steps in counts.counts.items()}
    return PlanReport(
        id=sweep_id(sweep),
        spec=spec_yaml(sweep),
        metrics=dev_metrics(sweep),
        default=_sampled(default, sweep.teacher, counts.pairs),
        trials=tuple(_sampled(trial, sweep.teacher, counts.pairs) for trial in trials),
        counts=rows,
        pairs=dict(counts.pairs),
        dev=dict(counts.dev),
        anchors=counts.anchors,
        teacher_sentences=counts.teacher_sentences,
        words=dict(counts.words),
        budget_pairs=None if compute else sweep.budget.trials * default.training.pairs,
        budget_compute=sweep.budget.trials * compute if compute else None,
    )


def _sampled(trial: Trial, teacher: Teacher, pairs: Mapping[str, int]) -> Sampled:
    rows, training = list(pairs.values()), trial.training
    seen = [rows[group] for group in with_negatives(rows)]
    batch = min(training.global_batch, sum(rows))
    steps = None
    if training.compute is None:
        steps = len(batch_counts(seen, trial.sampling, global_batch=batch, total_pairs=training.pairs, seed=trial.seed))
    size = None if needs_of(trial.method, trial.config).frozen else student_parameters(trial.student, teacher)
    return Sampled(params=trial.params, steps=steps, student_parameters=size)
