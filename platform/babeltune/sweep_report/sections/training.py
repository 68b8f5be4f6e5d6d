"""How the trials of a report trained: learning curves, and the quantities that training itself shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.sweep_report.charts import NAMED, WIDTH, Caption, clipped, named_lines, thousands
from babeltune.sweep_report.document import Block, Figure, Items, Section, Table, Text
from babeltune.sweep_report.record import Curve, Diagnostic, SweepReport
from babeltune.sweep_report.svg import FAINT, MUTED, drawing, svg_of
from babeltune.sweep_report.words import short

if TYPE_CHECKING:
    from matplotlib.artist import Artist


def _course(report: SweepReport) -> str:
    return "pairs seen" if report.unit == "pairs" else "counted seconds of compute"


def _curves_table(curves: Sequence[Curve], caption: str, course: str) -> Table:
    """A row per trial, a column per report; trials may report after different numbers of pairs."""
    most = max(len(curve.x) for curve in curves)
    rows = [
        (
            curve.trial,
            *(f"{y:.4f} ({x:,.10g})" for x, y in zip(curve.x, curve.y, strict=True)),
            *["–"] * (most - len(curve.x)),
        )
        for curve in curves
    ]
    titles = (f"report {index}" for index in range(1, most + 1))
    return Table(caption=f"{caption}; in brackets: {course}", columns=("trial", *titles), rows=tuple(rows))


def learning_curves(report: SweepReport, most: int) -> Section | None:
    """The first objective over the course of training."""
    if not report.curves:
        return None
    metric, course, curves = report.objective.metric, _course(report), report.curves[:most]
    levels = [(each.row.name, each.value) for each in report.baselines if each.value is not None]
    description = (
        f"{short(metric)} of every trial over {course}. The best {min(5, len(curves))} have colours; "
        "dotted lines are baselines."
    )
    title = "Learning curves"
    svg = curves_chart(
        Caption(name="curves", title=title, description=description), curves, levels, course, short(metric)
    )
    table = _curves_table(curves, f"{short(metric)} at each report", course)
    return Section(anchor="curves", title=title, blocks=(Figure("", description, svg, table),))


def diagnostics(report: SweepReport) -> Section | None:
    """What the training itself showed, and what went wrong with single trials."""
    blocks: list[Block] = []
    if report.diagnostics:
        title, course = "Diagnostics of the best trials", _course(report)
        description = " ".join(f"{each.name}: {each.meaning}" for each in report.diagnostics)
        caption = Caption(name="diagnostics", title=title, description=description)
        rows = tuple(
            (each.name, curve.trial, f"{curve.y[0]:.4f}", f"{curve.y[-1]:.4f}")
            for each in report.diagnostics
            for curve in each.curves
        )
        columns = ("quantity", "trial", "first report", "last report")
        table = Table(caption=title, columns=columns, rows=rows, left=frozenset({0, 1}))
        blocks.append(Items(items=tuple(f"{each.name}: {each.meaning}" for each in report.diagnostics)))
        named = [curve.trial for curve in report.curves]
        svg = diagnostics_chart(caption, report.diagnostics, named, course)
        blocks.append(Figure("", "One line per trial, in the colours of the learning curves.", svg, table))
    if report.notes:
        blocks += [Text(text="What is amiss:"), Items(items=report.notes)]
    return Section(anchor="diagnostics", title="Diagnostics", blocks=tuple(blocks)) if blocks else None


def curves_chart(
    caption: Caption, curves: Sequence[Curve], levels: Sequence[tuple[str, float]], x_label: str, y_label: str
) -> str:
    """A line per trial, the best ones named; `levels` are the baselines, as horizontal lines."""
    named = [curve.trial for curve in curves[:NAMED]]
    with drawing(WIDTH, 3.9) as figure:
        axes = figure.subplots()
        for curve in curves[NAMED:]:
            axes.plot(curve.x, curve.y, color=FAINT, linewidth=1, marker=".", markersize=3)
        named_lines(axes, curves[:NAMED], named)
        for name, value in _merged(levels):
            axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
            axes.annotate(
                clipped(name),
                (1, value),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 2),
                textcoords="offset points",
                ha="right",
                color=MUTED,
                fontsize=9,
            )
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        thousands(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), handlelength=3)
        return svg_of(figure, caption.name, caption.title, caption.description)


def _merged(levels: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Levels that are too near to one another for two labels, as one."""
    found: list[tuple[str, float]] = []
    for name, value in sorted(levels, key=lambda level: level[1]):
        if found and value - found[-1][1] < 0.015:
            found[-1] = f"{found[-1][0]}, {name}", found[-1][1]
        else:
            found.append((name, value))
    return found


def diagnostics_chart(caption: Caption, diagnostics: Sequence[Diagnostic], named: Sequence[str], x_label: str) -> str:
    """A small chart per quantity, a line per trial."""
    columns = 2
    rows = math.ceil(len(diagnostics) / columns)
    with drawing(WIDTH, 0.4 + 2.2 * rows) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, each in zip(grid.flat, diagnostics, strict=False):
            named_lines(axes, each.curves, named)
            axes.set_title(each.name)
            thousands(axes)
            axes.set_xlabel(x_label, fontsize=9)
        for axes in grid.flat[len(diagnostics) :]:
            axes.set_visible(False)
        handles: dict[str, Artist] = {}
        for axes in grid.flat:
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        shown = [name for name in named if name in handles]
        figure.legend([handles[name] for name in shown], shown, loc="outside upper left", ncols=NAMED, handlelength=3)
        return svg_of(figure, caption.name, caption.title, caption.description)
