"""Which tests are fast: those that start no Ray, server, browser or other process. `make test-fast` runs them.

The marker `fast` is set for every test whose code says so: the code of the test, of its fixtures, and of the functions
and classes of the test folders that they use. So no file lists its tests, and a new test is sorted by itself. A test
that starts nothing and still takes seconds, of a core or of waiting, has the marker `slow`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).parent
FAST = "fast"
"""The marker of fast tests."""
STARTERS = frozenset(
    {
        *("subprocess", "Popen", "multiprocessing", "check_ranks", "bucket_servers", "several_nodes", "leftovers"),
        *("ray", "local_ray", "WorkerPool", "connected", "submit", "main", "mlflow", "EventLog", "FreshScorer"),
        *("open_client", "track"),
        *("sentence_transformers", "datasets", "mteb"),
    }
)
"""Names of what starts processes, and of libraries that take seconds to import. `main` is the command line's, and
`open_client` makes MLflow's database."""
LEFT_OUT = ("chaos", "long", "slow", "needs_gpu", "needs_papers", "needs_encoder")
"""Markers of tests that are not fast, whatever their code names."""
SLOW_FIXTURES = frozenset({"tiny", "tiny_storage", "tiny_stores"})
"""Fixtures that take seconds: a prepared sweep, its stores, and the storage of tests that prepare one."""
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
    if SLOW_FIXTURES & set(item.fixturenames):
        return False
    fixtures = [each.func for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
    return not any(names_in(function) & STARTERS for function in (item.function, *fixtures))


@cache
def names_in(value: object) -> frozenset[str]:
    """Every name in the code of a function or class, and in what it uses of the test folders."""
    found: set[str] = set()
    seen: set[object] = set()
    home = file_of(inspect.unwrap(value))
    waiting: list[object] = [value]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if function in seen:
            continue
        seen.add(function)
        for part in functions_of(function):
            names = set(names_of(part.__code__))
            found |= names
            used = (part.__globals__.get(name) for name in names)
            waiting += [each for each in used if is_of_tests(each, home)]
    return frozenset(found)


def functions_of(value: object) -> Iterable[FunctionType]:
    """The function itself, or those of a class."""
    if isinstance(value, type):
        return [each for each in map(inspect.unwrap, vars(value).values()) if isinstance(each, FunctionType)]
    return [value] if isinstance(value, FunctionType) else []


def names_of(code: CodeType) -> Iterator[str]:
    """The names in a function's code and in the functions within it; of a module with dots, each part."""
    for name in code.co_names:
        yield from name.split(".")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def is_of_tests(value: object, home: Path) -> bool:
    """Whether it is a function or class of this file, or of one in the test folders."""
    if not isinstance(value, FunctionType | type):
        return False
    file = file_of(inspect.unwrap(value))
    return file == home or file.is_relative_to(ROOT)


def file_of(value: object) -> Path:
    """Where a function or class is written."""
    code = getattr(value, "__code__", None)
    return Path(code.co_filename if code else getattr(inspect.getmodule(value), "__file__", None) or "/")
