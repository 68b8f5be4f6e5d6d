"""A sweep's folder: where everything of a sweep is.

    <storage>/sweeps/<id>/
        sweep.json  prepared.json  facts.json  baselines.json  rates.json  state.json  driver.log
        examples.json                                     what the best trial made of a few translations
        conditions/1/                                     prepared.json before an accepted change
        results.jsonl  mlflow.json                        what happened, in order; how much of it MLflow has
        labels.json                                       what users call it, by which it is found
        trials/t0007/trial.json  reports.jsonl  progress.json  checkpoints/000003/

Any process that sees the storage can read it while the sweep runs."""

import functools
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from babeltune.errors import DamagedError, SpecError, SweepError, UnknownNameError, nearest, plural
from babeltune.files import write_json
from babeltune.planning.recorded import sweep_from, sweep_id
from babeltune.schema.records import Scalar, Sweep
from babeltune.schema.trial_names import trial_name, trial_number
from babeltune.sweep.state.fencing import OWNER
from babeltune.sweep.state.log import LEDGER, append_event, log_of
from babeltune.sweep.state.rebuild import damage, read_json, rebuilt

log = logging.getLogger(__name__)
MOST_NAMED = 5  # sweeps that a message lists
FINISHED_FILES = ("prepared.json", "baselines.json")  # files of a finished sweep, besides its trials
NUMBERED = re.compile(r"[tT]?([0-9]{1,9})")  # the name of a trial: `t0007`, `T7` or `7`
SHOWN_TRIALS = 8  # trials of a sweep that an error lists by name; of more it says the first and the last
# The lease is renewed every few seconds, and read as none if it is damaged: nobody waits for the disk to have it.
NOT_DURABLE = (OWNER, "stage.json")  # files that are written often, and whose loss loses nothing
LABELS = "labels.json"  # the labels that the ledger has: to find a sweep by its name reads no ledger
REQUESTS = "requests"
"""The folder of events that other processes ask the sweep's driver to add to the ledger, a file each."""
RATES = "rates.json"
"""The rates by which `training.compute` counts, if the sweep file has none: `{"rates": [operations, bytes]}`."""
Guard = Callable[[], AbstractContextManager[int | None]]
"""Within it this process may write to a sweep's folder, under this fencing token. It raises what forbids that."""


