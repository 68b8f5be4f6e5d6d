"""A sweep that was run before packages and keys were renamed (commit 1ffc261): its folder and ledger stay readable.

`saved/` is what its two tiny trials left: the sweep's records, and the best trial's checkpoint, tokenizer and text.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from babeltune.sweep.state.folder import SweepFolder
from babeltune.tracking.tracker import Tracker
from waiting import PATIENCE_S

SAVED = Path(__file__).parent / "saved"
ID = "saved-9266edcc64"


@pytest.fixture
def saved(tmp_path):
    """A copy of the saved sweep, and a cluster file with the old keys that leads to it: (folder, cluster file)."""
    storage, cluster = tmp_path / "storage", tmp_path / "cluster.yaml"
    shutil.copytree(SAVED, storage)
    cluster.write_text(f"name: old\nstorage: {storage}\nlanes: 1\nsilence: 600\n", encoding="utf-8")
    return SweepFolder(storage / "sweeps" / ID), cluster


def test_status_and_runs_show_a_saved_sweep(saved, command):
    _, cluster = saved
    for name in ("status", "runs"):
        code, out, _ = command(name, "saved", "--cluster", cluster)
        lines = [line.split() for line in out.splitlines() if "labels are" not in line]
        assert code == 0
        assert [line[1] for line in lines if line and line[0] in ("t0000", "t0001")] == ["finished", "finished"]
        assert "temperature=0.0581" in out


@pytest.mark.usefixtures("one_scoring_process")
def test_promote_takes_a_saved_sweeps_best_checkpoint(saved, command, tmp_path):
    folder, cluster = saved
    tracker = Tracker(f"sqlite:///{folder.path.parents[1]}/mlflow.db", folder.path / "spool.jsonl", "saved")
    assert tracker.close(PATIENCE_S), "the old spool is sent to a new store"
    code, out, err = command("promote", "saved", "--cluster", cluster, "--out", tmp_path / "model")
    assert code == 0, err
    assert "registered: models:/saved@champion (version 1)" in out
    assert (tmp_path / "model" / "model.safetensors").exists()
