"""One search over a corpus's surrogate, with the platform's proposals and its scheduler."""

import functools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler

from babeltune.planning.space import suggest
from babeltune.schema.records import Sampler, Scalar, Scheduler
from babeltune.sweep.search.study import Proposals
from babeltune.sweep.search.tune_run import scheduler_for
from benchmarks.search_replay.table import Surrogate

MOST_TRIALS = 100  # a search that has found nothing after this many trials ends


@dataclass(frozen=True)
class Contestant:
    """A way to search."""

    name: str
    sampler: Sampler
    scheduler: Scheduler
    portfolio: int = 0  # first points learnt from the other corpora
    seeds: int | None = None  # the most seeds, for a search that is slow


@dataclass(frozen=True)
class Outcome:
    """The cost of a search until its incumbent was good enough."""

    seconds: float  # counted
    trials: int  # begun until then
    succeeded: bool  # whether it ever was


def contest(surrogate: Surrogate, contestant: Contestant, points: list[dict[str, Scalar]], seed: int) -> Outcome:
    """Searches until the incumbent's last report would be within a standard error of the best.

    The incumbent is the trial with the best report so far. What remains of its training is paid for, too."""
    sampler = replace(contestant.sampler, points=tuple(points))
    sweep = replace(surrogate.sweep, sampler=sampler, scheduler=contestant.scheduler, seed=seed)
    proposals = Proposals(sweep, functools.partial(suggest, sweep.parameters))
    scheduler = scheduler_for(sweep)
    seconds, incumbent = 0.0, -math.inf
    for trial in range(1, MOST_TRIALS + 1):
        number, params = proposals.ask()
        curve = surrogate.curves([params])[0].tolist()
        costs = surrogate.seconds(params)
        for report, value in enumerate(curve, 1):
            seconds += costs[report - 1]
            if value > incumbent:
                incumbent = value
                if curve[-1] >= surrogate.enough:
                    return Outcome(seconds + sum(costs[report:]), trial, True)
            if judged(proposals, scheduler, number, report, value) and report < len(curve):
                proposals.tell(number, TrialState.PRUNED, None)
                break
        else:
            proposals.tell(number, TrialState.COMPLETE, [curve[-1]])
    return Outcome(seconds, MOST_TRIALS, False)


def judged(proposals: Proposals, scheduler: TrialScheduler, number: int, report: int, value: float) -> bool:
    """Records a report; whether the scheduler stops the trial there."""
    trial = SimpleNamespace(trial_id=str(number), config={"number": number})
    if report == 1:
        scheduler.on_trial_add(None, trial)
    proposals.report(number, report, [value])
    result = {"reports": report, "objective": value}
    return bool(scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP)
