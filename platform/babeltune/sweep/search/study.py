"""The proposals of a sweep: an Optuna study in memory. Following the sweep's ledger makes it, and it proposes the
same again."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from babeltune.errors import SpecError, SweepError
from babeltune.files import draft_folder, write_out
from babeltune.planning.portfolio import portfolio_points
from babeltune.planning.space import grid, suggest
from babeltune.schema.paths import sqlite_url
from babeltune.schema.records import Nsga2, PlainSampler, Scalar, Sweep, Tpe
from babeltune.sweep.search.few_trials import FewTrials, FewTrialsSampler
from babeltune.sweep.search.warm_start import WARM, Suggest, distributions_if_inside, distributions_of, kept_trials
from babeltune.sweep.state.log import LEDGER, Ledger, end_facts
from babeltune.sweep.state.messages import LedgerLine, TrialEnd, end_of
from babeltune.tracking.sweep_runs import sent_runs

STUDY = "sweep"  # the name of every sweep's study
REPORT = "report "
"""The user attribute that holds a report, followed by the report's index, if there are several objectives."""


def sampler_for(sweep: Sweep, number: int, trials: FewTrials | None = None) -> optuna.samplers.BaseSampler:
    """The sampler that proposes trial `number`, seeded by the sweep's seed and that number alone. It sees `trials`."""
    seed = int.from_bytes(hashlib.sha256(f"{sweep.seed}/{number}".encode()).digest()[:4], "big")
    match sweep.sampler:
        case Nsga2(population=population):
            return optuna.samplers.NSGAIISampler(population_size=population, seed=seed)
        case PlainSampler(kind="gp", startup=startup):
            gp = optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
            return FewTrialsSampler(gp, trials)
        case Tpe(startup=startup, multivariate=multivariate, group=group):
            joint = {"multivariate": multivariate, "group": group}
            with warnings.catch_warnings():  # Optuna calls both experimental; the ledger's replay would notice a change
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True, **joint)
            return FewTrialsSampler(tpe, trials)
    return optuna.samplers.RandomSampler(seed=seed)  # a grid's points are given, so that nothing is left to draw


def given_points(sweep: Sweep) -> list[dict[str, Scalar]]:
    """The points that come before the sampler's: the grid's, or the sweep's own and then its portfolio's."""
    if sweep.sampler.kind == "grid":
        return grid(sweep.parameters)
    return [*map(dict, sweep.sampler.points), *portfolio_points(sweep)]


@dataclass(frozen=True)
class _Recorded:
    """A trial whose settings are known: only those are asked for that the search still has."""

    trial: optuna.Trial
    params: Mapping[str, Scalar]

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return float(self.trial.suggest_float(name, low, high, log=log)) if self._within(name, low, high) else low

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return int(self.trial.suggest_int(name, low, high, log=log)) if self._within(name, low, high) else low

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar:
        is_recorded = name in self.params and self.params[name] in choices
        return cast("Scalar", self.trial.suggest_categorical(name, choices)) if is_recorded else choices[0]

    def _within(self, name: str, low: float, high: float) -> bool:
        value = self.params.get(name)
        return isinstance(value, int | float) and low <= value <= high


