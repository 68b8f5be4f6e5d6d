"""Uploads files to the sweep's own run in MLflow."""

from pathlib import Path

from babeltune.errors import SweepError
from babeltune.redaction import without_password
from babeltune.tracking.mlflow_client import ROLE, SWEEP, experiment_id, open_client, quotable, why


def log_report(uri: str, experiment: str, sweep: str, path: Path, *, again: bool = True) -> None:
    """Uploads the file as an artifact of the sweep's run. With `again=False` only if the run has none of this size.

    Raises `SweepError` if MLflow does not take it."""
    try:
        client = open_client(uri)
        which = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{ROLE}` = 'sweep'"
        runs = client.search_runs([experiment_id(client, experiment)], which, max_results=1)
        for run in runs:
            files = [] if again else client.list_artifacts(run.info.run_id)
            if (path.name, path.stat().st_size) not in {(file.path, file.file_size) for file in files}:
                client.log_artifact(run.info.run_id, str(path))
    except Exception as error:  # a server may fail in any way
        raise SweepError(f"{without_password(uri)} does not take the report: {why(error)}") from error
