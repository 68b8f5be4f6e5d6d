import json
import math
import re
import threading
from types import SimpleNamespace

import optuna
import pytest
import ray
from optuna.trial import TrialState
from ray import tune
from ray._private.state import actors
from ray.tune.registry import get_trainable_cls

from babeltune.errors import ClusterError, MethodError, SpecError, SweepError
from babeltune.schema.records import (
    Budget,
    ExpectedRegret,
    Halving,
    Objective,
    Parameter,
    PlainSampler,
    Report,
    Tpe,
    Training,
)
from babeltune.signals import StopSignal
from babeltune.sweep.search.study import Proposals, sampler_for
from babeltune.sweep.search.tune_run import prime, register_methods, scheduler_for, search
from babeltune.sweep.search.tune_searcher import Callbacks, OptunaSearcher
from babeltune.sweep.search.warm_start import warm_trials
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, Ledger, append_event
from babeltune.sweep.state.messages import TrialEnd, TrialOutcome
from babeltune.sweep.workers.tasks import ray_refusals
from made_sweeps import log_trial
from replays import replay, trials_in
from toy_methods import toy_sweep
from toy_trials import groups_held, pool_of, toy, wait_until_free


@pytest.fixture(scope="module")
def pool(ray_cluster, tmp_path_factory):
    with pool_of(count=2, storage=tmp_path_factory.mktemp("groups")) as opened:
        yield opened


class OneAtATime:
    """The pool as one worker group, and its dispatcher: none is free while any is busy."""

    def __init__(self, pool, at=None):
        self._pool, self._at = pool, at or pool
        if at is None:
            self.dispatcher = OneAtATime(pool, pool.dispatcher)

    def __getattr__(self, name):
        return getattr(self._at, name)

    def free(self):
        return int(self._pool.dispatcher.free() == self._pool.count)


@pytest.fixture
def one_group(pool):
    wait_until_free(pool, pool.count)
    return OneAtATime(pool)


def a_sweep(**changes):
    defaults = {
        "training": Training(reports=3),
        "scheduler": Halving(kind="none"),
        "sampler": PlainSampler(kind="random"),
    }
    return toy_sweep(**{**defaults, **changes})


def suggest(trial):
    params = {"x": trial.suggest_float("x", 0, 1), "kind": trial.suggest_categorical("kind", ["a", "b"])}
    if params["kind"] == "b":
        params["y"] = trial.suggest_float("y", 1e-3, 1, log=True)
    return params


class Events:
    """Remembers what a search said."""

    def __init__(self):
        self.all = []

    def __call__(self, event, number, info):
        self.all.append((event, number, info))

    def of(self, event):
        return [(number, info) for kind, number, info in self.all if kind == event]


def run(folder, pool, sweep, trials, events=None, assignment=None, stop=lambda: False):
    def make_assignment(number, params):
        settings = assignment(number, params) if assignment else {}
        return toy(folder / f"t{number:04d}", seed=number, value=params["x"], **settings)

    stop = stop if isinstance(stop, StopSignal) else StopSignal(stop)
    options = {"suggest": suggest, "callbacks": Callbacks(make_assignment, events or Events())}
    return search(sweep, pool=pool, folder=folder, **options, trials=trials, stop=stop)


def states(folder, sweep):
    return [trial.state for trial in trials_in(folder, sweep, suggest)]


def test_a_sweep_runs_its_trials_and_keeps_the_value_at_the_largest_budget(pool, tmp_path):
    events = Events()
    assert run(tmp_path, pool, a_sweep(), 6, events)
    trials = trials_in(tmp_path, a_sweep(), suggest)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert all(trial.value == pytest.approx(trial.params["x"]) for trial in trials)
    assert all(trial.user_attrs["checkpoint"] == "000003" for trial in trials)
    assert sorted(number for number, _ in events.of("start")) == list(range(6))
    assert [info.index for number, info in events.of("report") if number == 2] == [1, 2, 3]
    assert {info.state for _, info in events.of("end")} == {"finished"}
    assert not (tmp_path / "tune").exists()
    lines = Ledger(tmp_path / "results.jsonl").lines
    assert replay(lines, a_sweep(), suggest) == {n["number"]: n["params"] for n in lines if n["event"] == "propose"}


