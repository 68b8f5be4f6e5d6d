"""Who did what, and when."""

import re

import pytest

from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.audit import AUDIT, OBJECTS, audit, read_audit, who
from babeltune.sweep.sync.view import StorageView


def test_every_action_is_a_line_with_its_time_user_and_machine(tmp_path):
    view = StorageView(Cluster(storage=str(tmp_path)))
    audit(view, "submit", "quickstart-7832684c43")
    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'{"time": "2026-')  # a machine went down in mid-line
    audit(view, "stop", "quickstart-7832684c43")
    lines = read_audit(tmp_path)
    assert [(line.action, line.subject, line.user) for line in lines] == [
        ("submit", "quickstart-7832684c43", who()),
        ("stop", "quickstart-7832684c43", who()),
    ]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.time) and line.machine for line in lines)


def test_a_storage_that_refuses_the_line_stops_nothing(tmp_path):
    (tmp_path / AUDIT).mkdir()
    with pytest.raises(IsADirectoryError):
        (tmp_path / AUDIT).open("ab")
    audit(StorageView(Cluster(storage=str(tmp_path))), "promote", "models:/quickstart@champion (version 1)")
    assert not list((tmp_path / AUDIT).iterdir())


def test_in_a_bucket_each_action_is_an_object_of_its_own(s3, tmp_path):
    view = StorageView(Cluster(storage=f"{s3.uri}/audited", cache=str(tmp_path)))
    audit(view, "submit", "a")
    audit(view, "stop", "a")
    assert len([key for key in view.mirror.store.entries() if key.startswith(OBJECTS)]) == 2


def test_a_sweep_that_ran_was_submitted_by_somebody(searched):
    _, folder = searched
    lines = read_audit(folder.path.parents[1])
    assert [line.subject for line in lines if line.action == "submit"][:1] == [folder.id]
