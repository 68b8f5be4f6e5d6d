"""Old names of keys and values in cluster files: they work, with a warning, and are never mixed with new ones."""

from __future__ import annotations

import dataclasses
import re

import pytest

from babeltune.errors import SpecError
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.old_names import CLUSTER_KEYS, CLUSTER_VALUES

OLD = "lanes: 3\nsilence: 600\npatience: 60\nisolation: lane\n"
NEW = "worker_groups: 3\nprogress_timeout: 600\nstorage_timeout: 60\nisolation: worker_group\n"


def written(folder, text):
    path = folder / "old.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_old_names_means_the_same_and_warns_of_each(tmp_path, caplog):
    old = read_cluster(written(tmp_path, OLD), environ={})
    warnings = [record.getMessage().removeprefix(f"{tmp_path}/") for record in caplog.records]
    assert warnings == [
        "old.yaml:1: lanes: an old name that still works; write 'worker_groups' instead",
        "old.yaml:2: silence: an old name that still works; write 'progress_timeout' instead",
        "old.yaml:3: patience: an old name that still works; write 'storage_timeout' instead",
        "old.yaml:4: isolation: 'lane' is an old name that still works; write 'worker_group' instead",
    ]
    caplog.clear()
    assert read_cluster(written(tmp_path, NEW), environ={}) == old
    assert not caplog.records


@pytest.mark.parametrize(("old", "new"), CLUSTER_KEYS.items())
def test_an_old_name_beside_the_new_one_is_refused(tmp_path, old, new):
    expected = f"old.yaml:1: {old}: is the old name of '{new}', which is given too at .*old.yaml:2; keep '{new}'"
    with pytest.raises(SpecError, match=expected):
        read_cluster(written(tmp_path, f"{old}: 2\n{new}: 2\n"), environ={})


def test_a_mistake_under_an_old_name_is_shown_at_its_line(tmp_path):
    with pytest.raises(SpecError, match=re.escape("old.yaml:2: worker_groups: 0 must be at least 1")):
        read_cluster(written(tmp_path, "name: x\nlanes: 0\n"), environ={})


def test_new_names_are_fields_of_a_cluster_and_old_ones_are_not():
    fields = {field.name for field in dataclasses.fields(Cluster)}
    assert set(CLUSTER_KEYS.values()) | {key for key, _ in CLUSTER_VALUES} <= fields
    assert not fields & CLUSTER_KEYS.keys()
