"""Files that a storage can do without: stores that no sweep reads, optimizer states of ended trials, left-over files.

`babeltune clean` lists it and removes it. Nothing that a sweep reads is removed, and nothing of a sweep that a driver
may have. The lease decides that (`stored.py`): when it is listed, and again right before it goes. A store is made again
when a sweep asks for it. An ended trial never trains on, so its optimizer is of no more use.

One rule serves folders and buckets. It sees a storage as a listing of objects."""

import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from babeltune.errors import DamagedError, SweepError
from babeltune.files import write_json, writer_of
from babeltune.machine import lives
from babeltune.schema.storage_location import DAY_S
from babeltune.schema.trial_names import TRIAL
from babeltune.storage.object_store import Entry
from babeltune.sweep.state.folder import SweepFolder, sweep_folders
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.messages import ENDED
from babeltune.sweep.state.stored import FolderStorage, Storage, may_be_driven, may_prepare
from babeltune.training.checkpoint import MANIFEST

OPTIMIZER = "optimizer.safetensors"  # the file of a checkpoint that only further training reads
SCRATCH = ("train", "tune")  # folders in which Ray keeps its own state of a sweep. A resumed sweep never reads them.
REMOVED = "removed.json"  # in a trial's folder: why its checkpoints were removed
STORE_NAME = re.compile(r"[a-z_]+-[0-9a-f]{16}")
"""The name of a store: what it is, and the digest of what it was made from."""
MayGo = Callable[[], AbstractContextManager[bool]]
"""Asks again whether something may go. Within the block the answer holds."""


def always() -> AbstractContextManager[bool]:
    """Permission for files that nobody else can use."""
    return nullcontext(True)


@dataclass(frozen=True)
class Removal:
    """A file or folder that can go."""

    path: Path
    reason: str
    size: int  # bytes
    rule: str = ""  # for a checkpoint that can no longer be promoted: what asked for its removal
    may_go: MayGo = field(default=always, compare=False, repr=False)

    def carry_out(self) -> bool:
        """Removes it, unless it is in use by now. Returns whether it went."""
        with self.may_go() as may:
            if may:
                self.remove()
            return may

    def remove(self) -> None:
        """First a manifest forgets the file. Raises `DamagedError`, and removes nothing, if that is damaged."""
        if self.rule:
            note_removed(self.path.parents[1], self.rule)
        manifest = self.path.parent / MANIFEST
        if self.path.name == OPTIMIZER and manifest.exists():
            try:
                recorded = json.loads(manifest.read_text(encoding="utf-8"))
                recorded["files"].pop(OPTIMIZER, None)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DamagedError(f"{manifest} is damaged, so {OPTIMIZER} stays beside it") from None
            write_json(manifest, recorded)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()


def note_removed(trial: Path, rule: str) -> None:
    """Writes down, before it happens, that a trial's checkpoints go and what asked for it."""
    if why_removed(trial) is None:
        write_json(trial / REMOVED, {"rule": rule, "time": time.time()})


