"""What a bucket and a machine's mirror of it can do without, on a real S3 server."""

import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from babeltune.data.prepared import read_prepared
from babeltune.errors import SweepError
from babeltune.files import plain
from babeltune.promotion.candidate import find_candidate
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Keep
from babeltune.storage.mirror import Mirror
from babeltune.storage.packages import PACKAGE_MANIFEST, PULLING
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.driver.run import only_driver
from babeltune.sweep.state.fencing import OWNER, Lease
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.housekeeping import OPTIMIZER, why_removed
from babeltune.sweep.state.leaderboard import leaderboard, winner
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.sync import driver as driver_module
from babeltune.sweep.sync import view as view_module
from babeltune.sweep.sync.driver import DriverSync
from babeltune.sweep.sync.housekeeping import (
    bucket_removals,
    clean,
    drop_checkpoints,
    everything,
    evict,
    mirror_removals,
    remove_or_say_why,
)
from babeltune.sweep.sync.view import StorageView, records_in, stores_of
from babeltune.sweep.sync.worker import on_this_node, pull_trial
from babeltune.training.checkpoint import REPORTS, is_good
from bucket_servers import BUCKET, Door
from ports import free_port
from waiting import wait_until

NOW = -60.0  # an age that everything has
WEEK = 7 * 86_400.0


@pytest.fixture
def machines(s3, tmp_path, request):
    """The cluster as machines with caches of their own have it."""

    def cluster_of(name):
        return Cluster(
            storage=f"s3://{BUCKET}/{request.node.name[:60]}",
            cache=str(tmp_path / name),
            mlflow=f"sqlite:///{tmp_path}/mlflow.db",
            worker_groups=1,
        )

    return cluster_of


@pytest.fixture
def stored(copied, machines):
    """A finished sweep in a bucket, and the view of the machine that has sent it."""
    _, folder, _ = copied
    view = StorageView(machines("one"))
    shutil.copytree(folder.path.parents[1], view.folder)
    local = SweepFolder(view.folder / "sweeps" / folder.id)
    for key in stores_of(view.mirror, read_prepared(local.prepared)):
        view.mirror.push_package(view.mirror.path(key))
    for trial in local.trials():
        for checkpoint in sorted((trial / "checkpoints").glob("0*")):
            view.mirror.push_package(checkpoint, f"{view.mirror.key(checkpoint)}-1")
        view.mirror.push(trial / REPORTS)
    for record in records_in(local.path):
        view.mirror.push(record)
    return view, local


def cluster_file(view, place):
    path, at = place / "cluster.yaml", view.cluster
    path.write_text(
        f"version: 1\nname: far\naddress: local\nstorage: {at.storage}\ncache: {at.cache}\nmlflow: {at.mlflow}\n",
        encoding="utf-8",
    )
    return path


def removed(view, **options):
    listing = list(bucket_removals(view, older_s=NOW, **options))
    for removal in listing:
        removal.carry_out()
    return listing


def test_a_cleaned_bucket_has_whole_checkpoints_without_optimizers(stored, machines):
    view, folder = stored
    before = [(row.name, row.metrics) for row in leaderboard(folder)]
    listing = removed(view)
    assert listing
    assert {removal.reason for removal in listing} == {"the optimizer of a trial that has ended"}
    assert not [key for key in view.mirror.store.entries() if key.endswith(OPTIMIZER)]
    assert not removed(view), "nothing is left to remove"
    other = StorageView(machines("other"))
    remote = other.sweep(folder.id)
    assert [(row.name, row.metrics) for row in leaderboard(remote)] == before
    candidate = find_candidate(folder.id, other.folder)
    other.download_checkpoint(remote, candidate.trial.number, candidate.report.index, candidate.prepared)
    brought = remote.trial(candidate.trial.number) / "checkpoints" / f"{candidate.report.index:06d}"
    assert is_good(brought)
    assert sorted(path.name for path in brought.iterdir()) >= ["manifest.json", "state.json", "student.safetensors"]


