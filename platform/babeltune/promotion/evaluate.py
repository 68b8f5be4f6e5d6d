"""Scores a model on the dev or sealed test sets of a file: `evaluate MODEL --with FILE`.

A fresh process scores, as in promotion. Opening sealed tests is recorded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from babeltune.data.contamination import CONTAMINATED
from babeltune.data.eval_sets import EvalRows, read_eval, subsets
from babeltune.data.prepared import Prepared, TextTask, read_prepared
from babeltune.data.text_keys import sentence_keys
from babeltune.errors import BabeltuneError, SpecError
from babeltune.planning.model_checks import right_model_problems
from babeltune.planning.sweep_file import read_data, read_teacher
from babeltune.promotion.candidate import Candidate, exported
from babeltune.promotion.decisions import settle_quietly
from babeltune.promotion.fresh_scorer import FreshScorer, Target
from babeltune.promotion.gates import Scores
from babeltune.promotion.model_names import model_folder, trial_of
from babeltune.promotion.sealed_test_log import record_opening, sealed_elsewhere
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Promotion, Task, Teacher
from babeltune.sweep.state.folder import find_sweep
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.mlflow_client import SWEEP


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The outcome of `evaluate_model`."""

    scores: Scores
    warnings: tuple[str, ...] = ()
    """About sealed tests that were opened, now and before, and about sets that the model was trained on."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A model, and the sets that it is to be scored on."""

    model: str
    trial: Candidate | None  # the trial that `model` names; None for any other model
    tasks: Sequence[TextTask]
    prefix: Literal["dev", "test"]
    sealed: Sequence[EvalRows]  # the sealed sets among them, whose opening is recorded
    prompt: str | None
    target: Target | None  # the model of the right sides
    warnings: tuple[str, ...] = ()


def evaluate_model(
    model: str, with_: str, cluster: Cluster, *, test: bool, prompt: str | None = None, target_model: str | None = None
) -> Evaluated:
    """Scores a model on the dev or sealed test sets of a file's data section. Opening the tests is recorded, and so is
    scoring dev sets that hold the text of tests which a sweep of this storage has sealed.

    `prompt` is put before every sentence that the model encodes, in place of its own one. `target_model` encodes the
    right side of every bitext and mining set. Without it, a set with `right_model: teacher` takes the teacher of the
    file, or else of the trial's sweep. Raises `SpecError` when the section has no such sets, `TeacherError` when the
    vectors of both models have different dimensions."""
    data, root = read_data(with_)
    chosen = data.test if test else data.dev
    if not chosen:
        raise SpecError(f"{with_}: data.{'test' if test else 'dev'} names no tasks to score")
    sets = read_eval(chosen, root, data.max_line_bytes)
    tasks = subsets(sets, data.anchor_priority)
    view = StorageView(cluster)
    view.update(every=True)
    settle_quietly(view)
    sealed = sets if test else sealed_elsewhere(view.folder, sets)
    trial = trial_of(model, view.folder)
    target: Target | None
    if target_model is not None:
        target = model_folder(target_model, cluster, setting="--target-model")
        tasks = [task.against_target() for task in tasks]
    else:
        target = _teacher_for(chosen, with_, data.anchor_priority, trial, cluster)
    names = ", ".join(dict.fromkeys(rows.task.name for rows in sealed))
    opened = f"{view.folder}: this is recorded as an opening of it; choose models by other text"
    scoring = Scoring(
        model=model,
        trial=trial,
        tasks=tasks,
        prefix="test" if test else "dev",
        sealed=sealed,
        prompt=prompt,
        target=target,
        warnings=() if test or not sealed else (f"{names} of data.dev is a sealed test of a sweep in {opened}",),
    )
    return score_model(scoring, view, target_model)


