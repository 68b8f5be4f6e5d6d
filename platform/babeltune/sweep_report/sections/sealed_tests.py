"""The winner on its dev sets and on the sealed tests, against the champion, and every decision of promotion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from babeltune.evaluation.evaluate import MAIN_METRICS
from babeltune.promotion.compare import Contest
from babeltune.promotion.decisions import DecisionRecord
from babeltune.sweep_report.charts import BARS, WIDTH, Caption, clipped
from babeltune.sweep_report.document import Block, Figure, Items, Section, Table, Text
from babeltune.sweep_report.record import SweepReport
from babeltune.sweep_report.svg import FAINT, INK, MUTED, SERIES, drawing, svg_of
from babeltune.sweep_report.words import score


def sealed(report: SweepReport) -> Section | None:
    """Dev against sealed, and every decision; absent for a sweep without sealed tests that was not promoted."""
    if not report.decisions and not report.data.sealed:
        return None
    title, anchor = "Dev against sealed tests", "sealed"
    if not report.decisions:
        names = ", ".join(report.data.sealed)
        words = f"The sealed tests ({names}) are unopened. `babeltune promote {report.sweep}` opens them."
        return Section(anchor=anchor, title=title, blocks=(Text(text=words),))
    record = report.decisions[-1]
    blocks: list[Block] = [*_comparison(record)]
    blocks.append(Items(items=(f"verdict: {record.decision.verdict}", *record.decision.reasons)))
    if len(report.decisions) > 1:
        blocks.append(_decisions_table(report.decisions))
    return Section(anchor=anchor, title=title, blocks=tuple(blocks))


def _comparison(record: DecisionRecord) -> Iterator[Block]:
    decision = record.decision
    main = [name for name in decision.test if name.rpartition("/")[2] in MAIN_METRICS]
    pairs = [
        Paired(
            name=name.removeprefix("test/").rpartition("/")[0].replace("/", " "),
            dev=decision.dev.get(f"dev/{name.removeprefix('test/')}"),
            sealed=decision.test[name],
            untrained=decision.untrained.get(name),
            teacher=decision.teacher.get(name),
            chance=decision.chance.get(name),
        )
        for name in main
    ]
    if not pairs:
        yield Text(text="No sealed test was scored: the promotion compared dev scores only.")
        return
    description = (
        f"{decision.trial} on dev sets and on the sealed tests of the same names. A large drop means overfitting."
    )
    rows = tuple(
        (p.name, score(p.dev), score(p.sealed), score(p.untrained), score(p.teacher), score(p.chance)) for p in pairs
    )
    table = Table(
        caption="Dev against sealed",
        columns=("test", "dev", "sealed", "sealed, untrained", "sealed, teacher", "chance"),
        rows=rows,
    )
    caption = Caption(name="sealed", title="Dev against sealed tests", description=description)
    yield Figure("", description, sealed_chart(caption, pairs), table)
    if decision.contest is not None:
        yield _contest_table(decision.contest)


def _contest_table(contest: Contest) -> Table:
    """Challenger against champion, subset by subset."""
    return Table(
        caption=f"Against the champion {contest.champion}",
        columns=("metric", "items", "champion", "this model", "difference", "interval", "p"),
        rows=tuple(
            (
                cell.name,
                str(cell.items),
                score(cell.champion),
                score(cell.challenger),
                f"{cell.difference:+.4f}",
                f"{cell.low:+.4f} to {cell.high:+.4f}",
                f"{cell.p:.2g}",
            )
            for cell in (*contest.cells, *contest.overall)
        ),
    )


def _decisions_table(records: Sequence[DecisionRecord]) -> Table:
    return Table(
        caption="All decisions about this sweep",
        columns=("time", "trial", "verdict", "registered as"),
        rows=tuple(
            (
                record.time,
                record.decision.trial,
                record.decision.verdict + (" (dry run)" if record.dry_run else ""),
                record.decision.registered or "–",
            )
            for record in records
        ),
        left=frozenset({0, 1, 2, 3}),
    )


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A metric on a dev set and on the sealed test of the same name."""

    name: str
    dev: float | None
    sealed: float
    untrained: float | None
    teacher: float | None
    chance: float | None


def sealed_chart(caption: Caption, pairs: Sequence[Paired]) -> str:
    """Dev beside sealed, joined by a line, with the untrained student and chance."""
    shown = pairs[:BARS]
    with drawing(WIDTH, 1.1 + 0.32 * len(shown)) as figure:
        axes = figure.subplots()
        for place, pair in enumerate(shown):
            if pair.dev is not None:
                axes.plot((pair.dev, pair.sealed), (place, place), color=FAINT, linewidth=2, zorder=1)
        kinds: list[tuple[str, list[float | None], str, str, str]] = [
            ("dev", [p.dev for p in shown], "o", SERIES[0], "none"),
            ("sealed test", [p.sealed for p in shown], "D", SERIES[0], SERIES[0]),
            ("sealed test, untrained", [p.untrained for p in shown], "s", INK, "none"),
            ("chance", [p.chance for p in shown], "|", MUTED, MUTED),
        ]
        for label, values, marker, color, face in kinds:
            found = [(value, place) for place, value in enumerate(values) if value is not None]
            if found:
                xs, ys = zip(*found, strict=True)
                (line,) = axes.plot(xs, ys, linestyle="none", marker=marker, color=color, label=label)
                line.set(markersize=8, markeredgewidth=1.8, markerfacecolor=face)
        axes.set_yticks(range(len(shown)), [clipped(pair.name, 34) for pair in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper left", ncols=4)
        return svg_of(figure, caption.name, caption.title, caption.description)
