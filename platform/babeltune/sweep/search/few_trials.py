"""Shows a sampler few of a large study's trials, and reads them once for a proposal.

TPE reads and sorts all that it is shown, for each parameter, and a Gaussian process takes time in its cube. A proposal
would take longer than the one before it. NSGA-II is not wrapped: it finds its generations by attributes of all trials.
"""

from collections.abc import Container
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers._tpe.sampler import _split_complete_trials
from optuna.trial import FrozenTrial, TrialState

RECENT, BEST = 1_000, 100
"""How many trials are shown of a study that has more: the last ones, the best of each objective, and with several
objectives the best as TPE ranks them, by non-domination and hypervolume. TPE calls at most 25 trials good, complete
ones first, so it loses none of these."""


class FewTrials:
    """Those of a study that its samplers are shown, found again for each proposal.

    With one objective it looks only at the trials that it showed last and at newer ones: the others are neither among
    the best nor do they change. With several, which trials are the best depends on all."""

    def __init__(self) -> None:
        self._shown: set[int] = set()
        self._begun = 0

    def of(self, trials: list[FrozenTrial], study: optuna.Study) -> list[FrozenTrial]:
        """The last `RECENT` of a study's trials, the `BEST` and all that run, by number; all if there are no more."""
        if len(trials) <= RECENT + BEST * len(study.directions):
            return trials
        one = len(study.directions) == 1
        looked = sorted({*self._shown, *range(self._begun, len(trials))}) if one else range(len(trials))
        some = [trials[number] for number in looked]
        complete = [trial for trial in some if trial.state == TrialState.COMPLETE]
        shown = [*trials[-RECENT:], *(trial for trial in some if trial.state == TrialState.RUNNING)]
        for index, direction in enumerate(study.directions):
            sign = -1 if direction == optuna.study.StudyDirection.MAXIMIZE else 1
            shown += sorted(complete, key=lambda trial: sign * trial.values[index])[:BEST]
        if not one:
            shown += _split_complete_trials(complete, study, BEST)[0]
        self._shown, self._begun = {trial.number for trial in shown}, len(trials)
        return [trials[number] for number in sorted(self._shown)]


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

    def __init__(self, sampler: optuna.samplers.BaseSampler, trials: FewTrials | None = None) -> None:
        """Without `trials` it looks at all."""
        self._sampler, self._trials = sampler, trials or FewTrials()
        self._seen: optuna.Study | None = None

    def _few(self, study: optuna.Study) -> optuna.Study:
        if self._seen is None:
            self._seen = FewTrialsStudy(study, self._trials.of(study.get_trials(deepcopy=False), study))
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
