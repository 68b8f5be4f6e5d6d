"""A `SweepReport` as a page: which sections it has, and what they say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from babeltune.evaluation.evaluate import COMPUTE, PARAMETERS, SPEED
from babeltune.promotion.compare import Contest
from babeltune.promotion.decisions import DecisionRecord
from babeltune.sweep.search.importance import BEST_SHARE, LEAST_TRIALS
from babeltune.sweep.state.examples import Examples
from babeltune.sweep_report.charts import (
    BARS,
    Caption,
    Paired,
    Priced,
    better,
    curves_chart,
    diagnostics_chart,
    front_chart,
    heat_maps,
    importance_chart,
    languages_chart,
    leaderboard_chart,
    parallel_chart,
    projection_chart,
    sealed_chart,
    short,
    slices_chart,
    subset_name,
)
from babeltune.sweep_report.document import Block, Code, Document, Fact, Figure, Items, Section, Table, Text
from babeltune.sweep_report.record import Curve, Standing, SweepReport
from babeltune.sweep_report.words import duration, interval, score, setting, settings, verdict

MOST_ROWS = 200
"""Trials that tables and charts show at most, the best first."""


def document(report: SweepReport, most: int = MOST_ROWS) -> Document:
    """The report's page, with at most so many trials in a table or chart."""
    sections = [
        leaderboard(report, most),
        learning_curves(report, most),
        languages(report),
        translations(report),
        what_mattered(report, most),
        pareto(report, most),
        sealed(report),
        diagnostics(report),
        data(report),
        cost(report),
        reproduction(report),
    ]
    return Document(
        title=f"Sweep {report.name}",
        subtitle=f"{report.sweep} · {report.state} · {', '.join(report.methods)}",
        verdict=verdict(report),
        facts=tuple(_facts(report)),
        sections=tuple(section for section in sections if section is not None),
        footer=f"Made by babeltune on {report.made} UTC from the sweep's records.",
    )


def _facts(report: SweepReport) -> Iterator[Fact]:
    best = report.winner
    yield Fact(label="best trial", value=best.row.name, detail=settings(best))
    yield Fact(
        label=short(report.objective.metric),
        value=score(best.value),
        detail=f"95 % interval {interval(best)}" if best.interval else better(report.objective.goal),
    )
    states = ", ".join(f"{count} {state}" for state, count in report.cost.states)
    yield Fact(label="trials", value=str(len(report.trials)), detail=states)
    yield Fact(
        label="training time",
        value=duration(report.cost.training_s),
        detail=f"{report.cost.pairs:,} pairs seen, over all trials",
    )
    if PARAMETERS in best.row.metrics:
        size = best.row.metrics[PARAMETERS]
        speed = f", {best.row.metrics[SPEED]:,.0f} sentences/s" if SPEED in best.row.metrics else ""
        yield Fact(label="parameters", value=_millions(size), detail=f"{4 * size / 1e6:,.1f} MB in fp32{speed}")


def _millions(size: float) -> str:
    return f"{size / 1e6:.1f} M" if size >= 1e5 else f"{size:,.0f}"


# --- Leaderboard ---------------------------------------------------------------------------------------------------


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
    blocks: list[Block] = [
        _intervals(report),
        _figure("Scores and their intervals", description, chart, _scores_table(shown, metric)),
        _leaderboard_table(report, shown),
    ]
    if any(each.row.front for each in shown):
        blocks.append(Text(text="★: on the Pareto front of the objectives."))
    if (cut := len(report.standings) - len(shown)) > 0:
        blocks.append(Text(text=f"{cut} more trials are in `babeltune runs {report.sweep}`."))
    if report.selection is not None and report.selection.among > 1:
        found = report.selection
        blocks.append(
            Text(
                text=f"The best of {found.among} equally good trials looks {found.inflation:.4f} better than it is, "
                f"through luck alone. Drawn towards the mean of all trials, {report.winner.row.name} has "
                f"{found.shrunken:.4f}."
            )
        )
    return Section(anchor="leaderboard", title="Leaderboard", blocks=tuple(blocks))


COSTS = {PARAMETERS: "parameters", SPEED: "sentences/s", COMPUTE: "compute (s)"}
"""What a model costs, and the title of its column."""


