"""A sweep's ledger, `results.jsonl`: what happened, in order, as its driver writes it and as everybody reads it.

One fold gives the trials. It is read once and then followed by its offset. No file of a trial is opened for a fact that
the ledger has, and the study is made from it."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, TypeAdapter

from babeltune.files import LineCursor, append_line, aside, end_on_a_line, write_whole
from babeltune.schema.records import Report, Scalar
from babeltune.schema.trial_names import trial_name
from babeltune.sweep.state.messages import (
    ENDED,
    ENDS,
    LABEL_KEYS,
    Accepted,
    Labels,
    LedgerLine,
    State,
    Submission,
    TrialEnd,
    end_of,
    scores_of,
)

if TYPE_CHECKING:
    from babeltune.files import JsonObject

LEDGER = "results.jsonl"
EVENT: TypeAdapter[Any] = TypeAdapter(dict[str, Annotated[dict[str, Any] | Any, Field(union_mode="left_to_right")]])
"""Reads a line three times as fast as `json`. Lines share the keys of typed objects, which takes less memory."""
OF_TRIALS = frozenset({"propose", "start", "stop", "report", "end"})
MOST_LOGS = 8  # logs that a process remembers: a list of all sweeps reads hundreds, each once
REQUIRED_KEYS = {
    "propose": ("params",),
    "report": ("index", "values"),
    "end": ("state", "values"),
    "give_up": ("trials",),
    "submit": tuple(Submission.__required_keys__),
    "accept": tuple(Accepted.__required_keys__),
    "leave": ("state",),
}
"""Keys that each event must have."""
OF_SWEEP = ("submit", "accept", "leave", "label", "pause", "continue")
"""Events of the sweep, which the search does not ask for."""
FOR_READERS = ("metrics", "facts", "time_ms", "token")  # keys of a line of the ledger that only `log.py` reads


@dataclass(slots=True)
class LoggedTrial:
    """One trial as the ledger has it."""

    number: int
    params: dict[str, Scalar] | None = None  # none if the line that proposed it is lost
    fitted: dict[str, float] = field(default_factory=dict)
    """The settings that were `auto`, and the numbers that it began with."""
    state: State = "running"
    end: TrialEnd | None = None
    step: int = 0  # how far an ended trial was, of how many `steps`, if its folder said so
    steps: int | None = None
    logged: dict[int, Report] = field(default_factory=dict)
    """The reports by number. Their metrics are `scores_of` what the worker reported; the points are in its folder."""
    derived: dict[object, Any] = field(default_factory=dict)
    """Values that readers derived from it, by their own keys. Empty again after each event."""

    @property
    def name(self) -> str:
        return trial_name(self.number)

    @property
    def reports(self) -> list[Report]:
        """Its reports in order."""
        return [self.logged[index] for index in sorted(self.logged)]


class SweepLog:
    """The fold over one ledger. Several threads may ask for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._following = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.token = 0  # of the latest driver
        self.trials: dict[int, LoggedTrial] = {}
        self.submissions: list[Submission] = []  # the sweep at each submission, the first first
        self.accepted: list[JsonObject] = []
        """The changes that were accepted while the sweep went on, with their time and the trials that had begun."""
        self.specs_before: list[JsonObject] = []  # the spec with which the trials before each of these began
        self.accepting: Accepted | None = None  # the latest changes, until a driver has submitted the sweep with them
        self.labels: Labels = {}  # the labels that users gave the sweep
        self.paused: set[int] = set()  # trials that are paused
        self.sweep_paused = False
        self.pauses = 0  # how often anything was paused or continued
        self._version: tuple[int, int, int] | None = None
        self._cursor = LineCursor()
        self._facts: dict[str, dict[str, Scalar]] = {}

    @property
    def ended(self) -> int:
        """Trials that finished, were pruned or failed."""
        return sum(trial.end is not None for trial in list(self.trials.values()))

    def follow(self) -> SweepLog:
        """Reads what the file has gained; all of it, if it is another file than before."""
        with self._following:
            try:
                stat = self._path.stat()
            except OSError:
                self._forget()
                return self
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size
            if version != self._version:
                self._read()
                self._version = version
        return self

    def _read(self) -> None:
        if not self._cursor.fits(self._path):
            self._forget()
        for line in self._cursor.lines(self._path):
            self._cursor = self._cursor.after(line)
            try:
                self.take(EVENT.validate_json(line))
            except (ValueError, TypeError, KeyError):  # what is no event is passed over
                continue

    def take(self, line: LedgerLine) -> None:
        """Folds the next line in, unless it is late."""
        if is_late(line, self.token):
            return
        self.token = line.get("token", self.token)
        if line["event"] in OF_TRIALS:
            self._take_of_trial(line)
        elif line["event"] == "submit" and Submission.__required_keys__ <= line.keys():
            self.submissions.append(cast("Submission", line))
            self.accepting = None
        elif line["event"] == "accept" and Accepted.__required_keys__ <= line.keys():
            self._accept(cast("Accepted", line), line.get("time_ms", 0) / 1000)
        elif line["event"] == "label":
            self.labels |= {key: cast("Labels", line)[key] for key in LABEL_KEYS if key in line}
        elif line["event"] in ("pause", "continue"):
            self._pause(line.get("number"), pauses=line["event"] == "pause")

    def _take_of_trial(self, line: LedgerLine) -> None:
        trial = self.trials.get(line["number"])
        if trial is None:
            trial = self.trials[line["number"]] = LoggedTrial(int(line["number"]))
        trial.derived.clear()
        trial.fitted = line.get("fitted", trial.fitted)
        if line["event"] == "propose":
            trial.params, trial.fitted = line["params"], {}
        elif line["event"] == "report":
            if line["index"] not in trial.logged:  # a trial that goes on from an earlier checkpoint reports again
                trial.logged[line["index"]] = self._report(line)
        elif line["event"] == "end":
            trial.state, trial.end = ENDS[line["state"]], end_of(line)
            trial.step, trial.steps = line.get("step", 0), line.get("steps")
        elif trial.state not in ENDED:
            trial.state = "running" if line["event"] == "start" else "stopped"

    def _pause(self, number: int | None, *, pauses: bool) -> None:
        self.pauses += 1
        if number is None:
            self.sweep_paused = pauses
        elif pauses:
            self.paused.add(number)
        else:
            self.paused.discard(number)

    def waits(self, trials: int) -> bool:
        """Whether a sweep of `trials` trials has nothing to do until somebody continues it, or one of its trials."""
        unended = {number for number, trial in list(self.trials.items()) if trial.end is None}
        return self.sweep_paused or (len(self.trials) >= trials and bool(unended) and unended <= self.paused)

    def _accept(self, line: Accepted, when: float) -> None:
        """Adds accepted changes; to the latest ones if no trial has begun since."""
        self.accepting, changes = line, line["changes"]
        if self.accepted and self.accepted[-1]["begun"] == line["begun"]:
            changes = [*cast("list[JsonObject]", self.accepted.pop()["changes"]), *changes]
        else:
            self.specs_before.append(line["before"])
        facts = {"begun": line["begun"], "unfinished": line["unfinished"]}
        self.accepted.append(cast("JsonObject", {"time": when, "changes": changes, **facts}))

    def _report(self, line: LedgerLine) -> Report:
        facts = line.get("facts", {})
        return Report(
            index=line["index"],
            step=line.get("step", 0),
            pairs=line.get("pairs", 0),
            seconds=line.get("seconds", 0.0),
            metrics=line.get("metrics", {}),
            last=line.get("last", False),
            steps=line.get("steps", 0),
            facts=self._facts.setdefault(str(facts), facts),  # most trials share them
        )


