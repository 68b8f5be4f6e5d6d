"""The proposals of a sweep: an Optuna study that lasts, the order in which results came, and Tune's view of both.

study.db        Optuna's storage: every trial with its parameters, state, values and attributes
results.jsonl   proposals, reports, notes (the MLflow run) and ends in the order in which they happened; replaying it
                proposes the same
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search import Searcher

from babeltune.errors import StorageError, SweepError
from babeltune.records import Scalar, Sweep
from babeltune.search.warm_start import STUDY, WARM, Suggest, fitting, like
from babeltune.spec.space import grid
from babeltune.tracking.spool import end_on_a_line
from babeltune.workers.lanes import Lanes

OnEvent = Callable[[Literal["start", "report", "end"], int, dict[str, Any]], Mapping[str, Any] | None]
"""Told of a trial's start (with its payload), its reports, and its end: `state` (`finished`, `pruned`, `failed` or
`stopped`), `reason`, `values` of the objectives. What it returns becomes the Optuna trial's user attributes."""
LOCKED = 60.0
"""Seconds to wait for a study in which another process writes."""
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
REPORT = "report "
"""With a report's index, the user attribute that holds it where there are several objectives."""
ENOUGH = 5
"""Trials that must have ended before a sweep gives up with others to come."""
WORDS: dict[TrialState, Literal["finished", "pruned", "failed"]] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


def sampler_for(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler that proposes trial `number`, seeded by the sweep's seed and that number alone."""
    seed = int.from_bytes(hashlib.sha256(f"{sweep.seed}/{number}".encode()).digest()[:4], "big")
    if sweep.sampler.kind in ("random", "grid"):  # a grid's points are given, so that nothing is left to draw
        return optuna.samplers.RandomSampler(seed=seed)
    if sweep.sampler.kind == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=sweep.sampler.population, seed=seed)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=sweep.sampler.startup, constant_liar=True)


