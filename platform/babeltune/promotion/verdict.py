"""The verdict on an exported candidate: its dev scores come out again, its gates hold, the champion is beaten.

`promote` calls `weigh`. Sealed tests are opened here, and only if the dev scores hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from babeltune.data.contamination import contaminated
from babeltune.data.eval_sets import subsets
from babeltune.data.prepared import TextTask
from babeltune.data.starts import keep_start, start_name
from babeltune.errors import TeacherError
from babeltune.models.hub import baseline_row, split_revision
from babeltune.models.hub import model_folder as hub_folder
from babeltune.promotion.candidate import (
    MEMBERS,
    Candidate,
    chosen_among,
    dev_texts,
    doubts_about,
    lineage,
    registered_name,
    sealed_tests,
    selection_of,
    target_of,
)
from babeltune.promotion.compare import Conclusion, Outcomes, compare, conclusion_of, words_of
from babeltune.promotion.fresh_scorer import FreshScorer
from babeltune.promotion.gates import Decision, Scores, chance_of, judge
from babeltune.promotion.sealed_test_log import record_opening
from babeltune.schema.cluster import Cluster
from babeltune.tracking.mlflow_client import TESTS

if TYPE_CHECKING:
    from babeltune.tracking.registry import Registered

NO_SEALED_TESTS_WARNING = (
    "warning: the sweep has no sealed tests, so no unseen text checks the choice among its trials; the model is marked "
    "so. Add `data.test`, as `babeltune init` does"
)
"""Warning added to the reasons if the sweep file names no sealed tests."""
BASELINE = "baseline "  # begins the key of a baseline among the models that are scored; no model's name holds a blank
AGAINST_BASELINE: dict[Conclusion, str] = {
    "better": "better than",
    "worse": "worse than",
    "undecided": "perhaps no better than",
    "equal": "equal to",
}
"""The verdict on the candidate and a baseline."""


def weigh(
    candidate: Candidate,
    draft: Path,
    rescore: FreshScorer,
    champion: Champion | None = None,
    openings: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Decision:
    """Scores the exported folders afresh and judges; opens sealed tests only if the dev numbers hold.

    An opening is recorded within `openings()`, and so in a bucket, before a sealed test is scored.

    If there is a champion, it is scored on the same sealed tests (without any, on the dev sets), and the challenger
    has to be better."""
    data, dev_tasks = candidate.sweep.data, dev_texts(candidate.prepared)
    before = _folder_of(champion)
    shared = target_of(candidate, "test" if data.test else "dev")
    if champion is not None and shared is not None:
        rescore.check_widths(before, shared, {"champion": f"the champion {champion.name}"})
    models = {"model": str(draft / "model")} | ({} if data.test else before)
    dev = rescore.scored(models, dev_tasks, "dev", target=target_of(candidate, "dev"))
    decision = _undecided(candidate, dev["model"][0])
    verdict, reasons = judge(_logged(candidate), decision.dev)
    chosen_by = contaminated(candidate.prepared.counts, "dev")
    doubts = [*doubts_about(candidate), *(f"warning: {why}" for why in chosen_by.values())]
    if verdict == "refuse":
        return replace(decision, verdict=verdict, reasons=(*reasons, *doubts))
    if champion is not None and is_same(champion.version, candidate):
        same = f"{champion.name} is this very checkpoint, so no alias moves"
        return replace(decision, verdict="tie", reasons=(*reasons, same, *doubts))
    if data.test:
        return _on_sealed_tests(candidate, draft, rescore, champion, decision, doubts, openings)
    decision = replace(decision, verdict=verdict, reasons=(*reasons, NO_SEALED_TESTS_WARNING, *doubts))
    fit = [task for task in dev_tasks if task.name not in chosen_by]
    return decision if champion is None else contested(decision, candidate, champion, dev, fit, "dev", chosen_by)


def _folder_of(champion: Champion | None) -> dict[str, str]:
    return {} if champion is None else {"champion": str(champion.folder)}


def _logged(candidate: Candidate) -> dict[str, float]:
    """The dev metrics that have to come out again."""
    # `xsim_flipped` says how a score was made, and is there only if it is above zero.
    dev = {name: value for name, value in candidate.report.metrics.items() if name.startswith("dev/")}
    return {name: value for name, value in dev.items() if not name.endswith(("/xsim_flipped", "/zero_vectors"))}


def _undecided(candidate: Candidate, dev: Scores) -> Decision:
    """The facts of a candidate before it is judged."""
    return Decision(
        verdict="refuse",
        reasons=(),
        sweep=candidate.folder.id,
        trial=candidate.name,
        report=candidate.report.index,
        dev=dev,
        chosen_by=candidate.chosen_by.metric,
        among=chosen_among(candidate),
        selection=selection_of(candidate),
        members=candidate.members,
    )


def _on_sealed_tests(
    candidate: Candidate,
    draft: Path,
    rescore: FreshScorer,
    champion: Champion | None,
    decision: Decision,
    doubts: Sequence[str],
    opened: Callable[[], AbstractContextManager[None]],
) -> Decision:
    """The decision after the sealed tests, whose opening is recorded before they are scored."""
    rules, sets, shared = candidate.sweep.promotion, sealed_tests(candidate), target_of(candidate, "test")
    tests = subsets(sets, candidate.sweep.data.anchor_priority)
    checkpoint_name = f"{candidate.folder.id}/{candidate.name}/{candidate.report.index}"
    models = {name: str(draft / name) for name in ("model", "untrained")}
    with opened():
        openings = record_opening(candidate.folder.path.parents[1], checkpoint_name, models["model"], sets)
    bought, lost = ({}, []) if shared is not None else baselines_of(candidate)
    scored = rescore.scored(models | _folder_of(champion), tests, "test", target=shared)
    scored |= rescore.scored(bought, tests, "test", target=shared, remembered=True)
    teacher, missing = _of_teacher(candidate, rescore, tests)
    scores, chance = {name: each for name, (each, _) in scored.items()}, chance_of(tests)
    dirty = contaminated(candidate.prepared.counts)
    logged, gates = _logged(candidate), rules.gates
    verdict, reasons = judge(logged, decision.dev, gates, scores["model"], scores["untrained"], chance, dirty)
    warning = openings.warning(rules.confidence)
    clean = [task for task in tests if task.name not in dirty]
    against = against_baselines(candidate, scored, bought, clean)
    warnings = [f"warning: {why}" for why in dirty.values()]
    if warning:
        warnings.append(warning)
    decision = replace(
        decision,
        verdict=verdict,
        reasons=tuple(itertools.chain(reasons, against, lost, missing, doubts, warnings)),
        test=scores["model"],
        untrained=scores["untrained"],
        chance=chance,
        teacher=teacher,
        baselines={key.removeprefix(BASELINE): scores[key] for key in bought},
        openings=openings.times,
    )
    return decision if champion is None else contested(decision, candidate, champion, scored, clean, "test", dirty)


def _of_teacher(candidate: Candidate, rescore: FreshScorer, tests: Sequence[TextTask]) -> tuple[Scores, list[str]]:
    """The raw teacher's scores of the sealed tests, or a warning: a model is not refused for what its card lacks."""
    try:
        return rescore.of_teacher(candidate.sweep.teacher, tests, "test"), []
    except TeacherError as error:
        return {}, [f"warning: the teacher's sealed scores are missing: {error}"]


