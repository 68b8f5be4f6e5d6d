"""The words and totals of a sweep in the runs of MLflow: descriptions, the leaderboard, parameters, data sets."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from babeltune.data.prepared import Prepared
from babeltune.evaluation.metric_names import COMPUTE
from babeltune.schema.base import number
from babeltune.schema.records import TEACHER, UNTRAINED, Report, Scalar, Sweep
from babeltune.sweep.state.leaderboard import Row, leading
from babeltune.sweep.state.messages import State
from babeltune.tracking.metric_choice import best_name
from babeltune.tracking.mlflow_client import DataInput, link_to_run

STATES = tuple(state for state in get_args(State) if state != "damaged")  # states of trials that the sweep's run counts
SHOWN = 10  # rows of the leaderboard in a description


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The sweep's own run: totals as metrics, and a description in Markdown."""

    metrics: dict[str, float]
    note: str


def summary_of(sweep: Sweep, id_: str, rows: Sequence[Row], baselines: Collection[str]) -> Summary:
    """The best values, counts by state and cost of the sweep with this id, whose leaderboard has these rows."""
    trials = [row for row in rows if row.name not in baselines]
    scored = [row for row in trials if sweep.objectives[0].metric in row.metrics]
    totals: dict[str, float] = {}
    if lead := leading(scored):
        totals[best_name(sweep.objectives[0].metric)] = lead.metrics[sweep.objectives[0].metric]
        totals |= {o.metric: lead.metrics[o.metric] for o in sweep.objectives if o.metric in lead.metrics}
    by_state = Counter(row.state for row in trials)
    totals |= {f"trials/{state}": float(by_state[state]) for state in STATES}  # also 0, over what was sent before
    totals["cost/trial_seconds"] = sum(row.seconds for row in trials)
    totals["cost/pairs"] = float(sum(row.pairs for row in trials))
    if any(COMPUTE in row.metrics for row in trials):
        totals["cost/compute_seconds"] = sum(row.metrics.get(COMPUTE, 0.0) for row in trials)
    return Summary(metrics=totals, note=_note(sweep, id_, rows, scored, baselines))


def _note(sweep: Sweep, id_: str, rows: Sequence[Row], scored: Sequence[Row], baselines: Collection[str]) -> str:
    aims = [o.metric for o in sweep.objectives]
    lead = leading(scored)
    best = ""
    if lead:
        best = f"**{link_to_run(lead.name, lead.name)}** is the best trial: {aims[0]} {lead.metrics[aims[0]]:.4f}."
    if lead and lead is not (first := scored[0]):
        best += f" {link_to_run(first.name, first.name)} ({first.state}) had {first.metrics[aims[0]]:.4f}."
    titles = ["", "state", *aims, *sweep.parameters]
    lines = [sweep.description, "", best, "", _line(*titles), _line(*["---"] * len(titles))]
    for row in rows[:SHOWN]:
        scores = [f"{row.metrics[aim]:.4f}" if aim in row.metrics else "" for aim in aims]
        state = "baseline" if row.name in baselines else row.state
        values = ["" if (value := row.params.get(name)) is None else number(value) for name in sweep.parameters]
        lines.append(_line(link_to_run(row.name, row.name), state, *scores, *values))
    if len(rows) > SHOWN:
        lines += ["", f"{len(rows) - SHOWN} more rows: `babeltune runs {id_}`"]
    lines += [
        "",
        f"* All trials, the winner first: `babeltune ui {id_}`",
        f"* The {link_to_run('report', artifact='report.html')}, once the sweep has finished",
        f"* Take the winner: `babeltune promote {id_}`",
    ]
    return "\n".join(lines).strip()


def experiment_note(sweep: Sweep) -> str:
    """The description of the experiment, which holds the sweeps of one name."""
    best = best_name(sweep.objectives[0].metric)
    return (
        f"{sweep.description}\n\nEach run is a sweep of `{sweep.name}`, and its child runs are the trials. "
        f"`babeltune ui SWEEP` opens the trials of one sweep, the winner first. `{best}` is a trial's best value."
    ).strip()


def trial_note(sweep: str, row: Row) -> str:
    """The description of a trial's run."""
    best = (
        f" Its best report is number {row.best}; `babeltune promote {sweep}/{row.name}` takes it." if row.best else ""
    )
    warning = f"\n\n{row.warning}" if row.warning else ""
    return f"Trial `{sweep}/{row.name}` {row.state}{f': {row.reason}' if row.reason else ''}.{best}{warning}"


def baseline_note(sweep: str, name: str) -> str:
    """The description of a baseline's run."""
    words = {UNTRAINED: "the student before training", TEACHER: "the teacher itself"}
    return f"Baseline `{name}` of sweep `{sweep}`: {words.get(name, 'a model as it is')}, scored on the dev sets."


def params_once(settings: Mapping[str, object], searched: Mapping[str, Scalar]) -> dict[str, object]:
    """The parameters of a trial's run: searched ones by their names in the sweep file, and the others."""
    settings_of_method = cast("Mapping[str, object]", settings["config"])
    config = {name: value for name, value in settings_of_method.items() if name not in searched}
    return {**settings, "config": config, **searched}


def data_inputs(digests: Mapping[str, str]) -> list[DataInput]:
    """The data sets behind these digests; names of evaluation sets begin with `dev/` or `test/`."""
    kinds = {name: name.partition("/")[0] if name.startswith(("dev/", "test/")) else "training" for name in digests}
    return [DataInput(name=name, digest=digest, context=kinds[name]) for name, digest in digests.items()]


def table_of_metrics(reports: Sequence[Report]) -> bytes:
    """Every metric of the reports as rows of a Parquet file: step, pairs, time, name and value."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"report": r.index, "step": step, "pairs": r.pairs * step // max(r.step, 1), "time_ms": time_ms}
        | {"metric": name, "value": value}
        for r in reports
        for step, time_ms, values in [*((p.step, p.time_ms, p.values) for p in r.points), (r.step, None, r.metrics)]
        for name, value in values.items()
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def corpus_facts(prepared: Prepared, teacher: Mapping[str, Scalar]) -> bytes:
    """Facts about the sweep's text, as JSON: pairs by source and step, overlap and contamination, cut and aligned
    texts, and what the `teacher` encoded. It is one file, for a sweep of many sets has hundreds of counts."""
    facts = {
        **prepared.counts,
        "truncated": {key: tokens.truncated for key, tokens in prepared.tokens.items()},
        "teacher": dict(teacher),
        "digests": prepared.digests,
    }
    return json.dumps(facts, ensure_ascii=False, indent=1).encode()


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
