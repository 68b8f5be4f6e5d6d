"""The folder of a model: which files it may hold. It is written whole or not at all. This imports no torch."""

import os
import shutil
from collections.abc import Callable, Set
from pathlib import Path
from tempfile import mkdtemp

from babeltune.errors import CheckpointError, PromotionError, SpecError
from babeltune.files import as_new_files, draft_of, make_folders, remove_left, sync

SAFE = frozenset({".json", ".safetensors", ".md", ".txt", ".model", ".jinja", ".onnx"})
"""Files that an exported folder may have."""


def write_folder(write: Callable[[Path], None], folder: Path, allowed: Set[str] = SAFE) -> None:
    """The folder as `write` fills it, or nothing. `allowed`: the suffixes that its files may have."""
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; name a new folder, or remove it first")
    make_folders(folder.parent)
    remove_left(folder)
    draft = draft_of(folder)
    try:
        draft.mkdir()
        write(draft)
        unsafe = [path.name for path in draft.rglob("*") if path.is_file() and path.suffix not in allowed]
        if unsafe:
            holds, may = ", ".join(sorted(unsafe)), ", ".join(sorted(allowed))
            raise CheckpointError(f"the export would hold {holds}; only {may} are allowed")
        as_new_files(draft)
        for path in (*draft.rglob("*"), draft):
            sync(path)
        draft.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_free(out: Path) -> None:
    """`SpecError` unless a folder can be made at `out`."""
    if os.path.lexists(out):
        raise SpecError(f"--out {out} exists already; name a new folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent)).rmdir()
    except OSError as error:
        raise PromotionError(unwritable(out, error)) from error


def unwritable(out: Path, error: Exception) -> str:
    """Why nothing can be written at `out`."""
    why = getattr(error, "strerror", None) or error
    return f"--out {out} cannot be written ({why}); no alias was moved; name a new folder that can be"
