"""Parts of Ray have one door each. import-linter knows packages as a whole, so this looks for their parts."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import babeltune

ROOT = Path(babeltune.__file__).parent
REPOSITORY = Path(__file__).parents[1]
ARCHITECTURE = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
PRIVATE = re.compile(r"\bray(\.\w+)*\._[a-z]\w*|\b_tune_controller\b")
"""A private part of Ray."""


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


def test_the_table_of_layers_is_what_import_linter_checks():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    packages, parts = (contract for contract in contracts if contract["type"] == "layers")
    table = re.findall(r"^\| (`.*?) \| (.*) \|$", ARCHITECTURE.partition("## Where is what")[0], re.MULTILINE)
    shown = [set(re.findall(r"`(\w+)`", names)) for names, _ in table]
    assert shown == [set(re.findall(r"\w+", layer)) for layer in reversed(packages["layers"])]
    (sweep,) = [text for names, text in table if names == "`sweep`"]
    assert re.findall(r"`(\w+)`", sweep) == parts["layers"][::-1]


def test_each_use_of_a_private_part_of_ray_has_its_reason():
    users = {
        file.relative_to(ROOT / "sweep").as_posix()
        for file in ROOT.rglob("*.py")
        if PRIVATE.search(re.sub(r'"ray\.\S*"', "", file.read_text(encoding="utf-8")))
    }
    listed = ARCHITECTURE.partition("**Private parts of Ray**")[2].partition("**k-means**")[0]
    assert set(re.findall(r"`(\w+/\w+\.py)`", listed)) == users