@pytest.mark.trap(38)
def test_asha_stops_the_worse_trials_and_optuna_calls_them_pruned(one_group, tmp_path):
    points = tuple({"x": x, "kind": "a"} for x in (0.9, 0.8, 0.7, 0.1, 0.95, 0.05))
    sweep = a_sweep(scheduler=Halving(grace=1, reduction=3), sampler=PlainSampler(kind="random", points=points))
    events = Events()
    assert run(tmp_path, one_group, sweep, 6, events)
    trials = trials_in(tmp_path, sweep, suggest)
    state_names = [trial.state.name for trial in trials]
    assert [trial.params["x"] for trial in trials] == [point["x"] for point in points]
    assert state_names[0] == state_names[4] == "COMPLETE"
    assert state_names[3] == state_names[5] == "PRUNED"
    assert trials[3].intermediate_values == {1: pytest.approx(0.1 / 3)}
    assert "asha" in trials[3].user_attrs["reason"]
    assert json.loads((tmp_path / "t0003" / "checkpoint.json").read_text())["index"] == 1


def test_a_trial_that_is_expected_to_gain_nothing_is_stopped(one_group, tmp_path):
    points = tuple({"x": x, "kind": "a"} for x in (0.5, 0.6, 0.7, 0.1, 0.9))
    sweep = a_sweep(sampler=PlainSampler(kind="random", points=points), scheduler=ExpectedRegret())
    assert run(tmp_path, one_group, sweep, 5)
    trials = trials_in(tmp_path, sweep, suggest)
    pruned = [trial.number for trial in trials if trial.state == TrialState.PRUNED]
    assert pruned == [3]
    assert trials[3].user_attrs["reason"] == "stopped by expected_regret at report 1"
    assert trials[4].value == pytest.approx(0.9)


def test_a_verdict_on_the_report_of_a_stop_is_carried_out_on_resume(one_group, tmp_path):
    points = tuple({"x": x, "kind": "a"} for x in (0.9, 0.8, 0.7, 0.1, 0.95, 0.05))
    sweep = a_sweep(scheduler=Halving(grace=1, reduction=3), sampler=PlainSampler(kind="random", points=points))
    run(tmp_path / "whole", one_group, sweep, 6)
    stop, events = threading.Event(), Events()

    def listen(event, number, info):
        if (event, number) == ("report", 3):
            stop.set()

    assert not run(tmp_path / "cut", one_group, sweep, 6, listen, stop=stop.is_set)
    assert states(tmp_path / "cut", sweep)[3] == TrialState.RUNNING
    assert run(tmp_path / "cut", one_group, sweep, 6, events)
    assert states(tmp_path / "cut", sweep) == states(tmp_path / "whole", sweep)
    assert events.all[0][:2] == ("start", 3)
    end = TrialEnd("pruned", text="stopped by asha at report 1")
    assert events.all[1] == ("end", 3, TrialOutcome("pruned", end, [0.1 / 3]))
    starts = (tmp_path / "cut" / "t0003" / "starts.jsonl").read_text().splitlines()
    assert len(starts) == 1, "it is not trained again"


@pytest.mark.trap(32)
def test_a_trial_without_a_finite_objective_fails_and_a_collapsed_one_is_pruned(one_group, tmp_path):
    orders = {
        1: {"nan": 2},
        2: {"missing": True},
        3: {"orders": {"kind": "refuse", "at": 1}},
        4: {"orders": {"kind": "raise", "rank": 0, "at": 2}},
        5: {"collapse": 2},
    }
    run(tmp_path, one_group, a_sweep(), 7, assignment=lambda number, _: orders.get(number, {}))
    trials = trials_in(tmp_path, a_sweep(), suggest)
    assert [trial.state.name for trial in trials] == ["COMPLETE", *["FAIL"] * 4, "PRUNED", "COMPLETE"]
    reasons = [trial.user_attrs.get("reason", "") for trial in trials]
    assert reasons[1] == "objective dev/score is nan at report 2"
    assert reasons[2] == "objective dev/score is None at report 1"
    assert reasons[3].startswith("the loss is nan at step 7")
    assert reasons[4].startswith("ValueError: a bug on one rank")
    assert reasons[5] == "collapsed: all vectors are alike"


