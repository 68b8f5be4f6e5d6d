"""The study is what the ledger says, whenever and however often it is made."""

from dataclasses import replace

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from babeltune.errors import SpecError, SweepError
from babeltune.files import write_json
from babeltune.schema.records import Nsga2, Objective, PlainSampler, Report, Tpe
from babeltune.signals import StopSignal
from babeltune.sweep.search.study import Proposals, write_study
from babeltune.sweep.search.tune_searcher import Callbacks, TrialRecords, too_many_failed
from babeltune.sweep.search.warm_start import warm_trials
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import LEDGER, Ledger
from babeltune.sweep.state.messages import TrialEnd
from babeltune.tracking.sweep_runs import CURSOR
from babeltune.training.checkpoint import write_reports
from made_sweeps import log_trial
from replays import trials_in
from toy_methods import toy_sweep

SWEEP = toy_sweep(sampler=Tpe(startup=1))


def suggest(trial):
    return {"x": trial.suggest_float("x", 0, 1)}


def looks(study):
    return [
        (t.number, t.state, t.params, t.values, t.intermediate_values, t.user_attrs)
        for t in study.get_trials(deepcopy=False)
    ]


def played(place, sweep, order, draw=suggest):
    """A search whose trials do in turn what `order` says: begin, or report and end one that runs. Its ledger, and its
    proposals as they are then."""
    ledger, proposals, running = Ledger(place / LEDGER), Proposals(sweep, draw), []
    for event in order:
        if event == "ask" or not running:
            number, params = proposals.ask()
            ledger.add("propose", number, params=params)
            running.append((number, params["x"]))
            continue
        number, x = running.pop(event % len(running))
        values = [x] * len(sweep.objectives)
        proposals.report(number, 1, values)
        proposals.note(number, {"checkpoint": "000001"})
        ledger.add("report", number, index=1, values=values, checkpoint="000001")
        state = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)[event % 3]
        end = TrialEnd("refused", text="the loss is nan") if state == TrialState.FAIL else TrialEnd("finished")
        final = values if state == TrialState.COMPLETE else None
        proposals.note_end(number, end)
        proposals.tell(number, state, final)
        ledger.add_end(number, state.name, final, end)
    return ledger, proposals


@pytest.mark.parametrize(
    "sampler",
    [Tpe(startup=2), PlainSampler(kind="random"), Nsga2(population=2), PlainSampler(kind="gp", startup=2)],
    ids=lambda each: each.kind,
)
@settings(max_examples=15)
@given(order=st.lists(st.just("ask") | st.integers(0, 5), min_size=1, max_size=12))
def test_a_study_made_from_the_ledger_is_the_one_of_the_search_and_proposes_the_same(tmp_path_factory, sampler, order):
    place = tmp_path_factory.mktemp("sweep")
    sweep = replace(SWEEP, sampler=replace(sampler, points=({"x": 0.5},)))
    if isinstance(sampler, Nsga2):
        sweep = replace(sweep, objectives=(Objective(metric="dev/score"), Objective(metric="dev/other")))
    _, proposals = played(place, sweep, order)
    again = Proposals(sweep, suggest, lines=Ledger(place / LEDGER).lines)
    assert looks(again.study) == looks(proposals.study)
    assert again.ask() == proposals.ask()


@pytest.fixture
def recorded(tmp_path):
    """A finished, a failed, a pruned and a running trial."""
    ledger, proposals = played(tmp_path, SWEEP, ["ask", "ask", "ask", "ask", 0, 1, 2])
    return ledger, looks(proposals.study)


def test_any_beginning_of_a_ledger_is_a_study(recorded, tmp_path):
    _, expected = recorded
    whole = (tmp_path / LEDGER).read_bytes()
    for length in range(0, len(whole) + 1, 7):
        (tmp_path / LEDGER).write_bytes(whole[:length])
        trials = trials_in(tmp_path, SWEEP, suggest)
        assert [trial.params for trial in trials] == [params for _, _, params, *_ in expected[: len(trials)]]
    (tmp_path / LEDGER).write_bytes(whole)
    assert len(trials_in(tmp_path, SWEEP, suggest)) == len(expected) == 4


