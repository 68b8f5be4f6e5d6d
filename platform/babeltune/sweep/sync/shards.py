"""Shards of the preparation on nodes that share no folder with the driver's.

A shard's texts travel with its task. What it makes for a store goes from its node into the bucket, below the key that
the store will have, and the shard's record comes last. The driver gets the record alone. It writes the manifest once
all shards are there: until then the store does not exist for a reader. What the driver reads itself, such as the
columns of a file's part, comes back with the task.

Keys have the digests of contents. So an old driver or a second one writes nothing that another one would miss, and no
fencing token is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeGuard

from babeltune.data.store import UNFINISHED, StoredFile, store_of
from babeltune.data.store_shards import DONE, ShardRecord
from babeltune.files import draft_folder, plain
from babeltune.schema.storage_location import StorageLocation
from babeltune.storage.mirror import Mirror
from babeltune.storage.object_store import ObjectStore
from babeltune.storage.packages import manifest_key, together

Files = Mapping[str, bytes]  # contents of files by their names


@dataclass(frozen=True)
class StorePlace:
    """Where a store is in a bucket."""

    where: StorageLocation
    key: str


@dataclass(frozen=True)
class Carrier:
    """Takes a shard's files to a node that does not see the driver's folder, and puts what comes back into it."""

    where: StorageLocation | None = None
    """The bucket that takes the shards of stores; None: all that is made comes back."""
    shared: frozenset[str] = field(default=frozenset())
    """Paths that several shards name. Their files are not packed with each of them."""

    def of(self, arguments: Sequence[tuple[object, ...]]) -> Carrier:
        """The carrier of shards with these arguments."""
        times_named = Counter(path for each in arguments for path in {*_paths(each)})
        return Carrier(self.where, frozenset(path for path, times in times_named.items() if times > 1))

    def pack_shared(self) -> dict[str, bytes]:
        """The files that go to every node."""
        return _contents(map(Path, self.shared))

    def pack(self, arguments: tuple[object, ...]) -> dict[str, bytes]:
        """The other files that a shard's arguments name, whole or by their beginning; all are in one folder."""
        return _contents(Path(path) for path in _paths(arguments) if path not in self.shared)

    def place(self, arguments: tuple[object, ...]) -> StorePlace | None:
        """Where a task sends the files that it makes for a store; None: they come back."""
        folder = _folder(arguments)
        if self.where is None or not folder.name.endswith(UNFINISHED):
            return None
        return StorePlace(self.where, store_of(folder).relative_to(self.where.folder).as_posix())

    def unpack(self, arguments: tuple[object, ...], files: Files) -> None:
        """Puts what came back where the shard would have written it."""
        for name in sorted(files):  # A record's name begins with that of the file before it.
            (_folder(arguments) / Path(name).name).write_bytes(files[name])


def _contents(paths: Iterable[Path]) -> dict[str, bytes]:
    contents = {}
    for path in paths:
        for each in [path, *path.parent.glob(f"{path.name}.*")]:
            if each.is_file():
                contents[each.name] = each.read_bytes()
    return contents


def on_a_node(
    function: Callable[..., int],
    arguments: tuple[object, ...],
    files: Files,
    shared: Files | None = None,
    place: StorePlace | None = None,
) -> tuple[int, dict[str, bytes]]:
    """A shard's work in a folder of its own: what it returns, and the files that it made and the bucket did not get."""
    folder = _folder(arguments)
    with draft_folder("shard") as work:
        sent_files = {**(shared or {}), **files}
        for each, data in sent_files.items():
            (work / each).write_bytes(data)
        moved = [str(work / Path(each).name) if _is_in(each, folder) else each for each in arguments]
        count = function(*moved)
        results = {path.name: path for path in work.iterdir() if path.name not in sent_files}
        if place is not None:
            for sent in _send(results, place):
                del results[sent]
        return count, {each: path.read_bytes() for each, path in results.items()}


def _send(files: Mapping[str, Path], place: StorePlace) -> list[str]:
    """Writes the files of finished shards into the bucket, and then their records; the names of the files."""
    store = _bucket(place.where)
    records = {name: path.read_bytes() for name, path in files.items() if name.endswith(DONE)}
    names = [file.name for data in records.values() for file in ShardRecord.decode(data).files.values()]
    together(lambda name: store.upload(files[name], f"{place.key}/{name}"), names)
    for name, data in records.items():
        store.write(f"{place.key}/{name}", data)
    return names


@lru_cache(maxsize=1)
def _bucket(where: StorageLocation) -> ObjectStore:
    """The bucket of this process's shards, opened once."""
    return ObjectStore(where.uri, where.timeout)


def _folder(arguments: tuple[object, ...]) -> Path:
    """The folder of a shard's files: that of the first path."""
    return next(Path(each).parent for each in arguments if isinstance(each, str))


def _paths(arguments: tuple[object, ...]) -> list[str]:
    folder = _folder(arguments)
    return [each for each in arguments if _is_in(each, folder)]


def _is_in(value: object, folder: Path) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith(f"{folder}/")


class BucketStores:
    """The stores in a driver's bucket, as `data.store` asks for them (`Bucket`)."""

    def __init__(self, mirror: Mirror, insist: Callable[[Callable[[], Any]], Any], *, takes_shards: bool) -> None:
        """`insist` sends a request to the bucket, again if it does not answer."""
        self._mirror, self._insist, self.takes_shards = mirror, insist, takes_shards

    def has(self, folder: Path) -> bool:
        """Whether it has the whole store."""
        manifest = manifest_key(self._mirror.key(folder))
        return self._insist(lambda: self._mirror.store.entry(manifest)) is not None

    def bring(self, folder: Path) -> None:
        """Copies the store to its folder, if the bucket has it."""
        self._insist(lambda: self._mirror.pull_package(self._mirror.key(folder)))

    def read(self, folder: Path, name: str) -> bytes | None:
        """A file of a whole store."""
        if not self.has(folder):
            return None
        data: bytes | None = self._insist(lambda: self._mirror.store.read(f"{self._mirror.key(folder)}/{name}"))
        return data

    def bring_records(self, folder: Path, draft: Path) -> Mapping[str, int]:
        """Copies the records of an unfinished store's shards to the draft. Returns the bytes of each file there is."""
        key, store = self._mirror.key(folder), self._mirror.store
        sizes = {
            at.removeprefix(f"{key}/"): entry.size for at, entry in self._insist(lambda: store.entries(key)).items()
        }
        lacking = [name for name in sizes if name.endswith(DONE) and not (draft / name).exists()]
        records = self._insist(lambda: together(lambda name: store.read(f"{key}/{name}"), lacking))
        for name, data in zip(lacking, records, strict=True):
            (draft / name).write_bytes(data or b"")
        return sizes

    def finish(self, folder: Path, draft: Path, files: Mapping[str, StoredFile]) -> None:
        """Makes these files a whole store. Those that are in the draft are sent; the others are there."""
        facts = {name: plain(file) for name, file in files.items()}
        self._insist(partial(self._mirror.finish_package, self._mirror.key(folder), draft, facts))
