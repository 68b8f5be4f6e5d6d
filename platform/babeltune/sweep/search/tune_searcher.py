"""Tune's view of a sweep: it is given the proposals, and what it learns goes to study, ledger and listeners."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ray
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search import Searcher

from babeltune.errors import BabeltuneError, DamagedError, MethodError, StorageError, SweepError
from babeltune.schema.records import Report, Scalar, Sweep
from babeltune.signals import StopSignal
from babeltune.sweep.search.study import Proposals
from babeltune.sweep.search.trial_proxy import Result
from babeltune.sweep.state.folder import SweepFolder, read_of_trial
from babeltune.sweep.state.leaderboard import steps_in
from babeltune.sweep.state.log import Ledger, log_of
from babeltune.sweep.state.messages import ENDS, TrialAssignment, TrialEnd, TrialOutcome
from babeltune.sweep.workers.pool import WorkerPool
from babeltune.training.checkpoint import PROGRESS, read_reports

log = logging.getLogger(__name__)
Event = TrialAssignment | Report | TrialOutcome | None
"""An event of a trial: its assignment at its start (None if it ends at once), a report, or how it ended."""
OnEvent = Callable[[Literal["start", "report", "end"], int, Event], object]
"""Called for each event of a trial, with its number, once the ledger has it."""
Proposal = dict[str, str | int]
"""A trial's configuration for Tune, which adds the objectives (`trial_proxy.TrialConfig`)."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
ENOUGH = 5  # trials that must have ended before a sweep gives up with others to come
MEND_INTERVAL_S = 1.0
FREE_GROUP_POLL_S = 0.02  # seconds between two questions whether a worker group is free, while none has a trial
WORDS = {TrialState[state]: word for state, word in ENDS.items()}


@dataclass(frozen=True)
class Callbacks:
    """The functions that a sweep gives its search."""

    make_assignment: Callable[[int, dict[str, Scalar]], TrialAssignment]
    """Called with a trial's number and its searched settings before it starts."""
    on_event: OnEvent


@dataclass(frozen=True)
class TrialRecords:
    """Writes what happens to trials into the study and the ledger, and tells the listener."""

    sweep: Sweep
    proposals: Proposals
    ledger: Ledger
    pool: WorkerPool
    callbacks: Callbacks
    stop: StopSignal
    folder: Path  # the sweep's

    def tell(self, kind: Literal["start", "report", "end"], number: int, event: Event) -> None:
        """Tells the listener. The ledger also gets that a trial starts, or is stopped."""
        if kind == "start" or (isinstance(event, TrialOutcome) and event.state == "stopped"):
            fitted = event.trial.get("fitted") if isinstance(event, TrialAssignment) else None
            self.ledger.add("start" if kind == "start" else "stop", number, **({"fitted": fitted} if fitted else {}))
        self.callbacks.on_event(kind, number, event)

    def record(self, number: int, result: Result) -> None:
        """Records a report, once, after those that only the trial's folder has: a ledger may have lost its end."""
        report, earlier = result.get("report"), self.ledger.reports(number)
        if report is None:
            return
        last = earlier[-1]["index"] if earlier else 0
        if report.index > last + 1:
            reports = read_reports(SweepFolder(self.folder).trial(number))
            for lost in reports[last : report.index - 1]:
                self._record(number, lost)
        if report.index > last:
            self._record(number, report)

    def _record(self, number: int, report: Report) -> None:
        values = [report.metrics[objective.metric] for objective in self.sweep.objectives]
        self.proposals.report(number, report.index, values)
        self.proposals.note(number, {"checkpoint": report.checkpoint})
        self.ledger.add_report(number, report, values)
        self.tell("report", number, report)

    def end(self, number: int, result: Result) -> None:
        """Records how a trial ended. `StorageError` if the storage ended it."""
        self.record(number, result)
        values = reports[-1]["values"] if (reports := self.ledger.reports(number)) else None
        end = result.get("end") or TrialEnd("stopped")
        if end.kind == "storage":
            raise StorageError(end.text)  # no fact about the trial, which stays as it is and is resumed
        if end.failed:
            self._finish(number, TrialState.FAIL, end)
        elif end.kind == "collapsed":
            self._finish(number, TrialState.PRUNED, end)
        elif result.get("last"):
            self._finish(number, TrialState.COMPLETE, TrialEnd("finished"))
        elif self.stop.stops() or "report" not in result:
            self.tell("end", number, TrialOutcome("stopped", TrialEnd("stopped"), values))
        else:
            self.prune(number)

    def prune(self, number: int) -> None:
        """Ends a trial as the scheduler said at its last report."""
        text = f"stopped by {self.sweep.scheduler.kind} at report {len(self.ledger.reports(number))}"
        self._finish(number, TrialState.PRUNED, TrialEnd("pruned", text=text))

    def _finish(self, number: int, state: TrialState, end: TrialEnd) -> None:
        values = reports[-1]["values"] if (reports := self.ledger.reports(number)) else None
        self.record_end(number, state, values, end)
        self.tell("end", number, TrialOutcome(WORDS[state], end, values))
        self.judge()

    def record_end(self, number: int, state: TrialState, values: list[float] | None, end: TrialEnd) -> None:
        """Writes the end of a trial into study and ledger."""
        self.proposals.note_end(number, end)
        final = values if state == TrialState.COMPLETE else None
        self.proposals.tell(number, state, final)
        progress = steps_in(read_of_trial(SweepFolder(self.folder).trial(number), PROGRESS) or {})
        self.ledger.add_end(number, state.name, final, end, **progress)

    def judge(self, *, last: bool = False) -> None:
        """Raises `SweepError` if too many trials failed since the sweep last gave up. `last`: no trial is to come."""
        if not (last or self.ledger.failed):  # to read all trials at each end takes long with many
            return
        everyone, before = self.proposals.trials(*ENDED), self.ledger.given_up
        ended = {number: trial for number, trial in everyone.items() if number not in before}
        if last:
            ended = ended or everyone
        elif len(ended) < max(ENOUGH, self.pool.count):
            return
        if why := too_many_failed(ended.values(), self.sweep.budget.failures):
            self.ledger.add("give_up", max(ended), trials=sorted(ended))
            raise SweepError(
                f"{why}; change the sweep file, or mend what broke, then `babeltune resume`, or `extend` where no "
                "trial is left"
            )


