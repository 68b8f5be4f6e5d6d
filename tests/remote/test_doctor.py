"""What the doctor finds where something is wrong."""

import socket
import sys
from dataclasses import replace

import pytest
from packaging.requirements import Requirement

from babeltune.remote.doctor import examine, installed, needed, packages, python, ray_cluster, storage, tracking
from babeltune.schema.cluster import Cluster
from babeltune.sweep.workers import access
from bucket_servers import BUCKET


def here(folder, **more):
    return Cluster(storage=str(folder / "storage"), mlflow=f"sqlite:///{folder}/storage/mlflow.db", **more)


def test_a_machine_that_is_whole_is_good_in_every_line(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    findings = examine(here(tmp_path))
    assert not [finding for finding in findings if not finding.ok]
    assert {"babeltune", "python", "ray", "torch", "storage", "tracking", "address", "token", "worker groups"} <= {
        finding.name for finding in findings
    }
    assert python().ok


def test_a_package_of_another_version_or_absent_says_what_to_install():
    needs = [Requirement("ray>=2.60,<2.61"), Requirement("optuna>=5,<6")]
    found = {f.name: f for f in packages({"ray": "2.40.0", "torch": "2.13.0"}, needs)}
    assert found["ray"].text == "2.40.0 does not fit; `pip install 'ray<2.61,>=2.60'`"
    assert found["optuna"].text == "is not installed; `pip install 'optuna<6,>=5'`"
    assert found["torch"].ok
    assert not found["ray"].ok


def test_what_babeltune_asks_for_is_installed():
    assert {need.name for need in needed()} >= {"ray", "torch"} or not needed()
    assert {"ray", "torch"} <= set(installed())


def test_a_storage_that_cannot_be_written_is_found(tmp_path):
    place = tmp_path / "storage"
    place.touch()
    (finding,) = storage(here(tmp_path))
    assert (finding.ok, finding.text) == (False, f"{place} is not a folder; change `storage`, or BABELTUNE_HOME")
    (finding,) = tracking(here(tmp_path))
    assert (finding.ok, f"mlflow.db cannot be made in {place}" in finding.text) == (False, True)
    (finding,) = storage(replace(here(tmp_path), storage="/proc/none"))
    assert (finding.ok, "cannot be written" in finding.text) == (False, True)
    (finding,) = storage(here(tmp_path / "other"))
    assert finding.ok
    assert not list((tmp_path / "other" / "storage").iterdir()), "nothing is left behind"


def test_a_storage_behind_a_uri_is_written_read_and_left_as_it_was(s3, tmp_path, monkeypatch):
    far = replace(here(tmp_path), storage=f"s3://{BUCKET}/doctor", cache=str(tmp_path / "cache"))
    found = {finding.name: finding for finding in storage(far)}
    assert {name: finding.ok for name, finding in found.items()} == {"storage": True, "cache": True}
    assert s3.keys("doctor/") == []
    gone = next(storage(replace(far, storage="s3://nowhere/x")))
    assert (gone.ok, "is not there" in gone.text) == (False, True)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gs", raising=False)
    absent = next(storage(replace(far, storage="gs://bucket/x")))
    assert (absent.ok, "`pip install 'babeltune[gs]'` on every node" in absent.text) == (False, True)


def test_an_mlflow_that_does_not_answer_is_found_and_its_password_is_not_shown(tmp_path):
    uri = "http://me:hunter2@127.0.0.1:1"
    (finding,) = tracking(Cluster(storage=str(tmp_path), mlflow=uri))
    assert not finding.ok
    assert "does not answer: Connection refused; start it" in finding.text
    assert "hunter2" not in finding.text


def test_too_few_cpus_and_gpus_are_found_and_a_local_ray_has_a_token_in_any_case(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    found = {f.name: f for f in ray_cluster(here(tmp_path, workers=4096, gpus_per_worker=1.0))}
    assert {name for name, finding in found.items() if not finding.ok} == {"worker groups"}
    assert (
        "a worker group of 4,096 workers with 1 CPU and 1 GPU each does not fit: the cluster has "
        in found["worker groups"].text
    )
    assert found["token"].text == "Ray gets one of its own"
    scales = {f.name: f for f in ray_cluster(here(tmp_path, workers=4096, nodes_within=60.0))}
    assert (scales["worker groups"].ok, "none fits now; `nodes_within` asks" in scales["worker groups"].text) == (
        True,
        True,
    )
    (fewer,) = (f for f in ray_cluster(here(tmp_path, workers=4096, least_workers=1)) if f.name == "worker groups")
    assert (fewer.ok, fewer.text) == (True, "room for 1; workers in each: 4096"), "as a sweep would, with fewer of them"


def test_a_ray_that_does_not_answer_is_found_at_once(tmp_path):
    (finding,) = ray_cluster(here(tmp_path, address="127.0.0.1:1"))
    assert not finding.ok
    assert "does not answer" in finding.text


@pytest.mark.slow
def test_what_answers_and_is_no_ray_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(access, "ANSWER_TIMEOUT_S", 3.0)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # as another test's may be
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (finding,) = ray_cluster(here(tmp_path, address=f"127.0.0.1:{port}"))
    assert not finding.ok
    assert "does not answer as Ray does; name the port of its GCS, often 6379" in finding.text
