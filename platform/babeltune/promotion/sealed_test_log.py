"""Who opened which sealed test set, and when: `openings.jsonl` in the storage, one line for each opening.

A test set is known by its text, so that openings of one set count together, whichever sweep, trial or command they
came from, and under whatever name. They are counted per storage: who opens the same set from another storage is not
seen, so people who share test sets should share a storage."""

import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from babeltune.data.eval_sets import EvalRows, labelled
from babeltune.data.store import digest_of_texts, key_of
from babeltune.errors import plural
from babeltune.files import append_line, json_text, locked, sha256_of
from babeltune.sweep.state.folder import sweep_folders
from babeltune.sweep.state.rebuild import sealed_digests
from babeltune.sweep.sync.audit import who
from babeltune.sweep.sync.view import OPENINGS_FILE

KEYS = {"time", "user", "weights"}
"""Keys of every record, besides `digests`. `id` keeps two openings of one second apart."""


@dataclass(frozen=True, kw_only=True)
class Openings:
    """How often, for how many models and when a sweep's sealed tests were opened, the latest opening included."""

    times: int  # how often the set that was opened most has been opened, this time included
    models: int
    """How many different models a set was opened for: one under two names, or in a promotion that was killed and begun
    again, is one."""
    first: str
    last: str  # when it was opened for the first time, and the time before this one: `2026-01-31T12:00:00Z by ada`

    def warning(self, confidence: float) -> str:
        """Nothing after the first opening; then words that grow with each."""
        if self.times < 2:
            return ""
        before = f"before this {self.last}" if self.times == 2 else f"first {self.first}, before this {self.last}"
        models = plural(self.models, "model")
        words = f"warning: the sealed tests were opened {self.times} times, for {models} ({before})"
        if self.models == 1:
            return f"{words}; looks at one model count as one"
        by_chance = 1 - confidence**self.models
        words += (
            f"; each look makes them less sealed: of {self.models} looks at models that are equally good, one finds"
        )
        words += f" a difference at confidence {confidence:g} with a probability of up to {by_chance:.0%}"
        return words + ("; take fresh test sets" if by_chance > 1 / 3 else "")


def record_opening(storage: Path, model: str, folder: str | Path, sets: Sequence[EvalRows]) -> Openings:
    """Writes down that these sets are opened for the model in a folder, which its user calls `model`, by whom and when;
    returns how often that has happened."""
    digests = {
        f"{name}/{column}": digest_of_texts(texts)
        for name, rows in labelled("test", sets)
        for column, texts in rows.columns.items()
    }
    weights = sorted(Path(folder).rglob("*.safetensors"))
    opening = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "user": who(),
        "model": model,
        "weights": key_of({str(path.relative_to(folder)): sha256_of(path) for path in weights}),
        "tests": sorted({rows.task.name for rows in sets}),
        "digests": digests,
        "id": uuid.uuid4().hex,
    }
    path = storage / OPENINGS_FILE
    with locked(path):
        append_line(path, json_text(opening).encode())
        lines = read_openings(storage)
    of_set = [[line for line in lines if digest in line["digests"].values()] for digest in set(digests.values())]
    most = max(of_set, key=len)
    first, last = ("{time} by {user}".format(**line) for line in (most[0], most[-2:][0]))
    models = max(len({line["weights"] for line in of_one}) for of_one in of_set)
    return Openings(times=len(most), models=models, first=first, last=last)


def sealed_elsewhere(storage: Path, sets: Sequence[EvalRows]) -> list[EvalRows]:
    """Those of these sets that are a sealed test of a sweep in the storage, or were opened as one, under any name."""
    digests = (item for folder in sweep_folders(storage) for item in sealed_digests(folder).items())
    sealed = {digest for name, digest in digests if name.startswith("test/")}
    opened = {digest for line in read_openings(storage) for digest in line["digests"].values()}

    def is_sealed(rows: EvalRows) -> bool:
        return rows.digest in sealed or all(digest_of_texts(texts) in opened for texts in rows.columns.values())

    return list(filter(is_sealed, sets))


class Opening(TypedDict):
    """A line of the log, as far as it is read."""

    time: str
    user: str
    weights: str
    digests: dict[str, str]  # the digests of the sets by name


def read_openings(storage: Path) -> list[Opening]:
    """Every opening of this storage, in order. A line that was cut off is passed over."""
    path, openings = storage / OPENINGS_FILE, list[Opening]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            values = json.loads(line)
            if isinstance(values, dict) and isinstance(values.get("digests"), dict) and values.keys() >= KEYS:
                openings.append(cast(Opening, values))
    return openings