class Proposals:
    """Asks the study for parameters and tells it results, one trial number at a time. Nobody else writes to the study
    meanwhile: to read all of it for every report would take longer than to record one."""

    def __init__(
        self, sweep: Sweep, suggest: Suggest, warm: Iterable[FrozenTrial] = (), lines: Iterable[LedgerLine] = ()
    ) -> None:
        """`lines` are those of the ledger. Raises `SweepError` if they propose a trial that is not the next."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # in memory: a driver that is killed between two files would leave them at odds
        self.study = optuna.create_study(study_name=STUDY, directions=[aim.goal for aim in sweep.objectives])
        self._sweep, self._suggest = sweep, suggest
        self._shown = FewTrials()
        self._points = given_points(sweep)
        for point in self._points:
            distributions_of(dict(point), suggest)
        self._offset = 0
        for earlier in warm:
            self._add_warm(earlier)
        self.begun = 0  # how many trials of this sweep there are
        self._running: dict[int, optuna.Trial] = {}
        follow(lines, self, lambda params: self.ask(params)[0])

    def _add_warm(self, earlier: FrozenTrial) -> None:
        distributions = distributions_if_inside(earlier.params, self._suggest)
        params = {name: earlier.params[name] for name in distributions}
        facts = {"values": earlier.values, "user_attrs": {WARM: earlier.number}}
        self.study.add_trial(optuna.create_trial(params=params, distributions=distributions, **facts))
        self._offset += 1

    def trials(self, *states: TrialState) -> dict[int, FrozenTrial]:
        """This sweep's own trials by number, in these states or in any that has begun."""
        chosen = states or (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        trials = self.study.get_trials(deepcopy=False, states=chosen)
        return {t.number - self._offset: t for t in trials if WARM not in t.user_attrs}

    def ask(self, recorded: dict[str, Scalar] | None = None) -> tuple[int, dict[str, Scalar]]:
        """The next trial's number and parameters: those recorded for it, or given points first, then the sampler's."""
        is_first = self.begun < len(self._points)
        if recorded is not None:
            self.study.enqueue_trial(recorded)
        elif is_first or self._sweep.sampler.kind == "grid":
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting and not is_first:
                raise SweepError(f"the grid has {len(self._points)} points, and all are proposed; lower budget.trials")
            if not waiting:
                self.study.enqueue_trial(dict(self._points[self.begun]))
        # of recorded trials nothing is drawn, but NSGA-II notes their generation where it draws
        notes = self._sweep.sampler.kind == "nsga2" and not is_first
        draws = recorded is None or notes
        idle = optuna.samplers.RandomSampler(seed=0)
        self.study.sampler = sampler_for(self._sweep, self.begun, self._shown) if draws else idle
        trial = self.study.ask()
        if recorded is not None and notes:
            self.study.sampler.sample_relative(self.study, self.study.get_trials(deepcopy=False)[trial.number], {})
        self.begun += 1
        number = trial.number - self._offset
        self._running[number] = trial
        return number, self._suggest(trial if recorded is None else _Recorded(trial, recorded))

    def runs(self, number: int) -> bool:
        """Whether the trial began and has not ended."""
        return number in self._running

    def again(self, number: int) -> dict[str, Scalar]:
        """The parameters of a trial that runs. A setting that the search has gained since is drawn now."""
        self.study.sampler = sampler_for(self._sweep, number, self._shown)
        return self._suggest(self._running[number])

    def report(self, number: int, index: int, values: list[float]) -> None:
        """Records an intermediate result. Optuna refuses `report` with several objectives: attributes keep them."""
        trial = self._running[number]
        if len(values) == 1:
            trial.report(values[0], index)
        else:
            trial.set_user_attr(f"{REPORT}{index}", values)
        trial.set_user_attr("values", values)
        trial.set_user_attr("reports", index)

    def note(self, number: int, attributes: Mapping[str, object]) -> None:
        """Sets user attributes of a running trial."""
        trial = self._running[number]
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    def note_end(self, number: int, end: TrialEnd) -> None:
        """Sets the attributes that say how a running trial ended."""
        self.note(number, end_facts(end))

    def tell(self, number: int, state: TrialState, values: list[float] | None) -> None:
        """Ends a trial; `values` only when it is complete."""
        self.study.tell(number + self._offset, values=values if state == TrialState.COMPLETE else None, state=state)
        self._running.pop(number, None)


def follow(lines: Iterable[LedgerLine], proposals: Proposals, propose: Callable[[dict[str, Scalar]], int]) -> None:
    """Does to the study of `proposals` what the ledger's lines say; `propose` begins a trial, given what was recorded,
    and returns its number. Raises `SweepError` for lines that do not follow from one another."""
    lines = list(lines)
    params = {line["number"]: line["params"] for line in lines if line["event"] == "propose"}
    for line in lines:
        number = line["number"]
        if line["event"] == "propose":
            if proposals.runs(number):  # it gained a setting later, which is in `params`
                continue
            if (began := propose(params[number])) != number:
                raise SweepError(f"results.jsonl proposes trial {number} where trial {began} is next; it was altered")
        elif line["event"] in ("report", "end") and not proposals.runs(number):
            raise SweepError(
                f"results.jsonl has a {line['event']} of trial {number}, which does not run; it was altered"
            )
        elif line["event"] == "report":
            proposals.report(number, line["index"], line["values"] or [])
            proposals.note(number, {"checkpoint": line.get("checkpoint", "")})
        elif line["event"] == "end":
            proposals.note_end(number, end_of(line))
            proposals.tell(number, TrialState[line["state"]], line["values"])


def write_study(sweep: Sweep, folder: Path, file: Path) -> int:
    """Writes the study of the sweep in `folder` to a new SQLite file, as optuna-dashboard opens it. Returns how many
    trials it has. Raises `SpecError` if there is such a file, `SweepError` if the folder has no ledger."""
    if file.exists():
        raise SpecError(f"{file} is there already; name a new file, or remove it")
    if not (folder / LEDGER).exists():
        raise SweepError(f"{folder.name} has no trial yet; wait for its first one")
    draw = partial(suggest, sweep.parameters)
    warm = kept_trials(folder, sweep, draw) or []
    study = Proposals(sweep, draw, warm, Ledger(folder / LEDGER, mend=False).lines).study
    trials, runs = study.get_trials(deepcopy=False), sent_runs(folder)
    for trial in trials:
        if (run := runs.get(str(trial.number - len(warm)))) is not None:
            trial.set_user_attr("mlflow_run", run.id)
    with draft_folder("study") as place:
        draft = place / "study.db"
        optuna.create_study(study_name=STUDY, directions=study.directions, storage=sqlite_url(draft)).add_trials(trials)
        write_out(file, draft.read_bytes())
    return len(trials)
