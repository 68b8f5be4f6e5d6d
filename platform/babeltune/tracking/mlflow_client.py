"""MLflow for tracker and registry: its client, its limits, and the characters of names and values."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from babeltune.errors import from_network
from babeltune.redaction import without_password
from babeltune.schema.paths import sqlite_file
from babeltune.schema.trial_names import trial_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SWEEP, TRIAL, ROLE = "babeltune.sweep", "babeltune.trial", "babeltune.role"
"""The tags that a run is found by: the sweep's id, the trial's name, such as `t0003`, and `sweep` or `trial`."""
REPORT, TESTS = "babeltune.report", "babeltune.tests"
"""The tags of the chosen report's number, and of the digests of the sealed sets that a version's training left out."""
STEP_UNIT = "step_unit"
"""The tag of a run whose metrics count steps in another unit than optimizer steps: `pairs`, or `compute ms`."""
NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of a run or an experiment, in Markdown
METRICS_PER_BATCH, ENTRIES_PER_BATCH = 1000, 100
PARAM_CHARACTERS, TAG_CHARACTERS, NAME_CHARACTERS = 6000, 8000, 250  # MLflow's limits
DAMAGED = ("file is not a database", "disk image is malformed")  # parts of SQLite's errors for a damaged file
EXPERIMENTS = "/#/experiments?workflowType=machine_learning"  # the page of them, in the mode for training models
log = logging.getLogger(__name__)
HTTP = {"MAX_RETRIES": "1", "BACKOFF_FACTOR": "1", "TIMEOUT": "30"}
"""Environment of MLflow's HTTP client, unless it is set. Its own retries would take minutes; ours never end."""


def open_client(uri: str) -> MlflowClient:
    """A client of the store, with MLflow's and alembic's chatter off; a sqlite store's folder is made."""
    for name, value in HTTP.items():
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient

    _warn_once(uri)
    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if (root := artifact_folder(uri)) is not None:
        root.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@functools.cache
def _warn_once(uri: str) -> None:
    if words := about_plain_http(uri):
        log.warning(words)


