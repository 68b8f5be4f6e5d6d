"""What promotion decided about a sweep's trials, kept in the sweep's folder: `promotions/<time>-t0003.json`, one file
for each decision. `promote` writes them; the report reads them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from babeltune.promotion.gates import Decision
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.sync.view import StorageView

FOLDER = "promotions"


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """A decision of `promote` with its time, as a file in the sweep's folder holds it."""

    time: str
    """UTC, such as `2026-01-31T12:00:00Z`."""
    dry_run: bool
    """Nothing was registered, because nobody asked for it."""
    decision: Decision


def record_decision(places: StorageView, folder: SweepFolder, decision: Decision, *, dry_run: bool) -> None:
    """Writes the decision into the sweep's folder, and into the storage that the folder mirrors."""
    record = DecisionRecord(time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), dry_run=dry_run, decision=decision)
    place = folder.path / FOLDER
    place.mkdir(exist_ok=True)
    name = f"{FOLDER}/{time.time_ns()}-{decision.trial}.json"
    folder.write(name, record)
    places.keep_record(folder.path / name)


def read_decisions(folder: SweepFolder) -> tuple[list[DecisionRecord], list[str]]:
    """Every decision about the sweep, the first first, and the names of the files that cannot be read."""
    adapter, found, damaged = TypeAdapter(DecisionRecord), list[DecisionRecord](), list[str]()
    for path in sorted((folder.path / FOLDER).glob("*.json")):
        try:
            found.append(adapter.validate_python(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, ValidationError):
            damaged.append(f"{FOLDER}/{path.name}")
    return found, damaged
