import itertools
import json
import os
import stat
from dataclasses import replace

import pytest
import torch

from babeltune.errors import CheckpointError, StorageError
from babeltune.schema.records import Objective, Point, Report
from babeltune.training import checkpoint
from kills import killed_at


def report(index, value=0.5):
    points = (Point(step=index, time_ms=1, values={"train/loss": 1.0}),)
    counted = {"index": index, "step": index * 10, "pairs": index * 80, "seconds": 1.0}
    return Report(**counted, metrics={"dev/x/accuracy": value}, points=points)


def write(folder, index, value=0.5):
    place = checkpoint.checkpoint_folder(folder, index)
    checkpoint.save_checkpoint(place, {"student": {"w": torch.full((3,), float(index))}}, {"step": index * 10})
    return report(index, value)


def test_a_checkpoint_comes_back_as_it_was_written(tmp_path):
    write(tmp_path, 1)
    tensors, state = checkpoint.load_checkpoint(checkpoint.checkpoint_folder(tmp_path, 1))
    assert torch.equal(tensors["student"]["w"], torch.ones(3))
    assert state == {"step": 10}
    files = sorted(path.name for path in checkpoint.checkpoint_folder(tmp_path, 1).iterdir())
    assert files == ["manifest.json", "state.json", "student.safetensors"]
    json.loads((checkpoint.checkpoint_folder(tmp_path, 1) / "manifest.json").read_text())


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_the_umask_decides_who_may_read_a_checkpoint(tmp_path, umask):
    before = os.umask(umask)
    try:
        write(tmp_path, 1)
    finally:
        os.umask(before)
    files = list(checkpoint.checkpoint_folder(tmp_path, 1).iterdir())
    assert "student.safetensors" in {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "no manifest"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_taken(tmp_path, damage):
    reports = [write(tmp_path, 1), write(tmp_path, 2)]
    checkpoint.write_reports(tmp_path, reports)
    file = checkpoint.checkpoint_folder(tmp_path, 2) / "student.safetensors"
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "remove":
        file.unlink()
    else:
        (file.parent / checkpoint.MANIFEST).unlink()
    with pytest.raises(CheckpointError):
        checkpoint.verify_checkpoint(file.parent)
    assert [r.index for r in checkpoint.last_good(tmp_path)] == [1]


def test_reports_survive_a_line_cut_off_by_a_crash(tmp_path):
    checkpoint.write_reports(tmp_path, [report(1), report(2)])
    path = tmp_path / "reports.jsonl"
    path.write_text(path.read_text() + '{"index": 3, "ste')
    assert checkpoint.read_reports(tmp_path) == [report(1), report(2)]
    for each in (report(3), report(2, 0.9), report(4)):  # the second one is of a late worker
        checkpoint.add_report(tmp_path, each)
    assert checkpoint.read_reports(tmp_path) == [report(1), report(2), report(3), report(4)]
    assert [checkpoint.read_report(tmp_path, index) for index in (2, 4, 5)] == [report(2), report(4), None]


def test_the_best_report_is_the_earliest_of_equals_and_obeys_the_goal():
    reports = [report(1, 0.2), report(2, 0.6), report(3, 0.6)]
    assert checkpoint.best_report(reports, Objective(metric="dev/x/accuracy")).index == 2
    assert checkpoint.best_report(reports, Objective(metric="dev/x/accuracy", goal="minimize")).index == 1
    assert checkpoint.best_report(reports, Objective(metric="dev/other")) is None


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.9, 0.80), (0.9153, 0.873), (0.9143, 0.874)], 3),
        ([(0.9, 0.80), (0.9153, 0.873), (0.9143, 0.872)], 2),
        ([(0.9, 0.80), (0.9153, 0.873), (0.9083, 0.874)], 2),
        ([(0.9, 0.80), (0.9153, 0.873), (0.9143, 0.874), (0.9150, 0.70)], 3),
        ([(0.9, 0.80), (0.9153, 0.873), (0.9143, None)], 2),
    ],
)
def test_a_later_report_that_is_as_good_in_all_objectives_is_the_best(scores, best):
    """In the first objective it may be worse by a share that no dev set can tell."""
    names = ("dev/x/accuracy", "dev/sts/spearman")
    reports = [
        replace(report(n), metrics={k: v for k, v in zip(names, values, strict=True) if v is not None})
        for n, values in enumerate(scores, start=1)
    ]
    assert checkpoint.best_report(reports, *(Objective(metric=name) for name in names)).index == best


def test_pruning_keeps_what_it_must_and_removes_what_crashed_writers_left(tmp_path):
    for index in (1, 2, 3):
        write(tmp_path, index)
    (tmp_path / "checkpoints" / ".000004.99").mkdir()
    checkpoint.prune_checkpoints(tmp_path, {1, 3})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000001", "000003"]
    write(tmp_path, 2)
    checkpoint.prune_checkpoints(tmp_path, {2})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000002", "000003"], "a later one stays"


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    def save(folder, step):
        tensors = {"student": {"w": torch.full((3,), float(step))}}
        checkpoint.save_checkpoint(checkpoint.stopped_folder(folder), tensors, {"step": step})

    found = []
    for change in itertools.count(1):
        folder = tmp_path / str(change)
        save(folder, 1)
        killed = killed_at(change, lambda: save(folder, 2))  # noqa: B023
        found.append(checkpoint.load_checkpoint(checkpoint.last_stopped(folder))[1]["step"])
        save(folder, 3)
        assert checkpoint.load_checkpoint(checkpoint.last_stopped(folder))[1] == {"step": 3}
        assert list((folder / "checkpoints").iterdir()) == [checkpoint.stopped_folder(folder)], "nothing is left"
        if not killed:
            break
    assert found == sorted(found)
    assert set(found) == {1, 2}
    assert found.count(2) > 3, "it was also killed while it removed the old one"


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_says_what_to_do(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"the storage refuses .* free space .*babeltune resume"):
        checkpoint.save_checkpoint(blocked / "000001", {"student": {"w": torch.ones(1)}}, {})
