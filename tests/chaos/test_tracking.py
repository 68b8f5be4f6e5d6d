"""Faults of MLflow and of the databases: gone, refusing, slow, locked, restarted. Training never notices."""

import time

import pytest

from babeltune.sweep.driver import recorder
from chaos.faults import sqlite_locked
from chaos.servers import Mlflow, Postgres, Proxy
from ports import free_port

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.chaos]
DEAD = 10.0  # seconds that a server is away


@pytest.fixture(scope="module")
def postgres(loopback_only):
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def server(postgres, tmp_path_factory):
    """An MLflow server on PostgreSQL."""
    with Mlflow(postgres.uri, tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest.fixture
def proxy(server):
    with Proxy(server.port).answering() as standing:
        yield standing


def on(make_arena, url):
    return make_arena(cluster={"mlflow": url}, pause=0.02)


def test_a_server_that_is_dead_for_ten_seconds_loses_nothing(make_arena, server, note):
    arena = on(make_arena, server.url)

    def away():
        server.kill()
        made = len(arena.steps())
        time.sleep(DEAD)
        arena.until(arena.trained(made + 50))  # no step waits for the server
        server.start()

    with arena.meanwhile(arena.trained(50), away):
        arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "MLflow dead for 10 s", seconds=arena.pause())


def test_a_server_dead_for_the_whole_run_gets_everything_with_the_next_submission(
    make_arena, postgres, tmp_path, note, monkeypatch
):
    monkeypatch.setattr(recorder, "FINAL_WAIT_S", 2.0)
    port = free_port()
    arena = on(make_arena, f"http://127.0.0.1:{port}")
    folder = arena.submit()
    assert folder.state() == "finished"
    left = folder.read("tracking.json")
    assert left["unsent_bytes"] > 0
    assert "does not take events" in left["trouble"]
    monkeypatch.undo()
    with Mlflow(postgres.uri, tmp_path / "late", port):
        arena.submit()
        arena.check()
    assert arena.repeated() == 0
    note(arena, "MLflow dead for the whole run, then `resume`", seconds=arena.pause())


@pytest.mark.parametrize("status", [500, 429])
def test_a_server_that_refuses_for_a_while_loses_nothing(make_arena, proxy, note, status):
    arena = on(make_arena, proxy.url)
    proxy.status = status

    def recover():
        proxy.status = None

    with arena.meanwhile(arena.trained(150), recover):
        arena.submit()
    assert proxy.troubled
    arena.check()
    assert arena.repeated() == 0
    note(arena, f"MLflow answers {status} to half of the run", seconds=arena.pause())


def test_a_slow_server_delays_no_step(make_arena, proxy, note):
    arena = on(make_arena, proxy.url)
    proxy.delay = 0.5
    arena.submit()
    met = proxy.troubled
    assert met
    proxy.delay = 0.0
    arena.check()
    assert met < len(arena.steps()), "there are fewer requests than steps, which cannot have waited for one each"
    note(arena, "MLflow takes half a second longer for each request", seconds=arena.pause())


def test_a_database_that_is_restarted_behind_the_server_loses_nothing(make_arena, postgres, server, note):
    arena = on(make_arena, server.url)
    with arena.meanwhile(arena.trained(50), postgres.restart):
        arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, f"PostgreSQL ({postgres.whose}) restarted (SIGQUIT)", seconds=arena.pause())


def test_a_database_file_that_another_process_has_locked_is_waited_for(make_arena, note):
    arena = make_arena(pause=0.02)

    def lock():
        with sqlite_locked(arena.place / "storage" / "mlflow.db"):
            time.sleep(DEAD)

    with arena.meanwhile(arena.trained(50), lock):
        arena.submit()
    arena.check()
    assert arena.repeated() == 0
    note(arena, "mlflow.db locked for 10 s", seconds=arena.pause())
