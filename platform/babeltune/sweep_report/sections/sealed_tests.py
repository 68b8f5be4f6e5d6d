"""The winner on its dev sets and on the sealed tests, against the champion, and every decision of promotion."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from babeltune.evaluation.metric_names import MAIN_METRICS, each_once
from babeltune.promotion.compare import Contest
from babeltune.promotion.decisions import DecisionRecord
from babeltune.promotion.gates import Decision
from babeltune.schema.languages import meaning
from babeltune.sweep_report.charts import BARS, OUTSIDE, WIDTH, Caption, at_edge, clipped, limits_of, pieces
from babeltune.sweep_report.document import Block, Figure, Items, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import SweepReport
from babeltune.sweep_report.svg import FAINT, INK, MUTED, SERIES, drawing, svg_of
from babeltune.sweep_report.words import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sealed(report: SweepReport) -> Section | None:
    """Dev against sealed, and every decision; absent for a sweep without sealed tests that was not promoted."""
    if not report.decisions and not report.data.sealed:
        return None
    title, anchor = "Dev against sealed tests", "sealed"
    if not report.decisions:
        names = ", ".join(report.data.sealed)
        words = f"The sealed tests ({names}) are unopened. `babeltune promote {report.sweep}` opens them."
        return Section(anchor=anchor, title=title, blocks=(Paragraph(text=words),))
    last = report.decisions[-1]
    # A later decision that opened no test, such as on the champion itself, hides no scores.
    opened = next((each for each in reversed(report.decisions) if each.decision.test), last)
    blocks: list[Block] = [*_comparison(opened, set_of(report.objective.metric))]
    for record in [last] if opened is last else [opened, last]:
        when = f" of {record.time}" if opened is not last else ""
        blocks.append(Items(items=(f"verdict{when}: {record.decision.verdict}", *record.decision.reasons)))
    if len(report.decisions) > 1:
        blocks.append(_decisions_table(report.decisions))
    return Section(anchor=anchor, title=title, blocks=tuple(blocks))


def set_of(metric: str) -> str:
    """The dev or test set of a metric, `everyday` of `dev/everyday/fra-eng/accuracy`."""
    return metric.split("/")[1]


def dev_metric_of(sealed: str, tests: Collection[str], dev: Collection[str], preferred: str) -> str | None:
    """The dev metric that a metric of a sealed test is compared with: of the same kind and the same languages.

    A mean is of the same languages if its set has the same subsets. Of several dev sets, the one with the test's own
    name comes first, then the `preferred` one."""
    languages, same = languages_of(sealed, tests), "dev/" + sealed.removeprefix("test/")
    if same in dev:
        return same
    candidates = [name for name in dev if languages[1] and languages_of(name, dev) == languages]
    order = {set_of(sealed): 0, preferred: 1}
    return min(candidates, key=lambda name: order.get(set_of(name), 2), default=None)


def languages_of(metric: str, among: Collection[str]) -> tuple[str, frozenset[str]]:
    """The kind of a metric, and the subset that it is of, or all subsets that it is the mean of."""
    _, *of_set, kind = metric.split("/")
    subsets = of_set[1:]
    if not subsets:
        parts = (name.split("/") for name in among)
        subsets = [each[2] for each in parts if len(each) == 4 and (each[1:2], each[3]) == (of_set, kind)]
    return kind, frozenset("-".join(meaning(code).variety for code in subset.split("-")) for subset in subsets)


def _comparison(record: DecisionRecord, preferred: str) -> Iterator[Block]:
    decision = record.decision
    main = [name for name in each_once(decision.test) if name.rpartition("/")[2] in MAIN_METRICS]
    pairs = [_paired(decision, name, dev_metric_of(name, decision.test, decision.dev, preferred)) for name in main]
    if not pairs:
        yield Paragraph(text="No sealed test was scored: the promotion compared dev scores only.")
        return
    description = (
        f"{decision.trial} on the sealed tests, each beside a dev set of the same languages. If both are of one "
        "kind of text, a large drop means overfitting. " + OUTSIDE
    )
    rows = tuple(
        (p.name, p.dev_set, score(p.dev), score(p.sealed), score(p.untrained), score(p.teacher), score(p.chance))
        for p in pairs
    )
    columns = ("test", "dev set", "dev", "sealed", "sealed, untrained", "sealed, teacher", "chance")
    table = ReportTable(caption="Dev against sealed", columns=columns, rows=rows, left=frozenset({0, 1}))
    caption = Caption(name="sealed", title="Dev against sealed tests", description=description)
    yield Figure("", description, sealed_chart(caption, pairs), table)
    if decision.contest is not None:
        yield _contest_table(decision.contest)


def _paired(decision: Decision, name: str, dev: str | None) -> Paired:
    """The scores of a sealed test beside those of the dev metric."""
    return Paired(
        name=name.removeprefix("test/").rpartition("/")[0].replace("/", " "),
        dev_set="–" if dev is None else set_of(dev),
        dev=None if dev is None else decision.dev[dev],
        sealed=decision.test[name],
        untrained=decision.untrained.get(name),
        teacher=decision.teacher.get(name),
        chance=decision.chance.get(name),
    )


def _contest_table(contest: Contest) -> ReportTable:
    """Challenger against champion, subset by subset."""
    columns = ("metric", "items", "champion", "this model", "difference", "interval", "p")
    rows: list[tuple[str, ...]] = []
    for cell in (*contest.cells, *contest.overall):
        scores = score(cell.champion), score(cell.challenger), f"{cell.difference:+.4f}"
        rows.append((cell.name, str(cell.items), *scores, f"{cell.low:+.4f} to {cell.high:+.4f}", f"{cell.p:.2g}"))
    return ReportTable(caption=f"Against the champion {contest.champion}", columns=columns, rows=tuple(rows))


def _decisions_table(records: Sequence[DecisionRecord]) -> ReportTable:
    columns, rows = ("time", "trial", "verdict", "registered as"), list[tuple[str, ...]]()
    for record in records:
        decision, dry_run = record.decision, " (dry run)" if record.dry_run else ""
        rows.append((record.time, decision.trial, decision.verdict + dry_run, decision.registered or "–"))
    caption = "All decisions about this sweep"
    return ReportTable(caption=caption, columns=columns, rows=tuple(rows), left=frozenset({0, 1, 2, 3}))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A metric on a sealed test and on a dev set of the same languages."""

    name: str  # the sealed test, with its languages
    dev_set: str  # the dev set that it is compared with; a dash if there is none
    dev: float | None
    sealed: float
    untrained: float | None
    teacher: float | None
    chance: float | None


