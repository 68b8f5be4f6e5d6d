"""Finds the file that a user names, and fills the environment's variables in."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import babeltune
from babeltune.errors import SpecError, nearest_file
from babeltune.redaction import NAME

PLAIN = re.compile(r"[\w/. -]*", re.ASCII)
"""A path that a URL holds as it is."""
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Replaces `${NAME}` and `${NAME:-default}`. Raises `SpecError` for a variable without value or default."""
    variables = os.environ if environ is None else environ

    def replace(match: re.Match[str]) -> str:
        value = variables.get(match[1]) or match[2]
        if value is None:
            todo = f"set it, or write ${{{match[1]}:-default}}"
            raise SpecError(f"{text!r} needs the environment variable {match[1]}, which is not set; {todo}")
        return value

    return VARIABLE.sub(replace, text)


def expand_open(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`expand` for text that is recorded, shown and sent: `SpecError` for a variable that holds a secret, too."""
    for match in VARIABLE.finditer(text):
        if NAME.search(match[1]):
            shares = f"would put the secret of the environment variable {match[1]} into files that are shared"
            todo = "name another variable: libraries find credentials in the environment by themselves"
            raise SpecError(f"{text!r} {shares}; {todo}")
    return expand(text, environ)


def sqlite_url(path: Path) -> str:
    """The database URL of a file, with what a URL takes for its own (`?`, `#`, `%`) quoted."""
    if PLAIN.fullmatch(str(path)):
        return f"sqlite:///{path}"
    # With the driver's name: of the others MLflow would make a folder of the quoted name, too.
    return f"sqlite+pysqlite:///{quote(str(path), safe=' +/')}"


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite database URL; None for every other address."""
    if not url.startswith(("sqlite:", "sqlite+")):
        return None
    name = unquote(url.partition("://")[2].partition("?")[0].partition("/")[2])
    return Path(name) if name else None


def repository() -> Path | None:
    """The checkout that this code runs from, or None when it is installed."""
    root = Path(babeltune.__file__).resolve().parents[2]
    return root if (root / "platform" / "babeltune").is_dir() and (root / "pyproject.toml").is_file() else None


def _roots() -> list[Path]:
    """Folders of the files that come with babeltune: the checkout, or else the installed package's."""
    shipped = Path(babeltune.__file__).resolve().parent / "shipped"
    return [root for root in (repository(), shipped) if root is not None]


def shipped_file(name: str) -> Path:
    """A file that comes with babeltune, whatever the user has under the same name."""
    return next(path for root in _roots() if (path := root / name).is_file())


Kind = Literal["sweep", "overlay", "cluster"]
"""The roles of files that a user names."""
SWEEPS_KEY = re.compile(r"^method\s*:", re.MULTILINE)
"""Keys of a sweep file that an overlay lacks."""


def find_file(name: str | Path, kind: Kind = "sweep") -> Path:
    """A file named by a user: as a path, then in the checkout, then among the files shipped with the package. For a
    name that is none of them the nearest file of this kind is offered."""
    roots = _roots()
    for candidate in (Path(name).expanduser(), *(root / name for root in roots)):
        if candidate.is_file():
            return candidate
        if candidate.is_dir():
            inside = sorted(path.name for path in candidate.glob("*.yaml"))[:5]
            such = f", such as {', '.join(inside)}" if inside else ""
            raise SpecError(f"{candidate} is a folder; name a file in it{such}")
        if os.path.lexists(candidate):
            raise SpecError(f"{candidate} is neither a file nor a link to one; name a file")
    # Deeper in `clusters` are files of other programs.
    pattern = "clusters/*.yaml" if kind == "cluster" else "search_spaces/**/*.yaml"
    shipped = {str(path.relative_to(root)): path for root in roots for path in root.glob(pattern)}
    beside = Path(name).expanduser().parent
    here = {str(path): path for ending in ("yaml", "yml") for path in beside.glob(f"*.{ending}")}
    if kind == "overlay":
        shipped, here = ({name: path for name, path in files.items() if _is_overlay(path)} for files in (shipped, here))
    near = nearest_file(str(name), [*sorted(here), *sorted(shipped)])
    first = sorted(file for file in shipped if kind == "overlay" or file.count("/") == 1)
    raise SpecError(f"no file {str(name)!r}{near}" + ("" if near else f"; shipped: {', '.join(first) or 'none'}"))


def _is_overlay(path: Path) -> bool:
    """Whether a file can be read and is no sweep file."""
    return path.is_file() and os.access(path, os.R_OK) and not SWEEPS_KEY.search(path.read_text("utf-8", "replace"))
