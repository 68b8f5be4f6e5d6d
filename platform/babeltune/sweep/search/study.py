"""The proposals of a sweep: an Optuna study on disk, and a log of the order in which results came.

`study.db` is Optuna's storage: every trial with its parameters, state, values and attributes. `results.jsonl` has
proposals, reports, notes (the MLflow run) and ends in the order in which they happened, and the trials on which the
sweep gave up. Replaying it proposes the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from babeltune.errors import SweepError
from babeltune.files import append_line, aside, end_on_a_line, make_folders, write_whole
from babeltune.planning.portfolio import portfolio_points
from babeltune.planning.space import grid
from babeltune.schema.paths import sqlite_url
from babeltune.schema.records import Scalar, Sweep
from babeltune.sweep.search.few_trials import FewTrials, FewTrialsSampler
from babeltune.sweep.search.warm_start import WARM, Suggest, fitting, like
from babeltune.sweep.state.messages import LedgerLine, TrialEnd, end_of

LOCK_TIMEOUT_S = 60.0
"""Seconds to wait for a study in which another process writes."""
FOR_READERS = ("metrics", "facts")
"""What a line of the ledger has for `log.py`, which the search does not ask for."""
REPORT = "report "
"""The user attribute that holds a report, followed by the report's index, if there are several objectives."""


def sampler_for(sweep: Sweep, number: int, trials: FewTrials | None = None) -> optuna.samplers.BaseSampler:
    """The sampler that proposes trial `number`, seeded by the sweep's seed and that number alone. It sees `trials`."""
    seed = int.from_bytes(hashlib.sha256(f"{sweep.seed}/{number}".encode()).digest()[:4], "big")
    if sweep.sampler.kind in ("random", "grid"):  # a grid's points are given, so that nothing is left to draw
        return optuna.samplers.RandomSampler(seed=seed)
    if sweep.sampler.kind == "nsga2":
        return optuna.samplers.NSGAIISampler(population_size=sweep.sampler.population, seed=seed)
    startup = sweep.sampler.startup
    if sweep.sampler.kind == "gp":
        gp = optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
        return FewTrialsSampler(gp, trials)
    joint = {"multivariate": sweep.sampler.multivariate, "group": sweep.sampler.group}
    with warnings.catch_warnings():  # Optuna calls both experimental; the replay of the ledger would notice a change
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True, **joint)
    return FewTrialsSampler(tpe, trials)


def given_points(sweep: Sweep) -> list[dict[str, Scalar]]:
    """What is proposed before the sampler is asked: the grid's points, or the sweep's own and then its portfolio's."""
    if sweep.sampler.kind == "grid":
        return grid(sweep.parameters)
    return [*map(dict, sweep.sampler.points), *portfolio_points(sweep)]


def open_study(folder: Path, sweep: Sweep) -> optuna.Study:
    """The sweep's study in `folder`, created when it is not there."""
    make_folders(folder)
    return optuna.create_study(
        study_name="sweep",
        storage=optuna.storages.RDBStorage(
            sqlite_url(folder / "study.db"), engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT_S}}
        ),
        directions=[objective.goal for objective in sweep.objectives],
        load_if_exists=True,
    )


def end_facts(end: TrialEnd) -> dict[str, str]:
    """The facts of an end in the ledger and the study. `end_of` reads them again."""
    facts = {"kind": end.kind, "error_type": end.error_type, "reason": end.text}
    return {name: value for name, value in facts.items() if value}


class Ledger:
    """`results.jsonl`: what happened, in order. What follows a line that is none is put aside: what is added after it
    would never be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: list[LedgerLine] = []
        self._reports: dict[int, list[LedgerLine]] = {}
        self._notes: dict[int, dict[str, Scalar]] = {}
        self.given_up: set[int] = set()
        """Trials that ended before the sweep ended for its failures."""
        self.failed: set[int] = set()
        """Trials that failed since then."""
        end_on_a_line(path)
        whole = path.read_bytes() if path.exists() else b""
        sound = 0
        for line in whole.splitlines(keepends=True):
            try:
                self._remember(json.loads(line))
            except (ValueError, TypeError, KeyError):
                write_whole(aside(path), whole[sound:], durable=True)
                os.truncate(path, sound)
                break
            sound += len(line)

    def add(self, event: str, number: int, **facts: object) -> None:
        """Appends one line, on disk before it returns."""
        line = cast("LedgerLine", {"event": event, "number": number, **facts})
        self._remember(line)
        append_line(self._path, json.dumps(line).encode())

    def add_end(self, number: int, state: str, values: list[float] | None, end: TrialEnd, **progress: int) -> None:
        """Appends a trial's end in this state of Optuna's, and how far its training was."""
        self.add("end", number, state=state, values=values, **end_facts(end), **progress)

    def numbers(self, event: str) -> set[int]:
        """The trials that have an event of this kind."""
        return {line["number"] for line in self.lines if line["event"] == event}

    def reports(self, number: int) -> list[LedgerLine]:
        """The trial's reports: `index`, `values` by objective, `checkpoint`."""
        return list(self._reports.get(number, ()))

    def noted(self, number: int) -> dict[str, Scalar]:
        """The trial's attributes that listeners gave it last."""
        return self._notes.get(number, {})

    def _remember(self, line: LedgerLine) -> None:
        number = line["number"]
        if line["event"] == "report":
            self._reports.setdefault(number, []).append(line)
        elif line["event"] == "note":
            self._notes[number] = line["attributes"]
        elif line["event"] == "end" and line.get("state") == "FAIL":
            self.failed.add(number)
        elif line["event"] == "give_up":
            self.given_up |= set(line["trials"])
            self.failed -= self.given_up
        # What only readers want would stay in the driver's memory for each report of each trial.
        self.lines.append(cast("LedgerLine", {name: value for name, value in line.items() if name not in FOR_READERS}))


