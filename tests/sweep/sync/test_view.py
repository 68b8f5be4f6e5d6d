"""Sweeps whose storage is a bucket on a real S3 server; another machine is another cache folder."""

import json
import os
import re
import threading
import time
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from babeltune.errors import ClusterError, StoreError, SweepError
from babeltune.files import plain
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.evaluate import evaluate_model
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import Cluster
from babeltune.stages import SEARCHING
from babeltune.storage.mirror import unstamped
from babeltune.storage.object_store import ObjectStore
from babeltune.storage.packages import PACKAGE_MANIFEST
from babeltune.sweep.driver.run import driven_folder, submit
from babeltune.sweep.state import fencing
from babeltune.sweep.state.fencing import OWNER, Lease
from babeltune.sweep.state.folder import SweepFolder, read_log
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.lease import only_driver
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync import driver as driver_module
from babeltune.sweep.sync import leased_folder
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.view import StorageView
from babeltune.sweep_report.write import write_report
from babeltune.training.checkpoint import read_reports
from bucket_servers import BUCKET
from made_sweeps import states
from trials_here import standalone
from waiting import PATIENCE_S, wait_until, when

pytestmark = pytest.mark.long
PREFIX = "team"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The driver looks at the bucket often."""
    for module in (driver_module, fencing):
        monkeypatch.setattr(module, "RENEWAL_INTERVAL_S", 0.3)
    monkeypatch.setattr(driver_module, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr("babeltune.sweep.sync.view.POLL_INTERVAL_S", 0.1)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The cluster as a machine with its own cache has it."""
    place = tmp_path_factory.mktemp("machines")

    def cluster_of(name, **more):
        return Cluster(
            cache=str(place / name),
            mlflow=f"sqlite:///{place}/mlflow.db",
            worker_groups=1,
            **{"storage": f"s3://{BUCKET}/{PREFIX}", "storage_timeout": 30.0, **more},
        )

    return cluster_of


@pytest.fixture(scope="module")
def far(ray_cluster, s3_server, with_stores, tiny_file, machine):
    """A finished sweep of two trials, which ran on machine `one` while the server was away for two seconds."""
    sweep = replace(read_sweep(tiny_file), name="far")
    folder = SweepFolder(machine("one").folder / "sweeps" / sweep_id(sweep))

    def away():
        s3_server.door.shut()
        time.sleep(2.0)
        s3_server.door.open()

    with_stores(machine("one").folder)
    outage = when(lambda: (folder.trial(0) / "trial.json").exists(), away)
    submit(sweep, machine("one"))
    outage.join()
    return sweep, folder


def ends(folder):
    lines = (folder.path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["number"] for line in map(json.loads, lines) if line["event"] == "end"]


def test_another_machine_sees_the_sweep_although_the_server_was_away(far, s3, machine):
    _, folder = far
    assert folder.state() == "finished"
    remote = StorageView(machine("looker")).sweep("far")
    assert remote.id == folder.id
    assert remote.path != folder.path
    assert (remote.state(), read_log(remote)) == ("finished", read_log(folder))
    assert leaderboard(remote) == leaderboard(folder)
    assert [row.state for row in leaderboard(remote) if row.name.startswith("t0")] == ["finished", "finished"]
    assert not is_driven(remote)
    assert not list((remote.path.parents[1]).glob("stores/*")), "who only looks needs no stores"


def test_the_bucket_holds_what_lasts_and_no_scratch(far, s3):
    _, folder = far
    keys = {key.removeprefix(f"{PREFIX}/sweeps/{folder.id}/") for key in s3.keys(f"{PREFIX}/sweeps/{folder.id}/")}
    assert {"sweep.json", "results.jsonl", "prepared.json", "mlflow.json", "state.json", OWNER} <= keys
    assert {"trials/t0000/trial.json", "trials/t0001/reports.jsonl"} <= keys
    assert f"trials/t0001/checkpoints/000002-1/{PACKAGE_MANIFEST}" in keys, "sent under the first fencing token"
    assert not [key for key in keys if key.startswith(("train/", "tune/")) or key.endswith(".lock")]
    assert str(folder.path.parents[1]) not in s3.get(f"{PREFIX}/sweeps/{folder.id}/prepared.json").decode()


def test_a_report_that_another_machine_makes_is_in_the_bucket(far, s3, machine):
    _, folder = far
    remote = StorageView(machine("reporter"))
    report = write_report(remote.sweep("far"), remote)
    assert s3.get(f"{PREFIX}/sweeps/{folder.id}/report.html") == report.path.read_bytes()
    words = " ".join(report.path.read_text(encoding="utf-8").split())
    assert "evenly spread, before training and after report" in words, "it has the examples"
    assert (StorageView(machine("reader")).sweep("far").path / "report.html").read_bytes() == report.path.read_bytes()


