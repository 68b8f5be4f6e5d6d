"""Reads a cluster file: where a sweep runs, where its results go, and what each worker gets.

`clusters/local.yaml`, the default, needs nothing running. Secrets are never in the file: it names the environment
variable or the file that holds the token. With a dashboard's address, storage and MLflow are the cluster's own: their
variables are left for its head to replace."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from babeltune.errors import SpecError
from babeltune.redaction import KEYS, holds_password, without_password
from babeltune.schema.addresses import PLACE, is_place
from babeltune.schema.bounds import NAME, Problem, at_least, or_word
from babeltune.schema.document import read_document, validate
from babeltune.schema.notice import Notice, check_token, secret_of_file
from babeltune.schema.paths import expand, find_file, sqlite_url
from babeltune.schema.records import Strict
from babeltune.schema.storage_location import StorageLocation

DEFAULT = "clusters/local.yaml"
EXPANDED = ("address", "token_file", "storage", "cache", "mlflow")
"""Keys whose `${NAME:-default}` is replaced."""
OF_THE_HEAD = ("storage", "cache", "mlflow")
"""Keys that the head of a cluster replaces if work goes there as Ray jobs."""
DASHBOARD = ("http://", "https://")
ADDRESS = re.compile(r"local|auto|[^\s/]+:\d+|https?://([^\s/@]*@)?([^\s/:@\[\]]+|\[[\da-fA-F:.]+\])(:\d+)?(/\S*)?")
Isolation = Literal["worker_group", "process"]
DEFAULT_METRICS = 40
"""Metrics of a trial in MLflow: more of them hide those that decide."""
FINEST = 10_000
"""Parts of a CPU or GPU that Ray can tell apart."""
URI = re.compile(r"([^/$]+)://(.*)", re.DOTALL)
MLFLOW = re.compile(
    r"https?://[^/].*|databricks(://.+)?|(sqlite|postgresql|mysql|mssql)(\+\w+)?://.+|\$\{.+", re.DOTALL
)
"""A server or a database; of a dashboard's cluster, a variable may be all."""
PROTOCOL = re.compile(r"[a-z][a-z0-9+.-]*")
AFTER = re.compile(r"/?[^/\s:@?#\\]+(/[^/\s:@?#\\]+)*/?")
"""The part of a storage after `://`: a bucket and a prefix, or a path, without user, query or fragment."""


@dataclass(frozen=True, kw_only=True)
class Serving(Strict):
    """The limits of the server of vectors."""

    host: str = "127.0.0.1"
    """The IP address that it listens on. One that other machines reach needs a token."""
    token_env: str | None = None
    """The environment variable that holds the token. Each request has to bring it: `Authorization: Bearer TOKEN`."""
    token_file: str | None = None
    """The file that holds it instead: of the user or root, and readable by its owner only."""

    @property
    def on_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def token(self) -> str | None:
        """The token, read now; None if none is asked for. Raises `SpecError` if it is not there or is no word."""
        if self.token_env is None and self.token_file is None:
            return None
        if self.token_file is not None:
            place = f"serve: token_file {self.token_file}"
            token = secret_of_file(Path(self.token_file).expanduser(), "serve: token_file", "the server's token")
        else:
            place = f"serve: the environment variable {self.token_env}"
            token = os.environ.get(self.token_env or "", "").strip()
        return check_token(token, place)

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        try:
            local = self.on_loopback
        except ValueError:
            yield ("host",), f"{self.host!r} must be an IP address, such as 127.0.0.1, or 0.0.0.0 for every network"
            return
        if self.token_env is not None and self.token_file is not None:
            yield ("token_file",), "token_env is given too; keep one"
        if not local and self.token_env is None and self.token_file is None:
            yield ("host",), f"{self.host} is reached from other machines; name a token: `token_file: PATH`"


