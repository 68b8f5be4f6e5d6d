"""The connection of a driver to its Ray: this machine's own, or a cluster that runs already."""

import logging
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import ray
import torch

from babeltune.errors import ClusterError
from babeltune.schema.cluster import Cluster
from babeltune.signals import end_when_asked
from babeltune.sweep import ray_internals
from babeltune.sweep.workers.access import authenticated, close_token_file, listens, refuse_open, takes, token_variables

log = logging.getLogger(__name__)
REQUIRED_PROCESSES = ("gcs_server", "raylet")  # Ray's own processes, without which nothing goes on
POLL_INTERVAL_S = 1.0  # seconds between two checks that they are alive


def _no_result(lines: list[str]) -> None:
    """Logs what Ray would print in colours on stdout, where results go. The sweep's log says itself who died."""
    for words in lines:
        mended = "worker died" in words or "retries remaining" in words
        log.log(logging.DEBUG if mended else logging.WARNING, "Ray: %s", words.strip())


@contextmanager
def connected(cluster: Cluster, *, insecure: bool | None = None) -> Iterator[None]:
    """A connection to the cluster. The local one is started and ended here; an open one is used as it is.

    Raises `ClusterError` if it does not answer, or wants no token, unless `insecure` (None: the caller cannot say)."""
    if ray.is_initialized():
        yield
        return
    close_token_file()
    if cluster.address == "local":
        with local_ray(num_gpus=torch.cuda.device_count()):
            end_when_asked()
            yield
        return
    if cluster.by_jobs:
        raise ClusterError(
            f"cluster {cluster.name!r}: {cluster.place} is a dashboard, which takes jobs only; "
            "run babeltune on the head node with `address: auto`, or name the cluster's `host:port`"
        )
    name = cluster.title
    token = cluster.token()
    address = _ray_here(cluster.address)
    dashboard = f"; a dashboard's address is http://{address}" if address.endswith(":8265") else ""
    if not listens(address):
        raise ClusterError(f"{name} does not answer; start it, or use clusters/local.yaml{dashboard}")
    if ":" in address:
        is_taken = takes(address, token_variables(token) if token else {})
        if is_taken is None:
            raise ClusterError(f"{name} does not answer as Ray does; name the port of its GCS, often 6379{dashboard}")
        if not is_taken:
            why = "wants a token" if token is None else "does not accept the token"
            raise ClusterError(f"{name} {why}; {cluster.token_place}")
    with nullcontext() if token is None else authenticated(token):
        try:
            ray_internals.start(_no_result, address=cluster.address)
        except (ConnectionError, OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise ClusterError(f"{name} does not answer ({error}); start it, or use clusters/local.yaml") from error
        end_when_asked()
        try:
            refuse_open(name, ray.get_runtime_context().gcs_address, insecure=insecure)
            yield
        finally:
            ray.shutdown()


def _ray_here(address: str) -> str:
    """The `host:port` of the Ray that `auto` means here, if there is one."""
    if address != "auto":
        return address
    with suppress(ConnectionError):
        return ray_internals.bootstrap_address(address) or address
    return address


@contextmanager
def local_ray(num_cpus: int | None = None, num_gpus: int = 0, env: dict[str, str] | None = None) -> Iterator[None]:
    """A Ray of our own on this machine, ended with the block.

    It has the machine's CPUs by default. `env` reaches every worker. It listens on 127.0.0.1 alone. Its processes take
    no call without a token of its own, which stands in their environment and in no file. Its files are in a folder
    that only this user enters. Ray reports no usage, unless the environment says so. Raises `ClusterError` if it
    does not start."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with authenticated(secrets.token_hex(32)), _own_folder() as folder:
        _start(folder, num_cpus=num_cpus, num_gpus=num_gpus, runtime_env={"env_vars": env} if env else None)
        ending = threading.Event()
        threading.Thread(target=_end_without_ray, args=(ending,), daemon=True).start()
        try:
            yield
        finally:
            ending.set()
            ray.shutdown()


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for Ray's session below one that only this user enters, for Ray opens its own folders to all users."""
    place = Path(ray_internals.temporary_folder())
    try:
        place.mkdir(parents=True, exist_ok=True)
        outer = TemporaryDirectory(prefix="ray", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise _not_started(error) from error
    with outer as folder:
        yield Path(folder, "r")  # short, for it stands in the names of sockets


def _start(folder: Path, **options: object) -> None:
    """Starts Ray with its files in the folder."""
    options |= {"include_dashboard": False, "object_store_memory": 200 * 2**20, "logging_level": "ERROR"}
    try:
        ray_internals.start_here(_no_result, str(folder), **options)
    except Exception as error:  # whatever kept one of its processes from starting
        ray.shutdown()
        raise _not_started(error) from error


def _not_started(error: Exception) -> ClusterError:
    return ClusterError(
        f"Ray does not start on this machine ({str(error).strip().splitlines()[0]}); it needs a folder with a "
        "short path and some room, RAY_TMPDIR or else /tmp, and a machine that is not overloaded; then try again"
    )


def _end_without_ray(ending: threading.Event) -> None:
    """Ends this process if one of Ray's own has died. Ray's code would: a minute later, and without a next step."""
    while not ending.wait(POLL_INTERVAL_S):
        dead = [name for name in ray_internals.dead_processes() if name in REQUIRED_PROCESSES]
        if dead and not ending.is_set():
            sys.stderr.write(f"error: Ray has died on this machine ({dead[0]}); the same command again goes on\n")
            sys.stderr.flush()
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            os._exit(1)
