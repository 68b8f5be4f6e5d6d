"""Names of a trial's checkpoints in a bucket: their name in a folder, and the fencing token of their driver.

`000003-7` is the checkpoint of the third report, sent by a worker of the driver with token 7. So a late worker of an
earlier driver never changes a checkpoint that another one reads. Names without a token are of a trial
without a driver."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from babeltune.storage.fence import Stamp, unstamped
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import Entry
from babeltune.storage.packages import manifest_key
from babeltune.training.checkpoint import REPORTS


def names_in(prefix: str, keys: Iterable[str]) -> set[str]:
    """The names of the folders right below a key, from a listing of its objects."""
    return {at.removeprefix(f"{prefix}/").partition("/")[0] for at in keys}


def parts_of(name: str) -> tuple[str, int]:
    """A checkpoint's name in a trial's folder, and the token under which it was sent."""
    base, _, token = name.partition("-")
    return base, int(token) if token.isdigit() else 0


def latest_names(prefix: str, entries: Mapping[str, Entry], since: int) -> dict[str, str]:
    """By its name in a folder, the name in the bucket of each sealed checkpoint: that of the latest driver."""
    latest: dict[str, str] = {}
    for name in sorted(names_in(prefix, entries), key=parts_of):
        base, token = parts_of(name)
        if manifest_key(f"{prefix}/{name}") in entries and token >= since:
            latest[base] = name
    return latest


def checkpoints_there(mirror: Mirror, key: str, since: int) -> dict[str, str]:
    """By its name in a folder, the name of each of the trial's sealed checkpoints in the bucket."""
    prefix = f"{key}/checkpoints"
    return latest_names(prefix, mirror.store.entries(prefix), since)


def bring_checkpoint(mirror: Mirror, folder: Path) -> bool:
    """Whether a trial's checkpoint is in this folder, where it is downloaded to if need be."""
    key = mirror.key(folder.parents[1])
    stamp = unstamped(mirror.store.read(f"{key}/{REPORTS}") or b"")[1] or Stamp(0)
    name = checkpoints_there(mirror, key, stamp.since).get(folder.name, folder.name)
    return mirror.pull_package(f"{key}/checkpoints/{name}", folder)