def _leaderboard_table(report: SweepReport, shown: Sequence[Standing]) -> Table:
    metric, others = report.objective.metric, [o.metric for o in report.objectives[1:]]
    costs = [name for name in COSTS if any(name in each.row.metrics for each in shown)]
    rows = tuple(
        (
            each.row.name + (" ★" if each.row.front else ""),
            "baseline" if each.is_baseline else each.row.state,
            score(each.value),
            interval(each),
            *(score(each.row.metrics.get(name)) for name in others),
            *(f"{each.row.metrics[name]:,.0f}" if name in each.row.metrics else "–" for name in costs),
            f"{each.row.pairs:,}" if each.row.pairs else "–",
            duration(each.row.seconds) if each.row.seconds else "–",
            settings(each),
        )
        for each in shown
    )
    columns = ("trial", "state", short(metric), "95 % interval", *map(short, others), *(COSTS[name] for name in costs))
    columns += ("pairs", "time", "settings")
    return Table(
        caption=f"Trials and baselines by {short(metric)}, {better(report.objective.goal)}",
        columns=columns,
        rows=rows,
        left=frozenset({0, 1, len(columns) - 1}),
        marked=next((i for i, each in enumerate(shown) if each is report.winner), None),
    )


def _intervals(report: SweepReport) -> Text:
    """What the intervals mean."""
    if report.winner.error is None:
        return Text(text="This metric's standard error is not known, so there are no intervals.")
    return Text(
        text="An interval is the value ± 1.96 standard errors, by the number of distinct dev rows. It says how much "
        "the score would vary with other sentences, not with other seeds."
    )


def _scores_table(shown: Sequence[Standing], metric: str) -> Table:
    rows = tuple((each.row.name, score(each.value), interval(each)) for each in shown if each.value is not None)
    return Table(caption=f"{short(metric)} by trial", columns=("trial", "value", "95 % interval"), rows=rows)


def _figure(title: str, description: str, svg: str, table: Table) -> Figure:
    return Figure(title=title, description=description, svg=svg, table=table)


# --- Training ------------------------------------------------------------------------------------------------------


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
    return Section(anchor="curves", title=title, blocks=(_figure("", description, svg, table),))


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
        blocks.append(_figure("", "One line per trial, in the colours of the learning curves.", svg, table))
    if report.notes:
        blocks += [Text(text="What is amiss:"), Items(items=report.notes)]
    return Section(anchor="diagnostics", title="Diagnostics", blocks=tuple(blocks)) if blocks else None


# --- Languages -----------------------------------------------------------------------------------------------------


def languages(report: SweepReport) -> Section | None:
    """The winner in each language, beside the untrained student, the teacher and the baselines."""
    if not report.languages:
        return None
    models = list(dict.fromkeys(name for score_ in report.languages for name, _ in score_.values))
    description = f"{report.winner.row.name} as bars in each subset of the dev sets; marks: {', '.join(models[1:])}."
    if (hidden := len(report.languages) - BARS) > 0:
        description += f" {hidden} more are in the table."
    rows = tuple((short(each.metric), *_values(each.values, models)) for each in report.languages)
    table = Table(caption="Dev scores by language", columns=("metric", *models), rows=rows)
    title = "Languages"
    svg = languages_chart(Caption(name="languages", title=title, description=description), report.languages)
    weakest = min(report.languages, key=lambda each: each.values[0][1])
    text = f"Lowest: {subset_name(weakest.metric)} with {score(weakest.values[0][1])}."
    blocks = (Text(text=text), _figure("", description, svg, table))
    return Section(anchor="languages", title=title, blocks=blocks)


def _values(values: Sequence[tuple[str, float]], models: Sequence[str]) -> tuple[str, ...]:
    known = dict(values)
    return tuple(score(known.get(model)) for model in models)


# --- Translations --------------------------------------------------------------------------------------------------


def translations(report: SweepReport) -> Section:
    """What training did to a few translations: their cosines, and their places among one another."""
    title, anchor, found = "Translations before and after training", "translations", report.examples
    if found.missing:
        return Section(anchor=anchor, title=title, blocks=(Text(text=f"Not made: {found.missing}."),))
    words = (
        f"Sentences of the dev set {found.dev_set}, spread evenly over it, by the untrained student and by report "
        f"{found.report} of {found.trial}."
    )
    blocks = (Text(text=words), _similarities(found), _projection(found))
    return Section(anchor=anchor, title=title, blocks=blocks)


