"""Cluster files: defaults, variables, and secrets that stay out of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from babeltune.cli.common import cluster_of
from babeltune.errors import ClusterError, SpecError
from babeltune.redaction import without_password
from babeltune.remote.jobs import Jobs
from babeltune.schema.cluster import Cluster, read_cluster
from babeltune.schema.storage_location import StorageLocation


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


REFUSALS = yaml.safe_load((Path(__file__).parent / "cluster_refusals.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row[0])
def test_a_mistake_is_named_with_its_line_and_a_secret_not_repeated(tmp_path, row):
    text, *words = row
    with pytest.raises(SpecError) as caught:
        read_cluster(written(tmp_path, text), environ={})
    assert [each for each in words if each not in str(caught.value)] == []
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_without_a_file_the_sweep_runs_here(tmp_path):
    cluster = read_cluster(environ={"BABELTUNE_HOME": str(tmp_path)})
    assert (cluster.address, cluster.workers, cluster.worker_groups) == ("local", 1, "auto")
    assert cluster.storage == str(tmp_path)
    assert cluster.mlflow == f"sqlite:///{tmp_path}/mlflow.db"
    assert read_cluster(environ={}).storage == ".babeltune"
    assert Path(read_cluster(environ={}).mlflow.removeprefix("sqlite:///")).is_absolute()


@pytest.mark.slow
def test_a_file_says_where_and_how_much(tmp_path):
    text = "name: lab\naddress: ${HEAD:-10.0.0.1}:6379\nmlflow: http://m:5000\nworker_groups: 3\ngpus_per_worker: 0.5\n"
    cluster = read_cluster(written(tmp_path, text), environ={"HEAD": "head"})
    assert cluster.address == "head:6379"
    assert cluster.mlflow == "http://m:5000"
    assert (cluster.worker_groups, cluster.gpus_per_worker) == (3, 0.5)


def test_a_share_that_is_measured_counts_as_a_whole_gpu_until_it_is(tmp_path):
    cluster = read_cluster(written(tmp_path, "name: x\ngpus_per_worker: auto\ncpus_per_worker: 0\n"))
    assert (cluster.gpus_per_worker, cluster.gpus) == ("auto", 1)
    assert cluster.with_workers(2).gpus == 1, "each worker of a trial has a GPU of its own"


def test_a_sweeps_own_number_of_workers_is_checked_as_the_clusters(tmp_path):
    shared = read_cluster(written(tmp_path, "name: x\ngpus_per_worker: 0.25\n"))
    assert (shared.with_workers(None).workers, shared.with_workers(1).workers) == (1, 1)
    with pytest.raises(SpecError, match=r"cluster 'x': gpus_per_worker: 0.25 with 2 workers: NCCL does not connect"):
        shared.with_workers(2)
    assert replace(shared, gpus_per_worker=1.0).with_workers(2).workers == 2


@pytest.mark.parametrize("groups", ["many", "0"])
def test_mistakes_of_several_kinds_are_named_at_once(tmp_path, groups):
    text = (
        f"token: hunter2\nmlflow: https://me:hunter2@${{NOWHERE}}\nstorage: ${{NOWHERE}}/x\nworker_groups: {groups}\n"
    )
    with pytest.raises(SpecError) as caught:
        read_cluster(written(tmp_path, text), environ={})
    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert keys == ["token", "mlflow", "storage", "worker_groups"]
    assert "hunter2" not in str(caught.value)


def test_a_cluster_file_that_is_not_there_names_the_nearest():
    with pytest.raises(SpecError, match=r"no file 'clusters/loca.yaml'; did you mean 'clusters/local.yaml'\?"):
        read_cluster("clusters/loca.yaml")


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:hunter2@host/db",
        "postgresql://me:a@hunter2@host/db",
        "postgresql://hunter2@host/db",
        "postgresql+pg8000://host/db?user=me&password=hunter2&sslmode=require",
        "https://host/x?api_key=hunter2",
    ],
)
def test_an_address_is_shown_without_what_is_secret_in_it(uri):
    shown = without_password(f"{uri} does not answer")
    assert "hunter2" not in shown
    assert "host/" in shown
    assert "does not answer" in shown


@pytest.mark.slow
def test_a_password_may_come_from_a_variable(tmp_path):
    path = written(tmp_path, "mlflow: postgresql://me:${PASSWORD}@host/db\n")
    assert read_cluster(path, environ={"PASSWORD": "hunter2"}).mlflow == "postgresql://me:hunter2@host/db"


def test_no_message_shows_a_password_of_the_address(tmp_path, monkeypatch):
    path = written(tmp_path, "name: lab\naddress: http://me:${PASSWORD}@127.0.0.1:1\nstorage: /s\n")
    monkeypatch.setenv("PASSWORD", "hunter2")
    cluster = read_cluster(path)
    assert cluster.address == "http://me:hunter2@127.0.0.1:1"
    assert cluster.title == "cluster 'lab' at http://…@127.0.0.1:1"
    with pytest.raises(ClusterError, match="does not answer") as from_here:
        Jobs(cluster)
    with pytest.raises(SpecError, match="takes jobs only") as as_driver:
        cluster_of(str(path))
    assert "hunter2" not in f"{from_here.value} {as_driver.value}"


def test_the_token_is_read_where_the_file_says_when_it_is_needed(tmp_path):
    assert Cluster().token() is None
    named = Cluster(token_env="CLUSTER_TOKEN")
    assert named.token({"CLUSTER_TOKEN": " abc\n"}) == "abc"
    with pytest.raises(SpecError, match="CLUSTER_TOKEN is not set"):
        named.token({})
    secret = tmp_path / "token"
    filed = Cluster(token_file=str(secret))
    with pytest.raises(SpecError, match=r"cannot be read \(No such file or directory\); put the cluster's token there"):
        filed.token()
    secret.touch(mode=0o600)
    secret.write_text("\n")
    with pytest.raises(SpecError, match="is empty"):
        filed.token()
    for odd in ("abc\nmore", "a\x01bc", "a bc", "äbc"):
        secret.write_text(odd)
        with pytest.raises(SpecError, match="holds no token, which is one word of one line") as caught:
            filed.token()
        assert "bc" not in str(caught.value).replace(str(secret), "")
        with pytest.raises(SpecError, match="variable CLUSTER_TOKEN holds no token"):
            named.token({"CLUSTER_TOKEN": odd})
    secret.write_text("abc\n")
    assert filed.token() == "abc"


def test_a_token_that_others_may_read_is_refused(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("abc\n")
    for mode in (0o640, 0o604, 0o620):
        secret.chmod(mode)
        with pytest.raises(SpecError, match=rf"permissions {mode:04o}, .*chmod 600") as caught:
            Cluster(token_file=str(secret)).token()
        assert "abc" not in str(caught.value)


def test_a_token_of_another_user_is_refused(tmp_path, monkeypatch):
    secret = tmp_path / "token"
    secret.touch(mode=0o600)
    secret.write_text("abc\n")
    if os.geteuid() == 0:
        os.chown(secret, 4321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(SpecError, match=r"belongs to another user \(uid [0-9]+\), who may change it; name a file"):
        Cluster(token_file=str(secret)).token()


@pytest.mark.slow
def test_a_dashboard_keeps_the_variables_of_its_own_storage_and_mlflow(tmp_path):
    text = "name: x\naddress: ${AT:-https://head:8265}\nstorage: ${SHARED}/x\nmlflow: postgresql://me:${PASSWORD}@host/db\n"
    path = written(tmp_path, text.replace("${AT:-https://head:8265}", "https://${HEAD}:8265"))
    cluster = read_cluster(path, environ={"HEAD": "head"})
    assert (cluster.address, cluster.by_jobs) == ("https://head:8265", True)
    assert (cluster.storage, cluster.mlflow) == ("${SHARED}/x", "postgresql://me:${PASSWORD}@host/db")
    there = cluster.seen_from_head()
    assert (there.address, there.by_jobs, there.storage) == ("auto", False, cluster.storage)


def test_a_storage_may_be_behind_a_uri_with_a_mirror_on_each_machine(tmp_path):
    text = (
        "storage: s3://bucket/${TEAM:-us}/x/\ncache: ${SCRATCH}/mirrors\nmlflow: http://m:5000\nstorage_timeout: 60\n"
    )
    cluster = read_cluster(written(tmp_path, text), environ={"SCRATCH": str(tmp_path)})
    where = cluster.mirrored
    assert where == StorageLocation(uri="s3://bucket/us/x", cache=f"{tmp_path}/mirrors", timeout=60)
    assert cluster.folder == where.folder
    assert cluster.folder.parent == tmp_path / "mirrors"
    other = replace(cluster, storage="s3://bucket/them/x")
    assert other.folder.parent == cluster.folder.parent
    assert other.folder != cluster.folder
    assert Cluster(storage=str(tmp_path)).mirrored is None


def test_without_a_cache_the_mirrors_are_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("BABELTUNE_CACHE", str(tmp_path))
    assert StorageLocation(uri="gs://bucket").folder.parent == tmp_path
    monkeypatch.delenv("BABELTUNE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StorageLocation(uri="gs://bucket").folder.parent == tmp_path / ".cache" / "babeltune"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_only_what_leaves_this_machine_as_it_is_can_be_read_on_its_way(host):
    assert not Cluster(address=f"http://{host}:8265").in_the_open
    assert not Cluster(address="https://head:8265").in_the_open
    assert Cluster(address="http://head:8265").in_the_open
    assert not Cluster(address="head:6379").in_the_open


def test_jobs_may_have_a_storage_behind_a_uri(tmp_path):
    text = "address: http://head:8265\nstorage: gs://bucket/x\ncache: ${SCRATCH}\nmlflow: http://mlflow:5000\n"
    cluster = read_cluster(written(tmp_path, text), environ={})
    assert (cluster.storage, cluster.cache) == ("gs://bucket/x", "${SCRATCH}"), "the head replaces its variables"


@pytest.mark.parametrize(("given", "found"), [("all", "all"), ("12", 12)])
def test_metrics_in_mlflow_are_a_number_from_one_or_all(tmp_path, given, found):
    assert read_cluster(written(tmp_path, f"mlflow_metrics: {given}\n"), environ={}).mlflow_metrics == found
