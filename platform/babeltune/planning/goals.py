"""The goals of a sweep: the metrics that its dev sets give, its objectives among them, and the points to begin with."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

from babeltune.errors import SpecError, nearest
from babeltune.evaluation.metric_names import METRICS, PARAMETERS, POOLED, SPEED, each_with_each, metrics_of
from babeltune.planning.languages import languages, source_pairs, task_languages
from babeltune.planning.parameters import check_point, same
from babeltune.planning.portfolio import portfolio_points, portfolios
from babeltune.schema.bounds import Problem
from babeltune.schema.records import (
    HELDOUT,
    BeirSource,
    Bitext,
    Clustering,
    Data,
    Mining,
    Objective,
    Retrieval,
    Sts,
    Sweep,
    Task,
    Transfer,
)


def whole_name(data: Data, metric: str) -> str:
    """The metric's name with the `dev/` that tables leave out."""
    sets = {name for task in data.dev for name in (task.name, task.group)} | ({HELDOUT} if data.split else set())
    return f"dev/{metric}" if metric.partition("/")[0] in sets else metric


def goal_problems(sweep: Sweep) -> Iterator[Problem]:
    """Objectives that are not scored or point the wrong way, and points that no proposal could equal."""
    metrics = dev_metrics(sweep)
    for index, objective in enumerate(sweep.objectives):
        if index and objective.metric in COSTS:
            yield from _turned(index, objective, low=objective.metric == PARAMETERS)
            continue
        if objective.metric.startswith("train/") or "loss" in objective.metric.rpartition("/")[2]:
            yield ("objectives", index, "metric"), loss_words(sweep, objective.metric, metrics)
            continue
        if objective.metric not in metrics:
            offered = ", ".join(_shortened(metrics)) or "none, because data.dev is empty and data.split is absent"
            words = f"{offered}; after the first also {', '.join(COSTS)}{nearest(objective.metric, metrics)}"
            yield ("objectives", index, "metric"), f"{objective.metric!r} is not scored; allowed: {words}"
            continue
        yield from _turned(index, objective, low="_error" in objective.metric.rpartition("/")[2])
    for index, point in enumerate(sweep.sampler.points):
        try:
            check_point(sweep, point)
        except SpecError as error:
            yield ("sampler", "points", index), str(error)
    for index, point in enumerate(sweep.sampler.points):
        alike = (other for other in sweep.sampler.points[:index] if point.keys() == other.keys())
        if any(all(same(point[name], other[name]) for name in point) for other in alike):
            yield ("sampler", "points", index), "is given twice; keep one"
    name, all_portfolios = sweep.sampler.first_points, portfolios()
    if name is None:
        return
    if name not in all_portfolios:
        words = f"is not a portfolio; allowed: {', '.join(all_portfolios) or 'none'}{nearest(name, all_portfolios)}"
        yield ("sampler", "first_points"), f"{name!r} {words}"
    elif not portfolio_points(sweep):
        yield ("sampler", "first_points"), f"{name!r} has none of the searched parameters; remove it, or set it to null"


def _turned(index: int, objective: Objective, *, low: bool) -> Iterator[Problem]:
    better, goal = ("lower", "minimize") if low else ("higher", "maximize")
    if (objective.goal == "minimize") != low:
        words = f"{objective.metric} is better the {better} it is; write `goal: {goal}`"
        yield ("objectives", index, "goal"), words


COSTS = (PARAMETERS, SPEED)  # objectives that any sweep may have after its first: what a model costs
SCALE = ("temperature", "scale", "margin", "variant", "labels", "method", "loss", "reading", "weight", "negatives")
"""Words in the names of settings that decide what a loss of 1 means."""


def loss_words(sweep: Sweep, metric: str, metrics: tuple[str, ...]) -> str:
    """Why a loss is no objective: trials with other settings have losses that do not compare."""
    searched = [name for name in sweep.parameters if any(word in name.rpartition(".")[2] for word in SCALE)]
    why = "the next setting that is searched, such as the temperature, would change what a loss of 1 means"
    why = f"{', '.join(searched)} would be searched, and each changes what a loss of 1 means" if searched else why
    return (
        f"{metric!r} is no objective: {why}: a soft cross-entropy cannot fall below the entropy of its labels, so the "
        "trial with the lowest loss is the one with the sharpest labels, not the best encoder. Select on what the "
        f"vectors do; allowed: {', '.join(_shortened(metrics)) or 'none, because data.dev is empty'}"
    )