@dataclass(frozen=True, kw_only=True)
class Quota(Strict):
    """Hours of a user in a calendar month (UTC), in which worker groups of the cluster have trials."""

    gpu_hours: float | None = None
    """Hours times GPUs: an hour of a trial with two workers on half a GPU each is one. Absent: no limit."""
    cpu_hours: float | None = None
    """Hours times CPU cores. Absent: no limit."""
    over_quota: bool = False
    """Whether `submit --over-quota` runs a sweep all the same."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that there are, by the names of their keys."""
        limits = {"gpu_hours": self.gpu_hours, "cpu_hours": self.cpu_hours}
        return {key: limit for key, limit in limits.items() if limit is not None}

    def problems(self) -> Iterator[Problem]:
        """Its problems."""
        for key, limit in self.limits.items():
            if limit < 0:
                yield (key,), f"{limit:g} must be at least 0 hours"
        if self.over_quota and not self.limits:
            yield ("over_quota",), "there is no limit to go over; give `gpu_hours` or `cpu_hours`"


@dataclass(frozen=True, kw_only=True)
class Cluster(Strict):
    """A whole cluster file. None of it decides what a trial's result is."""

    version: Literal[1] = 1
    """The version of this format."""
    name: str = "local"
    """The cluster's name in messages."""
    address: str = "local"
    """`local` starts Ray on this machine. `auto` and `host:port` join a running cluster that has babeltune installed
    on its nodes. A dashboard's `http://…` or `https://…` gets the sweep as a Ray job, and babeltune with it."""
    token_env: str | None = None
    """The environment variable that holds the cluster's token."""
    token_file: str | None = None
    """The file that holds the token instead: of the user or root, and readable by its owner only."""
    storage: str = ".babeltune"
    """The folder for stores, checkpoints and sweeps; every worker must see it. With a dashboard's address, a whole path
    on the cluster's nodes. Or a URI, `s3://bucket/prefix` or `gs://bucket/prefix`: each node mirrors what it needs of
    it in a folder of its own. Credentials are in the environment of each."""
    cache: str = ""
    """The folder for such mirrors; absent: `$BABELTUNE_CACHE`, or `~/.cache/babeltune`."""
    storage_timeout: Annotated[float, at_least(1)] = 300.0
    """Seconds for which the store behind a URI may be away before a sweep stops."""
    clean_after_days: Annotated[float | None, at_least(1)] = None
    """Days after which each sweep removes what `babeltune clean --older DAYS` would. Each node also removes copies of a
    bucket's objects that it has not used for as long. It must be longer than a trial. Absent: nothing is removed."""
    mlflow: str = ""
    """MLflow's tracking URI; absent: a sqlite file in the storage, which then has to be a folder."""
    mlflow_metrics: Annotated[int | Literal["all"], or_word("all", at_least(1))] = DEFAULT_METRICS
    """Metrics that MLflow gets of a trial, the objectives first. All of them are in the run's `metrics.parquet` if some
    are left out. `all` leaves out none."""
    workers: Annotated[int, at_least(1)] = 1
    """Workers per trial, unless the sweep's budget says otherwise."""
    least_workers: Annotated[int | None, at_least(1)] = None
    """A trial goes on with as few where nodes are gone, and a later one with all when they are back; its batches stay
    the same. Absent: no trial runs without all of its workers."""
    cpus_per_worker: Annotated[float, at_least(0)] = 1.0
    """CPU cores of a worker."""
    gpus_per_worker: Annotated[float | Literal["auto"], or_word("auto", at_least(0))] = 0.0
    """A share of a GPU, such as 0.25, lets several trials of one worker have the same one. `auto`: the least share that
    has room for the first steps of every kind of trial, measured before the search; a whole one for several workers."""
    worker_groups: Annotated[int | Literal["auto"], or_word("auto", at_least(1))] = "auto"
    """Trials that run at once; `auto`: as many as the cluster's resources hold."""
    nodes_within: Annotated[float, at_least(0)] = 0.0
    """Seconds within which the first worker group's nodes must come. The nodes of all `worker_groups` groups are
    requested (of one with `auto`). This is for a cluster with an autoscaler, which Ray does not report, or whose
    nodes come after its head. 0: nothing is requested."""
    isolation: Isolation = "worker_group"
    """`process` gives every trial new workers, which takes seconds; in a worker group they are kept."""
    progress_timeout: Annotated[float, at_least(1)] = 1800.0
    """Seconds without an optimizer step, an evaluated batch or a report after which a trial hangs: its workers are
    replaced and it goes on from its last checkpoint. What comes before the first step counts, too."""
    quota: Quota = field(default_factory=Quota)
    """How much one user may have trials compute in a calendar month. Whoever writes the cluster file can change it: it
    reminds, and does not protect."""
    notify: tuple[Notice, ...] = ()
    """Webhooks, programs and people that are notified how sweeps end, what is promoted or refused, and of drift."""
    serve: Serving = field(default_factory=Serving)
    """The address of `babeltune serve`, and the token that it asks for."""

    @property
    def gpus(self) -> float:
        """GPUs of a worker: a whole one if its share is measured, until it is."""
        return 1.0 if self.gpus_per_worker == "auto" else self.gpus_per_worker

    @property
    def by_jobs(self) -> bool:
        """Whether work goes there as Ray jobs."""
        return self.address.startswith(DASHBOARD)

    @property
    def in_the_open(self) -> bool:
        """Whether what is sent to its dashboard can be read on the way."""
        parts = urlsplit(self.address)
        host = parts.hostname or ""
        return parts.scheme == "http" and not (host in ("localhost", "::1") or host.startswith("127."))

    @property
    def place(self) -> str:
        """Its address for messages, without a password that it may hold."""
        return without_password(self.address)

    @property
    def title(self) -> str:
        """Its name and address, for messages."""
        return f"cluster {self.name!r} at {self.place}"

    @property
    def mirrored(self) -> StorageLocation | None:
        """The mirror of a storage behind a URI; None if the storage is a folder."""
        if not URI.fullmatch(self.storage):
            return None
        uri, days = self.storage.rstrip("/"), self.clean_after_days
        return StorageLocation(uri=uri, cache=self.cache, timeout=self.storage_timeout, unused_days=days)

    @property
    def folder(self) -> Path:
        """The storage as this machine has it: the folder, or the mirror of a URI."""
        return Path(self.storage).absolute() if self.mirrored is None else self.mirrored.folder

    def with_workers(self, workers: int | None) -> Cluster:
        """The cluster with the sweep's worker count, if it sets one. Raises `SpecError` for a shared GPU."""
        cluster = replace(self, workers=workers or self.workers)
        if problem := _shared_gpu(cluster):
            raise SpecError(f"cluster {self.name!r}: gpus_per_worker: {problem}")
        return cluster

    def seen_from_head(self) -> Cluster:
        """The same cluster for a command that runs on its head, where Ray itself knows the token."""
        return replace(self, address="auto", token_env=None, token_file=None)

    @property
    def token_place(self) -> str:
        """The next step if the cluster does not take the token."""
        if self.token_env is not None:
            return f"put the cluster's token into the environment variable {self.token_env}"
        if self.token_file is not None:
            return f"put the cluster's token into {self.token_file}"
        return "name the token in the cluster file: `token_env: NAME_OF_A_VARIABLE` or `token_file: PATH`"

    def token(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The token, read now and kept nowhere. Raises `SpecError` when it is named but not there."""
        if self.token_env is not None:
            token = (os.environ if environ is None else environ).get(self.token_env, "").strip()
            if not token:
                raise SpecError(f"cluster {self.name!r}: the environment variable {self.token_env} is not set; set it")
            return check_token(token, f"cluster {self.name!r}: the environment variable {self.token_env}")
        if self.token_file is None:
            return None
        path = Path(self.token_file).expanduser()
        token = secret_of_file(path, f"cluster {self.name!r}: token_file", "the cluster's token")
        return check_token(token, f"cluster {self.name!r}: token_file {path}")


def read_cluster(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> Cluster:
    """The cluster of that file, or the local one. Raises `SpecError` naming every problem with file and line."""
    file = find_file(DEFAULT if path is None else path, "cluster")
    document = read_document(file)
    if {"method", "data"} & document.values.keys():
        raise SpecError(f"{file}: this is a sweep file, not a cluster file; `babeltune submit {file}` runs it")
    wrong = {key: _secret(key) for key, value in document.values.items() if _is_secret(key, value)}
    for key in EXPANDED:  # the address comes first
        value = document.values.get(key)
        by_jobs = str(document.values.get("address")).startswith(DASHBOARD)
        if isinstance(value, str) and not (by_jobs and key in OF_THE_HEAD):
            try:
                document.values[key] = expand(value, environ)
            except SpecError as error:
                wrong.setdefault(key, str(error))
    lines = [document.error((key,), problem) for key, problem in wrong.items()]
    for key in wrong.keys() - EXPANDED:
        del document.values[key]  # a secret in a key that there is not
    try:
        cluster = validate(document, Cluster)
    except SpecError as error:
        raise SpecError("\n".join([*lines, str(error)])) from error
    lines += [document.error(key, problem) for key, problem in _problems(cluster) if key[0] not in wrong]
    if lines:
        raise SpecError("\n".join(lines))
    if cluster.mlflow or cluster.by_jobs:
        return cluster
    return replace(cluster, mlflow=sqlite_url(cluster.folder / "mlflow.db"))


def _problems(cluster: Cluster) -> Iterator[Problem]:
    yield from _address_problems(cluster)
    wrong = list(_no_places(cluster))
    yield from wrong
    if not wrong:
        yield from _place_problems(cluster)
        yield from _share_problems(cluster)


def _address_problems(cluster: Cluster) -> Iterator[Problem]:
    """The cluster's name and address, and what must not be empty."""
    if not NAME.fullmatch(cluster.name):
        yield ("name",), f"{cluster.name!r} must be letters, digits, `_`, `.` or `-`"
    for key, value in (("address", cluster.address), ("storage", cluster.storage)):
        if not value:
            yield (key,), "must not be empty"
    if cluster.address and not ADDRESS.fullmatch(cluster.address):
        ways = "`local`, `auto` (the Ray of this machine), the HOST:PORT of a head, or its dashboard's http://HOST:PORT"
        yield ("address",), f"{cluster.place!r} must be {ways}"
    port = re.search(r":(\d+)(/[^@]*)?$", cluster.address)
    if port and not (len(port[1]) < 9 and 0 < int(port[1]) < 65536):
        yield ("address",), f"{cluster.place[:200]!r} has port {port[1][:20]}, and ports are 1 to 65535"


def _place_problems(cluster: Cluster) -> Iterator[Problem]:
    """Where results go, and where secrets come from."""
    uri = URI.fullmatch(cluster.storage)
    if uri:
        yield from _uri_problems(uri[1], uri[2], cluster)
    elif not cluster.by_jobs and ("${" in cluster.storage or re.match(r"[a-z][a-z0-9+.-]*:", cluster.storage)):
        yield ("storage",), f"{cluster.storage!r} must be a folder, or a URI such as s3://bucket/prefix"
    elif cluster.by_jobs and not cluster.storage.startswith(("/", "${")):
        yield ("storage",), f"{cluster.storage!r} must be a whole path on the cluster's nodes, such as /mnt/babeltune"
    if cluster.mlflow and not MLFLOW.fullmatch(cluster.mlflow):
        databases = "sqlite:///…, postgresql://…, mysql://… or mssql://…"
        words = f"must be a server, http://… or https://…, or a database: {databases}"
        yield ("mlflow",), f"{without_password(cluster.mlflow)!r} {words}"
    if cluster.token_env is not None and cluster.token_file is not None:
        yield ("token_file",), "token_env is given too; keep one"
    for index, notice in enumerate(cluster.notify):
        for key, problem in notice.problems():
            yield ("notify", index, *key), problem
    for key, problem in cluster.serve.problems():
        yield ("serve", *key), problem
    for key, problem in cluster.quota.problems():
        yield ("quota", *key), problem


def _share_problems(cluster: Cluster) -> Iterator[Problem]:
    """Workers whose share of the machine cannot be, and numbers that do not fit each other."""
    for key, share in (("cpus_per_worker", cluster.cpus_per_worker), ("gpus_per_worker", cluster.gpus)):
        if share > 0 and abs(share * FINEST - round(share * FINEST)) > 1e-6:
            yield (key,), f"{share:g} must be a multiple of {1 / FINEST:g}, as finely as Ray counts"
    if cluster.nodes_within and cluster.address == "local":
        yield ("nodes_within",), f"{cluster.nodes_within:g} is for a cluster with an autoscaler; this machine has none"
    if cluster.gpus > 1 and cluster.gpus % 1:
        yield (("gpus_per_worker",), f"{cluster.gpus:g} must be a share of one GPU, such as 0.5, or whole ones")
    if cluster.cpus_per_worker == 0 and cluster.gpus == 0:
        yield ("cpus_per_worker",), "0 and gpus_per_worker 0: a worker needs a share of something"
    if cluster.least_workers is not None and cluster.least_workers > cluster.workers:
        yield ("least_workers",), f"{cluster.least_workers} must be at most workers, {cluster.workers}"
    if URI.fullmatch(cluster.storage) and cluster.progress_timeout <= cluster.storage_timeout:
        words = (
            f"must be more than storage_timeout, {cluster.storage_timeout:g}: training may wait so long for the store"
        )
        yield ("progress_timeout",), f"{cluster.progress_timeout:g} {words}"
    if problem := _shared_gpu(cluster):
        yield ("gpus_per_worker",), problem


def _no_places(cluster: Cluster) -> Iterator[Problem]:
    """Paths that are none. Their text, which may hold a secret, is not repeated."""
    uri = URI.fullmatch(cluster.storage)
    paths = {"cache": cluster.cache, "token_file": cluster.token_file or ""}
    paths |= {"storage": uri[2] if uri else cluster.storage, "mlflow": cluster.mlflow.rpartition("://")[2]}
    for key, path in paths.items():
        if not is_place(path):
            yield (key,), f"must be {PLACE}"


def _shared_gpu(cluster: Cluster) -> str | None:
    if cluster.workers == 1 or not 0 < cluster.gpus < 1:
        return None
    why = "NCCL does not connect workers on one GPU; give each worker one, or trials one worker"
    return f"{cluster.gpus:g} with {cluster.workers} workers: {why}"


def _uri_problems(protocol: str, place: str, cluster: Cluster) -> Iterator[Problem]:
    """The problems of a storage behind a URI; its text, which may hold a secret, is not repeated."""
    if not PROTOCOL.fullmatch(protocol):
        yield ("storage",), "must begin with one protocol in small letters, such as s3:// or gs://, or be a folder"
    elif not AFTER.fullmatch(place) or {".", ".."} & set(place.split("/")):
        words = f"what follows {protocol}:// must be a bucket and a prefix alone, such as {protocol}://bucket/prefix"
        belong = "belong in the environment (AWS_…, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS)"
        yield ("storage",), f"{words}; credentials and the endpoint {belong}"
    if protocol == "memory":
        yield ("storage",), "memory:// ends with its process; name s3://…, gs://… or a folder"
    if not cluster.mlflow:
        todo = "name a server, or `mlflow: sqlite:////PATH/mlflow.db` on this machine"
        words = f"`mlflow` must be given with a storage URI, in which MLflow's own file cannot be; {todo}"
        yield ("storage",), words


def _is_secret(key: str, value: object) -> bool:
    """Whether a key, or the password inside an address, gives away a secret; one from a variable does not."""
    named_so = re.fullmatch(KEYS, key, re.IGNORECASE) is not None
    return named_so or (isinstance(value, str) and "://" in value and holds_password(value))


def _secret(key: str) -> str:
    """Why a secret is refused; its value is not repeated."""
    why = "a secret does not belong in a file that is shared; "
    if key == "token":
        return why + "give `token_env: NAME_OF_A_VARIABLE` or `token_file: PATH` instead"
    return why + (
        f"write `{key}: ${{NAME_OF_A_VARIABLE}}`" if key in EXPANDED else "name it by token_env or token_file"
    )
