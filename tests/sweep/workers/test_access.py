"""A Ray that wants a token, and one that is open to all."""

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import ray

from babeltune.errors import ClusterError
from babeltune.sweep import ray_internals
from babeltune.sweep.workers import access
from babeltune.sweep.workers.access import (
    STRANGER,
    authenticated,
    close_token_file,
    open_to_all,
    refuse_open,
    takes,
    token_variables,
)
from waiting import PATIENCE_S


@pytest.fixture
def open_ray(loopback_only):
    """The address of a `ray start --head` without tokens, in a network that holds only this machine where possible."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # short, for Ray puts sockets into it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--port=0", "--num-cpus=0"]
    command += [f"--object-store-memory={80 * 2**20}", f"--temp-dir={place}/ray"]
    log = (place / "said").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        noted = place / "ray" / "ray_current_cluster"
        while not noted.exists():
            assert process.poll() is None, (place / "said").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        yield noted.read_text().strip()
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
        process.wait(PATIENCE_S)
        log.close()
        shutil.rmtree(place, ignore_errors=True)


def test_a_cluster_that_is_open_to_all_is_refused_unless_that_is_accepted(open_ray):
    assert takes(open_ray, STRANGER)
    message = r"cluster 'lab' at .* wants no token: .*; start it with RAY_AUTH_MODE=token, or pass --insecure to use it"
    with pytest.raises(ClusterError, match=message):
        refuse_open(f"cluster 'lab' at {open_ray}", open_ray, insecure=False)
    refuse_open("cluster 'lab'", open_ray, insecure=True)
    assert open_to_all("cluster 'lab'", open_ray).startswith("cluster 'lab' wants no token: whoever reaches it can run")


def test_a_ray_that_does_not_answer_is_neither_open_nor_closed(loopback_only, monkeypatch):
    address = "127.0.0.1:1"
    monkeypatch.setattr(access, "ANSWER_TIMEOUT_S", 2.0)
    assert takes(address, STRANGER) is None
    with pytest.raises(ClusterError, match=f"cluster 'lab' at {address} does not say whether it wants a token"):
        refuse_open(f"cluster 'lab' at {address}", address, insecure=False)


def test_a_ray_that_does_not_start_here_is_one_line_that_says_what_to_do(tmp_path):
    far = tmp_path / ("l" * 90)
    far.mkdir()
    program = """
from babeltune.sweep.workers.connection import local_ray
from babeltune.errors import ClusterError
try:
    with local_ray(num_cpus=1):
        pass
except ClusterError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_TMPDIR"] = str(far)
    noted = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert noted.stdout.startswith("Ray does not start on this machine (")
    assert "107 bytes" in noted.stdout
    assert "a short path and some room, RAY_TMPDIR or else /tmp" in noted.stdout
    assert noted.stdout.endswith("and a machine that is not overloaded; then try again\n")


LOCAL = """
import http.client, json, os, psutil, ray, sys, urllib.request
from pathlib import Path
from ray._private import services
from babeltune.sweep.workers.access import STRANGER, takes
from babeltune.sweep.workers.connection import local_ray
services.node_ip_address_from_perspective = lambda *_: "192.0.2.1"  # as on a machine with a network
os.umask(0o022)

def has_metrics(port):  # whether it answers `/metrics` as Prometheus reads it
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return b"# TYPE " in answer.read()
    except (OSError, http.client.HTTPException):
        return False

with local_ray(num_cpus=1):
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [(one, door.laddr) for one in processes for door in one.net_connections() if door.status == "LISTEN"]
    doors = [address.ip for _, address in listening]
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    worker = ray.get(ray.remote(lambda: (__import__("sys").path, __import__("tokenizers").__file__)).remote())
    metrics = [one.cmdline() for one, address in listening if has_metrics(address.port)]
    mode = oct(session.parents[1].stat().st_mode & 0o777)
    stranger = takes(ray.get_runtime_context().gcs_address, STRANGER)
    token = os.environ["RAY_AUTH_TOKEN"]
    files = [path for place in (Path.home(), session) for path in place.rglob("*") if path.is_file()]
    copies = [str(path) for path in files if token in path.read_text(errors="replace")]
    arguments = [one.pid for one in processes if token in " ".join(one.cmdline())]
print(json.dumps({
    "doors": sorted({door.removeprefix("::ffff:") for door in doors}), "mode": mode, "stranger": stranger,
    "worker": worker, "copies": copies, "arguments": arguments, "left": session.parents[1].exists(), "metrics": metrics,
    "token": os.environ.get("RAY_AUTH_TOKEN"),
}))
"""


def test_other_users_find_no_token_no_port_and_no_folder_of_a_local_ray(tmp_path):
    (tmp_path / "home" / ".ray").mkdir(parents=True)
    (tmp_path / "stands").mkdir()
    for name in ("tokenizers", "torch", "datasets", "numpy"):
        (tmp_path / "stands" / f"{name}.py").write_text("raise ImportError('from where the user stands')")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path / "home"), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-P", "-c", LOCAL]
    noted = subprocess.run(
        command, cwd=tmp_path / "stands", env=environment, capture_output=True, text=True, check=True
    )
    saw = json.loads(noted.stdout)
    assert saw["doors"] == ["127.0.0.1"]
    programs = {
        Path(next((word for word in command if word.endswith(".py")), command[0])).name for command in saw["metrics"]
    }
    assert programs <= {"monitor.py", "dashboard.py"}, "the agent's `/metrics` is off, as guarantees.md says"
    assert saw["stranger"] is False, "whatever the environment says"
    assert (saw["mode"], saw["copies"], saw["arguments"]) == ("0o700", [], [])
    path, tokenizers = saw["worker"]
    assert str(tmp_path / "stands") not in path
    assert "site-packages" in tokenizers
    assert (saw["left"], saw["token"]) == (False, None), "nothing stays"
    assert not list((tmp_path / "home" / ".ray").iterdir())


