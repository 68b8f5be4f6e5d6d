"""Runs a table and gathers its findings in one record, which is all that its page is made from."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from babeltune.promotion.candidate import find_candidate
from babeltune.schema.cluster import read_cluster
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.provenance import environment_facts
from babeltune.sweep.workers.connection import connected
from benchmarks.tables.cpu import CpuSeconds
from benchmarks.tables.definition import START, UNTRAINED, Claim, Table
from benchmarks.tables.heat_map import heat_maps_of
from benchmarks.tables.sampling import Scored, sampling_error
from benchmarks.tables.sealed import SealedSets
from benchmarks.tables.spread import percentiles_of
from benchmarks.tables.sweeps import Trained, make_text, promote_starts, train_rows

DIGITS = 6  # digits of a score in the record
Record = dict[str, Any]
Scores = Mapping[str, Sequence[Scored]]  # row -> its seeds' scores


def run(table: Table, cluster: str | None = None) -> Record:
    """Trains and scores what is not there yet, and returns the table's record."""
    place = read_cluster(cluster)
    cpu_file = place.folder / "tables" / f"{table.name}_cpu_seconds.json"
    with CpuSeconds(cpu_file) as cpu, connected(place):  # one Ray for all sweeps
        make_text(table, cluster)
        starts = promote_starts(table, cluster)
        rows = train_rows(table, cluster)
        names = [[f"{row.sweep}/{trial}" for trial in row.trials] for row in rows]
        sealed = SealedSets(names[0][0], place)
        single = {UNTRAINED: sealed.untrained, **({START: f"{starts[-1]}/t0000"} if table.start_name else {})}
        scored = dict(sealed.score([*(name for some in names for name in some), *single.values()]))
        scores = {row.row.name: [scored[name] for name in some] for row, some in zip(rows, names, strict=True)}
        scores |= {row: [scored[name]] * len(table.seeds) for row, name in single.items()}
        columns: list[Record] = []
        for column in table.columns:
            figures = {row: _round(scores[row][0].scores[column.metric]) for row in single}
            columns.append(asdict(column) | {"items": sealed.items(column.metric)} | figures)
        record: Record = {
            "name": table.name,
            "title": table.title,
            "paper": table.paper,
            "budget": table.budget,
            "ours": table.ours,
            "command": f"make table TABLE={table.name}",
            "columns": columns,
            "logged": table.logged,
        }
        if table.start_name:
            record["start_name"] = table.start_name
        if table.heat_map:
            record["heat_map"] = heat_maps_of(SweepFolder(place.folder / "sweeps" / rows[0].sweep))
        if table.distribution:
            record["distribution"] = _distribution(table, rows, sealed)
        if table.uses:
            record |= {"uses": _uses(table, rows, scores, sealed), "limits": table.limits}
        record["rows"] = [_row(table, row, scores[row.row.name]) for row in rows]
        record["claims"] = [
            _claim(claim, metric, scores, sealed, table.from_scratch)
            | {"searched": at_equal_rates(claim, metric, rows)}
            for claim in table.claims
            for metric in claim.metrics
        ]
        record["run"] = _facts(table, rows, starts, sealed) | {"cpu_seconds": round(cpu.total())}
        return record


def _round(value: float) -> float:
    return round(value, DIGITS)


def _row(table: Table, trained: Trained, scored: Sequence[Scored]) -> Record:
    columns = [column.metric for column in table.columns]
    logged: dict[str, list[float]] = {}
    for metric in table.logged:
        values = trained.logged.get(metric) or [one.scores[metric] for one in scored if metric in one.scores]
        if values:
            logged[metric] = list(map(_round, values))
    return {
        "name": trained.row.name,
        "settings": trained.row.settings,
        "changes": list(trained.row.changes),
        "learning_rate": trained.rate,
        "searched": {f"{rate:g}": value and _round(value) for rate, value in trained.searched.items()},
        "sweep": trained.sweep,
        "trials": list(trained.trials),
        "values": {metric: [_round(one.scores[metric]) for one in scored] for metric in columns},
        "logged": logged,
    }