def test_a_cut_off_removal_of_an_optimizer_is_finished_by_the_next_one(stored, machines, monkeypatch):
    view, folder = stored
    sweep, name = f"sweeps/{folder.id}", winner(folder).name
    trial = f"{sweep}/trials/{name}"

    def cut_off(key, data):
        raise OSError("the machine went down")

    with monkeypatch.context() as patch:
        patch.setattr(view.mirror.store, "write", cut_off)
        with pytest.raises(OSError, match="went down"):
            drop_checkpoints(view.mirror, sweep, (), [name])
    drop_checkpoints(view.mirror, sweep, (), [name])
    other = StorageView(machines("other"))
    names = [key.split("/")[-2] for key in view.mirror.store.entries(trial) if key.endswith(PACKAGE_MANIFEST)]
    assert names
    for name in names:
        assert other.mirror.pull_package(f"{trial}/checkpoints/{name}", other.folder / name)
        assert is_good(other.folder / name)


def test_in_a_bucket_only_the_best_keep_checkpoints_and_others_say_so(stored, machines):
    view, folder = stored
    best = winner(folder).name
    removed(view, top=1)
    keys = [key for key in view.mirror.store.entries(f"sweeps/{folder.id}/trials") if "/checkpoints/" in key]
    assert {key.split("/")[3] for key in keys} == {best}
    other = StorageView(machines("other"))
    remote = other.sweep(folder.id)
    assert find_candidate(folder.id, other.folder).name == best
    lost = next(row.name for row in leaderboard(remote) if row.best and row.name not in (best, "untrained", "teacher"))
    with pytest.raises(SweepError, match=rf"has its scores only: .*clean --top 1.* its own \({best}\)"):
        find_candidate(f"{folder.id}/{lost}", other.folder)
    assert find_candidate(f"{folder.id}/{lost}", other.folder, weights=False).name == lost


def test_stores_in_a_bucket_that_no_sweep_reads_go_once_they_are_old(stored):
    view, _ = stored
    unread = view.folder / "stores" / "tokens-0123456789abcdef"
    unread.mkdir()
    (unread / "values.npy").write_bytes(b"1" * 1000)
    view.mirror.push_package(unread)
    stores = {key.split("/")[1] for key in view.mirror.store.entries("stores")}
    assert not [each for each in bucket_removals(view, older_s=WEEK) if each.key.startswith("stores/")], "it is new"
    listing = [each for each in removed(view) if each.key.startswith("stores/")]
    assert [(each.key, each.size >= 1000) for each in listing] == [("stores/tokens-0123456789abcdef", True)]
    assert {key.split("/")[1] for key in view.mirror.store.entries("stores")} == stores - {unread.name}


def test_a_checkpoint_that_a_later_driver_replaced_goes(stored):
    view, folder = stored
    place = next(path for trial in folder.trials() for path in (trial / "checkpoints").glob("0*"))
    key = view.mirror.key(place)
    view.mirror.push_package(place, f"{key}-9")
    replaced = [each.key for each in removed(view) if "later driver" in each.reason]
    assert replaced == [f"{key}-1"]


def test_nothing_of_a_sweep_that_runs_is_removed_from_its_bucket(stored):
    view, folder = stored
    with only_driver(folder):
        assert not [each for each in bucket_removals(view, older_s=NOW) if each.key.startswith("sweeps/")]


