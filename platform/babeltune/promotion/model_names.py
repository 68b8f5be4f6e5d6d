"""What a model's name stands for: a folder, a trial, or a registered version."""

from __future__ import annotations

import re
from pathlib import Path

from babeltune.errors import UnknownNameError
from babeltune.models.hub import model_folder as hub_folder
from babeltune.promotion.candidate import Candidate, find_candidate
from babeltune.schema.cluster import Cluster


def model_folder(model: str, cluster: Cluster, *, setting: str = "model") -> str:
    """The folder behind a model's name: a path, a hub id, or `models:/NAME@ALIAS`. Raises `TeacherError` for none,
    naming the `setting`."""
    from babeltune.tracking.registry import fetch

    if model.startswith("models:/"):
        model = str(fetch(cluster.mlflow, model, cluster.folder / "fetched"))
    return str(hub_folder(model, None, setting=setting).absolute())


def trial_of(model: str, storage: Path) -> Candidate | None:
    """The trial that `SWEEP/t0003` names, unless it is a folder or another kind of name."""
    if Path(model).is_dir() or model.startswith("models:/"):
        return None
    try:
        return find_candidate(model, storage)
    except UnknownNameError:
        if re.search(r"/t\d+$", model):
            raise
        return None
