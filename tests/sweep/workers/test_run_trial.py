"""What a worker group's worker keeps between trials, and whose fault it is that one cannot go on."""

import errno
import os
from dataclasses import replace

import pytest

from babeltune.data.prepared import write_prepared
from babeltune.errors import NodeError, StorageError
from babeltune.files import plain
from babeltune.planning.space import make_trial
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers import run_trial as trials
from babeltune.sweep.workers.run_trial import load_prepared, run


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
    assignment = TrialAssignment(prepared=str(tmp_path / "prepared.json"), folder=str(tmp_path))
    read_only = os.access
    monkeypatch.setattr(os, "access", lambda path, use: not use & os.W_OK and read_only(path, use))
    with pytest.raises(NodeError, match=rf"^may not write {tmp_path}; mount the sweep's storage there"):
        run(assignment, None, 0, 1, "cpu")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_only_what_the_storage_refuses_is_no_failure_of_the_trial(tiny, tmp_path, monkeypatch, code):
    sweep, prepared = tiny
    storage = tmp_path / "storage"
    storage.mkdir()
    write_prepared(prepared, storage / "prepared.json")
    order = TrialAssignment(
        trial=plain(make_trial(sweep, 0, {})),
        prepared=str(storage / "prepared.json"),
        folder=str(storage / "t0000"),
        storage=str(storage),
    )

    def met(*names, assignment=order):
        def train(*_):
            raise OSError(code, os.strerror(code), *names)

        monkeypatch.setattr(trials, "train", train)
        with pytest.raises((StorageError, OSError)) as caught:
            run(assignment, None, 0, 1, "cpu")
        return caught.type is StorageError

    elsewhere, linked = tmp_path / "cache" / "model", storage / "linked"
    linked.symlink_to(tmp_path)
    assert met(), "a write that names no file"
    assert met(storage)
    assert met(str(storage / "t0000" / "checkpoints"))
    assert not met(elsewhere)
    assert not met(str(elsewhere))
    assert not met(str(linked / "cache"))
    assert met(elsewhere, assignment=replace(order, storage=None)), "a trial without a driver has none"
