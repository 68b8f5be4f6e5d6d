"""What holds after every fault, asserted from what a sweep leaves: study, ledger, MLflow, checkpoints, processes."""

from __future__ import annotations

import functools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import mlflow
import optuna
import pytest
import torch

from babeltune.method.distributed import ProcessGroup
from babeltune.planning.space import suggest
from babeltune.promotion.candidate import find_candidate
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.sweep.state.log import Ledger, log_of
from babeltune.tracking.sweep_runs import sent_runs
from babeltune.training.build import make_method, make_student
from babeltune.training.checkpoint import checkpoint_folder, last_good, load_checkpoint, read_reports
from babeltune.training.dev_evaluation import dev_scores
from chaos.leftovers import leftovers
from replays import replay, trials_in
from waiting import wait_until

if TYPE_CHECKING:
    from babeltune.schema.cluster import Cluster
    from babeltune.schema.records import Sweep

STATES = {"COMPLETE": ("finished", "FINISHED"), "PRUNED": ("pruned", "FINISHED"), "FAIL": ("failed", "FAILED")}
"""Of Optuna, of our outcome files, of MLflow."""


def check(
    folder: SweepFolder,
    cluster: Cluster,
    asked: int,
    *,
    failed: int = 0,
    like: SweepFolder | None = None,
    marked: str | None = None,
    state: str = "finished",
) -> None:
    """Everything that a sweep of `asked` trials must be after a fault that failed `failed` of them.

    `like` is the folder of the same sweep undisturbed: proposals and scores must equal it. `marked` names the
    environment variable's value by which the processes of a driver of its own are known."""
    sweep = folder.sweep()
    assert folder.state() == state
    trials = own_trials(folder)
    finished_as_asked(trials, asked, failed)
    nothing_twice(folder, trials)
    records_agree(folder, cluster, trials, state)
    steps_are_contiguous(folder, cluster, trials)
    checkpoints_are_kept(folder, trials)
    if failed < asked:
        best_checkpoint_reproduces(folder)
    the_order_replays(folder, sweep)
    if like is not None:
        nothing_differs(folder, like)
    nothing_is_left(marked)


def own_trials(folder: SweepFolder) -> dict[int, optuna.trial.FrozenTrial]:
    """The study's trials by number."""
    sweep = folder.sweep()
    return dict(enumerate(trials_in(folder.path, sweep, functools.partial(suggest, sweep.parameters))))


def finished_as_asked(trials: dict[int, optuna.trial.FrozenTrial], asked: int, failed: int) -> None:
    states = Counter(trial.state.name for trial in trials.values())
    assert states["FAIL"] == failed, {n: t.user_attrs.get("reason") for n, t in trials.items()}
    assert states["COMPLETE"] + states["PRUNED"] == asked - failed
    assert sum(states.values()) == asked, f"some were never ended: {states}"


def nothing_twice(folder: SweepFolder, trials: dict[int, optuna.trial.FrozenTrial]) -> None:
    lines = Ledger(folder.path / "results.jsonl").lines
    for event in ("propose", "end"):
        assert sorted(line["number"] for line in lines if line["event"] == event) == sorted(trials)
    configurations = Counter(json.dumps(trial.params, sort_keys=True) for trial in trials.values())
    assert max(configurations.values()) == 1, configurations
    for number in trials:
        noted = [line["index"] for line in lines if line["event"] == "report" and line["number"] == number]
        assert noted == list(range(1, len(noted) + 1))


def runs_of(folder: SweepFolder, cluster: Cluster) -> tuple[mlflow.MlflowClient, Any, dict[str, Any]]:
    """The MLflow runs of the sweep: the parent, and the children by their keys, which differ."""
    client = mlflow.MlflowClient(cluster.mlflow)
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = list(client.search_runs(experiments, f"tags.`babeltune.sweep` = '{folder.id}'"))
    children = [run for run in runs if run.data.tags["babeltune.role"] == "trial"]
    (parent,) = [run for run in runs if run.data.tags["babeltune.role"] == "sweep"]
    found = {run.data.tags["babeltune.trial"]: run for run in children}
    assert len(found) == len(children), "a trial has two runs"
    return client, parent, found


