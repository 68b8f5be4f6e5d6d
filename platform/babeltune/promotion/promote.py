"""Promotion: the best checkpoint becomes a sentence-transformers model, if its numbers hold.

The checkpoint is exported, and a fresh process scores the exported folder with plain sentence-transformers. The logged
dev metrics must come out again. Then the sealed test sets are opened and the sweep's gates judged. If the registered
name has a champion, the challenger must be better on the same sealed tests. Then, and not before, the folder gets its
card and its place in the registry."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

from babeltune.data.contamination import contaminated
from babeltune.data.eval_sets import EvalRows, read_eval, subsets
from babeltune.data.prepared import TextTask
from babeltune.data.starts import keep_start, start_name
from babeltune.errors import CheckpointError, PromotionError, SpecError, TeacherError, UnknownNameError
from babeltune.models.hub import baseline_row, split_revision
from babeltune.models.hub import model_folder as hub_folder
from babeltune.planning.model_checks import right_model_problems
from babeltune.planning.sweep_file import read_data, read_teacher
from babeltune.promotion.candidate import (
    MEMBERS,
    Candidate,
    chosen_among,
    dev_texts,
    doubts_about,
    export_model,
    find_candidate,
    lineage,
    registered_name,
    sealed_tests,
    selection_of,
    target_of,
)
from babeltune.promotion.card_facts import facts_of
from babeltune.promotion.compare import Outcomes, compare, said_of, words_of
from babeltune.promotion.decisions import record_decision
from babeltune.promotion.export import write_folder
from babeltune.promotion.fresh_scorer import FreshScorer, Target
from babeltune.promotion.gates import Decision, Scores, chance_of, judge
from babeltune.promotion.model_card import model_card
from babeltune.promotion.sealed_test_log import record_opening, sealed_elsewhere
from babeltune.promotion.selection_rule import preferred
from babeltune.promotion.soup import best_or_average, members_of
from babeltune.promotion.training_text import trained_on
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Promotion, Task, Teacher
from babeltune.sweep.state.folder import find_run, find_sweep
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.sync.audit import audit
from babeltune.sweep.sync.view import StorageView

if TYPE_CHECKING:
    from babeltune.tracking.registry import Registered


ALIAS = re.compile(r"(?!(latest|v\d+)\Z)[\w-]{1,255}", re.IGNORECASE)
"""What MLflow takes for an alias."""


UNSEALED = (
    "warning: the sweep has no sealed tests, so no unseen text checks the choice among its trials; the model is marked "
    "so. Add `data.test`, as `babeltune init` does"
)
"""What promotion says if the sweep's file names no sealed tests."""
SEALED = "babeltune.sealed_tests"
"""The tag of a version with the names of the sealed tests that it was judged by, or `none`."""
BASELINE = "baseline "
"""Begins the key of a baseline among the models that are scored; no model's name holds a blank."""


def promote(
    name: str | None,
    cluster: Cluster,
    *,
    alias: str = "champion",
    out: Path | None = None,
    dry_run: bool = False,
    prefer: str | None = None,
    soup: int | None = None,
) -> Decision:
    """Exports, scores afresh, judges and registers a checkpoint of a sweep.

    It is the best one, that of a named trial, that of the trial that the rule `prefer` chooses, or the average of
    the best `soup` trials'. Raises `SpecError` for an alias that cannot be one, `SweepError` without a finished
    trial and `CheckpointError` for an altered checkpoint; a refusal is a `Decision`.
    """
    if not ALIAS.fullmatch(alias):
        raise SpecError(
            f"--alias {alias!r}: an alias is letters, digits, `_` and `-`, at most 255 of them, and neither `latest` "
            "nor a version such as `v1`"
        )
    view = StorageView(cluster)
    storage = view.folder
    if out is not None:
        check_free(out)
    if name and re.fullmatch(r"[0-9a-f]{32}", name):
        from babeltune.tracking.registry import trial_of_run

        name = trial_of_run(cluster.mlflow, name)
    view.update(name and name.partition("/")[0])
    candidate, words = chosen(name, view, prefer, soup)
    if dry_run:
        with view.openings():
            decision = decided(candidate, cluster, alias)
        decision = replace(decision, reasons=(*decision.reasons, *words))
        record_decision(view, candidate.folder, decision, dry_run=True)
        return decision
    run_id = recorded_run(candidate, cluster)  # before the sealed tests are opened in vain
    lock = storage / "locks" / f"{registered_name(candidate)}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    # A second promotion compares with what the first one has made the champion.
    with FileLock(lock), view.openings():
        decision = decided(candidate, cluster, alias, run_id=run_id, out=out)
    decision = replace(decision, reasons=(*decision.reasons, *words))
    record_decision(view, candidate.folder, decision, dry_run=False)
    audit(view, "promote", decision.registered or f"{candidate.folder.id}, refused")
    return decision


