"""`ray start --head` in a process of its own, with tokens on."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from ports import free_port
from waiting import PATIENCE_S

OPTIONS = {
    "gcs": "--port",
    "dashboard": "--dashboard-port",
    "agent": "--dashboard-agent-listen-port",
    "agent_rpc": "--dashboard-agent-grpc-port",
    "client": "--ray-client-server-port",
    "metrics": "--metrics-export-port",
}
"""The ports of a head."""


def environment_of_head(token):
    """This process's variables without Ray's, and the file of the token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment.pop("PYTHONPATH", None)
    return environment


@contextlib.contextmanager
def started_head(environment, log):
    """The head's process, its ports by `OPTIONS`, and its folder."""
    ports = {name: free_port() for name in OPTIONS}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
    command += [f"{option}={ports[name]}" for name, option in OPTIONS.items()]
    temporary = tempfile.mkdtemp(
        dir="/tmp"
    )  # short, for Ray puts sockets there; in the common one jobs find other heads
    command += ["--num-cpus=4", f"--object-store-memory={200 * 2**20}", f"--temp-dir={temporary}"]
    with log.open("w") as log_file:
        process = subprocess.Popen(command, env=environment, stdout=log_file, stderr=log_file, start_new_session=True)
    try:
        yield process, ports, Path(temporary)
    finally:  # `ray start --block` takes half a minute to end by SIGTERM
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(family, timeout=PATIENCE_S)
        process.wait(PATIENCE_S)
        shutil.rmtree(temporary, ignore_errors=True)
