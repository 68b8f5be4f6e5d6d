"""Faults of a cluster of several nodes, with tokens on: a node lost, the head lost and back, a wrong token."""

import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from chaos.arena import own_path
from chaos.nodes import nodes
from chaos.servers import redis

pytestmark = [
    pytest.mark.usefixtures("loopback_only"),
    pytest.mark.timeout(900),
    pytest.mark.chaos,
    pytest.mark.xdist_group("cluster"),
]
TOKEN = secrets.token_hex(32)


def environment(place, **more):
    """Of the nodes' process. Sockets have short paths only."""
    path = os.pathsep.join([*own_path(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"PYTHONPATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": str(place)}
    return {**kept, **own, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", **more}


@pytest.fixture
def short_place():
    place = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def there(short_place):
    """A running cluster."""
    with nodes(environment(short_place)) as running:
        yield running


def at(make_arena, running, token=TOKEN, **changes):
    arena = make_arena(cluster={"address": running.address, "token_env": "CHAOS_TOKEN"}, pause=0.05, **changes)
    arena.environment["CHAOS_TOKEN"] = token
    return arena


def nothing_is_left_on(running):
    deadline = time.monotonic() + 30
    while (left := running.tell("left")) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def test_a_sweep_goes_on_when_the_node_of_its_worker_is_lost(make_arena, there, note):
    arena = at(make_arena, there)
    driver = arena.start("submit", file=True)
    arena.until(arena.trained(130))
    lost = time.time()
    assert there.tell(f"lose {arena.steps()[-1]['pid']}") == 1
    assert driver.wait() == 0, driver.words()[-2000:]
    arena.check(marked=driver.mark)
    nothing_is_left_on(there)
    note("node loss", seconds=arena.recovered(lost), repeated=arena.repeated())


def test_a_sweep_goes_on_when_the_head_is_lost_and_comes_back_with_redis(make_arena, short_place, tmp_path, note):
    with redis(tmp_path / "redis") as address, nodes(environment(short_place, RAY_REDIS_ADDRESS=address)) as running:
        arena = at(make_arena, running)
        driver = arena.start("submit", file=True)
        arena.until(arena.trained(130))
        lost = time.time()
        running.tell("gcs down")
        time.sleep(5)
        running.tell("gcs up")
        assert driver.wait() == 0, driver.words()[-2000:]
        arena.check(marked=driver.mark)
        nothing_is_left_on(running)
        note("head (GCS) killed, back after 5 s with Redis", seconds=arena.recovered(lost), repeated=arena.repeated())


@pytest.mark.parametrize("token", ["0" * 64, ""])
def test_a_wrong_token_is_one_line_that_says_what_to_do(make_arena, there, note, token):
    arena = at(make_arena, there, token)
    driver = arena.start("submit", file=True)
    assert driver.wait() == 1
    lines = [line for line in driver.said.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert lines[-1].startswith("error: cluster 'chaos'")
    assert "CHAOS_TOKEN" in lines[-1]
    assert "Traceback" not in driver.words()
    assert TOKEN not in driver.words()
    right = at_again(arena)
    assert right.wait() == 0, right.words()[-2000:]
    arena.check(marked=right.mark)
    note("wrong or expired token" if token else "no token", lost="nothing; one line says which token to set")


def at_again(arena):
    arena.environment["CHAOS_TOKEN"] = TOKEN
    return arena.start("submit", file=True)
