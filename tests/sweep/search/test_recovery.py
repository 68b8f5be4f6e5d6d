"""A study that is lost, damaged or of another version is made again from the ledger."""

import contextlib
import sqlite3
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from babeltune.errors import SweepError
from babeltune.schema.records import Data, Objective, Parameter, Sampler, Source, Sweep
from babeltune.sweep.search.recovery import catch_up, sound_study
from babeltune.sweep.search.study import Ledger, Proposals, follow, open_study, reported
from babeltune.sweep.search.tune_searcher import too_many_failed
from babeltune.sweep.state.messages import TrialEnd
from replays import replay

SWEEP = Sweep(
    name="toy",
    method="toy",
    parameters={"x": Parameter(float=(0, 1))},
    objectives=(Objective(metric="dev/score"),),
    data=Data(train=(Source(name="none"),)),
    sampler=Sampler(kind="tpe", startup=1),
)


def suggest(trial):
    return {"x": trial.suggest_float("x", 0, 1)}


def looks(study):
    return [
        (t.number, t.state, t.params, t.values, t.intermediate_values, t.user_attrs)
        for t in study.get_trials(deepcopy=False)
    ]


@pytest.fixture
def recorded(tmp_path):
    """A failed, a finished, a pruned and a running trial: the ledger, and what the study must be."""
    study, ledger = open_study(tmp_path, SWEEP), Ledger(tmp_path / "results.jsonl")
    proposals = Proposals(study, SWEEP, suggest)
    for number in range(4):
        asked, params = proposals.ask()
        ledger.add("propose", asked, params=params)
        proposals.report(number, 1, [params["x"]])
        proposals.note(number, {"checkpoint": "000001"})
        ledger.add("report", number, index=1, values=[params["x"]], checkpoint="000001")
        proposals.note(number, {"mlflow_run": f"run {number}"})
        ledger.add("note", number, attributes={"mlflow_run": f"run {number}"})
        if number < 3:
            state = (TrialState.FAIL, TrialState.COMPLETE, TrialState.PRUNED)[number]
            values = [params["x"]] if state == TrialState.COMPLETE else None
            end = TrialEnd("finished") if number else TrialEnd("refused", text="the loss is nan")
            proposals.note_end(number, end)
            proposals.tell(number, state, values)
            ledger.add_end(number, state.name, values, end)
    return ledger, looks(study)


def damage_nothing(path):
    """Leaves it as it is."""


