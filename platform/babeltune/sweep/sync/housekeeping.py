"""Removes files that a bucket and this machine's mirror of it can do without.

The rule is that of a folder (`state/housekeeping.py`). A mirror can also do without what the bucket has: a node brings
it again when it needs it."""

import itertools
import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from babeltune.errors import DamagedError, ObjectStoreError
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import MANIFESTS, PULLING
from babeltune.sweep.state import housekeeping as rules
from babeltune.sweep.state.stored import BucketStorage, may_be_driven
from babeltune.sweep.sync.view import StorageView, latest_names, names_in
from babeltune.training.checkpoint import MANIFEST

IN_USE, GONE = "in use by now", "gone meanwhile"  # why a file stays though nothing failed
SUPERSEDED = "superseded"  # in a mirror, the folder of sweeps that another machine went on with


@dataclass(frozen=True, kw_only=True)
class BucketRemoval(rules.Removal):
    """A package in a bucket that can go, or the optimizer in one."""

    mirror: Mirror

    @property
    def key(self) -> str:
        return self.mirror.key(self.path)

    def remove(self) -> None:
        """A reader sees the package as it was, or no more."""
        if self.rule:
            trial = self.path.parents[1]
            rules.note_removed(trial, self.rule)
            for record in trial.glob("removed.json"):
                self.mirror.push(record)
        package, _, name = self.key.rpartition("/")
        if name == rules.OPTIMIZER:
            strip_optimizer(self.mirror, package)
        else:
            self.mirror.drop_packages([self.key], self.mirror.store.entries(self.key))


def drop_checkpoints(mirror: Mirror, sweep: str, removed: Collection[str], stripped: Collection[str]) -> None:
    """Removes all checkpoints of some ended trials of a sweep (its key) from the bucket, the optimizers of others."""
    if mirror.fence is not None:
        mirror.fence.check()
    prefix, names = f"{sweep}/trials", [*removed, *stripped]
    # One listing of the sweep costs less than one for each of its trials.
    entries = mirror.store.entries(prefix if len(names) > 1 else f"{prefix}/{names[0]}/checkpoints")
    doomed, optimizers = set[str](), set[str]()
    for key in entries:
        trial, kind, name, *rest = (*key.removeprefix(f"{prefix}/").split("/"), "", "")[:4]
        if kind != "checkpoints" or not name:
            continue
        if trial in removed:
            doomed.add(f"{prefix}/{trial}/{kind}/{name}")
        elif trial in stripped and rest == [rules.OPTIMIZER]:
            optimizers.add(f"{prefix}/{trial}/{kind}/{name}")
    mirror.drop_packages(sorted(doomed), entries)
    for package in sorted(optimizers):
        strip_optimizer(mirror, package)


def strip_optimizer(mirror: Mirror, package: str) -> None:
    """Removes the optimizer from a checkpoint in the bucket. Its own manifest forgets it, so that it stays whole."""
    with suppress(ValueError, KeyError, TypeError):  # a damaged one stays as it is
        manifest = json.loads(mirror.store.read(f"{package}/{MANIFEST}") or b"")
        manifest["files"].pop(rules.OPTIMIZER, None)
        mirror.drop_from_package(package, rules.OPTIMIZER, {MANIFEST: json.dumps(manifest).encode()})


# For `babeltune clean`


def bucket_removals(view: StorageView, *, older_s: float, top: int | None = None) -> Iterator[BucketRemoval]:
    """Removals from the bucket; everything of a sweep that a driver may have stays."""
    mirror = view.mirror
    assert mirror is not None
    view.update(every=True)
    for removal in rules.unneeded(view.storage, time.time() - older_s, top, _replaced):
        yield BucketRemoval(removal.path, removal.reason, removal.size, removal.rule, removal.may_go, mirror=mirror)


