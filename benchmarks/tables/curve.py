"""Picture of a table whose rows differ in `dim` alone: scores by dimension, as in Mao and Nakagawa 2023, figure 1."""

import statistics
from pathlib import Path

from benchmarks.tables.definition import START, Record
from benchmarks.tables.drawing import panels


def dims_of(record: Record) -> list[int]:
    """The dimensions of the rows. Empty if the rows differ in anything else."""
    dims = [row["settings"].get("dim") for row in record["rows"] if list(row["settings"]) == ["dim"]]
    return dims if len(set(dims)) == len(record["rows"]) else []


def draw_curve(record: Record, picture: Path) -> None:
    """One line for each score, its standard deviation over seeds, and the start's score as a dotted line."""
    dims = dims_of(record)
    with panels(picture, 1, 3) as (_, (panel,)):
        for column in record["columns"]:
            values = [row["values"][column["metric"]] for row in record["rows"]]
            means, spread = (list(map(how, values)) for how in (statistics.fmean, statistics.stdev))
            line = panel.errorbar(dims, means, yerr=spread, marker="o", capsize=2, label=column["title"])
            if START in column:
                panel.axhline(column[START], color=line.lines[0].get_color(), linestyle=":")
        panel.set(xlabel="dimensions", ylabel="score", xscale="log")
        panel.set_xticks(dims, map(str, dims))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend()
