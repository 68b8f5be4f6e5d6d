"""Parts of Ray have one door each. import-linter knows packages as a whole, so this looks for their parts."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import babeltune
from babeltune.sweep import ray_internals

ROOT = Path(babeltune.__file__).parent
REPOSITORY = Path(__file__).parents[1]
ARCHITECTURE = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
PRIVATE = re.compile(
    r"\bray(\.\w+)*\._[a-z]|\bray\.(core\.generated|train\.v2)\b|\b_(tune_controller|actor_manager|actor_id)\b"
)
"""A private part of Ray."""
INTERNALS = ROOT / "sweep/ray_internals.py"
CONTROLLER, TRAINER = "ray.tune.execution.tune_controller", "ray.train.v2.api.data_parallel_trainer"
HOLDERS = {
    **dict.fromkeys(("_tune_controller", "_actor_manager", "_live_actors_to_ray_actors_resources"), CONTROLLER),
    **dict.fromkeys(("_on_start", "_on_stop"), "ray.air.execution._internal.tracked_actor"),
    **dict.fromkeys(("_create_default_callbacks", "_initialize_and_run_controller"), TRAINER),
    "_maybe_send_resource_request": "ray.train.v2._internal.execution.scaling_policy.scaling_policy",
    "_shutdown_sync_actor": "ray.train.v2._internal.execution.worker_group.state",
    **dict.fromkeys(
        ("_do_request", "_server_ray_version", "_address", "_cookies", "_headers", "_verify"),
        "ray.dashboard.modules.dashboard_sdk",
    ),
    **dict.fromkeys(("_node_ip_address", "_temp_dir", "_system_config", "_global_node"), "ray._private.worker"),
    "_connect_and_get_accessor": "ray._private.state",
    "_py_driver_sys_path": "ray.job_config",
    "_actor_id": "ray.actor",
    "dead_processes": "ray._private.node",
    "_trial_info": "ray.tune.schedulers.async_hyperband",
}
"""The private attributes of Ray's objects that are read, given or overridden, and the module that has each."""


@cache
def imported(file):
    """The modules that a file imports, at its top and within functions; `from a import b` also counts as `a.b`."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


@pytest.mark.slow
@pytest.mark.parametrize(("part", "door"), [("ray.tune", "sweep/search"), ("ray.train", "sweep/workers")])
def test_a_part_of_ray_is_imported_in_one_package(part, door):
    users = {
        file.parent.relative_to(ROOT).as_posix()
        for file in {*ROOT.rglob("*.py")} - {INTERNALS}
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


def test_private_parts_of_ray_are_touched_in_one_file():
    users = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if PRIVATE.search(re.sub(r'"ray\.\S*"', "", file.read_text(encoding="utf-8")))
    }
    assert users == {INTERNALS.relative_to(ROOT).as_posix()}


def looked_up():
    """The dotted names of Ray that the file of private parts uses."""
    trees = [ast.parse(text) for text in (INTERNALS.read_text(encoding="utf-8"), ray_internals.ASK)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {f"{module}.{name}" for name, module in ray_internals.CLASSES.items()}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("ray."):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("ray."):
            names.add(ast.unparse(node))
    return sorted(name for name in names if "._global_node." not in name)  # an object, while Ray runs


def test_the_installed_ray_has_each_private_part():
    lacking = []
    assert len(looked_up()) > 25
    for name in looked_up():
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            lacking.append(f"{name}: {error}")
    assert not lacking, "ray_internals.py says of each what to do"


def test_the_objects_of_the_installed_ray_have_each_private_attribute():
    tree = ast.parse(INTERNALS.read_text(encoding="utf-8"))
    touched = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
    }
    assert touched - {"_private"} <= HOLDERS.keys(), "name the module of Ray that has it"
    lacking = [
        f"{module} has no {name}"
        for name, module in HOLDERS.items()
        if not re.search(rf"\b{name}\b", inspect.getsource(importlib.import_module(module)))
    ]
    assert not lacking, "ray_internals.py, or the class that overrides it, says what it is for"


def needs_of(file, modules):
    """The modules that a file imports to run, at its top and within functions."""
    waiting = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names)


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle():
    files = {
        ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__"): path
        for top in (ROOT.parent, REPOSITORY / "methods")
        for path in top.rglob("*.py")
    }
    circles = {name: {*needs_of(path, files)} & files.keys() - {name} for name, path in files.items()}
    while outer := {name for name, needs in circles.items() if not needs & circles.keys()}:
        circles = {name: needs for name, needs in circles.items() if name not in outer}
    assert not circles, "these files are in a circle, or need one that is"


@pytest.mark.slow
def test_training_loads_none_of_what_a_sweep_is_driven_with():
    program = (
        "import sys, babeltune.training.trainer, babeltune.evaluation.evaluate, babeltune_methods.lealla; "
        "print({'pydantic', 'ray', 'mlflow', 'optuna'} & sys.modules.keys())"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", program], text=True).strip() == "set()"
