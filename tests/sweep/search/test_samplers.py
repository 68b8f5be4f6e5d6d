"""Grid search and NSGA-II: what is proposed, in which order, and that a sweep that stopped goes on with the same."""

from functools import partial
from random import Random

import numpy as np
import optuna
import pytest
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import TrialState

from babeltune.errors import SweepError
from babeltune.planning import space
from babeltune.schema.records import Budget, Nsga2, Objective, Parameter, PlainSampler, Tpe
from babeltune.sweep.search import few_trials
from babeltune.sweep.search.study import Proposals, sampler_for
from babeltune.sweep.state.log import LEDGER, Ledger
from babeltune.sweep.state.messages import TrialEnd
from replays import replay
from toy_methods import toy_sweep

PARAMETERS = {
    "kind": Parameter(choice=("a", "b")),
    "layers": Parameter(int=(1, 2)),
    "tau": Parameter(choice=(0.05, 0.1), when={"kind": "b"}),
    "fixed": Parameter(const=3),
}


def a_sweep(**changes):
    return toy_sweep(**{"parameters": PARAMETERS, "sampler": PlainSampler(kind="grid"), **changes})


def suggest_of(sweep):
    return lambda trial: space.suggest(sweep.parameters, trial)


def proposed(folder, sweep, count, values=lambda params: [1.0]):
    """Asks and tells one by one: by a new searcher each time, as if the sweep was resumed before every trial."""
    folder.mkdir(exist_ok=True)
    proposals, ledger = [], Ledger(folder / LEDGER)
    for _ in range(count):
        number, params = Proposals(sweep, suggest_of(sweep), lines=ledger.lines).ask()
        assert number == len(proposals)
        proposals.append(params)
        ledger.add("propose", number, params=params)
        ledger.add_end(number, "COMPLETE", values(params), TrialEnd("finished"))
    return proposals


def test_a_grid_is_every_combination_whose_conditions_hold():
    points = space.grid(PARAMETERS)
    assert points == [
        {"fixed": 3, "kind": "a", "layers": 1},
        {"fixed": 3, "kind": "a", "layers": 2},
        {"fixed": 3, "kind": "b", "layers": 1, "tau": 0.05},
        {"fixed": 3, "kind": "b", "layers": 1, "tau": 0.1},
        {"fixed": 3, "kind": "b", "layers": 2, "tau": 0.05},
        {"fixed": 3, "kind": "b", "layers": 2, "tau": 0.1},
    ]


def test_a_grid_is_proposed_in_order_once_and_goes_on_after_a_stop(tmp_path):
    sweep = a_sweep()
    assert proposed(tmp_path, sweep, 6) == space.grid(PARAMETERS)
    with pytest.raises(SweepError, match="the grid has 6 points, and all are proposed"):
        Proposals(sweep, suggest_of(sweep), lines=Ledger(tmp_path / LEDGER).lines).ask()


@pytest.mark.parametrize(("budget", "trials"), [(4, 4), (6, 6), (100, 6)])
def test_a_budget_takes_the_first_points_and_no_more_than_there_are(budget, trials):
    assert space.within_grid(a_sweep(budget=Budget(trials=budget))).budget.trials == trials
    assert space.within_grid(a_sweep(budget=Budget(trials=budget), sampler=Tpe())).budget.trials == budget


def two_goals(**changes):
    objectives = (Objective(metric="dev/a"), Objective(metric="dev/b"))
    parameters = {"x": Parameter(float=(0, 2)), "log": Parameter(log_float=(1e-3, 1.0))}
    return a_sweep(parameters=parameters, objectives=objectives, sampler=Nsga2(population=5), **changes)


def goals(params):
    """Both are best at log = 1; between x = 0 and x = 1 they trade."""
    return [-(params["x"] ** 2) + params["log"], -((params["x"] - 1) ** 2) + params["log"]]


def test_nsga2_proposes_the_same_after_a_stop_and_from_the_recorded_order(tmp_path):
    sweep = two_goals()
    settings = proposed(tmp_path / "a", sweep, 12, goals)
    proposals = Proposals(sweep, suggest_of(sweep))
    again = []
    for _ in range(12):
        number, params = proposals.ask()
        again.append(params)
        proposals.tell(number, TrialState.COMPLETE, goals(params))
    assert settings == again
    lines = [
        line
        for number, params in enumerate(settings)
        for line in (
            {"event": "propose", "number": number, "params": params},
            {"event": "end", "number": number, "state": "COMPLETE", "values": goals(params)},
        )
    ]
    assert replay(lines, sweep, suggest_of(sweep)) == dict(enumerate(settings))
    assert proposed(tmp_path / "c", two_goals(seed=1), 1, goals) != settings[:1]


