"""What a storage can do without."""

import errno
import json
import math
import os
import shutil
import signal
import tempfile
import time
from dataclasses import replace

import pytest

from babeltune.files import draft_folder, draft_of
from babeltune.machine import this_machine
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import Cluster
from babeltune.sweep.driver.run import _clean, only_driver, submit
from babeltune.sweep.state.fencing import OWNER, Lease
from babeltune.sweep.state.housekeeping import MANIFEST, OPTIMIZER, Removal, _last_change, left_drafts, removals
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.sync import housekeeping
from babeltune.sweep.sync.housekeeping import everything
from babeltune.sweep.sync.view import StorageView
from babeltune.training.checkpoint import is_good
from kills import killed_at

pytestmark = pytest.mark.slow

NOW = -60.0  # an age that everything has


@pytest.fixture
def folder(copied):
    return copied[1]


@pytest.fixture
def storage(folder):
    return folder.path.parents[1]


def cleaned(storage, **options):
    removed = list(removals(storage, older_s=NOW, **options))
    for removal in removed:
        removal.carry_out()
    return removed


def paths(listing, storage):
    return {removal.path.relative_to(storage).as_posix() for removal in listing}


@pytest.mark.usefixtures("one_scoring_process")
def test_a_cleaned_sweep_keeps_its_scores_and_can_be_promoted(copied):
    _, folder, cluster = copied
    storage = folder.path.parents[1]
    scores = [(row.name, row.metrics) for row in leaderboard(folder)]
    weights = set(storage.rglob("student.safetensors"))
    removed = cleaned(storage)
    assert {removal.path.name for removal in removed} >= {OPTIMIZER, "train"}
    assert all(removal.size >= 0 and removal.reason for removal in removed)
    assert not list(storage.rglob(OPTIMIZER))
    assert set(storage.rglob("student.safetensors")) == weights
    assert all(is_good(path.parent) for path in weights if path.parent.name.isdigit())
    assert [(row.name, row.metrics) for row in leaderboard(folder)] == scores
    assert promote(folder.id, cluster, dry_run=True).dev
    assert not cleaned(storage), "nothing is left to remove"


@pytest.mark.usefixtures("ray_cluster")
def test_what_is_cleaned_is_submitted_again_without_training_anything_twice(copied):
    sweep, folder, cluster = copied
    cleaned(folder.path.parents[1])
    before = [row.seconds for row in leaderboard(folder)]
    submit(sweep, cluster)
    assert [row.seconds for row in leaderboard(folder)] == before


def test_stores_that_no_sweep_reads_go_once_they_are_old(storage):
    unread = storage / "stores" / "tokens-0123456789abcdef"
    unread.mkdir()
    (unread / "values.npy").write_bytes(b"1" * 1000)
    draft = storage / "stores" / ".tokens-0123456789abcdef.draft"
    draft.mkdir()
    week = 7 * 86_400.0
    assert not {unread, draft} & {removal.path for removal in removals(storage, older_s=week)}, "they are new"
    for path in (unread / "values.npy", unread, draft):
        os.utime(path, (time.time() - 2 * week,) * 2)
    by_path = {removal.path: removal for removal in removals(storage, older_s=week)}
    assert by_path[unread].size == 1000
    assert draft in by_path
    read = {path.name for path in (storage / "stores").iterdir()} - {path.name for path in by_path}
    assert any(name.startswith("teacher-") for name in read)
    assert any(name.startswith("tokens-") for name in read)


def leave_draft(folder):
    """Is killed while it has a draft there."""
    with draft_folder("t0003-000001", folder) as draft:
        (draft / "model").mkdir()
        (draft / "model" / "weights").write_bytes(b"1" * 1000)
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_draft_of_a_command_goes_once_its_process_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    storage, week = tmp_path / "storage", time.time() - 7 * 86_400
    for place in (storage / "models" / "sweep-0", storage / "evaluations", None):
        assert killed_at(None, lambda: leave_draft(place))  # noqa: B023
    living, foreign = (draft_of(storage / "models" / name) for name in "ab")
    foreign = foreign.with_name(foreign.name.replace(this_machine(), "0" * 12))
    for path in (living, foreign):
        (path / "model").mkdir(parents=True)
        os.utime(path / "model", (week - 60, week - 60))
        os.utime(path, (week - 60, week - 60))
    view = StorageView(Cluster(storage=str(storage)))
    drafts = [each for each in everything(view, older_s=10 * 86_400) if "gone" in each.reason]
    assert len(drafts) == 3, "their processes are gone, whatever their age"
    assert sorted(each.size for each in drafts) == [1000] * 3
    for each in drafts:
        assert each.carry_out()
    assert not list((tmp_path / "temporary").iterdir())
    assert {each.path for each in left_drafts(storage, week)} == {foreign}, "nobody knows about its process"
    assert living.exists()


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": []}'])
def test_a_file_beside_a_damaged_manifest_stays_and_says_why(tmp_path, manifest):
    optimizer = tmp_path / OPTIMIZER
    optimizer.write_bytes(b"moments")
    (tmp_path / MANIFEST).write_text(manifest, encoding="utf-8")
    words = housekeeping.remove_or_say_why(Removal(optimizer, "its trial has ended", 7))
    assert words.endswith(f"{MANIFEST} is damaged, so {OPTIMIZER} stays beside it")
    assert optimizer.exists()


def test_a_draft_that_goes_while_it_is_looked_at_is_none(tmp_path):
    assert _last_change(tmp_path / "gone") == math.inf


