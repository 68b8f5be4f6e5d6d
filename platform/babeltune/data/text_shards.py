"""Keys, digests and near-duplicates of many texts, as tasks of a cluster that has several nodes.

A task reads a shard of the texts from a file and writes an array beside it. It calls the same functions as the driver's
process does for a small corpus, so that the bytes do not depend on who calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.data.arrays import parts, zeros
from babeltune.data.language_id import labels_of, strangers
from babeltune.data.shards import RunShards, count_all
from babeltune.data.text_keys import sentence_keys
from babeltune.data.texts import Texts, text_hashes
from babeltune.files import draft_folder
from babeltune.stages import uncounted

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARD = 100_000  # texts of a task. Their keys take about 0.4 CPU seconds, and their near-duplicates about 2.
MANY = 1_000_000  # no more texts stay in the driver's process: starting processes on other nodes takes seconds, too
WINDOW = 64  # shards that lie on the disk at a time


class TextShards:
    """Cuts texts into shards for tasks. `folder`: a place that the tasks see, unless their files travel with them."""

    def __init__(self, run: RunShards, folder: Path) -> None:
        self.run = run
        self._folder = folder

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder for shards, which goes with the block."""
        with draft_folder("shards", self._folder) as work:
            yield work

    def each(
        self, function: Callable[..., NDArray[Any]], texts: Texts, *more: str, files: Mapping[str, Texts] | None = None
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The results of `function(shard, *more)` for the shards, in order.

        An argument that is a key of `files` becomes the path of these texts."""
        with self.work() as work:
            for file, content in (files or {}).items():
                content.save(work / file)
            more = tuple(str(work / each) if each in (files or {}) else each for each in more)
            for window in parts(len(texts), WINDOW * SHARD):
                shards = {
                    work / f"{start:012}": slice(start, min(start + SHARD, window.stop))
                    for start in range(window.start, window.stop, SHARD)
                }
                for path, part in shards.items():
                    Texts(texts.part(part)).save(path.with_suffix(".arrow"))
                arguments = [(str(path), function, *more) for path in shards]
                count_all(self.run(work_on_shard, arguments), window.stop - window.start, uncounted, "worked on")
                for path, part in shards.items():
                    yield part, np.load(path.with_suffix(".npy"))
                    for ending in (".arrow", ".npy"):
                        path.with_suffix(ending).unlink()


def work_on_shard(path: str, function: Callable[..., NDArray[Any]], *more: str) -> int:
    """Writes what the function gives for the texts of this shard beside them; returns how many texts there are."""
    texts = Texts.open(Path(f"{path}.arrow"))
    np.save(f"{path}.npy", function(texts, *more))
    return len(texts)


def keys_of(texts: Texts, shards: TextShards | None) -> NDArray[np.uint64]:
    """The `sentence_keys` of the texts."""
    return sentence_keys(texts) if shards is None or len(texts) <= MANY else _filled(shards, sentence_keys, texts)


def hashes_of(texts: Texts, language: str, shards: TextShards | None) -> NDArray[np.uint64]:
    """The `text_hashes` of texts in this language."""
    if shards is None or len(texts) <= MANY:
        return text_hashes(texts, language)
    return _filled(shards, text_hashes, texts, language)


def strangers_of(texts: Texts, language: str, shards: TextShards | None) -> NDArray[np.int16]:
    """The `strangers` of texts in a column of this language."""
    if shards is None or len(texts) <= MANY or not labels_of(language):
        return strangers(texts, language)
    return _filled(shards, strangers, texts, language, dtype=np.int16)


def _filled(
    shards: TextShards, function: Callable[..., NDArray[Any]], texts: Texts, *more: str, dtype: type = np.uint64
) -> NDArray[Any]:
    filled: NDArray[Any] = zeros(len(texts), dtype)
    for part, some in shards.each(function, texts, *more):
        filled[part] = some
    return filled
