"""Faults of the disk and of what lies on it: full, read-only, slow, cut off."""

import contextlib
import time

import pytest

from babeltune.errors import StorageError
from babeltune.sweep.driver import recorder
from chaos.faults import fill, read_only, slow_disk, truncate

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]


@contextlib.contextmanager
def refused(arena):
    """The storage refuses, the sweep ends and says so, and no trial has failed by it."""
    refusal = pytest.raises(StorageError, match=r"^the storage refuses .*; free space .*`babeltune resume`")
    with refusal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "FINAL_WAIT_S", 2.0)  # MLflow's file is there, too
        yield
    assert not [row for row in arena.rows() if row["state"] == "failed"]


def test_a_disk_that_is_full_ends_the_sweep_in_words_and_costs_no_trial(disk, make_arena, note):
    arena = make_arena(pause=0.02)
    ballast = disk / "ballast"
    with refused(arena), arena.meanwhile(arena.trained(150), lambda: fill(disk)):
        arena.submit()
    ballast.unlink()
    began = time.time()
    arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    note(arena, "disk full, freed, then resume", seconds=arena.recovered(began), most=20)


def test_a_storage_that_becomes_read_only_ends_the_sweep_in_words_and_costs_no_trial(disk, make_arena, note):
    arena = make_arena(pause=0.02)
    with contextlib.ExitStack() as until_mended:
        lock = read_only(disk)
        with refused(arena), arena.meanwhile(arena.trained(150), lambda: until_mended.enter_context(lock)):
            arena.submit()
        looks = {command: arena.start(command) for command in ("status", "resume")}
        assert {command: driver.wait() for command, driver in looks.items()} == {"status": 0, "resume": 1}
        assert f"sweep {arena.folder.id}: interrupted" in looks["status"].words()
        assert "error: the storage refuses" in looks["resume"].words()
        assert not any("Traceback" in driver.words() for driver in looks.values())
    began = time.time()
    arena.submit()
    arena.check()
    assert arena.repeated() <= 20
    note(arena, "storage read-only, mended, then resume", seconds=arena.recovered(began), most=20)


def test_a_slow_storage_changes_nothing(disk, make_arena, note):
    arena = make_arena()
    with slow_disk(disk, seconds=0.05):
        arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "every file takes 50 ms to open (fanotify)", seconds=arena.pause())


def test_checkpoints_that_were_cut_off_are_passed_over(interrupted, note):
    """That of the stop, where it did not fall together with a report's, and that of the last report."""
    arena = interrupted
    checkpoints = sorted((arena.folder.trial(1) / "checkpoints").iterdir())
    assert checkpoints
    for checkpoint in checkpoints:
        truncate(checkpoint / "student.safetensors")
    lost = arena.steps()[-1]["step"]
    began = time.time()
    arena.submit()
    arena.check()
    assert arena.repeated() == lost
    note(arena, "all checkpoints of a trial truncated, then resume", seconds=arena.recovered(began), most=lost)


def test_a_store_that_was_cut_off_is_built_again(interrupted, note):
    arena = interrupted
    stores = arena.place / "storage"
    truncate(next(stores.rglob("rows-*.bin")))
    arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "teacher store truncated, then resume")


def test_a_store_that_is_cut_off_while_trials_read_it_stops_the_sweep_and_fails_none(make_arena, note):
    """The worker that reads beyond its end is killed by the system; the next one finds the store altered."""
    arena = make_arena(pause=0.02)
    with (
        arena.meanwhile(arena.trained(50), lambda: truncate(next((arena.place / "storage").rglob("rows-*.bin")), 0.01)),
        pytest.raises(
            StorageError, match=r"^the storage has a store that was altered.*submit the sweep again to rebuild"
        ),
    ):
        arena.submit()
    assert "failed" not in {row["state"] for row in arena.rows()}
    began = time.time()
    arena.submit()
    arena.check()
    repeated = arena.repeated()
    assert repeated <= 20, "at most what was trained since a report"
    note(arena, "teacher store truncated in mid-run, then resume", seconds=arena.recovered(began), most=20)


def test_mlflow_gets_each_number_once_if_nobody_knows_any_more_what_it_has(interrupted, note):
    arena = interrupted
    truncate(arena.folder.path / "mlflow.json")
    arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "mlflow.json truncated, then resume")
