"""A power loss empties a small file: reading, promoting and going on work all the same, and lose nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.evaluation.metric_names import SPEED
from babeltune.files import plain, write_whole
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.promote import promote
from babeltune.promotion.sealed_test_log import sealed_elsewhere
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.rebuild import damage, submitted
from conftest import cluster_at
from interrupted import stopped_in_its_second_trial
from made_sweeps import states

pytestmark = pytest.mark.usefixtures("one_scoring_process", "ray_cluster", "undrawn")
OF_SWEEP = (
    *("sweep.json", "facts.json", "prepared.json", "baselines.json", "state.json"),
    *("owner.json", "driver.json", "tracking.json", "mlflow.json"),
)
OF_TRIAL = ("trial.json", "progress.json")
SMALL = (*OF_SWEEP, *(f"trials/t0000/{name}" for name in OF_TRIAL))
FEW = ("sweep.json", "facts.json", "state.json", "trials/t0000/trial.json")
"""Those that `make test` empties at once; `make long` empties each alone."""


@pytest.fixture(scope="module")
def interrupted(ray_cluster, with_stores, tiny_file, tmp_path_factory):
    """A sweep of three trials that was stopped while its second trained: its storage."""
    storage = with_stores(tmp_path_factory.mktemp("interrupted") / "storage")
    sweep = read_sweep(
        tiny_file,
        assignments=["budget={trials: 3}", "training={pairs: 6400, reports: 4, global_batch: 32, learning_rate: 2e-3}"],
    )
    stopped_in_its_second_trial(sweep, storage)
    return storage


@pytest.fixture
def stopped(interrupted, tmp_path):
    """A copy of it for one test."""
    shutil.copytree(interrupted, tmp_path / "storage")
    (place,) = (tmp_path / "storage" / "sweeps").iterdir()
    return SweepFolder(place), cluster_at(tmp_path / "storage")


def rows_of(folder):
    shown = [plain(replace(row, steps=None, warning="")) for row in leaderboard(folder) if row.state != "damaged"]
    return [row | {"metrics": {k: v for k, v in row["metrics"].items() if k != SPEED}} for row in shown]


def commands(command, folder, cluster, tmp_path):
    """Calls a command with the cluster's file; it must end well."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        json.dumps({"storage": cluster.storage, "mlflow": cluster.mlflow, "worker_groups": 1}), encoding="utf-8"
    )

    def call(*words):
        output = command.prints(*words, "--cluster", file, "--json")
        return json.loads(output[output.index("{" if words[0] != "runs" else "[") :])

    return call


@pytest.mark.long
@pytest.mark.parametrize("names", [FEW, *(pytest.param((name,), id=name, marks=pytest.mark.long) for name in SMALL)])
def test_a_finished_sweep_is_seen_promoted_and_resumed_without(copied, command, tmp_path, names):
    _, folder, cluster = copied
    call, before = commands(command, folder, cluster, tmp_path), rows_of(folder)
    trials = [row for row in before if row["params"]]
    for name in names:
        (folder.path / name).write_bytes(b"")
    document = call("status", folder.id)
    assert document["state"] == "finished"
    assert [row for row in rows_of(folder) if row["params"]] == trials
    assert [each["sweep"] for each in call("runs")] == [folder.id]
    call("runs", folder.id)
    decision = call("promote", folder.id)
    assert (decision["verdict"], decision["trial"]) == ("promote", trials[0]["name"]), decision["reasons"]
    assert call("resume", folder.id)["state"] == "finished"
    assert rows_of(folder) == before
    assert not [name for name in names if damage(folder.path / name) and not name.endswith("progress.json")]
    assert len(json.loads((folder.path / "facts.json").read_text())["code"]["babeltune"]) == 64


@pytest.mark.long
@pytest.mark.parametrize("name", [*SMALL, *(f"trials/t0001/{each}" for each in OF_TRIAL)])
def test_an_interrupted_sweep_is_seen_and_goes_on_without(stopped, command, tmp_path, name):
    folder, cluster = stopped
    call, before = commands(command, folder, cluster, tmp_path), [row for row in rows_of(folder) if row["params"]]
    (folder.path / name).write_bytes(b"")
    assert call("status", folder.id)["state"] in ("stopped", "interrupted")
    call("runs")
    ended = [row for row in rows_of(folder) if row["params"] and row["state"] == "finished"]
    assert ended == [row for row in before if row["state"] == "finished"]
    assert call("promote", f"{folder.id}/t0000", "--dry-run")["trial"] == "t0000"
    assert call("resume", folder.id)["state"] == "finished"
    after = [row for row in rows_of(folder) if row["params"]]
    assert sorted(row["name"] for row in after) == ["t0000", "t0001", "t0002"]
    assert {row["state"] for row in after} == {"finished"}
    assert "t0001 goes on after" in read_log(folder)
    assert not damage(folder.path / name)


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
@pytest.mark.long
def test_a_trial_whose_checkpoints_records_are_empty_goes_on_without_them(stopped, name):
    folder, cluster = stopped
    emptied = sorted(folder.trial(1).glob(f"checkpoints/*/{name}"))
    assert emptied
    for path in emptied:
        path.write_bytes(b"")
    assert submit(folder.sweep(), cluster, into=folder.id).state() == "finished"
    assert "t0001 goes on without its latest checkpoint, which is damaged" in read_log(folder)
    assert states(folder)[1] == "finished"