def test_tune_forgets_the_figures_of_trials_that_have_ended(one_group, tmp_path, monkeypatch):
    ended, tune_run = [], tune.run
    monkeypatch.setattr(
        tune, "run", lambda *arguments, **settings: ended.extend(tune_run(*arguments, **settings).trials)
    )
    run(tmp_path, one_group, a_sweep(), 3, assignment=lambda number, _: {"nan": 2} if number == 1 else {})
    assert len(ended) == 3
    assert all(trial.last_result for trial in ended)
    assert [(trial.metric_analysis, trial.metric_n_steps) for trial in ended] == [({}, {})] * 3


def test_a_sweep_whose_trials_all_fail_stops_and_names_the_reasons(one_group, tmp_path):
    with pytest.raises(SweepError, match=r"all of the first \d trials failed: \d× the loss is nan at step 7"):
        run(
            tmp_path,
            one_group,
            a_sweep(),
            50,
            assignment=lambda number, _: {"orders": {"kind": "refuse", "at": 1}} if number else {"missing": True},
        )
    assert len(states(tmp_path, a_sweep())) < 10


def test_a_sweep_that_gave_up_says_so_although_tune_cannot_keep_its_own_state(one_group, tmp_path, monkeypatch):
    troubles = []

    def refuse(self, *_, **__):
        troubles.append(self.trouble)
        if self.trouble is not None:
            raise FileNotFoundError("search_gen_state.json")

    monkeypatch.setattr(OptunaSearcher, "save_to_dir", refuse)
    with pytest.raises(SweepError, match="all of the first 5 trials failed"):
        run(tmp_path, one_group, a_sweep(), 12, assignment=lambda *_: {"orders": {"kind": "refuse", "at": 1}})
    assert troubles[-1] is not None, "Tune has met the error"


def test_a_sweep_that_gave_up_counts_anew_once_what_broke_is_mended(one_group, tmp_path):
    broken = {"orders": {"kind": "refuse", "at": 1}}
    words = r"all of the first 5 trials failed: .*mend what broke, then `babeltune resume`"
    with pytest.raises(SweepError, match=words):
        run(tmp_path, one_group, a_sweep(), 12, assignment=lambda *_: broken)
    assert run(tmp_path, one_group, a_sweep(budget=Budget(failures=0.1)), 12)
    names = [state.name for state in states(tmp_path, a_sweep())]
    assert names == ["FAIL"] * 5 + ["COMPLETE"] * 7


def test_failures_before_a_stop_are_counted_when_the_sweep_goes_on(one_group, tmp_path):
    sweep, events = a_sweep(budget=Budget(failures=0.5)), Events()

    def broken(number, _):
        return {"orders": {"kind": "refuse", "at": 1}} if number < 3 else {}

    def three_ended():
        return len(events.of("end")) >= 3

    assert not run(tmp_path, one_group, sweep, 12, events, assignment=broken, stop=three_ended)
    assert states(tmp_path, sweep)[:3] == [TrialState.FAIL] * 3
    with pytest.raises(SweepError, match=r"3 of the first 5 trials failed: 3× the loss is nan at step 7"):
        run(tmp_path, one_group, sweep, 12, assignment=broken)


def test_a_sweep_with_the_budgets_share_of_failures_fails_at_its_end_too(one_group, tmp_path):
    """Where there are too few trials to give up before."""

    def search_again():
        with pytest.raises(SweepError, match=r"3 of the first 4 trials failed: 3× the loss is nan at step 7"):
            run(
                tmp_path,
                one_group,
                a_sweep(budget=Budget(failures=0.5)),
                4,
                assignment=lambda number, _: {"orders": {"kind": "refuse", "at": 1}} if number else {},
            )

    search_again()
    assert [state.name for state in states(tmp_path, a_sweep())] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    search_again()
    assert run(tmp_path, one_group, a_sweep(budget=Budget(failures=0.8)), 4)


