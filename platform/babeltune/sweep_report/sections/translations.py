"""A few translations before and after training: heat maps of their cosines, and their places in a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from babeltune.sweep.state.examples import ExampleSentence, ExampleSentences, Similarities
from babeltune.sweep_report.charts import LEGEND, WIDTH, Caption, clipped, pieces
from babeltune.sweep_report.document import Figure, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import SweepReport
from babeltune.sweep_report.svg import GRID, MARKERS, SERIES, drawing, svg_of
from babeltune.sweep_report.words import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def translations(report: SweepReport) -> Section:
    """A few translations before and after training: their cosines, and their places among one another."""
    title, anchor, examples = "Translations before and after training", "translations", report.examples
    if examples.missing:
        step = "" if "babeltune report" in examples.missing else f" `babeltune report {report.sweep}` makes them."
        return Section(anchor=anchor, title=title, blocks=(Paragraph(text=f"Not made: {examples.missing}.{step}"),))
    words = (
        f"Some sentences of the dev set {examples.dev_set}, evenly spread, before training and after report "
        f"{examples.report} of {examples.trial}. The languages with the lowest scores come first."
    )
    blocks = (Paragraph(text=words), _similarities(examples), _projection(examples))
    return Section(anchor=anchor, title=title, blocks=blocks)


def _similarities(examples: ExampleSentences) -> Figure:
    """The heat maps, and the cosine of each sentence with its translation and with the nearest other sentence."""
    description = (
        "A square is the cosine of a sentence (row) and a sentence in the other language (column), from 0 (blank) to 1 "
        "(full). Translations stand on the diagonal: after training it should stand out."
    )
    texts = {(each.language, each.row): each.text for each in examples.sentences}
    rows: list[tuple[str, ...]] = []
    for each in examples.similarities:
        for row, lines in enumerate(zip(each.before, each.after, strict=True)):
            others = (
                max((value for column, value in enumerate(line) if column != row), default=None) for line in lines
            )
            cosines = (line[row] for line in lines)
            both = texts.get((each.left, row), ""), texts.get((each.right, row), "")
            rows.append((f"{row + 1} {each.left}, {each.right}", *map(score, cosines), *map(score, others), *both))
    columns = ("sentence", "before", "after", "nearest other, before", "nearest other, after", "text", "translation")
    title = "Cosines of translations"
    table = ReportTable(caption=title, columns=columns, rows=tuple(rows), left=frozenset({0, 5, 6}))
    svg = heat_maps(Caption(name="similarities", title=title, description=description), examples.similarities)
    return Figure(title, description, svg, table)


def _projection(examples: ExampleSentences) -> Figure:
    """The sentences in a plane, and how near translations are in numbers."""
    description = (
        "Each mark is a sentence, placed by t-SNE: near marks have high cosines. Lines join translations. If languages "
        "keep apart, they are not aligned. Directions and distances between groups mean nothing."
    )
    columns = ("language", "cosine before", "cosine after", "nearest before", "nearest after")
    rows = tuple(
        (
            each.language,
            score(each.cosine_before),
            score(each.cosine_after),
            f"{each.found_before:.0%}",
            f"{each.found_after:.0%}",
        )
        for each in examples.alignment
    )
    caption = f"Mean cosine with the translation in {examples.languages[0]}, and how often that is the nearest sentence"
    title = "Sentences in a plane"
    svg = projection_chart(Caption(name="plane", title=title, description=description), examples.sentences)
    return Figure(title, description, svg, ReportTable(caption=caption, columns=columns, rows=rows))


def heat_maps(caption: Caption, maps: Sequence[Similarities]) -> str:
    """Cosines of translations before and after training: a column per pair of languages, darker for higher ones."""
    columns, drawings = 3, list[str]()
    for part, row in pieces(caption, maps, columns):
        with drawing(WIDTH, 2.3 * WIDTH / columns) as figure:
            grid = figure.subplots(2, columns, squeeze=False)
            for column, each in enumerate(row):
                for axes, when, values in zip(
                    grid[:, column], ("before", "after"), (each.before, each.after), strict=True
                ):
                    _heat(axes, values)
                    axes.set_title(f"{each.left}, {each.right}\n{when}")
            for axes in grid[:, len(row) :].flat:
                axes.set_visible(False)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def _heat(axes: Axes, values: Sequence[Sequence[float]]) -> None:
    """A square per cosine, as opaque as it is high; what is negative is blank."""
    from matplotlib.patches import Rectangle

    size = len(values)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if (strength := min(1.0, max(0.0, value))) >= 0.005:
                place = (column + 0.5, row + 0.5)
                axes.add_patch(
                    Rectangle(place, 1, 1, color=SERIES[0], alpha=round(strength, 2), linewidth=0, clip_on=False)
                )
    axes.set_xlim(0.5, size + 0.5)
    axes.set_ylim(size + 0.5, 0.5)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks(range(1, size + 1))
    axes.set_yticks(range(1, size + 1))
    axes.tick_params(labelsize=9)


def projection_chart(caption: Caption, sentences: Sequence[ExampleSentence]) -> str:
    """Sentences in a plane before and after training. Lines join translations."""
    languages = list(dict.fromkeys(each.language for each in sentences))
    with drawing(WIDTH, 3.2) as figure:
        grid = figure.subplots(1, 2)
        for axes, when in zip(grid, ("before", "after"), strict=True):
            _plane(axes, [(each, each.before if when == "before" else each.after) for each in sentences], languages)
            axes.set_title(f"{when} training")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=LEGEND)
        return svg_of(figure, caption.name, caption.title, caption.description)


def _plane(axes: Axes, placed: Sequence[tuple[ExampleSentence, tuple[float, float]]], languages: Sequence[str]) -> None:
    first = {each.row: at for each, at in placed if each.language == languages[0]}
    gap = math.nan, math.nan  # so that all lines are one path
    ends = [end for each, at in placed if each.row in first for end in (first[each.row], at, gap)]
    axes.plot(*zip(*ends, strict=True), color=GRID, linewidth=0.8, zorder=1)
    for index, language in enumerate(languages):
        xs, ys = zip(*(at for each, at in placed if each.language == language), strict=True)
        axes.plot(
            xs,
            ys,
            linestyle="none",
            marker=MARKERS[index % len(MARKERS)],
            color=SERIES[index % len(SERIES)],
            markersize=5,
            label=clipped(language),
            zorder=2,
        )
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