@pytest.mark.parametrize("bad", [b"\xff\xfe\x00\n", b"no JSON\n", b"[1]\n", b"{}\n"])
def test_what_follows_a_bad_line_of_the_ledger_is_put_aside(recorded, tmp_path, bad):
    ledger, _ = recorded
    path = tmp_path / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], bad, *lines[5:]]))
    assert Ledger(path).lines == ledger.lines[:5]
    assert path.with_name("results.jsonl.unusable-0").read_bytes() == b"".join([bad, *lines[5:]])
    again = Ledger(path)
    again.add("end", 0, state="FAIL", values=None)
    assert Ledger(path).lines == again.lines == [*ledger.lines[:5], again.lines[-1]]


def test_an_altered_ledger_makes_no_study(recorded):
    ledger, _ = recorded
    ledger.lines[0]["number"] = 7
    with pytest.raises(SweepError, match=r"results.jsonl proposes trial 7 where trial 0 is next"):
        Proposals(SWEEP, suggest, lines=ledger.lines)
    ledger.lines[0]["number"] = 0
    for event in ("report", "end"):
        stray = {"event": event, "number": 9, "index": 1, "values": [0.1], "state": "FAIL"}
        with pytest.raises(SweepError, match=f"a {event} of trial 9, which does not run"):
            Proposals(SWEEP, suggest, lines=[*ledger.lines, stray])


@pytest.mark.parametrize("event", ["propose", "report", "end", "give_up", "submit", "leave"])
def test_a_line_without_what_its_event_needs_is_put_aside(tmp_path, event):
    Ledger(tmp_path / LEDGER).add("propose", 0, params={"x": 0.5})
    with (tmp_path / LEDGER).open("a") as file:
        file.write(f'{{"event": "{event}", "number": 1}}\n')
    assert [line["number"] for line in Ledger(tmp_path / LEDGER).lines] == [0]
    assert list(tmp_path.glob(f"{LEDGER}.unusable-*"))


def test_a_setting_that_the_search_gained_is_drawn_for_trials_that_run_alone(recorded):
    ledger, _ = recorded

    def both(trial):
        return {name: trial.suggest_float(name, 0, 1) for name in ("x", "y")}

    proposals = Proposals(SWEEP, both, lines=ledger.lines)
    (running,) = proposals.trials(TrialState.RUNNING)
    assert [set(trial.params) for trial in proposals.study.get_trials()] == [{"x"}] * 4
    gained = proposals.again(running)
    assert set(gained) == {"x", "y"}
    ledger.add("propose", running, params=gained)
    ledger.add_end(running, "COMPLETE", [0.5], TrialEnd("finished"))
    later = Proposals(SWEEP, both, lines=ledger.lines)
    assert later.study.get_trials()[running].params == gained, "it is drawn once"


def test_a_value_outside_of_a_range_that_was_narrowed_is_passed_over(recorded):
    ledger, _ = recorded
    values = sorted(line["params"]["x"] for line in ledger.lines if line["event"] == "propose")
    proposals = Proposals(SWEEP, lambda trial: {"x": trial.suggest_float("x", 0, values[1])}, lines=ledger.lines)
    assert sorted(trial.params["x"] for trial in proposals.study.get_trials() if trial.params) == values[:2]


def test_a_study_is_written_once_and_changes_nothing_of_the_sweep(recorded, tmp_path):
    before = (tmp_path / LEDGER).read_bytes()
    assert write_study(SWEEP, tmp_path, tmp_path / "study.db") == 4
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db")
    assert looks(study) == recorded[1]
    with pytest.raises(SpecError, match=r"study.db is there already; name a new file"):
        write_study(SWEEP, tmp_path, tmp_path / "study.db")
    with pytest.raises(SweepError, match="empty has no trial yet"):
        write_study(SWEEP, tmp_path / "empty", tmp_path / "other.db")
    assert (tmp_path / LEDGER).read_bytes() == before


def test_reports_that_the_ledger_lost_are_recorded_from_the_trials_folder(tmp_path):
    ledger, proposals, events = Ledger(tmp_path / LEDGER), Proposals(SWEEP, suggest), []
    callbacks = Callbacks(None, lambda kind, number, event: events.append((kind, number, event.index)))
    records = TrialRecords(SWEEP, proposals, ledger, None, callbacks, StopSignal(), tmp_path)
    number, params = proposals.ask()
    ledger.add("propose", number, params=params)
    reports = [Report(index=i, step=i, pairs=i, seconds=i, metrics={"dev/score": i / 4}) for i in (1, 2, 3)]
    write_reports(tmp_path / "trials" / "t0000", reports)
    for report in (reports[2], reports[1], reports[2]):
        records.record(number, {"report": report})
    assert [(line["index"], line["values"]) for line in ledger.reports(number)] == [
        (1, [0.25]),
        (2, [0.5]),
        (3, [0.75]),
    ]
    assert events == [("report", 0, 1), ("report", 0, 2), ("report", 0, 3)]


