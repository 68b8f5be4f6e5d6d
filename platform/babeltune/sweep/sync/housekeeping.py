"""What a bucket and this machine's mirror of it can do without.

It is the same as in a folder (`state/housekeeping.py`): stores that no sweep reads, optimizers of ended trials, and if
asked, checkpoints of trials that are not among the best. A mirror can also do without what the bucket has: a node
brings it again when it needs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import ObjectStoreError, SweepError
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import PULLING
from babeltune.sweep.state.folder import ENDED, SweepFolder, sweep_folders
from babeltune.sweep.state.housekeeping import (
    OPTIMIZER,
    SENT,
    SPOOL,
    STORE_NAME,
    Removal,
    best_trials,
    note_removed,
    removals,
    scratch,
    shorten_spool,
    spool_savings,
    stores_read,
)
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import is_driven
from babeltune.sweep.sync.checkpoint_names import latest_names, names_in
from babeltune.sweep.sync.view import StorageView
from babeltune.training.checkpoint import MANIFEST

SUPERSEDED = "superseded"
"""In a mirror, the folder of sweeps that another machine went on with."""
SEALS = ".seals"
"""In a mirror, the folder of what is known of each package. A note is as old as the last use of its package."""


@dataclass(frozen=True)
class BucketRemoval:
    """A package in a bucket that can go, the optimizer in one, or what MLflow has taken of a spool."""

    mirror: Mirror
    key: str
    reason: str
    size: int
    """Bytes."""
    rule: str = ""
    """For a checkpoint that can no longer be promoted: what asked for its removal."""

    @property
    def path(self) -> Path:
        """Where it is in a mirror."""
        return self.mirror.path(self.key)

    def carry_out(self) -> None:
        """Removes it. A reader sees the package as it was, or no more."""
        if self.rule:
            trial = self.path.parents[1]
            note_removed(trial, self.rule)
            for record in trial.glob("removed.json"):
                self.mirror.push(record)
        package, _, name = self.key.rpartition("/")
        if name == OPTIMIZER:
            strip_optimizer(self.mirror, package)
        elif name == SPOOL:
            shorten_spool(self.path)
            for path in sorted(self.path.parent.glob(f"{SPOOL}*"), reverse=True):  # how much was sent, then what
                self.mirror.push(path)
        else:
            self.mirror.drop_packages([self.key], self.mirror.store.entries(self.key))


def drop_checkpoints(mirror: Mirror, trial: str) -> None:
    """Removes all checkpoints of an ended trial, by its key, from the bucket. Raises what the mirror's fence raises."""
    _check(mirror)
    prefix = f"{trial}/checkpoints"
    there = mirror.store.entries(prefix)
    mirror.drop_packages([f"{prefix}/{name}" for name in names_in(prefix, there)], there)


def drop_optimizers(mirror: Mirror, trial: str) -> None:
    """Removes the optimizer from all checkpoints of an ended trial in the bucket."""
    _check(mirror)
    prefix = f"{trial}/checkpoints"
    there = mirror.store.entries(prefix)
    for name in names_in(prefix, there):
        if f"{prefix}/{name}/{OPTIMIZER}" in there:
            strip_optimizer(mirror, f"{prefix}/{name}")


def drop_all(mirror: Mirror, sweep: str, removed: Collection[str], stripped: Collection[str]) -> None:
    """Removes all checkpoints of some ended trials of a sweep from the bucket, and the optimizers of others. It lists
    the sweep once, however many trials there are."""
    _check(mirror)
    prefix = f"{sweep}/trials"
    there = mirror.store.entries(prefix)
    doomed, optimizers = set[str](), set[str]()
    for key in there:
        trial, kind, name, *rest = (*key.removeprefix(f"{prefix}/").split("/"), "", "")[:4]
        if kind != "checkpoints" or not name:
            continue
        if trial in removed:
            doomed.add(f"{prefix}/{trial}/{kind}/{name}")
        elif trial in stripped and rest == [OPTIMIZER]:
            optimizers.add(f"{prefix}/{trial}/{kind}/{name}")
    mirror.drop_packages(sorted(doomed), there)
    for package in sorted(optimizers):
        strip_optimizer(mirror, package)


