"""Files that are whole or not there, and who may change one."""

import pytest
from filelock import FileLock

from babeltune import files
from babeltune.errors import StorageError
from babeltune.files import append_line, locked


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