def a_trial(failed, reason=""):
    attributes = {"reason": reason}
    if failed:
        return optuna.trial.create_trial(state=TrialState.FAIL, user_attrs=attributes)
    return optuna.trial.create_trial(value=0.5)


def test_a_sweep_gives_up_at_its_share_of_failures_with_the_three_commonest_reasons():
    reasons = ["a", "b", "a", "c\nwith a traceback", "d", "a", "b", "c"]
    ended = [a_trial(True, reason) for reason in reasons] + [a_trial(False)] * 2
    assert not too_many_failed(ended, 0.9)
    assert too_many_failed(ended, 0.8) == "8 of the first 10 trials failed: 3× a; 2× b; 2× c"
    assert too_many_failed(ended[:8], 1.0).startswith("all of the first 8 trials failed")
    assert not too_many_failed([], 0.5)


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_last_record_that_lacks_only_its_end_is_kept_and_a_cut_one_is_not(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    for number in (0, 1):
        Ledger(path).add("propose", number, params={"temperature": 0.1})
    path.write_bytes(path.read_bytes()[:-cut])
    again = Ledger(path)
    assert [line["number"] for line in again.lines] == ([0, 1] if cut == 1 else [0])
    again.add("propose", 2, params={})
    assert Ledger(path).lines == again.lines


def test_a_study_with_two_objectives_and_earlier_trials_opens_in_optuna(tmp_path):
    """As a searcher writes the ledger: what it took over comes first, and its own numbers begin at 0."""
    aims = (Objective(metric="dev/score"), Objective(metric="dev/cost", goal="minimize"))
    early, late = SweepFolder(tmp_path / "early-1234"), SweepFolder(tmp_path / "late-5678")
    sweep = replace(SWEEP, objectives=aims, sampler=Tpe(startup=1, warm_start="early"))
    for folder, spec in ((early, replace(SWEEP, objectives=aims)), (late, sweep)):
        folder.path.mkdir()
        folder.write("sweep.json", spec)
    for number, x in enumerate((0.2, 0.4)):
        metrics = {"dev/score": x, "dev/cost": 1 - x}
        report = Report(index=1, step=1, pairs=1, seconds=1.0, metrics=metrics, last=True)
        log_trial(early, number, {"x": x}, [report], "finished")
    warm = warm_trials(late.path, sweep, suggest)
    ledger, proposals = Ledger(late.path / LEDGER), Proposals(sweep, suggest, warm)
    drawn = [proposals.ask()[1] for _ in range(3)]
    for number, params in enumerate(drawn):
        ledger.add("propose", number, params=params)
    for number, (score, cost) in enumerate(((0.9, 0.5), (0.8, 0.7))):
        for index in (1, 2):
            ledger.add("report", number, index=index, values=[score * index / 2, cost], checkpoint=f"{index:06d}")
        ledger.add_end(number, "COMPLETE", [score, cost], TrialEnd("finished"))
    write_json(late.path / CURSOR, {"memo": {"experiment": "7", "runs": {"1": "a1b2"}}})

    assert write_study(late.sweep(), late.path, tmp_path / "study.db") == 5
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db")
    assert [each.name for each in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    trials = study.get_trials()
    assert [trial.params for trial in trials] == [{"x": 0.2}, {"x": 0.4}, *drawn]
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4 + ["RUNNING"]
    assert [trial.values for trial in trials] == [[0.2, 0.8], [0.4, 0.6], [0.9, 0.5], [0.8, 0.7], None]
    assert [trial.user_attrs.get("warm_start") for trial in trials] == [0, 1, None, None, None]
    assert [trial.user_attrs.get("report 1") for trial in trials[2:]] == [[0.45, 0.5], [0.4, 0.7], None]
    assert [trial.user_attrs.get("mlflow_run") for trial in trials] == [None, None, None, "a1b2", None]
    assert [trial.number for trial in study.best_trials] == [2], "it has the best score at the least cost"
    study.sampler = optuna.samplers.TPESampler(seed=0)
    assert 0 <= study.ask({"x": trials[0].distributions["x"]}).params["x"] <= 1, "and a notebook may go on with it"