class Proposals:
    """Asks the study for parameters and tells it results, one trial number at a time. Nobody else writes to the study
    meanwhile: to read all of it for every report would take longer than to record one."""

    def __init__(self, study: optuna.Study, sweep: Sweep, suggest: Suggest, warm: Iterable[FrozenTrial] = ()) -> None:
        self._study, self._sweep, self._suggest = study, sweep, suggest
        self._shown = FewTrials()
        self._points = given_points(sweep)
        for point in self._points:
            fitting(dict(point), suggest)
        trials = study.get_trials(deepcopy=False)
        if all(WARM in trial.user_attrs for trial in trials):
            self._add_warm(list(warm), len(trials))
        self._offset = sum(WARM in trial.user_attrs for trial in study.get_trials(deepcopy=False))
        self.begun = len(self.trials())
        """How many trials of this sweep there are."""
        self._running: dict[int, optuna.Trial] = {}

    def _add_warm(self, warm: list[FrozenTrial], done: int) -> None:
        for earlier in warm[done:]:
            distributions = like(earlier.params, self._suggest)
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
        given = self.begun < len(self._points)
        if given or self._sweep.sampler.kind == "grid":
            waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting and not given:
                raise SweepError(f"the grid has {len(self._points)} points, and all are proposed; lower budget.trials")
            if not waiting:
                self._study.enqueue_trial(dict(self._points[self.begun]))
        self._study.sampler = sampler_for(self._sweep, self.begun, self._shown)
        trial = self._study.ask()
        self.begun += 1
        number = trial.number - self._offset
        self._running[number] = trial
        return number, self._suggest(trial)

    def again(self, number: int) -> dict[str, Scalar]:
        """The parameters of a trial that is still running in the study; any not yet drawn is drawn as it would have."""
        self._study.sampler = sampler_for(self._sweep, number, self._shown)
        return self._suggest(self._trial(number))

    def _trial(self, number: int) -> optuna.Trial:
        """A trial that is running in the study."""
        if number not in self._running:
            self._running[number] = optuna.Trial(self._study, self.trials(TrialState.RUNNING)[number]._trial_id)
        return self._running[number]

    def report(self, number: int, index: int, values: list[float]) -> None:
        """Records an intermediate result. Optuna refuses `report` with several objectives: attributes keep them."""
        trial = self._trial(number)
        if len(values) == 1:
            trial.report(values[0], index)
        else:
            trial.set_user_attr(f"{REPORT}{index}", values)
        trial.set_user_attr("values", values)
        trial.set_user_attr("reports", index)

    def note(self, number: int, attributes: Mapping[str, object]) -> None:
        """Sets user attributes of a running trial."""
        trial = self._trial(number)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    def note_end(self, number: int, end: TrialEnd) -> None:
        """Sets the attributes that say how a running trial ended."""
        self.note(number, end_facts(end))

    def tell(self, number: int, state: TrialState, values: list[float] | None) -> None:
        """Ends a trial; `values` only when it is complete."""
        self._study.tell(number + self._offset, values=values if state == TrialState.COMPLETE else None, state=state)
        self._running.pop(number, None)


def reported(trial: FrozenTrial) -> dict[int, list[float]]:
    """A trial's intermediate results, the objectives of each report by its index."""
    several = {name.removeprefix(REPORT): v for name, v in trial.user_attrs.items() if name.startswith(REPORT)}
    return {int(index): list(values) for index, values in several.items()} or {
        index: [value] for index, value in trial.intermediate_values.items()
    }


def follow(lines: Iterable[LedgerLine], proposals: Proposals, propose: Callable[[dict[str, Scalar]], int]) -> None:
    """Does to the study of `proposals` what the ledger's lines say; `propose` begins a trial, given what was recorded,
    and returns its number."""
    for line in lines:
        number = line["number"]
        if line["event"] == "propose":
            if (began := propose(line["params"])) != number:
                raise SweepError(f"results.jsonl proposes trial {number} where trial {began} is next; it was altered")
        elif line["event"] == "report":
            proposals.report(number, line["index"], line["values"] or [])
            proposals.note(number, {"checkpoint": line.get("checkpoint", "")})
        elif line["event"] == "note":
            proposals.note(number, line["attributes"])
        elif line["event"] == "end":
            proposals.note_end(number, end_of(line))
            proposals.tell(number, TrialState[line["state"]], line["values"])
