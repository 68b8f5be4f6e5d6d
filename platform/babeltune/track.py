"""The one door to MLflow: a sweep becomes a parent run, its trials child runs, a promoted model a registered version.

The training side must neither wait for a server nor lose a number to it. So every event first becomes a line of a
local file, the *spool*; a background thread reads on from where the store last acknowledged it and sends what it
finds, in batches. A dead server means that the spool grows and the thread tries again; opening a spool again replays
what was not acknowledged. Memory stays bounded because the file is the queue.

Nothing arrives twice, although an acknowledgement can get lost: steps and timestamps are the caller's, and MLflow's
SQL stores key a metric by (run, name, time, step, value), so a batch sent again adds nothing. Runs are looked up by
their tags before they are made. (MLflow's retired file store has no such key; MLflow 3 refuses it by default.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from babeltune.errors import PromotionError
from babeltune.records import Point
from babeltune.spool import Spool

if TYPE_CHECKING:
    from mlflow import MlflowClient

Key = int | str
"""A trial's number, or the name of a run that is not a trial: `untrained`, `teacher`, `promotion`."""
Status = Literal["FINISHED", "FAILED", "KILLED"]
STATUSES: tuple[Status, ...] = get_args(Status)

SWEEP, TRIAL, ROLE = "babeltune.sweep", "babeltune.trial", "babeltune.role"
"""The tags that a run is found by: the sweep's name, the key within it, and `sweep` or `trial`."""
PARENT = ""
"""The key of the sweep's own run."""

METRICS_PER_BATCH, ENTRIES_PER_BATCH = 1000, 100
PARAM_CHARACTERS, TAG_CHARACTERS, NAME_CHARACTERS = 6000, 8000, 250
"""MLflow's limits."""

LINGER_S = 0.2
"""How long the sender lets events gather."""
RETRY_S = (0.5, 30.0)
"""The first and the longest wait after a failure; it doubles in between."""
READ_BYTES = 1 << 20
"""Spool bytes that are sent before they are acknowledged."""
HTTP = {"MAX_RETRIES": "1", "BACKOFF_FACTOR": "1", "TIMEOUT": "30"}
"""MLflow's own retries would take minutes; ours go on for ever. Set unless the environment sets them."""

PACKAGES = (
    *("babeltune", "torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy"),
    *("ray", "optuna", "mlflow", "datasets", "pandas"),
)
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"})
_log = logging.getLogger(__name__)


