"""The part of the matrix that every run of the tests has: several faults in one sweep, and several nodes."""

import pytest

from babeltune.schema.cluster import Cluster
from chaos.arena import Arena, build
from chaos.faults import actor
from chaos.nodes import TOKEN, environment, nodes
from chaos.servers import Mlflow, Postgres

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def prepared(searched):
    """Where what an arena needs is prepared."""
    sweep, folder = searched
    return Arena(folder.path, sweep, Cluster(storage=str(folder.path.parents[1])))


def test_a_sweep_survives_a_killed_worker_a_trial_that_fails_and_a_second_driver(prepared, tiny_file, tmp_path):
    arena = build(tmp_path / "arena", tiny_file, prepared, pause=0.01)
    arena.order("kill", at=50)
    arena.order("nan_loss", at=70)
    refusals = []
    with arena.meanwhile(arena.trained(30), lambda: refusals.append(arena.refusal())):
        arena.submit()
    arena.check(failed=1)
    assert "is being run by process" in refusals[0]
    assert arena.repeated() == 10
    (reason,) = [row["reason"] for row in arena.rows() if row["state"] == "failed"]
    assert reason.startswith("step 70: loss is nan")


@pytest.mark.long
def test_a_dispatcher_that_dies_is_replaced_with_its_worker_groups(prepared, tiny_file, tmp_path):
    arena = build(tmp_path / "arena", tiny_file, prepared, pause=0.01)
    with arena.meanwhile(arena.trained(90), lambda: actor("TrialDispatcher").kill()):
        arena.submit()
    arena.check(alike=False)
    assert "the dispatcher died; worker groups start again" in arena.folder.log.read_text(encoding="utf-8")
    assert arena.repeated() <= 20, "at most what was trained since a report"


@pytest.mark.long
def test_a_sweep_runs_on_two_nodes_and_records_in_mlflow_on_postgresql(prepared, tiny_file, tmp_path, short_place):
    """A head and two nodes, tokens on, half of a logical GPU for each of two worker groups."""
    with Postgres(wheel=True) as postgres, Mlflow(postgres.uri, tmp_path / "mlflow") as server:
        with nodes(environment(short_place)) as running:
            there = {"address": running.address, "token_env": "CHAOS_TOKEN", "mlflow": server.url}
            shares = {"worker_groups": 2, "cpus_per_worker": 1, "gpus_per_worker": 0.5}
            arena = build(tmp_path / "arena", tiny_file, prepared, pause=0.05, cluster={**there, **shares})
            arena.environment["CHAOS_TOKEN"] = TOKEN
            driver = arena.start("submit", file=True)
            arena.until(lambda: len(workers(arena)) == 2)
            assert sorted(running.tell(f"node {pid}") for pid in workers(arena)) == [0, 1]
            assert driver.wait() == 0, driver.words()[-2000:]
            running.nothing_is_left()
        arena.check(alike=False, marked=driver.mark)
    assert TOKEN not in driver.words()
    for place in (arena.place, tmp_path / "mlflow", short_place):  # the storage, the server's logs, Ray's logs
        files = [path for path in place.rglob("*") if path.is_file() and path.stat().st_size < 10**8]
        assert files
        assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def workers(arena):
    """The processes that have trained."""
    return {step["pid"] for step in arena.steps()}