def strip_optimizer(mirror: Mirror, package: str) -> None:
    """Removes the optimizer from a checkpoint in the bucket. Its own manifest forgets it, so that it stays whole."""
    with suppress(ValueError, KeyError, TypeError):  # a damaged one stays as it is
        manifest = json.loads(mirror.store.read(f"{package}/{MANIFEST}") or b"")
        manifest["files"].pop(OPTIMIZER, None)
        mirror.drop_from_package(package, OPTIMIZER, {MANIFEST: json.dumps(manifest).encode()})


def _check(mirror: Mirror) -> None:
    if mirror.fence is not None:
        mirror.fence.check()


# For `babeltune clean`


def bucket_removals(view: StorageView, *, older_s: float, top: int | None = None) -> Iterator[BucketRemoval]:
    """What can go from the bucket; everything of a sweep that runs anywhere stays."""
    mirror = view.mirror
    assert mirror is not None
    view.update(every=True)
    folders = [view.at(folder.id) for folder in sweep_folders(view.folder)]
    driven = {folder.id for folder in folders if is_driven(folder)}
    before = time.time() - older_s
    if not any(not folder.prepared.exists() for folder in folders if folder.id in driven):
        yield from _unread_stores(mirror, folders, before)
    for folder in folders:
        if folder.id not in driven:
            yield from _of_sweep(mirror, folder, before, top)


def _packages(there: Mapping[str, Entry], depth: int) -> dict[str, list[Entry]]:
    """The objects of a listing by the folder at this depth of their keys."""
    found: dict[str, list[Entry]] = {}
    for key, entry in there.items():
        found.setdefault("/".join(key.split("/")[:depth]), []).append(entry)
    return found


def _unread_stores(mirror: Mirror, folders: list[SweepFolder], before: float) -> Iterator[BucketRemoval]:
    there = mirror.store.entries("stores")
    packages = _packages(there, 2)
    names = {key.partition("/")[2]: key for key in packages}

    def documents(name: str) -> Iterator[str]:
        for key in there:
            if key.startswith(f"{names[name]}/") and key.endswith(".json"):
                yield (mirror.store.read(key) or b"").decode(errors="replace")

    read = stores_read(folders, names, documents)
    for name, key in sorted(names.items()):
        entries = packages[key]
        if name not in read and STORE_NAME.fullmatch(name) and max(each.modified for each in entries) < before:
            yield BucketRemoval(mirror, key, "no sweep reads this store", sum(each.size for each in entries))


def _of_sweep(mirror: Mirror, folder: SweepFolder, before: float, top: int | None) -> Iterator[BucketRemoval]:
    spool = folder.path / SPOOL
    if (freed := spool_savings(spool)) and spool.stat().st_mtime < before:
        yield BucketRemoval(mirror, mirror.key(spool), SENT, freed)
    try:
        rows = {row.name: row for row in leaderboard(folder)}
    except SweepError:  # a damaged sweep keeps what it has
        return
    best = best_trials(list(rows.values()), top)
    there = mirror.store.entries(f"sweeps/{folder.id}/trials")
    trials: dict[str, dict[str, Entry]] = {}
    for key, entry in there.items():
        if key.split("/")[4:5] == ["checkpoints"]:
            trials.setdefault(key.split("/")[3], {})[key] = entry
    for name, objects in sorted(trials.items()):
        rule = "" if name in best else f"clean --top {top}"
        yield from _of_trial(mirror, f"sweeps/{folder.id}/trials/{name}", objects, rows.get(name), before, rule)