def _distribution(table: Table, rows: Sequence[Trained], sealed: SealedSets) -> dict[str, list[float]]:
    """Percentiles of the first seed, by row."""
    first = {row.row.name: f"{row.sweep}/{row.trials[0]}" for row in rows}
    candidates = {name: find_candidate(first[name], sealed.view.folder) for name in table.distribution}
    return {name: percentiles_of(candidate.trial, candidate.prepared) for name, candidate in candidates.items()}


def _uses(table: Table, rows: Sequence[Trained], scores: Scores, sealed: SealedSets) -> list[Record]:
    """For each use the best row, and how far it is above each of the others."""
    uses = []
    for metric, use in table.uses.items():
        names = [row.name for row in table.rows]
        best = max(names, key=lambda name: statistics.fmean(result.scores[metric] for result in scores[name]))
        others = [Claim(better=best, worse=name, metrics=(metric,), paper="") for name in names if name != best]
        uses.append(
            {
                "metric": metric,
                "use": use,
                "best": best,
                "others": [
                    _claim(other, metric, scores, sealed, table.from_scratch)
                    | {"searched": at_equal_rates(other, metric, rows)}
                    for other in others
                ],
            }
        )
    return uses


def _claim(claim: Claim, metric: str, scores: Scores, sealed: SealedSets, from_scratch: bool) -> Record:
    better, worse = scores[claim.better], scores[claim.worse]
    values = [[result.scores[metric] for result in row] for row in (better, worse)]
    error = sampling_error(metric, sealed.tasks, better, worse, claim.times)
    facts = asdict(claim)
    del facts["metrics"]
    differences = [_round(a - claim.times * b) for a, b in zip(*values, strict=True)]
    return {
        **facts,
        "metric": metric,
        "values": [_round(statistics.fmean(each)) for each in values],
        "differences": differences,
        "sentence_error": error and _round(error),
        "untrained": _round(scores[UNTRAINED][0].scores[metric]) if from_scratch else None,
    }


def at_equal_rates(claim: Claim, metric: str, rows: Sequence[Trained]) -> list[float]:
    """How far the first row is above the second on dev, or above `claim.times` the second.

    There are two values: both rows at the rate of the one, and both at that of the other, if both finished.

    Empty if their own learning rates are the same, or what is compared, for another kind of metric than the
    objective's, and for the untrained student."""
    by_name = {row.row.name: row for row in rows}
    better, worse = by_name.get(claim.better), by_name.get(claim.worse)
    if better is None or worse is None or better.rate == worse.rate or better.row.rate or worse.row.rate:
        return []
    if better.objective.rpartition("/")[2] != metric.rpartition("/")[2]:
        return []
    at_rates = [(better.searched.get(rate), worse.searched.get(rate)) for rate in (better.rate, worse.rate)]
    return [_round(a - claim.times * b) for a, b in at_rates if a is not None and b is not None]


def _facts(table: Table, rows: Sequence[Trained], starts: Sequence[str], sealed: SealedSets) -> Record:
    """The origin of the figures: sweeps, text, code, packages."""
    sweep, facts = sealed.first.sweep, environment_facts()
    sweeps = dict.fromkeys(id_ for row in rows for id_ in (*row.searches, row.sweep))
    versions = {key.removeprefix("version."): value for key, value in facts.items() if key.startswith("version.")}
    compute = {"compute": sweep.training.compute} if sweep.budget.unit == "compute" else {}
    return {
        "sweeps": [*starts, *sweeps],
        "seeds": list(table.seeds),
        "objective": sweep.objectives[0].metric,
        "pairs": sweep.training.pairs,
        **compute,
        "batch": sweep.training.global_batch,
        "commit": facts["git.commit"],
        "paired": True,  # earlier records took the two rows of an xSIM error as independent
        "versions": {"python": facts["python"]} | versions,
        "data": {"prepared": sealed.first.prepared.digest} | sealed.first.prepared.digests,
    }