@dataclass(frozen=True)
class SweepFolder:
    """The paths of one sweep."""

    path: Path
    refresh: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Brings here what another machine has changed (`view.py`)."""
    guard: Guard = field(default=nullcontext, compare=False, repr=False)
    """The lease under which its driver writes (`lease.py`)."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def prepared(self) -> Path:
        return self.path / "prepared.json"

    @property
    def stop_request(self) -> Path:
        """`babeltune stop` makes this file; the driver sees it."""
        return self.path / "stop"

    @property
    def log(self) -> Path:
        """The actions of its drivers, a line each; `babeltune logs` shows them."""
        return self.path / "driver.log"

    def note(self, text: str) -> None:
        """Adds a line to the log, unless another driver has the sweep."""
        with suppress(SweepError), self.guard(), self.log.open("a", encoding="utf-8") as lines:
            lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(text.split())}\n")

    def trial(self, number: int) -> Path:
        return self.path / "trials" / trial_name(number)

    def trials(self) -> list[Path]:
        parent = self.path / "trials"
        return sorted(parent.glob("t[0-9]*")) if parent.exists() else []

    def has_all_trials(self, sweep: Sweep) -> bool:
        """Whether all trials have ended, and what a finished sweep has made is there."""
        ended = log_of(self.path).ended
        return ended >= sweep.budget.trials and all(self.read(name) is not None for name in FINISHED_FILES)

    def read(self, name: str) -> dict[str, Any] | None:
        """The JSON object in this file of the folder, or what others have of a damaged one; None if there is none."""
        path = self.path / name
        try:
            return read_json(path) if path.exists() else None
        except SweepError:
            return rebuilt(self, name)

    def write(self, name: str, value: object) -> None:
        with self.guard():
            write_json(self.path / name, value, durable=name not in NOT_DURABLE)

    def labels(self) -> dict[str, Any]:
        """The labels that users gave the sweep (`messages.Labels`), as far as its small file has it."""
        return self.read(LABELS) or {}

    def baselines(self) -> dict[str, dict[str, float]]:
        """The dev scores of the untrained student and the raw teacher; empty before they are made."""
        scores: dict[str, dict[str, float]] = (self.read("baselines.json") or {}).get("scores", {})
        return scores

    def sweep(self, written_spec: Mapping[str, object] | None = None) -> Sweep:
        """The spec, with accepted changes that are not written yet. `written_spec` is `sweep.json`, if it is read."""
        written, accepting = self._written_sweep(written_spec), log_of(self.path).accepting
        if accepting is None or accepting["spec"] is None:
            return written
        accepted = sweep_from(accepting["spec"])
        return written if sweep_id(written) == sweep_id(accepted) else accepted

    def sweep_of(self, number: int) -> Sweep:
        """The spec with which the trial began."""
        condition, specs = condition_of(number, self.accepted()), log_of(self.path).specs_before
        return sweep_from(specs[condition - 1]) if condition <= len(specs) else self.sweep()

    def with_rates(self, sweep: Sweep) -> Sweep:
        """The sweep with the rates that were measured for it, if it has none of its own."""
        if sweep.budget.unit == "pairs" or sweep.training.rates is not None:
            return sweep
        measured = self.read(RATES)
        if measured is None:
            raise DamagedError(f"{self.path / RATES} is gone, so no trial has a length; restore it from a copy")
        return replace(sweep, training=replace(sweep.training, rates=tuple(measured["rates"])))

    def _written_sweep(self, spec: Mapping[str, object] | None) -> Sweep:
        values, path = spec or self.read("sweep.json"), self.path / "sweep.json"
        if values is None and (words := damage(path)):
            raise DamagedError(
                f"{words}, or `babeltune resume {self.id} --spec FILE` with the file that it was begun with"
            )
        if values is None:
            raise SweepError(f"{self.path} has no sweep.json; it is not a sweep's folder")
        try:
            return sweep_from(values)
        except SpecError as error:
            why = " ".join(str(error.__cause__ or error).splitlines()[:3])
            raise DamagedError(
                f"{path} is damaged, or of another version of babeltune ({why}); restore it from a copy"
            ) from error

    def set_state(self, state: str, **more: Scalar) -> None:
        self.write("state.json", {"state": state, "time": time.time(), **more})
        self.note(": ".join([state, *map(str, more.values())]))

    def state(self) -> str:
        values = self.read("state.json")
        return str(values["state"]) if values else "new"

    def accepted(self) -> list[dict[str, Any]]:
        """The changes that were accepted while the sweep went on (`provenance.py`), the first first."""
        return log_of(self.path).accepted

    def data_of(self, number: int) -> Path:
        """The record of the data with which the trial began."""
        history = self.accepted()
        for condition in range(condition_of(number, history), len(history) + 1):
            if (copy := self.path / "conditions" / str(condition) / self.prepared.name).exists():
                return copy
        return self.prepared


def add_to_ledger(folder: SweepFolder, event: str, **facts: object) -> None:
    """Adds an event to the sweep's ledger, under its driver's lease."""
    with folder.guard() as token:
        append_event(folder.path / LEDGER, event, token, **facts)


def condition_of(number: int, history: Sequence[Mapping[str, Any]]) -> int:
    """Under which of a sweep's conditions the trial began: 1, and one more for each change accepted before."""
    return 1 + sum(number not in entry["begun"] for entry in history)


def refuse_a_file(storage: Path) -> None:
    """Raises `SpecError` for a storage that is no folder."""
    if storage.exists() and not storage.is_dir():
        raise SpecError(f"the storage {storage} is not a folder; set BABELTUNE_HOME, or `storage` in the cluster file")


def sweep_folders(storage: Path) -> list[SweepFolder]:
    """All sweeps of a storage, the latest first. Raises `SpecError` for one that is no folder."""
    refuse_a_file(storage)
    parent = storage / "sweeps"
    folders = [SweepFolder(p) for p in parent.iterdir() if (p / "sweep.json").exists()] if parent.exists() else []
    return sorted(folders, key=lambda f: (f.path / "sweep.json").stat().st_mtime, reverse=True)


def name_of(sweep: str) -> str:
    """The name in a sweep's id."""
    return sweep.rpartition("-")[0]


