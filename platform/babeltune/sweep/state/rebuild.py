"""Makes a small file of a sweep's folder again if it is damaged, such as by a power loss that left it empty.

What it held also stands in the ledger (`results.jsonl`): every trial's parameters and end, and the spec, the facts and
the accepted changes of every submission. `SweepFolder.read` calls `rebuilt`, which writes nothing; the driver alone
calls `mend`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import BabeltuneError, SweepError
from babeltune.files import aside, plain, write_json
from babeltune.schema.records import with_fitted
from babeltune.schema.trial_names import trial_number
from babeltune.sweep.state.log import LEDGER, Ledger, log_of

if TYPE_CHECKING:
    from babeltune.files import JsonObject
    from babeltune.sweep.state.folder import SweepFolder
    from babeltune.sweep.state.messages import Submission

MADE_AGAIN = (
    *("prepared.json", "baselines.json", "state.json", "owner.json", "driver.json", "tracking.json"),
    *("warm_start.json", "rates.json", "progress.json"),
)
"""Files that `babeltune resume` writes, or does without, if they are gone."""
NEEDED_KEYS = {"rates.json": "rates", "trial.json": "params", "state.json": "state"}
"""A key without which a file is damaged."""


def read_json(path: Path) -> JsonObject:
    """The JSON object in the file. Raises `SweepError` that names a file that was altered or cut off."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        if (key := NEEDED_KEYS.get(path.name)) is not None and key not in values:
            raise ValueError(f"it has no `{key}`")
        return values
    except (ValueError, RecursionError) as error:
        todo = "`babeltune resume` makes it again" if path.name in MADE_AGAIN else "restore it from a copy"
        raise SweepError(f"{path} is damaged ({error}); {todo}") from error


def damage(path: Path) -> str:
    """The fault of the file; empty if it has none, or there is no such file."""
    with suppress(FileNotFoundError):
        try:
            read_json(path)
        except SweepError as error:
            return str(error)
    return ""


def rebuilt(folder: SweepFolder, name: str) -> JsonObject | None:
    """The content of the file of that name, relative to the sweep's folder; None if no other record has it."""
    place, _, file = name.rpartition("/")
    if file == "trial.json":
        return _trial(folder, trial_number(place.rpartition("/")[2]))
    if file == "state.json":
        return {"state": "finished" if _is_complete(folder) else "interrupted"}
    if file == "rates.json":
        return _rates(folder)
    if file == "labels.json":
        return plain(log_of(folder.path).labels)
    if file == "sweep.json":
        return None if (submission := submitted(folder)) is None else submission["spec"]
    if file == "facts.json" and (submission := submitted(folder)) is not None:
        return submission["facts"]
    return None


def submitted(folder: SweepFolder) -> Submission | None:
    """The sweep as it was submitted last."""
    submissions = log_of(folder.path).submissions
    return submissions[-1] if submissions else None


def sealed_digests(folder: SweepFolder) -> dict[str, str]:
    """The digests of the sweep's texts by name, such as `test/everyday`, even where `prepared.json` is damaged."""
    prepared = folder.read("prepared.json")
    if prepared is not None:
        return dict(prepared.get("digests", {}))
    submission = submitted(folder)
    return submission["digests"] if submission is not None else {}


def mend(folder: SweepFolder) -> None:
    """Puts every damaged file aside, and writes what it held as far as other records have it. The log says so. Of the
    ledger, what follows a damaged line is put aside first: MLflow is not to see it."""
    Ledger(folder.path / LEDGER)
    names = ["facts.json", "sweep.json", "labels.json", *(n for n in MADE_AGAIN if n != "state.json"), "state.json"]
    paths = [folder.path / name for name in names]
    paths += [place / name for place in folder.trials() for name in ("trial.json", "progress.json")]
    for path in paths:
        if not (words := damage(path)):
            continue
        name = path.relative_to(folder.path).as_posix()
        values = rebuilt(folder, name)
        if values is None and path.name not in (*MADE_AGAIN, "facts.json"):
            folder.note(words)
            continue
        path.rename(aside(path))
        if values is not None:
            write_json(path, values)
        lost = path.name == "facts.json" and values is None
        folder.note(
            f"{name} was damaged"
            + ("; whether code, packages or data changed is not known" if lost else " and is made again")
        )


def _trial(folder: SweepFolder, number: int) -> JsonObject | None:
    from babeltune.planning.space import make_trial  # it loads every method

    logged = log_of(folder.path).trials.get(number)
    with suppress(BabeltuneError):
        if logged is not None and logged.params is not None:
            trial = make_trial(folder.with_rates(folder.sweep_of(number)), number, logged.params)
            return plain(with_fitted(trial, logged.fitted))
    return None


def _rates(folder: SweepFolder) -> JsonObject | None:
    """Those that a trial was given."""
    for place in folder.trials():
        with suppress(OSError, SweepError):
            training = read_json(place / "trial.json").get("training")
            if isinstance(training, dict) and (rates := training.get("rates")):
                return {"rates": rates}
    return None


def _is_complete(folder: SweepFolder) -> bool:
    with suppress(SweepError):
        return folder.has_all_trials(folder.sweep())
    return False
