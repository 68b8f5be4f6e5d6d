"""What a storage can do without: stores that no sweep reads, optimizer states of ended trials, left-over files.

`babeltune clean` lists it and removes it. Nothing that a sweep reads is removed, and nothing of a sweep that runs. A
store is made again when a sweep asks for it. An ended trial never trains on, so its optimizer is of no more use.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import SweepError
from babeltune.files import write_json
from babeltune.sweep.state.folder import ENDED, SweepFolder, sweep_folders
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import is_driven
from babeltune.training.checkpoint import MANIFEST

OPTIMIZER = "optimizer.safetensors"
"""The file of a checkpoint that only further training reads."""
SCRATCH = ("train", "tune")
"""Folders in which Ray keeps its own state of a sweep. A resumed sweep never reads them."""
STORE_NAME = re.compile(r"[a-z_]+-[0-9a-f]{16}")
"""The name of a store: what it is, and the digest of what it was made from."""


@dataclass(frozen=True)
class Removal:
    """A file or folder that can go."""

    path: Path
    reason: str
    size: int
    """Bytes."""

    def carry_out(self) -> None:
        """Removes it. The manifest of a checkpoint first forgets a file that is removed, so that it stays whole."""
        manifest = self.path.parent / MANIFEST
        if self.path.name == OPTIMIZER and manifest.exists():
            recorded = json.loads(manifest.read_text(encoding="utf-8"))
            recorded["files"].pop(OPTIMIZER, None)
            write_json(manifest, recorded)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def removals(storage: Path, *, older_s: float, top: int | None = None) -> Iterator[Removal]:
    """What can go from the storage, a folder.

    Stores and drafts stay if they changed in the last `older_s` seconds. If `top` is given, checkpoints of ended trials
    stay for the best `top` trials of each sweep only, by its first objective.
    """
    folders = sweep_folders(storage)
    driven = {folder.id for folder in folders if is_driven(folder)}
    resting = [folder for folder in folders if folder.id not in driven]
    # A sweep in preparation may have found an old store ready, and has not written down that it reads it.
    if not any(not folder.prepared.exists() for folder in folders if folder.id in driven):
        yield from _unread_stores(storage / "stores", folders, time.time() - older_s)
    for folder in resting:
        yield from _of_sweep(folder, time.time() - older_s, top)


def _unread_stores(stores: Path, folders: list[SweepFolder], before: float) -> Iterator[Removal]:
    there = {path.name: path for path in stores.iterdir()} if stores.is_dir() else {}
    read = set[str]()
    waiting = [
        path for folder in folders for path in (folder.prepared, *folder.path.glob("conditions/*/prepared.json"))
    ]
    while waiting:
        names = set(STORE_NAME.findall(_text(waiting.pop()))) & there.keys() - read
        read |= names
        waiting += [file for name in names for file in there[name].glob("*.json")]
    for name, path in sorted(there.items()):
        draft = not STORE_NAME.fullmatch(name)
        if name not in read and not name.endswith(".lock") and _changed(path) < before:
            yield Removal(path, "the draft of a store" if draft else "no sweep reads this store", _size(path))


def _of_sweep(folder: SweepFolder, before: float, top: int | None) -> Iterator[Removal]:
    for name in SCRATCH:
        if (path := folder.path / name).is_dir():
            yield Removal(path, "Ray's own state of a sweep that does not run", _size(path))
    for path in sorted(folder.path.glob("*/dispatcher-*.jsonl")) + sorted(folder.path.glob("dispatcher-*.jsonl")):
        if path.parent.name not in SCRATCH:
            yield Removal(path, "the journal of a dispatcher that is gone", _size(path))
    try:
        rows = {row.name: row for row in leaderboard(folder) if row.params}
    except SweepError:  # a damaged sweep keeps what it has
        return
    best = list(rows)[:top]
    for path in folder.trials():
        yield from _of_trial(path, rows.get(path.name), before, path.name in best)


def _of_trial(path: Path, row: Row | None, before: float, best: bool) -> Iterator[Removal]:
    checkpoints = path / "checkpoints"
    for draft in sorted(checkpoints.glob(".*")):
        if _changed(draft) < before:
            yield Removal(draft, "the draft of a checkpoint", _size(draft))
    if row is None or row.state not in ENDED:
        return
    for checkpoint in sorted(checkpoints.glob("[0-9s]*")):
        if not best:
            yield Removal(checkpoint, "a checkpoint of a trial that is not among the best", _size(checkpoint))
        elif (optimizer := checkpoint / OPTIMIZER).exists():
            yield Removal(optimizer, "the optimizer of a trial that has ended", _size(optimizer))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _files(path: Path) -> Iterator[Path]:
    yield from (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else (path,)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in _files(path))


def _changed(path: Path) -> float:
    """When the file, or the last of a folder's files, was changed."""
    return max((each.stat().st_mtime for each in _files(path)), default=path.stat().st_mtime)