def _similarities(found: Examples) -> Figure:
    """The heat maps, and the cosine of each sentence with its translation and with the nearest other sentence."""
    description = (
        "A square is the cosine of a sentence (row) and a sentence in the other language (column), from 0 (blank) to 1 "
        "(full). Translations stand on the diagonal: after training it should stand out."
    )
    texts = {(each.language, each.row): each.text for each in found.sentences}
    rows: list[tuple[str, ...]] = []
    for each in found.similarities:
        for row, lines in enumerate(zip(each.before, each.after, strict=True)):
            others = (
                max((value for column, value in enumerate(line) if column != row), default=None) for line in lines
            )
            own = (line[row] for line in lines)
            both = texts.get((each.left, row), ""), texts.get((each.right, row), "")
            rows.append((f"{row + 1} {each.left}, {each.right}", *map(score, own), *map(score, others), *both))
    columns = ("sentence", "before", "after", "nearest other, before", "nearest other, after", "text", "translation")
    title = "Cosines of translations"
    table = Table(caption=title, columns=columns, rows=tuple(rows), left=frozenset({0, 5, 6}))
    svg = heat_maps(Caption(name="similarities", title=title, description=description), found.similarities)
    return _figure(title, description, svg, table)


def _projection(found: Examples) -> Figure:
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
        for each in found.alignment
    )
    caption = f"Mean cosine with the translation in {found.languages[0]}, and how often that is the nearest sentence"
    title = "Sentences in a plane"
    svg = projection_chart(Caption(name="plane", title=title, description=description), found.sentences)
    return _figure(title, description, svg, Table(caption=caption, columns=columns, rows=rows))


# --- Settings ------------------------------------------------------------------------------------------------------


def what_mattered(report: SweepReport, most: int) -> Section | None:
    """Importance, slices and parallel coordinates of the searched settings."""
    scored = [each for each in report.trials if each.value is not None][:most]
    if not report.searched or not scored:
        return None
    blocks: list[Block] = [*_importance(report, len(scored))]
    metric, names = report.objective.metric, report.searched
    columns = ("trial", short(metric), *names)
    rows = tuple(
        (
            each.row.name,
            score(each.value),
            *(setting(each.row.params[name]) if name in each.row.params else "–" for name in names),
        )
        for each in scored
    )
    table = Table(caption="Settings and score of each trial", columns=columns, rows=rows)
    description = f"{short(metric)} over each setting. The star is the best trial; hollow circles did not finish."
    caption = Caption(name="slices", title="Slices", description=description)
    svg = slices_chart(caption, scored, names, report.logarithmic, metric)
    blocks.append(_figure("Slices", description, svg, table))
    description = f"One line per trial through all settings to {short(metric)}. The best have colours."
    caption = Caption(name="parallel", title="Parallel coordinates", description=description)
    svg = parallel_chart(caption, scored, names, report.logarithmic, metric)
    blocks.append(_figure("Parallel coordinates", description, svg, table))
    return Section(anchor="settings", title="What mattered", blocks=tuple(blocks))


def _importance(report: SweepReport, scored: int) -> Iterator[Block]:
    if not report.importance:
        yield Text(
            text=f"Importance is not shown: it needs {LEAST_TRIALS} scored trials that differ, and there are {scored}."
        )
        return
    description = (
        f"PED-ANOVA: which settings separate the best {BEST_SHARE:.0%} of {scored} trials from the rest. "
        "Few trials give a rough picture."
    )
    caption = Caption(name="importance", title="Importance of settings", description=description)
    rows = tuple((name, f"{share:.4f}") for name, share in report.importance)
    table = Table(caption="Importance of settings", columns=("setting", "share"), rows=rows)
    yield _figure("Importance", description, importance_chart(caption, report.importance), table)


# --- Cost of use ---------------------------------------------------------------------------------------------------


