"""Deletes a sweep for good: what goes, what stays, and what forbids it.

MLflow's runs go first, recoverably. Then the sweep's folder goes in one step, or its objects in a bucket, `sweep.json`
last. So a command that was killed is finished by the same command."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from babeltune.errors import DamagedError, SweepError, plural
from babeltune.files import remove_folder
from babeltune.promotion.decisions import read_decisions
from babeltune.storage.packages import MANIFESTS, together
from babeltune.sweep.search.warm_start import TAKEN_OVER_FILE
from babeltune.sweep.state.folder import SweepFolder, sweep_folders
from babeltune.sweep.sync.audit import audit
from babeltune.sweep.sync.quota import keep_hours
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.sweep_runs import delete_runs

CHECKPOINT = re.compile(r"(sweeps/[^/]+/trials/[^/]+/checkpoints/[^./][^/]*)/.+")
"""A file of a checkpoint: the checkpoint's key."""


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """The files and runs that go with a sweep."""

    sweep: str
    trials: int
    checkpoints: int
    bytes: int
    stays: tuple[str, ...]
    """Everything that stays, in words."""
    mlflow_runs: int = 0
    """Runs that MLflow has marked as deleted."""


def deletion_of(view: StorageView, folder: SweepFolder) -> Deletion:
    """Everything that would go. Raises `SweepError` for a sweep that a driver may have, or that others need."""
    if dependants := "; ".join(_needs(view, folder)):
        todo = f"`babeltune archive {folder.id}` takes it out of the lists"
        raise SweepError(f"sweep {folder.id} stays: {dependants}; {todo}")
    entries = view.storage.entries(f"sweeps/{folder.id}")
    models = view.storage.entries(f"models/{folder.id}")
    stays = [
        "stores that only it read, until `babeltune clean`",
        "its lines in the audit and its openings of sealed tests",
        *([f"{plural(len(models), 'file')} of exported models in models/{folder.id}"] if models else []),
    ]
    return Deletion(
        sweep=folder.id,
        trials=len(folder.trials()),
        checkpoints=len({match[1] for key in entries if (match := CHECKPOINT.fullmatch(key))}),
        bytes=sum(entry.size for entry in entries.values()),
        stays=tuple(stays),
    )


def _needs(view: StorageView, folder: SweepFolder) -> Iterator[str]:
    """Who needs the sweep, in words."""
    with view.storage.at_rest(folder.id) as rests:
        if not rests:
            yield f"it runs, and `babeltune stop {folder.id}` ends that"
    decisions, damaged = read_decisions(folder)
    registered = [record.decision.registered for record in decisions if record.decision.registered]
    if registered:
        yield f"{registered[-1]} was decided by its scores"
    if damaged:
        yield f"it is not known what {damaged[0]} promoted"
    for other in sweep_folders(view.folder):
        if other.id != folder.id and _starts_from(other, folder.id):
            yield f"sweep {other.id} starts from it and has not taken its trials over yet"


def _starts_from(other: SweepFolder, sweep: str) -> bool:
    """Whether the other sweep will read this one's trials. One whose spec is damaged will not go on."""
    if (other.path / TAKEN_OVER_FILE).exists():
        return False
    try:
        name = other.sweep().sampler.warm_start
    except DamagedError:
        return False
    return name is not None and (sweep == name or sweep.startswith(f"{name}-"))


def delete(view: StorageView, folder: SweepFolder) -> int:
    """Deletes the sweep: how many runs MLflow marked as deleted. The caller has asked `deletion_of`.

    Raises `SweepError` if a driver began meanwhile, or the storage refuses."""
    with view.storage.at_rest(folder.id) as rests:
        if not rests:
            raise SweepError(f"sweep {folder.id} runs by now; `babeltune stop {folder.id}` ends that")
        runs = delete_runs(view.cluster.mlflow, folder.sweep().name, folder.id)
        audit(view, "delete", folder.id)
        try:
            keep_hours(view, folder)
            if (mirror := view.mirror) is not None:
                key, last = f"sweeps/{folder.id}", f"sweeps/{folder.id}/sweep.json"
                together(mirror.store.remove, [each for each in view.storage.entries(key) if each != last])
                mirror.store.remove(last)
                mirror.forget(key)
                shutil.rmtree(mirror.folder / MANIFESTS / key, ignore_errors=True)
            remove_folder(folder.path, view.folder)
        except OSError as error:
            raise SweepError(f"{folder.path} cannot be removed ({error.strerror}); its owner can") from error
    return runs
