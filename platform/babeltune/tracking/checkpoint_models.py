"""A trial's best checkpoint as a model of MLflow: signature, example, scores by data set, and where the weights are.

The weights are not copied: a checkpoint holds the state of training, and `babeltune promote` makes a model of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.files import draft_folder
from babeltune.tracking.mlflow_client import NOTE, TAG_CHARACTERS, flattened, mlflow_name, quotable, shorten, text_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.models import Model

EXAMPLE = "input_example.json"  # the file of sentences that MLflow shows as an example of a model's input
SENTENCES = {"columns": ["sentence"], "data": [["The house is small."], ["Das Haus ist klein."]]}
"""The example, as MLflow writes a table."""
VERSIONS = "mlflow.modelVersions"
"""The tag of a model with the registered versions that were made of it. MLflow's pages link to them."""
CHECKPOINT = "babeltune.checkpoint"  # the tag with the place of the weights, within the storage


@dataclass(frozen=True, kw_only=True)
class CheckpointModel:
    """A checkpoint, as MLflow shows it."""

    name: str
    step: int  # in the unit of its run
    time_ms: int
    checkpoint: str  # the folder of the weights, within the storage
    dimension: int  # the width of the vectors; -1 if it is not known before the export
    note: str
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """The digest of each data set, such as `dev/everyday`, that a score's name begins with."""


def log_checkpoint(client: MlflowClient, experiment: str, run: str, model: CheckpointModel) -> None:
    """Adds the model to the run. One that is there is not made again, nor is a model of a run that went on since."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    existing = model_of_run(client, experiment, run)
    if existing is not None and existing.status == LoggedModelStatus.READY:
        return
    tags = {**model.tags, CHECKPOINT: model.checkpoint, NOTE: model.note}
    entry = existing or client.create_logged_model(
        experiment,
        name=re.sub(r"[/:.%\"']", "_", model.name),
        source_run_id=run,
        tags={mlflow_name(name): shorten(text_of(value), TAG_CHARACTERS) for name, value in tags.items()},
        params=flattened(model.params),
        model_type="sentence encoder",
    )
    with draft_folder("model") as place:
        write_mlmodel(place, with_signature(model.dimension, run_id=run, model_id=entry.model_id))
        client.log_model_artifacts(entry.model_id, str(place))
    client.log_outputs(run, [LoggedModelOutput(entry.model_id, model.step)])
    client.log_batch(run, _metrics(model, entry.model_id, run))
    client.finalize_logged_model(entry.model_id, LoggedModelStatus.READY)


def model_of_run(client: MlflowClient, experiment: str, run: str) -> LoggedModel | None:
    """The model of a trial's best checkpoint."""
    models = client.search_logged_models([experiment], f"source_run_id = '{quotable(run)}'", max_results=1)
    return models[0] if models else None


def add_version(client: MlflowClient, model: LoggedModel, name: str, version: str) -> None:
    """Tells MLflow that the registered version was made of this model."""
    versions, new = json.loads(model.tags.get(VERSIONS, "[]")), {"name": name, "version": version}
    if new not in versions:
        client.set_logged_model_tags(model.model_id, {VERSIONS: json.dumps([*versions, new])})


def _metrics(model: CheckpointModel, model_id: str, run: str) -> list[Any]:
    """The scores as metrics of the model, each with its data set."""
    from mlflow.entities import Metric

    metrics: list[Any] = []
    for name, value in model.scores.items():
        data = "/".join(name.split("/")[:2])
        dataset = {"dataset_name": data, "dataset_digest": model.digests[data][:36]} if data in model.digests else {}
        metric = (mlflow_name(name), float(value), model.time_ms, model.step)
        metrics.append(Metric(*metric, model_id=model_id, run_id=run, **dataset))
    return metrics


def with_signature(dimension: int, **about: Any) -> Model:
    """An MLflow model with the signature sentence -> vector of this dimension. `about` are further fields of it."""
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec

    model = Model(**about)
    output = TensorSpec(np.dtype("float32"), (-1, dimension), "embedding")
    model.signature = ModelSignature(Schema([ColSpec(DataType.string, "sentence")]), Schema([output]))
    model.saved_input_example_info = {"artifact_path": EXAMPLE, "type": "dataframe", "pandas_orient": "split"}
    return model


def write_mlmodel(folder: Path, model: Model) -> None:
    """Writes what MLflow reads of a model into the folder: `MLmodel`, and the example of an input."""
    model.save(str(folder / "MLmodel"))
    (folder / EXAMPLE).write_text(json.dumps(SENTENCES, ensure_ascii=False), encoding="utf-8")
