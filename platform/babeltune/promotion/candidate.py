"""What promotion judges: one trial's best checkpoint, its export, and the sets that it is scored on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from babeltune.data.eval_sets import EvalRows, labelled, read_eval
from babeltune.data.prepared import Prepared, TextTask, read_prepared
from babeltune.engine.ledger import SweepFolder, find_run, find_sweep, trial_row, winner
from babeltune.errors import PromotionError, SweepError
from babeltune.promotion.export import export_trial
from babeltune.promotion.statistics import Selection, selection, standard_error
from babeltune.records import Report, Sweep, Trial, trial_from
from babeltune.spec.sweep_file import data_root
from babeltune.training.checkpoint import best_report, checkpoint_folder, load_checkpoint, read_reports
from babeltune.training.learner import make_method, make_student


@dataclass(frozen=True)
class Candidate:
    """One trial's best checkpoint."""

    folder: SweepFolder
    sweep: Sweep
    trial: Trial
    report: Report
    prepared: Prepared

    @property
    def name(self) -> str:
        return f"t{self.trial.number:04d}"


def find_candidate(name: str | None, storage: Path) -> Candidate:
    """The named trial, or the best finished one of the named (or latest) sweep."""
    from babeltune.engine.board import is_driven

    folder, number = find_run(storage, name) if name else (find_sweep(storage, None), None)
    if number is None:
        number = int(winner(folder).name.removeprefix("t"))
    sweep, place = folder.sweep(), folder.trial(number)
    trial = trial_from(json.loads((place / "trial.json").read_text(encoding="utf-8")))
    objective = sweep.objectives[0]
    if trial_row(place, objective).state == "running" and is_driven(folder):
        raise SweepError(f"{folder.id}/{place.name} is still training; wait, or `babeltune stop {folder.id}` first")
    report = best_report(read_reports(place), objective.metric, objective.goal)
    if report is None:
        raise SweepError(
            f"{folder.id}/{place.name} has no checkpoint yet; `babeltune status {folder.id}` shows how far it is"
        )
    return Candidate(folder, sweep, trial, report, read_prepared(folder.prepared))


def export_model(candidate: Candidate, folder: Path, *, untrained: bool = False) -> None:
    """Writes the candidate's checkpoint, or its student before training, as a sentence-transformers folder."""
    trial, prepared = candidate.trial, candidate.prepared
    encoder = make_student(trial, prepared)
    method = make_method(trial, prepared, encoder)
    if not untrained:
        place = candidate.folder.trial(trial.number)
        tensors, _ = load_checkpoint(checkpoint_folder(place, candidate.report.index))
        encoder.load_state_dict(tensors["student"])
        method.load_state_dict(tensors.get("method", {}))
    export_trial(candidate.sweep, trial, prepared, encoder, method, folder)


def dev_texts(prepared: Prepared) -> list[TextTask]:
    """The dev tasks in plain text."""
    texts = json.loads((Path(prepared.folder) / "texts.json").read_text(encoding="utf-8"))
    return [task.mapped(lambda number, _: texts[number]) for task in prepared.tasks]


def registered_name(candidate: Candidate) -> str:
    """The name in the registry."""
    return candidate.sweep.promotion.name or candidate.sweep.name


def sealed_tests(candidate: Candidate) -> list[EvalRows]:
    """The sealed tests; `PromotionError` where one is not that whose sentences were kept out of the training text."""
    found, known = read_eval(candidate.sweep.data.test, data_root(candidate.sweep)), candidate.prepared.digests
    for name, rows in labelled("test", found):
        if known.get(name) != rows.digest:
            raise PromotionError(
                f"{name} has changed since {candidate.folder.id} was prepared, so training may have seen its "
                "sentences; put the old files back, or submit the sweep under another name"
            )
    return found


def doubts_about(candidate: Candidate) -> list[str]:
    """What a promotion without gates would pass over: a trial that is no better than the untrained student."""
    objective = candidate.sweep.objectives[0]
    own = candidate.report.metrics.get(objective.metric)
    untrained = candidate.folder.baselines().get("untrained", {}).get(objective.metric)
    if own is None or untrained is None or (own > untrained if objective.goal == "maximize" else own < untrained):
        return []
    return [f"warning: {objective.metric} is {own:.4f}, no better than the untrained student's {untrained:.4f}"]


def selection_of(candidate: Candidate) -> Selection | None:
    """What the first objective's value is worth, given from how many trials the candidate was chosen; None for a metric
    whose standard error is not known."""
    metric = candidate.sweep.objectives[0].metric
    value = candidate.report.metrics[metric]
    rows = [trial_row(path, candidate.sweep.objectives[0]) for path in candidate.folder.trials()]
    values = [row.metrics[metric] for row in rows if row.state == "finished" and metric in row.metrics]
    _, name, *subset, _ = metric.split("/")
    items = sum(len(t.left) for t in candidate.prepared.tasks if t.name == name and subset in ([], [t.subset]))
    error = standard_error(metric, value, items)
    if error is None or not values:
        return None
    return selection(metric, value, values, error)


def lineage(candidate: Candidate) -> dict[str, str]:
    """The tags that say which checkpoint a version is."""
    return {
        "babeltune.sweep": candidate.folder.id,
        "babeltune.trial": candidate.name,
        "babeltune.report": str(candidate.report.index),
    }
