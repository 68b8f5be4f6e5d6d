"""Shards of a store: a task makes each from some of the texts, and writes a record that says what it holds.

Where a task writes makes no difference to it. It is the store's draft, if all processes see it. With a bucket it is a
folder of the task's node, which sends the files (`sweep/sync/shards.py`). A file's name ends in the digest of its
content, so two writers never change each other's file. The record comes last: a shard without one is made again."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.data.shards import RunShards, count_all, write_texts
from babeltune.data.store import Array, StoredFile, digest_of_texts, shards_there
from babeltune.data.texts import Texts
from babeltune.files import plain, sha256_of, sync, write_whole
from babeltune.schema.base import from_plain
from babeltune.stages import Count

if TYPE_CHECKING:
    from numpy.typing import NDArray

DONE = ".done"  # ends the name of a shard's record
OF_SHARD = re.compile(r"\.?([a-z]+-)?[0-9]{5,}\b.*")  # names of what is written for a shard


@dataclass(frozen=True)
class ShardFile:
    """One array of a shard."""

    name: str
    rows: int
    width: int  # numbers in a row; 0 if a row is one number without a second axis
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardRecord:
    """The record of a shard, written once its files are whole."""

    texts: str  # digest of the texts
    truncated: int  # texts that were cut
    files: dict[str, ShardFile]  # the file of each array, by its name

    def encode(self) -> bytes:
        return json.dumps(plain(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ShardRecord:
        """Raises `ValueError`, `KeyError` or `TypeError` if it is damaged or of another version."""
        return from_plain(cls, json.loads(data))


def write_shard(out: Path, texts: Sequence[str], *, truncated: int, **arrays: NDArray[Any]) -> None:
    """Writes the arrays of one shard, and once they are on the disk its record."""
    files = {}
    for kind, array in arrays.items():
        draft = out.with_name(f"{out.name}.{uuid.uuid4().hex[:8]}")
        array.tofile(draft)
        sync(draft)
        digest, width = sha256_of(draft), array.shape[1] if array.ndim > 1 else 0
        files[kind] = ShardFile(f"{kind}-{out.name}-{digest[:16]}.bin", len(array), width, array.nbytes, digest)
        draft.replace(out.with_name(files[kind].name))
    record = ShardRecord(digest_of_texts(texts), truncated, files)
    write_whole(Path(f"{out}{DONE}"), record.encode(), durable=True)


def whole_shard(out: Path, texts: Sequence[str], bucket_sizes: Mapping[str, int]) -> ShardRecord | None:
    """The record of a shard that an earlier process has made of these texts to its end; None if there is none.
    `bucket_sizes` has the bytes of each file in the bucket."""
    try:
        record = ShardRecord.decode(Path(f"{out}{DONE}").read_bytes())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None

    def is_whole(file: ShardFile) -> bool:
        path = out.with_name(file.name)
        return bucket_sizes.get(file.name) == file.bytes or (path.exists() and sha256_of(path) == file.sha256)

    same = record.texts == digest_of_texts(texts)
    return record if same and all(map(is_whole, record.files.values())) else None


@dataclass(frozen=True)
class ShardWork:
    """How the shards of a store are made."""

    function: Callable[..., int]  # called with the arguments of a shard; returns how many texts it had
    arguments: Callable[[str, str], tuple[object, ...]]
    """The arguments of a shard, of the file of its texts and of the path that begins the names of its files."""
    run: RunShards
    progress: Count
    task: str  # the work on the texts in words, for an error
    gpu: bool = False


def _name(number: int) -> str:
    return f"{number:05}"


def make_shards(draft: Path, texts: Texts, cut: Iterable[NDArray[np.integer]], work: ShardWork) -> list[ShardRecord]:
    """The records of the shards of a store, in order. `cut` has the rows of `texts` for each.

    Shards of an earlier process are kept. New records stay until the store is in place. `StoreError` if one is lost."""
    shards, records, missing = shards_there(draft), dict[Path, ShardRecord](), dict[Path, tuple[object, ...]]()
    done, names, outs = 0, set[str](), list[Path]()
    for number, rows in enumerate(list(cut) or [np.empty(0, np.int64)]):
        out, texts_here = draft / _name(number), texts.at(rows)[:]
        outs.append(out)
        if (record := whole_shard(out, texts_here, shards)) is not None:
            records[out] = record
            names |= {f"{out.name}{DONE}", *(file.name for file in record.files.values())}
            done += len(texts_here)
        else:
            source = write_texts(out.with_suffix(".json"), texts_here)
            names.add(source.name)
            missing[out] = work.arguments(str(source), str(out))
    for stale_file in draft.iterdir():
        if OF_SHARD.fullmatch(stale_file.name) and stale_file.name not in names:
            stale_file.unlink()  # of a process that ended early
    # In a drawn order the count of texts moves evenly and gives a rate.
    drawn = [list(missing.values())[place] for place in np.random.default_rng(0).permutation(len(missing))]
    count_all(work.run(work.function, drawn, gpu=work.gpu) if drawn else [], len(texts), work.progress, work.task, done)
    for out in missing:
        records[out] = ShardRecord.decode(Path(f"{out}{DONE}").read_bytes())
        out.with_suffix(".json").unlink()
    return [records[out] for out in outs]


def array_of(records: Sequence[ShardRecord], kind: str, dtype: str) -> Array:
    """This array of all shards."""
    files = [record.files[kind] for record in records]
    return Array(dtype, files[0].width, tuple((file.name, file.rows) for file in files))


def record_names(records: Sequence[ShardRecord]) -> frozenset[str]:
    """The names of the shards' own records in the draft."""
    return frozenset(f"{_name(number)}{DONE}" for number in range(len(records)))


def shard_files(records: Sequence[ShardRecord]) -> dict[str, StoredFile]:
    """All files of the shards, as their writers have recorded them."""
    files = [file for record in records for file in record.files.values()]
    return {file.name: StoredFile(file.bytes, file.sha256) for file in files}
