"""What is shipped, and that two folders named like modules of Python's own harm nothing."""

import ast
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.metadata import distribution, entry_points, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from processes import ended

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names of the files in a wheel built from this checkout, without a network, and its entry points' text."""
    out = tmp_path_factory.mktemp("wheel")
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    done = ended(sys.executable, "-c", build, out, cwd=ROOT)
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
    assert not [name for name in names if Path(name).name.startswith(("test_", "conftest"))]


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


SECRET = f"planted-{secrets.token_hex(16)}"
UNKNOWN = ("id_rsa", "token", ".netrc", "credentials.json", "password.txt", "key.tsv", "history.log")
"""Names of files that nobody ignores and that no package needs."""
IGNORED = (
    "secrets/session_key",
    "secrets/values.yaml",
    "mlflow-secret.yaml",
    "mlflow.env",
    ".env",
    "tls.key",
    "tls.pem",
)
PACKED = ("platform/", "methods/", "search_spaces/", "clusters/")  # folders that leave a checkout


def listed(folder, *options):
    """The files that git tracks or finds in the folder."""
    command = ["git", "ls-files", "-z", *options, "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is not a git checkout, so nobody says which files belong to it")
    return [name for name in done.stdout.split("\0") if name and (folder / name).is_file()]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A copy of the checkout with a secret in every folder, under unknown and ignored names and in ignored folders; and
    the names of the files that belong there."""
    copy, names = tmp_path_factory.mktemp("checkout"), listed(ROOT, "--cached")
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    folders = [line.replace("*", "planted") for line in lines if line.endswith("/")]
    assert {".babeltune/", ".venv/", "secrets/"} <= set(folders)
    inside = [f"{folder}{name}" for folder in folders for name in ("key.yaml", "key.py", "sub/key.md")]
    for place in {copy, *(parent for name in names for parent in (copy / name).parents if parent.is_relative_to(copy))}:
        for name in (*UNKNOWN, *IGNORED, *inside):
            if name == "key.tsv" and place.name == "bundled":
                continue  # the suffix of what belongs there
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(SECRET)
    return copy, names


def ran(program, copy, out):
    """The file that the program's last line names, written by the code of the copy."""
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'platform'}:{copy / 'methods'}"}
    done = ended(sys.executable, "-c", program, out, cwd=copy, env=environment)
    assert done.returncode == 0, done.stderr
    return out / Path(done.stdout.split()[-1]).name


def wheel_of(copy, out):
    path = ran("from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))", copy, out)
    return unzipped(path)


def job_of(copy, out):
    """What a job on a cluster receives."""
    program = "from babeltune.remote.wheel import build_wheel; from pathlib import Path; import sys"
    return unzipped(ran(f"{program}; print(build_wheel(Path(sys.argv[1])))", copy, out))


def unzipped(path):
    """The wheel's files, at their places in the checkout."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    places = {
        "babeltune/shipped/": "",
        "babeltune/": "platform/babeltune/",
        "babeltune_methods/": "methods/babeltune_methods/",
    }
    contents = {}
    for name, data in files.items():
        old, new = next(((old, new) for old, new in places.items() if name.startswith(old)), ("", ""))
        contents[new + name.removeprefix(old)] = data
    return contents


def sdist_of(copy, out):
    path = ran("from hatchling.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))", copy, out)
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in members}


def context_of(copy, out):
    """The files that `docker build` reads, by Docker's rules for .dockerignore: the last line that matches decides."""
    rules = []
    for line in (copy / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            words = re.split(r"(\*\*/|\*\*|\*)", line.removeprefix("!"))
            meaning = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*"}
            rules.append((line.startswith("!"), re.compile("".join(meaning.get(w, re.escape(w)) for w in words))))

    @cache
    def matched(folder):
        """Of each rule, whether it matches the folder or one above it."""
        above = matched(folder.parent) if folder.parent != folder else [False] * len(rules)
        return [each or bool(rule.fullmatch(folder.as_posix())) for each, (_, rule) in zip(above, rules, strict=True)]

    contents = {}
    for path in copy.rglob("*"):
        name, included = path.relative_to(copy), True
        for (takes, rule), above in zip(rules, matched(name.parent), strict=True):
            if above or rule.fullmatch(name.as_posix()):
                included = takes
        if included and path.is_file():
            contents[name.as_posix()] = path.read_bytes()
    return contents


@pytest.fixture(scope="module")
def packed(planted, tmp_path_factory):
    """Packs the copy in each of these ways, once."""
    return cache(lambda pack: pack(planted[0], tmp_path_factory.mktemp("packed")))


@pytest.mark.parametrize("pack", [wheel_of, job_of, sdist_of, context_of])
def test_what_leaves_a_checkout_holds_its_files_and_no_secret(pack, packed, planted):
    _, names = planted
    files = packed(pack)
    leaked = [name for name, data in files.items() if SECRET.encode() in data]
    assert not leaked
    missing = {name for name in names if name.startswith(PACKED)} - files.keys()
    assert not missing, "add their suffix to `include` in pyproject.toml and to .dockerignore"


def test_the_image_of_mlflow_is_sent_its_script_and_packages_alone(planted, tmp_path):
    copy, _ = planted
    assert context_of(copy / "clusters" / "mlflow", tmp_path).keys() == {"serve.sh", "requirements.txt"}


def test_git_adds_no_secret_that_lies_where_one_usually_does(planted):
    copy, names = planted
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True, capture_output=True)
    added = listed(copy)
    assert set(names) <= set(added)
    leaked = [name for name in added if SECRET in (copy / name).read_text(encoding="utf-8", errors="replace")]
    assert {Path(name).name for name in leaked} == set(UNKNOWN)