def about_plain_http(uri: str) -> str:
    """The next step if this machine's MLflow credentials would go over a network unencrypted; else nothing."""
    from mlflow.utils.credentials import read_mlflow_creds

    address = urlsplit(uri)
    if address.scheme != "http" or is_loopback(host := address.hostname or ""):
        return ""
    credentials = read_mlflow_creds()  # from the environment, or from ~/.mlflow/credentials
    secret_places = {
        "a user and a password": address.password or (credentials.username and credentials.password),
        "a token": os.environ.get("MLFLOW_TRACKING_TOKEN"),
    }
    secrets = " and ".join(name for name, value in secret_places.items() if value)
    if not secrets:
        return ""
    return (
        f"MLflow at http://{host} gets {secrets} unencrypted, which anyone on the way can read; use an https address, "
        "or a tunnel to 127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, by its name or address alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def artifact_folder(uri: str) -> Path | None:
    """Where a sqlite store keeps files: `artifacts` beside it. None for a server, which decides for itself."""
    file = sqlite_file(uri)
    return None if file is None else file.parent / "artifacts"


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment, made or restored if necessary."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        folder = artifact_folder(client.tracking_uri)
        try:
            return str(client.create_experiment(name, artifact_location=folder.resolve().as_uri() if folder else None))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


def run_name(key: str) -> str:
    """The name of a trial by its number. Another run's key, such as `untrained`, is its name."""
    return trial_name(int(key)) if key.isdecimal() else key


def run_of_trial(client: MlflowClient, experiment: str, sweep: str, key: str) -> Run | None:
    """The run of a trial by its number."""
    which = f"tags.`{SWEEP}` = '{quotable(sweep)}' and tags.`{TRIAL}` = '{run_name(key)}'"
    runs = client.search_runs([experiment], which, max_results=1)
    return runs[0] if runs else None


def link_to_run(text: str, name: str = "", artifact: str = "") -> str:
    """A link in a description to the run of a trial or a baseline; without a name to the sweep's.

    The tracker knows the run's id when it sends the description: `linked` puts in the address."""
    return f"[{text}](run:{quote(name, safe='')}/{artifact})"


def linked(text: str, experiment: str, runs: Mapping[str, str]) -> str:
    """A description with its links to runs, by the names of the runs. A link to an unknown run becomes its text."""

    def link(match: re.Match[str]) -> str:
        words, name, artifact = match.groups()
        if (run := runs.get(unquote(name))) is None:
            return words
        return f"[{words}](#/experiments/{experiment}/runs/{run}{f'/artifacts/{artifact}' if artifact else ''})"

    return re.sub(r"\[([^\]]*)\]\(run:([^/)]*)/([^)]*)\)", link, text)


def serve_command(uri: str, artifacts: Path, port: int, page: str = EXPERIMENTS) -> tuple[list[str], dict[str, str]]:
    """The command and environment of an MLflow server on this machine only. Its first page leads to `page`.

    The address of the store, which may hold a password, stands in the environment: everybody may read arguments."""
    command = [sys.executable, "-W", "ignore", "-m", "babeltune.tracking.server", artifacts.absolute().as_uri()]
    # Python imports first from the folder in which the user stands, unless this variable is set.
    options = {"PYTHONSAFEPATH": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_BACKEND_STORE_URI": uri}
    return [*command, str(port), page], {**os.environ, **options}


@dataclass(frozen=True, kw_only=True)
class DataInput:
    """A data set that a run used: its name, the digest of its text, and `training`, `dev` or `test`."""

    name: str
    digest: str
    context: str


def inputs_of(inputs: Sequence[Mapping[str, str]]) -> list[Any]:
    """The entities of MLflow for these fields of `DataInput`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    return [
        DatasetInput(
            Dataset(each["name"], each["digest"][:36], "babeltune", json.dumps({"digest": each["digest"]})),
            [InputTag("mlflow.data.context", each["context"])],
        )
        for each in inputs
    ]


def metrics_of(points: Sequence[Any], per_step: float = 1.0) -> list[Any]:
    """The entities of MLflow for an event's points; a step counts for `per_step` in the run's unit."""
    from mlflow.entities import Metric

    return [
        Metric(mlflow_name(name), float(value), time_ms, round(step * per_step))
        for step, time_ms, values in points
        for name, value in values.items()
    ]


def flattened(params: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested parameters under dotted names, as text within MLflow's limits."""
    flat: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[mlflow_name(f"{prefix}{name}")] = shorten(text_of(value), PARAM_CHARACTERS)
    return flat


def text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def shorten(text: str, limit: int) -> str:
    """The text within the limit, saying what was cut."""
    if len(text) <= limit:
        return text
    note = f" … (cut; {len(text)} characters, the log has all)"
    return text[: limit - len(note)] + note


def mlflow_name(name: str) -> str:
    """The name in MLflow's alphabet and length."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:NAME_CHARACTERS]


def first_line(error: Exception) -> str:
    return without_password(f"{type(error).__name__}: {error}".splitlines()[0])[:300]


def why(error: Exception) -> str:
    """The error's first line and the next step: for a refused login, a refused host name, or a damaged file."""
    if any(words in str(error) for words in DAMAGED):
        return (
            f"{first_line(error)}; restore the file, or move it away: then `babeltune resume SWEEP` records all of the "
            "sweep in a new one, which knows of no promotion"
        )
    if "Invalid Host header" in str(error):
        return (
            f"{first_line(error)}; start the server with this name and port in MLFLOW_SERVER_ALLOWED_HOSTS (or "
            "`--allowed-hosts`), or call it by one that is there"
        )
    code = getattr(error, "error_code", None)
    login = code in ("UNAUTHENTICATED", "PERMISSION_DENIED") or " 401 " in str(error) or " 403 " in str(error)
    todo = "; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a user who may write" if login else ""
    return (from_network(error) or first_line(error)) + todo


def quotable(text: str) -> str:
    """The text without what would end a string in MLflow's search language."""
    return text.replace("'", "_")


def slices(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
