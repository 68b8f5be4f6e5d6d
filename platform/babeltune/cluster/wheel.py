"""Builds the wheel that a cluster receives: this code, its sweep files and its entry points, named by their content.

Ray unpacks `py_modules` by name and keeps what it has unpacked, so two wheels of one name would be one. It would
install their dependencies, too; the cluster has these, and `babeltune doctor` compares their versions, so the wheel
names none.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

from babeltune.errors import ClusterError
from babeltune.spec.files import repository

NEEDS = ("Requires-Dist:", "Provides-Extra:")
"""The metadata lines that name dependencies."""
LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""What an installation adds to a wheel's own files."""
PROGRAM = """
import os, sys
from hatchling.build import build_wheel
print(build_wheel(sys.argv[1]))
"""


def build_wheel(folder: Path) -> Path:
    """A wheel of the code that runs, in the folder. The same code gives the same name and the same bytes."""
    root = repository()
    files = dict(_without_needs(_built(root) if root is not None else _installed()))
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    info = next(PurePosixPath(name).parts[0] for name in files if name.endswith(".dist-info/METADATA"))
    path = folder / f"{info.removesuffix('.dist-info')}-0{digest.hexdigest()[:16]}-py3-none-any.whl"
    _write(path, files, f"{info}/RECORD")
    return path


def _built(root: Path) -> dict[str, bytes]:
    """The files of the wheel that hatchling builds from the checkout."""
    with tempfile.TemporaryDirectory() as place:
        built = subprocess.run(
            [sys.executable, "-c", PROGRAM, place],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        if built.returncode:
            last = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ClusterError(f"no wheel could be built of {root}: {last}")
        with zipfile.ZipFile(Path(place) / built.stdout.split()[-1]) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def _installed() -> dict[str, bytes]:
    """The files of the installed distribution."""
    files: dict[str, bytes] = {}
    for path in distribution("babeltune").files or ():
        if path.name not in LEFT_OUT and "__pycache__" not in path.parts and not path.as_posix().startswith(".."):
            files[path.as_posix()] = path.read_binary()
    return files


def _without_needs(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The files with metadata that names no dependency."""

    def metadata(data: bytes) -> bytes:
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
