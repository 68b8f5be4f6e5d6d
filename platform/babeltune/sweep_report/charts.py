"""The report's charts. Each takes records and returns an `<svg>` element; what it shows also stands in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from babeltune.schema.records import Goal, Scalar
from babeltune.sweep.state.examples import ExampleSentence, Similarities
from babeltune.sweep_report.record import Curve, Diagnostic, LanguageScore, Standing
from babeltune.sweep_report.svg import BAR, DASHES, FAINT, GRID, INK, MARKERS, MUTED, PAGE, SERIES, drawing, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 9.0
"""Inches."""
NAMED = 5
"""Series with a colour and a name of their own; others stand in the background."""
TICKS = 4
"""Numbers on the axis of a small chart."""
BARS = 40
"""At most so many lines in a chart of bars; the table has all."""
COLUMNS = 3
"""Small charts side by side."""


@dataclass(frozen=True, kw_only=True)
class Caption:
    """What a screen reader says of a chart."""

    name: str
    title: str
    description: str


def short(metric: str) -> str:
    """A metric's name without `dev/`."""
    return metric.removeprefix("dev/")


def leaderboard_chart(caption: Caption, standings: Sequence[Standing], metric: str) -> str:
    """Each trial's and baseline's value with its 95 % interval, the best on top."""
    shown = [each for each in standings if each.value is not None][:BARS]
    with drawing(WIDTH, 0.9 + 0.26 * len(shown)) as figure:
        axes = figure.subplots()
        for place, each in enumerate(shown):
            color = SERIES[2] if each.is_baseline else SERIES[0]
            if each.interval is not None:
                axes.plot(each.interval, (place, place), color=color, linewidth=1.6, solid_capstyle="butt")
            filled = each.row.state == "finished"
            axes.plot(
                each.value or 0.0,
                place,
                marker="D" if each.is_baseline else "o",
                color=color,
                markersize=6,
                markerfacecolor=color if filled else "none",
            )
        axes.set_yticks(range(len(shown)), [_label(each) for each in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(short(metric))
        return svg_of(figure, caption.name, caption.title, caption.description)


def _label(each: Standing) -> str:
    return clipped(each.row.name if each.row.state == "finished" else f"{each.row.name} ({each.row.state})")


def clipped(text: str, most: int = 28) -> str:
    """A text that fits beside an axis. matplotlib reads `$` as the begin of a formula."""
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("$", r"\$")


def curves_chart(
    caption: Caption, curves: Sequence[Curve], levels: Sequence[tuple[str, float]], x_label: str, y_label: str
) -> str:
    """A line per trial, the best ones named; `levels` are the baselines, as horizontal lines."""
    named = [curve.trial for curve in curves[:NAMED]]
    with drawing(WIDTH, 3.9) as figure:
        axes = figure.subplots()
        for curve in curves[NAMED:]:
            axes.plot(curve.x, curve.y, color=FAINT, linewidth=1, marker=".", markersize=3)
        _named_lines(axes, curves[:NAMED], named)
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
        _thousands(axes)
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


def _named_lines(axes: Axes, curves: Sequence[Curve], named: Sequence[str]) -> None:
    """The curves of the named trials; each has the colour of its place among them, in every chart."""
    for curve in (each for each in curves if each.trial in named[:NAMED]):
        index = named.index(curve.trial)
        axes.plot(
            curve.x,
            curve.y,
            color=SERIES[index],
            linestyle=DASHES[index],
            marker=MARKERS[index],
            markersize=4,
            linewidth=2.2 if index == 0 else 1.5,
            label=curve.trial,
            zorder=3 + NAMED - index,
        )


def _thousands(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def languages_chart(caption: Caption, scores: Sequence[LanguageScore]) -> str:
    """The winner as bars, the other models as marks beside them."""
    shown = scores[:BARS]
    models = list(dict.fromkeys(name for score in shown for name, _ in score.values))
    with drawing(WIDTH, 1.1 + 0.32 * len(shown)) as figure:
        axes = figure.subplots()
        for index, model in enumerate(models):
            found = [
                (place, value) for place, score in enumerate(shown) for name, value in score.values if name == model
            ]
            places, values = [place for place, _ in found], [value for _, value in found]
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
        axes.set_yticks(range(len(shown)), [clipped(subset_name(score.metric), 34) for score in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(left=min(0, *(value for score in shown for _, value in score.values)))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper left", ncols=4)
        return svg_of(figure, caption.name, caption.title, caption.description)


def subset_name(metric: str) -> str:
    """`everyday fra-eng` of `dev/everyday/fra-eng/accuracy`."""
    _, task, subset, _ = metric.split("/")
    return f"{task} {subset}"


def importance_chart(caption: Caption, shares: Sequence[tuple[str, float]]) -> str:
    """A bar per setting, the most important on top."""
    with drawing(WIDTH, 0.9 + 0.3 * len(shares)) as figure:
        axes = figure.subplots()
        axes.barh(range(len(shares)), [share for _, share in shares], height=0.6, color=SERIES[0])
        axes.set_yticks(range(len(shares)), [clipped(name, 34) for name, _ in shares])
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlabel("share of the importance")
        axes.grid(axis="y", visible=False)
        return svg_of(figure, caption.name, caption.title, caption.description)


def slices_chart(
    caption: Caption, trials: Sequence[Standing], searched: Sequence[str], logarithmic: frozenset[str], metric: str
) -> str:
    """For each setting, every trial's objective over the setting's value."""
    rows = math.ceil(len(searched) / COLUMNS)
    with drawing(WIDTH, 0.3 + 2.3 * rows) as figure:
        grid = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True)
        for axes, name in zip(grid.flat, searched, strict=False):
            _slice(axes, trials, name, name in logarithmic)
        for axes in grid.flat[len(searched) :]:
            axes.set_visible(False)
        for line in grid:
            line[0].set_ylabel(short(metric), fontsize=9)
        return svg_of(figure, caption.name, caption.title, caption.description)


def _slice(axes: Axes, trials: Sequence[Standing], name: str, logarithmic: bool) -> None:
    found = [each for each in trials if each.value is not None and name in each.row.params]
    values = [each.row.params[name] for each in found]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = sorted({_word(value) for value in values})
    for each, value in zip(found, values, strict=True):
        best = each is trials[0]
        axes.plot(
            value if is_number else names.index(_word(value)),  # type: ignore[arg-type]
            each.value,  # type: ignore[arg-type]
            marker="*" if best else "o",
            markersize=12 if best else 5.5,
            markerfacecolor=SERIES[0] if each.row.state == "finished" else "none",
            color=SERIES[0],
            zorder=4 if best else 3,
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
    _plain_ticks(axes, [float(value) for value in values if isinstance(value, int | float)], logarithmic)


def _plain_ticks(axes: Axes, values: Sequence[float], logarithmic: bool) -> None:
    """A few ticks, written as people write them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    distinct = sorted(set(values))
    if len(distinct) <= TICKS and all(value == int(value) for value in distinct):
        axes.xaxis.set_major_locator(FixedLocator(distinct))
    elif not logarithmic:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    elif distinct and distinct[-1] / distinct[0] > 30:
        axes.xaxis.set_major_locator(LogLocator(numticks=TICKS + 1))
    elif distinct:
        low, high = distinct[0], distinct[-1]
        axes.xaxis.set_major_locator(FixedLocator(sorted({low, math.sqrt(low * high), high})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}" if value < 1 else f"{value:.4g}"))


def _word(value: Scalar) -> str:
    return "none" if value is None else str(value)


def parallel_chart(
    caption: Caption, trials: Sequence[Standing], searched: Sequence[str], logarithmic: frozenset[str], metric: str
) -> str:
    """A line per trial through an axis per setting and one for the objective; the best are named."""
    shown = [each for each in trials if each.value is not None]
    columns: list[tuple[str, list[Scalar]]] = [
        (name, [each.row.params.get(name) for each in shown]) for name in searched
    ]
    columns.append((short(metric), [each.value for each in shown]))
    with drawing(max(WIDTH, 1.2 * len(columns)), 4.2) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        heights = [_axis(axes, x, name, values, name in logarithmic) for x, (name, values) in enumerate(columns)]
        for index, each in reversed(list(enumerate(shown))):
            line: dict[str, Any] = {"color": FAINT, "linewidth": 1, "zorder": 2}
            if index < NAMED:
                line = {"color": SERIES[index], "linestyle": DASHES[index], "label": each.row.name, "zorder": 9 - index}
                line |= {"linewidth": 2.6 if index == 0 else 1.5}
            axes.plot(range(len(columns)), [column[index] for column in heights], **line)
        axes.set_xlim(-0.3, len(columns) - 0.4)
        axes.set_ylim(-0.22, 1.2)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside lower left", ncols=NAMED, handlelength=3)
        return svg_of(figure, caption.name, caption.title, caption.description)


UNUSED = -0.12
"""The height of a setting that a trial does not have."""


def _axis(axes: Axes, x: int, name: str, values: Sequence[Scalar], logarithmic: bool) -> list[float]:
    """Draws one axis of the parallel coordinates; returns the height of every trial on it."""
    used = [value for value in values if value is not None]
    axes.plot((x, x), (0, 1), color=MUTED, linewidth=1, zorder=1)
    axes.text(x, 1.12, clipped(name.rpartition(".")[2], 20), ha="center", fontsize=9)
    numbers = [float(value) for value in used if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(used) and numbers:
        low, high = min(numbers), max(numbers)
        marks = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.5, f"{low:.4g}")]
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
    """Quality over speed; a larger circle is a larger model. Filled: on the Pareto front."""
    largest = max(each.parameters for each in models)
    with drawing(WIDTH, 3.8) as figure:
        axes = figure.subplots()
        for each in models:
            color = SERIES[2] if each.is_baseline else SERIES[0]
            axes.scatter(
                each.speed,
                each.quality,
                s=40 + 360 * each.parameters / largest,
                marker="D" if each.is_baseline else "o",
                facecolor=color if each.on_front else "none",
                edgecolor=color,
                linewidth=1.6,
                alpha=1,
            )
        named = [each for each in models if each.on_front or each.is_baseline][:12]
        for each in named:
            axes.annotate(
                clipped(each.name), (each.speed, each.quality), xytext=(9, 7), textcoords="offset points", fontsize=9
            )
        if max(each.speed for each in models) > 20 * min(each.speed for each in models) > 0:
            axes.set_xscale("log")
        else:
            _thousands(axes)
        axes.margins(0.12, 0.14)
        axes.set_xlabel("sentences per second, one worker")
        axes.set_ylabel(short(metric))
        return svg_of(figure, caption.name, caption.title, caption.description)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A metric on a dev set and on the sealed test of the same name."""

    name: str
    dev: float | None
    sealed: float
    untrained: float | None
    chance: float | None


def sealed_chart(caption: Caption, pairs: Sequence[Paired]) -> str:
    """Dev beside sealed, joined by a line, with the untrained student and chance."""
    shown = pairs[:BARS]
    with drawing(WIDTH, 1.1 + 0.32 * len(shown)) as figure:
        axes = figure.subplots()
        for place, pair in enumerate(shown):
            if pair.dev is not None:
                axes.plot((pair.dev, pair.sealed), (place, place), color=FAINT, linewidth=2, zorder=1)
        kinds: list[tuple[str, list[float | None], dict[str, Any]]] = [
            ("dev", [p.dev for p in shown], {"marker": "o", "color": SERIES[0], "markerfacecolor": "none"}),
            ("sealed test", [p.sealed for p in shown], {"marker": "D", "color": SERIES[0]}),
            (
                "sealed test, untrained",
                [p.untrained for p in shown],
                {"marker": "s", "color": INK, "fillstyle": "none"},
            ),
            ("chance", [p.chance for p in shown], {"marker": "|", "color": MUTED}),
        ]
        for label, values, style in kinds:
            found = [(value, place) for place, value in enumerate(values) if value is not None]
            if found:
                xs, ys = zip(*found, strict=True)
                axes.plot(xs, ys, linestyle="none", markersize=8, markeredgewidth=1.8, label=label, **style)
        axes.set_yticks(range(len(shown)), [clipped(pair.name, 34) for pair in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper left", ncols=4)
        return svg_of(figure, caption.name, caption.title, caption.description)


def diagnostics_chart(caption: Caption, diagnostics: Sequence[Diagnostic], named: Sequence[str], x_label: str) -> str:
    """A small chart per quantity, a line per trial."""
    columns = 2
    rows = math.ceil(len(diagnostics) / columns)
    with drawing(WIDTH, 0.4 + 2.2 * rows) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, each in zip(grid.flat, diagnostics, strict=False):
            _named_lines(axes, each.curves, named)
            axes.set_title(each.name)
            _thousands(axes)
            axes.set_xlabel(x_label, fontsize=9)
        for axes in grid.flat[len(diagnostics) :]:
            axes.set_visible(False)
        handles: dict[str, Any] = {}
        for axes in grid.flat:
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        shown = [name for name in named if name in handles]
        figure.legend([handles[name] for name in shown], shown, loc="outside upper left", ncols=NAMED, handlelength=3)
        return svg_of(figure, caption.name, caption.title, caption.description)


def heat_maps(caption: Caption, maps: Sequence[Similarities]) -> str:
    """Cosines of translations before and after training: a column per pair of languages, darker for higher ones."""
    with drawing(WIDTH, 5.2 if len(maps) > 2 else 7.4) as figure:
        grid = figure.subplots(2, max(len(maps), 2), squeeze=False)
        for column, each in enumerate(maps):
            for axes, when, values in zip(grid[:, column], ("before", "after"), (each.before, each.after), strict=True):
                _heat(axes, values)
                axes.set_title(f"{each.left}, {each.right} {when}")
        for axes in grid[:, len(maps) :].flat:
            axes.set_visible(False)
        return svg_of(figure, caption.name, caption.title, caption.description)


def _heat(axes: Axes, values: Sequence[Sequence[float]]) -> None:
    """A square per cosine, as opaque as it is high; what is negative is blank."""
    from matplotlib.patches import Rectangle

    size = len(values)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if (strength := min(1.0, max(0.0, value))) >= 0.005:
                place = (column + 0.5, row + 0.5)
                style: dict[str, Any] = {
                    "color": SERIES[0],
                    "alpha": round(strength, 2),
                    "linewidth": 0,
                    "clip_on": False,
                }
                axes.add_patch(Rectangle(place, 1, 1, **style))
    axes.set_xlim(0.5, size + 0.5)
    axes.set_ylim(size + 0.5, 0.5)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks(range(1, size + 1))
    axes.set_yticks(range(1, size + 1))
    axes.tick_params(labelsize=7)


def projection_chart(caption: Caption, sentences: Sequence[ExampleSentence]) -> str:
    """Sentences in a plane before and after training. Lines join translations."""
    languages = list(dict.fromkeys(each.language for each in sentences))
    with drawing(WIDTH, 4.8) as figure:
        for axes, when in zip(figure.subplots(1, 2), ("before", "after"), strict=True):
            _plane(axes, [(each, each.before if when == "before" else each.after) for each in sentences], languages)
            axes.set_title(f"{when} training")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=len(languages))
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


def better(goal: Goal) -> str:
    """Which way a metric is better, in words."""
    return "higher is better" if goal == "maximize" else "lower is better"