def open_study(folder: Path, sweep: Sweep) -> optuna.Study:
    """The sweep's study in `folder`, created when it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    return optuna.create_study(
        study_name=STUDY,
        storage=optuna.storages.RDBStorage(
            f"sqlite:///{folder / 'study.db'}", engine_kwargs={"connect_args": {"timeout": LOCKED}}
        ),
        directions=[objective.goal for objective in sweep.objectives],
        load_if_exists=True,
    )


class Ledger:
    """`results.jsonl`: what happened, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: list[dict[str, Any]] = []
        self._reports: dict[int, list[dict[str, Any]]] = {}
        self._notes: dict[int, dict[str, Any]] = {}
        end_on_a_line(path)
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self._remember(json.loads(line))
                except ValueError:
                    break

    def add(self, event: str, number: int, **facts: Any) -> None:
        """Appends one line, on disk before it returns."""
        line = {"event": event, "number": number, **facts}
        self._remember(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def reports(self, number: int) -> list[dict[str, Any]]:
        """The trial's reports: `index`, `values` by objective, `checkpoint`."""
        return list(self._reports.get(number, ()))

    def noted(self, number: int) -> dict[str, Any]:
        """The trial's attributes that listeners gave it last."""
        return self._notes.get(number, {})

    def _remember(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        if line["event"] == "report":
            self._reports.setdefault(line["number"], []).append(line)
        elif line["event"] == "note":
            self._notes[line["number"]] = line["attributes"]


class Proposals:
    """Asks the study for parameters and tells it results, one trial number at a time."""

    def __init__(self, study: optuna.Study, sweep: Sweep, suggest: Suggest, warm: Iterable[FrozenTrial] = ()) -> None:
        self._study, self._sweep, self._suggest = study, sweep, suggest
        self._points = grid(sweep.parameters) if sweep.sampler.kind == "grid" else sweep.sampler.points
        for point in self._points:
            fitting(dict(point), suggest)
        trials = study.get_trials(deepcopy=False)
        if all(WARM in trial.user_attrs for trial in trials):
            self._add_warm(list(warm), len(trials))
        self._offset = sum(WARM in trial.user_attrs for trial in study.get_trials(deepcopy=False))

    def _add_warm(self, warm: list[FrozenTrial], done: int) -> None:
        for earlier in warm[done:]:
            distributions = like(earlier, self._suggest)
            params = {name: earlier.params[name] for name in distributions}
            attrs = {WARM: earlier.number}
            self._study.add_trial(
                optuna.create_trial(params=params, distributions=distributions, values=earlier.values, user_attrs=attrs)
            )

    def trials(self, *states: TrialState) -> dict[int, FrozenTrial]:
        """This sweep's own trials by number, in these states or in any that has begun."""
        wanted = states or (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        found = self._study.get_trials(deepcopy=False, states=wanted)
        return {t.number - self._offset: t for t in found if WARM not in t.user_attrs}

    def ask(self) -> tuple[int, dict[str, Scalar]]:
        """The next trial's number and parameters: given points (or the grid's) first, then the sampler."""
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        number = len(self.trials())
        if not waiting and number < len(self._points):
            self._study.enqueue_trial(dict(self._points[number]))
        elif not waiting and self._sweep.sampler.kind == "grid":
            raise SweepError(f"the grid has {len(self._points)} points, and all are proposed; lower budget.trials")
        self._study.sampler = sampler_for(self._sweep, number)
        trial = self._study.ask()
        return trial.number - self._offset, self._suggest(trial)

    def again(self, number: int) -> dict[str, Scalar]:
        """The parameters of a trial that is still running in the study; any not yet drawn is drawn as it would have."""
        self._study.sampler = sampler_for(self._sweep, number)
        return self._suggest(self._running(number))

    def _running(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self.trials(TrialState.RUNNING)[number]._trial_id)

    def report(self, number: int, index: int, values: list[float]) -> None:
        """Records an intermediate result. Optuna refuses `report` with several objectives: attributes keep them."""
        trial = self._running(number)
        if len(values) == 1:
            trial.report(values[0], index)
        else:
            trial.set_user_attr(f"{REPORT}{index}", values)
        trial.set_user_attr("values", values)
        trial.set_user_attr("reports", index)

    def note(self, number: int, attributes: Mapping[str, Any]) -> None:
        """Sets user attributes of a running trial."""
        trial = self._running(number)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    def tell(self, number: int, state: TrialState, values: list[float] | None) -> None:
        """Ends a trial; `values` only when it is complete."""
        self._study.tell(number + self._offset, values=values if state == TrialState.COMPLETE else None, state=state)


def reported(trial: FrozenTrial) -> dict[int, list[float]]:
    """A trial's intermediate results, the objectives of each report by its index."""
    several = {name.removeprefix(REPORT): v for name, v in trial.user_attrs.items() if name.startswith(REPORT)}
    return {int(index): list(values) for index, values in several.items()} or {
        index: [value] for index, value in trial.intermediate_values.items()
    }


def replay(lines: Iterable[dict[str, Any]], sweep: Sweep, suggest: Suggest, warm: Iterable[FrozenTrial] = ()) -> Any:
    """The parameters by trial number that the recorded order of results leads to, in a study in memory."""
    study = optuna.create_study(directions=[objective.goal for objective in sweep.objectives])
    proposals = Proposals(study, sweep, suggest, warm)
    found: dict[int, dict[str, Scalar]] = {}

    def drawn_again(_: dict[str, Scalar]) -> int:
        number, params = proposals.ask()
        found[number] = params
        return number

    follow(lines, proposals, drawn_again)
    return found


def follow(lines: Iterable[dict[str, Any]], proposals: Proposals, propose: Callable[[dict[str, Scalar]], int]) -> None:
    """Does to the study of `proposals` what the ledger's lines say; `propose` begins a trial, given what was recorded,
    and returns its number."""
    for line in lines:
        number = line["number"]
        if line["event"] == "propose":
            if (began := propose(line["params"])) != number:
                raise SweepError(f"results.jsonl proposes trial {number} where trial {began} is next; it was altered")
        elif line["event"] == "report":
            proposals.report(number, line["index"], line["values"])
            proposals.note(number, {"checkpoint": line.get("checkpoint", "")})
        elif line["event"] == "note":
            proposals.note(number, line["attributes"])
        elif line["event"] == "end":
            if line.get("reason"):
                proposals.note(number, {"reason": line["reason"]})
            proposals.tell(number, TrialState[line["state"]], line["values"])


class OptunaSearcher(Searcher):  # type: ignore[misc]
    """Tune's searcher: proposes while a lane is free, and keeps study, ledger and listeners true to what happened."""

    def __init__(
        self,
        *,
        sweep: Sweep,
        proposals: Proposals,
        ledger: Ledger,
        lanes: Lanes,
        make_payload: Callable[[int, dict[str, Scalar]], dict[str, Any]],
        on_event: OnEvent,
        trials: int,
        stop: Callable[[], bool],
        no_more: Callable[[], bool],
        judged: Collection[int] = (),
    ) -> None:
        """`judged` are the running trials that the scheduler stopped at their last report, which nobody recorded."""
        super().__init__()
        self._sweep, self._proposals, self._ledger, self._lanes = sweep, proposals, ledger, lanes
        self._make_payload, self._on_event = make_payload, on_event
        self._budget, self._stop, self._no_more = trials, stop, no_more
        self._judged = sorted(judged)
        self._resumed = sorted(proposals.trials(TrialState.RUNNING).keys() - set(judged))
        self._numbers: dict[str, int] = {}
        self.trouble: BaseException | None = None
        self._catch_up()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its searcher now and then, and babeltune never reads a pickle."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keeps nothing: the study is the truth."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Keeps nothing: the study is the truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Refuses: a sweep resumes from its study."""
        raise SweepError("a sweep resumes from its study, not from Tune's files; use `babeltune resume`")

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **_: Any) -> bool:
        """Agrees: the sweep says what is searched."""
        return True

    def _catch_up(self) -> None:
        """Adds to the ledger what the study learned just before a crash."""
        proposed = {line["number"] for line in self._ledger.lines if line["event"] == "propose"}
        ended = {line["number"] for line in self._ledger.lines if line["event"] == "end"}
        for number, trial in sorted(self._proposals.trials().items()):
            if number not in proposed:
                self._ledger.add("propose", number, params=trial.params)
            told = {line["index"] for line in self._ledger.reports(number)}
            for index, objectives in sorted(reported(trial).items()):
                if index not in told:
                    self._ledger.add("report", number, index=index, values=objectives)
            if number not in ended and trial.state.is_finished():
                values = trial.values if trial.state == TrialState.COMPLETE else None
                self._ledger.add("end", number, state=trial.state.name, values=values)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration for Tune, None while no lane is free, FINISHED when nothing is left."""
        if self.trouble is not None or self._stop():
            return str(Searcher.FINISHED)
        try:
            while self._judged:
                number = self._judged.pop(0)
                self._tell("start", number, {})
                self._prune(number)
            if self._no_more() or (not self._resumed and len(self._proposals.trials()) >= self._budget):
                return str(Searcher.FINISHED)
            # A lane is free before Tune has passed its trial's end on, and proposals shall see every end.
            free = len(self._numbers) < self._lanes.count and self._lanes.free()
            return self._propose(trial_id) if free else None
        except Exception as error:
            self.trouble = error
            return str(Searcher.FINISHED)

    def _propose(self, trial_id: str) -> dict[str, Any]:
        if self._resumed:
            number = self._resumed.pop(0)
            params = self._proposals.again(number)
        else:
            number, params = self._proposals.ask()
            self._ledger.add("propose", number, params=params)
        self._numbers[trial_id] = number
        payload = self._make_payload(number, params)
        self._lanes.offer(trial_id, payload)
        self._tell("start", number, payload)
        return {"trial": trial_id, "number": number}

    def _tell(self, event: Literal["start", "report", "end"], number: int, info: dict[str, Any]) -> None:
        attributes = self._on_event(event, number, info)
        if attributes and event != "end" and attributes != self._ledger.noted(number):
            self._proposals.note(number, attributes)
            self._ledger.add("note", number, attributes=attributes)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Records a report; a listener's exception stops the sweep and is raised by `search`."""
        if self.trouble is None:
            try:
                self._record(self._numbers[trial_id], result)
            except Exception as error:
                self.trouble = error

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ends a trial: COMPLETE, PRUNED, FAIL, or left running in the study so that it can be resumed."""
        if self.trouble is not None or trial_id not in self._numbers:
            return
        number = self._numbers.pop(trial_id)
        try:
            self._lanes.stop(trial_id)
            if error:
                raise SweepError(f"trial {number} lost the process that watched it; `babeltune resume` goes on with it")
            self._end(number, result or {})
        except Exception as caught:
            self.trouble = caught

    def leave(self) -> None:
        """Tells the trials that run to stop."""
        for trial_id in self._numbers:
            self._lanes.stop(trial_id)

    def _record(self, number: int, result: dict[str, Any]) -> None:
        if "report" not in result:
            return
        report = json.loads(result["report"])
        known = self._ledger.reports(number)
        if known and report["index"] <= known[-1]["index"]:
            return
        values = [report["metrics"][objective.metric] for objective in self._sweep.objectives]
        self._proposals.report(number, report["index"], values)
        self._proposals.note(number, {"checkpoint": report.get("checkpoint", "")})
        self._ledger.add(
            "report", number, index=report["index"], values=values, checkpoint=report.get("checkpoint", "")
        )
        self._tell("report", number, report)

    def _end(self, number: int, result: dict[str, Any]) -> None:
        self._record(number, result)
        reports = self._ledger.reports(number)
        values = reports[-1]["values"] if reports else None
        reason = result.get("failed")
        if reason is not None and reason.startswith(StorageError.begins):
            raise StorageError(reason)  # no fact about the trial, which stays as it is and is resumed
        if reason is not None:
            state = TrialState.FAIL
        elif reason := result.get("pruned"):
            state = TrialState.PRUNED
        elif result.get("last"):
            state = TrialState.COMPLETE
        elif self._stop() or "report" not in result:
            self._tell("end", number, {"state": "stopped", "reason": "", "values": values})
            return
        else:
            self._prune(number)
            return
        self._finish(number, state, reason)

    def _prune(self, number: int) -> None:
        """Ends a trial as the scheduler said at its last report."""
        made = len(self._ledger.reports(number))
        self._finish(number, TrialState.PRUNED, f"stopped by {self._sweep.scheduler.kind} at report {made}")

    def _finish(self, number: int, state: TrialState, reason: str | None) -> None:
        reports = self._ledger.reports(number)
        values = reports[-1]["values"] if reports else None
        if reason:
            self._proposals.note(number, {"reason": reason})
        told = values if state == TrialState.COMPLETE else None
        self._proposals.tell(number, state, told)
        self._ledger.add("end", number, state=state.name, values=told, **({"reason": reason} if reason else {}))
        self._tell("end", number, {"state": WORDS[state], "reason": reason or "", "values": values})
        ended = self._proposals.trials(*ENDED).values()
        if len(ended) >= max(ENOUGH, self._lanes.count):
            give_up_on(ended, self._sweep.budget.failures)


def give_up_on(ended: Collection[FrozenTrial], share: float) -> None:
    """Raises `SweepError` with the three commonest reasons where this share of the trials failed, or more."""
    failed = [trial for trial in ended if trial.state == TrialState.FAIL]
    if not failed or len(failed) < share * len(ended):
        return
    reasons = Counter(str(trial.user_attrs.get("reason", "unknown")).splitlines()[0] for trial in failed)
    listed = "; ".join(f"{count}× {reason}" for reason, count in reasons.most_common(3))
    some = "all" if len(failed) == len(ended) else f"{len(failed)}"
    raise SweepError(f"{some} of the first {len(ended)} trials failed: {listed}; change the sweep file")
