"""The tracker: a sweep becomes a parent run of MLflow, its trials child runs.

The training side must neither wait for a server nor lose a number to it. So every event first becomes a line of a local
file, the *spool*. A background thread reads on from the last acknowledged line and sends what it finds, in batches. A
dead server means that the spool grows and the thread tries again; opening a spool again replays what was not
acknowledged. Memory stays bounded because the file is the queue.

Nothing arrives twice, although an acknowledgement can get lost: steps and timestamps are the caller's, and MLflow's SQL
stores key a metric by (run, name, time, step, value). So a batch that is sent again adds nothing. Runs are looked up by
their tags before they are made. (MLflow's retired file store has no such key; MLflow 3 refuses it by default.)"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from babeltune.redaction import without_password
from babeltune.schema.records import Point
from babeltune.stages import WRITING, tell
from babeltune.tracking.checkpoint_models import CheckpointModel, log_checkpoint
from babeltune.tracking.mlflow_client import (
    ENTRIES_PER_BATCH,
    METRICS_PER_BATCH,
    NOTE,
    ROLE,
    STEP_UNIT,
    SWEEP,
    TAG_CHARACTERS,
    TRIAL,
    DataInput,
    cut,
    experiment_id,
    first_line,
    flattened,
    inputs_of,
    linked,
    metrics_of,
    name_of,
    open_client,
    quotable,
    run_of_trial,
    slices,
    text_of,
    trial_name,
    why,
)
from babeltune.tracking.spool import Spool

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Key = int | str
"""A trial's number, or the name of a run that is not a trial: `untrained`, `teacher`, `promotion`."""
Status = Literal["FINISHED", "FAILED", "KILLED"]
STATUSES: tuple[Status, ...] = get_args(Status)

PARENT = ""
"""The key of the sweep's own run."""

LINGER_S = 0.2
"""Seconds that the sender lets events gather before it sends them."""
RETRY_S = (0.5, 30.0)
"""Seconds of the first and the longest wait after a failure. The wait doubles in between, and each is drawn from its
upper half (`jittered`)."""
_chance = random.Random()
"""Apart from Python's own, on which nothing else may depend."""
TELL_EVERY_S = 1.0
"""Seconds between two words about how much MLflow has taken, while somebody waits for it."""
READ_BYTES = 1 << 20
"""Bytes of the spool that are sent in one piece before they are acknowledged."""
_UNCLEAR = "BAD_REQUEST"
"""MLflow's error code for a bad request, also if its database went away during the request."""
_AGAIN_S = (0.5, 1.0, 2.0)
"""Seconds of the waits before such a request counts as refused."""
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", _UNCLEAR, "MALFORMED_REQUEST", "INVALID_STATE"})
_log = logging.getLogger(__name__)