def sealed_chart(caption: Caption, pairs: Sequence[Paired]) -> str:
    """Dev beside sealed, joined by a line, with the untrained student and chance. Dev and sealed fill the axis."""
    shown = pairs[:BARS]
    limits = limits_of(value for pair in shown for value in (pair.dev, pair.sealed) if value is not None)
    drawings = list[str]()
    for part, rows in pieces(caption, shown):
        with drawing(WIDTH, 1.1 + 0.32 * len(rows)) as figure:
            axes = figure.subplots()
            for place, pair in enumerate(rows):
                if pair.dev is not None:
                    axes.plot((pair.dev, pair.sealed), (place, place), color=FAINT, linewidth=2, zorder=1)
            _marks(axes, "dev", [p.dev for p in rows], ("o", SERIES[0], "none"), limits)
            _marks(axes, "sealed test", [p.sealed for p in rows], ("D", SERIES[0], SERIES[0]), limits)
            _marks(axes, "sealed test, untrained", [p.untrained for p in rows], ("s", INK, "none"), limits)
            _marks(axes, "chance", [p.chance for p in rows], ("|", MUTED, MUTED), limits)
            axes.set_yticks(range(len(rows)), [clipped(pair.name) for pair in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlim(limits)
            axes.grid(axis="y", visible=False)
            figure.legend(loc="outside upper left", ncols=2)
            drawings.append(svg_of(figure, part.name, part.title, part.description))
    return "".join(drawings)


def _marks(
    axes: Axes, name: str, values: Sequence[float | None], style: tuple[str, str, str], limits: tuple[float, float]
) -> None:
    """A mark for each value, by marker, colour and fill. Values outside of the chart are triangles at its edge."""
    marker, color, face = style
    places = [(*at_edge(value, limits), place) for place, value in enumerate(values) if value is not None]
    for side, shape in ((0, marker), (-1, "<"), (1, ">")):
        points = [(at, place) for at, where, place in places if where == side]
        if points or (places and side == 0):
            (line,) = axes.plot(*zip(*points, strict=True) if points else ((), ()), linestyle="none", marker=shape)
            line.set(color=color, markersize=8, markeredgewidth=1.8, markerfacecolor=face, clip_on=side == 0)
            line.set_label(name if side == 0 else "")