def chosen(
    name: str | None, view: StorageView, prefer: str | None, soup: int | None
) -> tuple[Candidate, tuple[str, ...]]:
    """What is promoted, with its checkpoints brought here, and why where that was a choice.

    Raises `SpecError` for rules that do not go together, or that name one trial.
    """
    storage, aim = view.folder, None
    if prefer is not None and soup is not None:
        raise SpecError("--prefer and --soup each choose what is promoted; give one of them")
    if prefer is not None or soup is not None:
        folder, number = find_run(storage, name) if name else (find_sweep(storage, None), None)
        if number is not None:
            rule = "--prefer" if prefer is not None else "--soup"
            raise SpecError(f"{rule} chooses among the trials of a sweep, and {name!r} is one trial; name its sweep")
        if prefer is not None:
            row, aim = preferred(leaderboard(folder), prefer)
            name = f"{folder.id}/{row.name}"
    members = members_of(folder, soup) if soup is not None else [replace(find_candidate(name, storage), preferred=aim)]
    for member in members:
        view.bring(member.folder, member.trial.number, member.report.index, member.prepared)
    if soup is None:
        return members[0], ()
    candidate, why = best_or_average(members)
    return candidate, (why,)


def decided(
    candidate: Candidate, cluster: Cluster, alias: str, *, run_id: str | None = None, out: Path | None = None
) -> Decision:
    """The decision; it takes effect if the candidate's `run_id` is given."""
    storage = cluster.folder
    champion = champion_for(candidate, cluster, alias)
    average = f"-average-of-{len(candidate.members)}" if candidate.members else ""
    final = storage / "models" / candidate.folder.id / f"{candidate.name}-{candidate.report.index:06d}{average}"
    final.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as place, FreshScorer() as rescore:
        draft = Path(place)  # of this call alone: a dry run waits for no promotion of the same trial
        export_model(candidate, draft / "model")
        export_model(candidate, draft / "untrained", untrained=True)
        decision = weigh(candidate, draft, rescore, champion)
        start = start_of(candidate, cluster) if decision.test else None
        if start is not None:
            seen = unfiltered(start, candidate, "the model that it started from")
            decision = replace(decision, reasons=(*decision.reasons, *seen))
        if out is not None and champion is not None and is_same(champion, candidate) and decision.verdict == "tie":
            hand_over(champion.folder, out)
            return replace(decision, folder=str(out))
        if decision.verdict != "promote" or run_id is None:
            return decision
        facts = facts_of(candidate, draft / "model", rescore)
        shutil.rmtree(final, ignore_errors=True)
        (draft / "model").replace(final)
    decision = replace(decision, folder=str(final))
    card = model_card(candidate.sweep, candidate.trial, candidate.report, candidate.prepared, decision, facts)
    (final / "README.md").write_text(card, encoding="utf-8")
    StorageView(cluster).keep(final)
    if out is not None:
        hand_over(final, out)
    try:
        registered = register_model(candidate, final, cluster, run_id, alias, decision, champion)
    except BaseException:
        if out is not None:  # so that the same command may be given again
            shutil.rmtree(out, ignore_errors=True)
        raise
    return replace(decision, registered=registered, folder=str(out or final))


