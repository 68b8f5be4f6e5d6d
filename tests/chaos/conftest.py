"""The fault matrix: a sweep of its own for every fault, and a note of what each cost."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from babeltune.method import registry

pytest.register_assert_rewrite("chaos.arena", "chaos.invariants")

from chaos.arena import CLUSTER, build, opened, own_path  # noqa: E402
from chaos.faults import small_disk  # noqa: E402

NEW_MOUNTS = 0x00020000


@contextmanager
def faulty_installed():
    """The distribution beside this file is installed in this process."""
    before = list(sys.path)
    sys.path[:0] = own_path()
    registry._entries.cache_clear()
    try:
        yield
    finally:
        sys.path[:] = before
        registry._entries.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _the_faulty_method():
    """For the tests of this folder only."""
    with faulty_installed():
        yield


@pytest.fixture(autouse=True, scope="session")
def may_mount():
    """Whether this process, and those that it starts, may mount what nobody else sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(NEW_MOUNTS):
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def undisturbed(request, tiny_file, tmp_path_factory):
    """The sweep without any fault, run once however many processes run the tests: what every other is compared with."""
    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent
    place = place / "undisturbed"
    with FileLock(f"{place}.lock"), faulty_installed():
        if (place / "done").exists():
            return opened(place)
        arena = build(place, tiny_file, None)
        request.getfixturevalue("ray_cluster")
        arena.submit()
        arena.check(alike=False)
        (place / "done").touch()
        return arena


@pytest.fixture
def make_arena(undisturbed, tiny_file, tmp_path):
    """Builds the arena of one test: see `build`."""
    built = []

    def make(**changes):
        built.append(build(tmp_path / "arena", tiny_file, undisturbed, **changes))
        return built[-1]

    yield make
    for arena in built:
        arena.close()


@pytest.fixture
def disk(may_mount, tmp_path, ray_cluster):
    """A small file system where the next arena has its storage."""
    if not may_mount:
        pytest.skip("mount namespaces are not permitted here")
    with small_disk(tmp_path / "arena" / "storage", megabytes=64) as place:
        yield place


@pytest.fixture(scope="session")
def stopped(undisturbed, tiny_file, tmp_path_factory, ray_cluster):
    """A sweep that was stopped in its second trial, and a copy of everything that it left."""
    place = tmp_path_factory.mktemp("stopped") / "arena"
    with faulty_installed():
        arena = build(place, tiny_file, undisturbed, pause=0.01)
        with arena.meanwhile(arena.trained(130), arena.folder.stop_request.touch):
            arena.submit()
    assert arena.folder.state() == "stopped"
    shutil.copytree(place, place.with_name("left"))
    return arena


@pytest.fixture
def interrupted(stopped, tmp_path):
    """That sweep, to damage and to resume. Its MLflow store is a new copy: one may still be open."""
    shutil.rmtree(stopped.place)
    shutil.copytree(stopped.place.with_name("left"), stopped.place)
    shutil.move(stopped.place / "storage" / "mlflow.db", tmp_path)
    values = yaml.safe_load((stopped.place / CLUSTER).read_text(encoding="utf-8"))
    values["mlflow"] = f"sqlite:///{tmp_path}/mlflow.db"
    (stopped.place / CLUSTER).write_text(yaml.safe_dump(values), encoding="utf-8")
    arena = replace(opened(stopped.place), like=stopped.like)
    yield arena
    arena.close()


@pytest.fixture
def short_place():
    """A folder whose path leaves room for the names of sockets."""
    place = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def arena(make_arena):
    """One worker group of one worker, three trials."""
    return make_arena()


@pytest.fixture
def note(record_property):
    """Records what a fault cost, for the table at the end; `most` is how many steps it may have had repeated."""

    def record(arena, fault, *, seconds=None, most=0, lost="nothing"):
        repeated, failed = arena.repeated(), [row["name"] for row in arena.rows() if row["state"] == "failed"]
        assert repeated <= most, f"{repeated} steps were made more than once"
        assert bool(failed) != lost.startswith("nothing"), failed
        record_property("fault", [fault, "–" if seconds is None else f"{seconds:.1f}", str(repeated), lost])

    return record