def test_a_mirror_gives_up_what_it_has_not_used_and_the_bucket_has(stored):
    view, folder = stored
    mirror = view.mirror
    unsent = view.folder / "stores" / "tokens-fedcba9876543210"
    unsent.mkdir()
    (unsent / "values.npy").write_bytes(b"1")
    mirror.files_of(unsent)
    assert not list(mirror_removals(mirror, older_s=WEEK)), "all was used a moment ago"
    for note in (view.folder / ".seals").rglob("*.json"):
        os.utime(note, (time.time() - 2 * WEEK,) * 2)
    stores = stores_of(mirror, read_prepared(folder.prepared))
    used = mirror.path(stores[0])
    assert mirror.pull_package(mirror.key(used))
    assert evict(mirror, older_s=WEEK) > 0
    folders = {path for path in (view.folder / "stores").iterdir() if path.is_dir()}
    assert {used, unsent} <= folders, "what was used, and what nobody else has"
    assert not {view.mirror.path(key) for key in stores} & folders - {used}
    assert not list(folder.path.glob("trials/*/checkpoints/0*"))
    candidate = find_candidate(folder.id, view.folder)
    view.download_checkpoint(folder, candidate.trial.number, candidate.report.index, candidate.prepared)
    assert is_good(folder.trial(candidate.trial.number) / "checkpoints" / f"{candidate.report.index:06d}")


def test_what_a_driver_left_in_a_mirror_goes_once_its_sweep_does_not_run(stored):
    view, folder = stored
    cut_off = view.folder / PULLING / "x"
    draft = folder.trial(0) / "checkpoints" / ".000001.draft"
    leftovers = [folder.path / "train", folder.path / "tune", draft, cut_off]
    for path in leftovers:
        path.mkdir(parents=True, exist_ok=True)
        (path / "file").write_bytes(b"1")
    with only_driver(folder):
        assert {each.path for each in everything(view, older_s=NOW)} & set(leftovers) == {cut_off}
    assert not {draft, cut_off} & {each.path for each in everything(view, older_s=WEEK)}, "they are young"
    clean(view, older_s=NOW)
    assert not [path for path in leftovers if path.exists()]


def test_a_node_gives_up_unused_copies_before_a_trial_if_the_cluster_says_so(stored, machines):
    view, folder = stored
    where = machines("one").mirrored
    for note in (view.folder / ".seals").rglob("*.json"):
        os.utime(note, (time.time() - 2 * WEEK,) * 2)
    trial = folder.trial(int(winner(folder).name[1:]))
    order = TrialAssignment(
        trial={},
        prepared=view.mirror.key(folder.prepared),
        folder=f"sweeps/{folder.id}/trials/t0099",
        seed=0,
        mirror=replace(where, unused_days=7.0),
    )

    class Nobody:
        def stopped(self):
            return False

    with on_this_node(order, Nobody(), 0, 1, "cpu") as (here, _):
        assert Path(here.prepared).exists()
    assert not list(trial.glob("checkpoints/0*"))
    assert any((view.folder / "stores").glob("tokens-*")), "what the trial reads is brought again"


def test_the_command_cleans_a_bucket(stored, command, tmp_path):
    view, folder = stored
    cluster = cluster_file(view, tmp_path)
    before = set(view.mirror.store.entries())
    out = command.prints("clean", "--dry-run", "--older", "0", "--cluster", cluster)
    assert "the optimizer of a trial that has ended" in out
    assert set(view.mirror.store.entries()) == before
    out = command.prints("clean", "--older", "0", "--yes", "--json", "--cluster", cluster)
    paths = {removal["path"] for removal in json.loads(out)}
    assert before - set(view.mirror.store.entries()) == {key for key in paths if key.endswith(OPTIMIZER)}
    assert not list(folder.path.glob("trials/*/checkpoints/0*")), "the mirror can bring them again"