def check_free(out: Path) -> None:
    """`SpecError` unless a folder can be made at `out`."""
    if os.path.lexists(out):
        raise SpecError(f"--out {out} exists already; name a new folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent)).rmdir()
    except OSError as error:
        raise PromotionError(_unwritable(out, error)) from error


def hand_over(model: Path, out: Path) -> None:
    """Copies the model's folder to `out`, whole or not at all. Raises `PromotionError` where that cannot be."""
    from babeltune.tracking.registry import FOR_MLFLOW

    def copy(draft: Path) -> None:
        shutil.copytree(model, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*FOR_MLFLOW))

    try:
        write_folder(copy, out)
    except (OSError, CheckpointError) as error:
        raise PromotionError(_unwritable(out, error)) from error


def _unwritable(out: Path, error: Exception) -> str:
    why = getattr(error, "strerror", None) or error
    return f"--out {out} cannot be written ({why}); no alias was moved; name a new folder that can be"


@dataclass(frozen=True)
class Champion:
    """What the alias points to now."""

    name: str
    version: Registered
    folder: Path


def champion_for(candidate: Candidate, cluster: Cluster, alias: str) -> Champion | None:
    """The registered model that the candidate would replace; None where there is no such alias."""
    from babeltune.tracking.registry import champion_of, fetch_version

    name = registered_name(candidate)
    version = champion_of(cluster.mlflow, name, alias)
    if version is None:
        return None
    folder = fetch_version(cluster.mlflow, version, cluster.folder / "fetched")
    return Champion(f"models:/{name}@{alias} (version {version.version})", version, folder)


def weigh(candidate: Candidate, draft: Path, rescore: FreshScorer, champion: Champion | None = None) -> Decision:
    """Scores the exported folders afresh and judges; opens sealed tests only if the dev numbers hold.

    Where there is a champion, it is scored on the same sealed tests (without any, on the dev sets), and the challenger
    has to be better.
    """
    # `xsim_flipped` says how a score was made, and is there only where it is above zero.
    compared = [k for k in candidate.report.metrics if k.startswith("dev/") and not k.endswith("/xsim_flipped")]
    logged = {k: candidate.report.metrics[k] for k in compared}
    models = {"model": str(draft / "model")}
    before = {} if champion is None else {"champion": str(champion.folder)}
    data, dev_tasks = candidate.sweep.data, dev_texts(candidate.prepared)
    target, shared = target_of(candidate, "dev"), target_of(candidate, "test" if data.test else "dev")
    if champion is not None and shared is not None:
        rescore.check_widths(before, shared, {"champion": f"the champion {champion.name}"})
    dev = rescore.scored(models | ({} if data.test else before), dev_tasks, "dev", target=target)
    decision = Decision(
        verdict="refuse",
        reasons=(),
        sweep=candidate.folder.id,
        trial=candidate.name,
        report=candidate.report.index,
        dev=dev["model"][0],
        chosen_by=candidate.chosen_by.metric,
        among=chosen_among(candidate),
        selection=selection_of(candidate),
        members=candidate.members,
    )
    verdict, reasons = judge(logged, decision.dev)
    chosen_by = contaminated(candidate.prepared.counts, "dev")
    doubts = [*doubts_about(candidate), *(f"warning: {why}" for why in chosen_by.values())]
    if verdict == "refuse" or (champion is not None and is_same(champion, candidate)):
        same = "the champion is this very checkpoint; the alias stays where it is"
        tied = verdict != "refuse"
        return replace(
            decision, verdict="tie" if tied else verdict, reasons=(*reasons, *([same] if tied else []), *doubts)
        )
    if not data.test:
        decision = replace(decision, verdict=verdict, reasons=(*reasons, UNSEALED, *doubts))
        fit = [task for task in dev_tasks if task.name not in chosen_by]
        return decision if champion is None else contested(decision, candidate, champion, dev, fit, "dev", chosen_by)
    found = sealed_tests(candidate)
    tests = [task for rows in found for task in subsets(rows, data.anchor_priority)]
    rules = candidate.sweep.promotion
    what = f"{candidate.folder.id}/{candidate.name}/{candidate.report.index}"
    openings = record_opening(candidate.folder.path.parents[1], what, models["model"], found)
    untrained = {"untrained": str(draft / "untrained")}
    bought, lost = ({}, []) if shared is not None else baselines_of(candidate)
    scored = rescore.scored(models | untrained | before | bought, tests, "test", target=shared)
    scores, chance = {name: each for name, (each, _) in scored.items()}, chance_of(tests)
    dirty = contaminated(candidate.prepared.counts)
    verdict, reasons = judge(logged, decision.dev, rules.gates, scores["model"], scores["untrained"], chance, dirty)
    doubts = [*doubts, *(f"warning: {why}" for why in dirty.values())]
    warning = openings.warning(rules.confidence)
    clean = [task for task in tests if task.name not in dirty]
    doubts = [*against_baselines(candidate, scored, bought, clean), *lost, *doubts]
    decision = replace(
        decision,
        verdict=verdict,
        reasons=(*reasons, *doubts, *([warning] if warning else [])),
        test=scores["model"],
        untrained=scores["untrained"],
        chance=chance,
        baselines={key.removeprefix(BASELINE): scores[key] for key in bought},
        openings=openings.times,
    )
    return decision if champion is None else contested(decision, candidate, champion, scored, clean, "test", dirty)


