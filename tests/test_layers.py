"""Parts of Ray have one door each. import-linter knows packages as a whole, so this looks for their parts."""

import ast
from functools import cache
from pathlib import Path

import pytest

import babeltune

ROOT = Path(babeltune.__file__).parent


@cache
def imported(file):
    """The modules that a file imports, at its top and within functions; `from a import b` also counts as `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("part", "door"), [("ray.tune", "sweep/search"), ("ray.train", "sweep/workers")])
def test_a_part_of_ray_is_imported_in_one_package(part, door):
    users = {
        file.parent.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if any(f"{name}.".startswith(f"{part}.") for name in imported(file))
    }
    assert users == {door}
