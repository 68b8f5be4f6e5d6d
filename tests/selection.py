"""Which tests are fast, and the order of a run. `make test-fast` runs the fast ones.

A test is fast unless it has one of the markers in `LEFT_OUT`, uses a fixture in `SLOW_FIXTURES`, or lies in a folder
in `SLOW_FOLDERS`. A fast test that starts Ray fails."""

from pathlib import Path

ROOT = Path(__file__).parent
FAST = "fast"  # the marker of fast tests
LEFT_OUT = ("chaos", "long", "slow", "needs_gpu", "needs_papers", "needs_encoder")  # markers of tests that are not fast
SLOW_FIXTURES = frozenset(
    {
        *("tiny", "tiny_storage", "tiny_stores", "searched", "ray_cluster", "scoring_process", "command"),
        *("s3_server", "gs_server", "bucket_server", "browser"),
    }
)
"""Fixtures that start a process or take seconds."""
SLOWEST = (
    *("cli/test_refit.py", "training/test_trainer.py", "cli/test_commands.py", "chaos/test_quick.py"),
    *("sweep/search/test_tune_run.py", "sweep/sync/test_housekeeping.py", "sweep/driver/test_run.py"),
    *("remote/test_jobs.py", "test_tables.py", "sweep/workers/test_access.py", "tracking/test_tracker.py"),
    *("promotion/test_interrupted.py", "sweep/driver/test_baselines.py", "promotion/test_ladder.py"),
    *("planning/test_sweep_file.py", "methods/test_contract.py", "sweep_report/test_report.py"),
    *("security/test_secrets.py", "test_packaging.py", "data/test_trimming.py", "data/test_starts.py"),
    *("test_benchmarks.py", "test_program.py", "training/test_compute.py", "training/test_right_model.py"),
)
"""The files of tests that take longest, the longest first, as measured. They come first in a run, or else one process
would end minutes before the other."""
SLOW_FOLDERS = frozenset(
    {"chaos", "cli", "clusters", "mining", "promotion", "search", "security", "tracking", "workers"}
)
"""Folders without fast tests: they start clusters and servers."""


def is_left_out(path: Path, expression: str) -> bool:
    """Whether a folder is not even read, because only fast tests are asked for and it has none."""
    return expression == FAST and path.name in SLOW_FOLDERS and path.is_dir()


def place_in_run(path: Path) -> int:
    """The place of a test file in a run: its place among the slowest, then those of slow folders, then all others."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if name in SLOWEST:
        return SLOWEST.index(name)
    return len(SLOWEST) + (path.parent.name not in SLOW_FOLDERS)


def is_fast(item) -> bool:
    """Whether a collected test starts no process, and waits for nothing that takes seconds."""
    if any(item.get_closest_marker(name) for name in LEFT_OUT) or item.path.parent.name in SLOW_FOLDERS:
        return False
    return not SLOW_FIXTURES & set(item.fixturenames)
