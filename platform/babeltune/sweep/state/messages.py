"""The records that cross a process or a file while a sweep runs.

Driver, dispatcher and workers exchange them as JSON text. Control flow reads `kind`, never the wording of a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Required, Self, TypedDict, cast, get_args

from babeltune.files import plain
from babeltune.schema.records import Report, Scalar, Strict
from babeltune.schema.storage_location import StorageLocation

if TYPE_CHECKING:
    from babeltune.files import JsonObject

EndKind = Literal[
    "finished", "stopped", "pruned", "collapsed", "objective", "refused", "raised", "peer", "restarts", "storage"
]
"""How a trial, or one rank of it, ended.

`finished`: trained to its last report. `stopped`: asked to stop, and resumable. `pruned`: stopped by the scheduler.
`collapsed`: all vectors are alike. `objective`: an objective is missing or not finite. `refused`: a `BabeltuneError`,
which all ranks raise alike. `raised`: any other exception. `peer`: a collective broke because another rank did.
`restarts`: too many restarts without a new report. `storage`: the storage refused, so the trial has not failed.
"""
FAILURES: frozenset[EndKind] = frozenset({"objective", "refused", "raised", "peer", "restarts"})
"""Kinds of an end that count as a failed trial."""
State = Literal["waiting", "running", "finished", "pruned", "failed", "stopped", "damaged"]
"""State of a trial. `damaged` means that the sweep's records lack what it is made of."""
ENDED: tuple[State, ...] = ("finished", "pruned", "failed")  # states that a trial keeps
ENDS: dict[str, Literal["finished", "pruned", "failed"]] = {
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "FAIL": "failed",
}
"""A trial's state, by Optuna's word for it."""


