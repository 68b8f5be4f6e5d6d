"""Files that are whole or not there, and who may change one."""

import logging
import threading

import pytest
from filelock import FileLock

from babeltune import files
from babeltune.errors import StorageError
from babeltune.files import append_line, in_turn, locked
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
