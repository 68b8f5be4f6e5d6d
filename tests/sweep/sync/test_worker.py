"""What a node that shares no folder with others brings and sends of trials: checkpoints and reports."""

import errno
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from babeltune.errors import NodeError, ObjectStoreError, StorageError, storage_refusals
from babeltune.files import write_json
from babeltune.schema.records import Report
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import amount, stage_words
from babeltune.storage.mirror import Mirror
from babeltune.storage.packages import PACKAGE_MANIFEST
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.sync import worker
from babeltune.sweep.sync.worker import Sending, on_this_node, pull_trial, push_trial, with_retries
from babeltune.training.checkpoint import (
    PROGRESS,
    checkpoint_folder,
    is_good,
    last_good,
    read_state,
    save_checkpoint,
    stage_of,
    state_of,
    stopped_folder,
    write_reports,
)
from bucket_servers import BUCKET
from waiting import PATIENCE_S, wait_until

KEY = "sweeps/a/trials/t0000"


@pytest.fixture
def nodes(s3, request, tmp_path):
    uri = f"s3://{BUCKET}/{request.node.name[:60]}"
    return [Mirror(StorageLocation(uri=uri, cache=str(tmp_path / name), timeout=20)) for name in ("one", "other")]


def train(mirror, reports, keep, goal="maximize"):
    """Leaves this many reports and these checkpoints, as training does. The metric is the report's number."""
    folder = mirror.path(KEY)
    state = {"trial": {"objectives": [{"metric": "dev/x", "goal": goal}]}}
    for index in keep:
        if not checkpoint_folder(folder, index).exists():
            save_checkpoint(checkpoint_folder(folder, index), {"student": {"w": torch.full((50,), index)}}, state)
    for path in (folder / "checkpoints").glob("0*"):
        if int(path.name) not in keep:
            shutil.rmtree(path)
    all_reports = [Report(index=n, step=n, pairs=n, seconds=n, metrics={"dev/x": n}) for n in range(1, reports + 1)]
    write_reports(folder, all_reports)
    return folder


def sealed(mirror):
    return {key.split("/")[-2] for key in mirror.store.entries(KEY) if key.endswith(PACKAGE_MANIFEST)}


def test_the_best_and_the_last_checkpoint_are_kept_in_the_bucket(nodes):
    one, other = nodes
    push_trial(one, train(one, 2, {1, 2}, "minimize"))
    assert sealed(one) == {"000001", "000002"}
    push_trial(one, train(one, 3, {1, 3}, "minimize"))
    assert sealed(one) == {"000001", "000003"}
    pull_trial(other, other.path(KEY))
    assert [report.index for report in last_good(other.path(KEY))] == [1, 2, 3]
    assert {path.name for path in (other.path(KEY) / "checkpoints").iterdir()} == sealed(one)


def test_a_report_lists_the_checkpoints_in_the_bucket_once(nodes, s3):
    one, _ = nodes
    push_trial(one, train(one, 2, {1, 2}))
    before = len(s3.door.requests)
    push_trial(one, train(one, 3, {3}))
    assert sum("list-type" in line for line in s3.door.requests[before:]) == 1
    assert sealed(one) == {"000003"}


def test_a_best_checkpoint_that_its_node_lost_stays_in_the_bucket(nodes):
    one, other = nodes
    push_trial(one, train(one, 2, {1, 2}, "minimize"))
    shutil.rmtree(checkpoint_folder(one.path(KEY), 1))
    push_trial(one, train(one, 3, {3}, "minimize"))
    assert sealed(one) == {"000001", "000003"}, "the second one alone is superseded"
    pull_trial(other, other.path(KEY))
    assert last_good(other.path(KEY))[0].index == 1
    assert is_good(checkpoint_folder(other.path(KEY), 1))


