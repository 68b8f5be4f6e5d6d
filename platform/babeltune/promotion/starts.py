"""The folder behind a start's name: a registered model or a trial's checkpoint, in the storage of a sweep."""

import re
from pathlib import Path

from babeltune.data.starts import FETCHED, copy_start, digest_of_start, place_of, split_pin
from babeltune.errors import SpecError
from babeltune.planning.starts import ALLOWED
from babeltune.promotion.candidate import exported, find_candidate
from babeltune.promotion.model_names import model_folder
from babeltune.schema.cluster import Cluster
from babeltune.sweep.sync.view import StorageView

TRIAL = re.compile(r"[^/]+/t?\d{1,9}")


def fetched(name: str, cluster: Cluster) -> str:
    """The folder of a model's name, or of a start's: a folder, `models:/NAME@ALIAS` or `SWEEP/t0003`. That of a start
    that is pinned is the one of this content, whatever the name means by now.

    Raises `SpecError` for another name, and what the registry or the sweep has against it."""
    start, digest = split_pin(name)
    if digest is not None:
        copy = place_of(cluster.folder, digest)
        if copy.is_dir() and digest_of_start(copy) == digest:
            return str(copy)
    if start.startswith("models:/"):
        folder = model_folder(start, cluster)
        copy_start(cluster.folder, Path(folder))
        return folder
    if Path(start).expanduser().is_dir():
        return start
    if not TRIAL.fullmatch(start):
        raise SpecError(f"{start!r} is no folder; {ALLOWED}")
    return str(_exported(start, cluster))


def _exported(trial: str, cluster: Cluster) -> Path:
    """The trial's best checkpoint as a sentence-transformers folder in the storage."""
    places = StorageView(cluster)
    places.update(trial.partition("/")[0])
    candidate = find_candidate(trial, places.folder)
    with exported(candidate, places, places.folder / FETCHED) as folder:
        return copy_start(places.folder, folder)
