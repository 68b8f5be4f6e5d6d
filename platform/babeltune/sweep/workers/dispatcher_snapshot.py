"""The dispatcher's state as JSON, and its changes made again: what its journal holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from babeltune.schema.mending import adapter_of
from babeltune.sweep.workers.dispatcher_state import DispatcherState

CHANGES = (
    *("offer", "go_on", "stop", "renew", "retire", "let_go", "close", "refuse", "add_message", "join", "assign"),
    *("report", "rank_left", "settle", "stalled", "acknowledge"),
)
"""The methods that a journal holds and replays."""


def snapshot(state: DispatcherState) -> dict[str, object]:
    """The state as JSON can hold it. Heartbeats are left out: they are of this process's clock."""
    beats = {"trials": {"__all__": {"heartbeat"}}}
    return cast("dict[str, object]", adapter_of(DispatcherState).dump_python(state, mode="json", exclude=beats))


def restore(values: Mapping[str, object]) -> DispatcherState:
    """The state that `snapshot` wrote. Raises `ValueError` for what is none."""
    return cast(DispatcherState, adapter_of(DispatcherState).validate_python(values))


def replay(state: DispatcherState, change: list[object]) -> None:
    """Makes a journaled change again."""
    name, *arguments = change
    if not isinstance(name, str) or name not in CHANGES:
        raise ValueError(f"no change {name!r}")
    getattr(state, name)(*arguments)