@dataclass
class SpooledRun:
    """The events of one run in a spool."""

    steps: set[int] = field(default_factory=set)
    """Steps that have points."""
    ended: bool = False


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

    def start_sweep(self, name: str, params: Mapping[str, object], tags: Mapping[str, object]) -> None:
        """Opens the parent run, or goes on with the one of this name. Before any other event of a spool."""
        self._put({"do": "start", "sweep": quotable(name), "key": PARENT, "params": params, "tags": tags})

    def start_trial(
        self, number: Key, params: Mapping[str, object], tags: Mapping[str, object], *, step_unit: str | None = None
    ) -> None:
        """Opens a child run, or goes on with it; nested `params` become dotted names.

        A tag of a new run says in which unit it counts steps, if that is not optimizer steps.
        """
        unit = {} if step_unit is None else {"step_unit": step_unit}
        self._put({"do": "start", "key": _key(number), "params": params, "tags": tags, **unit})

    def metrics(self, number: Key | None, points: Sequence[Point], *, per_step: float = 1.0) -> None:
        """Adds points to a child run, or with None to the sweep's own run. `per_step` is what one optimizer step counts
        for in the run's unit of steps."""
        found = [[p.step, p.time_ms, p.values] for p in points]
        self._put({"do": "metrics", "key": _key(number), "points": found, "per_step": per_step})

    def tags(self, number: Key | None, tags: Mapping[str, object]) -> None:
        """Sets tags of a child run, or with None of the sweep's own run."""
        self._put({"do": "tags", "key": _key(number), "tags": tags})

    def inputs(self, number: Key | None, inputs: Sequence[DataInput]) -> None:
        """Names the data sets that a run used."""
        self._put({"do": "inputs", "key": _key(number), "inputs": [asdict(each) for each in inputs]})

    def artifact(self, number: Key | None, path: Path) -> None:
        """Makes the file an artifact of a run, once the store answers. It must stay until then."""
        self._put({"do": "artifact", "key": _key(number), "path": str(path)})

    def model(self, number: Key, model: CheckpointModel, *, per_step: float = 1.0) -> None:
        """Makes the trial's best checkpoint a model of MLflow. `per_step` is as in `metrics`."""
        self._put({"do": "model", "key": _key(number), "model": model.as_json(), "per_step": per_step})

    def experiment_note(self, text: str) -> None:
        """The description of the experiment, in Markdown."""
        self._put({"do": "note", "key": PARENT, "text": text})

    def end_trial(self, number: Key, status: Status, tags: Mapping[str, object]) -> None:
        """Ends a child run. The tag `state` tells a pruned trial from a finished one; both are FINISHED."""
        self._put({"do": "end", "key": _key(number), "status": status, "tags": tags})

    def end_sweep(self, status: Status, tags: Mapping[str, object] | None = None) -> None:
        """Ends the parent run."""
        self._put({"do": "end", "key": PARENT, "status": status, "tags": tags or {}})

    def run_id(self, number: Key | None) -> str | None:
        """MLflow's id of a child run (None: of the parent), once the store has made it."""
        found: str | None = self._spool.memo.get("runs", {}).get(_key(number))
        return found

    def spooled(self) -> dict[str, SpooledRun]:
        """What was put of each run, by earlier trackers on this spool too."""
        found: dict[str, SpooledRun] = {}
        for event in self._spool.events():
            known = found.setdefault(event["key"], SpooledRun())
            known.ended = event["do"] == "end" or (known.ended and event["do"] != "start")
            known.steps.update(point[0] for point in event.get("points", ()))
        return found

    def waiting(self) -> int:
        """Spool bytes that the store has not acknowledged."""
        return self._spool.waiting()

    def flush(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until all that was put so far is acknowledged, and tells how far it is; says
        whether it was."""
        end = time.monotonic() + timeout
        with self._changed:
            goal = self._flush_to = self._spool.size
            self._flushes += 1
            self._changed.notify_all()
            begun = self._spool.left()
            while (left := end - time.monotonic()) > 0 and self._spool.offset < goal:
                self._changed.wait_for(lambda: self._spool.offset >= goal, min(left, TELL_EVERY_S))
                tell(WRITING, begun - self._spool.left(), begun)
            return self._spool.offset >= goal

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
                sender = sender or _Sender(open_client(self.uri), self._spool.memo, self.experiment)
                lines = self._spool.unsent(READ_BYTES)
                refused = sender.send(lines, self._spool.count)
                with self._changed:
                    self._spool.acknowledge(lines)
                    self.refused, self.trouble = self.refused + refused, None
                    self._changed.notify_all()
                wait = RETRY_S[0]
            except Exception as error:  # a server may fail in any way, and the trials go on
                self.trouble = f"{without_password(self.uri)} does not take events: {why(error)}"
                first = logging.WARNING if wait == RETRY_S[0] else logging.DEBUG
                _log.log(first, "%s; %d bytes wait, next try in %.1f s", self.trouble, self.waiting(), wait)
                if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                    self._spool.forget()  # the store lost our runs: send everything again
                sender, self._spool.requested = None, 0
                self._pause(jittered(wait))
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


def jittered(seconds: float) -> float:
    """A wait of at least half of these seconds and at most all, so that drivers whose server failed do not all ask it
    again at one moment."""
    return seconds * _chance.uniform(0.5, 1.0)


class _Sender:
    """Turns spooled lines into requests. `memo` is what the spool remembers: the sweep's name, its experiment's id, its
    runs' ids and their units of steps."""

    def __init__(self, client: MlflowClient, memo: dict[str, Any], experiment: str) -> None:
        self.client, self.memo = client, memo
        self.runs: dict[str, str] = memo.setdefault("runs", {})
        self.experiment_id = memo["experiment"] = experiment_id(client, experiment)
        self.pending: dict[str, list[Any]] = {}
        self.refused = 0
        if PARENT in self.runs:
            client.get_run(self.runs[PARENT])  # raises when the store has lost it

    def send(self, lines: Sequence[bytes], sent: Callable[[int], None] = lambda _: None) -> int:
        """Sends all, a run's metrics together; returns how many requests were refused for good. `sent` hears of the
        bytes of each line whose request was made.

        Raises whatever is worth another try, of all the lines.
        """
        self.pending, self.refused = {}, 0
        for line in lines:
            try:
                event = json.loads(line)
                key = event["key"]
                metrics = metrics_of(event.get("points", ()), event.get("per_step", 1.0))
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
            elif event["do"] == "tags":
                self._send_tags(key, event["tags"])
            elif event["do"] == "inputs":
                self._try(self.client.log_inputs, self.runs[key], inputs_of(event["inputs"]))
            elif event["do"] == "artifact":
                self._send_artifact(key, Path(event["path"]))
            elif event["do"] == "model":
                self._send_model(key, event)
            elif event["do"] == "note":
                self._try(self.client.set_experiment_tag, self.experiment_id, NOTE, event["text"])
            else:
                self._end(key, event)
            sent(len(line))
        for key in list(self.pending):
            self._send_metrics(key)
        return self.refused

    def _start(self, key: str, event: dict[str, Any]) -> None:
        sweep = self.memo["sweep"] = event.get("sweep", self.memo.get("sweep", ""))
        tags = {**event["tags"], SWEEP: sweep, ROLE: "trial" if key else "sweep"}
        name = trial_name(key) if key else sweep
        if key:
            tags |= {TRIAL: name} | ({"mlflow.parentRunId": self.runs[PARENT]} if PARENT in self.runs else {})
        found = self._found(sweep, key)
        unit = {STEP_UNIT: event["step_unit"]} if "step_unit" in event else {}
        first = {ROLE: tags.pop(ROLE), SWEEP: tags.pop(SWEEP), **({TRIAL: tags.pop(TRIAL)} if key else {}), **unit}
        run = (
            found
            if found
            else self.client.create_run(self.experiment_id, start_time=event["time_ms"], tags=first, run_name=name)
        )
        self.runs[key] = run.info.run_id
        self._send_tags(key, tags)
        self._send_params(key, flattened(event["params"]), run.data.params)
        if found:
            self._try(self.client.update_run, run.info.run_id, "RUNNING", name)

    def _found(self, sweep: str, key: str) -> Run | None:
        if key:
            return run_of_trial(self.client, self.experiment_id, sweep, key)
        which = f"tags.`{SWEEP}` = '{sweep}' and tags.`{ROLE}` = 'sweep'"
        found = self.client.search_runs([self.experiment_id], which, max_results=1)
        return found[0] if found else None

    def _end(self, key: str, event: dict[str, Any]) -> None:
        self._send_metrics(key)
        self._send_tags(key, event["tags"])
        self._try(self.client.set_terminated, self.runs[key], event["status"], event["time_ms"])

    def _send_metrics(self, key: str) -> None:
        for metrics in slices(self.pending.pop(key, []), METRICS_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], metrics)

    def _send_params(self, key: str, values: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Adds the parameters. MLflow never changes one: a value that differs from the run's becomes a tag."""
        from mlflow.entities import Param

        new = [Param(name, value) for name, value in values.items() if name not in known]
        for params in slices(new, ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), params)
        changed = {name: value for name, value in values.items() if known.get(name, value) != value}
        if changed:
            self._send_tags(key, {"babeltune.changed_params": changed})

    def _send_tags(self, key: str, tags: Mapping[str, object]) -> None:
        from mlflow.entities import RunTag

        texts = {name: text_of(value) for name, value in tags.items()}
        if NOTE in texts:
            runs = {trial_name(key): run for key, run in self.runs.items()}
            texts[NOTE] = linked(texts[NOTE], self.experiment_id, runs)
        entries = [RunTag(name_of(name), cut(text, TAG_CHARACTERS)) for name, text in texts.items()]
        for part in slices(entries, ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), (), part)

    def _send_artifact(self, key: str, path: Path) -> None:
        """Uploads the file. A refusal is counted if the server answers, so that it holds up no number."""
        try:
            self.client.log_artifact(self.runs[key], str(path))
        except Exception as error:  # a store of artifacts may fail in any way
            self.client.get_run(self.runs[key])  # raises when the server is away: all is tried again
            self._refuse(f"{path}: {first_line(error)}")

    def _send_model(self, key: str, event: dict[str, Any]) -> None:
        """Adds a checkpoint to the run. Servers before MLflow 3 have no such models: then it is refused and counted."""
        self._send_metrics(key)
        try:
            model = CheckpointModel(**event["model"])
            step = round(model.step * event["per_step"])
            log_checkpoint(self.client, self.experiment_id, self.runs[key], replace(model, step=step))
        except Exception as error:  # a server or a store of artifacts may fail in any way
            self.client.get_run(self.runs[key])  # raises when the server is away: all is tried again
            self._refuse(f"the checkpoint of run {key!r}: {first_line(error)}")

    def _try(self, request: Callable[..., Any], *arguments: Any) -> None:
        """Makes a request; what the store refuses for good is counted, not repeated for ever."""
        from mlflow.exceptions import MlflowException

        for wait in (*_AGAIN_S, None):
            try:
                request(*arguments)
                return
            except MlflowException as error:
                if error.error_code not in _REFUSALS:
                    raise
                if wait is None or error.error_code != _UNCLEAR:
                    self._refuse(first_line(error))
                    return
                time.sleep(wait)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        _log.error("MLflow refused a request, which stays in the spool only: %s", reason)


def _key(number: Key | None) -> str:
    return PARENT if number is None else quotable(str(number))
