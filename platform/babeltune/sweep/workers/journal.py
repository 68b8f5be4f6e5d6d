"""An append-only file of changes with a snapshot at its beginning, replayed when its owner starts again.

The first line is a snapshot and each other line is one change. When the changes outweigh the snapshot, the file is
written anew. It survives the death of its process, not the loss of the machine's power: nothing here calls fsync.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from babeltune.errors import ClusterError
from babeltune.files import end_on_a_line, write_whole

COMPACT_BYTES = 128 * 2**20
"""Bytes of changes after which the file is written anew, if they are also `COMPACT_FACTOR` times its snapshot."""
COMPACT_FACTOR = 4


class Journal:
    """The file of one owner. `snapshot` returns the owner's whole state as JSON can hold it."""

    def __init__(self, path: Path, snapshot: Callable[[], object]) -> None:
        self._path, self._snapshot = path, snapshot
        self._file: IO[bytes] | None = None
        self._begun = self._added = 0
        """Bytes of the snapshot, and of the changes after it."""

    def read(self) -> Iterator[Any]:
        """The snapshot, then each change. A last line that a killed process left unfinished is cut off.

        `ClusterError` if another line is damaged: what its owner has sent since would be unknown.
        """
        if not self._path.exists():
            return
        end_on_a_line(self._path)
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    change = json.loads(line)
                except ValueError as error:
                    raise ClusterError(
                        f"{self._path}:{number}: the dispatcher's journal is damaged ({error}); every trial keeps its "
                        "last checkpoint: `babeltune resume` goes on"
                    ) from error
                yield change

    def add(self, change: list[object]) -> None:
        """Appends a change, which the owner has already made.

        If the disk refuses, the file is removed: an old one would mislead. The next change then tries a new one.
        """
        try:
            if self._file is None or self._added > max(COMPACT_BYTES, COMPACT_FACTOR * self._begun):
                self.compact()
                return
            rest = json.dumps(change).encode() + b"\n"
            self._added += len(rest)
            while rest:  # a disk that is almost full takes a part first
                rest = rest[self._file.write(rest) :]
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def compact(self) -> None:
        """Replaces the file by one that holds a snapshot only."""
        self.close()
        data = json.dumps(self._snapshot()).encode() + b"\n"
        write_whole(self._path, data)
        self._file = self._path.open("ab", buffering=0)
        self._begun, self._added = len(data), 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
