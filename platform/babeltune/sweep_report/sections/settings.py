"""Which settings mattered: their importance, a slice for each, and all of them as parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from babeltune.schema.records import Scalar
from babeltune.sweep.search.importance import BEST_SHARE, LEAST_TRIALS
from babeltune.sweep_report.charts import LEGEND, NAMED, WIDTH, Caption, clipped, limits_of, one_line, pieces
from babeltune.sweep_report.document import Block, Figure, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import Standing, SweepReport
from babeltune.sweep_report.svg import DASHES, FAINT, MUTED, PAGE, SERIES, drawing, plain, svg_of
from babeltune.sweep_report.words import score, setting, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def what_mattered(report: SweepReport, most: int) -> Section | None:
    """Importance, slices and parallel coordinates of the searched settings."""
    scored = [each for each in report.trials if each.value is not None][:most]
    if not report.searched or not scored:
        return None
    blocks: list[Block] = []
    if report.at_ends:
        ends = f"The best trial is at an end of what was searched: {'; '.join(report.at_ends)}. "
        blocks.append(Paragraph(text=ends + "A wider range may hold a better one."))
    blocks += _importance(report)
    metric, names = report.objective.metric, report.searched
    columns = ("trial", short(metric), *names)
    rows = tuple((each.row.name, score(each.value), *(setting(each, name) for name in names)) for each in scored)
    table = ReportTable(caption="Settings and score of each trial", columns=columns, rows=rows)
    description = f"{short(metric)} over each setting. The star is the best trial; hollow circles did not finish."
    caption = Caption(name="slices", title="Slices", description=description)
    svg = slices_chart(caption, scored, names, report.logarithmic, metric)
    blocks.append(Figure("Slices", description, svg, table))
    description = f"One line per trial through all settings to {short(metric)}. The best have colours."
    caption = Caption(name="parallel", title="Parallel coordinates", description=description)
    svg = parallel_chart(caption, scored, names, report.logarithmic, metric)
    blocks.append(Figure("Parallel coordinates", description, svg, table))
    return Section(anchor="settings", title="What mattered", blocks=tuple(blocks))


def _importance(report: SweepReport) -> Iterator[Block]:
    if not report.importance:
        yield Paragraph(
            text=f"Importance is not shown: it needs {LEAST_TRIALS} scored trials that differ, and there are "
            f"{report.scored}."
        )
        return
    description = (
        f"PED-ANOVA: which settings separate the best {BEST_SHARE:.0%} of {report.scored} trials from the rest. "
        "Few trials give a rough picture."
    )
    caption = Caption(name="importance", title="Importance of settings", description=description)
    rows = tuple((name, f"{share:.4f}") for name, share in report.importance)
    table = ReportTable(caption="Importance of settings", columns=("setting", "share"), rows=rows)
    yield Figure("Importance", description, importance_chart(caption, report.importance), table)


TICKS = 4  # numbers on the axis of a small chart
SMALL, BROAD = 3.2, 9.0
"""Inches of a small chart: three have room side by side. And of a broad one, which phones scroll."""


def importance_chart(caption: Caption, shares: Sequence[tuple[str, float]]) -> str:
    """A bar per setting, the most important on top."""
    drawings, most = list[str](), 1.05 * max(share for _, share in shares)
    for part, rows in pieces(caption, shares):
        with drawing(WIDTH, 0.9 + 0.3 * len(rows)) as figure:
            axes = figure.subplots()
            axes.barh(range(len(rows)), [share for _, share in rows], height=0.6, color=SERIES[0])
            axes.set_yticks(range(len(rows)), [clipped(name) for name, _ in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(0, most)
            axes.set_xlabel("share of the importance")
            axes.grid(axis="y", visible=False)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def slices_chart(
    caption: Caption, trials: Sequence[Standing], searched: Sequence[str], logarithmic: frozenset[str], metric: str
) -> str:
    """For each setting, every trial's objective over its value, side by side as far as there is room."""
    limits, drawings = limits_of(each.value for each in trials if each.value is not None), list[str]()
    for part, (name,) in pieces(caption, searched, 1):
        with drawing(SMALL, 2.3) as figure:
            axes = figure.subplots()
            _slice(axes, trials, name, name in logarithmic)
            axes.set_ylim(limits)
            axes.set_ylabel(short(metric), fontsize=9)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return f'<div class="small">{"".join(drawings)}</div>'


