"""Runs one trial: for a rank of a worker group, and for a trainable registered with Tune."""

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from babeltune.data.prepared import Prepared, read_prepared
from babeltune.errors import NodeError, StorageError, StoreError, storage_refusals
from babeltune.method.distributed import ProcessGroup
from babeltune.schema.records import trial_from
from babeltune.sweep.state.fencing import FolderFence
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.training.trainer import Reporter, train


@functools.lru_cache(maxsize=2)
def _prepared(path: str, changed: int) -> Prepared:
    return read_prepared(Path(path))


def load_prepared(path: Path) -> Prepared:
    """The record at `path`, kept in memory by a warm worker until the file changes."""
    return _prepared(str(path), path.stat().st_mtime_ns)


def _on_this_node(
    assignment: TrialAssignment, reporter: Reporter, rank: int, world: int, device: str
) -> AbstractContextManager[tuple[TrialAssignment, Reporter]]:
    if assignment.mirror is None:
        _refuse_blind_node(assignment.prepared, assignment.folder)
        return nullcontext((assignment, reporter))
    from babeltune.sweep.sync.worker import on_this_node  # what it imports, training does not need

    return on_this_node(assignment, reporter, rank, world, device)


def _refuse_blind_node(prepared: str, folder: str) -> None:
    """Raises `NodeError` if the storage is not here as on the driver's node. Without a driver, the folder is made."""
    todo = "mount the sweep's storage there, as on the driver"
    if not os.access(prepared, os.R_OK):
        raise NodeError(f"does not see {prepared}; {todo}")
    if Path(folder).exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise NodeError(f"may not write {folder}; {todo}")


@contextmanager
def _store_troubles() -> Iterator[None]:
    """Makes a damaged store a storage error, not a trial failure. The next submission builds the store again."""
    try:
        yield
    except StoreError as error:
        raise StorageError(f"the storage has a store that was altered: {error}") from error


def run(assignment: TrialAssignment, reporter: Reporter, rank: int, world: int, device: str) -> None:
    """Trains the trial of an assignment on this rank. Raises `NodeError` if this node has no access to its files."""
    with _on_this_node(assignment, reporter, rank, world, device) as (assignment, reporter):
        trial, folder = trial_from(assignment.trial), Path(assignment.folder)
        shared = assignment.token and assignment.mirror is None
        guard = FolderFence(folder.parents[1], assignment.token) if shared else nullcontext
        with storage_refusals(folder, assignment.storage), _store_troubles():
            prepared = load_prepared(Path(assignment.prepared))
            train(trial, prepared, folder, reporter, ProcessGroup(), torch.device(device), guard)
