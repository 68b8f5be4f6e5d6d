"""A trial's best checkpoint as a model of MLflow: what it says, once, and without the weights."""

from dataclasses import replace

import pytest
from mlflow.models import Model

from babeltune.schema.records import Point
from babeltune.tracking.checkpoint_models import CheckpointModel
from babeltune.tracking.mlflow_client import open_client
from benchmarks.event_log import EventLog
from waiting import PATIENCE_S

MODEL = CheckpointModel(
    name="quick-1a2b-t0000",
    step=8,
    time_ms=1008,
    checkpoint="sweeps/quick-1a2b/trials/t0000/checkpoints/000002",
    dimension=384,
    note="The best checkpoint.",
    tags={"babeltune.report": "2"},
    params={"method": "soft_contrastive", "training.learning_rate": 0.002},
    scores={"best/dev/everyday/accuracy": 0.5, "dev/everyday/accuracy": 0.5, "dev/sts/spearman": 0.75},
    digests={"dev/everyday": "a" * 64, "dev/sts": "b" * 64},
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """The file of an empty store: its tables take seconds."""
    folder = tmp_path_factory.mktemp("empty")
    open_client(f"sqlite:///{folder}/mlflow.db").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def store(empty, tmp_path):
    (tmp_path / "mlflow.db").write_bytes(empty.read_bytes())
    return f"sqlite:///{tmp_path}/mlflow.db"


def send_models(store, path, *models):
    """Sends a trial's metrics and its model; returns the tracker."""
    tracker = EventLog(store, path, "quick")
    tracker.start_sweep("quick-1a2b", {}, {})
    tracker.start_trial(0, {}, {}, step_unit="pairs")
    tracker.metrics(0, [Point(step=8, time_ms=1008, values=MODEL.scores)], per_step=64)
    for model in models:
        tracker.model(0, model, per_step=64)
    tracker.end_trial(0, "FINISHED", {})
    assert tracker.close(PATIENCE_S)
    return tracker


def models_of(store, run):
    client = open_client(store)
    return client.search_logged_models([client.get_run(run).info.experiment_id])


def test_a_checkpoint_is_a_model_with_a_signature_and_the_place_of_its_weights(store, tmp_path):
    run = send_models(store, tmp_path / "events.jsonl", MODEL).run_id(0)
    (model,) = models_of(store, run)
    assert (model.name, model.source_run_id, model.status.name) == (MODEL.name, run, "READY")
    assert model.params == {"method": "soft_contrastive", "training.learning_rate": "0.002"}
    assert model.tags["babeltune.checkpoint"] == MODEL.checkpoint
    assert model.tags["mlflow.note.content"] == MODEL.note
    scores = {metric.key: (metric.value, metric.step, metric.dataset_name) for metric in model.metrics}
    assert scores == {
        "best/dev/everyday/accuracy": (0.5, 512, None),
        "dev/everyday/accuracy": (0.5, 512, "dev/everyday"),
        "dev/sts/spearman": (0.75, 512, "dev/sts"),
    }
    folder = model.artifact_location.removeprefix("file://")
    signature = Model.load(folder).signature
    assert signature.inputs.input_names() == ["sentence"]
    assert signature.outputs.inputs[0].shape == (-1, 384)
    assert {path.name for path in (tmp_path / "artifacts").rglob("*.*") if path.is_file()} == {"input_example.json"}
    outputs = open_client(store).get_run(run).outputs.model_outputs
    assert [(each.model_id, each.step) for each in outputs] == [(model.model_id, 512)]


def test_a_model_that_is_sent_again_is_there_once_and_the_run_has_each_score_once(store, tmp_path):
    path = tmp_path / "events.jsonl"
    first = send_models(store, path, MODEL).run_id(0)
    path.with_name("mlflow.json").unlink()
    tracker = EventLog(store, path, "quick")
    assert tracker.close(PATIENCE_S)
    assert tracker.run_id(0) == first
    assert len(models_of(store, first)) == 1
    client = open_client(store)
    for name in MODEL.scores:
        assert [(each.step, each.value) for each in client.get_metric_history(first, name)] == [
            (512, MODEL.scores[name])
        ]


def test_a_model_whose_upload_was_cut_off_is_finished_by_the_next_try(store, tmp_path):
    run = send_models(store, tmp_path / "events.jsonl").run_id(0)
    client = open_client(store)
    begun = client.create_logged_model(client.get_run(run).info.experiment_id, name=MODEL.name, source_run_id=run)
    tracker = EventLog(store, tmp_path / "events.jsonl", "quick")
    tracker.model(0, MODEL, per_step=64)
    assert tracker.close(PATIENCE_S)
    (model,) = models_of(store, run)
    assert (model.model_id, model.status.name) == (begun.model_id, "READY")
    assert len(model.metrics) == 3


def test_a_store_that_takes_no_models_loses_nothing_else(store, tmp_path, caplog):
    tracker = send_models(store, tmp_path / "events.jsonl", replace(MODEL, scores={"dev/everyday/accuracy": "none"}))
    assert tracker.refused == 1
    assert "the checkpoint of run '0'" in caplog.text
    run = open_client(store).get_run(tracker.run_id(0))
    assert run.info.status == "FINISHED"
    assert run.data.metrics == MODEL.scores