def test_a_model_is_promoted_and_evaluated_from_other_machines(
    far, s3, machine, one_scoring_process, tiny_file, offline
):
    _, folder = far
    decision = promote("far", machine("promoter"))
    assert decision.verdict == "promote", decision.reasons
    models = [key for key in s3.keys(f"{PREFIX}/models/{folder.id}/") if key.endswith(PACKAGE_MANIFEST)]
    assert len(models) == 1
    assert len(s3.keys(f"{PREFIX}/openings/")) == 1
    done = evaluate_model(f"{folder.id}/{decision.trial}", str(tiny_file), machine("judge"), test=True)
    assert done.scores.items() >= decision.test.items()
    assert any("opened 2 times" in words for words in done.warnings), done.warnings
    assert len(s3.keys(f"{PREFIX}/openings/")) == 2


def test_a_trial_goes_on_on_an_empty_node_and_skips_a_truncated_checkpoint(far, s3, machine):
    _, folder = far
    trial = json.loads((folder.trial(0) / "trial.json").read_text(encoding="utf-8"))
    trial["training"]["reports"] = 3
    at = f"sweeps/{folder.id}/trials/t0009"

    def on(node):
        where = machine(node).mirrored
        prepared = f"sweeps/{folder.id}/prepared.json"
        return TrialAssignment(trial=trial, prepared=prepared, folder=at, mirror=where)

    first = standalone(on("node1"))
    assert [next(first).index, next(first).index] == [1, 2]
    first.close()
    second = standalone(on("node2"))
    assert [next(second).index, next(second).index] == [2, 3], "it sent its last report again, and went on"
    second.close()
    reports = read_reports(machine("node2").folder / at)
    checkpoints = {
        key.split("/")[-2] for key in s3.keys(f"{PREFIX}/{at}/checkpoints/") if key.endswith(PACKAGE_MANIFEST)
    }
    assert "000003" in checkpoints
    assert len(checkpoints) <= 2, "the best and the last"
    key = f"{PREFIX}/{at}/checkpoints/000003/optimizer.safetensors"
    s3.put(key, s3.get(key)[:-10])
    third = list(standalone(on("node3")))
    assert third[-1].index == 3
    assert [r.metrics["dev/everyday/accuracy"] for r in third][-1] == reports[-1].metrics["dev/everyday/accuracy"]
    again = {key.split("/")[-2] for key in s3.keys(f"{PREFIX}/{at}/checkpoints/") if key.endswith(PACKAGE_MANIFEST)}
    assert again == checkpoints, "the damaged one was made and sent again"
    (fourth,) = standalone(on("node4"))
    assert (fourth.index, fourth.last) == (3, True)


def test_a_worker_without_its_stores_says_so(far, s3, machine):
    _, folder = far
    prepared = json.loads((folder.path / "prepared.json").read_text(encoding="utf-8"))
    teacher = prepared["teacher"].removeprefix("storage:")
    manifest = f"{PREFIX}/{teacher}/{PACKAGE_MANIFEST}"
    content = s3.get(manifest)
    s3.remove(manifest)
    trial = json.loads((folder.trial(0) / "trial.json").read_text(encoding="utf-8"))
    where = machine("bare").mirrored
    assignment = TrialAssignment(
        trial=trial,
        prepared=f"sweeps/{folder.id}/prepared.json",
        folder=f"sweeps/{folder.id}/trials/t0008",
        mirror=replace(where, timeout=1.0),
    )
    with pytest.raises(StoreError, match=rf"has no sound {teacher}; `babeltune resume`"):
        next(standalone(assignment))
    s3.put(manifest, content)