def baselines_of(candidate: Candidate) -> tuple[dict[str, str], list[str]]:
    """The folders of the sweep's `baselines` by their keys, and a warning for each that cannot be had now.

    A key is the row after `BASELINE`: a folder may be called `model`, as the candidate is."""
    folders: dict[str, str] = {}
    lost: list[str] = []
    for name in candidate.sweep.baselines:
        try:
            folders[BASELINE + baseline_row(name)] = str(hub_folder(*split_revision(name), setting="baselines"))
        except TeacherError as error:
            lost.append(f"warning: not compared with a baseline: {error}")
    return folders, lost


def against_baselines(
    candidate: Candidate,
    scored: Mapping[str, tuple[Scores, Outcomes]],
    baselines: Iterable[str],
    tasks: Sequence[TextTask],
) -> list[str]:
    """Whether training beat each model that could be had without, in the means of the sealed tests. It decides nothing:
    who reads it chooses between both."""
    rules, lines = candidate.sweep.promotion, []
    for key in baselines:
        row = key.removeprefix(BASELINE)
        found = compare(scored[key][1], scored["model"][1], tasks, rules, name=row, on="test")
        for mean in found.overall:
            said = said_of(mean, rules.confidence)
            lines.append(
                f"{'no better' if said == 'not distinguishable' else said} than the baseline {row}: {words_of(mean)}"
            )
    return lines


def contested(
    decision: Decision,
    candidate: Candidate,
    champion: Champion,
    scored: Mapping[str, tuple[Scores, Outcomes]],
    tasks: Sequence[TextTask],
    on: Literal["test", "dev"],
    contaminated: Collection[str] = (),
) -> Decision:
    """The decision after the comparison with the champion; what was refused before stays refused."""
    contest = compare(
        scored["champion"][1],
        scored["model"][1],
        tasks,
        candidate.sweep.promotion,
        name=champion.name,
        on=on,
        among=decision.among,
        contaminated=contaminated,
    )
    seen = unfiltered(champion.version, candidate, "the champion") if on == "test" else []
    verdict = "refuse" if decision.verdict == "refuse" else contest.verdict
    reasons = (*contest.reasons, *seen, *decision.reasons)
    if decision.verdict == "refuse":
        reasons = (*decision.reasons, *contest.reasons, *seen)
    return replace(decision, verdict=verdict, reasons=reasons, contest=contest)


def is_same(champion: Champion, candidate: Candidate) -> bool:
    """Whether the champion is the candidate's own checkpoint."""
    tags = champion.version.tags
    return tags.items() >= lineage(candidate).items() and tags.get(MEMBERS, "") == " ".join(candidate.members)


def unfiltered(version: Registered, candidate: Candidate, who: str) -> list[str]:
    """Sealed tests whose sentences were not kept out of a registered model's training text, as far as its tags tell."""
    kept_out = version.tags.get("babeltune.tests", "")
    names = [name for name, digest in candidate.prepared.digests.items() if name.startswith("test/")]
    strange = [name for name in names if candidate.prepared.digests[name] not in kept_out]
    if not strange:
        return []
    return [f"warning: {', '.join(strange)} was no sealed test of {who}'s sweep, so its training may have seen it"]