def meant(name: str, names: Mapping[str, str]) -> str | None:
    """The id that the name means; None if it fits none. Case decides only between two. `names` has the name of each id
    (`name_of`, unless the sweep was renamed), the latest first.

    Of several sweeps with this name it is the latest, and a beginning must fit one alone. What was taken for another
    word is logged. Raises `UnknownNameError` that lists the sweeps that a beginning fits."""
    for spelled in (str, str.lower):
        word = spelled(name)
        whole = [each for each, called in names.items() if word in (spelled(each), spelled(called))]
        begun = [each for each in names if word and spelled(each).startswith(word)]
        if whole or len(begun) == 1:
            fitting = whole or begun
            if fitting[0] != name:
                _say(name, fitting[0], tuple(fitting[1:]), alike=names[fitting[0]] == name)
            return fitting[0]
        if begun:
            raise UnknownNameError(
                f"{name!r} begins {plural(len(begun), 'sweep')}: {_list_words(begun)}; write more of it"
            )
    return None


def _list_words(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(ids[:MOST_NAMED]) + more


@functools.cache
def _say(name: str, choice: str, others: tuple[str, ...], *, alike: bool) -> None:
    """Once in a process: a command may look its sweep up twice. A name that one sweep has is as good as its id."""
    if others:
        rest = _list_words(others)
        log.warning(f"{name!r} fits {len(others) + 1} sweeps; this is the latest, {choice}; the others: {rest}")
    elif not alike:
        log.warning(f"{name!r} is taken for {choice}")


def find_sweep(storage: Path, name: str | None) -> SweepFolder:
    """The sweep that `meant` means, or without a name the latest one that is not archived.

    Raises `UnknownNameError` that names the nearest."""
    folders = sweep_folders(storage)
    if not folders:
        raise UnknownNameError(f"no sweep in {storage}; `babeltune submit search_spaces/quickstart.yaml` starts one")
    if name is None:
        return next((folder for folder in folders if not folder.labels().get("archived")), folders[0])
    ids = [folder.id for folder in folders]
    if name in ids:
        return folders[ids.index(name)]
    names = {folder.id: folder.labels().get("name") or name_of(folder.id) for folder in folders}
    if is_bare_trial(name) and name not in names.values():
        raise UnknownNameError(f"{name!r} is a trial without its sweep; write SWEEP/{name}, such as {ids[0]}/{name}")
    if (sweep_id := meant(name.rstrip("/"), names)) is not None:
        return folders[ids.index(sweep_id)]
    near = nearest(name, [*dict.fromkeys(names.values()), *ids])
    raise UnknownNameError(f"no sweep {name!r} in {storage}; sweeps: {', '.join(ids)}{near}")


def is_bare_trial(name: str) -> bool:
    """Whether the name is a trial's, such as `t0007`, without that of its sweep."""
    return name[:1] in ("t", "T") and NUMBERED.fullmatch(name) is not None


def find_run(storage: Path, name: str) -> tuple[SweepFolder, int | None]:
    """A sweep, or one trial of it named `<sweep>/t0007` or `<sweep>/7`."""
    sweep, _, trial = name.partition("/")
    folder = find_sweep(storage, sweep)
    return folder, find_trial(folder, trial) if trial else None


def find_trial(folder: SweepFolder, name: str) -> int:
    """The number of the trial that is called `t0007` or `7`. Raises `UnknownNameError` that names the nearest."""
    number = NUMBERED.fullmatch(name)
    if number is None or not folder.trial(int(number[1])).exists():
        close = _nearest_trial(folder, int(number[1])) if number else ""
        raise UnknownNameError(f"sweep {folder.id} has no trial {name[:40]!r}; trials: {_trial_words(folder)}{close}")
    return int(number[1])


def _nearest_trial(folder: SweepFolder, number: int) -> str:
    """The words `; the nearest is t0003`, or nothing for a sweep without trials."""
    near = min(((abs(trial_number(path.name) - number), path.name) for path in folder.trials()), default=None)
    return f"; the nearest is {near[1]}" if near else ""


def _trial_words(folder: SweepFolder) -> str:
    """A sweep's trials in a few words."""
    names = [path.name for path in folder.trials()]
    if len(names) > SHOWN_TRIALS:
        return f"{len(names)} from {names[0]} to {names[-1]}"
    return ", ".join(names) or "none yet"


def read_log(folder: SweepFolder) -> str:
    """The notes of the sweep's drivers so far."""
    return folder.log.read_text(encoding="utf-8", errors="replace") if folder.log.exists() else ""


def read_of_trial(place: Path, name: str) -> dict[str, Any] | None:
    """`SweepFolder.read` of a file in a trial's folder."""
    return SweepFolder(place.parents[1]).read(f"{place.parent.name}/{place.name}/{name}")
