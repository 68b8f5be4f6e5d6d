"""Trains a trial again from its record, and says how its scores and weights differ: `babeltune reproduce SWEEP/t0003`.

The ranks are processes of this machine, as many and with as many threads as the trial had. On the same machine with the
same versions the result is equal to the last bit. Nothing is kept."""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from babeltune.errors import CheckpointError, SpecError, SweepError
from babeltune.files import draft_folder, plain
from babeltune.promotion.candidate import Candidate, find_candidate
from babeltune.promotion.statistics import error_of
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Report
from babeltune.sweep.state.folder import find_run
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.state.provenance import deciding_facts, differences
from babeltune.sweep.sync.view import StorageView
from babeltune.training.checkpoint import checkpoint_folder, is_good, load_checkpoint, read_reports
from babeltune.training.trainer import Reporter

Z = 1.96  # standard errors within which a difference is no surprise (95 %)
TIMED = ("seconds", "per_second", "time_")  # parts of metrics that clocks decide


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """A metric of a report, as recorded and as trained again."""

    report: int
    metric: str
    recorded: float
    again: float


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The outcome of training a trial again."""

    trial: str
    verdict: Literal["identical", "within", "beyond"]
    """`identical`: all dev scores, and the weights if they were kept. `within`: the objective differs by no more than
    its interval."""
    reports: int
    """Reports that were compared: as many as the trial had made."""
    scores: int
    """Dev scores that were compared, over all reports."""
    objective: MetricChange
    """At the last report."""
    interval: float | None
    """Half the 95 % interval of the objective; None if its standard error is not known."""
    largest: MetricChange | None
    """The dev metric that differs most, over all reports; None if none differs."""
    weights: Literal["equal", "differ", "not kept"]
    """Whether the weights of the last checkpoint that the sweep kept are equal."""
    changed: tuple[str, ...]
    """Versions and code that are others than when the sweep began."""


class StopAfter(Reporter):
    """Ends a training after this number of reports."""

    def __init__(self, reports: int) -> None:
        self.reports = reports

    def report(self, report: Report) -> bool:
        return report.index < self.reports


def reproduce(name: str, cluster: Cluster) -> Reproduction:
    """Trains the trial again. Raises `SpecError` for a sweep in place of a trial, `SweepError` if the training fails or
    the trial has no report."""
    view = StorageView(cluster)
    view.update(name.partition("/")[0])
    folder, number = find_run(view.folder, name)
    if number is None:
        raise SpecError(f"{name!r} is a sweep; name one of its trials, such as {folder.id}/t0000")
    candidate = find_candidate(name, view.folder, weights=False)
    view.download_checkpoint(folder, number, candidate.report.index, candidate.prepared)
    recorded = read_reports(folder.trial(number))
    facts = {key: value for key, value in (folder.read("facts.json") or {}).items() if key not in ("data", "spec")}
    now = deciding_facts([candidate.trial.method])
    changed = tuple(str(change) for change in differences({k: facts[k] for k in facts if k in now}, now))
    if (before := recorded[-1].facts.get("device", "cpu")) != (device := device_of(recorded[-1])):
        changed = (*changed, f"device: {before} → {device}")
    with draft_folder(f"{candidate.name}-{folder.id}", view.folder / "reproductions") as draft:
        train_again(candidate, recorded, draft)
        again = read_reports(draft / "trial")
        weights = compare_weights(folder.trial(number), draft / "trial", recorded)
    return compared(candidate, recorded, again, weights, changed)


def train_again(candidate: Candidate, recorded: list[Report], draft: Path) -> None:
    """Trains in new processes, one for each rank, up to the last recorded report."""
    facts = recorded[-1].facts
    world = int(facts.get("world_size") or 1)
    trial = draft / "trial"
    trial.mkdir()
    prepared = str(candidate.folder.data_of(candidate.trial.number))
    assignment = TrialAssignment(
        trial=plain(candidate.trial), prepared=prepared, folder=str(trial), seed=candidate.trial.seed
    )
    meeting = f"file://{draft / 'ranks'}" if world > 1 else ""
    job = (assignment, len(recorded), world, int(facts.get("threads") or 1), meeting, device_of(recorded[-1]))
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=train_rank, args=(rank, *job), daemon=True) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks) or len(read_reports(trial)) < len(recorded):
        why = "the lines above say why. Its data and packages have to be as they were"
        raise SweepError(f"{candidate.folder.id}/{candidate.name} could not be trained again; {why}")


def device_of(report: Report) -> str:
    """Where a trial is trained again: as it was if that is one rank on a GPU and there is one here, else on the CPU."""
    import torch

    alone = int(report.facts.get("world_size") or 1) == 1
    return "cuda" if report.facts.get("device") == "cuda" and alone and torch.cuda.is_available() else "cpu"


def train_rank(
    rank: int, assignment: TrialAssignment, reports: int, world: int, threads: int, meeting: str, device: str
) -> None:
    """One rank's training, in a process that has done nothing before."""
    from torch import distributed

    from babeltune.sweep.workers.process_state import ProcessState
    from babeltune.sweep.workers.run_trial import run

    state = ProcessState(threads)
    if world > 1:
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    state.clean(assignment.seed)
    run(assignment, StopAfter(reports), rank, world, device)
    if world > 1:
        distributed.destroy_process_group()


def compare_weights(before: Path, after: Path, recorded: list[Report]) -> Literal["equal", "differ", "not kept"]:
    """Whether the weights of the last report that both have kept are equal."""
    import torch

    for report in reversed(recorded):
        folders = [checkpoint_folder(trial, report.index) for trial in (before, after)]
        if not all(map(is_good, folders)):
            continue
        try:
            old, new = (load_checkpoint(folder)[0]["student"] for folder in folders)
        except CheckpointError:
            continue
        same = old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)
        return "equal" if same else "differ"
    return "not kept"


def compared(
    candidate: Candidate,
    recorded: list[Report],
    again: list[Report],
    weights: Literal["equal", "differ", "not kept"],
    changed: tuple[str, ...],
) -> Reproduction:
    """The differences of all dev scores, and the verdict on the first objective."""
    pairs = list(zip(recorded, again, strict=False))
    unequal = [
        MetricChange(report=old.index, metric=name, recorded=value, again=new.metrics[name])
        for old, new in pairs
        for name, value in old.metrics.items()
        if name.startswith("dev/") and name in new.metrics and not any(part in name for part in TIMED)
    ]
    metric = candidate.sweep.objectives[0].metric
    old, new = pairs[-1]
    last = MetricChange(report=old.index, metric=metric, recorded=old.metrics[metric], again=new.metrics[metric])
    error = error_of(metric, last.recorded, candidate.prepared)
    interval = None if error is None else Z * error
    largest = max(unequal, key=lambda each: abs(each.again - each.recorded), default=None)
    differs = largest is not None and largest.again != largest.recorded
    identical = not differs and weights != "differ"
    near = abs(last.again - last.recorded) <= (interval or 0.0)
    return Reproduction(
        trial=f"{candidate.folder.id}/{candidate.name}",
        verdict="identical" if identical else "within" if near else "beyond",
        reports=len(pairs),
        scores=len(unequal),
        objective=last,
        interval=interval,
        largest=largest if differs else None,
        weights=weights,
        changed=changed,
    )
