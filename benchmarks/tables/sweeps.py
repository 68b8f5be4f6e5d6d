"""A table's sweeps: one for the learning rates of each group of rows, and one for the rows' seeds.

A finished sweep is not run again, so a table that was cut off goes on where it ended."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import babeltune as bt
from babeltune.api import SETTING
from babeltune.errors import SweepError
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.model_names import start_folder
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import read_cluster
from babeltune.schema.records import Scalar, Sweep
from babeltune.tracking.registry import champion_of
from babeltune.training.checkpoint import read_reports
from benchmarks.tables.definition import PAIRS, SEARCH_SEED, Row, Table

RATE = "training.learning_rate"
MADE = "BABELTUNE_MADE"  # the variable by which sweep files name a table's own text
FURTHER = 2  # times that the search goes on beyond an edge
Points = list[dict[str, Scalar]]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One row's trials."""

    row: Row
    rate: float  # the learning rate that the search chose
    objective: str  # the dev metric of the search
    searched: dict[float, float | None]  # learning rate -> the objective on dev; None for a trial that failed
    searches: tuple[str, ...]  # the ids of the sweeps of its learning rates
    sweep: str  # the id of the sweep of its seeds
    trials: tuple[str, ...]  # names such as `t0003`, in the order of the seeds
    logged: dict[str, tuple[float, ...]]
    """Metric -> its mean over the training, or what the last report says of it, by seed; without those that a row's
    method does not have."""


def assignments(table: Table, group: int, rows: Sequence[Row], points: Points, kind: str) -> list[str]:
    """The words of `--set` that turn the table's sweep file into the sweep of these points."""
    when = {
        key: {other: _occurring(values, other, points) for other, values in conditions.items()}
        for row in rows
        for key, conditions in row.when.items()
    }
    keys = dict.fromkeys(key for point in points for key in point)
    parameters = dict[str, Any]()
    for key in keys:
        parameters[key] = {"choice": list(dict.fromkeys(point[key] for point in points if key in point))}
        if key in when:
            parameters[key]["when"] = when[key]
    words = [f"name={table.name}_{kind}_{group}", "parameters={}"]
    if table.start:
        words.append(f"student={{kind: {table.start_kind}, start: {json.dumps(table.start)}}}")
    words += rows[0].changes
    words += [f"parameters.{key}={json.dumps(value)}" for key, value in parameters.items()]
    return [
        *words,
        "sampler={kind: random}",
        f"sampler.points={json.dumps(points)}",
        "scheduler={kind: none}",
        f"budget.trials={len(points)}",
        "budget.workers=1",
    ]


def _occurring(values: Scalar | list[Scalar], name: str, points: Points) -> Scalar | list[Scalar]:
    """The values of a condition that any of the points has. A sweep refuses others."""
    return (
        [value for value in values if any(point.get(name) == value for point in points)]
        if isinstance(values, list)
        else values
    )


def search_points(rows: Sequence[Row], rates: Mapping[str, Sequence[float]]) -> Points:
    """Each row with each of its learning rates."""
    return [{**row.settings, RATE: rate, "seed": SEARCH_SEED} for row in rows for rate in rates[row.name]]


def next_rate(scores: Mapping[float, float | None], sign: int) -> list[float]:
    """The rate beyond the best one, by the same factor, if the best is the least or the largest; else none.

    `sign` is 1 if a larger score is better, and -1 otherwise."""
    rates = sorted(scores)
    best = best_rate(scores, sign)
    if len(rates) < 2 or rates[0] < best < rates[-1]:
        return []
    beside = rates[1] if best == rates[0] else rates[-2]
    return [float(f"{best * best / beside:.1g}")]


def best_rate(scores: Mapping[float, float | None], sign: int) -> float:
    """The rate whose score is best."""
    return max((sign * score, rate) for rate, score in scores.items() if score is not None)[1]


def seed_points(table: Table, rows: Sequence[Row], rates: Mapping[str, float]) -> Points:
    """Each row with each seed, at its own rate."""
    return [{**row.settings, RATE: rates[row.name], "seed": seed} for row in rows for seed in table.seeds]


def planned(table: Table) -> list[tuple[str, list[str]]]:
    """The sweep file and the words of `--set` of each sweep, as if the first rate were chosen for every row."""
    sweeps = []
    for group, rows in enumerate(table.groups()):
        rates = {row.name: row.rates(table.rates) for row in rows}
        first = {name: row_rates[0] for name, row_rates in rates.items()}
        for kind, points in (("rates", search_points(rows, rates)), ("seeds", seed_points(table, rows, first))):
            sweeps.append((table.sweep, assignments(table, group, rows, points, kind)))
    return sweeps


def read_planned(file: str, words: Sequence[str], cluster: str | None) -> Sweep:
    """A planned sweep, with the models that it starts from; `SpecError` before these are promoted."""
    place = read_cluster(cluster)
    return read_sweep(file, assignments=words, reachable=True, fetch=lambda model: start_folder(model, place))


def sweep_of(table: Table, cluster: str | None) -> Sweep:
    """The table's first sweep, from which the lengths and the objective are read."""
    return read_planned(*planned(table)[0], cluster)


