"""The candidate of a promotion: one trial's best checkpoint, its export, and the sets that it is scored on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from babeltune.data.eval_sets import EvalRows, labelled, read_eval
from babeltune.data.prepared import Prepared, TextTask, read_prepared
from babeltune.data.starts import start_name
from babeltune.errors import PromotionError, StoreError, SweepError
from babeltune.files import draft_folder
from babeltune.planning.preparation import prepare
from babeltune.planning.sweep_file import data_root
from babeltune.promotion.export import export_trial
from babeltune.promotion.statistics import Selection, error_of, selection
from babeltune.schema.records import UNTRAINED, Objective, Report, Sweep, Teacher, Trial, trial_from
from babeltune.schema.trial_names import trial_name, trial_number
from babeltune.sweep.state.folder import SweepFolder, find_run, find_sweep, read_of_trial
from babeltune.sweep.state.housekeeping import why_removed
from babeltune.sweep.state.leaderboard import leaderboard, trial_row, winner
from babeltune.sweep.state.messages import scores_of
from babeltune.sweep.state.rebuild import damage
from babeltune.tracking.mlflow_client import REPORT, SWEEP, TRIAL
from babeltune.training.build import load_weights, make_student_and_method
from babeltune.training.checkpoint import best_report, checkpoint_folder, load_checkpoint, read_reports

if TYPE_CHECKING:
    from torch import Tensor

    from babeltune.sweep.sync.view import StorageView

MEMBERS = "babeltune.members"  # the tag of a version whose weights are an average


@dataclass(frozen=True)
class Candidate:
    """One trial's best checkpoint, or the average of several trials' under the name of the best."""

    folder: SweepFolder
    sweep: Sweep
    trial: Trial
    report: Report
    prepared: Prepared
    preferred: Objective | None = None  # the goal of the rule of `--prefer`, if there was one
    weights: Mapping[str, Mapping[str, Tensor]] | None = field(default=None, compare=False, repr=False)
    """In place of the checkpoint's, of an average of several (`soup.py`)."""
    members: tuple[str, ...] = ()  # the checkpoints that the weights are the average of, such as `t0003/9`

    @property
    def name(self) -> str:
        return trial_name(self.trial.number)

    @property
    def chosen_by(self) -> Objective:
        """The metric in which this trial is the best."""
        return self.preferred or self.sweep.objectives[0]


def find_candidate(name: str | None, storage: Path, *, weights: bool = True) -> Candidate:
    """The named trial, or the best finished one of the named (or latest) sweep. Raises `SweepError` for one without a
    checkpoint, or whose checkpoint was removed; with `weights=False` its scores suffice."""
    from babeltune.sweep.state.progress import is_driven

    folder, number = find_run(storage, name) if name else (find_sweep(storage, None), None)
    if number is None:
        number = trial_number(winner(folder).name)
    sweep, place = folder.sweep(), folder.trial(number)
    if trial_row(place, *sweep.objectives).state == "running" and is_driven(folder):
        raise SweepError(f"{folder.id}/{place.name} is still training; wait, or `babeltune stop {folder.id}` first")
    report = best_report(read_reports(place), *sweep.objectives)
    if report is None:
        state = trial_row(place, *sweep.objectives).state
        todo = f"`babeltune status {folder.id}` shows those that have reported"
        raise SweepError(f"{folder.id}/{place.name} has no checkpoint, and its state is {state}; {todo}")
    if weights and (rule := why_removed(place)) is not None:
        promotable = [path.name for path in folder.trials() if why_removed(path) is None and read_reports(path)]
        todo = f"name a trial that has its own ({', '.join(promotable[:6]) or 'none has'})"
        again = f"train these settings again with `babeltune refit {folder.id}`"
        words = f"{folder.id}/{place.name} has its scores only: its checkpoint was removed (`{rule}`)"
        raise SweepError(f"{words}; {todo}, or {again}")
    sweep = replace(folder.sweep_of(number), promotion=sweep.promotion)
    values = read_of_trial(place, "trial.json")
    assert values is not None  # its row was read
    return Candidate(folder, sweep, trial_from(values), report, _prepared(folder, sweep, number))


def _prepared(folder: SweepFolder, sweep: Sweep, number: int) -> Prepared:
    """The record of the data that the trial began with; made again from the stores if it is damaged."""
    path = folder.data_of(number)
    try:
        return read_prepared(path)
    except StoreError as error:
        trouble = error

    def refuse(*_: object, **__: object) -> Iterable[int]:
        raise trouble  # a store is gone, too

    if damage(path) or not path.exists():
        again = prepare(sweep, folder.path.parents[1], run_shards=refuse)
        if again.digest == (folder.read("facts.json") or {}).get("data"):
            return again
    raise trouble