def why_removed(trial: Path) -> str | None:
    """The rule that asked for the removal of the trial's checkpoints; None if nothing did."""
    try:
        return str(json.loads((trial / REMOVED).read_text(encoding="utf-8"))["rule"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def best_trials(rows: Sequence[Row], top: int | None) -> set[str]:
    """The names of the best trials in a leaderboard, finished ones first, as promotion does; all if `top` is None."""
    ranked = sorted([row for row in rows if TRIAL.fullmatch(row.name)], key=lambda row: row.state != "finished")
    return {row.name for row in ranked[:top]}


def removals(storage: Path, *, older_s: float, top: int | None = None) -> Iterator[Removal]:
    """Removals from the storage, a folder.

    Stores and drafts stay if they changed in the last `older_s` seconds. If `top` is given, checkpoints of ended trials
    stay for the best `top` trials of each sweep only, by its first objective."""
    place, before = FolderStorage(storage), time.time() - older_s
    yield from unneeded(place, before, top)
    yield from scratch(place, before)
    yield from left_drafts(storage, before)


# The rule, over the objects of a storage

Package = Mapping[str, Entry]  # the objects below a key


def packages(package: Package, depth: int) -> Mapping[str, Package]:
    """The objects of a listing by the folder at this depth of their keys."""
    by_package: dict[str, dict[str, Entry]] = {}
    for at, entry in sorted(package.items()):
        if len(parts := at.split("/")) >= depth:
            by_package.setdefault("/".join(parts[:depth]), {})[at] = entry
    return by_package


def unneeded(
    storage: Storage, before: float, top: int | None, replaced: Callable[[Package], set[str]] = lambda _: set()
) -> Iterator[Removal]:
    """The files of the rule that did not change since `before`. `replaced` gives keys of superseded checkpoints."""
    yield from _unread_stores(storage, before)
    for sweep in storage.sweeps():
        if not may_be_driven(storage, sweep):
            yield from _of_sweep(storage, sweep, before, top, replaced)


def _unread_stores(storage: Storage, before: float) -> Iterator[Removal]:
    stores = packages(storage.entries("stores"), 2)
    names = {key.partition("/")[2]: key for key in stores}

    @cache
    def documents(name: str) -> list[str]:
        return [text(storage, at) for at in stores[names[name]] if at.endswith(".json")]

    def in_use() -> Collection[str]:
        """Stores that must stay: all, while a sweep is prepared that may use one, or if a sweep cannot be read."""
        with suppress(OSError):  # another user's sweep may not be read
            sweeps = storage.sweeps()
            if not any(may_prepare(storage, sweep) for sweep in sweeps):
                return stores_read(storage, sweeps, names, documents)
        return names

    def may_go(name: str) -> AbstractContextManager[bool]:
        return nullcontext(name not in in_use())

    used = in_use()
    for name, key in names.items():
        draft = name.startswith(".") and not name.endswith(".lock") and writer_of(Path(name)) is None
        if name not in used and (draft or STORE_NAME.fullmatch(name)) and _changed(stores[key]) < before:
            reason = "the draft of a store" if draft else "no sweep reads this store"
            yield Removal(storage.folder / key, reason, _size(stores[key]), may_go=partial(may_go, name))


def stores_read(
    storage: Storage, sweeps: Iterable[str], stores: Collection[str], documents: Callable[[str], Iterable[str]]
) -> set[str]:
    """The stores that the sweeps read, directly or through another one. `documents` gives a store's JSON files."""
    read = set[str]()
    waiting = [text(storage, at) for sweep in sweeps for at in _prepared_of(storage, sweep)]
    while waiting:
        names = set(STORE_NAME.findall(waiting.pop())) & set(stores) - read
        read |= names
        waiting += [each for name in names for each in documents(name)]
    return read


def _prepared_of(storage: Storage, sweep: str) -> list[str]:
    """The keys of what says which stores the sweep reads, now and before changes that were accepted."""
    key = f"sweeps/{sweep}"
    earlier = [at for at in storage.entries(f"{key}/conditions") if at.endswith("/prepared.json")]
    return [f"{key}/prepared.json", *earlier]


def _of_sweep(
    storage: Storage, sweep: str, before: float, top: int | None, replaced: Callable[[Package], set[str]]
) -> Iterator[Removal]:
    folder, may_go = SweepFolder(storage.folder / "sweeps" / sweep), partial(storage.at_rest, sweep)
    try:
        rows = {row.name: row for row in leaderboard(folder)}
    except SweepError:  # a damaged sweep keeps what it has
        return
    best = best_trials(list(rows.values()), top)
    entries = storage.entries(f"sweeps/{sweep}/trials")
    superseded = replaced(entries)
    for key, package in packages(entries, 6).items():
        trial, kind, name = key.split("/")[3:]
        row, path, size = rows.get(trial), storage.folder / key, _size(package)
        if kind != "checkpoints" or name.startswith("."):
            continue
        if key in superseded:
            if _changed(package) < before:
                yield Removal(path, "a checkpoint that a later driver has replaced", size, may_go=may_go)
        elif row is None or row.state not in ENDED:
            continue
        elif trial not in best:
            reason = "a checkpoint of a trial that is not among the best"
            yield Removal(path, reason, size, f"clean --top {top}", may_go)
        elif (optimizer := f"{key}/{OPTIMIZER}") in package:
            reason = "the optimizer of a trial that has ended"
            yield Removal(path / OPTIMIZER, reason, package[optimizer].size, may_go=may_go)


# What processes left on this machine


def left_drafts(storage: Path, before: float) -> Iterator[Removal]:
    """Drafts whose process is gone; those of other machines that have not changed for a day, nor since `before`."""
    for draft in _drafts_in(storage):
        yield from _if_left(draft, before)


def left_temporary(before: float) -> Iterator[Removal]:
    """The same among this user's temporary files."""
    place = Path(tempfile.gettempdir())
    for draft in place.glob(".babeltune-*"):
        with suppress(FileNotFoundError):
            if draft.stat().st_uid == os.getuid():
                yield from _if_left(draft, before)


def _if_left(draft: Path, before: float) -> Iterator[Removal]:
    writer = lives(writer_of(draft) or "")
    if writer is False or (writer is None and _last_change(draft) < min(before, time.time() - DAY_S)):
        yield Removal(draft, "the draft of a command that is gone", size_of(draft))


def _drafts_in(storage: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(storage):
        here = Path(place)
        for name in [*folders, *files]:
            if writer_of(here / name):
                yield here / name
        folders[:] = [name for name in folders if not writer_of(here / name)]


def _last_change(path: Path) -> float:
    """When the draft changed last; never for one that went meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime if path.is_file() else _changed(FolderStorage(path.parent).entries(path.name))
    return math.inf


def scratch(storage: Storage, before: float) -> Iterator[Removal]:
    """Files that the processes of resting sweeps left on this machine: Ray's own state, drafts."""
    for folder in sweep_folders(storage.folder):
        if not may_be_driven(storage, folder.id):
            for path, reason in _scratch_of(folder, before):
                yield Removal(path, reason, size_of(path), may_go=partial(storage.at_rest, folder.id))


def _scratch_of(folder: SweepFolder, before: float) -> Iterator[tuple[Path, str]]:
    for name in SCRATCH:
        if (path := folder.path / name).is_dir():
            yield path, "Ray's own state of a sweep that does not run"
    for draft in sorted(folder.path.glob("trials/*/checkpoints/.*")):
        if writer_of(draft) is None and _last_change(draft) < before:
            yield draft, "the draft of a checkpoint"


def text(storage: Storage, key: str) -> str:
    """The text of an object; empty if it is not there."""
    object_read = storage.look(key)
    return object_read[0].decode(errors="replace") if object_read else ""


def _size(package: Package) -> int:
    return sum(each.size for each in package.values())


def _changed(package: Package) -> float:
    """When the last of the objects changed; never if there are none."""
    return max((each.modified for each in package.values()), default=math.inf)


def size_of(path: Path) -> int:
    """Bytes of a file or folder."""
    with suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else _size(FolderStorage(path.parent).entries(path.name))
    return 0
