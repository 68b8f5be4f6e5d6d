"""The events that a tracker sends to MLflow, which a log's reader makes of its lines. Each is a plain JSON object."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, get_args

from babeltune.schema.records import Point
from babeltune.tracking.checkpoint_models import CheckpointModel
from babeltune.tracking.mlflow_client import DataInput, quotable

Event = dict[str, Any]
Key = int | str  # a trial's number, or the name of a run that is not a trial: `untrained`, `teacher`, `promotion`
Status = Literal["FINISHED", "FAILED", "KILLED"]
STATUSES: tuple[Status, ...] = get_args(Status)
PARENT = ""  # the key of the sweep's own run


def start_sweep(sweep_id: str, params: Mapping[str, object], tags: Mapping[str, object]) -> Event:
    """Opens the parent run of this sweep, or continues it. Must be the first event."""
    return {"do": "start", "sweep": quotable(sweep_id), "key": PARENT, "params": params, "tags": tags}


def start_trial(
    number: Key, params: Mapping[str, object], tags: Mapping[str, object], *, step_unit: str | None = None
) -> Event:
    """Opens a child run, or goes on with it; nested `params` become dotted names.

    A tag of a new run says in which unit it counts steps, if that is not optimizer steps."""
    unit = {} if step_unit is None else {"step_unit": step_unit}
    return {"do": "start", "key": run_key(number), "params": params, "tags": tags, **unit}


def metrics(number: Key | None, points: Sequence[Point], *, per_step: float = 1.0) -> Event:
    """Adds points to a child run, or to the sweep's own (None). `per_step` is an optimizer step in the run's unit."""
    values = [[p.step, p.time_ms, p.values] for p in points]
    return {"do": "metrics", "key": run_key(number), "points": values, "per_step": per_step}


def tags(number: Key | None, tags: Mapping[str, object]) -> Event:
    """Sets tags of a child run, or with None of the sweep's own run."""
    return {"do": "tags", "key": run_key(number), "tags": tags}


def inputs(number: Key | None, inputs: Sequence[DataInput]) -> Event:
    """Names the data sets that a run used."""
    return {"do": "inputs", "key": run_key(number), "inputs": [asdict(each) for each in inputs]}


def artifact(number: Key | None, name: str, data: bytes) -> Event:
    """Makes these bytes a file of a run."""
    return {"do": "artifact", "key": run_key(number), "name": name, "data": data}


def model(number: Key, model: CheckpointModel, *, per_step: float = 1.0) -> Event:
    """Makes the trial's best checkpoint a model of MLflow. `per_step` is as in `metrics`."""
    return {"do": "model", "key": run_key(number), "model": asdict(model), "per_step": per_step}


def experiment_note(text: str) -> Event:
    """The description of the experiment, in Markdown."""
    return {"do": "note", "key": PARENT, "text": text}


def end_trial(number: Key, status: Status, tags: Mapping[str, object]) -> Event:
    """Ends a child run. The tag `state` tells a pruned trial from a finished one; both are FINISHED."""
    return {"do": "end", "key": run_key(number), "status": status, "tags": tags}


def end_sweep(status: Status) -> Event:
    """Ends the parent run."""
    return {"do": "end", "key": PARENT, "status": status, "tags": {}}


def run_key(number: Key | None) -> str:
    """The key of a run: the parent's if there is no number."""
    return PARENT if number is None else quotable(str(number))