def damage(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite(path):
    path.write_bytes(b"this is no database" * 100)


def empty(path):
    path.write_bytes(b"")


def age(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'v9.9.9'")


def tear(path):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE trial_values")


def lose(path):
    path.unlink()


@pytest.mark.parametrize("how", [damage_nothing, damage, overwrite, empty, age, tear, lose])
def test_whatever_became_of_the_study_it_is_what_the_ledger_says(recorded, tmp_path, how):
    ledger, expected = recorded
    how(tmp_path / "study.db")
    study = sound_study(tmp_path, SWEEP, ledger, suggest)
    assert looks(study) == expected
    aside = list(tmp_path.glob("study.db.unusable-*"))
    assert bool(aside) == (how not in (damage_nothing, lose, empty))
    following = Proposals(study, SWEEP, suggest).ask()
    undamaged = optuna.create_study(direction="maximize")
    follow(ledger.lines, Proposals(undamaged, SWEEP, suggest), as_recorded(undamaged))
    assert following == Proposals(undamaged, SWEEP, suggest).ask(), "what comes next is the same, too"


@pytest.mark.parametrize("trial", [1, 3], ids=["a trial that ended", "one that runs"])
def test_a_study_that_lacks_a_report_is_made_again_from_the_ledger(recorded, tmp_path, trial):
    """A storage behind a URI has the two files of different moments where the driver's machine was lost between."""
    ledger, expected = recorded
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
        database.execute("DELETE FROM trial_intermediate_values WHERE trial_id = ?", (trial + 1,))
    assert looks(sound_study(tmp_path, SWEEP, ledger, suggest)) == expected
    assert len(list(tmp_path.glob("study.db.unusable-*"))) == 1


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


def test_reports_of_several_objectives_that_the_ledger_lost_come_back_from_the_study(tmp_path):
    sweep = replace(SWEEP, objectives=(Objective(metric="dev/score"), Objective(metric="dev/other")))
    proposals = Proposals(open_study(tmp_path, sweep), sweep, suggest)
    number, _ = proposals.ask()
    for index in (1, 2, 3):
        proposals.report(number, index, [index / 10, -index / 10])
    (trial,) = proposals.trials().values()
    assert reported(trial) == {index: [index / 10, -index / 10] for index in (1, 2, 3)}


def test_a_trial_that_was_being_drawn_is_drawn_afresh(tmp_path):
    """A driver that dies between two parameters of a trial leaves one of them in the study."""

    def both(trial):
        return {name: trial.suggest_float(name, 0, 1) for name in ("x", "y")}

    def first(trial):
        raise KeyboardInterrupt(trial.suggest_float("x", 0, 1))

    proposals, ledger = Proposals(open_study(tmp_path, SWEEP), SWEEP, both), Ledger(tmp_path / "results.jsonl")
    _, params = proposals.ask()
    ledger.add("propose", 0, params=params)
    with pytest.raises(KeyboardInterrupt):
        Proposals(open_study(tmp_path, SWEEP), SWEEP, first).ask()
    resumed = Proposals(sound_study(tmp_path, SWEEP, ledger, both), SWEEP, both)
    assert sorted(resumed.trials()) == [0]
    number, params = resumed.ask()
    ledger.add("propose", number, params=params)
    assert replay(ledger.lines, SWEEP, both)[number] == params
    assert len(list(tmp_path.glob("study.db.unusable-*"))) == 1


def as_recorded(study):
    proposals = Proposals(study, SWEEP, suggest)

    def propose(params):
        study.enqueue_trial(params)
        return proposals.ask()[0]

    return propose


def test_a_study_in_which_another_process_writes_is_not_put_aside(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.sweep.search.study.LOCK_TIMEOUT_S", 0.2)
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises((OperationalError, optuna.exceptions.StorageInternalError)):
            sound_study(tmp_path, SWEEP, recorded[0], suggest)
    assert not list(tmp_path.glob("study.db.unusable-*"))


def test_an_altered_ledger_makes_no_study(recorded, tmp_path):
    ledger, _ = recorded
    ledger.lines[0]["number"] = 7
    (tmp_path / "study.db").unlink()
    with pytest.raises(SweepError, match=r"results.jsonl proposes trial 7 where trial 0 is next"):
        sound_study(tmp_path, SWEEP, ledger, suggest)


def test_what_only_the_study_knows_is_added_to_the_ledger_in_order(tmp_path):
    sweep = replace(SWEEP, sampler=Sampler(kind="tpe", startup=2))
    proposals = Proposals(open_study(tmp_path, sweep), sweep, suggest)
    proposed = {}

    def ask():
        number, params = proposals.ask()
        proposed[number] = params
        proposals.report(number, 1, [params["x"]])

    def end(number):
        proposals.note(number, {"reason": "it is over"})
        proposals.tell(number, TrialState.COMPLETE, [proposed[number]["x"]])

    for step in (ask, ask, ask, lambda: end(2), ask, lambda: end(0), ask, lambda: end(3), ask, lambda: end(1), ask):
        step()
    ledger = Ledger(tmp_path / "results.jsonl")
    catch_up(ledger, proposals, tmp_path)
    happened = [(line["event"], line["number"]) for line in ledger.lines if line["event"] != "report"]
    assert happened == [
        *[("propose", 0), ("propose", 1), ("propose", 2), ("end", 2), ("propose", 3), ("end", 0), ("propose", 4)],
        *[("end", 3), ("propose", 5), ("end", 1), ("propose", 6)],
    ]
    assert [len(ledger.reports(number)) for number in proposed] == [1] * 7
    assert replay(ledger.lines, sweep, suggest) == proposed
    assert sound_study(tmp_path, sweep, ledger, suggest)
    before = list(ledger.lines)
    catch_up(ledger, proposals, tmp_path)
    assert ledger.lines == before


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
