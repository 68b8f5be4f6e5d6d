"""Reads a cluster file: where a sweep runs, where its results go, and what each worker gets.

`clusters/local.yaml`, the default, needs nothing running. Secrets are never in the file: it names the environment
variable or the file that holds the token. With a dashboard's address, storage and MLflow are the cluster's own: their
variables are left for its head to replace.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from babeltune.errors import ClusterError, SpecError
from babeltune.records import Strict
from babeltune.spec.bounds import NAME, Problem
from babeltune.spec.document import expand, find_file, read_document, validate

DEFAULT = "clusters/local.yaml"
EXPANDED = ("address", "token_file", "storage", "mlflow")
"""Keys whose `${NAME:-default}` is replaced."""
OF_THE_HEAD = ("storage", "mlflow")
"""Those that the head of a cluster replaces where work goes there as Ray jobs."""
DASHBOARD = ("http://", "https://")
SECRETS = ("token", "password", "secret", "api_key")


@dataclass(frozen=True, kw_only=True)
class Cluster(Strict):
    """A whole cluster file. None of it decides what a trial's result is."""

    version: Literal[1] = 1
    name: str = "local"
    address: str = "local"
    """`local` starts Ray on this machine; `auto` and `host:port` join a cluster that runs, on whose nodes babeltune is
    installed; to a dashboard's `http://…` or `https://…` the sweep goes as a Ray job, and babeltune with it."""
    token_env: str | None = None
    """The environment variable that holds the cluster's token."""
    token_file: str | None = None
    """Or the file that holds it, which nobody but its owner may read."""
    storage: str = ".babeltune"
    """The folder for stores, checkpoints and sweeps; every worker must see it. With a dashboard's address, a whole path
    on the cluster's nodes."""
    mlflow: str = ""
    """MLflow's tracking URI; absent: a sqlite file in the storage."""
    workers: int = 1
    """Workers per trial, unless the sweep's budget says otherwise."""
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    lanes: int | Literal["auto"] = "auto"
    """Trials that run at once; `auto`: as many as the cluster's resources hold."""

    @property
    def by_jobs(self) -> bool:
        """Whether work goes there as Ray jobs."""
        return self.address.startswith(DASHBOARD)

    def seen_from_head(self) -> Cluster:
        """The same cluster for a command that runs on its head, where Ray itself knows the token."""
        return replace(self, address="auto", token_env=None, token_file=None)

    def token(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The token, read now and kept nowhere. Raises `ClusterError` when it is named but not there."""
        if self.token_env is not None:
            token = (os.environ if environ is None else environ).get(self.token_env, "").strip()
            if not token:
                raise ClusterError(
                    f"cluster {self.name!r}: the environment variable {self.token_env} is not set; set it"
                )
            return token
        if self.token_file is None:
            return None
        path = Path(self.token_file).expanduser()
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            token = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ClusterError(f"cluster {self.name!r}: token_file {path} cannot be read: {error.strerror}") from error
        if mode & 0o077:
            raise ClusterError(
                f"cluster {self.name!r}: token_file {path} has the permissions {mode:04o}, so that others may read it; "
                f"`chmod 600 {path}` keeps it to its owner"
            )
        if not token:
            raise ClusterError(f"cluster {self.name!r}: token_file {path} is empty; put the token in it")
        return token


def read_cluster(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> Cluster:
    """The cluster of that file, or the local one. Raises `SpecError` naming every problem with file and line."""
    document = read_document(find_file(DEFAULT if path is None else path))
    lines = [document.error((key,), _secret(key)) for key, value in document.values.items() if _is_secret(key, value)]
    if lines:
        raise SpecError("\n".join(lines))
    for key in EXPANDED:
        value = document.values.get(key)
        if isinstance(value, str) and not (key in OF_THE_HEAD and _is_dashboard(document.values.get("address"))):
            try:
                document.values[key] = expand(value, environ)
            except SpecError as error:
                lines.append(document.error((key,), str(error)))
    if not lines:
        cluster = validate(document, Cluster)
        lines = [document.error(key, problem) for key, problem in _problems(cluster)]
    if lines:
        raise SpecError("\n".join(lines))
    if cluster.mlflow or cluster.by_jobs:
        return cluster
    return replace(cluster, mlflow=f"sqlite:///{Path(cluster.storage).absolute() / 'mlflow.db'}")


def _problems(cluster: Cluster) -> Iterator[Problem]:
    if not NAME.fullmatch(cluster.name):
        yield ("name",), f"{cluster.name!r} must be letters, digits, `_`, `.` or `-`"
    for key, value in (("address", cluster.address), ("storage", cluster.storage)):
        if not value:
            yield (key,), "must not be empty"
    if cluster.by_jobs and not cluster.storage.startswith(("/", "${")):
        yield ("storage",), f"{cluster.storage!r} must be a whole path on the cluster's nodes, such as /mnt/babeltune"
    if cluster.token_env is not None and cluster.token_file is not None:
        yield ("token_file",), "token_env is given too; keep one"
    for key, number, low in (
        ("workers", cluster.workers, 1),
        ("cpus_per_worker", cluster.cpus_per_worker, 0),
        ("gpus_per_worker", cluster.gpus_per_worker, 0),
        ("lanes", 1 if cluster.lanes == "auto" else cluster.lanes, 1),
    ):
        if number < low:
            yield (key,), f"{number} must be at least {low}"
    if cluster.cpus_per_worker == 0 and cluster.gpus_per_worker == 0:
        yield ("cpus_per_worker",), "0 and gpus_per_worker 0: a worker needs a share of something"


def _is_dashboard(address: object) -> bool:
    return isinstance(address, str) and address.startswith(DASHBOARD)


def _is_secret(key: str, value: object) -> bool:
    """Whether a key, or the password inside an address, gives away a secret; one from a variable does not."""
    return key in SECRETS or (isinstance(value, str) and re.match(r"[a-z0-9+]+://[^/@:]*:[^/@$]+@", value) is not None)


def _secret(key: str) -> str:
    """Why a secret is refused; its value is not repeated."""
    why = "a secret does not belong in a file that is shared; "
    if key == "token":
        return why + "give `token_env: NAME_OF_A_VARIABLE` or `token_file: PATH` instead"
    return (
        why + f"write `{key}: ${{NAME_OF_A_VARIABLE}}`"
        if key in EXPANDED
        else why + "name it by token_env or token_file"
    )