@pytest.mark.long
def test_a_sweep_whose_small_files_are_all_empty_goes_on(stopped):
    folder, cluster = stopped
    sweep, params = folder.sweep(), [row["params"] for row in rows_of(folder)]
    for path in (*folder.path.glob("*.json"), *folder.path.glob("trials/*/*.json")):
        path.write_bytes(b"")
    assert folder.sweep() == sweep
    assert folder.state() == "interrupted"
    assert [row["params"] for row in rows_of(folder) if row["params"]] == [each for each in params if each]
    assert submit(sweep, cluster, into=folder.id).state() == "finished"
    assert [row["state"] for row in rows_of(folder)] == ["finished"] * 5
    assert read_log(folder).count("was damaged and is made again") >= 9
    assert promote(folder.id, cluster).verdict == "promote"


@pytest.mark.long
def test_a_trial_that_no_record_has_is_one_line_and_the_others_are_promoted(copied):
    sweep, folder, cluster = copied
    lines = (folder.path / "results.jsonl").read_bytes().splitlines(keepends=True)
    lost = rows_of(folder)[0]["name"]
    remaining = [
        line
        for line in lines
        if (json.loads(line)["event"], json.loads(line).get("number")) != ("propose", int(lost[1:]))
    ]
    (folder.path / "results.jsonl").write_bytes(b"".join(remaining))
    (folder.path / "trials" / lost / "trial.json").write_bytes(b"")
    (row,) = [row for row in leaderboard(folder) if row.state == "damaged"]
    assert f"results.jsonl does not say what was searched in {lost}; restore it from a copy" in row.warning
    decision = promote(folder.id, cluster)
    assert (decision.verdict, decision.trial != lost) == ("promote", True)
    assert any(f"does not say what was searched in {lost}" in reason for reason in decision.reasons)
    assert submit(sweep, cluster).state() == "finished"


@pytest.mark.long
def test_a_change_that_was_accepted_is_known_without_the_facts(copied):
    sweep, folder, cluster = copied
    more = replace(
        sweep, training=replace(sweep.training, pairs=1280), budget=replace(sweep.budget, trials=5, workers=1)
    )
    submit(more, cluster, into=folder.id, accept_changes=True)
    facts, conditions = folder.read("facts.json"), [row.condition for row in leaderboard(folder)]
    (folder.path / "facts.json").write_bytes(b"")
    (folder.path / "sweep.json").write_bytes(b"")
    assert folder.read("facts.json") == facts
    assert folder.sweep() == more
    assert folder.sweep_of(0) == sweep
    assert [row.condition for row in leaderboard(folder) if row.state != "damaged"] == conditions
    assert submit(more, cluster, into=folder.id).state() == "finished"
    assert json.loads((folder.path / "facts.json").read_text()) == facts


def test_a_sealed_test_is_known_without_what_was_prepared(copied, tiny_file):
    from babeltune.data.eval_sets import read_eval
    from babeltune.planning.sweep_file import read_data

    _, folder, cluster = copied
    data, root = read_data(tiny_file)
    sets = read_eval(data.test, root)
    (folder.path / "prepared.json").write_bytes(b"")
    assert submitted(folder)
    assert [rows.digest for rows in sealed_elsewhere(Path(cluster.storage), sets)] == [rows.digest for rows in sets]


def test_a_record_and_its_folder_are_on_the_disk_before_and_after_it_is_moved(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr("babeltune.files.sync", lambda path: done.append((path, (tmp_path / "a.json").exists())))
    SweepFolder(tmp_path).write("a.json", {"a": 1})
    (draft, before), (place, after) = done
    assert (draft.parent, before, place, after) == (tmp_path, False, tmp_path, True)
    write_whole(tmp_path / "b.json", b"5")
    assert len(done) == 2, "what may be lost is not waited for"
