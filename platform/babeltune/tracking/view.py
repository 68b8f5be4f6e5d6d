"""The link to the page of MLflow that shows one sweep: its trials, the best first, with what was varied.

MLflow 3.17 keeps the state of such a page (filter, order, columns) in a tag of the experiment, and its address names
that tag. Sorting by a metric makes one flat list of the runs, so that the trials need not be expanded."""

import json
from collections.abc import Sequence
from typing import Any

from babeltune.errors import SweepError
from babeltune.redaction import without_password
from babeltune.schema.records import Objective
from babeltune.tracking.metric_choice import best_name
from babeltune.tracking.mlflow_client import ROLE, SWEEP, experiment_id, name_of, open_client, quotable, why

VIEW = "mlflow.sharedViewState."  # begins the tag of an experiment that holds a page's state
STATE_WIDTH, WIDTH, LETTER_WIDTH = 95, 120, 7.5
"""Pixels of the column of states, of another column, and of a letter in the title of the objective."""


def trials_page(uri: str, experiment: str, sweep: str, objective: Objective, varied: Sequence[str]) -> str:
    """The page's address below that of the server. Raises `SweepError` if MLflow has no run of the sweep."""
    try:
        client = open_client(uri)
        number = experiment_id(client, experiment)
        trials = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{ROLE}` = 'trial'"
        runs = client.search_runs([number], trials, max_results=200)
        if runs:
            state = _state(trials, runs, objective, varied)
            client.set_experiment_tag(number, VIEW + sweep, json.dumps(state))
    except Exception as error:  # a server may fail in any way
        raise SweepError(f"{without_password(uri)} does not show sweep {sweep}: {why(error)}") from error
    if not runs:
        raise SweepError(
            f"{without_password(uri)} has no trial of sweep {sweep}; `babeltune resume {sweep}` sends what is missing"
        )
    return f"/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey={sweep}"


def _state(trials: str, runs: Sequence[Any], objective: Objective, varied: Sequence[str]) -> dict[str, Any]:
    """The page, in MLflow's words."""
    best = name_of(best_name(objective.metric))
    aim = best if any(best in run.data.metrics for run in runs) else name_of(objective.metric)
    widths = {"tags.`state`": STATE_WIDTH, f"metrics.`{aim}`": max(WIDTH, round(LETTER_WIDTH * len(aim)))}
    widths |= {f"params.`{name_of(name)}`": WIDTH for name in varied}
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
