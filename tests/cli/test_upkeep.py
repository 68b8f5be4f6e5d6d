"""Sweeps that are renamed, noted on, archived and deleted."""

import json
import threading

import pytest
from mlflow import MlflowClient

from audits import read_audit
from babeltune.files import plain, write_json
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.decisions import record_decision
from babeltune.promotion.gates import Decision
from babeltune.schema.cluster import read_cluster
from babeltune.schema.paths import sqlite_url
from babeltune.sweep.driver.changes import take_requests
from babeltune.sweep.search.warm_start import TAKEN_OVER_FILE
from babeltune.sweep.state.folder import LABELS, REQUESTS, find_sweep
from babeltune.sweep.state.lease import folder_lease, only_driver
from babeltune.sweep.state.log import LEDGER, Ledger, append_event, log_of
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.gather import gather
from made_sweeps import add_trial, make_sweep, renamed
from waiting import PATIENCE_S, wait_until


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(storage, tiny_file):
    """A finished sweep `tiny` of one trial, with a checkpoint of 100 bytes."""
    folder = make_sweep(storage, read_sweep(tiny_file), when=2)
    add_trial(folder, 0, [0.1, 0.3], "finished", temperature=0.1)
    checkpoint = folder.trial(0) / "checkpoints" / "000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "student.safetensors").write_bytes(bytes(100))
    return folder


def listed(command, *options):
    code, out, err = command("runs", "--json", *options)
    assert code == 0, err
    return {line["sweep"]: line for line in json.loads(out)}


def test_a_renamed_sweep_is_called_by_its_name_and_keeps_id_and_folder(command, folder):
    assert command("rename", "tiny", "best-of-may")[0] == 0
    assert find_sweep(folder.path.parents[1], "best-of-may") == folder
    assert find_sweep(folder.path.parents[1], folder.id) == folder
    assert f"({'best-of-may'}): finished" in command("status", "BEST-of-may")[1]
    assert f"best-of-may ({folder.id})" in command("runs")[1]
    assert gather(folder).name == "best-of-may"
    assert command("rename", "best-of-may", "tiny")[0] == 0
    assert (log_of(folder.path).labels, folder.labels()) == ({"name": ""}, {"name": ""})
    assert find_sweep(folder.path.parents[1], "tiny") == folder
    with pytest.raises(Exception, match="no sweep 'best-of-may'"):
        find_sweep(folder.path.parents[1], "best-of-may")


def test_the_name_of_a_renamed_sweep_is_free_for_another(command, folder, tiny_file):
    other = make_sweep(folder.path.parents[1], read_sweep(tiny_file, assignments=["training.pairs=1280"]), when=1)
    assert command("rename", folder.id, "first")[0] == 0
    assert find_sweep(folder.path.parents[1], "tiny") == other
    code, _, err = command("rename", other.id, "first")
    assert (code, err) == (2, f"error: NAME 'first' is that of sweep {folder.id}; write another one\n")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("t0007", "names a trial"),
        ("a b", "must be letters"),
        ("", "must be letters"),
        ("../up", "must be letters"),
        ("\x1b[31m", "must be letters"),
    ],
)
def test_a_name_that_cannot_be_typed_or_means_a_trial_is_refused(command, folder, name, rule):
    code, out, err = command("rename", "tiny", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert rule in err
    assert "label" not in (folder.path / LEDGER).read_text(encoding="utf-8")


def test_a_note_stands_in_status_runs_and_report_until_it_is_removed(command, folder):
    assert command("note", "tiny", "  learning rate\n too high ")[0] == 0
    assert "  note: learning rate too high\n" in command("status")[1]
    assert listed(command)[folder.id]["note"] == "learning rate too high"
    assert gather(folder).note == "learning rate too high"
    assert command("note", "tiny", "")[0] == 0
    assert "note" not in command("status")[1]


@pytest.mark.parametrize(("text", "rule"), [("x" * 2001, "at most 2,000"), ("a\x07b", "control codes")])
def test_a_note_that_is_too_long_or_no_text_is_one_line(command, folder, text, rule):
    code, out, err = command("note", "tiny", text)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert rule in err


def test_an_archived_sweep_is_hidden_until_it_is_asked_for(command, folder, tiny_file):
    other = make_sweep(folder.path.parents[1], renamed(read_sweep(tiny_file), "older"), when=1)
    assert command("archive", "tiny")[0] == 0
    assert listed(command).keys() == {other.id}
    assert "1 sweep not listed; --archived lists them" in command("runs")[2]
    assert listed(command, "--archived").keys() == {other.id, folder.id}
    assert find_sweep(folder.path.parents[1], None) == other, "the latest is one that is not archived"
    assert "archived" in command("status", "tiny")[1]
    assert command("archive", "tiny", "--undo")[0] == 0
    assert listed(command).keys() == {other.id, folder.id}
    assert find_sweep(folder.path.parents[1], None) == folder


def test_every_change_is_one_event_and_one_line_of_the_audit(command, folder):
    before = (folder.path / LEDGER).read_bytes()
    for words in (("rename", "tiny", "may"), ("note", "may", "so"), ("archive", "may"), ("archive", "may", "--undo")):
        assert command(*words)[0] == 0
    lines = (folder.path / LEDGER).read_bytes().removeprefix(before).splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["label"] * 4
    assert [(line.action, line.subject) for line in read_audit(folder.path.parents[1])] == [
        ("rename", f"{folder.id}, may"),
        ("note", f"{folder.id}, so"),
        ("archive", folder.id),
        ("archive", f"{folder.id}, undone"),
    ]
    assert len(Ledger(folder.path / LEDGER, mend=False).reports(0)) == 2, "the search reads the ledger as before"
    (folder.path / LABELS).write_text("", encoding="utf-8")  # a power loss
    assert folder.labels() == {"name": "may", "note": "so", "archived": False}


def test_the_driver_of_a_running_sweep_writes_the_event_itself(command, folder):
    with only_driver(folder), folder_lease(folder):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(command("note", "tiny", "it runs")))
        asking.start()
        wait_until(lambda: list(folder.path.glob(f"{REQUESTS}/*.json")))
        assert "note" not in log_of(folder.path).labels
        take_requests(folder)
        asking.join(PATIENCE_S)
    assert answers[0][0] == 0, answers
    assert log_of(folder.path).labels == {"note": "it runs"}
    assert not list(folder.path.glob(f"{REQUESTS}/*"))