def test_a_sweep_goes_on_elsewhere_after_a_stop_from_afar_and_outlasts_a_dead_server(far, s3, machine):
    sweep, _ = far
    training = replace(sweep.training, pairs=12800, reports=10)
    sweep = replace(sweep, name="chain", training=training, budget=replace(sweep.budget, trials=2))
    id_ = sweep_id(sweep)
    one, two = (machine(name, storage_timeout=3.0) for name in ("one", "two"))
    here, remote = (SweepFolder(each.folder / "sweeps" / id_) for each in (one, two))

    def stop_from_afar():
        places = StorageView(machine("stopper"))
        folder = places.sweep("chain")
        assert is_driven(folder)
        assert driven_folder(id_, machine("stopper")) is not None
        with pytest.raises(SweepError, match=r"is being run on .*, whose last heartbeat was \d+ s ago"):
            submit(sweep, machine("stopper"))
        places.ask_to_stop(folder)

    stopper = when(lambda: read_reports(here.trial(0)), stop_from_afar)
    submit(sweep, one)
    stopper.join()
    assert here.state() == "stopped"
    done = len(read_reports(here.trial(0)))
    assert 0 < done < 10

    death = when(lambda: len(read_reports(remote.trial(0))) > done, s3.door.shut)
    words = rf"\d+ changed files wait in {re.escape(str(remote.path))}, .*`babeltune resume"
    with pytest.raises(ClusterError, match=words):
        submit(sweep, two)
    death.join()
    assert remote.state() == "failed"
    assert "nothing is lost" in read_log(remote)
    s3.door.open()
    submit(sweep, two)
    assert remote.state() == "finished"
    assert sorted(ends(remote)) == [0, 1], "each trial ended once"
    for number in (0, 1):
        assert [report.index for report in read_reports(remote.trial(number))] == list(range(1, 11))
    copy = StorageView(machine("looker")).sweep("chain")
    assert leaderboard(copy) == leaderboard(remote)

    (here.path / "results.jsonl").open("a").write('{"event": "report", "number": 7}\n')
    with DriverSync(one, here):
        assert leaderboard(here) == leaderboard(remote), "who drove last has the newest folder"
    (aside,) = one.folder.glob(f"superseded/{id_}-*/results.jsonl")
    assert '"number": 7' in aside.read_text(encoding="utf-8")


def test_a_driver_waits_for_a_reader_and_not_for_another_driver(far, machine, monkeypatch):
    _, folder = far
    one = machine("one")
    monkeypatch.setattr(leased_folder, "LOCK_TIMEOUT_S", 0.2)
    has, end, answers = threading.Event(), threading.Event(), []
    monkeypatch.setattr(leased_folder, "is_driven", lambda folder: answers.append(is_driven(folder)) or answers[-1])

    def look():
        with StorageView(one).mirror.lock(f"sweeps/{folder.id}"):
            has.set()
            wait_until(lambda: len(answers) > 2)
        end.set()

    threading.Thread(target=look).start()
    has.wait()
    with DriverSync(one, folder), only_driver(folder):
        assert end.wait(PATIENCE_S)
        assert not any(answers), "a reader is no driver"
        answers.clear()
        with pytest.raises(SweepError, match="is being run by"), DriverSync(one, folder):
            pass
    assert answers == [True], "one look was enough"


def test_a_driver_that_was_replaced_stops_and_sends_nothing_more(far, s3, machine):
    sweep, folder = far
    one, state = machine("one"), folder.path / "state.json"
    content, before = state.read_bytes(), state.stat()
    with DriverSync(one, folder) as driver_sync:
        owner = json.loads(s3.get(f"{PREFIX}/sweeps/{folder.id}/{OWNER}"))
        other = {**owner, "session": "another", "host": "elsewhere", "folder": "/x"}
        s3.door.shut()
        state.write_bytes(b"its own, which waits")
        when(lambda: driver_sync.trouble is not None, lambda: None).join()
        s3.put(f"{PREFIX}/sweeps/{folder.id}/{OWNER}", json.dumps(other).encode())
        s3.put(f"{PREFIX}/sweeps/{folder.id}/state.json", b"the other's")
        s3.door.open()
        wait_until(lambda: driver_sync.lost)
        with pytest.raises(SweepError, match="was taken over by elsewhere; this driver stops"):
            driver_sync.check()
    assert json.loads(s3.get(f"{PREFIX}/sweeps/{folder.id}/{OWNER}")) == other
    assert s3.get(f"{PREFIX}/sweeps/{folder.id}/state.json") == b"the other's"
    s3.put(f"{PREFIX}/sweeps/{folder.id}/state.json", content)
    state.write_bytes(content)
    os.utime(state, ns=(before.st_atime_ns, before.st_mtime_ns))
    s3.put(f"{PREFIX}/sweeps/{folder.id}/{OWNER}", json.dumps({**other, "expiry_s": 0.5}).encode())
    with DriverSync(one, folder):
        assert json.loads(s3.get(f"{PREFIX}/sweeps/{folder.id}/{OWNER}"))["session"] != "another"
    del sweep


def test_a_sweep_that_another_machine_took_over_is_that_ones_to_record(ray_cluster, s3, machine, tiny_file):
    sweep = read_sweep(tiny_file)
    longer = replace(sweep, name="taken", training=replace(sweep.training, pairs=38400))
    one = machine("one")
    folder = SweepFolder(one.folder / "sweeps" / sweep_id(longer))
    key = f"{PREFIX}/sweeps/{folder.id}/{OWNER}"

    def another(board):
        def come():
            owner = json.loads(s3.get(key))
            s3.put(key, json.dumps({**owner, "session": "another", "host": "elsewhere", "folder": "/x"}).encode())

        when(lambda: board.stage == SEARCHING and states(folder) == ["running"], come)

    with pytest.raises(SweepError, match="was taken over by elsewhere; this driver stops"):
        submit(longer, one, watch=another)
    assert folder.state() == "running", "as the other one left it"
    assert states(folder) == ["running"], "and so is the trial"
    client = MlflowClient(one.mlflow)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    sweep_runs = [run for run in runs if run.data.tags.get("babeltune.sweep") == folder.id]
    assert {run.info.status for run in sweep_runs if "babeltune.baseline" not in run.data.tags} == {"RUNNING"}


