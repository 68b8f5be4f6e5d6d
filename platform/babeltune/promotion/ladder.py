"""Promotion of a sweep's front: each of its models is a rung, and is promoted as a single one is.

The aliases are given by the dev scores: `small` to the rung with the fewest weights, `fast` to that with the most
sentences a second, `best` to that with the best first objective. Rungs whose gates fail are left out, and hand on
their aliases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from babeltune.errors import CheckpointError, SweepError
from babeltune.evaluation.metric_names import PARAMETERS, SPEED
from babeltune.promotion.candidate import find_candidate, registered_name
from babeltune.promotion.fresh_scorer import FreshScorer
from babeltune.promotion.gates import Decision
from babeltune.promotion.promote import notify_of, promote_candidate, whole_sweep
from babeltune.promotion.selection_rule import preferred
from babeltune.promotion.statistics import error_of, errors_of
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Objective
from babeltune.sweep.state.leaderboard import Row, front, leaderboard, winner
from babeltune.sweep.sync.view import StorageView

RULES = {"small": f"min {PARAMETERS}", "fast": f"max {SPEED}"}
"""Which rung gets an alias, as `--prefer` spells it. The best one also gets `best`."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A model of the front, and what was decided about it."""

    row: Row
    metric: str
    """The first objective."""
    interval: tuple[float, float] | None = None
    """The interval of its value on the dev sets, at `promotion.confidence`; None if its standard error is unknown."""
    decisions: tuple[Decision, ...] = ()
    """One for all aliases that pointed to one version before, or to none."""
    judged_for: tuple[str, ...] = ()
    """The aliases that the decisions are about."""
    aliases: tuple[str, ...] = ()
    """The aliases that point to it now; after a dry run, those that would."""

    @property
    def failed(self) -> bool:
        """Whether it was refused, and not because another model has its alias and is better."""
        refused = [each for each in self.decisions if each.verdict == "refuse"]
        return any(each.contest is None or each.contest.verdict != "refuse" for each in refused)


def promote_front(name: str | None, cluster: Cluster, *, dry_run: bool = False) -> list[Rung]:
    """Promotes each model of the sweep's front by objectives, size and speed; the best first objective comes first.

    Raises `SpecError` for a trial and `SweepError` without a finished one. A rung that is refused, or whose checkpoint
    is gone, is a rung with that `Decision`."""
    view = StorageView(cluster)
    view.update(name and name.partition("/")[0])
    folder = whole_sweep(name, view.folder, "--front")
    board = leaderboard(folder)
    winner(folder, board)
    metrics, rows = front(folder, board=board)
    rungs = {row.name: Rung(row=row, metric=metrics[0]) for row in rows}
    with FreshScorer() as scorer:
        while (turn := _next(tuple(rungs.values()))) is not None:
            rung, due = turn
            name = rung.row.name
            try:
                rungs[name] = _promoted(rung, f"{folder.id}/{name}", view, due, scorer, dry_run=dry_run)
            except (CheckpointError, SweepError) as error:
                why, report = (str(error),), rung.row.best or 0
                refusal = Decision(verdict="refuse", reasons=why, sweep=folder.id, trial=name, report=report)
                rungs[name] = replace(rung, decisions=(*rung.decisions, refusal))
                if not dry_run:
                    notify_of(refusal, cluster)
    return list(rungs.values())


def _next(rungs: Sequence[Rung]) -> tuple[Rung, dict[str, Objective | None]] | None:
    """The rung that is promoted now, and for which aliases; None at the end."""
    standing = [rung for rung in rungs if not rung.failed]
    if not standing:
        return None
    rows = [rung.row for rung in standing]
    roles = {alias: preferred(rows, rule) for alias, rule in RULES.items()}
    for rung in reversed(standing):  # the best comes last, as the report keeps the last decision
        due: dict[str, Objective | None] = {alias: aim for alias, (row, aim) in roles.items() if row == rung.row}
        due |= {"best": None} if rung is standing[0] else {}
        due = {alias: aim for alias, aim in due.items() if alias not in rung.judged_for}
        if due or not rung.decisions:
            return rung, due
    return None


def _promoted(
    rung: Rung, name: str, view: StorageView, due: dict[str, Objective | None], scorer: FreshScorer, *, dry_run: bool
) -> Rung:
    """The rung after a decision for each group of the aliases that one version has, or that none has yet."""
    from babeltune.tracking.registry import champion_of

    aim = None if "best" in due else next(iter(due.values()), None)
    candidate = replace(find_candidate(name, view.folder), preferred=aim)
    view.download_checkpoint(candidate.folder, candidate.trial.number, candidate.report.index, candidate.prepared)
    groups: dict[str | None, tuple[str, ...]] = {}
    for alias in due:
        holder = champion_of(view.cluster.mlflow, registered_name(candidate), alias)
        version = None if holder is None else holder.version
        groups[version] = (*groups.get(version, ()), alias)
    value = rung.row.metrics[rung.metric]
    error = error_of(rung.metric, value, candidate.prepared)
    half = None if error is None else errors_of(candidate.sweep.promotion.confidence) * error
    interval = None if half is None else (value - half, value + half)
    rung = replace(rung, interval=interval, judged_for=(*rung.judged_for, *due))
    for aliases in groups.values() or [()]:
        decision = promote_candidate(candidate, view, aliases, dry_run=dry_run, scorer=scorer)
        stays = decision.verdict == "tie" and decision.contest is None
        gained = aliases if decision.verdict == "promote" or stays else ()
        rung = replace(rung, decisions=(*rung.decisions, decision), aliases=(*rung.aliases, *gained))
        if rung.failed:
            break
    return rung