def test_while_a_checkpoint_is_sent_the_trial_says_how_much_of_it(nodes, monkeypatch):
    one, other = nodes
    monkeypatch.setattr(worker, "LEAST_RATED_S", 0.0)
    folder = train(one, 1, {1})
    write_json(folder / PROGRESS, {"step": 3, "steps": 9, "loss": 0.5}, durable=False)
    push_trial(one, folder)
    other.fetch(f"{KEY}/{PROGRESS}")
    noted = json.loads((other.path(KEY) / PROGRESS).read_text(encoding="utf-8"))
    stage, size = stage_of(noted), sum(each.stat().st_size for each in checkpoint_folder(folder, 1).iterdir())
    assert (noted["step"], stage.name, stage.done, stage.of) == (3, "uploading a checkpoint", size, size)
    assert f"/{amount(size, 'bytes')}" in stage_words(stage)


def test_a_node_that_is_further_than_the_bucket_keeps_what_it_has(nodes):
    one, other = nodes
    push_trial(one, train(one, 2, {2}))
    folder = train(other, 3, {3})
    pull_trial(other, folder)
    assert len(last_good(folder)) == 3
    push_trial(other, folder)
    pull_trial(one, one.path(KEY))
    assert len(last_good(one.path(KEY))) == 3


def test_a_damaged_last_checkpoint_leaves_the_one_before(nodes, s3):
    one, other = nodes
    push_trial(one, train(one, 3, {2, 3}))
    key = f"{one.store.uri.rpartition('/')[2]}/{KEY}/checkpoints/000003/student.safetensors"
    s3.put(key, s3.get(key)[:-1])
    pull_trial(other, other.path(KEY))
    assert len(last_good(other.path(KEY))) == 2


def test_a_checkpoint_damaged_here_is_not_sent_and_comes_back_from_the_bucket(nodes):
    one, other = nodes
    folder = train(one, 3, {2, 3})
    push_trial(one, folder)
    truncated = checkpoint_folder(folder, 3) / "student.safetensors"
    whole = truncated.read_bytes()
    truncated.write_bytes(whole[:-1])
    push_trial(one, folder)
    assert len(last_good(folder)) == 2
    pull_trial(other, other.path(KEY))
    assert len(last_good(other.path(KEY))) == 3, "the bucket's is whole"
    pull_trial(one, folder)
    assert truncated.read_bytes() == whole


def test_of_two_checkpoints_of_a_stop_the_one_that_goes_further_counts(nodes):
    one, other = nodes
    for mirror, step in ((other, 45), (one, 55)):
        folder = train(mirror, 1, {1})
        between = stopped_folder(folder)
        save_checkpoint(between, {"student": {"w": torch.ones(5)}}, {"reports": 1, "interval": {"step": step}})
        push_trial(mirror, folder)
    pull_trial(other, other.path(KEY))
    assert read_state(stopped_folder(other.path(KEY)))["interval"]["step"] == 55
    save_checkpoint(between, {"student": {"w": torch.ones(5)}}, {"reports": 1, "interval": {"step": 60}})
    pull_trial(one, folder)  # it could not be sent
    assert read_state(between)["interval"]["step"] == 60


def test_a_checkpoint_between_two_reports_travels_too_and_goes_with_the_next_report(nodes):
    one, other = nodes
    for reports in (0, 1):
        folder = train(one, reports, set(range(1, reports + 1)))
        between = folder / "checkpoints" / "stopped"
        save_checkpoint(between, {"student": {"w": torch.full((50,), reports)}}, {"reports": reports})
        push_trial(one, folder)
        assert "stopped" in sealed(one)
        pull_trial(other, other.path(KEY))
        assert state_of(other.path(KEY)) == state_of(folder)
        for mirror in nodes:
            shutil.rmtree(mirror.path(KEY) / "checkpoints" / "stopped")
    push_trial(one, train(one, 2, {2}))
    assert sealed(one) == {"000002"}


def a_report(index, *, last=False):
    return Report(index=index, step=index, pairs=index, seconds=0.0, metrics={}, last=last)


class TrialDispatcher:
    def __init__(self):
        self.reports, self.requests = [], 0

    def report(self, report):
        self.reports.append(report)
        return True

    def stopped(self):
        self.requests += 1
        return False


