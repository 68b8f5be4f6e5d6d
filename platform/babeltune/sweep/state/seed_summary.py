"""A table over seeds: a sweep's finished trials grouped by their settings, with mean and standard deviation.

Pure: rows of the leaderboard go in, one `SettingsRow` per setting comes out. A trial counts with its best report by the
first objective, as in the leaderboard."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from babeltune.errors import UnknownNameError, nearest
from babeltune.schema.base import number
from babeltune.schema.records import Scalar, Sweep
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import Row, best_first, leaderboard


@dataclass(frozen=True, kw_only=True)
class SettingsRow:
    """One row of the table: a combination of searched values with its trials, or a baseline."""

    name: str = ""
    """`untrained` or `teacher`; empty for a setting."""
    settings: dict[str, Scalar] = field(default_factory=dict)
    """The searched values, without those that the table is over."""
    trials: tuple[str, ...] = ()
    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Metric -> the trials' values, or a baseline's one."""
    mean: dict[str, float] = field(default_factory=dict)
    deviation: dict[str, float | None] = field(default_factory=dict)
    """Standard deviation of a sample (n - 1); None for one value."""


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """The table of `babeltune runs SWEEP --over seed`."""

    sweep: str
    over: tuple[str, ...]
    metrics: tuple[str, ...]
    groups: tuple[SettingsRow, ...]
    """Best first by the mean of the first metric."""
    left_out: dict[str, tuple[str, ...]]
    """Trials that are in no mean: by state, and `repeated` for those whose every setting an earlier one had."""


def compare_settings(
    folder: SweepFolder, over: Collection[str], metrics: Iterable[str] = (), sort: str | None = None
) -> SettingsTable:
    """Means of a sweep's finished trials, grouped by all settings except those in `over`, such as the seed.

    `sort` is the metric that comes first. Raises as `seed_groups` does."""
    baselines = folder.baselines()
    trials = [row for row in leaderboard(folder, sort) if row.name not in baselines]
    return seed_groups(folder.id, folder.sweep(), trials, baselines, over, metrics, sort)


def seed_groups(
    name: str,
    sweep: Sweep,
    trials: Sequence[Row],
    baselines: Mapping[str, Mapping[str, float]],
    over: Collection[str],
    metrics: Iterable[str] = (),
    sort: str | None = None,
) -> SettingsTable:
    """The trials of sweep `name` in groups that differ in what is not in `over`, and the baselines.

    `metrics`, when none are given, are the objectives and every dev metric over all subsets; `sort`, or else the first
    objective, stands first. Raises `UnknownNameError` for a parameter that is not searched, or a metric nobody has."""
    every = [*(row.metrics for row in trials), *baselines.values()]
    metric_names = dict.fromkeys(metric for scores in every for metric in scores)
    by, shown = sort or sweep.objectives[0].metric, tuple(metrics)
    _check(over, sweep.parameters, f"sweep {name} searches no")
    _check([*shown, *filter(None, [sort])], metric_names, f"sweep {name} has no metric")
    if not shown:
        whole = [metric for metric in metric_names if metric.startswith("dev/") and metric.count("/") == 2]
        shown = (*(objective.metric for objective in sweep.objectives), *whole)
    columns = tuple(dict.fromkeys([by, *shown]))
    groups: dict[str, list[Row]] = {}
    settings: dict[str, dict[str, Scalar]] = {}
    left_out: dict[str, list[str]] = {}
    seen = set[frozenset[tuple[str, Scalar]]]()
    for row in sorted(trials, key=lambda row: row.name):
        params = frozenset(row.params.items())
        why = row.state if row.state != "finished" or row.best is None else "repeated" if params in seen else ""
        if why:
            left_out.setdefault(why, []).append(row.name)
            continue
        seen.add(params)
        fixed = {key: row.params[key] for key in sorted(row.params) if key not in over}
        settings[repr(fixed)] = fixed
        groups.setdefault(repr(fixed), []).append(row)
    summaries = [
        _group(columns, [row.metrics for row in rows], settings=settings[key], trials=tuple(row.name for row in rows))
        for key, rows in groups.items()
    ]
    summaries += [_group(columns, [scores], name=baseline) for baseline, scores in baselines.items()]
    order = best_first(sweep, by)
    return SettingsTable(
        sweep=name,
        over=tuple(over),
        metrics=columns,
        groups=tuple(sorted(summaries, key=lambda group: order(group.mean))),
        left_out={why: tuple(names) for why, names in left_out.items()},
    )


def _group(
    columns: Iterable[str],
    scores: Sequence[Mapping[str, float]],
    *,
    name: str = "",
    settings: Mapping[str, Scalar] | None = None,
    trials: tuple[str, ...] = (),
) -> SettingsRow:
    values = {
        metric: tuple(each[metric] for each in scores) for metric in columns if all(metric in each for each in scores)
    }
    return SettingsRow(
        name=name,
        settings=dict(settings or {}),
        trials=trials,
        values=values,
        mean={metric: statistics.fmean(numbers) for metric, numbers in values.items()},
        deviation={m: statistics.stdev(numbers) if len(numbers) > 1 else None for m, numbers in values.items()},
    )


def _check(names: Iterable[str], allowed: Collection[str], problem: str) -> None:
    for name in names:
        if name not in allowed:
            choices = ", ".join(sorted(allowed)) or "none"
            raise UnknownNameError(f"{problem} {name!r}; known: {choices}{nearest(name, allowed)}")


# --- As text -------------------------------------------------------------------------------------------------------


def cells(table: SettingsTable) -> list[list[str]]:
    """The table as text: titles, then one row per group. Settings that all groups share are left out."""
    trained = [group for group in table.groups if not group.name]
    keys = sorted({key for group in trained for key in group.settings})
    differ = [key for key in keys if len({repr(group.settings.get(key)) for group in trained}) > 1]
    rows = [["settings", "n", *(metric.removeprefix("dev/") for metric in table.metrics)]]
    for group in table.groups:
        text = " ".join(f"{key}={number(group.settings[key])}" for key in differ if key in group.settings)
        scores = [_score(group, metric) for metric in table.metrics]
        rows.append([group.name or text or "all trials", str(len(group.trials) or ""), *scores])
    return rows


def _score(group: SettingsRow, metric: str) -> str:
    if metric not in group.mean:
        return "–"
    spread = group.deviation[metric]
    return f"{group.mean[metric]:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def footnote(table: SettingsTable) -> str:
    """The trials that are in no mean, with the reason. Empty if every trial is in one."""
    text = ", ".join(f"{len(names)} {why} ({', '.join(names)})" for why, names in table.left_out.items())
    return f"left out: {text}" if text else ""


def markdown(table: SettingsTable) -> str:
    """The table as GitHub shows it, with the footnote under it."""
    titles, *rows = [[cell.replace("|", "\\|") for cell in row] for row in cells(table)]
    dashes = ["---"] + ["--:"] * (len(titles) - 1)
    lines = [f"| {' | '.join(row)} |" for row in (titles, dashes, *rows)]
    if note := footnote(table):
        lines += ["", note]
    return "\n".join(lines)