def test_nsga2_comes_nearer_to_the_front_than_chance():
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def volume(sweep):
        """Of the goals above -1 that the last trials dominate, by a grid."""
        proposals = Proposals(sweep, suggest_of(sweep))
        points = []
        for _ in range(60):
            number, params = proposals.ask()
            points.append(goals(params))
            proposals.tell(number, TrialState.COMPLETE, points[-1])
        points = points[-20:]
        steps = [i / 20 for i in range(-20, 21)]
        return sum(any(a >= x and b >= y for a, b in points) for x in steps for y in steps)

    sweep = two_goals()
    random = a_sweep(parameters=sweep.parameters, objectives=sweep.objectives, sampler=PlainSampler(kind="random"))
    assert volume(sweep) > volume(random)


CONDITIONAL = {
    "kind": Parameter(choice=("a", "b")),
    "x": Parameter(float=(0, 1)),
    "tau": Parameter(log_float=(0.01, 1), when={"kind": "b"}),
}


@pytest.mark.parametrize(
    "sampler",
    [Tpe(startup=3, multivariate=True, group=True), PlainSampler(kind="gp", startup=3)],
    ids=["multivariate", "gp"],
)
def test_a_joint_model_proposes_the_same_after_every_stop(tmp_path, sampler):
    sweep = a_sweep(parameters=CONDITIONAL, sampler=sampler)
    score = lambda params: [params["x"] - params.get("tau", 0.5)]  # noqa: E731
    proposals = proposed(tmp_path / "a", sweep, 9, score)
    assert all(("tau" in params) == (params["kind"] == "b") for params in proposals)
    assert {params["kind"] for params in proposals} == {"a", "b"}
    lines = [
        line
        for number, params in enumerate(proposals)
        for line in (
            {"event": "propose", "number": number, "params": params},
            {"event": "end", "number": number, "state": "COMPLETE", "values": score(params)},
        )
    ]
    assert replay(lines, sweep, suggest_of(sweep)) == dict(enumerate(proposals))


UNIFORM = optuna.distributions.FloatDistribution(0, 1)


def a_study(values, directions=("maximize",)):
    """A study of finished trials with these values, and a running one."""
    study = optuna.create_study(directions=directions)
    study.add_trials(
        optuna.create_trial(params={"x": index / len(values)}, distributions={"x": UNIFORM}, values=value)
        for index, value in enumerate(values)
    )
    study.ask()
    return study


class Spy(optuna.samplers.RandomSampler):
    """Notes the trials that it is shown."""

    def sample_independent(self, study, trial, param_name, param_distribution):
        self.numbers = [trial.number for trial in study.get_trials(states=(TrialState.COMPLETE, TrialState.RUNNING))]
        return super().sample_independent(study, trial, param_name, param_distribution)


@pytest.mark.parametrize(
    ("directions", "sign", "best"),
    [(("maximize",), 1, {0, 1}), (("minimize",), -1, {0, 1}), (("maximize", "minimize"), 1, {0, 1, 40, 41})],
)
def test_a_sampler_sees_the_last_trials_and_the_best_of_each_objective(monkeypatch, directions, sign, best):
    monkeypatch.setattr(few_trials, "RECENT", 10)
    monkeypatch.setattr(few_trials, "BEST", 2)
    values = [[sign * float(100 - number)] * len(directions) for number in range(40)]
    study, spy = a_study(values + [[sign * 50.0] * len(directions)] * 20, directions), Spy()
    study.sampler = few_trials.FewTrialsSampler(spy)
    study.ask().suggest_float("x", 0, 1)
    least = best | set(range(52, 62))
    assert set(spy.numbers) >= least
    assert len(spy.numbers) == len(least) + (2 if len(directions) > 1 else 0), "two more are good in both objectives"


def test_a_sampler_sees_an_old_trial_that_is_good_in_no_single_objective(monkeypatch):
    """It dominates all others that are not among the best of an objective."""
    monkeypatch.setattr(few_trials, "RECENT", 10)
    monkeypatch.setattr(few_trials, "BEST", 5)
    ends = [[1.0 - place / 100, place / 100] for place in range(5)]
    values = [[0.8, 0.8], *ends, *([second, first] for first, second in ends), *([[0.5, 0.5]] * 40)]
    study, spy = a_study(values, ("maximize", "maximize")), Spy()
    study.sampler = few_trials.FewTrialsSampler(spy)
    study.ask().suggest_float("x", 0, 1)
    assert 0 in spy.numbers
    assert len(spy.numbers) < len(values) - 20


