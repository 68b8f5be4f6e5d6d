"""Builds the wheels that a cluster receives: this code with its sweep files, and the plugins that a sweep's methods are
from. A plugin is another distribution that offers methods.

Ray unpacks `py_modules` by name and keeps what it has unpacked, so two wheels of one name would be one. Each wheel is
therefore named by its content. Ray would install their dependencies, too. The cluster has these, and `babeltune doctor`
compares the versions of babeltune's, so a wheel names none."""

import base64
import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

from babeltune.errors import ClusterError, MethodError
from babeltune.files import draft_folder
from babeltune.method import GROUP
from babeltune.method.plugins import OWN, code_of, has_modules, located_files, plugin_words, recorded_files, source_of
from babeltune.schema.paths import repository

NEEDS = ("Requires-Dist:", "Provides-Extra:")  # the metadata lines that name dependencies
COMPILED = (*EXTENSION_SUFFIXES, ".so", ".pyd", ".dll", ".dylib")
"""How the names of files end that run on one kind of machine only."""
PURE = "py3-none-any"
BACKEND = "setuptools.build_meta:__legacy__"  # the build system of a source tree that names no other
PROGRAM = """
import importlib, sys
place, backend, *paths = sys.argv[1:]
sys.path[:0] = paths
module, _, inside = backend.partition(":")
hooks = importlib.import_module(module)
for name in filter(None, inside.split(".")):
    hooks = getattr(hooks, name)
print(hooks.build_wheel(place))
"""


def build_wheel(folder: Path) -> Path:
    """A wheel of the code that runs, in the folder. The same code gives the same name and the same bytes."""
    root = repository()
    return _packed(folder, _built(root) if root is not None else _installed(distribution(OWN)))


def build_plugins(folder: Path, names: Iterable[str]) -> list[Path]:
    """Wheels of the installed distributions with these names, in the folder.

    Raises `MethodError` for one that is not installed or cannot be shipped."""
    wheels = []
    for name in names:
        try:
            wheels.append(build_plugin(folder, distribution(name)))
        except PackageNotFoundError:
            raise MethodError(
                f"the sweep uses methods of the distribution {name}, which is not installed here; install it, and the "
                "job ships it"
            ) from None
    return wheels


def build_plugin(folder: Path, plugin: Distribution) -> Path:
    """Builds a wheel of a distribution that offers methods into the folder. It holds the source tree of an editable
    installation, the files that `RECORD` names, or the modules beside the metadata."""
    root = source_of(plugin)
    if root is not None:
        files = _built(root)
    elif has_modules(plugin, recorded_files(plugin)):
        files = _installed(plugin)
    else:
        files = _beside(plugin)
    if not has_modules(plugin, files):
        modules = sorted({entry.module for entry in plugin.entry_points.select(group=GROUP)})
        raise MethodError(
            f"no wheel of {plugin_words(plugin)} holds {', '.join(modules)}, so a cluster cannot get its methods; "
            f"{'correct what its source tree packs' if root is not None else 'install it again'}"
        )
    for name, path in code_of(plugin).items():
        if files.get(name) != path.read_bytes() and not (root is not None and name not in files):
            raise MethodError(
                f"{plugin_words(plugin)} runs here with {path}, and a wheel of it would have "
                f"{'another file of that name' if name in files else 'no such file'}; install it again"
            )
    return _packed(folder, files)


def _packed(folder: Path, files: Mapping[str, bytes]) -> Path:
    """The wheel of these files, named by their content."""
    files = dict(_without_needs(files))
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    info = next(PurePosixPath(name).parts[0] for name in files if name.endswith(".dist-info/METADATA"))
    path = folder / f"{info.removesuffix('.dist-info')}-0{digest.hexdigest()[:16]}-{_tag(files)}.whl"
    _write(path, files, f"{info}/RECORD")
    return path


def _tag(files: Mapping[str, bytes]) -> str:
    """Where the files run. Of compiled ones it is what their own wheel says, or else this machine; pip refuses them
    on any other."""
    if not any(name.endswith(COMPILED) for name in files):
        return PURE
    metadata = next((data for name, data in files.items() if name.endswith(".dist-info/WHEEL")), b"")
    tags = [line.partition(":")[2].strip() for line in metadata.decode().splitlines() if line.startswith("Tag:")]
    return next((tag for tag in tags if tag != PURE), str(next(sys_tags())))


def _built(root: Path) -> dict[str, bytes]:
    """The files of the wheel that a source tree's own backend builds."""
    project = root / "pyproject.toml"
    if not project.is_file() and not (root / "setup.py").is_file():
        raise MethodError(f"no wheel can be built of {root}: it has no pyproject.toml; add one, or install a wheel")
    try:
        system = tomllib.loads(project.read_text("utf-8")).get("build-system", {}) if project.is_file() else {}
    except ValueError as error:
        raise MethodError(f"no wheel can be built of {root}: its pyproject.toml is no TOML ({error})") from None
    paths = [str(root / path) for path in system.get("backend-path", ())]
    with draft_folder("wheel") as place:
        built = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, str(place), system.get("build-backend", BACKEND), *paths],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        if built.returncode:
            last = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ClusterError(
                f"no wheel could be built of {root}: {last}; build one yourself to see why, or install what its "
                "[build-system] requires"
            )
        with zipfile.ZipFile(place / built.stdout.split()[-1]) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def _installed(installed: Distribution) -> dict[str, bytes]:
    """The files of an installed distribution."""
    files = recorded_files(installed)
    lost = [name for name, path in files.items() if not path.is_file()]
    if lost:
        raise MethodError(
            f"{plugin_words(installed)} lacks {lost[0]}, which its RECORD names"
            f"{f' (and {len(lost) - 1} more)' if lost[1:] else ''}; install it again"
        )
    return {name: path.read_bytes() for name, path in files.items()}


def _beside(plugin: Distribution) -> dict[str, bytes]:
    """The files of modules that lie beside their metadata, and the metadata of a wheel."""
    name, version = canonicalize_name(plugin.name).replace("-", "_"), plugin.version or "0"
    metadata = f"Metadata-Version: 2.1\nName: {plugin.name}\nVersion: {version}\n"
    info = {
        "METADATA": metadata,
        "WHEEL": "Wheel-Version: 1.0\nGenerator: babeltune\nRoot-Is-Purelib: true\n",
        "entry_points.txt": plugin.read_text("entry_points.txt") or "",
    }
    files = {name: path.read_bytes() for name, path in located_files(plugin).items()}
    return files | {f"{name}-{version}.dist-info/{file}": text.encode() for file, text in info.items()}


def _without_needs(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The files with metadata that names no dependency."""

    def metadata(data: bytes) -> bytes:
        """A METADATA file without its lines of dependencies."""
        head, blank, text = data.decode().partition("\n\n")
        return ("\n".join(line for line in head.split("\n") if not line.startswith(NEEDS)) + blank + text).encode()

    return {
        name: metadata(data) if name.endswith(".dist-info/METADATA") else data
        for name, data in files.items()
        if not name.endswith(".dist-info/RECORD")
    }


def _write(path: Path, files: Mapping[str, bytes], record: str) -> None:
    """The archive, its entries in order and without times, and a record of their digests."""
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            code = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={code},{len(data)}")
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(record), "\n".join([*lines, f"{record},,"]) + "\n")