def baselines_of(candidate: Candidate) -> tuple[dict[str, str], list[str]]:
    """The folders of the sweep's `baselines` by their keys, and a warning for each that cannot be had now.

    A key is the row after `BASELINE`: a folder may be called `model`, as the candidate is."""
    folders, lost = dict[str, str](), list[str]()
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
        comparison = compare((scored[key][1], scored["model"][1]), tasks, rules, name=row, on="test")
        for mean in comparison.overall:
            lines.append(f"{AGAINST_BASELINE[conclusion_of(mean)]} the baseline {row}: {words_of(mean)}")
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
    both, rules, among = (scored["champion"][1], scored["model"][1]), candidate.sweep.promotion, decision.among
    contest = compare(both, tasks, rules, name=champion.name, on=on, among=among, contaminated=contaminated)
    contaminations = unfiltered(champion.version, candidate, "the champion") if on == "test" else []
    verdict, reasons = contest.verdict, (*contest.reasons, *contaminations, *decision.reasons)
    if decision.verdict == "refuse":
        verdict, reasons = "refuse", (*decision.reasons, *contest.reasons, *contaminations)
    return replace(decision, verdict=verdict, reasons=reasons, contest=contest)


@dataclass(frozen=True)
class Champion:
    """The registered model that the alias points to, with its downloaded folder."""

    name: str
    version: Registered
    folder: Path


def champion_for(candidate: Candidate, cluster: Cluster, alias: str | None) -> Champion | None:
    """The registered model that the candidate would replace; None if there is no such alias. Without an alias, it is
    the version that has the candidate's checkpoint already."""
    from babeltune.tracking.registry import champion_of, fetch_version, versions_of

    name = registered_name(candidate)
    if alias is None:
        version = next((each for each in versions_of(cluster.mlflow, name) if is_same(each, candidate)), None)
    else:
        version = champion_of(cluster.mlflow, name, alias)
    if version is None:
        return None
    folder = fetch_version(cluster.mlflow, version, cluster.folder / "fetched")
    title = f"models:/{name}" if alias is None else f"models:/{name}@{alias}"
    return Champion(f"{title} (version {version.version})", version, folder)


def is_same(version: Registered, candidate: Candidate) -> bool:
    """Whether the version is the candidate's own checkpoint."""
    tags = version.tags
    return tags.items() >= lineage(candidate).items() and tags.get(MEMBERS, "") == " ".join(candidate.members)


def unfiltered(version: Registered, candidate: Candidate, who: str) -> list[str]:
    """Sealed tests whose sentences were not kept out of a registered model's training text, as far as its tags tell."""
    kept_out = version.tags.get(TESTS, "")
    names = [name for name, digest in candidate.prepared.digests.items() if name.startswith("test/")]
    strange = [name for name in names if candidate.prepared.digests[name] not in kept_out]
    if not strange:
        return []
    return [f"warning: {', '.join(strange)} was no sealed test of {who}'s sweep, so its training may have seen it"]


def start_of(candidate: Candidate, cluster: Cluster) -> Registered | None:
    """The registered model that the candidate's training started from; None if it was another, or none."""
    from babeltune.tracking.registry import registered_folder, version_in

    student = candidate.trial.student
    if (start := start_name(student)) is not None:
        copy = keep_start(cluster.folder, start)
        return version_in(cluster.mlflow, Path(registered_folder(copy)))
    return None if student.model is None else version_in(cluster.mlflow, Path(student.model))