def score_model(scoring: Scoring, view: StorageView, target_model: str | None) -> Evaluated:
    """Scores a model in a fresh process. Before that, the opening of sealed sets is recorded."""
    words, target = list(scoring.warnings), scoring.target
    with weights_of(scoring.model, scoring.trial, view) as (who, folder), FreshScorer() as rescore:
        words += trained_on(scoring.model, scoring.trial, scoring.tasks, view, folder)
        if target is not None:
            rescore.check_widths({"model": folder}, target, {"model": repr(scoring.model), "": repr(target_model)})
        with view.openings():
            if scoring.sealed:
                openings = record_opening(view.folder, who, folder, scoring.sealed)
                words += filter(None, [openings.warning(Promotion().confidence).removeprefix("warning: ")])
        scored = rescore.scored({"model": folder}, scoring.tasks, scoring.prefix, scoring.prompt, target)
        return Evaluated(scores=scored["model"][0], warnings=tuple(words))


@contextmanager
def weights_of(model: str, trial: Candidate | None, view: StorageView) -> Iterator[tuple[str, str]]:
    """The model's name in the record of openings, and a folder with it; a trial's is exported for the while."""
    if trial is None:
        yield model, model_folder(model, view.cluster)
        return
    with exported(trial, view, view.folder / "evaluations") as folder:
        yield f"{trial.folder.id}/{trial.name}/{trial.report.index}", str(folder)


def _teacher_for(
    tasks: Sequence[Task], with_: str, priority: tuple[str, ...], trial: Candidate | None, cluster: Cluster
) -> Teacher | None:
    """The teacher of the file, or else of the trial's sweep, if it encodes the right side of any of the tasks."""
    asking = [task.name for task in tasks if task.right_model == "teacher"]
    if not asking:
        return None
    teacher = read_teacher(with_) or (trial.sweep.teacher if trial else None)
    if teacher is None:
        lacks = f"task {asking[0]!r} has `right_model: teacher`, and the file has no section `teacher`"
        raise SpecError(f"{with_}: {lacks}; add one, or name a model with --target-model")
    for _, problem in right_model_problems((), tasks, teacher, priority):
        raise SpecError(f"{with_}: {problem}")
    model, *beside = (
        replace(each, model=model_folder(each.model, cluster)) if each.model.startswith("models:/") else each
        for each in teacher.encoders
    )
    return replace(teacher, model=model.model, beside=tuple(beside))


def trained_on(
    model: str, trial: Candidate | None, tasks: Sequence[TextTask], view: StorageView, folder: str
) -> Iterator[str]:
    """A warning for each set where more than `CONTAMINATED` of the texts are training text of the model.

    That text is known of a trial, and of a registered model whose sweep is in this storage. Texts that differ in case,
    punctuation and blanks only are equal."""
    prepared = trial.prepared if trial is not None else _of_registered(view, Path(folder))
    if prepared is None:
        return
    keys = np.unique(sentence_keys(prepared.all_texts().at(np.unique(np.asarray(prepared.pairs())))))
    texts: dict[str, set[str]] = {}
    for task in tasks:
        texts.setdefault(task.name, set()).update(task.texts())
    for name, some in texts.items():
        share = float(np.isin(sentence_keys(sorted(some)), keys).mean()) if some else 0.0
        if share > CONTAMINATED:
            why = "so its scores say little about other text; score a set that was held out"
            yield f"{name}: {share:.0%} of its {len(some):,} texts are training text of {model}, {why}"


def _of_registered(view: StorageView, folder: Path) -> Prepared | None:
    """The data of a registered model's sweep; None if the folder is of no such model or its sweep is not here."""
    if not folder.is_relative_to(view.folder / "fetched"):
        return None  # the registry's models are nowhere else
    from babeltune.tracking.registry import version_in

    try:
        version = version_in(view.cluster.mlflow, folder)
        if version is None or not (sweep := version.tags.get(SWEEP)):
            return None
        prepared = read_prepared(find_sweep(view.folder, sweep).prepared)
        view.download_stores(prepared)
        return prepared
    except BabeltuneError:  # a registry or a storage that is away: nothing is known
        return None
