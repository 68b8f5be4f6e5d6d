"""What a result depends on besides the sweep file: code, package versions, the machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import babeltune
from babeltune.plugins import OWN, digest_of, plugins

PINNED = (
    *("torch", "ray", "optuna", "transformers", "sentence-transformers", "tokenizers", "safetensors"),
    *("datasets", "numpy"),
)
"""Packages whose version can change a trial's numbers."""
PACKAGES = (
    *("babeltune", "torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "numpy"),
    *("ray", "optuna", "mlflow", "datasets"),
)


def code_digest() -> str:
    """SHA-256 over the source files of both packages, but for the command line, reports and the model card, which only
    show."""
    import babeltune_methods

    digest = hashlib.sha256()
    for package in (babeltune, babeltune_methods):
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            if path.relative_to(folder).parts[0] in ("cli", "report") or path.name == "card.py":
                continue
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def deciding_facts(methods: Iterable[str] = ()) -> dict[str, Any]:
    """What must not change between two submissions of one sweep: the code and the packages that compute.

    `code` holds a digest for babeltune and for each other distribution that one of these methods comes from.
    """
    code = {OWN: code_digest(), **{name: digest_of(plugin) for name, plugin in plugins(methods).items()}}
    return {"code": code, **{name: version(name) for name in PINNED}}


def environment_facts() -> dict[str, str]:
    """What a result depends on besides the sweep file: git commit, package versions, platform, CPU count."""
    facts = {"git.commit": _commit(), "python": platform.python_version(), "platform": platform.platform()}
    facts["cpus"] = str(os.cpu_count())
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[f"version.{package}"] = version(package)
    return facts


def _commit() -> str:
    """The commit of the source tree, `+dirty` with uncommitted changes; `none` where installed from a wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return "none"

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