@pytest.mark.parametrize(("objectives", "all_on_front"), [(1, False), (2, False), (2, True), (3, False), (3, True)])
def test_tpe_calls_the_same_trials_good_when_it_is_shown_few(objectives, all_on_front):
    values = np.random.default_rng(objectives).normal(size=(2500, objectives))
    if all_on_front:
        values = np.abs(values) / np.linalg.norm(values, axis=1, keepdims=True)
    study = a_study(values.tolist(), ("maximize",) * objectives)
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    shown = few_trials.FewTrials().of(trials, study)
    assert len(shown) < 1600
    good, of_few = ({trial.number for trial in _split_trials(study, each, 25)[0]} for each in (trials, shown))
    assert of_few == good


def test_a_sampler_sees_each_running_trial_however_old(monkeypatch):
    monkeypatch.setattr(few_trials, "RECENT", 10)
    monkeypatch.setattr(few_trials, "BEST", 2)
    study, spy = a_study([[0.0]] * 3), Spy()
    study.add_trials([optuna.create_trial(values=[1.0])] * 40)
    study.sampler = few_trials.FewTrialsSampler(spy)
    study.ask().suggest_float("x", 0, 1)
    assert 3 in spy.numbers, "it began before the last ten"


@pytest.mark.parametrize("directions", [["minimize"], ["maximize"], ["maximize", "minimize"]])
def test_who_remembers_what_was_shown_shows_what_a_look_at_all_trials_finds(directions, monkeypatch):
    monkeypatch.setattr(few_trials, "RECENT", 10)
    monkeypatch.setattr(few_trials, "BEST", 4)
    study, remembered, random = optuna.create_study(directions=directions), few_trials.FewTrials(), Random(5)
    running = []
    for _ in range(120):
        running.append(study.ask())
        while len(running) > 3 or (running and random.random() < 0.3):
            trial = running.pop(random.randrange(len(running)))
            if random.random() < 0.2:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, [random.choice([0.1, 0.2, random.random()]) for _ in directions])
        trials = study.get_trials(deepcopy=False)
        assert remembered.of(trials, study) == few_trials.FewTrials().of(trials, study)


@pytest.mark.parametrize(
    "sampler", [partial(optuna.samplers.TPESampler, constant_liar=True), optuna.samplers.GPSampler], ids=["tpe", "gp"]
)
def test_a_study_of_fewer_trials_is_shown_whole_and_proposals_are_the_same(sampler):
    values = [[float(number % 7)] for number in range(60)]
    proposed = []
    for wrap in (lambda sampler: sampler, few_trials.FewTrialsSampler):
        study = a_study(values)
        study.sampler = wrap(sampler(seed=5))
        proposed.append(study.ask().suggest_float("x", 0, 1))
    assert proposed[0] == proposed[1]


@pytest.mark.parametrize("sampler", [Tpe(startup=3), PlainSampler(kind="gp", startup=3)])
def test_a_large_study_proposes_what_one_of_its_shown_trials_would(monkeypatch, sampler):
    monkeypatch.setattr(few_trials, "RECENT", 30)
    monkeypatch.setattr(few_trials, "BEST", 5)
    large = a_study([[-abs(number / 400 - 0.3)] for number in range(400)])
    small = optuna.create_study(direction="maximize")
    small.add_trials(few_trials.FewTrials().of(large.get_trials(), large))
    proposed = []
    for study in (large, small):
        study.sampler = sampler_for(a_sweep(sampler=sampler), 400)
        proposed.append(study.ask().suggest_float("x", 0, 1))
    assert len(small.trials) < 40
    assert proposed[0] == proposed[1]


def test_tpe_finds_as_good_a_value_in_a_large_study_when_it_is_shown_few_trials(monkeypatch):
    monkeypatch.setattr(few_trials, "RECENT", 100)
    values = [[-abs(number / 400 - 0.3)] for number in range(400)]
    best = []
    for seed in range(20):
        study = a_study(values)
        study.sampler = few_trials.FewTrialsSampler(optuna.samplers.TPESampler(seed=seed, constant_liar=True))
        best.append(study.ask().suggest_float("x", 0, 1))
    assert max(abs(x - 0.3) for x in best) < 0.1