@pytest.mark.parametrize("at_once", [True, False], ids=["of all trials", "of trials that end"])
def test_a_sweeps_own_policy_cleans_its_bucket_while_it_runs(stored, machines, monkeypatch, at_once):
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", 0.1)
    view, folder = stored
    sweep = replace(folder.sweep(), keep=Keep(trials=1, optimizer=False))
    with DriverSync(machines("one"), folder) as sync:
        policy = CheckpointPolicy(sweep, folder, sync)
        if at_once:
            policy.catch_up()
        else:
            for row in leaderboard(folder):
                if row.name.startswith("t0"):
                    policy.ended(row)
    keys = [key for key in view.mirror.store.entries(f"sweeps/{folder.id}/trials") if "/checkpoints/" in key]
    assert {key.split("/")[3] for key in keys} == {winner(folder).name}
    assert not [key for key in keys if key.endswith(OPTIMIZER)]
    other = StorageView(machines("other"))
    remote = other.sweep(folder.id)
    candidate = find_candidate(folder.id, other.folder)
    other.download_checkpoint(remote, candidate.trial.number, candidate.report.index, candidate.prepared)
    assert is_good(remote.trial(candidate.trial.number) / "checkpoints" / f"{candidate.report.index:06d}")
    assert [path.name for path in remote.trials() if why_removed(path)], "other machines know why"


# What a driver sends, and what readers ask


def test_a_large_record_is_sent_at_intervals_and_at_the_end(machines, monkeypatch):
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", 0.05)
    cluster = machines("one")
    folder = SweepFolder(cluster.folder / "sweeps" / "a-0123456789")
    folder.path.mkdir(parents=True)
    ledger, small = folder.path / "results.jsonl", folder.path / "stage.json"

    def copy_of(path):
        return sync.mirror.store.read(f"sweeps/{folder.id}/{path.name}") or b""

    with DriverSync(cluster, folder) as sync:
        for number in range(3):
            ledger.write_bytes(ledger.read_bytes() + b"x" * 2**20 if number else b"y" * 2**20)
            small.write_bytes(b"%d" % number)
            sync.wake()
            wait_until(lambda number=number: copy_of(small).startswith(b"%d" % number))
        assert len(copy_of(ledger)) < ledger.stat().st_size, "each MiB waits two seconds"
    assert copy_of(ledger).startswith(ledger.read_bytes())


@contextmanager
def following(machines, folder, s3, monkeypatch):
    """The sweep as another machine follows it, and the door through which that one asks the server."""
    monkeypatch.setattr(view_module, "POLL_INTERVAL_S", 0.0)
    door = Door(free_port(), s3.door.server)
    door.open()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
        remote = StorageView(machines("other")).sweep(folder.id)
    remote.refresh()
    door.requests.clear()
    door.answers.clear()
    yield remote, door
    door.shut()


def listings(door):
    """Of a sweep or a trial. Of an object that is not there, the S3 library asks whether it is a folder: one key."""
    return [line for line in door.requests if "list-type" in line and "max-keys=1&" not in line]


def test_who_follows_a_sweep_that_rests_asks_for_five_records(stored, machines, s3, monkeypatch):
    view, folder = stored
    leave_lease(view, folder, ended=True)
    with following(machines, folder, s3, monkeypatch) as (remote, door):
        for _ in range(5):
            remote.refresh()
        assert len(door.requests) == 25
        assert not listings(door)
        assert sum(door.answers) < 25 * 2_000, "headers only"


