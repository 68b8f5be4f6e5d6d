"""How the trials of a report trained: learning curves, and the quantities that training itself shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.sweep_report.charts import (
    LEGEND,
    NAMED,
    WIDTH,
    Caption,
    at_edge,
    clipped,
    few_ticks,
    limits_of,
    named_lines,
    one_line,
    pieces,
)
from babeltune.sweep_report.document import Block, Figure, Items, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import Curve, Diagnostic, SweepReport
from babeltune.sweep_report.svg import FAINT, MUTED, drawing, svg_of
from babeltune.sweep_report.words import score, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn


def _course(report: SweepReport) -> str:
    return "pairs seen" if report.unit == "pairs" else "counted seconds of compute"


def _curves_table(curves: Sequence[Curve], caption: str, course: str) -> ReportTable:
    """A row per trial, a column per report; trials may report after different numbers of pairs."""
    most = max(len(curve.x) for curve in curves)
    rows: list[tuple[str, ...]] = []
    for curve in curves:
        cells = [f"{y:.4f} ({x:,.10g})" for x, y in zip(curve.x, curve.y, strict=True)]
        rows.append((curve.trial, *cells, *["–"] * (most - len(cells))))
    titles = (f"report {index}" for index in range(1, most + 1))
    return ReportTable(caption=f"{caption}; in brackets: {course}", columns=("trial", *titles), rows=tuple(rows))


def learning_curves(report: SweepReport, most: int) -> Section | None:
    """The first objective over the course of training."""
    if not report.curves:
        return None
    metric, course, curves = report.objective.metric, _course(report), report.curves[:most]
    levels = [(each.row.name, each.value) for each in report.baselines if each.value is not None]
    whose = "every trial" if len(curves) == report.scored else f"the best {len(curves)} of {report.scored:,} trials"
    description = (
        f"{short(metric)} of {whose} over {course}. The best {min(5, len(curves))} have colours; "
        "dotted lines are baselines. A baseline outside the chart stands at its edge, with its score."
    )
    title = "Learning curves"
    svg = curves_chart(
        Caption(name="curves", title=title, description=description), curves, levels, course, short(metric)
    )
    table = _curves_table(curves, f"{short(metric)} at each report", course)
    return Section(anchor="curves", title=title, blocks=(Figure("", description, svg, table),))


def diagnostics(report: SweepReport, most: int) -> Section | None:
    """The diagnostics of the training, and the problems of single trials."""
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
        table = ReportTable(caption=title, columns=columns, rows=rows, left=frozenset({0, 1}))
        blocks.append(Items(items=tuple(f"{each.name}: {each.meaning}" for each in report.diagnostics)))
        trials = [curve.trial for curve in report.curves]
        svg = diagnostics_chart(caption, report.diagnostics, trials, course)
        blocks.append(Figure("", "One line per trial, in the colours of the learning curves.", svg, table))
    if report.notes:
        more = [f"and {hidden:,} more"] if (hidden := len(report.notes) - most) > 0 else []
        blocks += [Paragraph(text="What is amiss:"), Items(items=(*report.notes[:most], *more))]
    return Section(anchor="diagnostics", title="Diagnostics", blocks=tuple(blocks)) if blocks else None


def curves_chart(
    caption: Caption, curves: Sequence[Curve], levels: Sequence[tuple[str, float]], x_label: str, y_label: str
) -> str:
    """A line per trial, the best ones named. The trials fill the axis; `levels` are the baselines."""
    trials = [curve.trial for curve in curves[:NAMED]]
    limits = limits_of(value for curve in curves for value in curve.y)
    with drawing(WIDTH, 3.9) as figure:
        axes = figure.subplots()
        others = one_line((curve.x, curve.y) for curve in curves[NAMED:])
        axes.plot(*others, color=FAINT, linewidth=1, marker=".", markersize=3)
        named_lines(axes, curves[:NAMED], trials)
        for side, name, value in _merged(levels, limits):
            if side == 0:
                axes.axhline(value, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
            arrow, offset, align = ("▲", -3, "top") if side > 0 else ("▼", 3, "bottom")
            axes.annotate(
                f"{arrow} {name}" if side else name,
                (1, value),
                xycoords=("axes fraction", "data"),
                xytext=(-2, offset),
                textcoords="offset points",
                ha="right",
                va=align,
                color=MUTED,
                fontsize=9,
            )
        axes.set_ylim(limits)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        few_ticks(axes)
        figure.legend(loc="outside upper left", ncols=LEGEND, handlelength=3)
        return svg_of(figure, caption.name, caption.title, caption.description)


def _merged(levels: Sequence[tuple[str, float]], limits: tuple[float, float]) -> list[tuple[int, str, float]]:
    """The side, label and height of each level. Levels without room for two labels have one; outside, it has scores."""
    marks: list[tuple[int, str, float]] = []
    for name, value in sorted(levels, key=lambda level: level[1]):
        at, side = at_edge(value, limits)
        label = f"{clipped(name)} {score(value)}" if side else clipped(name)
        if marks and at - marks[-1][2] < 0.06 * (limits[1] - limits[0]):
            marks[-1] = marks[-1][0], f"{marks[-1][1]}, {label}", marks[-1][2]
        else:
            marks.append((side, label, at))
    return marks


def diagnostics_chart(caption: Caption, diagnostics: Sequence[Diagnostic], names: Sequence[str], x_label: str) -> str:
    """A small chart per quantity, a line per trial."""
    columns, drawings = 2, list[str]()
    for part, row in pieces(caption, diagnostics, columns):
        first = not drawings
        with drawing(WIDTH, 2.2 + 0.4 * first) as figure:
            line = figure.subplots(1, columns, squeeze=False).flat
            for axes, each in zip(line, row, strict=False):
                named_lines(axes, each.curves, names)
                axes.set_title(each.name)
                few_ticks(axes, 3)
                axes.set_xlabel(x_label, fontsize=9)
            for axes in line[len(row) :]:
                axes.set_visible(False)
            if first:
                _legend(figure, diagnostics, names)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def _legend(figure: Drawn, diagnostics: Sequence[Diagnostic], names: Sequence[str]) -> None:
    """The named trials of all small charts, though the first chart may lack some."""
    axes = figure.add_axes((0, 0, 0, 0), visible=False)
    curves = {curve.trial: curve for each in diagnostics for curve in each.curves}
    named_lines(axes, [curves[name] for name in names if name in curves], names)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=LEGEND, handlelength=3)
