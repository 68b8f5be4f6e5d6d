"""Scores a model on the dev sets and the sealed tests of a sweep: `evaluate SWEEP --model MODEL`, and `compare A B`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from babeltune.data.eval_sets import subsets
from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import SpecError
from babeltune.evaluation.metric_names import METRICS
from babeltune.promotion.candidate import dev_texts, sealed_sets
from babeltune.promotion.compare import Cell, Conclusion, Outcomes, compare, conclusion_of
from babeltune.promotion.decisions import settle_quietly
from babeltune.promotion.evaluate import Evaluated, Scoring, score_model, trained_on, weights_of
from babeltune.promotion.fresh_scorer import FreshScorer, Target
from babeltune.promotion.model_names import model_folder, trial_of
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import SweepFolder, find_run, find_sweep, is_bare_trial
from babeltune.sweep.sync.view import StorageView


def evaluate_in_sweep(
    name: str, model: str, cluster: Cluster, *, test: bool, prompt: str | None = None, target_model: str | None = None
) -> Evaluated:
    """Scores the model on the dev sets of the sweep, or on its sealed tests, whose opening is recorded.

    The dev sets are those that the sweep's trials were scored on, with the rows that `data.split` held out. `prompt`
    and `target_model` are as in `evaluate_model`. Raises `SpecError` for a trial in place of a sweep, and for a sweep
    without such sets."""
    view = StorageView(cluster)
    view.update(every=True)
    settle_quietly(view)
    folder, sweep, prepared = _sweep_of(name, view)
    sets = sealed_sets(sweep, prepared, folder.id) if test else []
    tasks = subsets(sets, sweep.data.anchor_priority) if test else dev_texts(prepared)
    if not tasks:
        kind, advice = ("sealed tests", "leave out --test") if test else ("dev sets", "add --test")
        raise SpecError(f"sweep {folder.id} has no {kind}; {advice}, or name a file: `evaluate MODEL --with FILE`")
    target: Target | None = None
    if target_model is not None:
        target = model_folder(target_model, cluster, setting="--target-model")
        tasks = [task.against_target() for task in tasks]
    elif sweep.data.against_teacher("test" if test else "dev"):
        target = sweep.teacher
    scoring = Scoring(
        model=model,
        trial=trial_of(model, view.folder),
        tasks=tasks,
        prefix="test" if test else "dev",
        sealed=sets,
        prompt=prompt,
        target=target,
    )
    return score_model(scoring, view, target_model)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models on the dev sets of one sweep, sentence by sentence."""

    sweep: str
    first: str
    second: str
    confidence: float
    """The confidence of the intervals: the sweep's `promotion.confidence`."""
    verdicts: tuple[Conclusion, ...]
    """For each mean of `overall`, whether the second is better or worse. `undecided`: the difference may be chance.
    `equal`: no item differs."""
    overall: tuple[Cell, ...]
    """The mean over all bitext subsets, over all STS subsets, and over all transfer subsets."""
    cells: tuple[Cell, ...]
    """Each subset. `champion` is the first model's score, `challenger` the second's."""
    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The mean of retrieval sets, of the first model and of the second. No item of them is compared."""
    warnings: tuple[str, ...] = ()

    def losses(self) -> dict[str, float]:
        """The first model's score minus the second's, in each mean."""
        pairs = {cell.name: (cell.champion, cell.challenger) for cell in self.overall} | self.means
        return {name: first - second for name, (first, second) in pairs.items()}


def compare_models(first: str, second: str, cluster: Cluster, *, sweep: str | None = None) -> Comparison:
    """Compares two models on the dev sets of a sweep: by default the sweep of the first that is a trial.

    Both are exported and scored in one fresh process. Intervals and p are as in promotion (`promotion.compare`), at
    the confidence of the sweep's `promotion`.

    Raises `UnknownNameError` for a trial without its sweep. Raises `SpecError` if no sweep is named, for a trial in
    its place, and for a sweep without a dev set whose sentences can be compared one by one."""
    view = StorageView(cluster)
    view.update(every=True)
    for name in (first, second):
        if is_bare_trial(name) and not Path(name).exists():
            find_sweep(view.folder, name)  # which says how a trial is named
    trials = [trial_of(name, view.folder) for name in (first, second)]
    sweep_name = sweep or next((trial.folder.id for trial in trials if trial is not None), None)
    if sweep_name is None:
        todo = "name the sweep whose dev sets count: --sweep SWEEP"
        raise SpecError(f"neither {first!r} nor {second!r} is a trial; {todo}")
    folder, spec, prepared = _sweep_of(sweep_name, view)
    tasks = dev_texts(prepared)
    target: Target | None = spec.teacher if spec.data.against_teacher("dev") else None
    scorings = [
        Scoring(model=name, trial=trial, tasks=tasks, prefix="dev", sealed=(), prompt=None, target=target)
        for name, trial in zip((first, second), trials, strict=True)
    ]
    scored, means, words = _scored_together(scorings, view)
    rules = spec.promotion
    comparison = compare(scored, tasks, rules, name=first, on="dev")
    if not comparison.cells and not means:
        raise SpecError(
            f"sweep {folder.id} has no bitext, STS, transfer or retrieval task in data.dev; name another: --sweep SWEEP"
        )
    return Comparison(
        sweep=folder.id,
        first=first,
        second=second,
        confidence=rules.confidence,
        verdicts=tuple(map(conclusion_of, comparison.overall)),
        overall=comparison.overall,
        cells=comparison.cells,
        means=means,
        warnings=words,
    )


def _scored_together(
    scorings: Sequence[Scoring], view: StorageView
) -> tuple[tuple[Outcomes, Outcomes], dict[str, tuple[float, float]], tuple[str, ...]]:
    """The outcomes of two models on the same tasks, from one fresh process; the means of their retrieval sets; and
    warnings about their training text."""
    target, tasks = scorings[0].target, scorings[0].tasks
    folders = [weights_of(each.model, each.trial, view) for each in scorings]
    with folders[0] as (_, one), folders[1] as (_, other), FreshScorer() as rescore:
        models = {"first": one, "second": other}
        if target is not None:
            rescore.check_widths(models, target, {"first": repr(scorings[0].model), "second": repr(scorings[1].model)})
        words = list[str]()
        for each, path in zip(scorings, (one, other), strict=True):
            words += trained_on(each.model, each.trial, tasks, view, path)
        scored = rescore.scored(models, tasks, "dev", target=target)
    (scores, outcomes), (other_scores, other_outcomes) = scored["first"], scored["second"]
    metric = METRICS["retrieval"][0]
    names = [f"dev/{task.name}/{task.subset}/{metric}" for task in tasks if task.kind == "retrieval"]
    means = {}
    if names:
        both = [float(np.mean([each[name] for name in names])) for each in (scores, other_scores)]
        means[f"mean retrieval {metric}"] = (both[0], both[1])
    return (outcomes, other_outcomes), means, tuple(dict.fromkeys(words))


def _sweep_of(name: str, view: StorageView) -> tuple[SweepFolder, Sweep, Prepared]:
    """The sweep whose sets are scored, with its data on this machine. `SpecError` for a trial in its place."""
    folder, number = find_run(view.folder, name)
    if number is not None:
        raise SpecError(f"{name!r} is one trial; name its sweep, {folder.id}, whose sets are to be scored")
    prepared = read_prepared(folder.prepared)
    view.download_stores(prepared)
    return folder, folder.sweep(), prepared
