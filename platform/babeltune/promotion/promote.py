"""Promotion: the best checkpoint becomes a sentence-transformers model, if its numbers hold.

The checkpoint is exported, and a fresh process scores the exported folder with plain sentence-transformers. The logged
dev metrics must come out again. Then the sealed test sets are opened and the sweep's gates judged. If the registered
name has a champion, the challenger must be better on the same sealed tests. Then, and not before, the folder gets its
card and its place in the registry."""

import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from babeltune.errors import CheckpointError, PromotionError, SpecError
from babeltune.files import draft_folder, in_turn, replace_folder, write_whole
from babeltune.promotion.canary import CANARY, canary_by, write_canary
from babeltune.promotion.candidate import Candidate, export_model, find_candidate, lineage, registered_name
from babeltune.promotion.card_facts import facts_of
from babeltune.promotion.decisions import Move, finish, intend, promotes, record_decision, settle
from babeltune.promotion.drift import write_profile
from babeltune.promotion.fresh_scorer import FreshScorer
from babeltune.promotion.gates import Decision
from babeltune.promotion.model_card import model_card
from babeltune.promotion.model_files import check_free, unwritable, write_folder
from babeltune.promotion.selection_rule import preferred
from babeltune.promotion.soup import best_or_average, members_of
from babeltune.promotion.verdict import Champion, champion_for, is_same, start_of, unfiltered, weigh
from babeltune.schema.cluster import Cluster
from babeltune.stages import WRITING, tell
from babeltune.sweep.state.folder import SweepFolder, find_run, find_sweep
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.sync.notify import notify
from babeltune.sweep.sync.view import StorageView
from babeltune.tracking.mlflow_client import TESTS

ALIAS = re.compile(r"(?!(latest|v\d+)\Z)[\w-]{1,255}", re.IGNORECASE)  # the pattern of an alias in MLflow
SEALED = "babeltune.sealed_tests"
"""The tag of a version with the names of the sealed tests that it was judged by, or `none`."""


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
    trial and `CheckpointError` for an altered checkpoint; a refusal is a `Decision`."""
    if not ALIAS.fullmatch(alias):
        rule = "letters, digits, `_` and `-`, at most 255 of them, and neither `latest` nor a version such as `v1`"
        raise SpecError(f"--alias {alias!r}: an alias is {rule}")
    view = StorageView(cluster)
    if out is not None:
        check_free(out)
    if name and re.fullmatch(r"[0-9a-f]{32}", name):
        from babeltune.tracking.registry import trial_of_run

        name = trial_of_run(cluster.mlflow, name)
    view.update(name and name.partition("/")[0])
    candidate, words = chosen(name, view, prefer, soup)
    return promote_candidate(candidate, view, (alias,), out=out, dry_run=dry_run, words=words)


def promote_candidate(
    candidate: Candidate,
    view: StorageView,
    aliases: tuple[str, ...],
    *,
    out: Path | None = None,
    dry_run: bool = False,
    words: tuple[str, ...] = (),
    scorer: FreshScorer | None = None,
) -> Decision:
    """`promote` for a candidate whose checkpoints are here. All aliases must point to one version, or to none."""
    cluster = view.cluster
    if dry_run:
        settle(view)
        decision = decided(candidate, cluster, aliases, words=words, scorer=scorer)
        record_decision(view, candidate.folder, decision, dry_run=True)
        return decision
    run_id, name = recorded_run(candidate, cluster), registered_name(candidate)  # before tests are opened in vain
    # A second promotion compares with what the first one has made the champion.
    with in_turn(promotes(view.folder, name), f"promotes {name}"):
        settle(view, promoting=name)
        decision = decided(candidate, cluster, aliases, run_id=run_id, out=out, words=words, scorer=scorer)
        if not decision.registered:
            record_decision(view, candidate.folder, decision, dry_run=False)
    notify_of(decision, cluster)
    return decision


def notify_of(decision: Decision, cluster: Cluster) -> None:
    """Tells of a promotion or a refusal, as the cluster file says."""
    trial = f"{decision.sweep}/{decision.trial}"
    if decision.registered:
        notify(cluster, "promotion", trial, f"{trial} is promoted as {decision.registered}")
    elif decision.verdict == "refuse":
        notify(cluster, "refusal", trial, f"{trial} is not promoted: {decision.reasons[0]}")


def chosen(
    name: str | None, view: StorageView, prefer: str | None, soup: int | None
) -> tuple[Candidate, tuple[str, ...]]:
    """The candidates, with their checkpoints brought here, and the reason if there was a choice.

    Raises `SpecError` for rules that do not go together, or that name one trial."""
    storage, aim = view.folder, None
    if prefer is not None and soup is not None:
        raise SpecError("--prefer and --soup each choose what is promoted; give one of them")
    if prefer is not None or soup is not None:
        folder = whole_sweep(name, storage, "--prefer" if prefer is not None else "--soup")
        if prefer is not None:
            row, aim = preferred(leaderboard(folder), prefer)
            name = f"{folder.id}/{row.name}"
    members = members_of(folder, soup) if soup is not None else [replace(find_candidate(name, storage), preferred=aim)]
    for member in members:
        view.download_checkpoint(member.folder, member.trial.number, member.report.index, member.prepared)
    if soup is None:
        return members[0], ()
    candidate, why = best_or_average(members)
    return candidate, (why,)


def whole_sweep(name: str | None, storage: Path, rule: str) -> SweepFolder:
    """The named sweep, or the latest. Raises `SpecError` for a trial: the rule chooses among several."""
    folder, number = find_run(storage, name) if name else (find_sweep(storage, None), None)
    if number is not None:
        raise SpecError(f"{rule} chooses among the trials of a sweep, and {name!r} is one trial; name its sweep")
    return folder


def decided(
    candidate: Candidate,
    cluster: Cluster,
    aliases: tuple[str, ...],
    *,
    run_id: str | None = None,
    out: Path | None = None,
    words: tuple[str, ...] = (),
    scorer: FreshScorer | None = None,
) -> Decision:
    """The decision. It takes effect and is recorded if the candidate's `run_id` is given. `words` are more reasons.

    Without a `scorer` that is there already, one is started."""
    view = StorageView(cluster)
    champion = champion_for(candidate, cluster, next(iter(aliases), None))
    average = f"-average-of-{len(candidate.members)}" if candidate.members else ""
    final = view.folder / "models" / candidate.folder.id / f"{candidate.name}-{candidate.report.index:06d}{average}"
    # A draft of this call alone: a dry run waits for no promotion of the same trial.
    with draft_folder(final.name, final.parent) as draft, nullcontext(scorer) if scorer else FreshScorer() as rescore:
        tell("exporting the checkpoint")
        export_model(candidate, draft / "model")
        export_model(candidate, draft / "untrained", untrained=True)
        decision = weigh(candidate, draft, rescore, champion, view.openings)
        start = start_of(candidate, cluster) if decision.test else None
        contamination_warnings = [] if start is None else unfiltered(start, candidate, "the model that it started from")
        decision = replace(decision, reasons=(*decision.reasons, *contamination_warnings, *words))
        is_champion = champion is not None and is_same(champion.version, candidate)
        if out is not None and champion is not None and is_champion and decision.verdict == "tie":
            hand_over(champion.folder, out)
            return replace(decision, folder=str(out))
        if decision.verdict != "promote" or run_id is None:
            return decision
        decision = replace(decision, folder=str(final))
        complete(candidate, draft / "model", decision, rescore)
        replace_folder(draft / "model", final)
    view.upload_folder(final)
    if out is not None:
        hand_over(final, out)
        decision = replace(decision, folder=str(out))
    try:
        return register_model(candidate, final, cluster, run_id, aliases, decision, champion)
    except BaseException:
        if out is not None:  # so that the same command may be given again
            shutil.rmtree(out, ignore_errors=True)
        raise


def complete(candidate: Candidate, model: Path, decision: Decision, rescore: FreshScorer) -> None:
    """Adds to an exported folder what a promoted model has: canary vectors, a card and a profile of its text."""
    tell("making the model card")
    digest = write_canary(canary_by(partial(rescore.vectors, str(model))), model / CANARY)
    facts = replace(facts_of(candidate, model, rescore), canary=digest)
    card = model_card(candidate.sweep, candidate.trial, candidate.report, candidate.prepared, decision, facts)
    write_whole(model / "README.md", card.encode(), durable=True)
    write_profile(model, candidate.prepared)


def hand_over(model: Path, out: Path) -> None:
    """Copies the model's folder to `out`, whole or not at all. Raises `PromotionError` if that cannot be."""
    from babeltune.tracking.registry import FOR_MLFLOW

    def copy(draft: Path) -> None:
        shutil.copytree(model, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*FOR_MLFLOW))

    try:
        write_folder(copy, out)
    except (OSError, CheckpointError) as error:
        raise PromotionError(unwritable(out, error)) from error


