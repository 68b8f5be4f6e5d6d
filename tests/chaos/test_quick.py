"""The part of the matrix that every run of the tests has: several faults in one sweep."""

import pytest

from babeltune.errors import SweepError
from babeltune.spec.cluster import Cluster
from chaos.arena import Arena, build

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(900)]


def test_a_sweep_survives_a_killed_worker_a_trial_that_fails_and_a_second_driver(searched, tiny_file, tmp_path):
    sweep, folder = searched
    prepared = Arena(folder.path, sweep, Cluster(storage=str(folder.path.parents[1])))
    arena = build(tmp_path / "arena", tiny_file, prepared, pause=0.01)
    arena.order("kill", at=50)
    arena.order("nan_loss", at=70)
    refusals = []

    def drive_too():
        with pytest.raises(SweepError) as refused:
            arena.submit()
        refusals.append(str(refused.value))

    with arena.meanwhile(arena.trained(30), drive_too):
        arena.submit()
    arena.check(failed=1)
    assert "is being run by process" in refusals[0]
    assert arena.repeated() == 10
    (reason,) = [row["reason"] for row in arena.rows() if row["state"] == "failed"]
    assert reason.startswith("step 70: loss is nan")
