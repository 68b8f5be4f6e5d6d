"""What a storage can do without: stores that no sweep reads, optimizer states of ended trials, left-over files.

`babeltune clean` lists it and removes it. Nothing that a sweep reads is removed, and nothing of a sweep that runs. A
store is made again when a sweep asks for it. An ended trial never trains on, so its optimizer is of no more use.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from babeltune.errors import SweepError
from babeltune.files import write_json, write_whole
from babeltune.sweep.state.folder import ENDED, SweepFolder, sweep_folders
from babeltune.sweep.state.leaderboard import Row, leaderboard
from babeltune.sweep.state.progress import is_driven
from babeltune.training.checkpoint import MANIFEST

OPTIMIZER = "optimizer.safetensors"
"""The file of a checkpoint that only further training reads."""
SCRATCH = ("train", "tune")
"""Folders in which Ray keeps its own state of a sweep. A resumed sweep never reads them."""
REMOVED = "removed.json"
"""In a trial's folder: why its checkpoints were removed."""
SPOOL = "spool.jsonl"
SENT = "metrics that MLflow has taken"
"""Why a spool can become shorter."""
TRIAL_NAME = re.compile(r"t[0-9]{4,}")
STORE_NAME = re.compile(r"[a-z_]+-[0-9a-f]{16}")
"""The name of a store: what it is, and the digest of what it was made from."""


@dataclass(frozen=True)
class Removal:
    """A file or folder that can go."""

    path: Path
    reason: str
    size: int
    """Bytes."""
    rule: str = ""
    """For a checkpoint that can no longer be promoted: what asked for its removal."""

    def carry_out(self) -> None:
        """Removes it. The manifest of a checkpoint first forgets a file that is removed, so that it stays whole."""
        if self.rule:
            note_removed(self.path.parents[1], self.rule)
        if self.path.name == SPOOL:
            shorten_spool(self.path)
            return
        manifest = self.path.parent / MANIFEST
        if self.path.name == OPTIMIZER and manifest.exists():
            recorded = json.loads(manifest.read_text(encoding="utf-8"))
            recorded["files"].pop(OPTIMIZER, None)
            write_json(manifest, recorded)
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def note_removed(trial: Path, rule: str) -> None:
    """Writes down, before it happens, that a trial's checkpoints go and what asked for it."""
    if why_removed(trial) is None:
        write_json(trial / REMOVED, {"rule": rule, "time": time.time()})


def why_removed(trial: Path) -> str | None:
    """What asked for the removal of the trial's checkpoints; None if nothing did."""
    try:
        return str(json.loads((trial / REMOVED).read_text(encoding="utf-8"))["rule"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def best_trials(rows: Sequence[Row], top: int | None) -> set[str]:
    """The names of the best trials in a leaderboard; all of them if `top` is None. Finished ones come first, because
    promotion takes the best finished trial."""
    trials = [row for row in rows if TRIAL_NAME.fullmatch(row.name)]
    ranked = sorted(trials, key=lambda row: row.state != "finished")
    return {row.name for row in ranked[:top]}


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


def stores_read(
    folders: Sequence[SweepFolder], there: Collection[str], documents: Callable[[str], Iterable[str]]
) -> set[str]:
    """The names of the stores that the sweeps read, directly or through another store. `documents` gives the texts of
    a store's JSON files."""
    read = set[str]()
    waiting = [
        _text(path) for folder in folders for path in (folder.prepared, *folder.path.glob("conditions/*/prepared.json"))
    ]
    while waiting:
        names = set(STORE_NAME.findall(waiting.pop())) & set(there) - read
        read |= names
        waiting += [text for name in names for text in documents(name)]
    return read


def _unread_stores(stores: Path, folders: list[SweepFolder], before: float) -> Iterator[Removal]:
    there = {path.name: path for path in stores.iterdir()} if stores.is_dir() else {}
    read = stores_read(folders, there.keys(), lambda name: map(_text, there[name].glob("*.json")))
    for name, path in sorted(there.items()):
        draft = not STORE_NAME.fullmatch(name)
        if name not in read and not name.endswith(".lock") and _changed(path) < before:
            yield Removal(path, "the draft of a store" if draft else "no sweep reads this store", _size(path))


def scratch(folder: SweepFolder, before: float) -> Iterator[Removal]:
    """What the processes of a sweep that does not run left on this machine: Ray's own state, journals, drafts."""
    for name in SCRATCH:
        if (path := folder.path / name).is_dir():
            yield Removal(path, "Ray's own state of a sweep that does not run", _size(path))
    for path in sorted(folder.path.glob("*/dispatcher-*.jsonl")) + sorted(folder.path.glob("dispatcher-*.jsonl")):
        if path.parent.name not in SCRATCH:
            yield Removal(path, "the journal of a dispatcher that is gone", _size(path))
    for draft in sorted(folder.path.glob("trials/*/checkpoints/.*")):
        if _changed(draft) < before:
            yield Removal(draft, "the draft of a checkpoint", _size(draft))


def _of_sweep(folder: SweepFolder, before: float, top: int | None) -> Iterator[Removal]:
    yield from scratch(folder, before)
    if (freed := spool_savings(folder.path / SPOOL)) and _changed(folder.path / SPOOL) < before:
        yield Removal(folder.path / SPOOL, SENT, freed)
    try:
        rows = {row.name: row for row in leaderboard(folder) if row.params}
    except SweepError:  # a damaged sweep keeps what it has
        return
    best = best_trials(list(rows.values()), top)
    for path in folder.trials():
        yield from _of_trial(path, rows.get(path.name), "" if path.name in best else f"clean --top {top}")


def _of_trial(path: Path, row: Row | None, rule: str) -> Iterator[Removal]:
    checkpoints = path / "checkpoints"
    if row is None or row.state not in ENDED:
        return
    for checkpoint in sorted(checkpoints.glob("[0-9s]*")):
        if rule:
            yield Removal(checkpoint, "a checkpoint of a trial that is not among the best", _size(checkpoint), rule)
        elif (optimizer := checkpoint / OPTIMIZER).exists():
            yield Removal(optimizer, "the optimizer of a trial that has ended", _size(optimizer))


def spool_savings(path: Path) -> int:
    """Bytes that `shorten_spool` would free; 0 while MLflow lacks anything."""
    try:
        sent = json.loads(path.with_name(f"{path.name}.sent").read_text(encoding="utf-8"))["offset"]
        whole = path.read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return len(whole) - len(_shortened(whole)) if sent == len(whole) else 0


def shorten_spool(path: Path) -> None:
    """Drops the values of metrics that MLflow has taken. Their steps stay, so that nothing is sent a second time."""
    sent = path.with_name(f"{path.name}.sent")
    data = _shortened(path.read_bytes())
    known = json.loads(sent.read_text(encoding="utf-8"))
    write_whole(sent, json.dumps({**known, "offset": len(data)}).encode())
    write_whole(path, data)


def _shortened(spool: bytes) -> bytes:
    lines = []
    for line in spool.splitlines(keepends=True):
        with suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if event["do"] == "metrics":
                event["points"] = [[step, time_ms, {}] for step, time_ms, _ in event["points"]]
                line = json.dumps(event).encode() + b"\n"
        lines.append(line)
    return b"".join(lines)


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