def _shortened(metrics: tuple[str, ...], most: int = 12) -> list[str]:
    return [*metrics[:most], f"and {len(metrics) - most} more"] if len(metrics) > most else list(metrics)


def dev_metrics(sweep: Sweep) -> tuple[str, ...]:
    """The names of all metrics that the dev tasks produce. Means over a task's or group's subsets come first, then
    each subset. Then come all of them at each smaller dimension of `training.matryoshka` (`dim128/dev/…`). Its
    largest dimension may be the whole vector, which has no such names."""
    means, single = dict[str, None](), list[str]()
    for task in sweep.data.dev:
        subsets = {subset: task_metrics(task, subset) for subset in task_subsets(task, sweep.data.anchor_priority)}
        for name in filter(None, (task.name, task.group)):
            means |= dict.fromkeys(f"dev/{name}/{metric}" for metric in _averaged(subsets.values()))
        single += [f"dev/{task.name}/{subset}/{metric}" for subset, metrics in subsets.items() for metric in metrics]
    averaged = [metric for metric in METRICS["bitext"] if metric != "xsimpp_error"]
    if sweep.data.split is not None:
        means |= dict.fromkeys(f"dev/{HELDOUT}/{metric}" for metric in _averaged([averaged]))
        heldout = dict.fromkeys(f"{other}-{anchor}" for anchor, other in _heldout_pairs(sweep))
        single += [f"dev/{HELDOUT}/{subset}/{metric}" for subset in heldout for metric in averaged]
    single += [f"dev/{place}/{metric}" for place in _languages_with_means(sweep) for metric in _averaged([averaged])]
    whole = (*means, *single)
    smaller = sorted(sweep.training.matryoshka, reverse=True)[1:]
    return (*whole, *(f"dim{dim}/{name}" for dim in smaller for name in whole))


def _languages_with_means(sweep: Sweep) -> Iterator[str]:
    """The set and the language, `ntrex/rus`, of bitexts of three languages and more, each with each."""
    pairs: dict[str, set[frozenset[str]]] = defaultdict(set)
    for task in sweep.data.dev:
        if isinstance(task, Bitext):
            pairs[task.name] |= set(map(frozenset, source_pairs(task.source, {}, sweep.data.anchor_priority)))
    if sweep.data.split is not None:
        pairs[HELDOUT] = set(map(frozenset, _heldout_pairs(sweep)))
    yield from (f"{name}/{code}" for name, codes in each_with_each(pairs).items() for code in codes)


def task_metrics(task: Task, subset: str) -> list[str]:
    """The metrics of one of a task's subsets."""
    metrics = list(metrics_of(task.task, task.cutoff))
    if isinstance(task, Mining) and task.fit is None:
        return [metric for metric in metrics if metric.endswith("_oracle")]
    changed = languages(task.augmented, {}) if isinstance(task, Bitext) and task.augmented is not None else ()
    if isinstance(task, Bitext) and not any(subset.endswith(f"-{language}") for language in changed):
        metrics.remove("xsimpp_error")
    return metrics


def _averaged(metrics: Iterable[Iterable[str]]) -> Iterator[str]:
    """The metrics of a task whose subsets have these, each followed by its pooled average."""
    for metric in dict.fromkeys(itertools.chain.from_iterable(metrics)):
        yield metric
        if metric in POOLED:
            yield POOLED[metric]


def task_subsets(task: Task, priority: tuple[str, ...]) -> tuple[str, ...]:
    """A task's subsets: `fra-eng`, the anchor second; or its one language; or its languages (and `mixed`)."""
    spoken = task_languages(task)
    match task:
        case Sts() | Mining():
            return ("-".join(spoken),) if spoken else ()
        case Transfer() | Retrieval(source=BeirSource()) | Retrieval(corpus="mixed"):
            return spoken
        case Clustering():
            return (*spoken, "mixed") if len(spoken) > 1 else spoken
    return tuple(f"{other}-{anchor}" for anchor, other in source_pairs(task.source, {}, priority))


def _heldout_pairs(sweep: Sweep) -> list[tuple[str, str]]:
    by_name = {source.name: source for source in sweep.data.train}
    return [
        pair
        for source in sweep.data.train
        if source.train and not source.synthetic and languages(source, by_name)
        for pair in source_pairs(source, by_name, sweep.data.anchor_priority)
    ]
