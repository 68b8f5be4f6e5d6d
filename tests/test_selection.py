"""`make test-fast` runs tests that start nothing, by markers and fixtures. A fast test that starts Ray fails."""

import re
import sys
from pathlib import Path

import pytest

from processes import ended
from selection import FAST, LEFT_OUT

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PLANTED = """
import os
from pathlib import Path

import pytest

from babeltune.sweep.workers import connection


def test_that_computes():
    pass


def test_that_asks_for_ray(ray_cluster):
    pass


@pytest.mark.slow
def test_that_starts_a_process():
    pass


@pytest.mark.long
def test_that_takes_long():
    pass


def test_that_leaves_what_ray_leaves():
    (Path(os.environ["RAY_TMPDIR"]) / "ray" / "session_1").mkdir(parents=True)


def test_that_starts_ray():
    with connection.local_ray(num_cpus=1):
        pass
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A test file among the others, as pytest sees it."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "test_planted.py").write_text(PLANTED)
    names = "".join(f"    {name}: {name}\n" for name in (FAST, *LEFT_OUT))
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers\nmarkers =\n{names}")
    return folder


def fast_tests(folder, *options):
    """pytest's run of the planted tests that are fast."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE), "HOME": str(folder), "TMPDIR": "/tmp"}
    plugins = ("-p", "no:cacheprovider", "-p", "conftest")
    command = (sys.executable, "-m", "pytest", "-q", *plugins, "-m", FAST, *options, folder)
    return ended(*command, cwd=folder, env=environment)


def test_markers_and_fixtures_decide_whether_a_test_is_fast(planted):
    listed = fast_tests(planted, "--collect-only").stdout
    names = [line.partition("::test_that_")[2] for line in listed.splitlines() if "::" in line]
    assert names == ["computes", "leaves_what_ray_leaves", "starts_ray"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["leaves", "starts_ray"])
def test_a_fast_test_that_starts_ray_all_the_same_fails(planted, how):
    done = fast_tests(planted, "-k", f"computes or {how}")
    assert "this test is marked as fast and has started Ray" in done.stdout, done.stdout[-3000:]
    assert re.search(r"[12] passed.*1 error", done.stdout), done.stdout[-3000:]
