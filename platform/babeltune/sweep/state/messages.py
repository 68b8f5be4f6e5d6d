"""The records that cross a process or a file while a sweep runs. Each has one encoder and one decoder.

Driver, dispatcher and workers exchange them as JSON text. Control flow reads `kind`, never the wording of a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast, get_args

from babeltune.files import plain
from babeltune.schema.records import Report, Scalar, report_from
from babeltune.schema.storage_location import StorageLocation

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


@dataclass(frozen=True, kw_only=True)
class TrialAssignment:
    """What a worker group needs to train one trial."""

    folder: str
    """The trial's folder, relative to the mirror if there is one."""
    trial: Mapping[str, object] = field(default_factory=dict)
    """The trial function's input: a plain `Trial` for `run_trial.run`."""
    prepared: str = ""
    """The record of the prepared data, relative to the mirror if there is one."""
    storage: str | None = None
    """The folder of the whole storage. None if the trial has no driver."""
    seed: int = 0
    mirror: StorageLocation | None = None
    """The storage behind a URI, if the sweep has one."""
    token: int = 0
    """The fencing token of the driver that gave it. 0 if the trial has no driver."""

    @property
    def name(self) -> str:
        return Path(self.folder).name

    def encode(self) -> str:
        return json.dumps(plain(self))

    @classmethod
    def decode(cls, text: str) -> TrialAssignment:
        values = json.loads(text)
        mirror = values["mirror"]
        return cls(**{**values, "mirror": None if mirror is None else StorageLocation(**mirror)})


@dataclass(frozen=True)
class ReportMessage:
    """One report of a trial, on its way from a worker group to the driver."""

    trial: str
    report: Report

    def encode(self) -> str:
        return json.dumps({"trial": self.trial, "report": plain(self.report)})

    @classmethod
    def decode(cls, text: str) -> ReportMessage:
        values = json.loads(text)
        return cls(values["trial"], report_from(values["report"]))


@dataclass(frozen=True)
class TrialEnd:
    """How a trial, or one rank of it, ended."""

    kind: EndKind
    error_type: str = ""
    """The name of the exception's class, if there was an exception."""
    text: str = ""
    """The reason for a reader. Nothing branches on it."""

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES

    def encode(self) -> str:
        return json.dumps(plain(self))

    @classmethod
    def decode(cls, text: str) -> TrialEnd:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class EndMessage:
    """The end of a trial, on its way from the dispatcher to the driver."""

    trial: str
    end: TrialEnd


@dataclass(frozen=True)
class Order:
    """The dispatcher's answer to a worker group that asks for work."""

    kind: Literal["train", "wait", "renew", "close"]
    """`wait`: no trial came in time, so ask again. `renew`: leave, so that a new group of ranks can start."""
    trial: str = ""
    assignment: TrialAssignment | None = None
    """The trial's assignment, if `kind` is `train`."""

    def encode(self) -> str:
        assignment = None if self.assignment is None else self.assignment.encode()
        return json.dumps({"kind": self.kind, "trial": self.trial, "assignment": assignment})

    @classmethod
    def decode(cls, text: str) -> Order:
        values = json.loads(text)
        given = values["assignment"]
        return replace(cls(values["kind"], values["trial"]), assignment=given and TrialAssignment.decode(given))


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial as the search records it."""

    state: Literal["finished", "pruned", "failed", "stopped"]
    end: TrialEnd
    values: list[float] | None = None
    """The objectives at its last report."""


class ProposeLine(TypedDict):
    """A line of the ledger, `results.jsonl`: a trial begins."""

    event: Literal["propose"]
    number: int
    params: dict[str, Scalar]


class ReportLine(TypedDict):
    """A line of the ledger: a report of a trial."""

    event: Literal["report"]
    number: int
    index: int
    values: list[float]
    """The objectives, in the order of the sweep file."""
    checkpoint: NotRequired[str]
    """Absent where the report was only found in the study."""


class NoteLine(TypedDict):
    """A line of the ledger: attributes that a listener gave a trial."""

    event: Literal["note"]
    number: int
    attributes: dict[str, Scalar]


class EndLine(TypedDict):
    """A line of the ledger: a trial ended. `end_of` reads how."""

    event: Literal["end"]
    number: int
    state: str
    """Optuna's word: COMPLETE, PRUNED or FAIL."""
    values: list[float] | None
    kind: NotRequired[str]
    error_type: NotRequired[str]
    reason: NotRequired[str]


class GiveUpLine(TypedDict):
    """A line of the ledger: the sweep ended for the failures of these trials."""

    event: Literal["give_up"]
    number: int
    trials: list[int]


LedgerLine = ProposeLine | ReportLine | NoteLine | EndLine | GiveUpLine


def end_of(record: Mapping[str, object]) -> TrialEnd:
    """The end in a record on disk: a line of the ledger, `outcome.json`, or a study's attributes.

    Without a `kind` the trial was stopped, or finished if its `state` says so.
    """
    text = str(record.get("reason") or "")
    kind = record.get("kind")
    if kind in get_args(EndKind):
        return TrialEnd(cast("EndKind", kind), str(record.get("error_type", "")), text)
    state = str(record.get("state", "")).lower()
    return TrialEnd("finished" if state in ("complete", "finished") else "stopped", text=text)