def test_a_sweep_whose_other_trials_are_paused_does_not_give_up(one_group, tmp_path):
    events = Events()

    def broken(number, _):
        return {} if number else {"orders": {"kind": "refuse", "at": 1}}

    def one_reported():
        return bool(events.of("report"))

    assert not run(tmp_path, one_group, a_sweep(), 2, events, assignment=broken, stop=one_reported)
    assert states(tmp_path, a_sweep()) == [TrialState.FAIL, TrialState.RUNNING]
    append_event(tmp_path / LEDGER, "pause", number=1)
    assert not run(tmp_path, one_group, a_sweep(), 2, assignment=broken), "it waits for the second one"
    append_event(tmp_path / LEDGER, "continue", number=1)
    assert run(tmp_path, one_group, a_sweep(), 2, assignment=broken)


def test_what_a_method_refuses_fails_alone_and_is_not_begun_again(one_group, tmp_path):
    def assignment(number, _):
        if number == 1:
            raise MethodError("alpha, beta and gamma are all 0: nothing is learned")
        return {}

    events = Events()
    assert run(tmp_path, one_group, a_sweep(), 4, events, assignment=assignment)
    states_of = [state.name for state in states(tmp_path, a_sweep())]
    assert states_of == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert 1 not in {number for _, number, _ in events.all}
    assert trials_in(tmp_path, a_sweep(), suggest)[1].user_attrs["reason"].startswith("alpha, beta and gamma")
    assert run(tmp_path, one_group, a_sweep(), 5, assignment=assignment)


@pytest.mark.long
def test_a_group_that_dies_between_two_trials_of_a_sweep_is_started_again(ray_cluster, tmp_path):
    """While no trial runs, Tune itself looks at nothing for ten minutes."""
    notes = []
    with pool_of(cpus_per_worker=0, storage=tmp_path / "groups", note=notes.append) as pool:

        def kill_it(event, number, _):
            if event == "end" and number == 0:
                (worker_group,) = pool._groups.values()
                ray.kill(worker_group.controller)

        assert run(tmp_path, pool, a_sweep(), 3, kill_it)
    assert re.search(r"^worker group \S+ ended \(.*\) and is started again$", notes[0])


def test_a_killed_worker_is_not_noticed_by_the_search(one_group, tmp_path):
    events, killed = Events(), {"orders": {"kind": "kill_once", "rank": 0, "at": 2}}
    run(tmp_path, one_group, a_sweep(), 2, events, assignment=lambda number, _: {} if number else killed)
    trials = trials_in(tmp_path, a_sweep(), suggest)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"]
    assert len((tmp_path / "t0000" / "starts.jsonl").read_text().splitlines()) == 2
    assert [info.index for number, info in events.of("report") if number == 0] == [1, 2, 3]


class DriverCrashError(Exception):
    pass


def test_a_search_resumes_after_its_driver_crashed_and_completes_exactly_its_trials(ray_cluster, pool, tmp_path):
    events = Events()

    def crashing(event, number, info):
        events(event, number, info)
        if event == "report" and number == 3 and info.index == 2:
            raise DriverCrashError

    slow = {"seconds": 0.05}
    with pytest.raises(DriverCrashError):
        run(tmp_path, pool, a_sweep(), 8, crashing, assignment=lambda *_: slow)
    wait_until_free(pool, pool.count)
    before = states(tmp_path, a_sweep())
    assert 1 <= before.count(TrialState.RUNNING) <= 2
    again = Events()
    assert run(tmp_path, pool, a_sweep(), 8, again, assignment=lambda *_: slow)
    assert states(tmp_path, a_sweep()) == [TrialState.COMPLETE] * 8
    ended = [number for number, _ in events.of("end") + again.of("end")]
    assert sorted(ended) == list(range(8))
    assert again.of("start")[0][0] == before.index(TrialState.RUNNING)
    starts = [json.loads(line) for line in (tmp_path / "t0003" / "starts.jsonl").read_text().splitlines()]
    assert starts[0]["from"] == 0
    assert starts[1]["from"] >= 2
    nothing = Events()
    assert run(tmp_path, pool, a_sweep(), 8, nothing)
    assert nothing.all == []