def _of_trial(
    mirror: Mirror, key: str, there: Mapping[str, Entry], row: Row | None, before: float, rule: str
) -> Iterator[BucketRemoval]:
    prefix = f"{key}/checkpoints"
    latest = set(latest_names(prefix, there, 0).values())
    for name in sorted(names_in(prefix, there)):
        package = f"{prefix}/{name}"
        entries = {at: each for at, each in there.items() if at.startswith(f"{package}/")}
        size = sum(each.size for each in entries.values())
        if name not in latest:
            if max(each.modified for each in entries.values()) < before:
                yield BucketRemoval(mirror, package, "a checkpoint that a later driver has replaced", size)
        elif row is None or row.state not in ENDED:
            continue
        elif rule:
            yield BucketRemoval(mirror, package, "a checkpoint of a trial that is not among the best", size, rule)
        elif (optimizer := f"{package}/{OPTIMIZER}") in entries:
            yield BucketRemoval(mirror, optimizer, "the optimizer of a trial that has ended", entries[optimizer].size)


def _scratch(view: StorageView, before: float) -> Iterator[Removal]:
    """What sweeps that run nowhere, and copies from the bucket that were cut off, left on this machine."""
    for folder in sweep_folders(view.folder):
        if not is_driven(folder):
            yield from scratch(folder, before)
    for draft in sorted((view.folder / PULLING).glob("*")):
        if draft.stat().st_mtime < before:
            yield Removal(draft, "a copy from the bucket that was cut off", _size(draft))


def mirror_removals(mirror: Mirror, *, older_s: float) -> Iterator[Removal]:
    """What this machine's mirror holds, has not used for so many seconds, and can bring again from the bucket.

    Sweeps that another machine went on with are there, too: the bucket has the newer state.
    """
    before = time.time() - older_s
    for aside in sorted((mirror.folder / SUPERSEDED).glob("*")):
        if aside.stat().st_mtime < before:
            yield Removal(aside, "a sweep that another machine went on with", _size(aside))
    notes = mirror.folder / SEALS
    driven = {folder.id for folder in sweep_folders(mirror.folder) if is_driven(folder)}
    for note in sorted(notes.rglob("*.json")) if notes.is_dir() else ():
        key = note.relative_to(notes).as_posix().removesuffix(".json")
        folder, parts = mirror.folder / key, key.split("/")
        if not folder.is_dir() or note.stat().st_mtime > before or (parts[0] == "sweeps" and parts[1] in driven):
            continue
        if _in_bucket(mirror, folder, key):
            yield Removal(folder, "a copy that the bucket has and nothing here has used", _size(folder))


def _in_bucket(mirror: Mirror, folder: Path, key: str) -> bool:
    """Whether the bucket has the package as it is here, under this key or with a driver's token behind it."""
    parent, _, name = key.rpartition("/")
    there = mirror.store.entries(parent if parent.endswith("/checkpoints") else key)
    names = names_in(parent, there) if parent.endswith("/checkpoints") else {name}
    same = [each for each in names if each.partition("-")[0] == name or each == name]
    return any(mirror.has_package(folder, f"{parent}/{each}", there) for each in same)


def everything(view: StorageView, *, older_s: float, top: int | None = None) -> list[BucketRemoval | Removal]:
    """What can go from the storage, and from this machine's mirror of it."""
    if view.mirror is None:
        return list(removals(view.folder, older_s=older_s, top=top))
    return [
        *bucket_removals(view, older_s=older_s, top=top),
        *_scratch(view, time.time() - older_s),
        *mirror_removals(view.mirror, older_s=older_s),
    ]


def clean(view: StorageView, *, older_s: float) -> tuple[int, int]:
    """Removes what can go: how many files and folders, and their bytes. What a storage refuses stays."""
    done = [removal.size for removal in everything(view, older_s=older_s) if _carried_out(removal)]
    return len(done), sum(done)


def _carried_out(removal: BucketRemoval | Removal) -> bool:
    with suppress(OSError, ObjectStoreError):
        removal.carry_out()
        return True
    return False


def evict(mirror: Mirror, *, older_s: float) -> int:
    """Removes what the mirror of this machine can do without; the bytes that are free now."""
    freed = 0
    for removal in list(mirror_removals(mirror, older_s=older_s)):
        with mirror.in_turn(mirror.key(removal.path)):
            freed += removal.size if _carried_out(removal) else 0
    return freed


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