def test_a_lease_is_taken_by_the_takers_own_clock_once_its_holder_is_silent(far, s3, machine, monkeypatch):
    _, folder = far
    one, key = machine("one"), f"{PREFIX}/sweeps/{folder.id}/{OWNER}"
    before = json.loads(s3.get(key))["token"]
    ahead = plain(Lease(host="elsewhere", machine="another", folder="/x", token=50, expiry_s=1.5))

    def word(hours, **fields):
        s3.put(key, json.dumps({**ahead, "beat": time.time() + 3600 * hours, "renewals": 0, **fields}).encode())

    word(1, expiry_s=PATIENCE_S)
    looker = StorageView(machine("clock"))
    assert is_driven(looker.sweep("far")), "the store has it from just now"
    with monkeypatch.context() as patch:
        patch.setattr(leased_folder.LeasedFolder, "_say", lambda *_: word(1, renewals=1))  # while this driver watches
        with pytest.raises(SweepError, match="is being run on elsewhere"), DriverSync(one, folder):
            pass
    for hours in (-24, 1):  # a clock that is wrong decides nothing
        word(hours)
        with DriverSync(one, folder) as driver_sync:
            assert driver_sync.token == 51 > before, "which has said no more"
    word(1, expiry_s=1.0)
    wait_until(lambda: not is_driven(looker.sweep("far")))
    s3.put(key, json.dumps({**ahead, "ended": True}).encode())


def test_a_machine_that_drove_a_sweep_sees_the_driver_of_another_one(far, s3, machine):
    _, folder = far
    for name in ("one", "two"):
        with DriverSync(machine(name), SweepFolder(machine(name).folder / "sweeps" / folder.id)):
            pass
    key = f"{PREFIX}/sweeps/{folder.id}/{OWNER}"
    ended = s3.get(key)
    far_away = {"host": "elsewhere", "folder": "/x", "ended": False, "beat": time.time()}
    s3.put(key, json.dumps({**json.loads(ended), **far_away}).encode())
    assert is_driven(StorageView(machine("one")).sweep("far"))
    s3.put(key, ended)


def test_a_driver_without_its_store_ends_before_its_lease_can_be_taken(far, s3, machine, monkeypatch):
    _, folder = far
    monkeypatch.setattr(fencing, "MARGIN_S", 59.5)
    with DriverSync(machine("one"), folder) as driver_sync:
        driver_sync.check()
        s3.door.shut()
        words = wait_until(lambda: refusal(driver_sync.check))
        assert "could not be renewed for" in words
        assert f"`babeltune resume {folder.id}` goes on from what is saved" in words
        s3.door.open()
        driver_sync.check()  # nobody took it meanwhile


def refusal(check):
    try:
        check()
    except fencing.LeaseExpiredError as error:
        return str(error)
    return None


def test_what_a_driver_sends_late_changes_no_record_that_a_later_one_has_claimed(
    comparing_server, machine, monkeypatch
):
    server, place = comparing_server, f"{comparing_server.uri}/late"
    for module in (driver_module, fencing):
        monkeypatch.setattr(module, "RENEWAL_INTERVAL_S", 3600.0)  # it says nothing more
    one, two = (machine(f"{server.uri[:2]}-{name}", storage=place) for name in ("one", "two"))
    here, remote = (SweepFolder(each.folder / "sweeps" / "late") for each in (one, two))
    key, lease = (f"late/sweeps/late/{name}" for name in ("results.jsonl", OWNER))
    ledger = here.path / "results.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text('{"event": "propose", "number": 0}\n')
    with DriverSync(one, here) as first:
        first.wake()
        wait_until(lambda: b"propose" in (ObjectStore(place).read("sweeps/late/results.jsonl") or b""))
        server.put(lease, json.dumps({**json.loads(server.get(lease)), "ended": True}).encode())
        with DriverSync(two, remote) as second:
            assert second.token == first.token + 1
            claimed = server.get(key)
            assert unstamped(claimed)[0] == ledger.read_bytes() == (remote.path / "results.jsonl").read_bytes()
            ledger.write_text("what the first driver had not sent\n")
            with pytest.raises(SweepError, match="was taken over by"):
                first._view.mirror.push(ledger)
            assert server.get(key) == claimed
        first.wake()
        wait_until(lambda: first.lost)
        with pytest.raises(SweepError, match="was taken over by"):
            first.check()
