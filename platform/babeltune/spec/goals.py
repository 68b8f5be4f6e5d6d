"""What a sweep seeks: the metrics that its dev sets give, its objectives among them, and the points to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from babeltune.errors import SpecError, nearest
from babeltune.records import Sweep, Task
from babeltune.spec.bounds import Problem
from babeltune.spec.data_rules import languages, source_pairs
from babeltune.spec.space import check_point, same

BITEXT_METRICS = ("accuracy", "accuracy_forward", "accuracy_backward", "xsim_error")
METRICS = {"bitext": BITEXT_METRICS, "sts": ("spearman",), "clustering": ("ari",)}
"""By the kind of task: what can be an objective."""


def goal_problems(sweep: Sweep) -> Iterator[Problem]:
    """Objectives that are not scored or point the wrong way, and points that no proposal could equal."""
    metrics = dev_metrics(sweep)
    for index, objective in enumerate(sweep.objectives):
        if objective.metric.startswith("train/") or "loss" in objective.metric.rpartition("/")[2]:
            yield ("objectives", index, "metric"), loss_words(sweep, objective.metric, metrics)
            continue
        if objective.metric not in metrics:
            offered = ", ".join(_shortened(metrics)) or "none, because data.dev is empty and data.split is absent"
            yield (
                ("objectives", index, "metric"),
                f"{objective.metric!r} is not scored; allowed: {offered}{nearest(objective.metric, metrics)}",
            )
            continue
        low = objective.metric.endswith("_error")
        if (objective.goal == "minimize") != low:
            yield (
                ("objectives", index, "goal"),
                f"{objective.metric} is better the {'lower' if low else 'higher'} it is; "
                f"write `goal: {'minimize' if low else 'maximize'}`",
            )
    for index, point in enumerate(sweep.sampler.points):
        try:
            check_point(sweep, point)
        except SpecError as error:
            yield ("sampler", "points", index), str(error)
    earlier = [
        index
        for index, point in enumerate(sweep.sampler.points)
        if any(_equal(point, other) for other in sweep.sampler.points[:index])
    ]
    for index in earlier:
        yield ("sampler", "points", index), "is given twice; keep one"


SCALE = ("temperature", "scale", "margin", "variant", "labels", "method", "loss", "reading", "weight", "negatives")
"""Words in the names of settings that decide what a loss of 1 means."""


def loss_words(sweep: Sweep, metric: str, metrics: tuple[str, ...]) -> str:
    """Why a loss is no objective: trials with other settings have losses that do not compare."""
    searched = [name for name in sweep.parameters if any(word in name.rpartition(".")[2] for word in SCALE)]
    why = (
        f"{', '.join(searched)} would be searched, and each changes what a loss of 1 means"
        if searched
        else "the next setting that is searched, such as the temperature, would change what a loss of 1 means"
    )
    return (
        f"{metric!r} is no objective: {why}: a soft cross-entropy cannot fall below the entropy of its labels, so the "
        "trial with the lowest loss is the one with the sharpest labels, not the best encoder. Select on what the "
        f"vectors do; allowed: {', '.join(_shortened(metrics)) or 'none, because data.dev is empty'}"
    )


def _equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


def _shortened(metrics: tuple[str, ...], most: int = 12) -> list[str]:
    return [*metrics[:most], f"and {len(metrics) - most} more"] if len(metrics) > most else list(metrics)


def dev_metrics(sweep: Sweep) -> tuple[str, ...]:
    """The names of all metrics that the dev tasks produce: means over a task's subsets first, then each subset."""
    means, single = list[str](), list[str]()
    tasks: list[tuple[str, str, tuple[str, ...]]] = [
        (task.name, task.task, task_subsets(task, sweep.data.anchor_priority)) for task in sweep.data.dev
    ]
    if sweep.data.split is not None:
        tasks.append(("heldout", "bitext", _heldout_subsets(sweep)))
    for name, kind, subsets in tasks:
        for metric in METRICS[kind]:
            means.append(f"dev/{name}/{metric}")
            single += [f"dev/{name}/{subset}/{metric}" for subset in subsets]
    return (*means, *single)


def task_languages(task: Task) -> tuple[str, ...]:
    """The languages of a task's texts."""
    if task.task == "sts" or task.source is None:
        return (task.language,) if task.language is not None else ()
    return languages(task.source, {})


def task_subsets(task: Task, priority: tuple[str, ...]) -> tuple[str, ...]:
    """A task's subsets: `fra-eng`, the anchor second; or its one language; or its languages and `mixed`."""
    if task.task == "sts" or task.source is None:
        return (task.language,) if task.language is not None else ()
    if task.task == "clustering":
        known = languages(task.source, {})
        return (*known, "mixed") if len(known) > 1 else known
    return tuple(f"{other}-{anchor}" for anchor, other in source_pairs(task.source, {}, priority))


def _heldout_subsets(sweep: Sweep) -> tuple[str, ...]:
    by_name = {source.name: source for source in sweep.data.train}
    subsets = [
        f"{other}-{anchor}"
        for source in sweep.data.train
        if source.train and not source.synthetic and languages(source, by_name)
        for anchor, other in source_pairs(source, by_name, sweep.data.anchor_priority)
    ]
    return tuple(dict.fromkeys(subsets))