def test_the_license_is_apaches_and_goes_into_wheel_sdist_and_image(packed):
    text = (ROOT / "LICENSE").read_bytes()
    assert b"Version 2.0, January 2004" in text
    assert b"END OF TERMS AND CONDITIONS" in text
    assert text in packed(wheel_of).values()
    assert text in packed(job_of).values()
    assert packed(sdist_of)["LICENSE"] == packed(context_of)["LICENSE"] == text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


distributions_there = cache(packages_distributions)
IMPORTERS = ("import_module", "importorskip", "find_spec")
"""Functions that import what their argument names, or ask for it."""


def last_name(function):
    """`c` of `c` and of `a.b.c`."""
    return getattr(function, "attr", None) or getattr(function, "id", None)


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules_of(tree):
    """The top names of all modules that a syntax tree imports; those of type checkers only are left out."""
    modules, waiting = set(), [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Call) and last_name(node.func) in IMPORTERS:
            modules |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
        waiting += ast.iter_child_nodes(node)
    return {name.partition(".")[0] for name in modules}


def at_import(tree):
    """The same of what is imported as soon as the module is."""
    return {
        name
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in modules_of(node)
    }


def outside(names):
    """The distributions of each module that is neither Python's nor ours; the module's name where none is installed."""
    ours = {
        "babeltune",
        "babeltune_methods",
        "benchmarks",
        "chaos",
        *(path.stem for path in (ROOT / "tests").glob("*.py")),
    }
    installed = distributions_there()
    return {
        name: {canonicalize_name(each) for each in installed.get(name, [name])}
        for name in sorted(names - ours - sys.stdlib_module_names)
    }


def imported(*folders, how=modules_of):
    trees = [tree_of(path) for each in folders for path in (ROOT / each).rglob("*.py")]
    return outside(set().union(*map(how, trees)))


def declared(*extras):
    """The names of the distributions that `pip install babeltune[extras]` installs by declaration."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {canonicalize_name(Requirement(line).name) for line in lines} - {"babeltune"}


USERS = ("quickstart", "faiss", "translation", "s3", "gs", "serve", "picture", "notebook", "onnx")
EVERY = (*USERS, "jobs", "dev", "tried")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folders", "how", "extras"),
    [
        (("platform", "methods"), at_import, ()),
        (("platform", "methods"), modules_of, USERS),
        (("benchmarks", "tests"), modules_of, EVERY),
    ],
    ids=["what the package needs", "what its extras bring", "what benchmarks and tests need"],
)
def test_whatever_is_imported_is_declared(folders, how, extras):
    imports = imported(*folders, how=how)
    assert {"torch", "numpy"} <= imports.keys()
    missing = {module for module, names in imports.items() if not names & declared(*extras)}
    assert not missing, "declare their distributions in pyproject.toml, and their versions in constraints.txt"


@pytest.mark.slow
def test_whatever_the_package_declares_is_imported():
    imports = set().union(*imported("platform", "methods").values())
    assert not declared() - imports
    assert len(declared()) <= 32, "what serves a line or two is no dependency of every installation"


def test_whatever_is_declared_has_a_pinned_version():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert not declared(*EVERY) - pinned