def pareto(report: SweepReport, most: int) -> Section | None:
    """Quality against size and speed, and which trials no other one beats."""
    models = [
        Priced(
            name=each.row.name,
            quality=each.value,
            parameters=each.row.metrics[PARAMETERS],
            speed=each.row.metrics[SPEED],
            on_front=each.row.name in report.front,
            is_baseline=each.is_baseline,
        )
        for each in report.standings
        if each.value is not None and each.row.name != "untrained" and {PARAMETERS, SPEED} <= each.row.metrics.keys()
    ][:most]
    if not models:
        return None
    metric = report.objective.metric
    description = (
        f"{short(metric)} over speed; a larger mark is a larger model. Filled circles are on the Pareto front: no "
        "other finished trial is as good in every respect and better in one."
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
    table = Table(caption=title, columns=columns, rows=rows)
    svg = front_chart(Caption(name="front", title=title, description=description), models, metric)
    names = ", ".join(f"{short(name)} ({better(goal)})" for name, goal in report.front_metrics)
    text = Text(text=f"On the front of {names}: {', '.join(report.front) or 'no trial'}.")
    return Section(anchor="front", title=title, blocks=(text, _figure("", description, svg, table)))


# --- Sealed tests --------------------------------------------------------------------------------------------------


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
    main = [name for name in decision.test if name.endswith(("/accuracy", "/spearman", "/ari", "/ndcg_at_10"))]
    pairs = [
        Paired(
            name=name.removeprefix("test/").rpartition("/")[0].replace("/", " "),
            dev=decision.dev.get(f"dev/{name.removeprefix('test/')}"),
            sealed=decision.test[name],
            untrained=decision.untrained.get(name),
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
    rows = tuple((p.name, score(p.dev), score(p.sealed), score(p.untrained), score(p.chance)) for p in pairs)
    table = Table(
        caption="Dev against sealed", columns=("test", "dev", "sealed", "sealed, untrained", "chance"), rows=rows
    )
    caption = Caption(name="sealed", title="Dev against sealed tests", description=description)
    yield _figure("", description, sealed_chart(caption, pairs), table)
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


# --- Data, cost, reproduction --------------------------------------------------------------------------------------


def data(report: SweepReport) -> Section | None:
    """The training text, what was left out of it, and which sets have near-duplicates in it."""
    facts, blocks = report.data, list[Block]()
    if facts.pairs:
        counted = tuple((each.name, f"{each.pairs:,}") for each in facts.pairs)
        blocks.append(Table(caption="Training pairs by language", columns=("languages", "pairs"), rows=counted))
    if facts.sources:
        steps = tuple(dict.fromkeys(name for source in facts.sources for name, _ in source.steps))
        rows = tuple(
            (
                source.name + (" (synthetic)" if source.synthetic else ""),
                *(f"{dict(source.steps)[step]:,}" if step in dict(source.steps) else "–" for step in steps),
            )
            for source in facts.sources
        )
        caption = "Rows of each source, and the pairs that each step of cleaning left"
        blocks.append(Table(caption=caption, columns=("source", *steps), rows=rows))
    if facts.overlaps:
        blocks.append(
            Table(
                caption="Contamination: dev and test texts with a near-duplicate in the training text",
                columns=("set", "texts", "near-duplicates", "share", "judgement"),
                rows=tuple(
                    (
                        each.name,
                        f"{each.texts:,}",
                        f"{each.near:,}",
                        f"{each.share:.1%}",
                        each.judged or "low",
                    )
                    for each in facts.overlaps
                ),
                left=frozenset({0, 4}),
            )
        )
    return Section(anchor="data", title="Data and contamination", blocks=tuple(blocks)) if blocks else None


def cost(report: SweepReport) -> Section:
    """What the sweep took."""
    found = report.cost
    rows = [
        *((f"trials {state}", str(count)) for state, count in found.states),
        ("pairs seen, all trials", f"{found.pairs:,}"),
        ("training time, all trials", duration(found.training_s)),
        ("the same, times workers", duration(found.worker_s)),
    ]
    if found.compute_s is not None:
        rows.append(("counted compute of one worker", duration(found.compute_s)))
    rows.append(("from the first line of the log to the last", duration(found.wall_s)))
    table = Table(caption="What the sweep took", columns=("what", "how much"), rows=tuple(rows))
    return Section(anchor="cost", title="Cost", blocks=(table,))


def reproduction(report: SweepReport) -> Section:
    """The command, the sweep file and the digests."""
    found = report.provenance
    command = f"babeltune submit {shlex.quote(found.file)}"
    blocks: list[Block] = [
        Text(
            text=f"Save the sweep file below as {found.file}, then run the command. The sweep gets the id {found.id}."
        ),
        Code(label="Command", text=command),
        Code(label=f"Sweep file {found.file}", text=found.spec, folded=True),
    ]
    if found.changes:
        blocks.append(Items(items=found.changes))
    for caption, columns, rows in (
        ("Code and data", ("what", "version or digest"), found.code),
        ("Packages and machine", ("package", "version"), found.versions),
        ("Digests of sources and evaluation sets", ("text", "SHA-256"), found.digests),
        (f"Checkpoint of {report.winner.row.name}", ("file", "SHA-256"), found.weights),
    ):
        if rows:
            blocks.append(Table(caption=caption, columns=columns, rows=rows, left=frozenset({0, 1})))
    return Section(anchor="reproduce", title="To reproduce it", blocks=tuple(blocks))