def _replaced(entries: Mapping[str, Entry]) -> set[str]:
    """The keys of a sweep's checkpoints that a later driver has sent again, and of those that are not whole."""
    older = set[str]()
    for key, package in rules.packages(entries, 5).items():
        if not key.endswith("/checkpoints"):
            continue
        older |= {f"{key}/{name}" for name in names_in(key, package) - set(latest_names(key, package, 0).values())}
    return older


def mirror_removals(mirror: Mirror, *, older_s: float) -> Iterator[rules.Removal]:
    """Removals of files that this machine's mirror has not used for this time and can bring again from the bucket.

    Sweeps that another machine went on with are there, too: the bucket has the newer state."""
    before = time.time() - older_s
    left = {SUPERSEDED: "a sweep that another machine went on with", PULLING: "a copy from the bucket that was cut off"}
    for aside in (each for name in left for each in sorted((mirror.folder / name).glob("*"))):
        if aside.stat().st_mtime < before:
            yield rules.Removal(aside, left[aside.parent.name], rules.size_of(aside))
    notes, storage = mirror.folder / MANIFESTS, BucketStorage(mirror)
    may_run = cache(partial(may_be_driven, storage))
    for note in sorted(notes.rglob("*.json")) if notes.is_dir() else ():
        key = note.relative_to(notes).as_posix().removesuffix(".json")
        folder, (kind, name, *_) = mirror.folder / key, key.split("/")
        if not folder.is_dir() or note.stat().st_mtime > before or (kind == "sweeps" and may_run(name)):
            continue
        if _in_bucket(mirror, folder, key):
            may_go: rules.MayGo = partial(storage.at_rest, name) if kind == "sweeps" else rules.always
            reason = "a copy that the bucket has and nothing here has used"
            yield rules.Removal(folder, reason, rules.size_of(folder), may_go=may_go)


def _in_bucket(mirror: Mirror, folder: Path, key: str) -> bool:
    """Whether the bucket has the package as it is here, under this key or with a driver's token behind it."""
    parent, _, name = key.rpartition("/")
    entries = mirror.store.entries(parent if parent.endswith("/checkpoints") else key)
    names = names_in(parent, entries) if parent.endswith("/checkpoints") else {name}
    same = [each for each in names if each.partition("-")[0] == name or each == name]
    return any(mirror.has_package(folder, f"{parent}/{each}", entries) for each in same)


def everything(view: StorageView, *, older_s: float, top: int | None = None) -> list[rules.Removal]:
    """Removals from the storage, and from this machine's mirror of it."""
    before = time.time() - older_s
    if view.mirror is None:
        return [*rules.removals(view.folder, older_s=older_s, top=top), *rules.left_temporary(before)]
    removals = itertools.chain(
        rules.left_temporary(before),
        bucket_removals(view, older_s=older_s, top=top),
        rules.scratch(view.storage, before),
        rules.left_drafts(view.folder, before),
        mirror_removals(view.mirror, older_s=older_s),
    )
    return list(removals)


def clean(view: StorageView, *, older_s: float) -> tuple[int, int]:
    """Removes what can go: how many files and folders, and their bytes. What a storage refuses stays."""
    done = [removal.size for removal in everything(view, older_s=older_s) if not remove_or_say_why(removal)]
    return len(done), sum(done)


def remove_or_say_why(removal: rules.Removal) -> str:
    """Removes the file or folder. Returns why it is still there; empty if it went."""
    try:
        return "" if removal.carry_out() else IN_USE
    except FileNotFoundError:
        return GONE
    except OSError as error:
        return f"{removal.path.parent} cannot be written ({error.strerror})"
    except (DamagedError, ObjectStoreError) as error:
        return str(error)


def evict(mirror: Mirror, *, older_s: float) -> int:
    """Removes what the mirror of this machine can do without; the bytes that are free now."""
    freed = 0
    for removal in list(mirror_removals(mirror, older_s=older_s)):
        with mirror.in_turn(mirror.key(removal.path)):
            freed += 0 if remove_or_say_why(removal) else removal.size
    return freed