def test_a_request_to_stop_leaves_running_trials_resumable(pool, tmp_path):
    stop = threading.Event()
    events = Events()

    def listen(event, number, info):
        events(event, number, info)
        if event == "report" and number == 2:
            stop.set()

    assert not run(tmp_path, pool, a_sweep(), 9, listen, lambda *_: {"seconds": 0.05}, stop.is_set)
    trial_states = states(tmp_path, a_sweep())
    assert TrialState.RUNNING in trial_states
    assert len(trial_states) < 9
    assert "stopped" in {info.state for _, info in events.of("end")}
    assert run(tmp_path, pool, a_sweep(), 4)
    assert states(tmp_path, a_sweep()) == [TrialState.COMPLETE] * 4


def test_no_trial_starts_after_the_time_is_up_and_running_ones_finish(one_group, tmp_path):
    stop = StopSignal()

    def end_the_time(event, number, info):
        if event == "start" and number == 1:
            stop.start_minutes(0)

    assert not run(tmp_path, one_group, a_sweep(), 9, end_the_time, stop=stop)
    assert states(tmp_path, a_sweep()) == [TrialState.COMPLETE] * 2


@pytest.mark.parametrize("sampler", [PlainSampler(kind="random"), Tpe(startup=3)])
def test_replaying_the_recorded_order_gives_the_same_proposals(one_group, tmp_path, sampler):
    sweep = a_sweep(sampler=sampler, scheduler=Halving(grace=1, reduction=2), seed=5)
    run(tmp_path, one_group, sweep, 10)
    lines = Ledger(tmp_path / "results.jsonl").lines
    proposed = {line["number"]: line["params"] for line in lines if line["event"] == "propose"}
    assert len(proposed) == 10
    assert replay(lines, sweep, suggest) == proposed
    other = a_sweep(sampler=sweep.sampler, scheduler=sweep.scheduler, seed=6)
    assert replay(lines, other, suggest) != proposed


def test_objectives_are_recorded_at_the_end_and_a_pruned_trial_keeps_its_values(one_group, tmp_path):
    objectives = (Objective(metric="dev/score"), Objective(metric="dev/other", goal="minimize"))
    points = tuple({"x": x, "kind": "a"} for x in (0.9, 0.8, 0.1))
    sweep = a_sweep(objectives=objectives, sampler=Tpe(points=points), scheduler=Halving(grace=1, reduction=2))
    run(tmp_path, one_group, sweep, 4)
    trials = trials_in(tmp_path, sweep, suggest)
    assert trials[0].values == [pytest.approx(0.9), pytest.approx(-0.9)]
    assert trials[2].state == TrialState.PRUNED
    assert trials[2].user_attrs["values"] == [pytest.approx(0.1 / 3), pytest.approx(-0.1)]


def test_an_earlier_sweep_warms_the_proposals_and_does_not_count(one_group, tmp_path):
    early = SweepFolder(tmp_path / "early-1234")
    early.path.mkdir()
    early.write("sweep.json", a_sweep())
    for number, x in enumerate((0.2, 0.4, 1.7)):
        report = Report(index=1, step=1, pairs=1, seconds=1.0, metrics={"dev/score": x}, last=True)
        log_trial(early, number, {"x": x, "kind": "a"}, [report], "finished")
    sweep = a_sweep(sampler=Tpe(startup=1, warm_start="early"))
    events = Events()
    assert run(tmp_path / "early-5678", one_group, sweep, 2, events), "a sweep of the same name, whose study is there"
    assert [number for number, _ in events.of("start")] == [0, 1]
    warm = trials_in(tmp_path / "early-5678", sweep, suggest)
    assert [trial.params["x"] for trial in warm[:2]] == [0.2, 0.4]
    assert len(warm) == 4
    with pytest.raises(SpecError, match="names 0 sweeps"):
        warm_trials(tmp_path / "early-5678", a_sweep(sampler=Tpe(warm_start="nothing")), suggest)
    other = a_sweep(sampler=sweep.sampler, objectives=(Objective(metric="dev/other"),))
    with pytest.raises(SpecError, match=r"early-1234 has other objectives"):
        warm_trials(tmp_path / "early-5678", other, suggest)
    with pytest.raises(SpecError, match=r"none of the 3 finished trials of early-1234 lies in this search space"):
        warm_trials(tmp_path / "early-5678", sweep, lambda trial: {"y": trial.suggest_float("y", 0, 1)})
    (early.path / LEDGER).write_bytes(b"no ledger\n" * 1000)
    again = [(one.number, one.params["x"], one.value) for one in warm_trials(tmp_path / "early-5678", sweep, suggest)]
    assert again == [(0, 0.2, 0.2), (1, 0.4, 0.4)], "a resumed sweep does not ask the earlier one"
    (tmp_path / "early-5678" / "warm_start.json").write_text("{}")
    with pytest.raises(SpecError, match=r"none of the 0 finished trials of early-1234 lies in this search space"):
        warm_trials(tmp_path / "early-5678", sweep, suggest)
    assert (early.path / LEDGER).read_bytes() == b"no ledger\n" * 1000, "it is another sweep's"


