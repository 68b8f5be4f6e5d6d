"""The decisions about a sweep's trials: `promotions/<time>-t0003.json` in the sweep's folder, a file each.

A decision is several writes: an alias of the registry, this file, a line of the audit. A process may be killed between
two of them. So what it is about to write comes first, whole and durably, as `deciding/<id>.json` in the storage.
`settle` finishes what a killed process left there, or drops it if the alias had not moved. Doing so twice does no harm.
"""

import json
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from babeltune.errors import BabeltuneError
from babeltune.files import file_lock, make_folders, plain
from babeltune.machine import lives, this_process
from babeltune.promotion.gates import Decision
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.sync.audit import AuditLine, line_of, write_line
from babeltune.sweep.sync.view import DECIDING, StorageView

FOLDER = "promotions"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """A decision of `promote` with its time, as a file in the sweep's folder holds it."""

    time: str  # UTC, such as `2026-01-31T12:00:00Z`
    dry_run: bool  # nothing was registered, because nobody asked for it
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class Move:
    """An alias of the registry, and the version that it is to point to."""

    model: str
    alias: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Intent:
    """All that a decision will write."""

    sweep: str
    file: str  # the decision's file, relative to the sweep's folder
    record: DecisionRecord
    line: AuditLine | None  # none after a dry run
    move: Move | None
    process: str = field(default_factory=this_process)
    begun: float = field(default_factory=time.time)  # seconds since 1970


def promotes(storage: Path, model: str) -> Path:
    """The lock of whoever promotes a model under this name."""
    return storage / "locks" / f"{model}.lock"


def intend(view: StorageView, decision: Decision, *, dry_run: bool = False, move: Move | None = None) -> str:
    """Writes down what `finish` will write. Returns its key in the storage."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    id_ = uuid.uuid4().hex
    subject = decision.registered or f"{decision.sweep}, {'refused' if decision.verdict == 'refuse' else 'a tie'}"
    intent = Intent(
        sweep=decision.sweep,
        file=f"{FOLDER}/{time.time_ns()}-{decision.trial}.json",
        record=DecisionRecord(time=now, dry_run=dry_run, decision=decision),
        line=None if dry_run else line_of("promote", subject, decision=id_),
        move=move,
    )
    key = f"{DECIDING}/{id_}.json"
    view.put(key, json.dumps(plain(intent), ensure_ascii=False).encode())
    return key


def finish(view: StorageView, key: str) -> None:
    """Writes the decision into the sweep's folder, the storage and the audit. What is there already stays as it is."""
    intent = _intent(view, key)
    if intent is None:  # another process has finished it
        return
    folder = SweepFolder(view.folder / "sweeps" / intent.sweep)
    make_folders((folder.path / intent.file).parent)
    folder.write(intent.file, intent.record)
    view.upload_record(folder.path / intent.file)
    if intent.line is not None:
        write_line(view, intent.line)
    view.drop(key)


def record_decision(view: StorageView, folder: SweepFolder, decision: Decision, *, dry_run: bool) -> None:
    """Writes a decision that moves no alias. The folder is that of its sweep."""
    assert folder.id == decision.sweep
    finish(view, intend(view, decision, dry_run=dry_run))


def settle(view: StorageView, *, promoting: str | None = None) -> None:
    """Finishes the decisions that killed processes left, and drops those whose alias had not moved.

    The caller has the lock of the model that it is `promoting`. Decisions of processes that may live stay. Raises
    `PromotionError` if there are any and MLflow does not answer."""
    for key in view.deciding():
        if (intent := _intent(view, key)) is None:
            continue
        from babeltune.tracking.registry import CLAIM_S, champion_of  # MLflow, for what is seldom there

        with _alone(view.folder, intent, promoting) as alone:
            move, moved = intent.move, True
            if move is not None:
                version = champion_of(view.cluster.mlflow, move.model, move.alias)
                moved = version is not None and version.version == move.version
            # A process of another machine has `CLAIM_S` to move the alias.
            over = lives(intent.process) is not None or time.time() - intent.begun > CLAIM_S
            if not moved and alone and over:
                view.drop(key)
            elif moved and alone:
                finish(view, key)
                if registered := intent.record.decision.registered:
                    log.warning("a promotion that was cut off is recorded now: %s", registered)


def settle_quietly(view: StorageView) -> None:
    """`settle` before a command that only reads: what keeps it from writing is for the next promotion to say."""
    with suppress(BabeltuneError, OSError):
        settle(view)


@contextmanager
def _alone(storage: Path, intent: Intent, promoting: str | None) -> Iterator[bool]:
    """Whether no process of this machine promotes the intent's model within the block."""
    model = None if intent.move is None else intent.move.model
    if model in (None, promoting):
        yield True
        return
    with file_lock(promotes(storage, str(model)), 0.0) as alone:
        yield alone


def _intent(view: StorageView, key: str) -> Intent | None:
    """The intent of that key; None if it is gone, or of a version that this one does not read."""
    entry = view.storage.look(key)
    try:
        return None if entry is None else TypeAdapter(Intent).validate_python(json.loads(entry[0]))
    except (ValueError, ValidationError):
        log.warning("%s is damaged or of another version of babeltune: finish it with that version, or remove it", key)
        return None


def _finite(values: dict[str, object]) -> dict[str, object]:
    """Without scores that were not finite, which JSON has as null."""
    return {name: value for name, value in values.items() if value is not None or "/" not in name}


def read_decisions(folder: SweepFolder) -> tuple[list[DecisionRecord], list[str]]:
    """Every decision about the sweep, the first first, and the names of the files that cannot be read."""
    adapter, records, damaged = TypeAdapter(DecisionRecord), list[DecisionRecord](), list[str]()
    for path in sorted((folder.path / FOLDER).glob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"), object_hook=_finite)
            records.append(adapter.validate_python(values))
        except (OSError, ValueError, ValidationError):
            damaged.append(f"{FOLDER}/{path.name}")
    return records, damaged