def records_agree(
    folder: SweepFolder, cluster: Cluster, trials: dict[int, optuna.trial.FrozenTrial], state: str
) -> None:
    lines = Ledger(folder.path / "results.jsonl").lines
    ended = {line["number"]: line["state"] for line in lines if line["event"] == "end"}
    _, parent, children = runs_of(folder, cluster)
    assert parent.info.status == state.upper()
    assert set(children) - {"promotion"} == {*(f"t{number:04d}" for number in trials), "untrained", "teacher"}
    for number, trial in trials.items():
        ours, theirs = STATES[trial.state.name]
        assert (ended[number], log_of(folder.path).trials[number].state) == (trial.state.name, ours)
        run = children[f"t{number:04d}"]
        assert (run.info.status, run.data.tags["state"]) == (theirs, ours)
        assert sent_runs(folder.path)[str(number)].id == run.info.run_id
    assert folder.read("tracking.json") == {"unsent_bytes": 0, "refused": 0, "trouble": None}


def steps_are_contiguous(folder: SweepFolder, cluster: Cluster, trials: dict[int, optuna.trial.FrozenTrial]) -> None:
    """In MLflow, every step of training has its loss, every report its scores, and no metric two values at a step."""
    client, _, children = runs_of(folder, cluster)
    metric = folder.sweep().objectives[0].metric
    for number, trial in trials.items():
        found, run = children[f"t{number:04d}"].data.metrics, children[f"t{number:04d}"].info.run_id
        reports = read_reports(folder.trial(number))
        noted = reports if trial.state.name != "FAIL" else reports[: trial.user_attrs.get("reports", 0)]
        batch = folder.read(f"trials/{folder.trial(number).name}/trial.json")["training"]["global_batch"]
        trained = sorted(each.step // batch for each in client.get_metric_history(run, "train/loss"))
        assert trained == [point.step for report in noted for point in report.points]
        assert trained == list(range(1, len(trained) + 1))
        scored = client.get_metric_history(run, metric)
        assert sorted((m.step, m.value) for m in scored) == [(r.pairs, r.metrics[metric]) for r in noted]
        for name in found:
            steps = Counter(each.step for each in client.get_metric_history(run, name))
            assert max(steps.values()) == 1, f"{name} has two values at one step: {steps.most_common(3)}"


def checkpoints_are_kept(folder: SweepFolder, trials: dict[int, optuna.trial.FrozenTrial]) -> None:
    """Whatever became of a trial, the checkpoint of its last report that counted is there and whole."""
    for number, trial in trials.items():
        assert len(last_good(folder.trial(number))) >= trial.user_attrs.get("reports", 0)


def best_checkpoint_reproduces(folder: SweepFolder) -> None:
    """The winner's checkpoint loads, and evaluating it gives what was recorded."""
    candidate = find_candidate(folder.id, folder.path.parents[1])
    trial, prepared = candidate.trial, candidate.prepared
    encoder = make_student(trial, prepared)
    method = make_method(trial, prepared, encoder)
    tensors, _ = load_checkpoint(checkpoint_folder(folder.trial(trial.number), candidate.report.index))
    encoder.load_state_dict(tensors["student"])
    method.load_state_dict(tensors.get("method", {}))
    found = dev_scores(encoder, method, trial, prepared, ProcessGroup(), torch.device("cpu"))
    recorded = {name: value for name, value in candidate.report.metrics.items() if name.startswith("dev/")}
    assert {name: found[name] for name in recorded} == pytest.approx(recorded, abs=1e-4)


def the_order_replays(folder: SweepFolder, sweep: Sweep) -> None:
    lines = Ledger(folder.path / "results.jsonl").lines
    proposed = {line["number"]: line["params"] for line in lines if line["event"] == "propose"}
    assert replay(lines, sweep, functools.partial(suggest, sweep.parameters)) == proposed


def nothing_differs(folder: SweepFolder, like: SweepFolder) -> None:
    """Each trial was proposed, trained and scored as in a sweep that nothing disturbed."""

    def scores(of: SweepFolder) -> dict[str, Any]:
        rows = [row for row in leaderboard(of) if row.state == "finished" and row.params]
        return {
            row.name: (row.params, {key: value for key, value in row.metrics.items() if key.startswith("dev/")})
            for row in rows
        }

    mine, theirs = scores(folder), scores(like)
    assert mine, "nothing finished"
    assert mine == {name: theirs[name] for name in mine}


def nothing_is_left(marked: str | None = None) -> None:
    """No actor, placement group or process, once what has been ended is gone."""
    wait_until(lambda: not leftovers(marked), lambda: leftovers(marked), every=0.1)
