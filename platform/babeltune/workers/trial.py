"""One trial, joined: what a lane's worker and a trainable registered with Tune run."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import NodeError, StorageError, StoreError, storage_refusals
from babeltune.losses.gather import Ranks
from babeltune.records import trial_from
from babeltune.training.loop import Reporter, train


@functools.lru_cache(maxsize=2)
def _prepared(path: str, changed: int) -> Prepared:
    return read_prepared(Path(path))


def load_prepared(path: Path) -> Prepared:
    """The record at `path`, kept in memory by a warm worker until the file changes."""
    return _prepared(str(path), path.stat().st_mtime_ns)


def _on_this_node(
    payload: dict[str, Any], reporter: Reporter, rank: int, world: int, device: str
) -> AbstractContextManager[tuple[dict[str, Any], Reporter]]:
    if "mirror" not in payload:
        _refuse_blind_node(payload["prepared"], payload["folder"])
        return nullcontext((payload, reporter))
    from babeltune.sweeps.carry import on_this_node  # what it imports, training does not need

    return on_this_node(payload, reporter, rank, world, device)


def _refuse_blind_node(prepared: str, folder: str) -> None:
    """Raises `NodeError` where the storage is not here as it is on the driver's node; a trial without a driver makes
    its own folder."""
    todo = "mount the sweep's storage there, as on the driver"
    if not os.access(prepared, os.R_OK):
        raise NodeError(f"does not see {prepared}; {todo}")
    if Path(folder).exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise NodeError(f"may not write {folder}; {todo}")


@contextmanager
def _store_troubles() -> Iterator[None]:
    """A store that was altered is no fact about the trial that meets it: the next submission builds it again."""
    try:
        yield
    except StoreError as error:
        raise StorageError(f"{StorageError.begins}has a store that was altered: {error}") from error


def run(payload: dict[str, Any], reporter: Reporter, rank: int, world: int, device: str) -> None:
    """Trains the trial of a lane's assignment on this rank. The payload has `trial`, `prepared` and `folder`, the
    `storage` in which they are, and where that is behind a URI its `mirror`. Raises `NodeError` where this node has no
    access to them."""
    with _on_this_node(payload, reporter, rank, world, device) as (payload, reporter):
        trial, folder = trial_from(payload["trial"]), Path(payload["folder"])
        with storage_refusals(folder, payload.get("storage")), _store_troubles():
            train(trial, load_prepared(Path(payload["prepared"])), folder, reporter, Ranks(), torch.device(device))


@dataclass
class Handover:
    """Hands reports to another thread and waits there for each verdict."""

    reports: queue.Queue[dict[str, Any] | BaseException | None]
    verdicts: queue.Queue[bool]
    closed: threading.Event

    def report(self, report: dict[str, Any]) -> bool:
        self.reports.put(report)
        return self.verdicts.get()

    def stopped(self) -> bool:
        return self.closed.is_set()


def standalone(payload: dict[str, Any], device: str = "cpu") -> Iterator[dict[str, Any]]:
    """The reports of a trial trained in this process, one at a time; closing the iterator stops the training."""
    handover = Handover(queue.Queue(), queue.Queue(), threading.Event())

    def work() -> None:
        try:
            run(payload, handover, 0, 1, device)
            handover.reports.put(None)
        except BaseException as error:
            handover.reports.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (report := handover.reports.get()) is not None:
            if isinstance(report, BaseException):
                raise report
            yield report
            handover.verdicts.put(True)
    finally:
        handover.closed.set()
        handover.verdicts.put(False)
        thread.join()
