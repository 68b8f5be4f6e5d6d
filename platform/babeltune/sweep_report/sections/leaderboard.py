"""The leaderboard of a report: every trial and baseline with its interval, as a chart and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.evaluation.metric_names import COMPUTE, PARAMETERS, SPEED
from babeltune.sweep_report.charts import BARS, OUTSIDE, WIDTH, Caption, at_edge, clipped, limits_of, one_line, pieces
from babeltune.sweep_report.document import Block, Figure, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import Standing, SweepReport
from babeltune.sweep_report.svg import SERIES, drawing, svg_of
from babeltune.sweep_report.words import better, duration, interval, is_words, score, setting, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def leaderboard(report: SweepReport, most: int) -> Section:
    """All trials and baselines with their intervals, the best first."""
    metric, shown = report.objective.metric, report.standings[:most]
    chart = leaderboard_chart(
        Caption(
            name="leaderboard",
            title=f"{short(metric)} by trial",
            description=f"Value and 95 % interval of each trial and baseline; {better(report.objective.goal)}. "
            f"{report.winner.row.name} leads with {score(report.winner.value)}.",
        ),
        shown,
        metric,
    )
    description = "Circles are trials, diamonds are baselines. Hollow circles did not finish. Lines are 95 % intervals."
    description += f" {OUTSIDE}"
    blocks: list[Block] = [
        _intervals(report),
        Figure("Scores and their intervals", description, chart, _scores_table(shown, metric)),
        _leaderboard_table(report, shown),
    ]
    if any(each.row.front for each in shown):
        blocks.append(Paragraph(text="★: on the Pareto front of the objectives."))
    if (cut := len(report.standings) - len(shown)) > 0:
        blocks.append(Paragraph(text=f"{cut} more trials are in `babeltune runs {report.sweep}`."))
    if report.selection is not None and report.selection.among > 1:
        blocks.append(Paragraph(text=report.selection.words(report.winner.row.name)))
    return Section(anchor="leaderboard", title="Leaderboard", blocks=tuple(blocks))


COSTS = {PARAMETERS: "parameters", SPEED: "sentences/s", COMPUTE: "compute (s)"}
"""Costs of a model, and the titles of their columns."""


def _leaderboard_table(report: SweepReport, shown: Sequence[Standing]) -> ReportTable:
    metric, others = report.objective.metric, [o.metric for o in report.objectives[1:]]
    costs = [name for name in COSTS if any(name in each.row.metrics for each in shown)]
    searched = tuple(dict.fromkeys(name for each in shown for name in each.row.params))
    rows: list[tuple[str, ...]] = []
    for each in shown:
        row = each.row
        name = f"{row.name} ★" if row.front else row.name
        state = "baseline" if each.is_baseline else row.state
        cells = [name, state, score(each.value), interval(each)]
        cells += [score(row.metrics.get(other)) for other in others]
        cells += [f"{row.metrics[cost]:,.0f}" if cost in row.metrics else "–" for cost in costs]
        cells += [f"{row.pairs:,}" if row.pairs else "–", duration(row.seconds) if row.seconds else "–"]
        cells += [setting(each, parameter) for parameter in searched]
        rows.append(tuple(cells))
    columns = ("trial", "state", short(metric), "95 % interval", *map(short, others), *(COSTS[name] for name in costs))
    columns += ("pairs", "time")
    words = {place for place, name in enumerate(searched, len(columns)) if is_words(shown, name)}
    columns += searched
    return ReportTable(
        caption=f"Trials and baselines by {short(metric)}, {better(report.objective.goal)}",
        columns=columns,
        rows=tuple(rows),
        left=frozenset({0, 1} | words),
        marked=next((i for i, each in enumerate(shown) if each is report.winner), None),
    )


def _intervals(report: SweepReport) -> Paragraph:
    """The meaning of the intervals."""
    if report.winner.error is None:
        return Paragraph(text="This metric's standard error is not known, so there are no intervals.")
    return Paragraph(
        text="An interval is the value ± 1.96 standard errors, by the number of distinct dev rows. It says how much "
        "the score would vary with other sentences, not with other seeds."
    )


def _scores_table(shown: Sequence[Standing], metric: str) -> ReportTable:
    rows = tuple((each.row.name, score(each.value), interval(each)) for each in shown if each.value is not None)
    return ReportTable(caption=f"{short(metric)} by trial", columns=("trial", "value", "95 % interval"), rows=rows)


def leaderboard_chart(caption: Caption, standings: Sequence[Standing], metric: str) -> str:
    """Each trial's and baseline's value with its 95 % interval, the best on top. The trials fill the axis."""
    shown = [each for each in standings if each.value is not None][:BARS]
    fit = [each for each in shown if not each.is_baseline] or shown
    limits = limits_of(end for each in fit for end in (each.interval or (each.value or 0.0,)))
    drawings = list[str]()
    for part, rows in pieces(caption, shown):
        with drawing(WIDTH, 0.9 + 0.26 * len(rows)) as figure:
            axes = figure.subplots()
            _rows(axes, rows, limits)
            labels = [f"{row.name} ({row.state})".removesuffix(" (finished)") for row in (each.row for each in rows)]
            axes.set_yticks(range(len(rows)), [clipped(label) for label in labels])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(limits)
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(short(metric))
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def _rows(axes: Axes, rows: Sequence[Standing], limits: tuple[float, float]) -> None:
    intervals = defaultdict[str, list[tuple[tuple[float, float], tuple[int, int]]]](list)
    marks = defaultdict[tuple[str, str, str], list[tuple[float, int]]](list)
    for place, each in enumerate(rows):
        color = SERIES[2] if each.is_baseline else SERIES[0]
        at, side = at_edge(each.value or 0.0, limits)
        if each.interval is not None:
            intervals[color].append((each.interval, (place, place)))
        marker = ("o" if not each.is_baseline else "D") if side == 0 else "<>"[side > 0]
        marks[marker, color, color if each.row.state == "finished" else "none"].append((at, place))
        if side:
            axes.annotate(
                score(each.value),
                (at, place),
                xytext=(-8 * side, 0),
                textcoords="offset points",
                ha="right" if side > 0 else "left",
                va="center",
                fontsize=9,
                color=color,
            )
    for color, lines in intervals.items():
        axes.plot(*one_line(lines), color=color, linewidth=1.6, solid_capstyle="butt")
    for (marker, color, face), points in marks.items():
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none",
            marker=marker,
            color=color,
            markersize=6,
            markerfacecolor=face,
            clip_on=False,
        )
