"""Looks whether a sweep could run: versions, storage, MLflow, Ray and its room for workers.

Each finding is good or says what to do."""

import os
import platform
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

import babeltune
from babeltune.errors import BabeltuneError, ClusterError
from babeltune.files import draft_of
from babeltune.redaction import without_password
from babeltune.schema.cluster import Cluster
from babeltune.schema.paths import sqlite_file
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.object_store import ObjectStore
from babeltune.sweep.workers.access import OPEN, STRANGER, listens, takes
from babeltune.tracking.mlflow_client import open_client, why

PYTHON = (3, 11)
LOOKED_AT = ("ray", "torch", "transformers", "sentence-transformers", "optuna", "mlflow")
"""The packages that are listed; the others only if they are not what babeltune needs."""
ROOM = 2**30  # bytes that must be free in the storage
ANSWER_TIMEOUT_S = "10"  # seconds that an MLflow server may take


@dataclass(frozen=True)
class Finding:
    """A line of `babeltune doctor`: what was examined, whether it is good, and what was found or is to do."""

    name: str
    ok: bool
    text: str


def examine(cluster: Cluster) -> list[Finding]:
    """Everything that a sweep on this cluster needs, seen from here."""
    findings = [itself(), python(), *packages(installed(), needed())]
    for look in (storage, tracking, ray_cluster):
        findings += look(cluster)
    return findings


def itself() -> Finding:
    return Finding("babeltune", True, f"from {Path(babeltune.__file__).parent}")


def python() -> Finding:
    have = platform.python_version()
    low = ".".join(map(str, PYTHON))
    good = tuple(map(int, have.split(".")[:2])) >= PYTHON
    return Finding("python", good, have if good else f"{have}; install Python {low} or newer")


def installed() -> dict[str, str]:
    """The versions of the packages that babeltune needs, as far as they are there."""
    names = {*LOOKED_AT, *(need.name for need in needed())}
    versions = {}
    for name in sorted(names):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def needed() -> list[Requirement]:
    """The requirements in babeltune's own metadata; none in a wheel that a cluster received."""
    try:
        lines = distribution("babeltune").requires or []
    except PackageNotFoundError:
        return []
    return [need for line in lines if (need := Requirement(line)).marker is None]


def packages(have: Mapping[str, str], needs: Iterable[Requirement]) -> Iterator[Finding]:
    """The packages worth a line, and each that is absent or of a version that does not fit."""
    by_name = {need.name: need for need in needs}
    for name in dict.fromkeys((*LOOKED_AT, *by_name)):
        need, is_version = by_name.get(name), have.get(name)
        requirement = f"{name}{need.specifier}" if need else name
        if is_version is None:
            yield Finding(name, False, f"is not installed; `pip install '{requirement}'`")
        elif need is not None and not need.specifier.contains(is_version, prereleases=True):
            yield Finding(name, False, f"{is_version} does not fit; `pip install '{requirement}'`")
        elif name in LOOKED_AT:
            yield Finding(name, True, is_version)


def storage(cluster: Cluster) -> Iterator[Finding]:
    place = cluster.folder
    probe = draft_of(place / "doctor")
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0" * 4096)
        probe.unlink()
        free = shutil.disk_usage(place).free
    except (FileExistsError, NotADirectoryError):
        yield Finding("storage", False, f"{place} is not a folder; change `storage`, or BABELTUNE_HOME")
        return
    except OSError as error:
        yield Finding("storage", False, f"{place} cannot be written ({error.strerror}); change `storage` or its owner")
        return
    room = f"{free / 2**30:.1f} GiB free"
    if cluster.mirrored is not None:
        yield bucket(cluster.mirrored)
    yield Finding(
        "storage" if cluster.mirrored is None else "cache",
        free > ROOM,
        f"{place}, {room}" + ("" if free > ROOM else "; make room, or change `storage`"),
    )


def bucket(where: StorageLocation) -> Finding:
    """Whether what is written behind the URI can be read and removed."""
    key, word = f".doctor-{uuid.uuid4().hex}", b"0" * 4096
    try:
        store = ObjectStore(where.uri, timeout=5)
        store.write(key, word)
        same = store.read(key) == word
        store.remove(key)
    except ClusterError as error:
        return Finding("storage", False, str(error))
    return Finding(
        "storage",
        same,
        where.uri if same else f"{where.uri} gives back other bytes than it was given; look at the store",
    )


def tracking(cluster: Cluster) -> Iterator[Finding]:
    uri, shown = cluster.mlflow, without_password(cluster.mlflow)
    if (file := sqlite_file(uri)) is not None and not file.exists():
        place = next(folder for folder in file.absolute().parents if folder.exists())
        yield (
            Finding("tracking", True, f"{shown}, which the first sweep makes")
            if place.is_dir() and os.access(place, os.W_OK)
            else Finding("tracking", False, f"{shown} cannot be made in {place}; change `mlflow`")
        )
        return
    timeout = os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT")
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = ANSWER_TIMEOUT_S
    try:
        open_client(uri).search_experiments(max_results=1)
        yield Finding("tracking", True, shown)
    except Exception as error:  # whatever a store, its driver or a proxy raises
        yield Finding("tracking", False, f"{shown} does not answer: {why(error)}; start it, or change `mlflow`")
    finally:
        os.environ.pop("MLFLOW_HTTP_REQUEST_TIMEOUT")
        if timeout is not None:
            os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = timeout


def ray_cluster(cluster: Cluster) -> Iterator[Finding]:
    """Whether Ray answers, and whether it holds a worker group."""
    from babeltune.sweep.workers.nodes import nodes_there, worker_groups_that_fit  # seconds of imports

    if cluster.address == "local":
        import torch

        nodes = [{"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}]
        yield Finding("address", True, "local: Ray starts with the sweep")
        yield Finding("token", True, "Ray gets one of its own")
    else:
        import ray

        from babeltune.sweep.workers.connection import connected

        if not listens(cluster.address):
            yield Finding("address", False, f"{cluster.place} does not answer; start Ray, or change `address`")
            return
        try:
            with connected(cluster, insecure=True):
                closed = takes(ray.get_runtime_context().gcs_address, STRANGER) is False
                nodes = list(nodes_there().values())
        except BabeltuneError as error:
            yield Finding("address", False, str(error))
            return
        yield Finding("address", True, f"{cluster.place}; nodes: {len(nodes)}")
        yield Finding("token", closed, "is wanted" if closed else f"this cluster {OPEN}")
    shares = cluster.cpus_per_worker, cluster.gpus
    try:
        fit = worker_groups_that_fit(cluster.workers, *shares, least=cluster.least_workers, nodes=nodes)
        yield Finding("worker groups", True, f"room for {fit}; workers in each: {cluster.workers}")
    except ClusterError as error:
        later = "none fits now; `nodes_within` asks for nodes with a sweep"
        yield Finding("worker groups", cluster.nodes_within > 0, later if cluster.nodes_within else str(error))