class OptunaSearcher(Searcher):  # type: ignore[misc]
    """Tune's searcher: proposes while a worker group is free, and records what happens to trials."""

    def __init__(self, records: TrialRecords, trials: int, judged: Collection[int] = ()) -> None:
        """Runs until the study holds `trials`. The scheduler stopped those `judged`, which nobody recorded."""
        super().__init__()
        self._records, self._budget = records, trials
        self._proposals, self._ledger, self._pool = records.proposals, records.ledger, records.pool
        self._make_assignment, self._stop = records.callbacks.make_assignment, records.stop
        self._polled = time.monotonic()
        self._judged = sorted(judged)
        self._resumed = sorted(records.proposals.trials(TrialState.RUNNING).keys() - set(judged))
        self._numbers: dict[str, int] = {}
        self.trouble: BaseException | None = None

    def __getstate__(self) -> dict[str, object]:
        """Nothing: Tune pickles its searcher now and then, and babeltune never reads a pickle."""
        return {}

    def save(self, *_: object, **__: object) -> None:
        """Keeps nothing: the ledger is the truth."""

    save_to_dir = save

    def restore(self, checkpoint_path: str) -> None:
        """Refuses: a sweep resumes from its ledger."""
        raise SweepError("a sweep resumes from its ledger, not from Tune's files; use `babeltune resume`")

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, object], **_: object
    ) -> bool:
        """Agrees: the sweep says what is searched."""
        return True

    def suggest(self, trial_id: str) -> Proposal | str | None:
        """The next trial's configuration; None while no worker group is free, FINISHED when nothing is left."""
        try:
            while self._judged and not self._over():
                number = self._judged.pop(0)
                with self._stop.guard():
                    self._records.tell("start", number, None)
                    self._records.prune(number)
            while not self._over() and self._has_more():
                # A worker group is free before Tune has passed its trial's end on, and proposals shall see every end.
                if len(self._numbers) < self._pool.count and self._pool.dispatcher.free():
                    with self._stop.guard():
                        proposal = self._propose(trial_id)
                    if proposal is not None:
                        return proposal
                    continue
                if self._numbers:
                    return None
                self.poll()  # Tune would wait for minutes without polling the worker groups
                time.sleep(FREE_GROUP_POLL_S)
        except Exception as error:
            self.trouble = error
        return str(Searcher.FINISHED)

    def _has_more(self) -> bool:
        """Whether there are trials to start, and time for them."""
        has_trials = self._to_go_on() is not None or self._proposals.begun < self._budget
        return has_trials and not self._stop.starts_no_more()

    def _to_go_on(self) -> int | None:
        """The first of the trials to go on with that is not paused."""
        paused = log_of(self._records.folder).paused if self._resumed else ()
        return next((number for number in self._resumed if number not in paused), None)

    def _over(self) -> bool:
        return self.trouble is not None or self._stop.stops()

    def poll(self) -> bool:
        """Sees to the worker groups about once a second. Whether the search may not go on."""
        if self.trouble is None and time.monotonic() - self._polled > MEND_INTERVAL_S:
            self._polled = time.monotonic()
            try:
                if self._stop.stops():
                    self.leave()
                paused = log_of(self._records.folder).paused
                self._pool.dispatcher.stop_all([trial for trial, number in self._numbers.items() if number in paused])
                self._pool.mend()
                self._stop.check()
            except (BabeltuneError, ray.exceptions.RayError) as error:
                self.trouble = error
        return self.trouble is not None

    def _propose(self, trial_id: str) -> Proposal | None:
        """None if the method refuses what was proposed, which has failed then."""
        if (number := self._to_go_on()) is not None:
            self._resumed.remove(number)
            params = self._params_again(number)
        else:
            number, params = self._proposals.ask()
            self._ledger.add("propose", number, params=params)
        try:
            assignment = self._make_assignment(number, params)
        except (MethodError, DamagedError) as error:  # more combinations than the sweep file's check tries; a lost file
            log.warning("trial %d cannot be trained: %s", number, error)
            end = TrialEnd("refused", type(error).__name__, str(error))
            self._records.record_end(number, TrialState.FAIL, None, end)
            self._records.judge()
            return None
        self._numbers[trial_id] = number
        self._pool.dispatcher.offer(trial_id, assignment)
        self._records.tell("start", number, assignment)
        return {"trial": trial_id, "number": number}

    def _params_again(self, number: int) -> dict[str, Scalar]:
        """The settings of a trial that goes on. One that has not begun gets, once, what the search has gained since."""
        folder, recorded = SweepFolder(self._records.folder), self._ledger.params[number]
        if folder.data_of(number) != folder.prepared:
            return recorded
        params = self._proposals.again(number)
        if params.keys() - recorded.keys():
            self._ledger.add("propose", number, params=params)
        return params

    def on_trial_result(self, trial_id: str, result: Result) -> None:
        """Records a report; a listener's exception stops the sweep and is raised by `search`."""
        if self.trouble is None:
            try:
                with self._stop.guard():
                    self._records.record(self._numbers[trial_id], result)
            except Exception as error:
                self.trouble = error

    def on_trial_complete(self, trial_id: str, result: Result | None = None, error: bool = False) -> None:
        """Ends a trial: COMPLETE, PRUNED, FAIL, or left running in the study so that it can be resumed."""
        if self.trouble is not None or trial_id not in self._numbers:
            return
        number = self._numbers.pop(trial_id)
        try:
            self._pool.dispatcher.stop(trial_id)
            if error:
                raise SweepError(f"trial {number} lost the process that watched it; `babeltune resume` goes on with it")
            with self._stop.guard():
                self._records.end(number, result or {})
            if log_of(self._records.folder).trials[number].end is None and not self._stop.stops():  # it was paused
                self._resumed.append(number)
        except Exception as caught:
            self.trouble = caught

    def leave(self) -> None:
        """Tells the trials that run to stop."""
        self._pool.dispatcher.stop_all(list(self._numbers))


def too_many_failed(ended: Collection[FrozenTrial], share: float) -> str:
    """The error text if at least `share` of the trials failed; empty otherwise."""
    failed = [trial for trial in ended if trial.state == TrialState.FAIL]
    if not failed or len(failed) < share * len(ended):
        return ""
    reasons = Counter(str(trial.user_attrs.get("reason", "unknown")).splitlines()[0] for trial in failed)
    listed = "; ".join(f"{count}× {reason}" for reason, count in reasons.most_common(3))
    some = "all" if len(failed) == len(ended) else f"{len(failed)}"
    return f"{some} of the first {len(ended)} trials failed: {listed}"
