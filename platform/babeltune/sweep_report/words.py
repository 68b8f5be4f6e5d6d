"""Numbers and verdicts of a report in words."""

import math
import shlex
from collections.abc import Iterator, Sequence

from babeltune.errors import list_of
from babeltune.schema.base import number
from babeltune.schema.records import UNTRAINED, Goal
from babeltune.sweep_report.record import Z95, Standing, SweepReport

MOST_SUBSETS = 4  # subsets in which the winner is behind that the verdict names


def short(metric: str) -> str:
    """A metric's name without `dev/`."""
    return metric.removeprefix("dev/")


def subset_name(metric: str) -> str:
    """`everyday fra-eng` of `dev/everyday/fra-eng/accuracy`."""
    _, task, subset, _ = metric.split("/")
    return f"{task} {subset}"


def better(goal: Goal) -> str:
    """Which way a metric is better, in words."""
    return "higher is better" if goal == "maximize" else "lower is better"


def score(value: float | None) -> str:
    """A score with four digits."""
    return "–" if value is None else f"{value:.4f}"


def interval(each: Standing) -> str:
    """The 95 % interval of a value."""
    return "–" if each.interval is None else "{:.4f} to {:.4f}".format(*each.interval)


def all_settings(each: Standing) -> str:
    """All searched values of a trial."""
    return ", ".join(f"{name}={number(value)}" for name, value in each.row.settings.items())


def setting(each: Standing, name: str) -> str:
    """A trial's value of a searched setting."""
    return number(each.row.params[name]) if name in each.row.params else "–"


def is_words(standings: Sequence[Standing], name: str) -> bool:
    """Whether a setting has values that are no numbers."""
    return any(isinstance(each.row.params.get(name), str) for each in standings)


def duration(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def verdict(report: SweepReport) -> tuple[str, ...]:
    """Whether training was worth it, which trial is the best and how far it is ahead, and what to do with that.

    Until one has finished, the first sentence says so."""
    if report.winner.row.state != "finished":
        return "No trial has finished yet.", _best(report)
    return *_worth(report), _best(report), _next(report)


def _worth(report: SweepReport) -> Iterator[str]:
    """Whether the best trial is ahead of the best model that needs no training, and where it is behind."""
    best, sign = report.winner, 1 if report.objective.goal == "maximize" else -1
    ready = [each for each in report.baselines if each.row.name != UNTRAINED and each.value is not None]
    if not ready or best.value is None:
        return
    rival = max(ready, key=lambda each: sign * (each.value or 0.0))
    lead = sign * (best.value - (rival.value or 0.0))
    noise = Z95 * math.hypot(best.error or 0.0, rival.error or 0.0)
    judged = "Training was worth it" if lead > 0 else "Training was not worth it"
    if abs(lead) <= noise:
        judged = "It is open whether training was worth it"
    metric = short(report.objective.metric)
    yield (
        f"{judged}: {best.row.name} has {metric} {score(best.value)}, and {rival.row.name}, which needs no training, "
        f"{score(rival.value)}."
    )
    subsets = [(subset_name(each.metric), dict(each.values)) for each in report.languages]
    both = [(name, values[best.row.name], values.get(rival.row.name, -math.inf)) for name, values in subsets]
    behind = [f"{name} ({score(own_score)} against {score(its)})" for name, own_score, its in both if its > own_score]
    if behind:
        yield f"{rival.row.name} is ahead in {list_of(behind, MOST_SUBSETS)}."


def _best(report: SweepReport) -> str:
    best, metric = report.winner, short(report.objective.metric)
    among = sum(each.value is not None for each in report.trials)
    baselines = {each.row.name: each.value for each in report.baselines if each.value is not None}
    against = [f"{name} {score(value)}" for name, value in baselines.items()]
    range_ = f" (95 % interval {interval(best)})" if best.interval is not None else ""
    one = "the only trial with a score" if among == 1 else f"the best of {among} trials"
    beside = f", against {', '.join(against)}" if against else ""
    lead = f"; {_lead(report)}" if among > 1 else ""
    return f"{best.row.name} is {one}: {metric} {score(best.value)}{range_}{beside}{lead}."


def _next(report: SweepReport) -> str:
    if report.decisions:
        record = report.decisions[-1]
        decision = record.decision
        when = f"on {record.time[:10]}"
        if decision.registered:
            return f"{decision.trial} was promoted {when} as {decision.registered}."
        if decision.verdict == "refuse":
            why = f": {decision.reasons[0]}" if decision.reasons else ""
            return f"Its promotion {when} refused {decision.trial}{why}."
        if decision.verdict == "tie" and decision.contest is None:
            return f"Its promotion {when} found that {decision.trial} is the champion already."
        if decision.verdict == "tie":
            return f"Its promotion {when} found {decision.trial} as good as the champion, whose alias stays."
        return f"A dry run {when} would promote {decision.trial}; `babeltune promote {report.sweep}` does."
    return f"`babeltune promote {shlex.quote(report.sweep)}` scores it once more and registers it."


def _lead(report: SweepReport) -> str:
    """How far the winner is ahead of the next of at least two trials, and whether chance explains it."""
    best = report.winner
    others = [each for each in report.trials if each is not best and each.value is not None]
    unfinished = best.row.state != "finished"
    second = next((each for each in others if unfinished or each.row.state == "finished"), None)
    if second is None or second.value is None or best.value is None:
        row = others[0].row
        return f"no other trial has finished, and {row.name} ({row.state}) had {score(others[0].value)}"
    lead = abs(best.value - second.value)
    ahead = f"it is {lead:.4f} ahead of {second.row.name}"
    if best.error is None or second.error is None:
        return ahead
    noise = Z95 * math.hypot(best.error, second.error)
    than = "more" if lead > noise else "less"
    return f"{ahead}, {than} than the {noise:.4f} by which two such scores may differ through chance"