def start_of(candidate: Candidate, cluster: Cluster) -> Registered | None:
    """The registered model that the candidate's training started from; None where it was another, or none."""
    from babeltune.tracking.registry import registered_folder, version_in

    student = candidate.trial.student
    if (start := start_name(student)) is not None:
        kept = keep_start(cluster.folder, start)
        return version_in(cluster.mlflow, Path(registered_folder(kept)))
    return None if student.model is None else version_in(cluster.mlflow, Path(student.model))


def recorded_run(candidate: Candidate, cluster: Cluster) -> str:
    """MLflow's id of the candidate's run; `PromotionError` when MLflow does not answer or does not have it."""
    from babeltune.tracking.registry import find_run as run_of

    return run_of(cluster.mlflow, candidate.sweep.name, candidate.folder.id, candidate.trial.number)


def register_model(
    candidate: Candidate,
    folder: Path,
    cluster: Cluster,
    run_id: str,
    alias: str,
    decision: Decision,
    champion: Champion | None,
) -> str:
    """A new version in the MLflow registry, with its lineage, under the alias."""
    from babeltune.tracking.registry import log_scores, register

    name, digests = registered_name(candidate), candidate.prepared.digests
    tags = {
        **lineage(candidate),
        "babeltune.tests": " ".join(digest for of, digest in digests.items() if of.startswith("test/")),
        SEALED: " ".join(dict.fromkeys(task.name for task in candidate.sweep.data.test)) or "none",
        "babeltune.data": candidate.prepared.digest,
        **{f"metric.{k}": str(v) for k, v in {**decision.dev, **decision.test}.items() if k.count("/") == 2},
    }
    log_scores(cluster.mlflow, run_id, decision.test, candidate.report.step, candidate.report.pairs)
    replaces = None if champion is None else champion.version.version
    version = register(cluster.mlflow, name, folder, run_id, alias, tags, replaces=replaces)
    return f"models:/{name}@{alias} (version {version})"