def test_a_point_outside_of_the_search_space_is_refused():
    sweep = a_sweep(sampler=Tpe(points=({"x": 3.0},)))
    with pytest.raises(SpecError, match=r"x = 3.0 is outside of its range"):
        Proposals(sweep, suggest)


def test_a_trial_of_a_resumed_study_keeps_its_parameters():
    number, params = Proposals(a_sweep(), suggest).ask()
    lines = [{"event": "propose", "number": number, "params": params}]
    assert Proposals(a_sweep(), suggest, lines=lines).again(number) == params


def test_a_trials_seed_depends_on_the_sweep_and_its_number_only():
    def first(sweep, number):
        study = optuna.create_study(sampler=sampler_for(sweep, number))
        return study.ask().suggest_float("x", 0, 1)

    assert first(a_sweep(), 3) == first(a_sweep(), 3)
    assert len({first(a_sweep(), 3), first(a_sweep(), 4), first(a_sweep(seed=1), 3)}) == 3


def test_a_primed_scheduler_judges_as_if_it_had_seen_the_earlier_trials():
    sweep = a_sweep(scheduler=Halving(grace=1, reduction=2))
    scheduler = scheduler_for(sweep)
    lines = []
    for number, value in enumerate((0.9, 0.8, 0.7)):
        lines += [{"event": "propose", "number": number}]
        lines += [{"event": "report", "number": number, "index": 1, "values": [value]}]
    assert prime(scheduler, lines) == {1, 2}, "each is judged by those before it"
    late = SimpleNamespace(trial_id="late", config={"number": 7})
    scheduler.on_trial_add(None, late)
    assert scheduler.on_trial_result(None, late, {"reports": 1, "objective": 0.1}) == "STOP"
    fresh = scheduler_for(sweep)
    fresh.on_trial_add(None, late)
    assert fresh.on_trial_result(None, late, {"reports": 1, "objective": 0.1}) == "CONTINUE"


def test_asha_stops_no_trial_before_its_end_for_having_the_default_reports():
    """A trial's reports may be a parameter; the section's own number, 5, is not its end then."""
    sweep = a_sweep(
        training=Training(), parameters={"x": Parameter(float=(0, 1)), "training.reports": Parameter(const=9)},
        scheduler=Halving(grace=1, reduction=3),
    )  # fmt: skip
    scheduler = scheduler_for(sweep)
    best = SimpleNamespace(trial_id="best", config={"number": 0})
    scheduler.on_trial_add(None, best)
    verdicts = [scheduler.on_trial_result(None, best, {"reports": n, "objective": n / 9}) for n in range(1, 10)]
    assert verdicts == ["CONTINUE"] * 8 + ["STOP"], "only its own last report ends it"


def test_a_ledger_line_cut_off_by_a_crash_is_ignored(tmp_path):
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add("propose", 0, params={"x": math.pi})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"event": "rep')
    first, last = (
        {"event": "propose", "number": 0, "params": {"x": math.pi}},
        {"event": "end", "number": 0, "state": "FAIL", "values": None},
    )
    again = Ledger(tmp_path / "results.jsonl")
    assert again.lines == [first]
    again.add("end", 0, state="FAIL", values=None)
    assert Ledger(tmp_path / "results.jsonl").lines == [first, last]


