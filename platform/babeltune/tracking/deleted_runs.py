"""Marks the runs of a sweep as deleted in MLflow. Until `mlflow gc` they can be restored there."""

from babeltune.errors import SweepError
from babeltune.redaction import without_password
from babeltune.schema.paths import sqlite_file
from babeltune.tracking.mlflow_client import SWEEP, open_client, quotable, why


def delete_runs(uri: str, experiment: str, sweep: str) -> int:
    """How many runs of the sweep were marked: its own, its trials' and its baselines'. Checkpoints of trials that are
    models of MLflow, and registered models, stay. Raises `SweepError` if MLflow refuses or does not answer."""
    file, count = sqlite_file(uri), 0
    if file is not None and not file.exists():
        return 0
    try:
        client = open_client(uri)
        place = client.get_experiment_by_name(experiment)
        which = f"tags.`{SWEEP}` = '{quotable(sweep)}'"
        while place is not None and (runs := client.search_runs([place.experiment_id], which, max_results=1000)):
            for run in runs:
                client.delete_run(run.info.run_id)
            count += len(runs)
    except Exception as error:  # a server may fail in any way
        raise SweepError(
            f"{without_password(uri)} does not delete the runs of sweep {sweep}: {why(error)}; the sweep's folder is "
            "as it was, so try again"
        ) from error
    return count
