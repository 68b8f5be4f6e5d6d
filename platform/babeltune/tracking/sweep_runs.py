"""A sweep's runs in MLflow: which it has, the page that shows them, the report among their files, their deletion.

MLflow 3.17 keeps the state of such a page (filter, order, columns) in a tag of the experiment, and its address names
that tag. Sorting by a metric makes one flat list of the runs, so that the trials need not be expanded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from babeltune.errors import SweepError
from babeltune.redaction import without_password
from babeltune.schema.paths import sqlite_file
from babeltune.schema.records import Objective
from babeltune.tracking.metric_choice import best_name
from babeltune.tracking.mlflow_client import ROLE, SWEEP, experiment_id, mlflow_name, open_client, quotable, why

if TYPE_CHECKING:
    from mlflow import MlflowClient

CURSOR = "mlflow.json"  # the file beside a log that says how much of it one MLflow store has, and the ids of its runs
VIEW = "mlflow.sharedViewState."  # begins the tag of an experiment that holds a page's state
STATE_WIDTH, WIDTH, LETTER_WIDTH = 95, 120, 7.5
"""Pixels of the column of states, of another column, and of a letter in the title of the objective."""


@dataclass(frozen=True, kw_only=True)
class SentRun:
    """A run that MLflow has taken."""

    id: str
    experiment: str
    """MLflow's id of its experiment."""


def sent_runs(folder: Path) -> dict[str, SentRun]:
    """The runs by their keys, as the tracker of the log in this folder has noted them; empty if nobody knows.

    MLflow itself is not asked, so a server that is away costs nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        memo = json.loads((folder / CURSOR).read_text(encoding="utf-8"))["memo"]
        return {key: SentRun(id=str(id_), experiment=str(memo["experiment"])) for key, id_ in memo["runs"].items()}
    return {}


@contextmanager
def _client(uri: str, refusal: str, todo: str = "") -> Iterator[MlflowClient]:
    """A client of the store. `SweepError` with these words for whatever goes wrong with it."""
    try:
        yield open_client(uri)
    except Exception as error:  # a server may fail in any way
        raise SweepError(f"{without_password(uri)} {refusal}: {why(error)}{todo}") from error


def log_report(uri: str, experiment: str, sweep: str, path: Path, *, again: bool = True) -> None:
    """Uploads the file as an artifact of the sweep's run. With `again=False` only if the run has none of this size.

    Raises `SweepError` if MLflow does not take it."""
    with _client(uri, "does not take the report") as client:
        which = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{ROLE}` = 'sweep'"
        for run in client.search_runs([experiment_id(client, experiment)], which, max_results=1):
            files = [] if again else client.list_artifacts(run.info.run_id)
            if (path.name, path.stat().st_size) not in {(file.path, file.file_size) for file in files}:
                client.log_artifact(run.info.run_id, str(path))


def delete_runs(uri: str, experiment: str, sweep: str) -> int:
    """How many runs of the sweep were marked as deleted: its own, its trials' and its baselines'. Until `mlflow gc`
    they can be restored. Checkpoints of trials that are models of MLflow, and registered models, stay. Raises
    `SweepError` if MLflow refuses or does not answer."""
    file, count = sqlite_file(uri), 0
    if file is not None and not file.exists():
        return 0
    todo = "; the sweep's folder is as it was, so try again"
    with _client(uri, f"does not delete the runs of sweep {sweep}", todo) as client:
        place = client.get_experiment_by_name(experiment)
        which = f"tags.`{SWEEP}` = '{quotable(sweep)}'"
        while place is not None and (runs := client.search_runs([place.experiment_id], which, max_results=1000)):
            for run in runs:
                client.delete_run(run.info.run_id)
            count += len(runs)
    return count


def trials_page(uri: str, experiment: str, sweep: str, objective: Objective, varied: Sequence[str]) -> str:
    """The page's address below that of the server. Raises `SweepError` if MLflow has no run of the sweep."""
    with _client(uri, f"does not show sweep {sweep}") as client:
        number = experiment_id(client, experiment)
        trials = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{ROLE}` = 'trial'"
        runs = client.search_runs([number], trials, max_results=200)
        if runs:
            client.set_experiment_tag(number, VIEW + sweep, json.dumps(_state(trials, runs, objective, varied)))
    if not runs:
        raise SweepError(
            f"{without_password(uri)} has no trial of sweep {sweep}; `babeltune resume {sweep}` sends what is missing"
        )
    return f"/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={sweep}"


def _state(trials: str, runs: Sequence[Any], objective: Objective, varied: Sequence[str]) -> dict[str, Any]:
    """The page, in MLflow's words."""
    best = mlflow_name(best_name(objective.metric))
    aim = best if any(best in run.data.metrics for run in runs) else mlflow_name(objective.metric)
    widths = {"tags.`state`": STATE_WIDTH, f"metrics.`{aim}`": max(WIDTH, round(LETTER_WIDTH * len(aim)))}
    widths |= {f"params.`{mlflow_name(name)}`": WIDTH for name in varied}
    return {
        "searchFilter": trials,
        "orderByKey": f"metrics.`{aim}`",
        "orderByAsc": objective.goal == "minimize",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(widths),
        "columnOrder": list(widths),
        "columnWidths": widths,
        "runsHiddenMode": "SHOW_ALL",
    }
