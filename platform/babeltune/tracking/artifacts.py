"""Uploads files to the sweep's own run in MLflow."""

from __future__ import annotations

from pathlib import Path

from babeltune.errors import SweepError
from babeltune.redaction import without_password
from babeltune.tracking.mlflow_client import ROLE, SWEEP, experiment_id, open_client, quotable, why


def log_report(uri: str, experiment: str, sweep: str, path: Path) -> None:
    """Uploads the file as an artifact of the sweep's run. Raises `SweepError` if MLflow does not take it."""
    try:
        client = open_client(uri)
        which = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{ROLE}` = 'sweep'"
        found = client.search_runs([experiment_id(client, experiment)], which, max_results=1)
        if found:
            client.log_artifact(found[0].info.run_id, str(path))
    except Exception as error:  # a server may fail in any way
        raise SweepError(f"{without_password(uri)} does not take the report: {why(error)}") from error
