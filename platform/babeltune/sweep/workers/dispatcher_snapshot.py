"""The dispatcher's state as JSON, and its changes made again: what its journal holds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TypedDict

from babeltune.files import plain
from babeltune.schema.base import record_from
from babeltune.sweep.state.messages import TrialEnd
from babeltune.sweep.workers.dispatcher_state import Attempt, DispatcherState, News, TrialRecord

CHANGES = (
    *("offer", "go_on", "stop", "renew", "retire", "let_go", "close", "refuse", "add_message", "join", "assign"),
    *("report", "rank_left", "settle", "stalled", "acknowledge"),
)
"""The methods that a journal holds and replays."""


class _AttemptJson(TypedDict):
    """A plain `Attempt`."""

    ends: dict[str, dict[str, object]]
    go_on: bool | None


class RecordJson(TypedDict):
    """The records within a plain `TrialRecord`."""

    attempt: _AttemptJson
    end: dict[str, object] | None
    trouble: dict[str, object] | None


class _NewsJson(TypedDict):
    """The record within plain `News`."""

    end: dict[str, object] | None


class StateJson(TypedDict):
    """What `DispatcherState.snapshot` makes of what JSON cannot hold as it is."""

    trials: dict[str, RecordJson]
    pending: list[str]
    ended: list[str]
    renewed: list[str]
    retired: list[str]
    replaced: list[str]
    broken: dict[str, tuple[str, str]]
    news: list[_NewsJson]


def snapshot(state: DispatcherState) -> dict[str, object]:
    """The state as JSON can hold it."""
    values = {name: plain(value) for name, value in vars(state).items() if name != "trials"}
    trials = {name: {**plain(record), "heartbeat": None} for name, record in state.trials.items()}
    lists = {name: list(getattr(state, name)) for name in ("pending", "ended", "renewed", "retired", "replaced")}
    return {**values, **lists, "news": [plain(each) for each in state.news], "trials": trials}


def restore(values: StateJson) -> DispatcherState:
    """The state that `snapshot` wrote."""
    trials = {name: _record(kept) for name, kept in values["trials"].items()}
    state = record_from(DispatcherState, {**values, "trials": trials})
    state.pending, state.ended = deque(values["pending"]), deque(values["ended"])
    state.renewed, state.retired = set(values["renewed"]), set(values["retired"])
    state.replaced = set(values["replaced"])
    state.broken = {name: (reason, node) for name, (reason, node) in values["broken"].items()}
    state.news = deque(record_from(News, {**each, "end": _end(each["end"])}) for each in values["news"])
    return state


def replay(state: DispatcherState, change: list[object]) -> None:
    """Makes a journaled change again."""
    name, *arguments = change
    if not isinstance(name, str) or name not in CHANGES:
        raise ValueError(f"no change {name!r}")
    getattr(state, name)(*arguments)


def _end(values: Mapping[str, object] | None) -> TrialEnd | None:
    return None if values is None else record_from(TrialEnd, values)


def _record(values: RecordJson) -> TrialRecord:
    """The record that a snapshot holds. JSON has text for each rank's number."""
    kept = values["attempt"]
    attempt = Attempt({int(rank): record_from(TrialEnd, end) for rank, end in kept["ends"].items()}, kept["go_on"])
    ends = {"trouble": _end(values["trouble"]), "end": _end(values["end"])}
    return record_from(TrialRecord, {**values, **ends, "attempt": attempt, "heartbeat": math.inf})
