"""Marked secrets, and every place where they must not turn up: files, logs, runs, arguments of processes."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import requests

from babeltune.files import plain
from babeltune.remote.doctor import tracking
from babeltune.schema.records import Point
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.tracking import tracker as track
from babeltune.tracking.mlflow_client import open_client, serve_command
from benchmarks.event_log import EventLog
from ports import free_port
from waiting import PATIENCE_S, wait_for_server, wait_until

CLUSTERS = Path(__file__).parents[2] / "clusters"
PASSWORD = f"Marked-{secrets.token_hex(16)}"
USER = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": PASSWORD}


def allowed_hosts(**chosen):
    """What `clusters/mlflow/serve.sh` sets, by itself or as chosen."""
    text = (CLUSTERS / "mlflow" / "serve.sh").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("export MLFLOW_SERVER_ALLOWED_HOSTS=")]
    command = ["sh", "-c", f'{line}; printf %s "$MLFLOW_SERVER_ALLOWED_HOSTS"']
    return subprocess.run(command, env=chosen, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def server(loopback_only, tmp_path_factory):
    """The address and folder of an MLflow server behind its auth app, configured as `clusters/mlflow/serve.sh` does."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = NO_PERMISSIONS\nauth_cache_ttl_seconds = 60\n"
        f"database_uri = sqlite:///{folder}/auth.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    (folder / "flask.py").write_text("raise SystemExit('the server has imported from where it was started')")
    _, environment = serve_command(f"sqlite:///{folder}/mlflow.db", folder / "artifacts", port)
    command = [sys.executable, "-P", "-m", "mlflow", "server", "--app-name=basic-auth"]
    command += ["--artifacts-destination", (folder / "artifacts").as_uri()]
    command += ["--host=127.0.0.1", f"--port={port}", "--workers=1"]
    command += [f"--uvicorn-opts=--app-dir {Path(os.__file__).parent}"]  # uvicorn looks where it was started, else
    environment |= {"MLFLOW_AUTH_ADMIN_USERNAME": "admin", "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD}
    environment |= {"MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16)}
    environment |= {"MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini")}
    environment |= {"MLFLOW_SERVER_ALLOWED_HOSTS": allowed_hosts()}
    uri = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_server(process, uri, folder / "server.log")
        yield uri, folder
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def holding(folder, *words):
    """The files below a folder in which one of the words stands."""
    paths = []
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 50 * 2**20:
            data = path.read_bytes()
            paths += [path for word in words if word.encode() in data]
    return paths


@contextmanager
def arguments_watched():
    """The arguments of every process that is seen in the meantime; `/proc` shows them to everybody."""
    arguments, ended = set(), threading.Event()

    def look():
        while not ended.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    arguments.add(path.read_bytes())
                except OSError:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield arguments
    finally:
        ended.set()
        thread.join()


def numbers(tracker):
    tracker.start_sweep("quick-1a2b", {}, {})
    tracker.start_trial(0, {"temperature": 0.05}, {})
    tracker.metrics(0, [Point(step=1, time_ms=1, values={"train/loss": 0.5})])
    tracker.end_trial(0, "FINISHED", {})


def test_the_tracker_writes_through_the_auth_app(server, tmp_path, monkeypatch):
    uri, folder = server
    for name, value in USER.items():
        monkeypatch.setenv(name, value)
    with arguments_watched() as arguments:
        tracker = EventLog(uri, tmp_path / "events.jsonl", "babeltune")
        numbers(tracker)
        assert tracker.close(120), tracker.trouble
    assert tracker.refused == 0
    assert open_client(uri).get_run(tracker.run_id(0)).data.metrics == {"train/loss": 0.5}
    assert [finding.ok for finding in tracking(cluster_with(uri))] == [True]
    assert not holding(tmp_path, PASSWORD)
    assert not holding(folder, PASSWORD)
    assert not [line for line in arguments if PASSWORD.encode() in line]


def cluster_with(uri):
    from babeltune.schema.cluster import Cluster

    return Cluster(mlflow=uri)


@pytest.mark.parametrize("wrong", ["wrong-password-of-16", None])
def test_a_wrong_password_and_none_are_one_clear_line_and_lose_nothing(server, tmp_path, monkeypatch, wrong):
    uri, _ = server
    monkeypatch.setattr(track, "RETRY_S", (0.05, 0.2))
    for name, value in USER.items():
        monkeypatch.delenv(name, raising=False)
        if wrong:
            monkeypatch.setenv(name, "admin" if value == "admin" else wrong)
    tracker = EventLog(uri, tmp_path / "events.jsonl", "babeltune")
    numbers(tracker)
    wait_until(lambda: tracker.trouble)
    assert not tracker.flush(0)
    tracker.close(0)
    (finding,) = tracking(cluster_with(uri))
    for words in (tracker.trouble, finding.text):
        assert len(words.splitlines()) == 1
        assert uri in words
        assert "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a user who may write" in words
        assert not wrong or wrong not in words
    assert tracker.waiting() > 0
    for name, value in USER.items():
        monkeypatch.setenv(name, value)
    again = EventLog(uri, tmp_path / "events.jsonl", "babeltune")
    assert again.close(120), again.trouble


def test_the_server_answers_to_the_names_of_our_cluster_files_and_to_no_other(server, monkeypatch):
    uri, _ = server
    for name, value in USER.items():
        monkeypatch.setenv(name, value)

    def status_of(host):
        path = "/api/2.0/mlflow/experiments/search?max_results=1"
        login = ("admin", PASSWORD)
        return requests.get(uri + path, headers={"Host": host}, auth=login, timeout=PATIENCE_S).status_code

    files = [CLUSTERS / name for name in ("aws.yaml", "onprem.yaml", "kuberay.yaml", "kuberay/inside.yaml")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    hosts = set(re.findall(r"MLFLOW_TRACKING_URI:-http://([\w.]+:[0-9]+)", text))
    assert hosts == {"mlflow.internal:5000", "mlflow:5000"}
    assert {name: status_of(name) for name in hosts} == dict.fromkeys(hosts, 200)
    assert status_of("elsewhere:5000") == status_of("mlflow.internal") == 403
    other = uri.replace("127.0.0.1", "127.1")  # the same place under another name
    (finding,) = tracking(cluster_with(other))
    assert not finding.ok
    assert "Invalid Host header" in finding.text
    assert "in MLFLOW_SERVER_ALLOWED_HOSTS" in finding.text
    assert "MLFLOW_TRACKING_PASSWORD" not in finding.text
    assert allowed_hosts(MLFLOW_SERVER_ALLOWED_HOSTS="lab:80") == "lab:80"


def test_a_password_in_a_databases_address_stands_in_no_argument(tmp_path):
    command, environment = serve_command("postgresql://anna:secret@127.0.0.1/mlflow", tmp_path, 5000)
    assert "secret" not in " ".join(command)
    assert "secret" in environment["MLFLOW_BACKEND_STORE_URI"]


@pytest.mark.long
def test_a_sweep_that_is_extended_leaves_no_secret_anywhere(
    ray_cluster, copied, server, command, tmp_path, monkeypatch
):
    sweep, folder, cluster = copied
    uri, place = server
    for name, value in {**USER, "RAY_TEST_TOKEN": "Marked-token-of-a-cluster"}.items():
        monkeypatch.setenv(name, value)
    shutil.rmtree(folder.path.parents[1] / "artifacts", ignore_errors=True)
    folder.write("sweep.json", replace(sweep, budget=replace(sweep.budget, workers=1)))
    remote = replace(cluster, mlflow=uri, token_env="RAY_TEST_TOKEN")
    (file := tmp_path / "cluster.yaml").write_text(json.dumps(plain(remote)), encoding="utf-8")
    with arguments_watched() as arguments:
        code, *words = command("extend", folder.id, "--trials", 5, "--cluster", file)
    assert code == 0, words
    states = {row.name: row.state for row in leaderboard(folder)}
    assert (states["t0003"], states["t0004"], "t0005" in states) == ("finished", "finished", False)
    assert folder.read("tracking.json") == {"unsent_bytes": 0, "refused": 0, "trouble": None}
    client = open_client(uri)
    experiment = client.get_experiment_by_name(sweep.name).experiment_id
    runs = client.search_runs([experiment], f"tags.`babeltune.sweep` = '{folder.id}'")
    assert len(runs) >= 3
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    tokens = [PASSWORD, "Marked-token-of-a-cluster"]
    for where in (folder.path.parents[1], place, logs):
        assert not holding(where, *tokens)
    assert not [token for token in tokens if token in "".join(words)]
    assert any(b"ray" in line for line in arguments)
    assert not [line for line in arguments if any(token.encode() in line for token in tokens)]
