"""Faults of a cluster of several nodes, with tokens on: a node lost, the head lost and back, a wrong token."""

import tempfile
import time
from pathlib import Path

import pytest

from chaos.nodes import TOKEN, environment, nodes
from chaos.servers import redis

pytestmark = [pytest.mark.usefixtures("loopback_only"), pytest.mark.chaos]


@pytest.fixture(scope="module")
def there(loopback_only):
    """A running cluster. The last test that uses it takes one of its nodes away."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as place, nodes(environment(Path(place))) as running:
        yield running


ASHA = {
    "scheduler": {"kind": "asha", "grace": 1, "reduction": 2},
    "objectives": [{"metric": "dev/everyday/accuracy"}, {"metric": "dev/sts/spearman"}],
    "budget__trials": 4,
}
"""Trials that are pruned, and values of two objectives, have to be put together again."""


def at(make_arena, running, **changes):
    cluster = {"address": running.address, "token_env": "CHAOS_TOKEN"}
    arena = make_arena(cluster=cluster, pause=0.05, **changes)
    arena.environment["CHAOS_TOKEN"] = TOKEN
    return arena


def test_a_sweep_goes_on_when_the_head_is_lost_and_comes_back_with_redis(make_arena, short_place, tmp_path, note):
    with redis(tmp_path / "redis") as address, nodes(environment(short_place, RAY_REDIS_ADDRESS=address)) as running:
        arena = at(make_arena, running)
        driver = arena.start("submit", file=True)
        arena.until(arena.trained(130))
        running.tell("gcs down")
        time.sleep(5)
        running.tell("gcs up")
        assert driver.wait() == 0, driver.words()[-2000:]
        arena.check(marked=driver.mark)
        running.nothing_is_left()
        note(arena, "head (GCS) killed, back after 5 s with Redis", seconds=arena.pause(), most=20)


def test_a_driver_that_is_killed_leaves_nothing_on_a_cluster_that_lives_on(make_arena, there, note):
    arena = at(make_arena, there, **ASHA)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    driver.kill()
    there.nothing_is_left()
    began = time.time()
    again = arena.start("resume")
    assert again.wait() == 0, again.words()[-2000:]
    arena.check(4, alike=False, marked=again.mark)
    assert "pruned" in {row["state"] for row in arena.rows()}
    there.nothing_is_left()
    name = "driver SIGKILL on a cluster that lives on, under ASHA, two objectives"
    note(arena, name, seconds=arena.recovered(began), most=20)


def test_a_wrong_token_and_none_are_one_line_that_says_what_to_do(make_arena, there, note):
    arena = at(make_arena, there)
    for token, code in (("0" * 64, 1), ("", 2)):
        arena.environment["CHAOS_TOKEN"] = token
        driver = arena.start("submit", file=True)
        assert driver.wait() == code
        lines = [line for line in driver.said.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert lines[-1].startswith("error: cluster 'chaos'")
        assert "CHAOS_TOKEN" in lines[-1]
        assert "Traceback" not in driver.words()
        assert TOKEN not in driver.words()
    arena.environment["CHAOS_TOKEN"] = TOKEN
    right = arena.start("submit", file=True)
    assert right.wait() == 0, right.words()[-2000:]
    arena.check(marked=right.mark)
    there.nothing_is_left()
    for name in ("wrong or expired token", "no token"):
        note(arena, name, lost="nothing; one line says which token to set")


@pytest.mark.parametrize(("what", "seconds"), [("node", 10.0), ("head (GCS)", 20.0)])
def test_what_stands_still_and_goes_on_costs_no_more_than_that_time(make_arena, there, note, what, seconds):
    arena = at(make_arena, there)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    if what == "node":
        assert there.tell(f"halt {arena.steps()[-1]['pid']}") > 1
    else:
        assert there.tell("halt gcs") == 1
    time.sleep(seconds)  # so long is the fault
    there.tell("go on")
    assert driver.wait() == 0, driver.words()[-2000:]
    arena.check(marked=driver.mark)
    there.nothing_is_left()
    assert arena.repeated() == 0
    note(arena, f"{what} SIGSTOP for {seconds:g} s", seconds=arena.pause())


HASTY = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}
"""Ray holds a node to be dead after 5 s without an answer, not after a minute."""


def in_mid_run(make_arena, running):
    """A sweep in the middle of its second trial: its arena, its driver, and the process that trains."""
    arena = at(make_arena, running)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    return arena, driver, arena.steps()[-1]["pid"]


def test_a_node_that_wakes_after_its_trial_has_gone_elsewhere_changes_nothing(make_arena, short_place, note):
    with nodes(environment(short_place, **HASTY)) as running:
        arena, driver, pid = in_mid_run(make_arena, running)
        halted = time.time()
        running.tell(f"halt {pid}")
        arena.until(lambda: arena.steps()[-1]["pid"] != pid)
        running.tell("go on")
        assert driver.wait() == 0, driver.words()[-2000:]
        arena.check(marked=driver.mark)
        note(arena, "node SIGSTOP, goes on when its trial is elsewhere", seconds=arena.recovered(halted), most=20)


@pytest.mark.parametrize(("halt", "what"), [("halt", "node"), ("halt raylet", "raylet of a node")])
def test_a_node_that_never_goes_on_leaves_its_trial_to_another(make_arena, short_place, note, halt, what):
    with nodes(environment(short_place, **HASTY)) as running:
        arena = at(make_arena, running)
        arena.order("hold", at=50)  # workers outlive their raylet, and would finish before others have their trial
        driver = arena.start("submit", file=True)
        arena.until(arena.injected)
        halted, pid = time.time(), arena.steps()[-1]["pid"]
        running.tell(f"{halt} {pid}")
        arena.until(lambda: arena.steps()[-1]["pid"] != pid)
        arena.release()
        assert driver.wait() == 0, driver.words()[-2000:]
        running.tell("go on")
        arena.check(marked=driver.mark)
        note(arena, f"{what} SIGSTOP for good", seconds=arena.recovered(halted), most=20)


@pytest.mark.parametrize("joins", [False, True])
def test_a_node_that_nothing_reaches_leaves_its_trial_to_another(make_arena, short_place, note, joins):
    """A partition: its processes go on, and come back when their trial is elsewhere, or never."""
    with nodes(environment(short_place, **HASTY), apart=True) as running:
        arena, driver, pid = in_mid_run(make_arena, running)
        began = time.time()
        running.tell(f"cut {pid}")
        arena.until(lambda: arena.steps()[-1]["pid"] != pid)
        if joins:
            running.tell("join")
        assert driver.wait() == 0, driver.words()[-2000:]
        running.tell("join")
        arena.check(marked=driver.mark)
        what = "and joins when its trial is elsewhere" if joins else "for good"
        note(arena, f"node cut off from the network, {what}", seconds=arena.recovered(began), most=20)


def test_a_sweep_whose_nodes_all_stand_still_is_stopped_and_resumed(make_arena, short_place, note):
    with nodes(environment(short_place, **HASTY)) as running:
        arena, driver, _ = in_mid_run(make_arena, running)
        running.tell("halt all")
        arena.until(lambda: "no node holds a worker group any more; waiting for one" in driver.words())
        stop = arena.start("stop")
        assert stop.wait() == 0, stop.words()[-2000:]
        assert driver.wait() == 0, driver.words()[-2000:]
        assert arena.folder.state() == "stopped"
        running.tell("go on")
        running.tell("add")
        began = time.time()
        again = arena.start("resume")
        assert again.wait() == 0, again.words()[-2000:]
        arena.check(marked=again.mark)
        note(arena, "all nodes SIGSTOP, stop, then resume with another node", seconds=arena.recovered(began), most=20)


def test_a_sweep_goes_on_when_the_node_of_its_worker_is_lost(make_arena, there, note):
    arena = at(make_arena, there)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    lost = time.time()
    assert there.tell(f"lose {arena.steps()[-1]['pid']}") == 1
    assert driver.wait() == 0, driver.words()[-2000:]
    arena.check(marked=driver.mark)
    there.nothing_is_left()
    note(arena, "node loss", seconds=arena.recovered(lost), most=20)
