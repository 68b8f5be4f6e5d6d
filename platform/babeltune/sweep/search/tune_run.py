"""Runs a sweep's search: Ray Tune proposes and stops, the worker groups train, Optuna remembers. The only door to both.

Tune sees one thin trainable per trial whose steps are the reports that a worker group hands to the dispatcher. A
resumed search starts a new Tune run from the ledger; nothing that Tune wrote is read back."""

import contextlib
import importlib.metadata
import logging
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import ray
from optuna.trial import TrialState
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from babeltune.errors import SweepError
from babeltune.memory import passed_over
from babeltune.planning.space import largest
from babeltune.schema.records import Goal, Sweep
from babeltune.schema.trial_names import trial_name
from babeltune.signals import StopSignal
from babeltune.sweep.ray_internals import replace_actor_manager
from babeltune.sweep.search.stopping import Stopping, rule_of
from babeltune.sweep.search.study import Proposals
from babeltune.sweep.search.trial_proxy import LocalActors, MethodTrial, Result, TrialConfig
from babeltune.sweep.search.tune_searcher import ENDED, Callbacks, OptunaSearcher, TrialRecords
from babeltune.sweep.search.warm_start import Suggest, warm_trials
from babeltune.sweep.state.log import LEDGER, Ledger, log_of
from babeltune.sweep.state.messages import LedgerLine
from babeltune.sweep.workers.dispatcher_client import DispatcherClient
from babeltune.sweep.workers.pool import WorkerPool

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "86400",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""No loggers, no console, no state files of Tune's: study, ledger and tracker are the record."""
PASSED_OVER = 50  # ended trials after which what stays of them is passed over when garbage is collected


def register_methods() -> list[str]:
    """Registers every installed method with Tune under its name, and returns the names."""
    entries = importlib.metadata.entry_points(group="babeltune.methods")
    return [register(name) for name in sorted({entry.name for entry in entries})]


def register(method: str) -> str:
    """Registers one method with Tune under its name, by which sweeps run their trials, and returns the name."""
    tune.register_trainable(method, type(f"{MethodTrial.__name__}_{method}", (MethodTrial,), {"method": method}))
    return method


@dataclass(frozen=True)
class _Numbered:
    """The part of a Tune trial that a scheduler looks at, under the trial's number: a resumed trial is the same one."""

    trial_id: str


class _TuneTrial(Protocol):
    """The part of a trial of Tune's that is used."""

    trial_id: str
    config: TrialConfig
    metric_analysis: dict[str, object]
    metric_n_steps: dict[str, object]
    last_result: Result


def _numbered(trial: _TuneTrial | _Numbered) -> _Numbered:
    return trial if isinstance(trial, _Numbered) else _Numbered(str(trial.config["number"]))


class _Brakes(tune.Stopper):  # type: ignore[misc]
    """Ends trials at a report once the search should stop, and all at once when it is in trouble."""

    def __init__(self, stop: Callable[[], bool], poll: Callable[[], bool]) -> None:
        self._stop, self._poll = stop, poll

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __call__(self, trial_id: str, result: Result) -> bool:
        return self._stop() and not result.get("done")

    def stop_all(self) -> bool:
        """Called in each of Tune's rounds."""
        return self._poll()


class _Forget(tune.Callback):  # type: ignore[misc]
    """Of a trial that has ended, Tune keeps averages of each figure in its reports, which are more than half of the
    memory that it costs. Nobody asks for them. What else stays of trials is no garbage."""

    def __init__(self, pass_over: Callable[[], None]) -> None:
        self._pass_over, self._ended = pass_over, 0

    def on_trial_complete(self, iteration: int, trials: list[_TuneTrial], trial: _TuneTrial, **_: object) -> None:
        """Called after scheduler and searcher."""
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        trial.last_result.pop("report", None)
        self._ended += 1
        if self._ended % PASSED_OVER == 0:
            self._pass_over()

    on_trial_error = on_trial_complete


class _FollowsLocally:
    """Of a scheduler: trials are followed in this process (`trial_proxy.py`)."""

    def __init__(self, dispatcher: DispatcherClient | None, **settings: str | int | float) -> None:
        super().__init__(**settings)
        self._dispatcher = dispatcher

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_dispatcher": None}

    def on_trial_add(self, controller: object, trial: _TuneTrial) -> None:
        """Called for every new trial, before Tune starts an actor for it: then `LocalActors` can take their place."""
        if controller is not None and self._dispatcher is not None:
            replace_actor_manager(controller, LocalActors, partial(LocalActors, self._dispatcher))
        super().on_trial_add(controller, trial)  # type: ignore[misc]


class _Fifo(_FollowsLocally, FIFOScheduler):  # type: ignore[misc]
    """Stops nothing."""


class _Asha(_FollowsLocally, AsyncHyperBandScheduler):  # type: ignore[misc]
    """Stops, at its rungs, those that are not among the best. It knows each trial by its number."""

    def on_trial_add(self, controller: object, trial: _TuneTrial) -> None:
        super().on_trial_add(controller, trial)
        self._trial_info[_numbered(trial).trial_id] = self._trial_info.pop(trial.trial_id)

    def on_trial_result(self, controller: object, trial: _TuneTrial, result: Result) -> str:
        return str(super().on_trial_result(controller, _numbered(trial), result))

    def on_trial_complete(self, controller: object, trial: _TuneTrial, result: Result) -> None:
        super().on_trial_complete(controller, _numbered(trial), result)

    def on_trial_remove(self, controller: object, trial: _TuneTrial) -> None:
        super().on_trial_remove(controller, _numbered(trial))


