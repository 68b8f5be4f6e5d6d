"""All sweeps of a storage, a line each: date, state, trials, best value, data, and what tells sweeps of one name apart.

`babeltune runs` shows it. Only the sweeps' own records are read."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from babeltune.errors import plural
from babeltune.planning.recorded import NOT_DECIDING
from babeltune.schema.records import Sweep
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import best_first, trial_rows
from babeltune.sweep.state.log import log_of
from babeltune.sweep.state.progress import SweepDocument, state_of

LOG_TIME = "%Y-%m-%d %H:%M:%S"
LONGEST_VALUE = 24  # characters of a setting's value in a line about what differs
MOST_DIFFERENCES = 4  # settings that such a line names. It counts the others.
ABSENT = "–"  # stands for a setting that one sweep has and another lacks


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """One sweep in the list of all sweeps."""

    sweep: str
    name: str
    begun: float  # when its first driver started, in seconds since 1970
    state: str
    ended: int  # trials that have finished, failed or were pruned
    budget: int  # trials that it is to have
    objective: str
    best: str | None  # the best trial, such as `t0003`
    score: float | None  # the best trial's first objective
    title: str = ""  # the name that it was given later; empty: its own
    note: str = ""  # the sweep's last note
    archived: bool = False
    data: str  # the data that it trains on, in a few words
    differs: tuple[str, ...] = ()  # the settings that differ among sweeps of this name, with this sweep's values


@dataclass(frozen=True, kw_only=True)
class ListedSweep(SweepLine, SweepDocument):
    """One sweep in the list of all sweeps, with its trials."""


def sweep_line(folder: SweepFolder, spec: Mapping[str, object] | None = None) -> SweepLine:
    """The line of one sweep, without what differs. `spec` is its `sweep.json` if it is read already.

    Raises `SweepError` for one that cannot be read."""
    sweep = folder.sweep(spec)
    objective, labels = sweep.objectives[0].metric, log_of(folder.path).labels
    order = best_first(sweep, objective)
    scored = [row for row in trial_rows(folder, sweep) if row.best is not None]
    best = min(scored, key=lambda row: (order(row.metrics), row.name), default=None)
    return SweepLine(
        sweep=folder.id,
        name=sweep.name,
        begun=_begin_time(folder),
        state=state_of(folder),
        ended=log_of(folder.path).ended,
        budget=sweep.budget.trials,
        objective=objective,
        best=None if best is None else best.name,
        score=None if best is None else best.metrics.get(objective),
        title=str(labels.get("name", "")),
        note=str(labels.get("note", "")),
        archived=bool(labels.get("archived")),
        data=_data_words(folder, sweep),
    )


def _begin_time(folder: SweepFolder) -> float:
    """The time of the log's first line; that of the spec if there is no log."""
    with suppress(OSError, ValueError), folder.log.open(encoding="utf-8", errors="replace") as lines:
        return time.mktime(time.strptime(lines.readline()[:19], LOG_TIME))
    return (folder.path / "sweep.json").stat().st_mtime


def _data_words(folder: SweepFolder, sweep: Sweep) -> str:
    """Sources and pairs; the sources alone before they are read."""
    sources = [source.name for source in sweep.data.train if source.train]
    words = sources[0] if len(sources) == 1 else f"{len(sources)} sources"
    prepared = folder.read("prepared.json") or {}
    rows, groups = prepared.get("group_rows"), prepared.get("groups")
    if not rows or not groups:
        return words
    languages = groups[0] if len(groups) == 1 else f"{len(groups)} language pairs"
    return f"{words}, {languages}, {plural(sum(rows), 'pair')}"


def with_differences(lines: Sequence[SweepLine], specs: Mapping[str, Mapping[str, object]]) -> list[SweepLine]:
    """The lines, each with the settings that differ among the sweeps of its name. `specs` holds the recorded ones."""
    same_name: dict[str, list[str]] = {}
    for line in lines:
        same_name.setdefault(line.name, []).append(line.sweep)
    values = dict[str, tuple[str, ...]]()
    for sweeps in same_name.values():
        settings = _differing([specs[sweep] for sweep in sweeps])
        values |= {sweep: tuple(_values(each)) for sweep, each in zip(sweeps, settings, strict=True)}
    return [replace(line, differs=values[line.sweep]) for line in lines]


def _differing(specs: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Of each spec, the settings in which these specs differ, with its values."""
    first = specs[0]
    sections = {key for spec in specs for key in spec.keys() | first if spec.get(key) != first.get(key)}
    leaves = [dict(_leaves({key: spec[key] for key in sections & spec.keys()})) for spec in specs]
    keys = sorted({key for each in leaves for key in each})
    keys = [key for key in keys if any(each.get(key, ABSENT) != leaves[0].get(key, ABSENT) for each in leaves)]
    return [{key: each.get(key, ABSENT) for key in keys} for each in leaves]


def _values(settings: Mapping[str, object]) -> Iterator[str]:
    for key, value in list(settings.items())[:MOST_DIFFERENCES]:
        yield f"{key}={_short(value)}"
    if len(settings) > MOST_DIFFERENCES:
        yield f"and {len(settings) - MOST_DIFFERENCES} more"


def _leaves(spec: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The settings of a recorded spec that decide results, by their key path."""
    for key, value in spec.items():
        if key not in (*NOT_DECIDING, "name", "version"):
            yield from _within(value, key)


def _within(value: object, key: str) -> Iterator[tuple[str, object]]:
    if key.startswith("parameters.") and isinstance(value, dict):
        yield key.removeprefix("parameters."), {name: each for name, each in value.items() if each}
    elif isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _within(each, f"{key}.{name}")
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for place, each in enumerate(value):
            name = each.get("name", each.get("metric", place)) if isinstance(each, dict) else place
            yield from _within(each, f"{key}.{name}")
    else:
        yield key, value


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace('"', "")
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
