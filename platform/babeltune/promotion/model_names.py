"""The model behind a name: a folder, a trial, or a registered version."""

import re
from pathlib import Path

from babeltune.data.starts import FETCHED, copy_start, digest_of_start, place_of, split_pin
from babeltune.errors import SpecError, UnknownNameError
from babeltune.models.hub import model_folder as hub_folder
from babeltune.planning.starts import ALLOWED
from babeltune.promotion.candidate import Candidate, exported, find_candidate
from babeltune.promotion.readers import is_export
from babeltune.schema.cluster import Cluster
from babeltune.schema.trial_names import is_trial_of_sweep
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.mlflow_client import SWEEP

TRIAL = re.compile(r"[^/]+/t?\d{1,9}")


def model_folder(model: str, cluster: Cluster, *, setting: str = "model") -> str:
    """The folder behind a model's name: a path, also of an export, a hub id, or `models:/NAME@ALIAS`. Raises
    `TeacherError` for none, naming the `setting`."""
    from babeltune.tracking.registry import fetch

    if model.startswith("models:/"):
        model = str(fetch(cluster.mlflow, model, cluster.folder / "fetched"))
    if is_export(Path(model)):
        return str(Path(model).absolute())
    return str(hub_folder(model, None, setting=setting).absolute())


def trial_of(model: str, storage: Path) -> Candidate | None:
    """The trial that `SWEEP/t0003` names; None for a folder or another kind of name. Raises for an unknown trial."""
    if Path(model).is_dir() or model.startswith("models:/"):
        return None
    try:
        return find_candidate(model, storage)
    except UnknownNameError:
        if is_trial_of_sweep(model):
            raise
        return None


def sweep_of(model: str, trial: Candidate | None, cluster: Cluster) -> str:
    """The id of the sweep that made a trial or a registered model. Raises `SpecError` for another model."""
    version = None
    if trial is None and model.startswith("models:/"):
        from babeltune.tracking.registry import champion_of

        name, _, alias = model.removeprefix("models:/").partition("@")
        version = champion_of(cluster.mlflow, name, alias)
    sweep = trial.folder.id if trial is not None else version and version.tags.get(SWEEP)
    if not sweep:
        raise SpecError(f"{model!r} is no trial and no registered model; name the sweep that counts: --sweep SWEEP")
    return str(sweep)


def start_folder(name: str, cluster: Cluster) -> str:
    """The folder of a model's name, or of a start's: a folder, `models:/NAME@ALIAS` or `SWEEP/t0003`. A trial's best
    checkpoint is exported into the storage. A start that is pinned has the folder of this content, whatever the name
    means by now.

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
    view = StorageView(cluster)
    view.update(start.partition("/")[0])
    with exported(find_candidate(start, view.folder), view, view.folder / FETCHED) as exported_folder:
        return str(copy_start(view.folder, exported_folder))