@pytest.mark.long
def test_who_follows_a_busy_sweep_gets_what_is_new_and_lists_nothing(stored, machines, s3, monkeypatch):
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", 0.1)
    view, folder = stored
    old = (folder.path / "results.jsonl").read_bytes()
    with DriverSync(machines("one"), folder) as sync:

        def train(number):
            shutil.copytree(folder.trial(0), folder.trial(number), ignore=shutil.ignore_patterns("checkpoints", "out*"))
            view.mirror.push(folder.trial(number) / REPORTS)

        def tell(event, number, **facts):
            with (folder.path / "results.jsonl").open("ab") as ledger:
                ledger.write(json.dumps({"event": event, "number": number, **facts}).encode() + b"\n")
            sync.wake()

        for number in range(10, 40):
            train(number)
        (folder.path / "results.jsonl").write_bytes(
            old + b'{"event": "stop", "number": 0, "time_ms": 1234567890123}\n' * 10_000
        )
        size = (folder.path / "results.jsonl").stat().st_size
        tell("stop", 39)
        wait_until(lambda: sync.mirror.store.entry(f"sweeps/{folder.id}/results.jsonl").size > size)
        wait_until(lambda: sync.mirror.store.entry(f"sweeps/{folder.id}/trials/t0039/trial.json"))
        with following(machines, folder, s3, monkeypatch) as (remote, door):
            looks = 0

            def look(fact):
                nonlocal looks
                looks += 1
                remote.refresh()
                return fact()

            for number in range(40, 45):
                train(number)
                tell("propose", number, params={})
                wait_until(lambda number=number: look(lambda: number in log_of(remote.path).trials))
                tell("end", number, state="COMPLETE")
                wait_until(lambda number=number: look(lambda: log_of(remote.path).trials[number].end is not None))
            assert [(r.name, r.state, r.metrics) for r in leaderboard(remote)] == [
                (r.name, r.state, r.metrics) for r in leaderboard(folder)
            ]
            assert (remote.path / "results.jsonl").read_bytes() == (folder.path / "results.jsonl").read_bytes()
            assert not listings(door)
            assert len(door.requests) <= 16 * looks
            reports = (folder.trial(0) / REPORTS).stat().st_size
            assert sum(door.answers) < 5 * reports + 1_500 * len(door.requests), "no ledger of half a megabyte"
            folder.set_state("stopped")
            sync.wake()
            wait_until(lambda: look(lambda: remote.state() == "stopped"))
            assert listings(door), "other records may be there"


def test_mlflow_gets_the_name_that_a_checkpoint_has_in_the_bucket(stored, machines, monkeypatch):
    monkeypatch.setattr(driver_module, "RENEWAL_INTERVAL_S", 0.1)
    view, folder = stored
    trial = folder.trial(int(winner(folder).name[1:]))
    report = int(max(path.name for path in (trial / "checkpoints").glob("0*")))
    with DriverSync(machines("one"), folder) as sync:
        key = sync.key_of(trial, report)
        assert f"{key}/{PACKAGE_MANIFEST}" in view.mirror.store.entries(key)
        assert key.endswith(f"/{report:06d}-1")
        assert sync.key_of(trial, 99).endswith(f"/000099-{sync.token}"), "one that is on its way"
    assert (
        DriverSync(Cluster(storage=str(machines("one").folder)), folder)
        .key_of(trial, report)
        .endswith(f"/{report:06d}")
    )


# Whether a driver may have a sweep, the lease decides

ELSEWHERE = plain(Lease(host="elsewhere", machine="another", folder="/x", token=5, expiry_s=330.0))


def leave_lease(view, folder, *, held_for=0.0, **more):
    """Puts the lease of a driver on another machine into the bucket, as it is at this moment."""
    beat = time.time() + more.pop("clock", 0.0)
    lease = {**ELSEWHERE, "beat": beat, "taken_at": beat - held_for, **more}
    view.mirror.store.write(f"sweeps/{folder.id}/{OWNER}", json.dumps(lease).encode())


def put_old_store(view):
    unread = view.folder / "stores" / "tokens-0123456789abcdef"
    unread.mkdir(exist_ok=True)
    (unread / "values.npy").write_bytes(b"1" * 1000)
    view.mirror.push_package(unread)
    return f"stores/{unread.name}"


LONG = pytest.mark.long


@pytest.mark.parametrize("clock", [-86_400.0, *(pytest.param(offset, marks=LONG) for offset in (-100.0, 86_400.0))])
def test_a_silent_holder_of_a_lease_keeps_its_sweep_whatever_its_clock(stored, machines, clock):
    view, folder = stored
    leave_lease(view, folder, clock=clock)
    (folder.path / "train").mkdir(exist_ok=True)
    other = StorageView(machines("other"))
    for place in (view, other):
        listing = everything(place, older_s=NOW)
        assert not [each for each in listing if "sweeps" in each.path.relative_to(place.folder).parts], clock
    view.mirror.store.write(f"sweeps/{folder.id}/{OWNER}", b"{damag")
    assert not [each for each in bucket_removals(view, older_s=NOW) if each.key.startswith("sweeps/")], "nobody knows"


