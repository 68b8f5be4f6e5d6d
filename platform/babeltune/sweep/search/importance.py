"""Which searched settings decided how good a trial became: Optuna's PED-ANOVA."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from babeltune.planning.rules import kind_of
from babeltune.schema.records import Goal, Parameter, Scalar

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

LEAST_TRIALS = 8  # scored trials below which nothing is said: the best quarter would be a single trial
MOST_TRIALS = 1000
"""Trials that are counted at most. Of more, every n-th counts, by their order: the best quarter stays a quarter."""
BEST_SHARE = 0.25  # the share of the trials that count as good. Optuna's own default of a tenth needs fifty trials.


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One trial: what was searched, and the value that it reached."""

    params: Mapping[str, Scalar]
    value: float


def parameter_importance(parameters: Mapping[str, Parameter], trials: Sequence[Scored], goal: Goal) -> dict[str, float]:
    """Each searched setting's share of the importance, the largest first; shares add up to 1.

    Empty for fewer than `LEAST_TRIALS` trials, if nothing was searched, or if all trials are equally good. A pruned
    trial counts with the value that it reached: the method only asks which trials are among the best."""
    if len(trials) < LEAST_TRIALS or len({trial.value for trial in trials}) == 1:
        return {}
    with _without_heavy_packages():
        import optuna.importance  # which a report of few trials does without

    varied = {
        name: distribution for name, each in parameters.items() if (distribution := _distribution(each)) is not None
    }
    if not varied:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=goal)
    ranked = sorted(trials, key=lambda trial: trial.value)
    study.add_trials([_frozen(trial, varied) for trial in ranked[:: math.ceil(len(trials) / MOST_TRIALS)]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental, and that some settings never varied
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        distribution = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in sorted(distribution.items(), key=lambda item: -item[1])}


@contextmanager
def _without_heavy_packages() -> Iterator[None]:
    """Imports within do without what Optuna loads and importance does not use: its other evaluators' scikit-learn
    (150 MB and 1.3 s), and Redis for its journals (.3 s)."""
    absent = [name for name in ("sklearn", "redis") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # to import None raises ImportError
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _frozen(trial: Scored, varied: Mapping[str, BaseDistribution]) -> optuna.trial.FrozenTrial:
    """The trial as Optuna has it, with the settings that lie within what is searched now."""
    import optuna

    params = {name: value for name, value in trial.params.items() if name in varied and _within(value, varied[name])}
    distributions = {name: varied[name] for name in params}
    return optuna.trial.create_trial(params=params, distributions=distributions, value=trial.value)


def _within(value: Scalar, distribution: BaseDistribution) -> bool:
    """Whether the value is still searched: an accepted change may have narrowed its range."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high


def _distribution(parameter: Parameter) -> BaseDistribution | None:
    """Optuna's distribution of a searched setting; None for one that has a single value."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kind = kind_of(parameter)
    if kind == "const":
        return None
    if kind == "choice":
        return CategoricalDistribution(parameter.choice) if len(parameter.choice or ()) > 1 else None
    low, high = getattr(parameter, kind)
    if low == high:
        return None
    log = kind.startswith("log")
    return IntDistribution(int(low), int(high), log=log) if kind.endswith("int") else FloatDistribution(low, high, log)
