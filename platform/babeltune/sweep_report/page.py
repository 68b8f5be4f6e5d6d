"""Puts a sweep's report together: its title, its verdict, its first facts, and which sections follow."""

from collections.abc import Iterator

from babeltune.errors import plural
from babeltune.evaluation.metric_names import PARAMETERS
from babeltune.sweep.state.leaderboard import speed_words
from babeltune.sweep_report.document import Fact, ReportPage
from babeltune.sweep_report.record import MOST_ROWS, SweepReport
from babeltune.sweep_report.sections.languages import languages
from babeltune.sweep_report.sections.leaderboard import leaderboard
from babeltune.sweep_report.sections.provenance import cost, data, reproduction
from babeltune.sweep_report.sections.sealed_tests import sealed
from babeltune.sweep_report.sections.settings import what_mattered
from babeltune.sweep_report.sections.size_and_speed import pareto
from babeltune.sweep_report.sections.training import diagnostics, learning_curves
from babeltune.sweep_report.sections.translations import translations
from babeltune.sweep_report.words import all_settings, better, duration, interval, score, short, verdict


def document(report: SweepReport, most: int = MOST_ROWS) -> ReportPage:
    """The report's page, with at most `most` trials in a table or chart."""
    sections = [
        leaderboard(report, most),
        learning_curves(report, most),
        languages(report),
        translations(report),
        what_mattered(report, most),
        pareto(report, most),
        sealed(report),
        diagnostics(report, most),
        data(report.data),
        cost(report),
        reproduction(report),
    ]
    return ReportPage(
        title=f"Sweep {report.name}",
        subtitle=" · ".join(filter(None, (report.sweep, report.state, ", ".join(report.methods), report.note))),
        verdict=verdict(report),
        facts=tuple(_facts(report)),
        sections=tuple(section for section in sections if section is not None),
        footer=f"Made by babeltune on {report.made_at} UTC from the sweep's records.",
    )


def _facts(report: SweepReport) -> Iterator[Fact]:
    best = report.winner
    yield Fact(label="best trial", value=best.row.name, detail=all_settings(best))
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
        detail=f"{plural(report.cost.pairs, 'pair')} seen, over all trials",
    )
    if PARAMETERS in best.row.metrics:
        size = best.row.metrics[PARAMETERS]
        detail = ", ".join(filter(None, (f"{4 * size / 1e6:,.1f} MB in fp32", speed_words(best.row.metrics))))
        yield Fact(label="parameters", value=f"{size / 1e6:.1f} M" if size >= 1e5 else f"{size:,.0f}", detail=detail)
