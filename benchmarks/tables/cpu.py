"""The CPU seconds of this process and of all that it starts, Ray's workers included."""

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from babeltune.files import write_whole

EVERY_S = 1.0
"""Seconds from one reading to the next. A process that ends between two loses what it used after the first."""


class CpuSeconds:
    """Counts while its block runs, and adds to what earlier runs of the same file counted."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._before = float(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else 0.0
        self._process = psutil.Process()
        self._seen: dict[tuple[int, float], float] = {}
        self._start = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._read()
        self._start = sum(self._seen.values())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, json.dumps(self.total()).encode())

    def total(self) -> float:
        """Seconds of all runs so far."""
        self._read()
        return self._before + sum(self._seen.values()) - self._start

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._read()

    def _read(self) -> None:
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:
                continue
