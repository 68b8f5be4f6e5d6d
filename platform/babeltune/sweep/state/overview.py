"""All sweeps of a storage, a line each: date, state, trials, best value, data, and what tells sweeps of one name apart.

`babeltune runs` shows it. Only the sweeps' own records are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from babeltune.errors import counted
from babeltune.planning.recorded import NOT_DECIDING
from babeltune.sweep.state.folder import ENDED, SweepFolder
from babeltune.sweep.state.leaderboard import Row
from babeltune.sweep.state.progress import is_driven, standing

LOG_TIME = "%Y-%m-%d %H:%M:%S"
LONGEST_VALUE = 24
"""Characters of a setting's value in a line about what differs."""
MOST_DIFFERENCES = 4
"""Settings that such a line names. It counts the others."""
ABSENT = "–"
"""Stands for a setting that one sweep has and another lacks."""


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """One sweep in the list of all sweeps."""

    sweep: str
    name: str
    begun: float
    """When its first driver started, in seconds since 1970."""
    state: str
    ended: int
    """Trials that have finished, failed or were pruned."""
    budget: int
    """Trials that it is to have."""
    objective: str
    best: str | None
    """The best trial, such as `t0003`."""
    score: float | None
    """The best trial's first objective."""
    data: str
    """What it trains on, in a few words."""
    differs: tuple[str, ...] = ()
    """The settings that differ among sweeps of this name, with this sweep's values."""


def sweep_line(folder: SweepFolder) -> SweepLine:
    """The line of one sweep, without what differs. Raises `SweepError` for one that cannot be read."""
    sweep, state = folder.sweep(), folder.state()
    objective = sweep.objectives[0].metric
    rows, baselines = standing(folder), folder.baselines()
    trials = [row for row in rows if row.name not in baselines and row.state != "damaged"]
    best = next((row for row in trials if row.best is not None), None)
    return SweepLine(
        sweep=folder.id,
        name=sweep.name,
        begun=_begun(folder),
        state="interrupted" if state == "running" and not is_driven(folder) else state,
        ended=sum(row.state in ENDED for row in trials),
        budget=sweep.budget.trials,
        objective=objective,
        best=None if best is None else best.name,
        score=_score(best, objective),
        data=_data_words(folder),
    )


def _score(best: Row | None, objective: str) -> float | None:
    return None if best is None else best.metrics.get(objective)


def _begun(folder: SweepFolder) -> float:
    """The time of the log's first line; that of the spec where there is no log."""
    with suppress(OSError, ValueError), folder.log.open(encoding="utf-8", errors="replace") as lines:
        return time.mktime(time.strptime(lines.readline()[:19], LOG_TIME))
    return (folder.path / "sweep.json").stat().st_mtime


def _data_words(folder: SweepFolder) -> str:
    """Sources and pairs; the sources alone before they are read."""
    sources = [source.name for source in folder.sweep().data.train if source.train]
    named = sources[0] if len(sources) == 1 else f"{len(sources)} sources"
    prepared = folder.read("prepared.json") or {}
    rows, groups = prepared.get("group_rows"), prepared.get("groups")
    if not rows or not groups:
        return named
    languages = groups[0] if len(groups) == 1 else f"{len(groups)} language pairs"
    return f"{named}, {languages}, {counted(sum(rows), 'pair')}"


def with_differences(lines: Sequence[SweepLine], specs: Mapping[str, Mapping[str, object]]) -> list[SweepLine]:
    """The lines, each with the settings that differ among the sweeps of its name. `specs` holds the recorded ones."""
    found = {line.sweep: dict(_leaves(specs[line.sweep])) for line in lines}
    same_name: dict[str, list[str]] = {}
    for line in lines:
        same_name.setdefault(line.name, []).append(line.sweep)
    return [replace(line, differs=tuple(_differing(line.sweep, same_name[line.name], found))) for line in lines]


def _differing(sweep: str, others: Sequence[str], found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    keys = sorted({key for other in others for key in found[other]})
    differ = [key for key in keys if len({found[other].get(key, ABSENT) for other in others}) > 1]
    for key in differ[:MOST_DIFFERENCES]:
        yield f"{key}={found[sweep].get(key, ABSENT)}"
    if len(differ) > MOST_DIFFERENCES:
        yield f"and {len(differ) - MOST_DIFFERENCES} more"


def _leaves(spec: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The settings of a recorded spec that decide results, by their key path, each value in a few characters."""
    for key, value in spec.items():
        if key not in (*NOT_DECIDING, "name", "version"):
            yield from _within(value, key)


def _within(value: object, key: str) -> Iterator[tuple[str, str]]:
    if key.startswith("parameters.") and isinstance(value, dict):
        yield key.removeprefix("parameters."), _short({name: each for name, each in value.items() if each})
    elif isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _within(each, f"{key}.{name}")
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for place, each in enumerate(value):
            name = each.get("name", each.get("metric", place)) if isinstance(each, dict) else place
            yield from _within(each, f"{key}.{name}")
    else:
        yield key, _short(value)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace('"', "")
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