def model_folder(model: str, cluster: Cluster, *, setting: str = "model") -> str:
    """The folder behind a model's name: a path, a hub id, or `models:/NAME@ALIAS`. Raises `TeacherError` for none,
    naming the `setting`."""
    from babeltune.tracking.registry import fetch

    if model.startswith("models:/"):
        model = str(fetch(cluster.mlflow, model, cluster.folder / "fetched"))
    return str(hub_folder(model, None, setting=setting).absolute())


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What `evaluate_model` found."""

    scores: Scores
    warnings: tuple[str, ...] = ()
    """About sealed tests that were opened, now and before, and about sets that the model was trained on."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """A model, and the sets that it is to be scored on."""

    model: str
    trial: Candidate | None
    """The trial that `model` names; None for any other model."""
    tasks: Sequence[TextTask]
    prefix: Literal["dev", "test"]
    sealed: Sequence[EvalRows]
    """The sealed sets among them, whose opening is recorded."""
    prompt: str | None
    target: Target | None
    """What encodes the right sides."""
    warnings: tuple[str, ...] = ()


def evaluate_model(
    model: str,
    with_: str,
    cluster: Cluster,
    *,
    test: bool,
    prompt: str | None = None,
    target_model: str | None = None,
) -> Evaluated:
    """Scores a model on the dev or sealed test sets of a file's data section. Opening the tests is recorded, and so is
    scoring dev sets that hold the text of tests which a sweep of this storage has sealed.

    `prompt` is put before every sentence that the model encodes, in place of its own one. `target_model` encodes the
    right side of every bitext and mining set. Without it, a set with `right_model: teacher` takes the teacher of the
    file, or else of the trial's sweep. Raises `SpecError` when the section has no such sets, `TeacherError` when the
    vectors of both models have different dimensions.
    """
    data, root = read_data(with_)
    wanted = data.test if test else data.dev
    if not wanted:
        raise SpecError(f"{with_}: data.{'test' if test else 'dev'} names no tasks to score")
    found = read_eval(wanted, root, data.max_line_bytes)
    tasks = [task for rows in found for task in subsets(rows, data.anchor_priority)]
    view = StorageView(cluster)
    view.update(every=True)
    storage = view.folder
    sealed = found if test else sealed_elsewhere(storage, found)
    words = []
    if sealed and not test:
        names = ", ".join(dict.fromkeys(rows.task.name for rows in sealed))
        words.append(
            f"{names} of data.dev is a sealed test of a sweep in {storage}: this is recorded as an opening of it; "
            "choose models by other text"
        )

    trial = trial_of(model, storage)
    target: Target | None
    if target_model is not None:
        target = model_folder(target_model, cluster, setting="--target-model")
        tasks = [task.against_target() for task in tasks]
    else:
        target = _teacher_for(wanted, with_, data.anchor_priority, trial, cluster)

    return score_model(
        Scoring(
            model=model,
            trial=trial,
            tasks=tasks,
            prefix="test" if test else "dev",
            sealed=sealed,
            prompt=prompt,
            target=target,
            warnings=tuple(words),
        ),
        view,
        target_model,
    )


def score_model(asked: Scoring, view: StorageView, target_model: str | None) -> Evaluated:
    """The scores, made in a fresh process; sealed sets are recorded as opened."""
    words, target = list(asked.warnings), asked.target
    with weights_of(asked, view) as (who, folder), FreshScorer() as rescore:
        words += trained_on(asked.model, asked.trial, asked.tasks, view, folder)
        if target is not None:
            rescore.check_widths({"model": folder}, target, {"model": repr(asked.model), "": repr(target_model)})
        with view.openings():
            if asked.sealed:
                openings = record_opening(view.folder, who, folder, asked.sealed)
                words += filter(None, [openings.warning(Promotion().confidence).removeprefix("warning: ")])
        scores = rescore({"model": folder}, asked.tasks, asked.prefix, asked.prompt, target)["model"]
        return Evaluated(scores=scores, warnings=tuple(words))


@contextmanager
def weights_of(asked: Scoring, view: StorageView) -> Iterator[tuple[str, str]]:
    """What the model is called in the record of openings, and a folder with it; a trial's is exported for the while."""
    trial = asked.trial
    if trial is None:
        yield asked.model, model_folder(asked.model, view.cluster)
        return
    view.bring(trial.folder, trial.trial.number, trial.report.index, trial.prepared)
    drafts = view.folder / "evaluations"
    drafts.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{trial.folder.id}-{trial.name}-", dir=drafts) as draft:
        export_model(trial, Path(draft) / "model")
        yield f"{trial.folder.id}/{trial.name}/{trial.report.index}", str(Path(draft) / "model")


def _teacher_for(
    tasks: Sequence[Task], with_: str, priority: tuple[str, ...], trial: Candidate | None, cluster: Cluster
) -> Teacher | None:
    """The teacher of the file, or else of the trial's sweep, where it encodes the right side of any of the tasks."""
    asking = [task.name for task in tasks if task.right_model == "teacher"]
    if not asking:
        return None
    teacher = read_teacher(with_) or (trial.sweep.teacher if trial else None)
    if teacher is None:
        raise SpecError(
            f"{with_}: task {asking[0]!r} has `right_model: teacher`, and the file has no section `teacher`; add one, "
            "or name a model with --target-model"
        )
    for _, problem in right_model_problems((), tasks, teacher, priority):
        raise SpecError(f"{with_}: {problem}")
    registered = teacher.model.startswith("models:/")
    return replace(teacher, model=model_folder(teacher.model, cluster)) if registered else teacher


def trial_of(model: str, storage: Path) -> Candidate | None:
    """The trial that `SWEEP/t0003` names, unless it is a folder or another kind of name."""
    if Path(model).is_dir() or model.startswith("models:/"):
        return None
    try:
        return find_candidate(model, storage)
    except UnknownNameError:
        if re.search(r"/t\d+$", model):
            raise
        return None