def make_text(table: Table, cluster: str | None) -> None:
    """Writes the table's own text into the storage, and says where it is."""
    if table.text is not None:
        folder = read_cluster(cluster).folder / "tables" / table.name
        table.text(data_root(read_sweep(table.sweep)), folder)
        os.environ[MADE] = str(folder.absolute())


def promote_starts(table: Table, cluster: str | None) -> list[str]:
    """Trains and promotes the models that the table starts from, unless they are registered; the sweeps' ids."""
    place, ids = read_cluster(cluster), []
    for file in table.before:
        name = read_planned(file, (), cluster).name
        result = bt.submit(file, cluster=cluster)
        ids.append(result.id)
        if champion_of(place.mlflow, name, "champion") is None:
            decision = promote(result.id, place)
            if decision.registered is None:
                raise SweepError(f"{result.id} was not promoted: {'; '.join(decision.reasons)}")
    return ids


def train_rows(table: Table, cluster: str | None) -> list[Trained]:
    """Runs what is not finished; the rows in their order."""
    place = read_cluster(cluster).folder / "sweeps"
    by_name: dict[str, Trained] = {}
    for group, rows in enumerate(table.groups()):
        objective = sweep_of(table, cluster).objectives[0]
        sign = 1 if objective.goal == "maximize" else -1
        scores, searches = _search(table, group, rows, objective.metric, sign, cluster)
        rates = {name: best_rate(row_scores, sign) for name, row_scores in scores.items()}
        points = seed_points(table, rows, rates)
        sweep, seeds = _submitted(table, assignments(table, group, rows, points, "seeds"), cluster)
        for row in rows:
            trials = [_trial(seeds, {**row.settings, "seed": seed}) for seed in table.seeds]
            if failed := [name for name in trials if seeds.loc[name, "state"] != "finished"]:
                raise SweepError(
                    f"{sweep}: {', '.join(failed)} of row {row.name!r} did not finish; `babeltune trial` says why"
                )
            by_name[row.name] = Trained(
                row=row,
                rate=rates[row.name],
                objective=objective.metric,
                searched=scores[row.name],
                searches=tuple(searches),
                sweep=sweep,
                trials=tuple(trials),
                logged=_logged(table, place / sweep, trials),
            )
    return [by_name[row.name] for row in table.rows]


def _search(
    table: Table, group: int, rows: Sequence[Row], metric: str, sign: int, cluster: str | None
) -> tuple[dict[str, dict[float, float | None]], list[str]]:
    """Row -> learning rate -> the objective, and the ids of the sweeps that found it.

    A row whose best rate is at an edge is searched beyond it, `FURTHER` times at most."""
    scores: dict[str, dict[float, float | None]] = {row.name: {} for row in rows}
    left: dict[str, Sequence[float]] = {row.name: row.rates(table.rates) for row in rows}
    searches: list[str] = []
    for more in range(1 + FURTHER):
        open_rows = [row for row in rows if left[row.name]]
        if not open_rows:
            break
        kind = f"rates_{more}" if more else "rates"
        sweep, runs = _submitted(
            table, assignments(table, group, open_rows, search_points(open_rows, left), kind), cluster
        )
        searches.append(sweep)
        for row in open_rows:
            scores[row.name] |= _scores(runs, row, left[row.name], metric)
            left[row.name] = next_rate(scores[row.name], sign)
    return scores, searches


def _submitted(table: Table, words: list[str], cluster: str | None) -> tuple[str, pd.DataFrame]:
    """The sweep's id and its trials, once it is finished."""
    result = bt.submit(read_planned(table.sweep, words, cluster), cluster=cluster)
    if result.state != "finished":
        raise SweepError(f"{result.id} is {result.state}; run the table again to go on")
    return result.id, bt.runs(result.id, cluster=cluster)


def _trial(runs: pd.DataFrame, settings: Mapping[str, Scalar]) -> str:
    """The name of the trial with these settings."""
    names = [str(name) for name, run in runs.iterrows() if all(run.get(SETTING + k) == v for k, v in settings.items())]
    if len(names) != 1:
        raise SweepError(f"{len(names)} trials have {dict(settings)}; there should be one")
    return names[0]


def _scores(runs: pd.DataFrame, row: Row, rates: Sequence[float], metric: str) -> dict[float, float | None]:
    """Learning rate -> the row's objective."""
    scores: dict[float, float | None] = {}
    for rate in rates:
        run = runs.loc[_trial(runs, {**row.settings, RATE: rate})]
        scores[rate] = float(run[metric]) if run["state"] == "finished" else None
    return scores


def _logged(table: Table, folder: Path, trials: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Metric -> its mean over the training, or what the last report says of it, by seed."""
    reports = [read_reports(folder / "trials" / name) for name in trials]
    points = [[point.values for report in of_trial for point in report.points] for of_trial in reports]
    last = [{PAIRS: float(of_trial[-1].pairs), **of_trial[-1].metrics} for of_trial in reports]
    means: dict[str, tuple[float, ...]] = {}
    for metric in table.logged:
        by_trial = [[values[metric] for values in of_trial if metric in values] for of_trial in points]
        if all(by_trial):
            means[metric] = tuple(map(statistics.fmean, by_trial))
    facts = {
        metric: tuple(values[metric] for values in last)
        for metric in table.logged
        if metric not in means and all(metric in values for values in last)
    }
    return means | facts
