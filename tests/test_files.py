"""Files that are whole or not there, and who may change one."""

import itertools
import logging
import os
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from babeltune import files
from babeltune.errors import StorageError
from babeltune.files import (
    append_line,
    draft_of,
    file_lock,
    in_turn,
    locked,
    make_folders,
    replace_folder,
    write_out,
    write_whole,
    writer_of,
)
from babeltune.machine import this_process
from kills import killed_at
from waiting import PATIENCE_S, wait_until


def test_a_file_that_another_process_never_gives_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.1)
    path = tmp_path / "audit.jsonl"
    with FileLock(tmp_path / ".audit.jsonl.lock"), pytest.raises(StorageError) as caught, locked(path):
        append_line(path, b"{}")
    assert "another process has" in str(caught.value)
    assert f"end it (`fuser {tmp_path}/.audit.jsonl.lock` names it), then try again" in str(caught.value)
    assert not path.exists()
    with locked(path):
        append_line(path, b"{}")
    assert path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("code", files.LOCKLESS)
def test_a_file_system_without_locks_refuses_no_command(tmp_path, monkeypatch, code):
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(code, os.strerror(code))))
    with locked(tmp_path / "audit.jsonl"), in_turn(tmp_path / "lock", "waits"):
        append_line(tmp_path / "audit.jsonl", b"{}")
    assert (tmp_path / "audit.jsonl").read_bytes() == b"{}\n"


def test_a_lock_file_that_is_removed_keeps_the_next_process_out(tmp_path):
    path = tmp_path / "lock"
    with file_lock(path) as first, file_lock(path, 0.0) as second:
        assert (first, second) == (True, False)
        path.unlink()
        with file_lock(path, 0.0) as another, file_lock(path, 0.0) as later:
            assert (another, later) == (True, False)
    with file_lock(path, 0.0) as alone:
        assert alone


def test_who_waits_for_a_turn_says_for_whom(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="babeltune")
    order = []

    def second():
        with in_turn(tmp_path / "a" / "lock", "promotes x"):
            order.append("second")

    waiting = threading.Thread(target=second)
    with in_turn(tmp_path / "a" / "lock", "promotes x"):
        waiting.start()
        wait_until(lambda: f"another process promotes x: waiting for it; `fuser {tmp_path}/a/lock`" in caplog.text)
        order.append("first")
    waiting.join(PATIENCE_S)
    assert order == ["first", "second"]


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_is_replaced_in_one_step(tmp_path, monkeypatch, exchanges):
    """Where the file system cannot exchange folders, a kill between two steps leaves none, and never half of one."""
    if not exchanges:
        monkeypatch.setattr(files, "EXCHANGE", 1 << 30)
    for number in itertools.count(1):
        place = tmp_path / str(number)
        folder, draft = place / "model", draft_of(place / "model")
        for path, text in ((folder, "old"), (draft, "new")):
            path.mkdir(parents=True)
            for name in ("a", "b"):
                (path / name).write_text(text)
        killed = killed_at(number, lambda: replace_folder(draft, folder))  # noqa: B023
        texts = [path.read_text() for path in sorted(folder.glob("*"))]
        assert texts in (["old"] * 2, ["new"] * 2) or (not exchanges and texts == [])
        if not killed:
            assert texts == ["new"] * 2
            assert [path.name for path in place.iterdir()] == ["model"]
            assert number > 3
            return


def test_a_new_files_name_is_on_the_disk_before_its_first_line_counts(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synced.append(str(Path(f"/proc/self/fd/{number}").readlink())), fsync(number))
    )
    make_folders(tmp_path / "a" / "b")
    assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)
    synced.clear()
    for _ in range(2):
        append_line(tmp_path / "a" / "b" / "lines", b"{}")
    assert synced == [str(tmp_path / "a/b/lines"), str(tmp_path / "a/b"), str(tmp_path / "a/b/lines")]


@pytest.mark.parametrize("name", ["x", "\u00e9" * 127, "\U0001d11e" * 63, "x" * 255], ids=["1", "2", "4", "most"])
def test_a_draft_of_any_name_names_its_process(tmp_path, name):
    write_whole(tmp_path / name, b"1", durable=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert writer_of(draft_of(tmp_path / name)) == this_process()
    assert writer_of(tmp_path / name) is None


@pytest.mark.slow
def test_what_a_killed_command_left_beside_a_file_goes_with_the_next_one(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("old")
    ended = 0
    for number in itertools.count(1):
        if not killed_at(number, lambda: write_out(path, b"new")):
            break
        assert path.read_text() in ("old", "new")
        ended += 1
    assert ended
    living = draft_of(path)
    living.touch()
    write_out(path, b"newer")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, living.name])


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1"
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    read = []
    reader.start()
    write_whole(tmp_path / "pipe", b"2")
    reader.join(PATIENCE_S)
    assert read == [b"2"]