def test_a_request_that_is_none_is_removed_and_harms_nothing(folder):
    place = folder.path / REQUESTS
    place.mkdir()
    before = (folder.path / LEDGER).read_bytes()
    for number, text in enumerate(['{"event": "end", "number": 0}', "[]", "{", '{"event": "label", "note": "kept"}']):
        (place / f"{number}.json").write_text(text, encoding="utf-8")
    take_requests(folder)
    (line,) = (folder.path / LEDGER).read_bytes().removeprefix(before).splitlines()
    assert json.loads(line)["note"] == "kept"
    assert not list(place.iterdir())


def test_a_deleted_sweep_leaves_no_file_and_says_what_stays(command, folder):
    storage = folder.path.parents[1]
    code, out, err = command("delete", "tiny")
    assert (code, out) == (2, "")
    assert f"sweep {folder.id} goes: 1 trial, 1 checkpoint, 0.0 MB" in err
    assert "stays: " in err
    assert err.endswith("add --yes, or run it on a terminal\n")
    assert folder.path.exists()
    code, out, err = command("delete", "tiny", "--yes", "--json")
    assert code == 0, err
    going = json.loads(out)
    assert (going["sweep"], going["trials"], going["checkpoints"], going["mlflow_runs"]) == (folder.id, 1, 1, 0)
    assert going["bytes"] >= 100
    left = [path.relative_to(storage).as_posix() for path in storage.rglob("*") if folder.id in path.name]
    assert left == [f"deleted/{folder.id}.json"], "the hours that it took"
    assert [(line.action, line.subject) for line in read_audit(storage)] == [("delete", folder.id)]
    assert command("status", folder.id)[0] == 2


def test_a_sweep_that_runs_is_not_deleted(command, folder):
    with only_driver(folder), folder_lease(folder):
        code, _, err = command("delete", "tiny", "--yes")
    assert code == 1
    assert f"`babeltune stop {folder.id}`" in err
    assert folder.path.exists()


def test_a_sweep_by_which_a_registered_model_was_decided_is_not_deleted(command, folder):
    registered = "models:/tiny@champion (version 1)"
    decision = Decision(verdict="promote", sweep=folder.id, trial="t0000", report=2, reasons=(), registered=registered)
    record_decision(StorageView(read_cluster()), folder, decision, dry_run=False)
    code, _, err = command("delete", "tiny", "--yes")
    assert code == 1
    assert "models:/tiny@champion (version 1) was decided by its scores" in err
    assert f"`babeltune archive {folder.id}`" in err
    assert folder.path.exists()


def test_a_sweep_from_which_another_is_to_start_is_deleted_afterwards(command, folder, tiny_file):
    warm = read_sweep(tiny_file, assignments=["name=warm", "sampler.warm_start=tiny"])
    other = make_sweep(folder.path.parents[1], warm, state="stopped", when=1)
    code, _, err = command("delete", "tiny", "--yes")
    assert code == 1
    assert f"sweep {other.id} starts from it" in err
    write_json(other.path / TAKEN_OVER_FILE, {"from": "tiny", "trials": []})  # as its driver does
    assert command("delete", "tiny", "--yes")[0] == 0


def test_a_sweep_that_another_means_by_the_beginning_of_its_id_is_not_deleted_either(command, folder, tiny_file):
    begun = make_sweep(folder.path.parents[1], read_sweep(tiny_file, assignments=["name=tiny-two"]))
    warm = read_sweep(tiny_file, assignments=["name=warm", "sampler.warm_start=tiny"])
    other = make_sweep(folder.path.parents[1], warm, state="stopped", when=1)
    code, _, err = command("delete", begun.id, "--yes")
    assert code == 1
    assert f"sweep {other.id} starts from it" in err


def test_runs_in_mlflow_get_the_labels_and_are_deleted_recoverably(command, folder):
    storage = folder.path.parents[1]
    sweep, client = folder.sweep(), MlflowClient(sqlite_url(storage / "mlflow.db"))
    keys = ("digests", "environment", "contaminated", "teacher", "world")
    append_event(
        folder.path / LEDGER, "submit", spec=plain(sweep), facts={}, mlflow_metrics=None, **{key: {} for key in keys}
    )
    assert command("note", "tiny", "for the paper")[0] == 0
    experiment = client.get_experiment_by_name("tiny").experiment_id
    (run,) = client.search_runs([experiment], "tags.`babeltune.role` = 'sweep'")
    assert run.data.tags["babeltune.note"] == "for the paper"
    assert run.data.tags["mlflow.note.content"].startswith("for the paper\n")
    code, out, err = command("delete", "tiny", "--yes")
    assert code == 0, err
    assert "1 run in MLflow can be restored" in out
    assert client.search_runs([experiment]) == []
    client.restore_run(run.info.run_id)
    assert [each.info.run_id for each in client.search_runs([experiment])] == [run.info.run_id]