def export_model(candidate: Candidate, folder: Path, *, untrained: bool = False) -> None:
    """Writes the candidate's checkpoint, or its student before training, as a sentence-transformers folder."""
    trial, prepared = candidate.trial, candidate.prepared
    encoder, method = make_student_and_method(trial, prepared)
    if not untrained:
        place = candidate.folder.trial(trial.number)
        tensors = candidate.weights or load_checkpoint(checkpoint_folder(place, candidate.report.index))[0]
        load_weights(encoder, method, tensors)
    export_trial(candidate.sweep, trial, prepared, encoder, method, folder)


@contextmanager
def exported(candidate: Candidate, view: StorageView, drafts: Path | None = None) -> Iterator[Path]:
    """A folder with the candidate's checkpoint as a model, which is brought here and exported for the block alone."""
    view.download_checkpoint(candidate.folder, candidate.trial.number, candidate.report.index, candidate.prepared)
    with draft_folder(f"{candidate.name}-{candidate.folder.id}", drafts) as draft:
        export_model(candidate, draft / "model")
        yield draft / "model"


def dev_texts(prepared: Prepared) -> list[TextTask]:
    """The dev tasks in plain text."""
    texts = prepared.all_texts()
    return [task.mapped(lambda number, _: texts[number]) for task in prepared.tasks]


def target_of(candidate: Candidate, kind: Literal["dev", "test"]) -> Teacher | None:
    """The sweep's teacher, if it encodes the right side of any dev or sealed test set."""
    return candidate.sweep.teacher if candidate.sweep.data.against_teacher(kind) else None


def registered_name(candidate: Candidate) -> str:
    """The name in the registry."""
    return candidate.sweep.promotion.name or candidate.sweep.name


def sealed_tests(candidate: Candidate) -> list[EvalRows]:
    """The candidate's sealed tests, as `sealed_sets` reads them."""
    return sealed_sets(candidate.sweep, candidate.prepared, candidate.folder.id)


def sealed_sets(sweep: Sweep, prepared: Prepared, sweep_id: str) -> list[EvalRows]:
    """The sealed tests; `PromotionError` if one is not that whose sentences were kept out of the training text."""
    sets = read_eval(sweep.data.test, data_root(sweep), sweep.data.max_line_bytes)
    for name, rows in labelled("test", sets):
        if prepared.digests.get(name) != rows.digest:
            words = f"{name} has changed since {sweep_id} was prepared, so training may have seen its sentences"
            raise PromotionError(f"{words}; put the old files back, or submit the sweep under another name")
    return sets


def doubts_about(candidate: Candidate) -> list[str]:
    """Warnings of a promotion without gates: a trial that is no better than the untrained student, and
    trials that were no candidates because their files are damaged."""
    lost = [f"warning: {row.warning}" for row in leaderboard(candidate.folder) if row.state == "damaged"]
    objective = candidate.sweep.objectives[0]
    trained = candidate.report.metrics.get(objective.metric)
    untrained = candidate.folder.baselines().get(UNTRAINED, {}).get(objective.metric)
    if trained is None or untrained is None:
        return lost
    if trained > untrained if objective.goal == "maximize" else trained < untrained:
        return lost
    words = f"{objective.metric} is {trained:.4f}, no better than the untrained student's {untrained:.4f}"
    return [*lost, f"warning: {words}"]


def chosen_among(candidate: Candidate) -> int:
    """From how many trials the candidate was chosen: all that reported, since a pruned one was a candidate too."""
    return max(1, sum(row.best is not None for row in leaderboard(candidate.folder)))


def selection_of(candidate: Candidate) -> Selection | None:
    """The standard error of the value by which the candidate was chosen, and the luck of the best of several. None for
    a metric whose standard error is not known."""
    metric, goal = candidate.chosen_by.metric, candidate.chosen_by.goal
    value = scores_of(candidate.report).get(metric)
    rows = [row for row in leaderboard(candidate.folder) if row.best is not None and row.state == "finished"]
    values = [row.metrics[metric] for row in rows if metric in row.metrics]
    if value is None or not values:
        return None
    error = error_of(metric, value, candidate.prepared)
    if error is None:
        return None
    return selection(metric, value, values, error, among=chosen_among(candidate), goal=goal)


def lineage(candidate: Candidate) -> dict[str, str]:
    """The tags that say which checkpoint a version is."""
    tags = {SWEEP: candidate.folder.id, TRIAL: candidate.name, REPORT: str(candidate.report.index)}
    if candidate.members:
        tags[MEMBERS] = " ".join(candidate.members)
    if start := start_name(candidate.trial.student):
        tags["babeltune.start"] = start
    return tags