def test_only_the_best_trials_keep_checkpoints_if_that_is_asked_for(folder, storage):
    best = leaderboard(folder)[0].name
    cleaned(storage, top=1)
    assert {path.parents[2].name for path in storage.rglob("student.safetensors") if "trials" in path.parts} == {best}


def test_nothing_of_a_running_sweep_is_removed(folder, storage):
    with only_driver(folder):
        assert not [path for path in paths(removals(storage, older_s=NOW), storage) if path.startswith("sweeps/")]
        folder.prepared.unlink()
        assert not list(removals(storage, older_s=NOW)), "it may read any store that is there"


def leave_lease(folder, silent_for, **more):
    """Leaves the lease of a driver on another machine, whose last heartbeat was this many seconds ago."""
    lease = Lease(host="elsewhere", machine="another", folder="/x", token=5, expiry_s=330.0, **more)
    (folder.path / OWNER).write_bytes(lease.encode())
    os.utime(folder.path / OWNER, (time.time() - silent_for,) * 2)


def test_a_driver_elsewhere_keeps_its_sweep_for_as_long_as_its_lease_lasts(folder, storage):
    for silent_for in (0.0, 100.0, 300.0):
        leave_lease(folder, silent_for)
        names = paths(removals(storage, older_s=NOW), storage)
        assert not [path for path in names if path.startswith("sweeps/")], silent_for
    leave_lease(folder, 340.0)
    assert f"sweeps/{folder.id}/train" in paths(removals(storage, older_s=NOW), storage)


def test_a_damaged_lease_keeps_a_sweep_for_a_day(folder, storage):
    for hours, stays in ((23, True), (25, False)):
        (folder.path / OWNER).write_bytes(b"")
        os.utime(folder.path / OWNER, (time.time() - 3600 * hours,) * 2)
        assert (f"sweeps/{folder.id}/train" not in paths(removals(storage, older_s=NOW), storage)) == stays


def test_what_was_listed_stays_if_a_driver_begins_before_it_goes(folder, storage):
    listing = list(removals(storage, older_s=NOW))
    leave_lease(folder, 0.0)
    assert not [removal for removal in listing if removal.carry_out()]
    assert all(removal.path.exists() for removal in listing)


def test_a_draft_stays_while_a_resumed_sweep_may_build_it(folder, storage):
    draft = storage / "stores" / ".tokens-0123456789abcdef.unfinished"
    draft.mkdir()
    now = time.time()
    leave_lease(folder, 0.0, beat=now, taken_at=now)
    assert draft not in {removal.path for removal in removals(storage, older_s=NOW)}, "prepared.json is older"
    leave_lease(folder, 0.0, beat=now, taken_at=now - 86_400.0)
    assert draft in {removal.path for removal in removals(storage, older_s=NOW)}


@pytest.mark.usefixtures("copied_home")
def test_the_command_shows_what_it_would_remove_and_removes_it(storage, command):
    shown = command.prints("clean", "--dry-run")
    assert "the optimizer of a trial that has ended" in shown
    assert "can be removed" in shown
    code, shown, err = command("clean", "--older", 0)
    assert (code, "add --yes, or run it on a terminal" in err) == (2, True)
    assert "the optimizer of a trial that has ended" in shown
    code, shown, _ = command("clean", "--older", 0, "--json")
    assert (code, bool(json.loads(shown))) == (2, True)
    assert list(storage.rglob(OPTIMIZER))
    assert "removed in" in command.prints("clean", "--older", 0, "--yes")
    assert not list(storage.rglob(OPTIMIZER))


@pytest.mark.usefixtures("copied_home")
def test_the_command_goes_on_past_what_has_vanished(folder, storage, command, monkeypatch):
    listed = housekeeping.everything

    def then_vanished(*arguments, **options):
        listing = listed(*arguments, **options)
        shutil.rmtree(folder.path / "train")
        return listing

    monkeypatch.setattr(housekeeping, "everything", then_vanished)
    code, _, err = command("clean", "--older", 0, "--yes")
    assert (code, "1 not removed: gone meanwhile" in err) == (0, True), err
    assert not list(storage.rglob(OPTIMIZER))


@pytest.mark.usefixtures("copied_home")
def test_the_command_fails_if_the_storage_cannot_be_written(storage, command, monkeypatch):
    folder_of_stores = storage / "stores"

    def denied(removal):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{removal.path}.draft")

    monkeypatch.setattr(housekeeping.rules.Removal, "carry_out", denied)
    code, shown, err = command("clean", "--older", 0, "--yes")
    assert (code, shown) == (1, "")
    assert "not removed: " in err
    assert f"{folder_of_stores} cannot be written (Permission denied)" in " ".join(err.split())
    assert ".draft" not in err


def test_a_cluster_file_can_ask_for_the_same_after_each_sweep(copied):
    _, folder, cluster = copied
    storage = folder.path.parents[1]
    old = storage / "stores" / "tokens-0123456789abcdef"
    old.mkdir()
    (old / "values.npy").write_bytes(b"1" * 1000)
    os.utime(old / "values.npy", (time.time() - 8 * 86_400,) * 2)
    _clean(cluster, folder)
    assert old.exists(), "unless it is asked for, nothing goes"
    _clean(replace(cluster, clean_after_days=7.0), folder)
    assert not old.exists()
    assert "(clean_after_days)" in folder.log.read_text()
