"""Who did what, and when."""

import os
import pwd
import re
import socket

import pytest

from audits import read_audit
from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.audit import ACTOR, AUDIT, OBJECTS, SIGNAL, audit, line_of, who, write_line
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


def test_the_line_says_which_name_is_the_systems_word_and_which_is_the_senders(tmp_path, monkeypatch):
    monkeypatch.setenv(ACTOR, "ana@laptop.example.org")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    view = StorageView(Cluster(storage=str(tmp_path)))
    audit(view, "stop", "quickstart-7832684c43")
    audit(view, "stop", "quickstart-7832684c43", by_signal=True)
    request, signalled = read_audit(tmp_path)
    here = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname()
    assert (request.user, request.machine) == (signalled.user, signalled.machine) == here
    assert (request.says_it_is, request.through) == ("ana@laptop.example.org", "")
    assert (signalled.says_it_is, signalled.through) == ("", SIGNAL)


def test_the_line_of_a_decision_is_written_once_and_that_of_another_beside_it(tmp_path):
    view = StorageView(Cluster(storage=str(tmp_path)))
    first, second = (line_of("promote", "tiny-1, a tie", decision=each) for each in ("d1", "d2"))
    for line in (first, first, second, first):
        write_line(view, line)
    assert [line.decision for line in read_audit(tmp_path)] == ["d1", "d2"]


def test_a_job_that_is_ended_before_it_runs_leaves_a_line(tmp_path, command):
    file = tmp_path / "here.yaml"
    file.write_text(f"name: here\naddress: auto\nstorage: {tmp_path}/storage\n")
    command.prints("stop", "new-0123456789", "--ended-job", "new-0123456789-1", "--cluster", file)
    assert [line.subject for line in read_audit(tmp_path / "storage")] == ["new-0123456789, job new-0123456789-1"]


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
