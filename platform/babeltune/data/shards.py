"""Work on many texts, cut into shards: files that any process that sees them can turn into others."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from babeltune.errors import StoreError
from babeltune.stages import Count


class RunShards(Protocol):
    """Runs `function(*a)` for each `a`, anywhere that sees the files, and yields the results as they come."""

    def __call__(
        self, function: Callable[..., int], arguments: Sequence[tuple[object, ...]], *, gpu: bool = False
    ) -> Iterable[int]:
        """`gpu`: the function uses a GPU if there is one."""


def run_here(
    function: Callable[..., int], arguments: Sequence[tuple[object, ...]], *, gpu: bool = False
) -> Iterator[int]:
    """A `RunShards` that calls the function for one shard after the other, in this process."""
    for each in arguments:
        yield function(*each)


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """The texts of one shard, for `read_texts`."""
    path.write_text(json.dumps(texts), encoding="utf-8")
    return path


def read_texts(path: str) -> list[str]:
    texts: list[str] = json.loads(Path(path).read_text(encoding="utf-8"))
    return texts


def count_all(results: Iterable[int], texts: int, progress: Count, action: str, before: int = 0) -> int:
    """Adds up the texts that shards report to those that were done `before`; `StoreError` when some are missing at the
    end."""
    done = before
    progress(done, texts)
    for count in results:
        done += count
        progress(done, texts)
    if done != texts:
        raise StoreError(f"{action} {done} of {texts} sentences; a task was lost: submit again")
    return done
