"""The winner of a report in each language, beside the untrained student, the teacher and the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.sweep_report.charts import BARS, WIDTH, Caption, clipped, pieces
from babeltune.sweep_report.document import Figure, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import LanguageScore, SweepReport
from babeltune.sweep_report.svg import BAR, INK, MARKERS, SERIES, drawing, svg_of
from babeltune.sweep_report.words import score, short, subset_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def languages(report: SweepReport) -> Section | None:
    """The winner in each language, beside the untrained student, the teacher and the baselines."""
    if not report.languages:
        return None
    models = list(dict.fromkeys(name for score_ in report.languages for name, _ in score_.values))
    description = f"{report.winner.row.name} as bars in each subset of the dev sets; marks: {', '.join(models[1:])}."
    if (hidden := len(report.languages) - BARS) > 0:
        description += f" {hidden} more are in the table."
    rows = tuple((short(each.metric), *_values(each.values, models)) for each in report.languages)
    table = ReportTable(caption="Dev scores by language", columns=("metric", *models), rows=rows)
    title = "Languages"
    svg = languages_chart(Caption(name="languages", title=title, description=description), report.languages)
    weakest = min(report.languages, key=lambda each: each.values[0][1])
    text = f"Lowest: {subset_name(weakest.metric)} with {score(weakest.values[0][1])}."
    blocks = (Paragraph(text=text), Figure("", description, svg, table))
    return Section(anchor="languages", title=title, blocks=blocks)


def _values(values: Sequence[tuple[str, float]], models: Sequence[str]) -> tuple[str, ...]:
    by_model = dict(values)
    return tuple(score(by_model.get(model)) for model in models)


def languages_chart(caption: Caption, scores: Sequence[LanguageScore]) -> str:
    """The winner as bars, the other models as marks beside them."""
    shown = scores[:BARS]
    models = list(dict.fromkeys(name for score in shown for name, _ in score.values))
    values = [0.0, *(value for score in shown for _, value in score.values)]
    drawings = list[str]()
    for part, rows in pieces(caption, shown):
        with drawing(WIDTH, 1.1 + 0.32 * len(rows)) as figure:
            axes = figure.subplots()
            _bars(axes, rows, models)
            axes.set_yticks(range(len(rows)), [clipped(subset_name(score.metric)) for score in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(min(values), max(values) * 1.05)
            axes.grid(axis="y", visible=False)
            figure.legend(loc="outside upper left", ncols=2)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def _bars(axes: Axes, rows: Sequence[LanguageScore], models: Sequence[str]) -> None:
    """The first model as bars, the others as marks."""
    for index, model in enumerate(models):
        points = [(place, value) for place, score in enumerate(rows) for name, value in score.values if name == model]
        places, values = [place for place, _ in points], [value for _, value in points]
        if index == 0:
            axes.barh(places, values, height=0.62, color=BAR, edgecolor=SERIES[0], label=clipped(model))
            continue
        style = index % len(MARKERS)
        axes.plot(
            values,
            places,
            linestyle="none",
            marker=MARKERS[style],
            markersize=7,
            markerfacecolor="none",
            markeredgewidth=1.8,
            clip_on=False,
            color=INK if index == 1 else SERIES[style],
            label=clipped(model),
        )
