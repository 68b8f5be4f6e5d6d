"""Promotion: the best checkpoint becomes a sentence-transformers model, if its numbers hold.

The checkpoint is exported; a fresh process scores the exported folder with plain sentence-transformers; the logged
dev metrics must come out again; the sealed test sets are opened and the sweep's gates judged. Then, and not before,
the folder gets its card and its place in the registry.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from babeltune.data.eval_sets import labelled, read_eval, read_tasks, subsets
from babeltune.data.prepared import Prepared, TextTask, read_prepared
from babeltune.engine.ledger import SweepFolder, find_run, find_sweep, trial_row, winner
from babeltune.errors import PromotionError, SpecError, SweepError, UnknownNameError
from babeltune.models.hub import model_folder as hub_folder
from babeltune.promotion.card import model_card
from babeltune.promotion.export import export_trial
from babeltune.promotion.judge import Decision, Scores, chance_of, judge
from babeltune.promotion.rescore import Rescorer
from babeltune.records import Report, Sweep, Trial, trial_from
from babeltune.spec.cluster import Cluster
from babeltune.spec.sweep_file import data_root, read_data
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


def record_opening(folder: SweepFolder, what: str, tasks: Sequence[TextTask]) -> int:
    """Writes down who opened the sealed tests, and when; returns how often this sweep's were opened."""
    path = folder.path / "openings.jsonl"
    opening = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "user": getpass.getuser(),
        "model": what,
        "tests": sorted({task.name for task in tasks}),
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(opening) + "\n")
    return len(path.read_text(encoding="utf-8").splitlines())