def _slice(axes: Axes, trials: Sequence[Standing], name: str, logarithmic: bool) -> None:
    scored = [each for each in trials if each.value is not None and name in each.row.params]
    values = [each.row.params[name] for each in scored]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = sorted({_word(value) for value in values})
    marks: dict[tuple[bool, bool], list[tuple[Scalar, float | None]]] = {}
    for each, value in zip(scored, values, strict=True):
        place = value if is_number else names.index(_word(value))
        marks.setdefault((each is trials[0], each.row.state == "finished"), []).append((place, each.value))
    for (best, finished), points in marks.items():
        marker, size, layer = ("*", 12, 4) if best else ("o", 5.5, 3)
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none",
            marker=marker,
            markersize=size,
            markerfacecolor=SERIES[0] if finished else "none",
            color=SERIES[0],
            zorder=layer,
            clip_on=False,
        )
    axes.set_title(clipped(name, 30))
    if not is_number:
        axes.set_xticks(
            range(len(names)), [clipped(word, 17) for word in names], fontsize=8, rotation=0 if len(names) < 3 else 20
        )
        axes.set_xlim(-0.5, len(names) - 0.5)
        return
    if logarithmic:
        axes.set_xscale("log")
    _few_values(axes, [float(value) for value in values if isinstance(value, int | float)], logarithmic)


def _few_values(axes: Axes, values: Sequence[float], logarithmic: bool) -> None:
    """A few ticks, at values that the trials have if these are few."""
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

    distinct = sorted(set(values))
    if len(distinct) <= TICKS and all(value == int(value) for value in distinct):
        axes.xaxis.set_major_locator(FixedLocator(distinct))
    elif not logarithmic:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS - 1))
    elif distinct and distinct[-1] / distinct[0] > 30:
        axes.xaxis.set_major_locator(LogLocator(numticks=TICKS))
    elif distinct:
        ticks = (distinct[0], math.sqrt(distinct[0] * distinct[-1]), distinct[-1])
        axes.xaxis.set_major_locator(FixedLocator(sorted({float(f"{tick:.2g}") for tick in ticks})))
    axes.xaxis.set_minor_locator(NullLocator())


def _word(value: Scalar) -> str:
    return "none" if value is None else str(value)


def parallel_chart(
    caption: Caption, trials: Sequence[Standing], searched: Sequence[str], logarithmic: frozenset[str], metric: str
) -> str:
    """A line per trial through an axis per setting and one for the objective; the best are named.

    A phone shows a part of it at a time, and scrolls."""
    shown = [each for each in trials if each.value is not None]
    columns: list[tuple[str, list[Scalar]]] = [
        (name, [each.row.params.get(name) for each in shown]) for name in searched
    ]
    columns.append((short(metric), [each.value for each in shown]))
    with drawing(max(BROAD, 1.2 * len(columns)), 4.2) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        heights = [_axis(axes, x, name, values, name in logarithmic) for x, (name, values) in enumerate(columns)]
        lines = [(range(len(columns)), trial) for trial in zip(*heights, strict=True)]
        axes.plot(*one_line(lines[NAMED:]), color=FAINT, linewidth=1, zorder=2)
        for index, (each, line) in reversed(list(enumerate(zip(shown, lines[:NAMED], strict=False)))):
            (drawn,) = axes.plot(*line, color=SERIES[index], label=each.row.name, zorder=9 - index)
            drawn.set(linestyle=DASHES[index], linewidth=2.6 if index == 0 else 1.5)
        axes.set_xlim(-0.3, len(columns) - 0.4)
        axes.set_ylim(-0.22, 1.2)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower left", ncols=LEGEND, handlelength=3)
        svg = svg_of(figure, caption.name, caption.title, caption.description)
        box = f'class="scroll broad" id="{caption.name}-box" role="group" tabindex="0" aria-label="{caption.title}"'
        return f"<div {box}>{svg}</div>"


UNUSED = -0.12  # the height of a setting that a trial does not have


def _axis(axes: Axes, x: int, name: str, values: Sequence[Scalar], logarithmic: bool) -> list[float]:
    """Draws one axis of the parallel coordinates; returns the height of every trial on it."""
    used = [value for value in values if value is not None]
    axes.plot((x, x), (0, 1), color=MUTED, linewidth=1, zorder=1)
    axes.text(x, 1.12, clipped(name.rpartition(".")[2], 20), ha="center", fontsize=9)
    numbers = [float(value) for value in used if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(used) and numbers:
        low, high = min(numbers), max(numbers)
        marks = [(0.0, plain(low, 4)), (1.0, plain(high, 4))] if high > low else [(0.5, plain(low, 4))]
        heights = [UNUSED if v is None else _height(float(v), low, high, logarithmic) for v in values]
    else:
        words = sorted({_word(value) for value in used})
        place = {word: (index + 0.5) / len(words) for index, word in enumerate(words)}
        marks = [(height, clipped(word, 18)) for word, height in place.items()]
        heights = [UNUSED if value is None else place[_word(value)] for value in values]
    if len(used) < len(values):
        marks.append((UNUSED, "not used"))
    for height, text in marks:
        box = {"facecolor": PAGE, "edgecolor": "none", "pad": 1, "alpha": 0.85}
        axes.text(x + 0.03, height, text, va="center", fontsize=8.5, color=MUTED, zorder=20, bbox=box)
    return heights


def _height(value: float, low: float, high: float, logarithmic: bool) -> float:
    if high <= low:
        return 0.5
    if logarithmic and low > 0:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)
