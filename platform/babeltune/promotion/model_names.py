"""The model behind a name: a folder, a trial, or a registered version."""

from pathlib import Path

from babeltune.errors import SpecError, UnknownNameError
from babeltune.models.hub import model_folder as hub_folder
from babeltune.promotion.candidate import Candidate, find_candidate
from babeltune.promotion.onnx_graph import is_graph
from babeltune.schema.cluster import Cluster
from babeltune.schema.trial_names import is_trial_of_sweep
from babeltune.tracking.mlflow_client import SWEEP


def model_folder(model: str, cluster: Cluster, *, setting: str = "model") -> str:
    """The folder behind a model's name: a path, also of a graph, a hub id, or `models:/NAME@ALIAS`. Raises
    `TeacherError` for none, naming the `setting`."""
    from babeltune.tracking.registry import fetch

    if model.startswith("models:/"):
        model = str(fetch(cluster.mlflow, model, cluster.folder / "fetched"))
    if is_graph(Path(model)):
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
