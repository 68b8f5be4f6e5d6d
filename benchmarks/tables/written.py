"""How a page writes scores and orders, and what may be said of an order of a record."""

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.tables.definition import MEGABYTES, PAIRS, START, Record
from benchmarks.tables.verdict import Judged, Verdict, judge


def rates_differ(claim: Record, record: Record) -> bool:
    """Whether the two rows were trained at unequal learning rates that were searched. *Untrained* has none."""
    rates = {row["name"]: row["learning_rate"] for row in record["rows"] if len(row["searched"]) > 1}
    return len({rates[name] for name in (claim["better"], claim["worse"]) if name in rates}) > 1


def judged(claim: Record, record: Record) -> Judged:
    """What the verdict of an ordering depends on."""
    better, worse = claim["values"]
    return Judged(
        unchecked=not claim["searched"] and rates_differ(claim, record),
        searched=tuple(claim["searched"]),
        better=better,
        worse=worse,
        differences=tuple(claim["differences"]),
        sentence_error=claim["sentence_error"],
        untrained=claim["untrained"],
        kind=claim["kind"],
        margin=claim["margin"],
        smaller_is_better="error" in claim["metric"],
    )


def verdict(claim: Record, record: Record) -> Verdict:
    """What may be said of an ordering of a record."""
    return judge(judged(claim, record))


def order_of(claim: Record, record: Record) -> str:
    better, worse = (record["start_name"] if claim[key] == START else claim[key] for key in ("better", "worse"))
    sign = "=" if claim["kind"] == "level" else "<" if "error" in claim["metric"] else ">"
    times = "" if claim["times"] == 1 else f"{claim['times']:g} × "
    return f"{better} {sign} {times}{worse}"


def table_of(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(value) for value in line)} |" for line in lines)


def mean_of(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def logged_of(metric: str, values: Sequence[float]) -> str:
    """Sizes, speeds and counts without a spread."""
    if metric not in (PAIRS, MEGABYTES) and not metric.startswith("model/"):
        return mean_of(values)
    return f"{statistics.fmean(values):,.{1 if metric == MEGABYTES else 0}f}"