class _ByRule(_FollowsLocally, FIFOScheduler):  # type: ignore[misc]
    """Stops a trial when a rule says so."""

    def __init__(self, dispatcher: DispatcherClient | None, rule: Stopping, goal: Goal) -> None:
        super().__init__(dispatcher)
        self._rule, self._sign = rule, 1.0 if goal == "maximize" else -1.0

    def on_trial_result(self, controller: object, trial: _TuneTrial, result: Result) -> str:
        number, value = int(_numbered(trial).trial_id), self._sign * result["objective"]
        stops = self._rule.stops(number, result["reports"], value)
        return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    def on_trial_complete(self, controller: object, trial: _TuneTrial, result: Result) -> None:
        """Tune brings a trial's last report here alone."""
        if "objective" in result:
            self.on_trial_result(controller, trial, result)


def scheduler_for(sweep: Sweep, dispatcher: DispatcherClient | None = None) -> TrialScheduler:
    """The scheduler that judges reports by the first objective. The dispatcher brings them; a replay needs none."""
    if sweep.scheduler.kind == "none":
        return _Fifo(dispatcher)
    if sweep.scheduler.kind != "asha":
        return _ByRule(dispatcher, rule_of(sweep.scheduler, largest(sweep, "reports")), sweep.objectives[0].goal)
    return _Asha(
        dispatcher,
        time_attr="reports",
        metric="objective",
        mode="max" if sweep.objectives[0].goal == "maximize" else "min",
        grace_period=sweep.scheduler.grace,
        reduction_factor=sweep.scheduler.reduction,
        max_t=max(largest(sweep, "reports"), sweep.scheduler.grace),
    )


def prime(scheduler: TrialScheduler, lines: Iterable[LedgerLine]) -> set[int]:
    """Shows the scheduler the ledger's reports in their order; returns the trials that it stops at their last one."""
    stopped: set[int] = set()
    for line in lines:
        trial = _Numbered(str(line["number"]))
        if line["event"] == "propose":
            scheduler.on_trial_add(None, trial)
        elif line["event"] == "report":
            result = {"reports": line["index"], "objective": (line["values"] or [math.nan])[0]}
            verdict = scheduler.on_trial_result(None, trial, result)
            (stopped.add if verdict == TrialScheduler.STOP else stopped.discard)(line["number"])
    return stopped


def search(
    sweep: Sweep,
    *,
    pool: WorkerPool,
    folder: Path,
    suggest: Suggest,
    callbacks: Callbacks,
    trials: int,
    stop: StopSignal,
) -> bool:
    """Runs trials until the ledger in `folder` has `trials` of them. True when it does, False when it was stopped.

    Trials that were running at a crash come first, under their numbers. The stop signal is asked about once a second.
    It keeps new trials from starting, ends running ones so that they can be resumed, or raises what ends the search.
    Raises `SweepError` when the budget's share of the trials has
    failed, and whatever a callback raised."""
    os.environ.update(ENVIRONMENT)
    with stop.guard() as token:
        ledger, warm = Ledger(folder / LEDGER, token), warm_trials(folder, sweep, suggest)
    proposals = Proposals(sweep, suggest, warm, ledger.lines)
    scheduler = scheduler_for(sweep, pool.dispatcher)
    running = proposals.trials(TrialState.RUNNING)
    stopped = {n for n in prime(scheduler, ledger.lines) if len(ledger.reports(n)) < largest(sweep, "reports")}
    records = TrialRecords(sweep, proposals, ledger, pool, callbacks, stop, folder)
    searcher = OptunaSearcher(records, trials, judged=stopped & running.keys())
    try:
        with passed_over() as pass_over:
            _run_tune(sweep, folder / "tune", searcher, scheduler, stop, _Forget(pass_over))
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            searcher.leave()
    if searcher.trouble is not None:
        raise searcher.trouble
    ended = proposals.trials(*ENDED)
    if not stop.stops() and not log_of(folder).waits(trials):
        with stop.guard():
            records.judge(last=True)
    return len(ended) >= trials


def _run_tune(
    sweep: Sweep, folder: Path, searcher: OptunaSearcher, scheduler: TrialScheduler, stop: StopSignal, forget: _Forget
) -> None:
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    logging.getLogger("ray.tune.execution.experiment_state").setLevel(logging.CRITICAL)  # whose files nobody reads
    shutil.rmtree(folder, ignore_errors=True)
    try:
        tune.run(
            register(sweep.method),
            name=f"run-{uuid.uuid4().hex[:8]}",
            config={"objectives": [objective.metric for objective in sweep.objectives]},
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=-1,
            stop=_Brakes(stop.stops, searcher.poll),
            callbacks=[forget],
            storage_path=str(folder.resolve()),
            verbose=0,
            raise_on_failed_trial=False,
            trial_name_creator=lambda trial: trial_name(trial.config["number"]),
            trial_dirname_creator=lambda trial: f"{trial_name(trial.config['number'])}-{trial.trial_id}",
        )
    except Exception as error:
        if searcher.trouble is not None:  # which says why it ended
            return
        if isinstance(error, tune.TuneError):
            raise SweepError(f"Ray Tune ended: {error}; `babeltune resume` goes on from the ledger") from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