def test_a_token_is_shown_only_in_its_block(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-a-cluster")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with authenticated("of-a-sweep"):
        assert (os.environ["RAY_AUTH_TOKEN"], os.environ["RAY_AUTH_MODE"]) == ("of-a-sweep", "token")
    assert os.environ["RAY_AUTH_TOKEN"] == "of-a-cluster"
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.undo()
    ray_internals.read_token_again()  # the Ray of other tests in this process has a token


@pytest.mark.parametrize("linked", [False, True])
def test_a_token_file_that_others_can_read_is_closed_to_them(linked, tmp_path, monkeypatch, caplog):
    token = tmp_path / "token"
    token.write_text("a" * 64)
    token.chmod(0o644)
    default_file = tmp_path / ".ray" / "auth_token"
    default_file.parent.mkdir()
    default_file.symlink_to(token) if linked else token.rename(default_file)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    with caplog.at_level(logging.WARNING):
        close_token_file()
        close_token_file()
    assert default_file.stat().st_mode & 0o777 == 0o600
    assert [record.getMessage() for record in caplog.records] == [
        f"other users could read {default_file}, with its permissions 0644; they are 0600 now: renew the token"
    ]


def test_a_token_file_of_another_user_is_refused_and_an_absent_one_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    close_token_file()
    (tmp_path / "token").touch(0o644)

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    words = r"token, where Ray .* has the permissions 0644 and is not yours; name a file"
    with pytest.raises(ClusterError, match=words):
        close_token_file()


@pytest.mark.long
def test_what_ray_says_of_its_workers_is_not_printed_among_the_results():
    program = """
import logging, os, ray, threading
from ray._private.utils import publish_error_to_driver
from babeltune.sweep.workers.connection import local_ray, log
logged = threading.Event()
log.addFilter(lambda record: logged.set() or True)
with local_ray(num_cpus=1):
    try:
        ray.get(ray.remote(max_retries=0)(lambda: os._exit(1)).remote())
    except ray.exceptions.WorkerCrashedError:
        print("it died")
    publish_error_to_driver("memory", "a node runs low on memory", ray._private.worker.global_worker.gcs_client)
    logged.wait()
"""
    noted = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert noted.stdout == "it died\n"
    assert [line for line in noted.stderr.splitlines() if "Ray:" in line] == ["Ray: a node runs low on memory"]
    assert "worker died" not in noted.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_driver_whose_own_ray_dies_ends_at_once_and_says_what_to_do(name):
    program = f"""
import psutil, threading
from babeltune.sweep.workers.connection import local_ray
with local_ray(num_cpus=1):
    children = psutil.Process().children(recursive=True)
    print(*(child.pid for child in children), flush=True)
    next(child for child in children if child.name() == {name!r}).kill()
    threading.Event().wait()
"""
    noted = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert noted.returncode == 1
    assert f"error: Ray has died on this machine ({name}); the same command again goes on\n" in noted.stderr
    pids = [int(pid) for pid in noted.stdout.split()]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=PATIENCE_S)
    assert not alive


def test_a_wrong_token_for_the_ray_of_this_machine_is_one_line_that_says_what_to_do(ray_cluster, monkeypatch):
    program = """
from babeltune.sweep.workers.connection import connected
from babeltune.errors import ClusterError
from babeltune.schema.cluster import Cluster
try:
    with connected(Cluster(name="lab", address="auto", token_env="A_TOKEN")):
        pass
except ClusterError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "A_TOKEN": "0" * 64}
    noted = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    message = (
        "cluster 'lab' at auto does not accept the token; put the cluster's token into the environment variable A_TOKEN"
    )
    assert noted.stdout.strip() == message


def test_a_cluster_that_wants_a_token_is_used(ray_cluster):
    address = ray.get_runtime_context().gcs_address
    assert takes(address, STRANGER) is False
    assert takes(address, token_variables("0" * 64)) is False
    assert takes(address, {})
    refuse_open("cluster 'lab'", address, insecure=False)
    assert not open_to_all("cluster 'lab'", address)


def test_ray_does_not_take_the_signal_that_ends_a_command(monkeypatch):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda **_: ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15)))
    for module, name in (("worker", "print_to_stdstream"), ("utils", "set_sigterm_handler")):
        holder = getattr(ray._private, module)  # what other tests' clusters use comes back
        monkeypatch.setattr(holder, name, getattr(holder, name))
    ray_internals.start(lambda _: None)
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("ray_cluster")
def test_a_signal_to_the_drivers_process_group_does_not_reach_ray():
    started = ray._private.worker._global_node.all_processes
    groups = {name: {os.getpgid(each.process.pid) for each in processes} for name, processes in started.items()}
    assert {"gcs_server", "raylet"} <= set(groups)
    assert os.getpgrp() not in set().union(*groups.values())
