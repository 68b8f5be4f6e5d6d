"""The costs of models: quality over size and speed, and the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass

from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.schema.records import UNTRAINED
from babeltune.sweep_report.charts import OUTSIDE, WIDTH, Caption, at_edge, clipped, few_ticks, limits_of
from babeltune.sweep_report.document import Figure, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import SweepReport
from babeltune.sweep_report.svg import SERIES, drawing, svg_of
from babeltune.sweep_report.words import better, score, short


def pareto(report: SweepReport, most: int) -> Section | None:
    """Quality against size and speed, and which trials no other one beats."""
    on_front = frozenset(report.front)
    models = [
        Priced(
            name=each.row.name,
            quality=each.value,
            parameters=each.row.metrics[PARAMETERS],
            speed=each.row.metrics[SPEED],
            on_front=each.row.name in on_front,
            is_baseline=each.is_baseline,
        )
        for each in report.standings
        if each.value is not None and each.row.name != UNTRAINED and {PARAMETERS, SPEED} <= each.row.metrics.keys()
    ][:most]
    if not models:
        return None
    metric = report.objective.metric
    description = (
        f"{short(metric)} over speed; a larger mark is a larger model. Filled circles are on the Pareto front: no "
        f"other finished trial is as good in every respect and better in one. {OUTSIDE}"
    )
    title = "Quality, size and speed"
    rows = tuple(
        (
            each.name,
            score(each.quality),
            f"{each.parameters:,.0f}",
            f"{each.speed:,.0f}",
            "yes" if each.on_front else "",
        )
        for each in models
    )
    columns = ("model", short(metric), "parameters", "sentences/s", "on the front")
    table = ReportTable(caption=title, columns=columns, rows=rows)
    svg = front_chart(Caption(name="front", title=title, description=description), models, metric)
    names = ", ".join(f"{short(name)} ({better(goal)})" for name, goal in report.front_metrics)
    hidden = len(report.front) - most
    on_it = ", ".join(report.front[:most]) + (f" and {hidden:,} more" if hidden > 0 else "")
    text = Paragraph(text=f"On the front of {names}: {on_it or 'no trial'}.")
    return Section(anchor="front", title=title, blocks=(text, Figure("", description, svg, table)))


@dataclass(frozen=True, kw_only=True)
class Priced:
    """A model's quality and what it costs to use."""

    name: str
    quality: float
    parameters: float
    speed: float
    on_front: bool
    is_baseline: bool


def front_chart(caption: Caption, models: Sequence[Priced], metric: str) -> str:
    """Quality over speed; a larger circle is a larger model. Filled: on the Pareto front. The trials fill the axes."""
    largest = max(each.parameters for each in models)
    trials = [each for each in models if not each.is_baseline] or models
    heights = limits_of(each.quality for each in trials)
    with drawing(WIDTH, 3.8) as figure:
        axes = figure.subplots()
        for each in models:
            color = SERIES[2] if each.is_baseline else SERIES[0]
            at, side = at_edge(each.quality, heights)
            axes.scatter(
                each.speed,
                at,
                s=40 + 360 * each.parameters / largest,
                marker=("D" if each.is_baseline else "o") if side == 0 else "v^"[side > 0],
                facecolor=color if each.on_front else "none",
                edgecolor=color,
                linewidth=1.6,
                alpha=1,
                clip_on=False,
            )
        for each in [each for each in models if each.on_front or each.is_baseline][:12]:
            at, side = at_edge(each.quality, heights)
            words = f"{clipped(each.name)} {score(each.quality)}" if side else clipped(each.name)
            place = (9, -7 if side > 0 else 7)
            axes.annotate(words, (each.speed, at), xytext=place, textcoords="offset points", fontsize=9)
        if max(each.speed for each in models) > 20 * min(each.speed for each in models) > 0:
            axes.set_xscale("log")
        else:
            few_ticks(axes)
        axes.margins(0.12, 0)
        axes.set_ylim(heights)
        axes.set_xlabel("sentences per second, one worker")
        axes.set_ylabel(short(metric))
        return svg_of(figure, caption.name, caption.title, caption.description)