def promote(
    name: str | None, cluster: Cluster, *, alias: str = "champion", out: Path | None = None, dry_run: bool = False
) -> Decision:
    """Exports, scores afresh, judges, and registers the best checkpoint of a sweep, or a named trial's.

    Raises `SweepError` without a finished trial and `CheckpointError` for an altered checkpoint; a refusal is a
    `Decision`.
    """
    storage = Path(cluster.storage).absolute()
    if out is not None and out.exists():
        raise PromotionError(f"--out {out} exists already; name a new folder, or remove it first")
    if name and re.fullmatch(r"[0-9a-f]{32}", name):
        from babeltune.tracking.registry import trial_of_run

        name = trial_of_run(cluster.mlflow, name)
    candidate = find_candidate(name, storage)
    sweep = candidate.sweep
    run_id = None if dry_run else recorded_run(candidate, cluster)  # before the sealed tests are opened in vain
    final = storage / "models" / candidate.folder.id / f"{candidate.name}-{candidate.report.index:06d}"
    draft = final.with_name(f".{final.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with Rescorer() as rescore:
            export_model(candidate, draft / "model")
            export_model(candidate, draft / "untrained", untrained=True)
            decision = weigh(candidate, draft, rescore)
        if decision.verdict == "promote" and run_id is not None:
            shutil.rmtree(final, ignore_errors=True)
            (draft / "model").replace(final)
            decision = replace(decision, folder=str(final))
            card = model_card(sweep, candidate.trial, candidate.report, candidate.prepared, decision)
            (final / "README.md").write_text(card, encoding="utf-8")
            registered = register_model(candidate, final, cluster, run_id, alias, decision)
            decision = replace(decision, registered=registered)
            if out is not None:
                shutil.copytree(final, out)
                decision = replace(decision, folder=str(out))
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return decision


def weigh(candidate: Candidate, draft: Path, rescore: Rescorer) -> Decision:
    """Scores the exported folders afresh and judges; opens sealed tests only if the dev numbers hold."""
    model, untrained = str(draft / "model"), str(draft / "untrained")
    # `xsim_flipped` says how a score was made, and is there only where it is above zero.
    compared = [k for k in candidate.report.metrics if k.startswith("dev/") and not k.endswith("/xsim_flipped")]
    logged = {k: candidate.report.metrics[k] for k in compared}
    dev = rescore({"model": model}, dev_texts(candidate.prepared), "dev")["model"]
    decision = Decision(
        verdict="refuse",
        reasons=(),
        sweep=candidate.folder.id,
        trial=candidate.name,
        report=candidate.report.index,
        dev=dev,
    )
    verdict, reasons = judge(logged, dev)
    doubts = doubts_about(candidate)
    if verdict == "refuse" or not candidate.sweep.data.test:
        return replace(decision, verdict=verdict, reasons=(*reasons, *doubts))
    tests = sealed_tests(candidate)
    opened = record_opening(candidate.folder, f"{candidate.name}/{candidate.report.index}", tests)
    scores = rescore({"model": model, "untrained": untrained}, tests, "test")
    chance = chance_of(tests)
    gates = candidate.sweep.promotion.gates
    verdict, reasons = judge(logged, dev, gates, scores["model"], scores["untrained"], chance)
    reasons = (*reasons, *doubts)
    if opened > 1:
        reasons = (
            *reasons,
            f"the sealed tests of this sweep were opened {opened} times; each look makes them less sealed",
        )
    return replace(
        decision, verdict=verdict, reasons=reasons, test=scores["model"], untrained=scores["untrained"], chance=chance
    )


def doubts_about(candidate: Candidate) -> list[str]:
    """What a promotion without gates would pass over: a trial that is no better than the untrained student."""
    objective = candidate.sweep.objectives[0]
    own = candidate.report.metrics.get(objective.metric)
    untrained = candidate.folder.baselines().get("untrained", {}).get(objective.metric)
    if own is None or untrained is None or (own > untrained if objective.goal == "maximize" else own < untrained):
        return []
    return [f"warning: {objective.metric} is {own:.4f}, no better than the untrained student's {untrained:.4f}"]


def sealed_tests(candidate: Candidate) -> list[TextTask]:
    """The sealed tests; `PromotionError` where one is not that whose sentences were kept out of the training text."""
    data, known = candidate.sweep.data, candidate.prepared.digests
    found = read_eval(data.test, data_root(candidate.sweep))
    for name, rows in labelled("test", found):
        if known.get(name) != rows.digest:
            raise PromotionError(
                f"{name} has changed since {candidate.folder.id} was prepared, so training may have seen its "
                "sentences; put the old files back, or submit the sweep under another name"
            )
    return [task for rows in found for task in subsets(rows, data.anchor_priority)]


def recorded_run(candidate: Candidate, cluster: Cluster) -> str:
    """MLflow's id of the candidate's run; `PromotionError` when MLflow does not answer or does not have it."""
    from babeltune.tracking.registry import find_run as run_of

    return run_of(cluster.mlflow, candidate.sweep.name, candidate.folder.id, candidate.trial.number)


def register_model(
    candidate: Candidate, folder: Path, cluster: Cluster, run_id: str, alias: str, decision: Decision
) -> str:
    """A new version in the MLflow registry, with its lineage, under the alias."""
    from babeltune.tracking.registry import log_scores, register

    registered_name = candidate.sweep.promotion.name or candidate.sweep.name
    tags = {
        "babeltune.sweep": candidate.folder.id,
        "babeltune.trial": candidate.name,
        "babeltune.report": str(candidate.report.index),
        "babeltune.data": candidate.prepared.digest,
        **{f"metric.{k}": str(v) for k, v in {**decision.dev, **decision.test}.items() if k.count("/") == 2},
    }
    log_scores(cluster.mlflow, run_id, decision.test, candidate.report.step)
    version = register(cluster.mlflow, registered_name, folder, run_id, alias, tags)
    return f"models:/{registered_name}@{alias} (version {version})"


def model_folder(model: str, cluster: Cluster) -> str:
    """The folder behind a model's name: a path, a hub id, or `models:/NAME@ALIAS`. Raises `TeacherError` for none."""
    from babeltune.tracking.registry import fetch

    if model.startswith("models:/"):
        model = str(fetch(cluster.mlflow, model, Path(cluster.storage).absolute() / "fetched"))
    return str(hub_folder(model, None, setting="model").absolute())


def evaluate_model(model: str, with_: str, cluster: Cluster, *, test: bool, prompt: str | None = None) -> Scores:
    """Scores a model on the dev or sealed test sets of a file's data section. Opening the tests is recorded.

    `prompt` is put before every sentence, in place of the model's own one. Raises `SpecError` when the section has no
    such sets.
    """
    data, root = read_data(with_)
    wanted = data.test if test else data.dev
    if not wanted:
        raise SpecError(f"{with_}: data.{'test' if test else 'dev'} names no tasks to score")
    tasks = read_tasks(wanted, root, data)
    storage = Path(cluster.storage).absolute()
    prefix = "test" if test else "dev"
    trial = _trial_of(model, storage)
    if trial is None:
        folder = model_folder(model, cluster)
        place = SweepFolder(storage / "evaluations")
        place.path.mkdir(parents=True, exist_ok=True)
        if test:
            record_opening(place, model, tasks)
        with Rescorer() as rescore:
            return rescore({"model": folder}, tasks, prefix, prompt)["model"]
    draft = storage / "evaluations" / f"{trial.folder.id}-{trial.name}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        export_model(trial, draft)
        if test:
            record_opening(trial.folder, trial.name, tasks)
        with Rescorer() as rescore:
            return rescore({"model": str(draft)}, tasks, prefix, prompt)["model"]
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _trial_of(model: str, storage: Path) -> Candidate | None:
    """The trial that `SWEEP/t0003` names, unless it is a folder or another kind of name."""
    if Path(model).is_dir() or model.startswith("models:/"):
        return None
    try:
        return find_candidate(model, storage)
    except UnknownNameError:
        if re.search(r"/t\d+$", model):
            raise
        return None
