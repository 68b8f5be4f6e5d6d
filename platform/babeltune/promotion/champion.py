"""The registered models that a candidate is compared with or began from, as MLflow's registry and tags know them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.data.starts import keep_start, start_name
from babeltune.promotion.candidate import MEMBERS, Candidate, lineage, registered_name
from babeltune.schema.cluster import Cluster
from babeltune.tracking.mlflow_client import TESTS

if TYPE_CHECKING:
    from babeltune.tracking.registry import Registered


@dataclass(frozen=True)
class Champion:
    """The registered model that the alias points to, with its downloaded folder."""

    name: str
    version: Registered
    folder: Path


def champion_for(candidate: Candidate, cluster: Cluster, alias: str | None) -> Champion | None:
    """The registered model that the candidate would replace; None if there is no such alias. Without an alias, it is
    the version that has the candidate's checkpoint already."""
    from babeltune.tracking.registry import champion_of, fetch_version, versions_of

    name = registered_name(candidate)
    if alias is None:
        version = next((each for each in versions_of(cluster.mlflow, name) if is_same(each, candidate)), None)
    else:
        version = champion_of(cluster.mlflow, name, alias)
    if version is None:
        return None
    folder = fetch_version(cluster.mlflow, version, cluster.folder / "fetched")
    title = f"models:/{name}" if alias is None else f"models:/{name}@{alias}"
    return Champion(f"{title} (version {version.version})", version, folder)


def is_same(version: Registered, candidate: Candidate) -> bool:
    """Whether the version is the candidate's own checkpoint."""
    tags = version.tags
    return tags.items() >= lineage(candidate).items() and tags.get(MEMBERS, "") == " ".join(candidate.members)


def unfiltered(version: Registered, candidate: Candidate, who: str) -> list[str]:
    """Sealed tests whose sentences were not kept out of a registered model's training text, as far as its tags tell."""
    kept_out = version.tags.get(TESTS, "")
    names = [name for name, digest in candidate.prepared.digests.items() if name.startswith("test/")]
    strange = [name for name in names if candidate.prepared.digests[name] not in kept_out]
    if not strange:
        return []
    return [f"warning: {', '.join(strange)} was no sealed test of {who}'s sweep, so its training may have seen it"]


def start_of(candidate: Candidate, cluster: Cluster) -> Registered | None:
    """The registered model that the candidate's training started from; None if it was another, or none."""
    from babeltune.tracking.registry import registered_folder, version_in

    student = candidate.trial.student
    if (start := start_name(student)) is not None:
        copy = keep_start(cluster.folder, start)
        return version_in(cluster.mlflow, Path(registered_folder(copy)))
    return None if student.model is None else version_in(cluster.mlflow, Path(student.model))