def test_every_installed_method_is_registered_with_tune(ray_cluster):
    assert "soft_contrastive" in register_methods()
    assert get_trainable_cls("soft_contrastive").method == "soft_contrastive"


@pytest.mark.long
def test_a_method_by_its_name_in_plain_tune_trains_on_a_worker_group(ray_cluster, with_stores, tiny_file, tmp_path):
    assert "soft_contrastive" in register_methods()
    out = with_stores(tmp_path / "out")
    tuner = tune.Tuner(
        "soft_contrastive",
        param_space={"sweep": str(tiny_file), "out": str(out), "temperature": 0.05},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0),
    )
    results = tuner.fit()
    assert [result.metrics["reports"] for result in results] == [2]
    assert all(0 <= result.metrics["dev/everyday/accuracy"] <= 1 for result in results)
    (folder,) = (out / "trials").iterdir()
    assert list((folder / "train").iterdir()), "Ray Train's run of the group"


@pytest.mark.long
def test_a_setting_that_a_method_refuses_fails_its_trial_in_plain_tune(ray_cluster, with_stores, tiny_file, tmp_path):
    register_methods()
    tuner = tune.Tuner(
        "soft_contrastive",
        param_space={"sweep": str(tiny_file), "out": str(with_stores(tmp_path / "out")), "temperature": -1.0},
        run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0),
    )
    (result,) = tuner.fit()
    assert "temperature" in str(result.error)


def test_a_sweep_runs_the_trainable_that_its_method_is_registered_as(one_group, tmp_path, monkeypatch):
    names, run_by_tune = [], tune.run
    monkeypatch.setattr(tune, "run", lambda kind, **words: names.append(kind) or run_by_tune(kind, **words))
    assert run(tmp_path, one_group, a_sweep(), 1)
    assert names == ["toy"]
    assert get_trainable_cls("toy").method == "toy"


def test_a_trial_that_ends_without_its_last_report_is_not_called_finished(one_group, tmp_path):
    def stop_behind_the_searchs_back(event, number, info):
        if event == "report" and number == 1:
            ray.get(one_group.dispatcher._actor.stop.remote(ids[1]))

    ids = {}
    offer = one_group.dispatcher.offer

    def remember(trial_id, assignment):
        ids[len(ids)] = trial_id
        offer(trial_id, assignment)

    one_group.dispatcher.offer = remember
    try:
        assert not run(tmp_path, one_group, a_sweep(), 2, stop_behind_the_searchs_back)
    finally:
        del one_group.dispatcher.offer
    assert states(tmp_path, a_sweep()) == [TrialState.COMPLETE, TrialState.RUNNING]
    assert run(tmp_path, one_group, a_sweep(), 2)
    assert states(tmp_path, a_sweep()) == [TrialState.COMPLETE] * 2


def test_a_sweep_starts_no_process_to_follow_its_trials(pool, tmp_path):
    wait_until_free(pool, pool.count)
    before, began, ended = set(actors()), [], []

    def listener(event, number, info):
        if event == "start":
            began.append(len(ended))
        elif event == "end":
            ended.append(number)

    assert run(tmp_path, pool, a_sweep(), 16, listener)
    assert set(actors()) == before
    assert [number - ends for number, ends in enumerate(began)].count(1) >= 8, "both worker groups had trials at once"


@pytest.mark.long
def test_a_search_whose_dispatcher_dies_says_so_and_leaves_no_group(ray_cluster, tmp_path):
    doomed = pool_of(storage=tmp_path)

    def kill(event, number, info):
        if event == "report":
            ray.kill(doomed.dispatcher._actor)

    before = groups_held()
    with pytest.raises(ClusterError, match="dispatcher died; `babeltune resume` goes on"), ray_refusals(), doomed:
        run(tmp_path, doomed, a_sweep(), 4, kill)
    assert groups_held() == before