class Tracker:
    """Writes one sweep to MLflow without ever waiting for it. One process at a time writes a spool.

    `uri` is MLflow's tracking URI, `spool` the file to append to (its folder is made), `experiment` the experiment's
    name. Only `flush` and `close` wait for the store, and nothing raises because of it: what is wrong now is
    in `trouble`; what the store refused for good is counted in `refused`, logged, and still in the spool.
    """

    def __init__(self, uri: str, spool: Path, experiment: str) -> None:
        self.uri, self.experiment = uri, experiment
        self.trouble: str | None = None
        self.refused = 0
        self._spool = Spool(spool, f"{uri}\n{experiment}")
        self._changed = threading.Condition()
        self._flush_to = self._flushes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._send_forever, name="babeltune-track", daemon=True)
        self._thread.start()

    def start_sweep(self, name: str, params: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
        """Opens the parent run, or goes on with the one of this name. Before any other event of a spool."""
        self._put({"do": "start", "sweep": _quotable(name), "key": PARENT, "params": params, "tags": tags})

    def start_trial(self, number: Key, params: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
        """Opens a child run, or goes on with it; nested `params` become dotted names."""
        self._put({"do": "start", "key": _key(number), "params": params, "tags": tags})

    def metrics(self, number: Key | None, points: Sequence[Point]) -> None:
        """Adds points to a child run, or with None to the sweep's own run."""
        self._put({"do": "metrics", "key": _key(number), "points": [[p.step, p.time_ms, p.values] for p in points]})

    def end_trial(self, number: Key, status: Status, tags: Mapping[str, Any]) -> None:
        """Ends a child run; a pruned trial is FINISHED with a tag that says so."""
        self._put({"do": "end", "key": _key(number), "status": status, "tags": tags})

    def end_sweep(self, status: Status, tags: Mapping[str, Any] | None = None) -> None:
        """Ends the parent run."""
        self._put({"do": "end", "key": PARENT, "status": status, "tags": tags or {}})

    def run_id(self, number: Key | None) -> str | None:
        """MLflow's id of a child run (None: of the parent), once the store has made it."""
        found: str | None = self._spool.memo.get("runs", {}).get(_key(number))
        return found

    def waiting(self) -> int:
        """Spool bytes that the store has not acknowledged."""
        return self._spool.waiting()

    def flush(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until all that was put so far is acknowledged; says whether it was."""
        with self._changed:
            goal = self._flush_to = self._spool.size
            self._flushes += 1
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._spool.offset >= goal, timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Flushes, then stops sending. What is left stays in the spool for the next `Tracker` on it."""
        done = self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(1.0)
        with self._changed:
            self._spool.close()
        return done

    def _put(self, event: dict[str, Any]) -> None:
        """Spools one event. Disk trouble is logged: it must not stop a training step."""
        with self._changed:
            try:
                self._spool.append({**event, "time_ms": time.time_ns() // 1_000_000})
            except (OSError, TypeError, ValueError) as error:
                self.trouble = f"the spool {self._spool.path} cannot be written: {error}"
                _log.error("%s; an event is lost", self.trouble)
            self._changed.notify_all()

    def _send_forever(self) -> None:
        sender: _Sender | None = None
        wait, longest = RETRY_S
        while self._await_events():
            try:
                sender = sender or _Sender(_open_client(self.uri), self._spool.memo, self.experiment)
                lines = self._spool.unsent(READ_BYTES)
                refused = sender.send(lines)
                with self._changed:
                    self._spool.acknowledge(lines)
                    self.refused, self.trouble = self.refused + refused, None
                    self._changed.notify_all()
                wait = RETRY_S[0]
            except Exception as error:  # a server may fail in any way, and the trials go on
                self.trouble = f"{_without_password(self.uri)} does not take events: {_first_line(error)}"
                first = logging.WARNING if wait == RETRY_S[0] else logging.DEBUG
                _log.log(first, "%s; %d bytes wait, next try in %.1f s", self.trouble, self.waiting(), wait)
                if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                    self._spool.forget()  # the store lost our runs: send everything again
                sender = None
                self._pause(wait)
                wait = min(wait * 2, longest)

    def _await_events(self) -> bool:
        """Waits for unsent events and lets them gather; False once the tracker closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self.waiting() > 0)
            self._changed.wait_for(
                lambda: self._closing or self._flush_to > self._spool.offset or self.waiting() >= READ_BYTES, LINGER_S
            )
            return not self._closing

    def _pause(self, seconds: float) -> None:
        """Waits; a new flush or closing ends it."""
        with self._changed:
            flushes = self._flushes
            self._changed.wait_for(lambda: self._closing or self._flushes > flushes, seconds)


class _Sender:
    """Turns spooled lines into requests. `memo` is what the spool remembers: the sweep's name and its runs' ids."""

    def __init__(self, client: MlflowClient, memo: dict[str, Any], experiment: str) -> None:
        self.client, self.memo = client, memo
        self.runs: dict[str, str] = memo.setdefault("runs", {})
        self.experiment_id = _experiment(client, experiment)
        self.pending: dict[str, list[Any]] = {}
        self.refused = 0
        if PARENT in self.runs:
            client.get_run(self.runs[PARENT])  # raises when the store has lost it

    def send(self, lines: Sequence[bytes]) -> int:
        """Sends all, a run's metrics together; returns how many requests were refused for good.

        Raises whatever is worth another try, of all the lines.
        """
        self.pending, self.refused = {}, 0
        for line in lines:
            try:
                event = json.loads(line)
                key, metrics = event["key"], _metrics(event.get("points", ()))
                STATUSES.index(event.get("status", "FINISHED"))
            except (ValueError, TypeError, KeyError) as error:
                self._refuse(f"not an event ({error}): {line[:80]!r}")
                continue
            if event["do"] == "start":
                self._start(key, event)
            elif key not in self.runs:
                self._refuse(f"run {key!r} was never started")
            elif event["do"] == "metrics":
                self.pending.setdefault(key, []).extend(metrics)
            else:
                self._end(key, event)
        for key in list(self.pending):
            self._send_metrics(key)
        return self.refused

    def _start(self, key: str, event: dict[str, Any]) -> None:
        sweep = self.memo["sweep"] = event.get("sweep", self.memo.get("sweep", ""))
        tags = {**event["tags"], SWEEP: sweep, ROLE: "trial" if key else "sweep"}
        if key:
            tags |= {TRIAL: key} | ({"mlflow.parentRunId": self.runs[PARENT]} if PARENT in self.runs else {})
        name = sweep if not key else f"trial-{int(key):04d}" if key.isdecimal() else key
        which = f"tags.`{TRIAL}` = '{key}'" if key else f"tags.`{ROLE}` = 'sweep'"
        found = self.client.search_runs([self.experiment_id], f"tags.`{SWEEP}` = '{sweep}' and {which}", max_results=1)
        run = (
            found[0]
            if found
            else self.client.create_run(
                self.experiment_id,
                start_time=event["time_ms"],
                tags={ROLE: tags.pop(ROLE), SWEEP: tags.pop(SWEEP), **({TRIAL: tags.pop(TRIAL)} if key else {})},
                run_name=name,
            )
        )
        self.runs[key] = run.info.run_id
        self._send_tags(key, tags)
        self._send_params(key, _flat(event["params"]), run.data.params)
        if found:
            self._try(self.client.update_run, run.info.run_id, "RUNNING")

    def _end(self, key: str, event: dict[str, Any]) -> None:
        self._send_metrics(key)
        self._send_tags(key, event["tags"])
        self._try(self.client.set_terminated, self.runs[key], event["status"], event["time_ms"])

    def _send_metrics(self, key: str) -> None:
        for metrics in _slices(self.pending.pop(key, []), METRICS_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], metrics)

    def _send_params(self, key: str, values: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Adds the parameters. MLflow never changes one: a value that differs from the run's becomes a tag."""
        from mlflow.entities import Param

        new = [Param(name, value) for name, value in values.items() if name not in known]
        for params in _slices(new, ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), params)
        changed = {name: value for name, value in values.items() if known.get(name, value) != value}
        if changed:
            self._send_tags(key, {"babeltune.changed_params": changed})

    def _send_tags(self, key: str, tags: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        entries = [RunTag(_name(name), _cut(_text(value), TAG_CHARACTERS)) for name, value in tags.items()]
        for part in _slices(entries, ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), (), part)

    def _try(self, request: Callable[..., Any], *arguments: Any) -> None:
        """Makes a request; what the store refuses for good is counted, not repeated for ever."""
        from mlflow.exceptions import MlflowException

        try:
            request(*arguments)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            self._refuse(_first_line(error))

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        _log.error("MLflow refused a request, which stays in the spool only: %s", reason)


@dataclass(frozen=True)
class Registered:
    """A version in the model registry."""

    version: str
    run_id: str
    source: str
    tags: dict[str, str]


def register(uri: str, name: str, folder: Path, run_id: str, alias: str, tags: Mapping[str, Any]) -> str:
    """Makes the folder a version of the registered model `name`, moves `alias` to it, and returns the version.

    The files become artifacts of the run (a server accepts no other source), in a folder named by their content, so
    that registering the same files again gives the same version. `PromotionError` says what the store refused.
    """
    path = f"model-{_digest(folder)}"
    source = f"runs:/{run_id}/{path}"
    with _promotion(uri, f"register {name!r}"):
        client = _open_client(uri)
        if not client.search_registered_models(f"name = '{_quotable(name)}'"):
            client.create_registered_model(name)
        known = [v for v in client.search_model_versions(f"name = '{_quotable(name)}'") if v.source == source]
        if not known:
            client.log_artifacts(run_id, str(folder), path)
            words = {_name(key): _text(value) for key, value in tags.items()}
            known = [client.create_model_version(name, source, run_id=run_id, tags=words)]
        client.set_registered_model_alias(name, alias, known[0].version)
        return str(known[0].version)


def champion_of(uri: str, name: str, alias: str) -> Registered | None:
    """The version that `alias` points to, or None where there is no such model or alias."""
    with _promotion(uri, f"look up {name!r}"):
        client = _open_client(uri)
        models = client.search_registered_models(f"name = '{_quotable(name)}'")
        if not models or alias not in models[0].aliases:
            return None
        found = client.get_model_version_by_alias(name, alias)
        return Registered(str(found.version), found.run_id, found.source, dict(found.tags))


def find_run(uri: str, experiment: str, sweep: str, number: Key) -> str:
    """MLflow's id of a trial's run; `PromotionError` when the store does not have it."""
    with _promotion(uri, f"look up the run of {sweep}/{number}"):
        client = _open_client(uri)
        which = f"tags.`{SWEEP}` = '{_quotable(sweep)}' and tags.`{TRIAL}` = '{_key(number)}'"
        found = client.search_runs([_experiment(client, experiment)], which, max_results=1)
    if not found:
        raise PromotionError(
            f"{_without_password(uri)} has no run of {sweep}/{number}; `babeltune resume {sweep}` sends what is missing"
        )
    return str(found[0].info.run_id)


def log_scores(uri: str, run_id: str, scores: Mapping[str, float], step: int) -> None:
    """Adds the metrics of sealed tests to a trial's run; they exist only after a promotion."""
    from mlflow.entities import Metric

    with _promotion(uri, "log the test metrics"):
        now = time.time_ns() // 1_000_000
        metrics = [Metric(_name(name), float(value), now, step) for name, value in scores.items()]
        for part in _slices(metrics, METRICS_PER_BATCH):
            _open_client(uri).log_batch(run_id, part)


def fetch(uri: str, model: str, folder: Path) -> Path:
    """The files of a registered model, `models:/NAME@ALIAS`, in a folder below `folder`."""
    name, _, alias = model.removeprefix("models:/").partition("@")
    version = champion_of(uri, name, alias)
    if version is None:
        raise PromotionError(f"{_without_password(uri)} has no {model}; `babeltune promote` registers one")
    with _promotion(uri, f"fetch {model!r}"):
        from mlflow.artifacts import download_artifacts

        folder.mkdir(parents=True, exist_ok=True)
        return Path(download_artifacts(artifact_uri=version.source, dst_path=str(folder), tracking_uri=uri))


def serve_command(uri: str, artifacts: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """The command and environment of an MLflow server on this machine only, with one worker, on the store `uri`."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--artifacts-destination", str(artifacts), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return command, {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def environment_facts() -> dict[str, str]:
    """What a result depends on besides the sweep file: git commit, package versions, platform, CPU count."""
    facts = {"git.commit": _commit(), "python": platform.python_version(), "platform": platform.platform()}
    facts["cpus"] = str(os.cpu_count())
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[f"version.{package}"] = version(package)
    return facts


def _commit() -> str:
    """The commit of the source tree, `+dirty` with uncommitted changes; `none` where installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "none"

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({_first_line(error)})"


@contextlib.contextmanager
def _promotion(uri: str, what: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise PromotionError(
            f"cannot {what} in the MLflow store {_without_password(uri)}: {_first_line(error)}; "
            "check that it answers (`babeltune ui`), then promote again"
        ) from error


def _digest(folder: Path) -> str:
    """12 hexadecimal digits that name the folder's files and their content."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def _open_client(uri: str) -> MlflowClient:
    """A client of the store, with MLflow's and alembic's chatter off; a sqlite store's folder is made."""
    for name, value in HTTP.items():
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if (root := artifact_folder(uri)) is not None:
        root.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def artifact_folder(uri: str) -> Path | None:
    """Where a sqlite store keeps files: `artifacts` beside it. None for a server, which decides for itself."""
    return Path(uri.removeprefix("sqlite:///")).parent / "artifacts" if uri.startswith("sqlite:///") else None


def _experiment(client: MlflowClient, name: str) -> str:
    """The id of the experiment, made or restored where necessary."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        folder = artifact_folder(client.tracking_uri)
        try:
            return str(client.create_experiment(name, artifact_location=folder.resolve().as_uri() if folder else None))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _metrics(points: Sequence[Any]) -> list[Any]:
    from mlflow.entities import Metric

    return [
        Metric(_name(name), float(value), time_ms, step)
        for step, time_ms, values in points
        for name, value in values.items()
    ]


def _flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested parameters under dotted names, as text within MLflow's limits."""
    flat: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[_name(f"{prefix}{name}")] = _cut(_text(value), PARAM_CHARACTERS)
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(text: str, limit: int) -> str:
    """The text within the limit, saying what was cut."""
    if len(text) <= limit:
        return text
    note = f" … (cut; {len(text)} characters, the spool has all)"
    return text[: limit - len(note)] + note


def _name(name: str) -> str:
    """The name in MLflow's alphabet and length."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:NAME_CHARACTERS]


def _first_line(error: Exception) -> str:
    return _without_password(f"{type(error).__name__}: {error}".splitlines()[0])[:300]


def _key(number: Key | None) -> str:
    return PARENT if number is None else _quotable(str(number))


def _quotable(text: str) -> str:
    """The text without what would end a string in MLflow's search language."""
    return text.replace("'", "_")


def _without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", uri)


def _slices(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
