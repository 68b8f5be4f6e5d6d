"""The tracker's spool: a file of events, one a line, and how many of them the store has acknowledged.

Lines are only appended, by one process at a time. Beside the spool lies `<name>.sent`, replaced atomically at each
acknowledgement: how many lines the store has, and the sender's memo. It belongs to one store; for another store, every
event is unsent. Lines are counted and not bytes, so that `clean` shortens lines in one write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babeltune.files import end_on_a_line, write_whole


class Spool:
    """An append-only file of JSON lines that is read from its last acknowledged line. Raises `OSError` as files do."""

    def __init__(self, path: Path, store: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        end_on_a_line(path)
        self.path = path
        self.memo: dict[str, Any] = {}
        """Saved with each acknowledgement; JSON only."""
        self.offset, self._lines = 0, 0
        """Bytes and lines that are acknowledged."""
        self.requested = 0
        """Bytes after the offset whose requests were made, and which are not acknowledged yet."""
        self._sent = path.with_name(path.name + ".sent")
        self._store = hashlib.sha256(store.encode()).hexdigest()  # a store's address may hold a password
        self._file = path.open("ab", buffering=0)
        self.size = path.stat().st_size
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # or else all is sent again
            known = json.loads(self._sent.read_text(encoding="utf-8"))
            if known["store"] == self._store:
                self._lines, self.offset = self._place_of(known)
                self.memo = known["memo"]

    def _place_of(self, known: dict[str, Any]) -> tuple[int, int]:
        """The lines that the store has, and their bytes. Raises `ValueError` if the spool has fewer."""
        lines, size = 0, 0
        with self.path.open("rb") as file:
            while lines < known["lines"]:
                if not (line := file.readline()):
                    raise ValueError("the spool is another one")
                lines, size = lines + 1, size + len(line)
        return lines, size

    def append(self, event: dict[str, Any]) -> None:
        """Adds one line, all or nothing. The operating system has it before this returns, so it outlives the
        process."""
        line = json.dumps(event, default=str).encode() + b"\n"
        rest = line
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.ftruncate(self._file.fileno(), self.size)
            raise
        self.size += len(line)

    def waiting(self) -> int:
        """Bytes that are not acknowledged."""
        return self.size - self.offset

    def count(self, size: int) -> None:
        """Counts bytes whose requests were made."""
        self.requested += size

    def left(self) -> int:
        """Bytes whose requests are still to be made."""
        return max(0, self.waiting() - self.requested)

    def unsent(self, limit: int) -> list[bytes]:
        """Whole lines from the acknowledged offset on, up to about `limit` bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return [line for line in file.readlines(limit) if line.endswith(b"\n")]

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event ever appended; lines that are no events are left out."""
        with self.path.open("rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)

    def acknowledge(self, lines: Sequence[bytes]) -> None:
        """Records that the store has these lines, the next ones after the offset."""
        offset = self.offset + sum(map(len, lines))
        sent = {"store": self._store, "lines": self._lines + len(lines), "memo": self.memo}
        write_whole(self._sent, json.dumps(sent).encode())
        self._lines += len(lines)
        self.offset, self.requested = offset, 0

    def forget(self) -> None:
        """Forgets all acknowledgements and the memo, because the store has lost its data."""
        self.offset, self._lines, self.memo = 0, 0, {}

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class SentRun:
    """A run that MLflow has taken."""

    id: str
    experiment: str
    """MLflow's id of its experiment."""


def sent_run(spool: Path, key: str) -> SentRun | None:
    """The run of a trial by its number, as the tracker has noted it. None if MLflow has not taken it, or nobody knows.

    MLflow itself is not asked, so a server that is away costs nothing.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        memo = json.loads(spool.with_name(spool.name + ".sent").read_text(encoding="utf-8"))["memo"]
        return SentRun(id=str(memo["runs"][key]), experiment=str(memo["experiment"]))
    return None