class Message(Strict):
    """A record that crosses a process as JSON text."""

    def encode(self) -> str:
        return json.dumps(plain(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Raises `ValueError` for a text that is no such record."""
        from babeltune.schema.mending import adapter_of  # pydantic, which training without Ray does without

        return cast(Self, adapter_of(cls).validate_json(text))  # type: ignore[arg-type]  # a class is hashable


@dataclass(frozen=True, kw_only=True)
class TrialAssignment(Message):
    """A trial as a worker group gets it."""

    folder: str  # the trial's folder, relative to the mirror if there is one
    trial: Mapping[str, object] = field(default_factory=dict)
    """The trial function's input: a plain `Trial` for `run_trial.run`."""
    prepared: str = ""  # the record of the prepared data, relative to the mirror if there is one
    storage: str | None = None  # the folder of the whole storage. None if the trial has no driver.
    seed: int = 0
    mirror: StorageLocation | None = None  # the storage behind a URI, if the sweep has one
    token: int = 0  # the fencing token of the driver that gave it. 0 if the trial has no driver.

    @property
    def name(self) -> str:
        return Path(self.folder).name


@dataclass(frozen=True)
class ReportMessage(Message):
    """One report of a trial, on its way from a worker group to the driver."""

    trial: str
    report: Report


@dataclass(frozen=True)
class TrialEnd(Message):
    """How a trial, or one rank of it, ended."""

    kind: EndKind
    error_type: str = ""  # the name of the exception's class, if there was an exception
    text: str = ""  # the reason for a reader. Nothing branches on it.

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES


@dataclass(frozen=True)
class EndMessage:
    """The end of a trial, on its way from the dispatcher to the driver."""

    trial: str
    end: TrialEnd


@dataclass(frozen=True)
class Order(Message):
    """The dispatcher's answer to a worker group that asks for work."""

    kind: Literal["train", "wait", "renew", "close"]
    """`wait`: no trial came in time, so ask again. `renew`: leave, so that a new group of ranks can start."""
    trial: str = ""
    assignment: TrialAssignment | None = None  # the trial's assignment, if `kind` is `train`


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial as the search records it."""

    state: Literal["finished", "pruned", "failed", "stopped"]
    end: TrialEnd
    values: list[float] | None = None  # the objectives at its last report


class LedgerLine(TypedDict, total=False):
    """A line of the ledger, `results.jsonl`. Each kind of event has some of the keys."""

    event: Required[
        Literal["submit", "accept", "propose", "start", "report", "stop", "end", "give_up", "leave"]
        | Literal["label", "pause", "continue"]
    ]
    """`submit`: a driver begins (`Submission`). `accept`: changes are accepted (`Accepted`). `start`: a worker group
    has the trial, at first or again. `stop`: it was stopped, to be resumed. `give_up`: the sweep ended for the failures
    of some `trials`. `leave`: the driver ends. `label`: users name the sweep or say something of it (`Labels`).
    `pause`: a trial, or the whole sweep, gives its worker group back until `continue`."""
    token: int  # the fencing token of the driver that wrote it, if the sweep has a lease in its folder
    number: int  # the trial's. Events of the sweep have none, such as the `pause` of a whole sweep.
    time_ms: int  # when it happened, as milliseconds since 1970
    params: dict[str, Scalar]
    fitted: dict[str, float]
    """The settings of a started trial that are `auto`, and the numbers that were measured for them."""
    index: int
    values: list[float] | None  # the objectives of a report or an end, in the order of the sweep file
    checkpoint: str
    metrics: dict[str, float]  # `scores_of` the report
    step: int  # how far the training was, of how many `steps`. Absent if a trial's folder does not say so.
    steps: int
    pairs: int
    seconds: float
    last: bool
    facts: dict[str, Scalar]
    state: str
    """How a trial ended, in Optuna's word: COMPLETE, PRUNED or FAIL. `end_of` reads the next three. Of `leave` how the
    sweep is left: `finished`, `stopped` or `failed`."""
    kind: str
    error_type: str
    reason: str
    trials: list[int]
    name: str  # a `label` has those of `Labels` that change: this one and the next two
    note: str
    archived: bool


Labels = dict[str, str | bool]
"""Labels that users give a sweep: values of `LABEL_KEYS`. None of it changes its id, its folder or a result."""
LABEL_KEYS = ("name", "note", "archived")
"""The name that it is called by now (empty: the one of its sweep file), a note, and whether lists leave it out."""


class Holder(TypedDict):
    """Who has a sweep computed, and with how much of the cluster a trial runs."""

    user: str
    by_system: bool  # whether the system says who the user is. Else the sender of a Ray job says it.
    cpus: float
    gpus: float


class SubmissionOfAnyVersion(TypedDict):
    """Keys of every submission, those of earlier versions too."""

    spec: JsonObject
    facts: JsonObject  # the content of `facts.json`
    digests: dict[str, str]  # the digests of the texts by name
    environment: dict[str, str]  # commit, versions and machine, and the digest of all data
    contaminated: dict[str, str]  # contamination in words, by set: `dev.everyday`
    teacher: dict[str, Scalar]  # how many texts the teacher encoded, and how many of them it cut
    world: dict[str, Scalar]  # how every trial runs: its world size and backend
    mlflow_metrics: int | None  # how many of a trial's metrics MLflow gets; None: all


class Submission(SubmissionOfAnyVersion, total=False):
    """The line of the ledger with which a driver begins: what the sweep is from then on."""

    # `NotRequired` would do, but is not seen if annotations are text
    holder: Holder


class Accepted(TypedDict):
    """The line of the ledger with which changes are accepted: all that accepting them means."""

    changes: list[JsonObject]
    begun: list[int]  # the trials that had begun
    unfinished: list[int]
    before: JsonObject  # the spec with which these began
    spec: JsonObject | None  # the spec from now on, if it changes
    facts: JsonObject  # the content of `facts.json` from now on


def end_of(record: Mapping[str, object]) -> TrialEnd:
    """The end in a record on disk: a line of the ledger, or a study's attributes.

    Without a `kind` the trial was stopped, or finished if its `state` says so."""
    text = str(record.get("reason") or "")
    kind = record.get("kind")
    if kind in get_args(EndKind):
        return TrialEnd(cast("EndKind", kind), str(record.get("error_type", "")), text)
    state = str(record.get("state", "")).lower()
    return TrialEnd("finished" if state in ("complete", "finished") else "stopped", text=text)


def scores_of(report: Report) -> dict[str, float]:
    """A report's metrics, and the mean loss, terms and diagnostics (`train/…`) of its points: the least of what is
    named `…_least`, and the latest learning rate."""
    values: dict[str, list[float]] = {}
    for point in report.points:
        for name, value in point.values.items():
            values.setdefault(name, []).append(value)
    means = {name: min(those) if name.endswith("_least") else sum(those) / len(those) for name, those in values.items()}
    latest = {name: those[-1] for name, those in values.items() if name.endswith("learning_rate")}
    return report.metrics | means | latest | report.metrics  # the report's own first, in their order
