"""The distributions besides babeltune that methods come from, and the files of which each consists.

A resume compares these files (`engine/environment.py`), and a Ray job ships them (`cluster/wheel.py`). Nothing is built
here. An import system is asked where modules are; the modules themselves are not run.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from babeltune.errors import MethodError
from babeltune.method import GROUP, entry_of

OWN = "babeltune"
METADATA = (".dist-info", ".egg-info")
"""Endings of the folders that hold a distribution's metadata."""
LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Metadata files that an installation adds to those of the wheel."""


def plugins(methods: Iterable[str]) -> dict[str, Distribution]:
    """The distributions of these methods by name, babeltune left out."""
    found = [dist for name in methods if (dist := entry_of(name).dist) is not None]
    return {name: dist for dist in found if (name := canonicalize_name(dist.name)) != OWN}


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
    """The files that the plugin runs with, by their names in a wheel; without metadata."""
    recorded = {name: path for name, path in recorded_files(plugin).items() if not _is_metadata(PurePosixPath(name))}
    return recorded if has_modules(plugin, recorded) else located_files(plugin)


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
    """The files of the plugin's modules, which the import system finds: of an editable installation, or of metadata
    that lie beside the code."""
    tops = {*(plugin.read_text("top_level.txt") or "").split()}
    tops |= {entry.module.partition(".")[0] for entry in plugin.entry_points}
    found: dict[str, Path] = {}
    for top in sorted(tops):
        spec = find_spec(top)
        if spec is not None and spec.submodule_search_locations is not None:
            for place in map(Path, spec.submodule_search_locations):
                for path in sorted(place.rglob("*")):
                    name = PurePosixPath(top, path.relative_to(place).as_posix())
                    if path.is_file() and not _is_aside(name):
                        found.setdefault(str(name), path)
        elif spec is not None and spec.has_location and spec.origin:
            found[Path(spec.origin).name] = Path(spec.origin)
    return found


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
        raise MethodError(f"{described(plugin)} is installed from {root}, which is gone; install it again")
    return root


def described(plugin: Distribution) -> str:
    """The plugin in an error: its name and version."""
    return f"distribution {plugin.name} {plugin.version or ''}".rstrip()


def _is_metadata(path: PurePosixPath) -> bool:
    return path.parts[0].endswith(METADATA)


def _is_aside(path: PurePosixPath) -> bool:
    """Whether a file in a package's folder is no part of it: caches, hidden files, metadata."""
    return any(part == "__pycache__" or part.startswith(".") or part.endswith(METADATA) for part in path.parts)
