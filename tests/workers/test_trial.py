"""What a lane's worker keeps between trials."""

import os

import pytest

from babeltune.data.prepared import write_prepared
from babeltune.errors import NodeError
from babeltune.workers.trial import load_prepared, run


def test_what_was_prepared_stays_in_a_warm_worker_until_it_changes(tiny, tmp_path):
    _, prepared = tiny
    path = tmp_path / "prepared.json"
    write_prepared(prepared, path)
    first = load_prepared(path)
    assert first == prepared
    assert load_prepared(path) is first
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert load_prepared(path) is not first


def test_a_node_that_may_not_write_where_the_driver_does_is_said_to_be_unfit(tmp_path, monkeypatch):
    (tmp_path / "prepared.json").touch()
    payload = {"prepared": str(tmp_path / "prepared.json"), "folder": str(tmp_path)}
    read_only = os.access
    monkeypatch.setattr(os, "access", lambda path, use: not use & os.W_OK and read_only(path, use))
    with pytest.raises(NodeError, match=rf"^may not write {tmp_path}; mount the sweep's storage there"):
        run(payload, None, 0, 1, "cpu")