def test_a_sweep_is_cleaned_once_its_lease_has_run_out_by_the_buckets_clock(stored):
    view, folder = stored
    leave_lease(view, folder, expiry_s=1.0, clock=86_400.0)
    wait_until(lambda: [each for each in bucket_removals(view, older_s=NOW) if each.key.startswith("sweeps/")])
    assert removed(view)
    assert not [key for key in view.mirror.store.entries() if key.startswith(".")], (
        "the clock was asked without a trace"
    )


def test_stores_stay_while_a_resumed_sweep_may_look_for_them(stored):
    view, folder = stored
    store = put_old_store(view)
    leave_lease(view, folder)
    assert not list(bucket_removals(view, older_s=NOW)), "what was prepared is an earlier driver's"
    leave_lease(view, folder, held_for=3600.0)
    assert [each.key for each in bucket_removals(view, older_s=NOW)] == [store], "this driver has prepared"
    view.mirror.store.write(f"sweeps/b-0123456789/{OWNER}", json.dumps(ELSEWHERE).encode())
    assert not list(bucket_removals(view, older_s=NOW)), "another one has only begun"


def test_what_was_listed_stays_if_a_driver_takes_the_lease_before_it_goes(stored):
    view, folder = stored
    store = put_old_store(view)
    listing = list(bucket_removals(view, older_s=NOW))
    assert store in {each.key for each in listing}
    leave_lease(view, folder)
    before = view.mirror.store.entries()
    assert {remove_or_say_why(each) for each in listing} == {"in use by now"}
    assert view.mirror.store.entries() == before


def test_what_has_vanished_since_it_was_listed_is_counted(stored):
    view, folder = stored
    for name in ("train", "tune"):
        (folder.path / name).mkdir(exist_ok=True)
    listed = everything(view, older_s=NOW)
    shutil.rmtree(folder.path / "train")
    why = {each.path: remove_or_say_why(each) for each in listed}
    assert why.pop(folder.path / "train") == "gone meanwhile"
    assert set(why.values()) == {""}
    assert not (folder.path / "tune").exists()


def test_a_node_gives_up_nothing_of_a_sweep_that_runs(stored, machines):
    view, folder = stored
    node = Mirror(machines("node").mirrored)
    name = winner(folder).name
    place = node.path(f"sweeps/{folder.id}/trials/{name}")
    pull_trial(node, place)
    assert not (node.path(f"sweeps/{folder.id}") / "sweep.json").exists(), "a node brings only what a trial needs"
    for note in (node.folder / ".seals").rglob("*.json"):
        os.utime(note, (time.time() - 2 * WEEK,) * 2)
    leave_lease(view, folder)
    evict(node, older_s=WEEK)
    assert list(place.glob("checkpoints/0*"))
    leave_lease(view, folder, ended=True)
    assert evict(node, older_s=WEEK) > 0
    assert not list(place.glob("checkpoints/0*"))


def test_a_silent_driver_is_asked_to_stop_and_waited_for(stored, command, tmp_path):
    view, folder = stored
    leave_lease(view, folder, clock=-100.0)
    err = command.refuses("stop", folder.id, "--wait", 1, "--cluster", cluster_file(view, tmp_path), code=1)
    assert f"asked sweep {folder.id} to stop" in err
    assert view.mirror.store.entry(f"sweeps/{folder.id}/stop") is not None
    leave_lease(view, folder, ended=True)
    assert "is not running" in command.refuses("stop", folder.id, "--cluster", cluster_file(view, tmp_path), code=1)
