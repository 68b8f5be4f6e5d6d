"""Scores any model on the dev sets and the sealed tests of a sweep: `babeltune evaluate SWEEP --model MODEL`."""

from __future__ import annotations

from babeltune.data.eval_sets import subsets
from babeltune.data.prepared import read_prepared
from babeltune.errors import SpecError
from babeltune.promotion.candidate import dev_texts, sealed_sets
from babeltune.promotion.fresh_scorer import Target
from babeltune.promotion.promote import Evaluated, Scoring, model_folder, score_model, trial_of
from babeltune.schema.cluster import Cluster
from babeltune.sweep.state.folder import find_run
from babeltune.sweep.sync.view import StorageView


def evaluate_in_sweep(
    name: str,
    model: str,
    cluster: Cluster,
    *,
    test: bool,
    prompt: str | None = None,
    target_model: str | None = None,
) -> Evaluated:
    """Scores the model on the dev sets of the sweep, or on its sealed tests, whose opening is recorded.

    The dev sets are those that the sweep's trials were scored on, with the rows that `data.split` held out. `prompt`
    and `target_model` are as in `evaluate_model`. Raises `SpecError` for a trial in place of a sweep, and for a sweep
    without such sets.
    """
    view = StorageView(cluster)
    view.update(every=True)
    folder, number = find_run(view.folder, name)
    if number is not None:
        raise SpecError(f"{name!r} is one trial; name its sweep, {folder.id}, whose sets are to be scored")
    sweep, prepared = folder.sweep(), read_prepared(folder.prepared)
    view.bring_data(prepared)
    found = sealed_sets(sweep, prepared, folder.id) if test else []
    tasks = [task for rows in found for task in subsets(rows, sweep.data.anchor_priority)]
    tasks = tasks if test else dev_texts(prepared)
    if not tasks:
        what, other = ("sealed tests", "leave out --test") if test else ("dev sets", "add --test")
        raise SpecError(f"sweep {folder.id} has no {what}; {other}, or name a file: `evaluate MODEL --with FILE`")
    target: Target | None = None
    if target_model is not None:
        target = model_folder(target_model, cluster, setting="--target-model")
        tasks = [task.against_target() for task in tasks]
    elif sweep.data.against_teacher("test" if test else "dev"):
        target = sweep.teacher
    return score_model(
        Scoring(
            model=model,
            trial=trial_of(model, view.folder),
            tasks=tasks,
            prefix="test" if test else "dev",
            sealed=found,
            prompt=prompt,
            target=target,
        ),
        view,
        target_model,
    )
