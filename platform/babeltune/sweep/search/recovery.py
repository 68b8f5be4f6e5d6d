"""Makes a study that is lost, damaged or of another version again from the ledger, which has all that a search
needs. Events that only the study has are added to the ledger."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import OperationalError

from babeltune.errors import BabeltuneError, StorageError
from babeltune.files import aside
from babeltune.schema.records import Scalar, Sweep
from babeltune.sweep.search.study import Ledger, Proposals, follow, open_study, reported
from babeltune.sweep.search.warm_start import Suggest
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.log import reported as reported_facts
from babeltune.sweep.state.messages import end_of
from babeltune.training.checkpoint import read_reports

log = logging.getLogger(__name__)


@contextlib.contextmanager
def study_refusals(study: Path) -> Iterator[None]:
    """Makes a `StorageError` of what the study's database could not do: its disk is full, or another process has it."""
    try:
        yield
    except (OperationalError, optuna.exceptions.StorageInternalError) as error:
        raise StorageError.at(study, str(error.__cause__ or error).splitlines()[0]) from error


def sound_study(
    folder: Path, sweep: Sweep, ledger: Ledger, suggest: Suggest, warm: Iterable[FrozenTrial] = ()
) -> optuna.Study:
    """The sweep's study in `folder`; one that cannot be read, or knows less than the ledger, is put aside and replaced.

    Raises `OperationalError` when the storage itself refuses: the study may be sound.
    """
    given = list(warm)
    known: dict[int, FrozenTrial] | None = None
    try:
        study = open_study(folder, sweep)
        known = Proposals(study, sweep, suggest, given).trials()
        fault = _difference(known, ledger)
    except (OperationalError, BabeltuneError):
        raise
    except Exception as error:  # whatever an altered file, or the schema of another version, leads to
        if isinstance(error.__cause__, OperationalError):
            raise
        fault = str(error).splitlines()[0]
    if not fault:
        return study
    log.warning("study.db cannot be used (%s): it is made again from results.jsonl", fault)
    if known is None or known:
        _put_aside(folder)
        study = open_study(folder, sweep)
    proposals = Proposals(study, sweep, suggest, given)

    def as_recorded(params: dict[str, Scalar]) -> int:
        study.enqueue_trial(params)
        return proposals.ask()[0]

    follow(ledger.lines, proposals, as_recorded)
    return study


def catch_up(ledger: Ledger, proposals: Proposals, folder: Path) -> None:
    """Adds to the ledger what the study learned just before a crash, in the order in which it did. The sweep's `folder`
    has what was reported."""
    proposed, ended = ledger.numbers("propose"), ledger.numbers("end")
    unknown: list[tuple[datetime, Callable[[], None]]] = []
    for number, trial in sorted(proposals.trials().items()):
        began = trial.datetime_start or datetime.min
        until = max(began, trial.datetime_complete or datetime.max)
        if number not in proposed:
            unknown.append((began, partial(ledger.add, "propose", number, params=trial.params)))
        known = {line["index"] for line in ledger.reports(number)}
        for index, values in sorted(reported(trial).items()):
            if index not in known:  # proposals do not depend on when a report came
                made = {report.index: report for report in read_reports(SweepFolder(folder).trial(number))}
                facts = reported_facts(made[index]) if index in made else {}
                unknown.append((until, partial(ledger.add, "report", number, index=index, values=values, **facts)))
        if number not in ended and trial.state.is_finished():
            final = trial.values if trial.state == TrialState.COMPLETE else None
            end = end_of({"state": trial.state.name, **trial.user_attrs})
            unknown.append((until, partial(ledger.add_end, number, trial.state.name, final, end)))
    for _, add in sorted(unknown, key=lambda each: each[0]):
        add()


def _difference(known: dict[int, FrozenTrial], ledger: Ledger) -> str:
    """What the ledger says that the study does not; empty where there is nothing."""
    made = {number: reported(trial) for number, trial in known.items()}
    for line in ledger.lines:
        trial = known.get(line["number"])
        if trial is None:
            return f"it lacks trial {line['number']}"
        if line["event"] == "report" and line["index"] not in made[line["number"]]:
            return f"it lacks report {line['index']} of trial {line['number']}"
        if line["event"] != "end":
            continue
        values = trial.values if line["state"] == "COMPLETE" else None  # of a pruned one Optuna keeps the last report's
        if (trial.state.name, values) != (line["state"], line["values"]):
            return f"it has another end of trial {line['number']}"
    return _half_drawn(known, ledger)


def _half_drawn(known: dict[int, FrozenTrial], ledger: Ledger) -> str:
    """The study's last trial, if the driver died while its parameters were drawn and the ledger knows all else.
    Drawing only the rest would not give what an undisturbed search draws."""
    new = known.keys() - ledger.numbers("propose")
    ended = {number for number, trial in known.items() if trial.state.is_finished()}
    if len(new) != 1 or new != {max(known)} or ended - ledger.numbers("end") or known[max(known)].intermediate_values:
        return ""
    return f"trial {max(known)} was being drawn"


def _put_aside(folder: Path) -> None:
    """Renames the study's files."""
    kept = aside(folder / "study.db")
    for suffix in ("", "-journal", "-wal", "-shm"):
        path = folder / f"study.db{suffix}"
        if path.exists():
            path.rename(kept.with_name(f"{kept.name}{suffix}"))