@pytest.mark.long
def test_training_goes_on_while_the_server_is_away_and_the_last_report_waits_for_it(nodes, s3):
    one, other = nodes
    one.store.timeout = 0.2
    dispatcher = TrialDispatcher()
    sending = Sending(dispatcher, one, one.path(KEY), 0, timeout=2.0)
    s3.door.shut()
    train(one, 1, {1})
    assert sending.report(a_report(1))
    assert "cannot be" in dispatcher.reports[0].facts["unsent"]
    train(one, 2, {1, 2})
    with pytest.raises(ObjectStoreError):
        sending.report(a_report(2, last=True))
    assert [report.index for report in dispatcher.reports] == [1]
    assert dispatcher.requests >= 2, "it waits, and does not hang"
    s3.door.open()
    assert sending.report(a_report(2, last=True))
    assert dispatcher.reports[1] == a_report(2, last=True)
    pull_trial(other, other.path(KEY))
    assert len(last_good(other.path(KEY))) == 2


@pytest.mark.long
def test_ranks_on_two_nodes_go_on_from_the_same_report(nodes, tmp_path):
    one, other = nodes
    push_trial(one, train(one, 2, {2}))
    train(one, 3, {3})  # rank 0's node has one more, which it could not send
    train(other, 5, {5})  # the other has what an earlier attempt left
    beside = Path(__file__).parents[2] / "storage_ranks.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, beside, str(rank), tmp_path / "meeting", one.store.uri, tmp_path / name, KEY],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(("one", "other"))
    ]
    assert [rank.communicate(timeout=PATIENCE_S)[0].split()[-1] for rank in ranks] == ["3", "3"]


def test_a_node_whose_disk_refuses_is_said_to_be_unfit(s3):
    where = StorageLocation(uri=f"s3://{BUCKET}/unfit", cache="/sys/kernel/babeltune", timeout=20)
    assignment = TrialAssignment(mirror=where, prepared="sweeps/a/prepared.json", folder=KEY)
    message = r"^cannot keep a copy of the storage in /sys/kernel/babeltune\S* \(.*\); make room there$"
    with pytest.raises(NodeError, match=message), on_this_node(assignment, SimpleNamespace(stopped=bool), 0, 1, "cpu"):
        pass


def test_a_node_without_the_buckets_package_is_said_to_be_unfit(tmp_path):
    where = StorageLocation(uri="abfs://container/x", cache=str(tmp_path), timeout=20)  # whose package is not installed
    assignment = TrialAssignment(mirror=where, prepared="sweeps/a/prepared.json", folder=KEY)
    with (
        pytest.raises(NodeError, match=r"^cannot open the storage: the storage abfs://container/x needs a package"),
        on_this_node(assignment, SimpleNamespace(stopped=bool), 0, 1, "cpu"),
    ):
        pass


def test_a_node_whose_disk_refuses_in_mid_trial_is_said_to_be_unfit(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "bring_prepared", lambda *_: None)
    where = StorageLocation(uri=f"s3://{BUCKET}/later", cache=str(tmp_path), timeout=20)
    assignment = TrialAssignment(mirror=where, prepared="sweeps/a/prepared.json", folder=KEY)

    def meets(error):
        with (
            on_this_node(assignment, SimpleNamespace(stopped=bool), 0, 1, "cpu") as (here, _),
            storage_refusals(tmp_path),
        ):
            assert here.storage == str(where.folder)
            raise error

    with pytest.raises(NodeError, match=r"^cannot keep a copy of the storage in .*No space left.*; make room there$"):
        meets(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match="shows rank 1 other checkpoints"):
        meets(StorageError("the storage shows rank 1 other checkpoints"))


def test_a_long_request_sends_heartbeats(monkeypatch):
    monkeypatch.setattr(worker, "HEARTBEAT_INTERVAL_S", 0.05)
    signs = []

    def say():
        signs.append(threading.current_thread())
        raise OSError("the dispatcher is away")

    with_retries(lambda: wait_until(lambda: len(signs) > 3), 20, say)
    signs[0].join(PATIENCE_S)
    assert not signs[0].is_alive(), "there is none once it is done"
