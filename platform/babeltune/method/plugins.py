"""The distributions besides babeltune that methods come from, and the files of each.

A resume compares these files (`sweep/state/provenance.py`), and a Ray job ships them (`remote/wheel.py`). Nothing is
built here. An import system is asked where modules are; the modules themselves are not run."""

import ast
import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from babeltune.errors import MethodError
from babeltune.method.registry import GROUP, entry_of

OWN = "babeltune"
METADATA = (".dist-info", ".egg-info")
"""Endings of the folders that hold a distribution's metadata."""
LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Metadata files that an installation adds to those of the wheel."""


def plugins(methods: Iterable[str]) -> dict[str, Distribution]:
    """The distributions of these methods by name, babeltune left out."""
    dists = [dist for name in methods if (dist := entry_of(name).dist) is not None]
    return {name: dist for dist in dists if (name := canonicalize_name(dist.name)) != OWN}


def needs_beside(plugin: Distribution) -> list[str]:
    """The requirements of the plugin that babeltune lacks, in the words of its metadata: `einops>=0.7`.

    A job ships no dependencies, so its cluster has only babeltune's."""
    packages = _closure(OWN)
    return sorted({str(need) for need in _needs(plugin) if canonicalize_name(need.name) not in packages})


def _needs(plugin: Distribution) -> list[Requirement]:
    """The dependencies that apply to this machine, extras left out."""
    needs = map(Requirement, plugin.requires or ())
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


@lru_cache(maxsize=1)
def _closure(name: str) -> frozenset[str]:
    """The distribution, what it depends on, what that depends on, and so on, as far as it is installed."""
    waiting, packages = [name], set()
    while waiting:
        if (one := canonicalize_name(waiting.pop())) not in packages:
            packages.add(one)
            with suppress(PackageNotFoundError):
                waiting += [need.name for need in _needs(distribution(one))]
    return frozenset(packages)


def digest_of(plugin: Distribution) -> str:
    """SHA-256 over the plugin's files, and over which class each of its methods is."""
    digest = hashlib.sha256()
    for entry in sorted(plugin.entry_points.select(group=GROUP)):
        digest.update(f"{entry.name}={entry.value}\0".encode())
    for name, path in sorted(code_of(plugin).items()):
        data = path.read_bytes() if path.is_file() else b"missing"
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def code_of(plugin: Distribution) -> dict[str, Path]:
    """The files that the plugin runs with, by their names in a wheel; without metadata.

    They are those that its `RECORD` names and what else its packages hold. If Python imports another copy, they are
    that copy's."""
    recorded = {name: path for name, path in recorded_files(plugin).items() if not _is_metadata(PurePosixPath(name))}
    files = located_files(plugin)
    shadowed = any(name in files and files[name].resolve() != path.resolve() for name, path in recorded.items())
    if shadowed or not has_modules(plugin, recorded):
        return files
    packages = {name.removesuffix("/__init__.py") for name in recorded if name.endswith("/__init__.py")}
    return {name: path for name, path in files.items() if name.partition("/")[0] in packages} | recorded


def recorded_files(plugin: Distribution) -> dict[str, Path]:
    """The files of the wheel that was installed, by its `RECORD`; nothing if there is none."""
    names = [row[0] for row in csv.reader((plugin.read_text("RECORD") or "").splitlines()) if row]
    return {
        name: Path(str(plugin.locate_file(name)))
        for name in names
        if (path := PurePosixPath(name)).parts[0] != ".."
        and not path.is_absolute()
        and "__pycache__" not in path.parts
        and not (path.name in LEFT_OUT and _is_metadata(path))
    }


def located_files(plugin: Distribution) -> dict[str, Path]:
    """The files of the plugin's modules, and of what they import from beside them, as the import system finds them."""
    waiting = {*(plugin.read_text("top_level.txt") or "").split()}
    waiting |= {entry.module.partition(".")[0] for entry in plugin.entry_points}
    files: dict[str, Path] = {}
    tops: set[str] = set()
    while waiting:
        top = waiting.pop()
        tops.add(top)
        of_top = _files_of(top)
        for file in of_top.values():
            waiting |= {name for name in _imports(file) - tops if _is_beside(name, of_top, plugin)}
        files |= of_top
    return dict(sorted(files.items()))


def _files_of(top: str) -> dict[str, Path]:
    """The files of a package, or the one of a module, by their names in a wheel."""
    spec = find_spec(top)
    files: dict[str, Path] = {}
    if spec is not None and spec.submodule_search_locations is not None:
        for place in map(Path, spec.submodule_search_locations):
            for path in sorted(place.rglob("*")):
                name = PurePosixPath(top, path.relative_to(place).as_posix())
                # caches, hidden files and metadata are no part of it
                aside = any(each == "__pycache__" or each[0] == "." or each.endswith(METADATA) for each in name.parts)
                if path.is_file() and not aside:
                    files.setdefault(str(name), path)
    elif spec is not None and spec.has_location and spec.origin:
        files[Path(spec.origin).name] = Path(spec.origin)
    return files


def _imports(file: Path) -> set[str]:
    """The top-level modules that a file's absolute imports name."""
    try:
        tree = ast.parse(file.read_bytes()) if file.suffix == ".py" else ast.Module([], [])
    except (SyntaxError, ValueError):
        return set()
    nodes = list(ast.walk(tree))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in modules}


def _is_beside(name: str, files: Mapping[str, Path], plugin: Distribution) -> bool:
    """Whether a module lies beside the package with these files, and no other distribution owns it."""
    first, path = next(iter(files.items()))
    beside = path.parents[len(PurePosixPath(first).parts) - 1]
    if not ((beside / name / "__init__.py").is_file() or (beside / f"{name}.py").is_file()):
        return False
    owners = {canonicalize_name(owner) for owner in _owners().get(name, ())}
    return owners <= {canonicalize_name(plugin.name)} and not name.startswith(OWN)


@lru_cache(maxsize=1)
def _owners() -> Mapping[str, list[str]]:
    """The installed distributions of each top-level module."""
    return packages_distributions()


def has_modules(plugin: Distribution, names: Iterable[str]) -> bool:
    """Whether the module of each of the plugin's methods is among these files."""
    present = set(names)
    modules = {entry.module.replace(".", "/") for entry in plugin.entry_points.select(group=GROUP)}
    endings = (".py", "/__init__.py", *EXTENSION_SUFFIXES)
    return all(any(module + ending in present for ending in endings) for module in modules)


def source_of(plugin: Distribution) -> Path | None:
    """The source tree of an editable installation; None for any other.

    Raises `MethodError` if the tree is gone."""
    url: Mapping[str, object] = json.loads(plugin.read_text("direct_url.json") or "{}")
    details = url.get("dir_info")
    if not (isinstance(details, dict) and details.get("editable")):
        return None
    root = Path(url2pathname(urlsplit(str(url["url"])).path))
    if not root.is_dir():
        raise MethodError(f"{plugin_words(plugin)} is installed from {root}, which is gone; install it again")
    return root


def plugin_words(plugin: Distribution) -> str:
    """The plugin in an error: its name and version."""
    return f"distribution {plugin.name} {plugin.version or ''}".rstrip()


def _is_metadata(path: PurePosixPath) -> bool:
    return path.parts[0].endswith(METADATA)
