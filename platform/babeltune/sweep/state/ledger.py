"""A sweep's ledger as its driver writes it: what happened to its trials, in order. The study is made from it."""

import json
import os
import time
from pathlib import Path
from typing import cast

from babeltune.files import append_line, aside, end_on_a_line, write_whole
from babeltune.schema.records import Report, Scalar
from babeltune.sweep.state.messages import Accepted, LedgerLine, Submission, TrialEnd, scores_of

REQUIRED_KEYS = {
    "propose": ("params",),
    "report": ("index", "values"),
    "end": ("state", "values"),
    "give_up": ("trials",),
    "submit": tuple(Submission.__required_keys__),
    "accept": tuple(Accepted.__required_keys__),
    "leave": ("state",),
}
"""Keys that each event must have."""
OF_SWEEP = ("submit", "accept", "leave", "label", "pause", "continue")
"""Events of the sweep, which the search does not ask for."""
FOR_READERS = ("metrics", "facts", "time_ms")  # keys of a line of the ledger that only `log.py` reads


def end_facts(end: TrialEnd) -> dict[str, str]:
    """The facts of an end in the ledger and the study. `end_of` reads them again."""
    facts = {"kind": end.kind, "error_type": end.error_type, "reason": end.text}
    return {name: value for name, value in facts.items() if value}


def _time_of(report: Report) -> dict[str, int]:
    """When the report was made, the same whenever it is recorded; nothing if its points do not say it."""
    trained = [point.time_ms for point in report.points if "train/loss" in point.values]
    return {"time_ms": trained[-1]} if trained else {}


def append_event(path: Path, event: str, **facts: object) -> LedgerLine:
    """Appends one line to the ledger, on disk before it returns."""
    time_ms = facts.pop("time_ms", time.time_ns() // 1_000_000)
    # The time ends the line: by its last bytes a reader sees whether the file is still the one that it has read.
    line = cast("LedgerLine", {"event": event, **facts, "time_ms": time_ms})
    append_line(path, json.dumps(line).encode())
    return line


class Ledger:
    """`results.jsonl`: what happened, in order. The driver moves all after an invalid line to a file beside it."""

    def __init__(self, path: Path, *, mend: bool = True) -> None:
        """Without `mend` the file is only read: it may be another driver's."""
        self._path = path
        self.lines: list[LedgerLine] = []
        self._reports: dict[int, list[LedgerLine]] = {}
        self._params: dict[int, dict[str, Scalar]] = {}
        self.given_up: set[int] = set()  # trials that ended before the sweep ended for its failures
        self.failed: set[int] = set()  # trials that failed since then
        if mend:
            end_on_a_line(path)
        whole = path.read_bytes() if path.exists() else b""
        sound = 0
        for line in whole.splitlines(keepends=True):
            try:
                self._remember(json.loads(line))
            except (ValueError, TypeError, KeyError):
                if mend:  # A line that is added after an invalid one would never be read.
                    write_whole(aside(path), whole[sound:], durable=True)
                    os.truncate(path, sound)
                break
            sound += len(line)

    def add(self, event: str, number: int, **facts: object) -> None:
        """Appends one line about a trial, on disk before it returns."""
        self._remember(append_event(self._path, event, number=number, **facts))

    def add_report(self, number: int, report: Report, values: list[float]) -> None:
        """Appends a trial's report, with its objectives. Its points stay in the trial's folder."""
        names = ("index", "checkpoint", "step", "pairs", "seconds", "last", "steps", "facts")
        facts = {name: getattr(report, name) for name in names} | {"metrics": scores_of(report)}
        self.add("report", number, values=values, **facts, **_time_of(report))

    def add_end(self, number: int, state: str, values: list[float] | None, end: TrialEnd, **progress: int) -> None:
        """Appends a trial's end in this state of Optuna's, and how far its training was."""
        self.add("end", number, state=state, values=values, **end_facts(end), **progress)

    def params(self, number: int) -> dict[str, Scalar]:
        """The settings of a trial that was proposed."""
        return self._params[number]

    def reports(self, number: int) -> list[LedgerLine]:
        """The trial's reports: `index`, `values` by objective, `checkpoint`."""
        return list(self._reports.get(number, ()))

    def _remember(self, line: LedgerLine) -> None:
        if missing := [name for name in REQUIRED_KEYS.get(line["event"], ()) if name not in line]:
            raise KeyError(missing[0])
        if line["event"] in OF_SWEEP:
            return
        number = line["number"]
        if line["event"] == "propose":
            self._params[number] = line["params"]
        elif line["event"] == "report":
            self._reports.setdefault(number, []).append(line)
        elif line["event"] == "end" and line.get("state") == "FAIL":
            self.failed.add(number)
        elif line["event"] == "give_up":
            self.given_up |= set(line["trials"])
            self.failed -= self.given_up
        # What only readers want would stay in the driver's memory for each report of each trial.
        self.lines.append(cast("LedgerLine", {name: value for name, value in line.items() if name not in FOR_READERS}))
