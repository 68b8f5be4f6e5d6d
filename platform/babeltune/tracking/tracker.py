"""The tracker: a sweep becomes a parent run of MLflow, its trials child runs.

The training side must neither wait for a server nor lose a number to it. So nothing is written for MLflow: the tracker
reads the sweep's log, from the last line that the store has acknowledged. Its thread sends what a `LogReader` makes of
the lines, in batches. With a dead server it tries again, and what the server lacks is still in the log. Memory stays
bounded because the log is the queue.

Nothing arrives twice, although an acknowledgement can get lost: a reader makes the same of the same lines, and MLflow's
SQL stores key a metric by (run, name, time, step, value). So a batch that is sent again adds nothing. Runs are looked
up by their tags before they are made. (MLflow's retired file store has no such key; MLflow 3 refuses it by default.)"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from babeltune.files import LineCursor, draft_folder, write_whole
from babeltune.redaction import without_password
from babeltune.stages import WRITING, tell
from babeltune.tracking import mlflow_client
from babeltune.tracking.checkpoint_models import CheckpointModel, log_checkpoint
from babeltune.tracking.events import PARENT, STATUSES, Event, Key, run_key
from babeltune.tracking.mlflow_client import NOTE, ROLE, STEP_UNIT, SWEEP, TRIAL
from babeltune.tracking.sweep_runs import CURSOR

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from babeltune.files import JsonObject

POLL_S = 0.2  # seconds between two looks for new lines of the log
RETRY_S = (0.5, 30.0)
"""Seconds of the first and the longest wait after a failure. It doubles in between, and is `jittered`."""
_chance = random.Random()  # apart from Python's own, on which nothing else may depend
TELL_EVERY_S = 1.0  # seconds between two words about how much MLflow has taken, while somebody waits for it
BATCH_BYTES, BATCH_VALUES = 1 << 20, 20_000
"""Bytes of lines, and values of metrics, after which a batch takes no more lines before it is acknowledged."""
_UNCLEAR = "BAD_REQUEST"  # MLflow's error code for a bad request, also if its database went away during the request
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", _UNCLEAR, "MALFORMED_REQUEST", "INVALID_STATE"})
_log = logging.getLogger(__name__)


class LogReader(Protocol):
    """The reader that makes events of the lines of one log. It sees all of them in order."""

    def follow(self, line: JsonObject) -> None:
        """Takes the next line into account, also one that the store has already."""

    def events(self, line: JsonObject) -> Sequence[Event] | None:
        """The events of the line that was followed last. None if a file that it needs is still on its way:
        the line is tried again later.

        Raises `OSError` for what is worth another try. Any other exception refuses the line."""


@dataclass
class _Batch:
    """Events of some lines, which are sent and acknowledged together."""

    end: LineCursor
    events: list[tuple[int, Event]] = field(default_factory=list)  # each with the offset at which its line ends
    refused: int = 0


class Tracker:
    """Writes one sweep to MLflow without ever being waited for. One process at a time follows a log.

    `uri` is MLflow's tracking URI, `log` the file of lines (it may not be there yet), `experiment` the experiment's
    name; `reader` makes what reads the log from its beginning. Only `flush` and `close` wait for the store, and nothing
    raises because of it: what is wrong now is in `trouble`; what was refused for good is counted in `refused` and
    logged."""

    def __init__(self, uri: str, log: Path, experiment: str, reader: Callable[[], LogReader]) -> None:
        self.uri, self.experiment = uri, experiment
        self.trouble: str | None = None
        self.refused = 0
        self._file, self._log, self._new_reader = log.with_name(CURSOR), log, reader
        self._store = hashlib.sha256(f"{uri}\n{experiment}".encode()).hexdigest()  # an address may hold a password
        self._memo: dict[str, Any] = {}
        self._cursor = self._read_cursor()
        self._reader: LogReader | None = None
        self._batch: _Batch | None = None
        self._seen = self._requested = self._cursor.offset
        """Bytes of the log that lack nothing in the store, and those whose requests were made."""
        self._changed = threading.Condition()
        self._flush_to = self._flushes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._send_forever, name="babeltune-track", daemon=True)
        self._thread.start()

    def run_id(self, number: Key | None) -> str | None:
        """MLflow's id of a child run (None: of the parent), once the store has made it."""
        run: str | None = self._memo.get("runs", {}).get(run_key(number))
        return run

    def waiting(self) -> int:
        """Bytes of the log that the store has not acknowledged."""
        return max(0, self._size() - self._seen)

    def flush(self, timeout: float) -> bool:
        """Whether all that the log has now is acknowledged within `timeout` seconds. Tells how far it is meanwhile."""
        end = time.monotonic() + timeout
        with self._changed:
            goal = self._flush_to = self._size()
            self._flushes += 1
            self._changed.notify_all()
            begun = goal - self._requested
            while (remaining := end - time.monotonic()) > 0 and self._seen < goal:
                self._changed.wait_for(lambda: self._seen >= goal, min(remaining, TELL_EVERY_S))
                tell(WRITING, begun - max(0, goal - self._requested), begun)
            return self._seen >= goal

    def close(self, timeout: float = 10.0) -> bool:
        """Flushes, then stops sending. What is left is for the next `Tracker` of the log."""
        done = self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(1.0)
        return done

    def _size(self) -> int:
        with suppress(OSError):
            return self._log.stat().st_size
        return 0

    def _read_cursor(self) -> LineCursor:
        """How much of the log this store has. All is sent to another store, or if the log is another one."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            values = json.loads(self._file.read_text(encoding="utf-8"))
            cursor = LineCursor(int(values["offset"]), values["seam"].encode("latin-1"))
            if values["store"] == self._store and cursor.fits(self._log):
                self._memo = dict(values["memo"])
                return cursor
        return LineCursor()

    def _send_forever(self) -> None:
        sender: _Sender | None = None
        wait, longest = RETRY_S
        while self._await_lines():
            try:
                if (batch := self._next()) is None:
                    self._pause(POLL_S)
                    continue
                sender = sender or _Sender(mlflow_client.open_client(self.uri), self._memo, self.experiment)
                refused = sender.send(batch.events, self._count)
                with self._changed:
                    self._acknowledge(batch)
                    self.refused, self.trouble = self.refused + refused + batch.refused, None
                    self._changed.notify_all()
                wait = RETRY_S[0]
            except Exception as error:  # a server may fail in any way, and the trials go on
                self.trouble = f"{without_password(self.uri)} does not take events: {mlflow_client.why(error)}"
                first = logging.WARNING if wait == RETRY_S[0] else logging.DEBUG
                _log.log(first, "%s; %d bytes wait, next try in %.1f s", self.trouble, self.waiting(), wait)
                if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                    self._memo = {}  # the store lost our runs
                    self._begin_again()
                sender, self._requested = None, self._seen
                self._pause(jittered(wait))
                wait = min(wait * 2, longest)

    def _await_lines(self) -> bool:
        """Waits until the log has changed, and lets lines gather; False once the tracker closes."""
        with self._changed:
            while not self._closing and self._size() == self._seen:
                self._changed.wait(POLL_S)
            self._changed.wait_for(lambda: self._closing or self._flush_to > self._seen, POLL_S)
            return not self._closing

    def _next(self) -> _Batch | None:
        """The batch that waits or the next one; None if no line is whole, or a file that it needs is on its way."""
        if self._batch is not None:
            return self._batch
        if not self._cursor.fits(self._log):
            self._begin_again()
        reader = self._reader or self._reader_so_far()
        size, batch, values = self._size(), _Batch(self._cursor), 0
        for line in self._cursor.lines(self._log):
            events = self._events_of(reader, line, batch)
            if events is None:
                break
            batch.end = batch.end.after(line)
            batch.events += [(batch.end.offset, event) for event in events]
            values += sum(len(point[2]) for event in events for point in event.get("points", ()))
            if values >= BATCH_VALUES or batch.end.offset - self._cursor.offset >= BATCH_BYTES:
                break
        else:
            if batch.end.offset == self._cursor.offset:  # what the log has beyond it is no line
                with self._changed:
                    self._seen = size
                    self._changed.notify_all()
                return None
        self._batch = batch if batch.end.offset > self._cursor.offset else None
        return self._batch

    def _reader_so_far(self) -> LogReader:
        """A reader that has followed what the store has."""
        reader, end = self._new_reader(), LineCursor()
        for line in end.lines(self._log):
            if end.offset == self._cursor.offset:
                break
            end = end.after(line)
            with suppress(Exception):  # what is no line was refused
                reader.follow(json.loads(line))
        self._reader = reader
        return reader

    def _events_of(self, reader: LogReader, line: bytes, batch: _Batch) -> Sequence[Event] | None:
        """The events of the line; none for one that is refused."""
        try:
            values = json.loads(line)
            reader.follow(values)
            return reader.events(values)
        except OSError:
            self._reader = None  # it has followed lines that are read again
            raise
        except Exception as error:  # a line may hold anything
            batch.refused += 1
            _log.error("no event for MLflow (%s): %r", mlflow_client.first_line(error), line[:80])
            return ()

    def _count(self, offset: int) -> None:
        self._requested = offset

    def _acknowledge(self, batch: _Batch) -> None:
        """Records that the store has the batch."""
        end = batch.end
        values = {"store": self._store, "offset": end.offset, "seam": end.seam.decode("latin-1"), "memo": self._memo}
        write_whole(self._file, json.dumps(values).encode())
        self._cursor, self._batch = end, None
        self._seen = self._requested = end.offset

    def _begin_again(self) -> None:
        """All of the log is sent once more, because the store has lost its data or the log is another one."""
        self._cursor, self._reader, self._batch = LineCursor(), None, None
        self._seen = self._requested = 0

    def _pause(self, seconds: float) -> None:
        """Waits; a new flush or closing ends it."""
        with self._changed:
            flushes = self._flushes
            self._changed.wait_for(lambda: self._closing or self._flushes > flushes, seconds)


def jittered(seconds: float) -> float:
    """A random half to all of these seconds: drivers whose server failed do not all ask it again at one moment."""
    return seconds * _chance.uniform(0.5, 1.0)


class _Sender:
    """Turns events into requests. `memo` has what the cursor's file remembers: the sweep, and MLflow's ids."""

    def __init__(self, client: MlflowClient, memo: dict[str, Any], experiment: str) -> None:
        self.client, self.memo = client, memo
        self.runs: dict[str, str] = memo.setdefault("runs", {})
        self.experiment_id = memo["experiment"] = mlflow_client.experiment_id(client, experiment)
        self.pending: dict[str, list[Any]] = {}
        self.refused = 0
        if PARENT in self.runs:
            client.get_run(self.runs[PARENT])  # raises when the store has lost it

    def send(self, events: Sequence[tuple[int, Event]], on_sent: Callable[[int], None]) -> int:
        """Sends all, a run's metrics together; returns how many requests were refused for good. Calls `on_sent(offset)`
        once an event's request was made.

        Raises whatever is worth another try, of all the events."""
        self.pending, self.refused = {}, 0
        for offset, event in events:
            try:
                metrics = mlflow_client.metrics_of(event.get("points", ()), event.get("per_step", 1.0))
                STATUSES.index(event.get("status", "FINISHED"))
            except (ValueError, TypeError, KeyError) as error:
                self._refuse(f"not an event ({error}): {str(event)[:80]}")
                continue
            self._send_event(event["key"], event, metrics)
            on_sent(offset)
        for key in list(self.pending):
            self._send_metrics(key)
        return self.refused

    def _send_event(self, key: str, event: Event, metrics: list[Any]) -> None:
        do = event["do"]
        if do == "start":
            self._start(key, event)
        elif key not in self.runs:
            self._refuse(f"run {key!r} was never started")
        elif do == "metrics":
            self.pending.setdefault(key, []).extend(metrics)
        elif do == "tags":
            self._send_tags(key, event["tags"])
        elif do == "inputs":
            self._try(self.client.log_inputs, self.runs[key], mlflow_client.inputs_of(event["inputs"]))
        elif do == "artifact":
            self._send_artifact(key, event["name"], event["data"])
        elif do == "model":
            self._send_model(key, event)
        elif do == "note":
            self._try(self.client.set_experiment_tag, self.experiment_id, NOTE, event["text"])
        else:
            self._end(key, event)

    def _start(self, key: str, event: Event) -> None:
        sweep = self.memo["sweep"] = event.get("sweep", self.memo.get("sweep", ""))
        name = mlflow_client.run_name(key) if key else sweep
        first, tags = {ROLE: "trial" if key else "sweep", SWEEP: sweep}, dict(event["tags"])
        if key:
            first[TRIAL] = name
            tags |= {"mlflow.parentRunId": self.runs[PARENT]} if PARENT in self.runs else {}
        first |= {STEP_UNIT: event["step_unit"]} if "step_unit" in event else {}
        existing_run = self._existing_run(sweep, key)
        about = {"start_time": event["time_ms"], "tags": first, "run_name": name}
        run = existing_run or self.client.create_run(self.experiment_id, **about)
        self.runs[key] = run.info.run_id
        self._send_tags(key, tags)
        self._send_params(key, mlflow_client.flattened(event["params"]), run.data.params)
        if existing_run:
            self._try(self.client.update_run, run.info.run_id, "RUNNING", name)

    def _existing_run(self, sweep: str, key: str) -> Run | None:
        if key:
            return mlflow_client.run_of_trial(self.client, self.experiment_id, sweep, key)
        which = f"tags.`{SWEEP}` = '{sweep}' and tags.`{ROLE}` = 'sweep'"
        runs = self.client.search_runs([self.experiment_id], which, max_results=1)
        return runs[0] if runs else None

    def _end(self, key: str, event: Event) -> None:
        self._send_metrics(key)
        self._send_tags(key, event["tags"])
        self._try(self.client.set_terminated, self.runs[key], event["status"], event["time_ms"])

    def _send_metrics(self, key: str) -> None:
        for metrics in mlflow_client.slices(self.pending.pop(key, []), mlflow_client.METRICS_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], metrics)

    def _send_params(self, key: str, values: Mapping[str, str], logged: Mapping[str, str]) -> None:
        """Adds the parameters. MLflow never changes one: a value that differs from the run's becomes a tag."""
        from mlflow.entities import Param

        new = [Param(name, value) for name, value in values.items() if name not in logged]
        for params in mlflow_client.slices(new, mlflow_client.ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), params)
        changed = {name: value for name, value in values.items() if logged.get(name, value) != value}
        if changed:
            self._send_tags(key, {"babeltune.changed_params": changed})

    def _send_tags(self, key: str, tags: Mapping[str, object]) -> None:
        from mlflow.entities import RunTag

        texts = {name: mlflow_client.text_of(value) for name, value in tags.items()}
        if NOTE in texts:
            runs = {mlflow_client.run_name(key): run for key, run in self.runs.items()}
            texts[NOTE] = mlflow_client.linked(texts[NOTE], self.experiment_id, runs)
        entries = [
            RunTag(mlflow_client.mlflow_name(name), mlflow_client.shorten(text, mlflow_client.TAG_CHARACTERS))
            for name, text in texts.items()
        ]
        for part in mlflow_client.slices(entries, mlflow_client.ENTRIES_PER_BATCH):
            self._try(self.client.log_batch, self.runs[key], (), (), part)

    def _send_artifact(self, key: str, name: str, data: bytes) -> None:
        """Uploads a file. A refusal is counted if the server answers, so that it holds up no number."""
        with draft_folder("artifact") as place:
            (place / name).write_bytes(data)
            try:
                self.client.log_artifact(self.runs[key], str(place / name))
            except Exception as error:  # a store of artifacts may fail in any way
                self.client.get_run(self.runs[key])  # raises when the server is away: all is tried again
                self._refuse(f"{name}: {mlflow_client.first_line(error)}")

    def _send_model(self, key: str, event: Event) -> None:
        """Adds a checkpoint to the run. Servers before MLflow 3 have no such models: then it is refused and counted."""
        self._send_metrics(key)
        try:
            model = CheckpointModel(**event["model"])
            step = round(model.step * event["per_step"])
            log_checkpoint(self.client, self.experiment_id, self.runs[key], replace(model, step=step))
        except Exception as error:  # a server or a store of artifacts may fail in any way
            self.client.get_run(self.runs[key])  # raises when the server is away: all is tried again
            self._refuse(f"the checkpoint of run {key!r}: {mlflow_client.first_line(error)}")

    def _try(self, request: Callable[..., Any], *arguments: Any) -> None:
        """Makes a request; what the store refuses for good is counted, not repeated for ever."""
        from mlflow.exceptions import MlflowException

        for last in (False, True):
            try:
                request(*arguments)
                return
            except MlflowException as error:
                if error.error_code not in _REFUSALS:
                    raise
                if last or error.error_code != _UNCLEAR:
                    self._refuse(mlflow_client.first_line(error))
                    return
            self.client.get_experiment(self.experiment_id)  # raises while the database is away: all is tried again

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        _log.error("MLflow refused a request, which stays in the log only: %s", reason)