_log = functools.lru_cache(maxsize=MOST_LOGS)(SweepLog)


def log_of(folder: Path) -> SweepLog:
    """The log of the sweep in this folder, as its ledger is now. It is empty if there is no ledger yet."""
    return _log((folder / LEDGER).absolute()).follow()


def end_facts(end: TrialEnd) -> dict[str, str]:
    """The facts of an end in the ledger and the study. `end_of` reads them again."""
    facts = {"kind": end.kind, "error_type": end.error_type, "reason": end.text}
    return {name: value for name, value in facts.items() if value}


def is_late(line: LedgerLine, latest: int) -> bool:
    """Whether an overtaken driver wrote the line, as it may if file locks do not reach it. Such a line does not count:
    its fencing token is below the latest one of the lines before it."""
    return line.get("token", latest) < latest


def append_event(path: Path, event: str, token: int | None = None, **facts: object) -> LedgerLine:
    """Appends one line to the ledger, under its driver's fencing token; on disk before it returns."""
    fence = {} if token is None else {"token": token}
    time_ms = facts.pop("time_ms", time.time_ns() // 1_000_000)
    # The time ends the line: by its last bytes a reader sees whether the file is still the one that it has read.
    line = cast("LedgerLine", {"event": event, **fence, **facts, "time_ms": time_ms})
    append_line(path, json.dumps(line).encode())
    return line


class Ledger:
    """`results.jsonl`: what happened, in order. The driver moves all after an invalid line to a file beside it."""

    def __init__(self, path: Path, token: int | None = None, *, mend: bool = True) -> None:
        """`token` is that of its driver. Without `mend` the file is only read: it may be another driver's."""
        self._path, self._token, self._latest = path, token, 0
        self.lines: list[LedgerLine] = []
        self._reports: dict[int, list[LedgerLine]] = {}
        self.params: dict[int, dict[str, Scalar]] = {}  # the settings of the proposed trials
        self.given_up: set[int] = set()  # trials that ended before the sweep ended for its failures
        self.failed: set[int] = set()  # trials that failed since then
        if mend:
            end_on_a_line(path)
        whole = path.read_bytes() if path.exists() else b""
        sound = 0
        for line in whole.splitlines(keepends=True):
            try:
                self._remember(json.loads(line))
            except (ValueError, TypeError, KeyError):
                if mend:  # A line that is added after an invalid one would never be read.
                    write_whole(aside(path), whole[sound:], durable=True)
                    os.truncate(path, sound)
                break
            sound += len(line)

    def add(self, event: str, number: int, **facts: object) -> None:
        """Appends one line about a trial, on disk before it returns."""
        self._remember(append_event(self._path, event, self._token, number=number, **facts))

    def add_report(self, number: int, report: Report, values: list[float]) -> None:
        """Appends a trial's report, with its objectives. Its points stay in the trial's folder."""
        names = ("index", "checkpoint", "step", "pairs", "seconds", "last", "steps", "facts")
        facts = {name: getattr(report, name) for name in names} | {"metrics": scores_of(report)}
        # The time of the last step is the same whenever the report is recorded.
        trained = [point.time_ms for point in report.points if "train/loss" in point.values]
        self.add("report", number, values=values, **facts, **({"time_ms": trained[-1]} if trained else {}))

    def add_end(self, number: int, state: str, values: list[float] | None, end: TrialEnd, **progress: int) -> None:
        """Appends a trial's end in this state of Optuna's, and how far its training was."""
        self.add("end", number, state=state, values=values, **end_facts(end), **progress)

    def reports(self, number: int) -> list[LedgerLine]:
        """The trial's reports: `index`, `values` by objective, `checkpoint`."""
        return list(self._reports.get(number, ()))

    def _remember(self, line: LedgerLine) -> None:
        if missing := [name for name in REQUIRED_KEYS.get(line["event"], ()) if name not in line]:
            raise KeyError(missing[0])
        self._latest = max(self._latest, line.get("token", 0))
        if line["event"] in OF_SWEEP or is_late(line, self._latest):
            return
        number = line["number"]
        if line["event"] == "propose":
            self.params[number] = line["params"]
        elif line["event"] == "report":
            self._reports.setdefault(number, []).append(line)
        elif line["event"] == "end" and line.get("state") == "FAIL":
            self.failed.add(number)
        elif line["event"] == "give_up":
            self.given_up |= set(line["trials"])
            self.failed -= self.given_up
        # What only readers want would stay in the driver's memory for each report of each trial.
        self.lines.append(cast("LedgerLine", {name: value for name, value in line.items() if name not in FOR_READERS}))
