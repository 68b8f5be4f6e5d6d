"""What is shipped, and that two folders named like modules of Python's own harm nothing."""

import subprocess
import sys
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names of the files in a wheel built from this checkout, without a network, and its entry points' text."""
    out = tmp_path_factory.mktemp("wheel")
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(out)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(out / done.stdout.strip()) as archive:
        names = set(archive.namelist())
        points = next(name for name in names if name.endswith("entry_points.txt"))
        return names, archive.read(points).decode()


def test_the_source_roots_hide_no_module_of_pythons_own():
    program = "import platform, uuid; print(platform.python_version(), uuid.uuid4())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == ".".join(map(str, sys.version_info[:3]))
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not (ROOT / "methods" / "__init__.py").exists()


def test_the_wheel_holds_both_packages_whole(wheel):
    names, _ = wheel
    for root, package in (("platform", "babeltune"), ("methods", "babeltune_methods")):
        here = {
            path.relative_to(ROOT / root).as_posix()
            for path in (ROOT / root / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert here <= names
        assert f"{package}/py.typed" in here
    assert {f"babeltune/bundled/{name}.tsv" for name in ("natural_train", "natural_dev", "natural_test")} <= names


def test_the_wheel_ships_the_search_spaces_and_clusters(wheel):
    names, _ = wheel
    for folder in ("search_spaces", "clusters"):
        for path in (ROOT / folder).rglob("*.yaml"):
            assert f"babeltune/shipped/{path.relative_to(ROOT).as_posix()}" in names


def test_the_wheel_holds_no_tests_and_nothing_at_its_top_but_the_packages(wheel):
    names, _ = wheel
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"babeltune", "babeltune_methods"}
    assert not [name for name in names if "test_" in name or "conftest" in name]


def test_the_entry_points_are_there_and_load(wheel):
    _, text = wheel
    assert "babeltune = babeltune.cli:main" in text
    assert "[babeltune.methods]" in text
    methods = {e.name: e.load() for e in entry_points(group="babeltune.methods")}
    assert {"soft_contrastive", "mse_distillation", "translation_ranking"} <= set(methods)
    assert all(method.name == name for name, method in methods.items())


def test_the_pinned_versions_are_those_that_are_installed():
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equal, version = line.partition("#")[0].strip().partition("==")
        if name in ("torch", "ray", "optuna", "mlflow", "transformers", "sentence-transformers"):
            assert equal
            assert distribution(name).version.partition("+")[0] == version.partition("+")[0].split(";")[0].strip()