def recorded_run(candidate: Candidate, cluster: Cluster) -> str:
    """MLflow's id of the candidate's run; `PromotionError` when MLflow does not answer or does not have it."""
    from babeltune.tracking.registry import find_run as run_of

    return run_of(cluster.mlflow, candidate.sweep.name, candidate.folder.id, candidate.trial.number)


def register_model(
    candidate: Candidate,
    folder: Path,
    cluster: Cluster,
    run_id: str,
    aliases: tuple[str, ...],
    decision: Decision,
    champion: Champion | None,
) -> Decision:
    """Makes the folder a new version in the MLflow registry, with its lineage, under the aliases, and records that.

    What will be recorded is written before an alias moves, so that the next command can do it where this one ends."""
    from babeltune.tracking.registry import MODEL, checkpoint_model, log_scores, move_alias, register

    name, digests = registered_name(candidate), candidate.prepared.digests
    model = None if candidate.members else checkpoint_model(cluster.mlflow, run_id)
    tags = lineage(candidate)
    if model is not None:
        tags[MODEL] = model
    tags[TESTS] = " ".join(digest for of, digest in digests.items() if of.startswith("test/"))
    tags[SEALED] = " ".join(dict.fromkeys(task.name for task in candidate.sweep.data.test)) or "none"
    tags["babeltune.data"] = candidate.prepared.digest
    metrics = decision.dev | decision.test
    tags |= {f"metric.{name}": f"{value:.4f}" for name, value in metrics.items() if name.count("/") == 2}
    tell(WRITING)
    log_scores(cluster.mlflow, run_id, decision.test, candidate.report.step, candidate.report.pairs)
    replaces = None if champion is None else champion.version.version
    version = register(cluster.mlflow, name, folder, run_id, tags)
    view = StorageView(cluster)
    titles = [f"models:/{name}@{alias} (version {version})" for alias in aliases]
    for alias, title in zip(aliases, titles, strict=True):
        move = Move(model=name, alias=alias, version=version)
        intent = intend(view, replace(decision, registered=title), move=move)
        move_alias(cluster.mlflow, name, alias, version, replaces=replaces)
        finish(view, intent)
    decision = replace(decision, registered=", ".join(titles) or f"models:/{name}/{version}")
    if not aliases:
        finish(view, intend(view, decision))
    return decision
