"""A rule that chooses among a sweep's finished trials: `sts>=0.70, max tatoeba`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from babeltune.errors import PromotionError, SpecError, UnknownNameError, nearest
from babeltune.evaluation.metric_names import MAIN_METRICS
from babeltune.schema.records import Objective
from babeltune.sweep.state.leaderboard import Row, noise_share

BOUND = re.compile(r"(?P<name>[^\s<>=]+)\s*(?P<sign>>=|<=)\s*(?P<value>[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?)")
AIM = re.compile(r"(?P<aim>max|min)\s+(?P<name>[^\s<>=]+)")
FORM = "write bounds and one aim, such as 'sts>=0.70, max everyday'"


@dataclass(frozen=True)
class Rule:
    """Bounds that a trial must keep, and what the best of those is best in."""

    bounds: tuple[tuple[str, Literal[">=", "<="], float], ...]
    aim: Literal["max", "min"]
    metric: str

    def holds(self, scores: Mapping[str, float]) -> bool:
        return all(
            name in scores and (scores[name] >= value if sign == ">=" else scores[name] <= value)
            for name, sign, value in self.bounds
        )


def read_rule(text: str, metrics: Iterable[str]) -> Rule:
    """The rule that the text spells, in the full names of these metrics.

    Raises `SpecError` for other words and `UnknownNameError`, with the nearest name, for a metric that is not there or
    could be several."""
    names, bounds, aims = sorted(set(metrics)), [], []
    for part in (part.strip() for part in text.split(",")):
        if bound := BOUND.fullmatch(part):
            sign: Literal[">=", "<="] = ">=" if bound["sign"] == ">=" else "<="
            bounds.append((full_name(bound["name"], names), sign, float(bound["value"])))
        elif aim := AIM.fullmatch(part):
            aims.append((aim["aim"], full_name(aim["name"], names)))
        else:
            raise SpecError(f"--prefer {text!r}: {part!r} is neither a limit nor max METRIC or min METRIC; {FORM}")
    if len(aims) != 1:
        raise SpecError(f"--prefer {text!r}: write one max METRIC or min METRIC, not {len(aims)}; {FORM}")
    (word, metric) = aims[0]
    return Rule(tuple(bounds), "max" if word == "max" else "min", metric)


def full_name(short: str, metrics: Sequence[str]) -> str:
    """The one metric that is called so: by its whole name, without `dev/`, or by parts of it in order, such as
    `everyday` or `fra-eng/accuracy`. Of several, the mean over a task's subsets in its main metric is meant.

    Raises `UnknownNameError` for none or several, and `SpecError` for a loss."""
    parts = short.split("/")
    for candidate in (short, f"dev/{short}"):
        if candidate in metrics:
            return candidate
    matching = list[str]()
    for name in metrics:
        rest = iter(name.split("/"))
        if all(part in rest for part in parts):  # the parts of `short`, in their order
            matching.append(name)
    means = [name for name in matching if name.count("/") == 2 and name.rpartition("/")[2] in MAIN_METRICS]
    for candidates in (matching, means):
        if len(candidates) == 1:
            return candidates[0]
    if "loss" in short or parts[0] == "train":
        why = "losses of other temperatures, variants or labels do not compare, so the lowest is not the best encoder's"
        raise SpecError(f"--prefer: {short!r} is of the training: {why}; choose by {', '.join(metrics)}")
    words = f"could be {', '.join(matching)}; name one" if matching else f"is no metric; known: {', '.join(metrics)}"
    spellings = dict.fromkeys(part for name in metrics for part in (name, *name.split("/")[1:]))
    raise UnknownNameError(f"--prefer: {short!r} {words}{'' if matching else nearest(short, spellings)}")


def preferred(rows: Sequence[Row], text: str) -> tuple[Row, Objective]:
    """The trial that the rule chooses, and the objective in which it is the best.

    Only trials that finished count, each by its best report. Of those that do not differ from the best (`noise_share`)
    it is the first.

    Raises as `read_rule` does, and `PromotionError` that says how far the nearest was when none keeps the bounds."""
    finished = [row for row in rows if row.state == "finished" and row.best is not None]
    if not finished:
        raise PromotionError("no trial has finished, so there is none to prefer")
    rule = read_rule(text, (name for row in finished for name in row.metrics if name.startswith(("dev/", "model/"))))
    allowed = [row for row in finished if rule.holds(row.metrics) and rule.metric in row.metrics]
    if not allowed:
        spans = [
            f"{name} from {min(values):.4f} to {max(values):.4f}, asked {sign}{value:g}"
            for name, sign, value in rule.bounds
            if (values := [row.metrics[name] for row in finished if name in row.metrics])
        ]
        words = f"none of {len(finished)} finished trials keeps the bounds: {'; '.join(spans)}"
        raise PromotionError(f"--prefer {text!r}: {words}")
    aim = Objective(metric=rule.metric, goal="maximize" if rule.aim == "max" else "minimize")
    best = (max if rule.aim == "max" else min)(allowed, key=lambda row: row.metrics[rule.metric])
    value = best.metrics[rule.metric]
    tolerances = [abs(value) * max(noise_share(best, rule.metric), noise_share(row, rule.metric)) for row in allowed]
    candidates = zip(allowed, tolerances, strict=True)
    # Leaderboard order breaks ties.
    chosen = next(row for row, tolerance in candidates if abs(row.metrics[rule.metric] - value) <= tolerance)
    return chosen, aim
