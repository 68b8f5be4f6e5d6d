"""Shows a sampler few of a large study's trials, and reads them once for a proposal.

TPE reads and sorts all that it is shown, for each parameter. A proposal would take longer than the one before it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

RECENT, BEST = 1_000, 100
"""How many trials are shown of a study that has more: the last ones, and the best of each objective. TPE calls at most
25 trials good, so it loses none of these."""


def few(trials: list[FrozenTrial], study: optuna.Study) -> list[FrozenTrial]:
    """The last `RECENT` of these trials and the `BEST` of each objective, by number; all if there are no more."""
    if len(trials) <= RECENT + BEST * len(study.directions):
        return trials
    shown = {trial.number: trial for trial in trials[-RECENT:]}
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    for index, direction in enumerate(study.directions):
        sign = -1 if direction == optuna.study.StudyDirection.MAXIMIZE else 1
        best = sorted(done, key=lambda trial: sign * trial.values[index])[:BEST]
        shown |= {trial.number: trial for trial in best}
    return [shown[number] for number in sorted(shown)]


class FewTrialsStudy(optuna.Study):  # type: ignore[misc]
    """A study as its sampler sees it: with these trials, as they are now."""

    def __init__(self, study: optuna.Study, trials: list[FrozenTrial]) -> None:
        super().__init__(study.study_name, study._storage, study.sampler)
        self._shown = trials

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        del deepcopy, use_cache  # samplers change no trial, and these are a cache
        return [trial for trial in self._shown if states is None or trial.state in states]


class FewTrialsSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Another sampler that makes one proposal, and sees few trials if there are many."""

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        self._sampler = sampler
        self._seen: optuna.Study | None = None

    def _few(self, study: optuna.Study) -> optuna.Study:
        if self._seen is None:
            self._seen = FewTrialsStudy(study, few(study.get_trials(deepcopy=False), study))
        return self._seen

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        space: dict[str, BaseDistribution] = self._sampler.infer_relative_search_space(self._few(study), trial)
        return space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        drawn: dict[str, Any] = self._sampler.sample_relative(self._few(study), trial, search_space)
        return drawn

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(self._few(study), trial, param_name, param_distribution)
