"""Which checkpoints stay when trials end, as a sweep file's `keep` says."""

import shutil
from dataclasses import replace

import pytest

from babeltune.data.prepared import read_prepared
from babeltune.errors import SweepError
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import find_candidate
from babeltune.promotion.model_names import start_folder
from babeltune.promotion.promote import promote
from babeltune.schema.cluster import Cluster
from babeltune.schema.records import Keep
from babeltune.sweep.driver.keep import CheckpointPolicy
from babeltune.sweep.driver.mlflow_reader import track
from babeltune.sweep.driver.recorder import Recorder
from babeltune.sweep.driver.run import submit
from babeltune.sweep.state.housekeeping import OPTIMIZER, REMOVED
from babeltune.sweep.state.leaderboard import leaderboard, trial_row, winner
from babeltune.sweep.sync.driver import DriverSync
from babeltune.training.checkpoint import is_good
from made_sweeps import rewrite_ledger


def policy_of(copied, **keep):
    sweep, folder, cluster = copied
    return CheckpointPolicy(replace(sweep, keep=Keep(**keep)), folder, DriverSync(cluster, folder))


def with_checkpoints(folder):
    return {path.name for path in folder.trials() if list(path.glob("checkpoints/0*"))}


def trained(folder):
    """Trials with a checkpoint, the best first."""
    return [row.name for row in leaderboard(folder) if row.name in with_checkpoints(folder)]


def test_by_default_every_trial_keeps_all_that_it_has(copied):
    _, folder, _ = copied
    before = sorted(path for path in folder.path.rglob("*"))
    policy_of(copied).catch_up()
    assert sorted(path for path in folder.path.rglob("*")) == before


@pytest.mark.usefixtures("one_scoring_process")
def test_only_the_best_trials_keep_their_checkpoints(copied):
    _, folder, cluster = copied
    names, scores = trained(folder), [(row.name, row.metrics) for row in leaderboard(folder)]
    assert len(names) > 1
    policy_of(copied, trials=1).catch_up()
    assert with_checkpoints(folder) == {winner(folder).name} == {names[0]}
    assert [(row.name, row.metrics) for row in leaderboard(folder)] == scores
    assert promote(folder.id, cluster, dry_run=True).dev


def test_what_needs_a_removed_checkpoint_says_in_one_line_what_removed_it(copied):
    _, folder, cluster = copied
    best, lost, *_ = trained(folder)
    policy_of(copied, trials=1).catch_up()
    for call in (
        lambda: promote(f"{folder.id}/{lost}", cluster, dry_run=True),
        lambda: start_folder(f"{folder.id}/{lost}", cluster),
    ):
        with pytest.raises(SweepError) as error:
            call()
        assert str(error.value) == (
            f"{folder.id}/{lost} has its scores only: its checkpoint was removed (`keep.trials: 1`); name a trial that "
            f"has its own ({best}), or train these settings again with `babeltune refit {folder.id}`"
        )
    assert find_candidate(f"{folder.id}/{lost}", cluster.folder, weights=False).name == lost, (
        "reproduce trains it again"
    )


def test_a_trial_that_ends_loses_its_checkpoint_or_takes_anothers_place(copied):
    sweep, folder, _ = copied
    rows = {name: trial_row(folder.trial(int(name[1:])), *sweep.objectives) for name in trained(folder)}
    best, second, *_ = rows
    policy = policy_of(copied, trials=1)
    policy.ended(rows[second])
    assert second in with_checkpoints(folder), "it is the best so far"
    policy.ended(rows[best])
    assert {best, second} & with_checkpoints(folder) == {best}
    assert (folder.trial(int(second[1:])) / REMOVED).exists()


def test_the_best_trials_keep_their_checkpoints_when_a_driver_begins_and_leaves(copied, tmp_path):
    sweep, folder, _ = copied
    names = trained(folder)
    assert len(names) > 2
    policy = policy_of(copied, trials=2)
    tracker = track(f"sqlite:///{tmp_path}/other.db", folder, sweep.name, policy._sync.key_of)
    with Recorder(sweep, folder, read_prepared(folder.prepared), tracker, {}, Cluster(), policy) as recorder:
        recorder.complete = True
    assert with_checkpoints(folder) == set(names[:2])


def test_a_finished_trial_keeps_its_checkpoint_beside_a_better_pruned_one(copied):
    _, folder, _ = copied
    best, second, *_ = trained(folder)
    pruned = {"number": int(best[1:]), "event": "end"}
    rewrite_ledger(folder, lambda line: {**line, "state": "PRUNED"} if pruned.items() <= line.items() else line)
    policy_of(copied, trials=1).catch_up()
    assert with_checkpoints(folder) == {second} == {winner(folder).name}


def test_a_stopped_trial_keeps_its_optimizer_and_an_ended_one_does_not(copied):
    _, folder, _ = copied
    best, second, *_ = trained(folder)
    ended = {"number": int(second[1:]), "event": "end"}
    rewrite_ledger(folder, lambda line: {**ended, "event": "stop"} if ended.items() <= line.items() else line)
    policy_of(copied, optimizer=False).catch_up()
    trials = {path.parts[-4] for path in folder.path.rglob(OPTIMIZER)}
    assert trials == {second}
    assert all(is_good(path) for path in folder.trial(int(best[1:])).glob("checkpoints/0*"))


def test_keep_decides_no_result_so_a_sweep_keeps_its_id(tiny_file):
    keeping = read_sweep(tiny_file, assignments=["keep.trials=3", "keep.optimizer=false"])
    assert keeping.keep == Keep(trials=3, optimizer=False)
    assert sweep_id(keeping) == sweep_id(read_sweep(tiny_file))


@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_goes_on_with_fewer_checkpoints_and_keeps_only_the_best(copied):
    sweep, folder, cluster = copied
    names = trained(folder)
    more = replace(
        sweep, keep=Keep(trials=1, optimizer=False), budget=replace(sweep.budget, trials=sweep.budget.trials + 1)
    )
    submit(more, cluster)
    assert with_checkpoints(folder) == {winner(folder).name}
    assert not list(folder.path.rglob(OPTIMIZER))
    assert len(leaderboard(folder)) > len(names)
    shutil.rmtree(folder.path / "train", ignore_errors=True)
    submit(more, cluster)
    assert with_checkpoints(folder) == {winner(folder).name}, "nothing is trained again"
