"""Folders that `export` wrote: which one a folder is, and what encodes with it. Commands that encode ask here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from babeltune.errors import SpecError
from babeltune.models.hub import EXPORTED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

GRAPH = "model.onnx"
MISSING = "packages are missing; pip install 'babeltune[onnx]'"


class FolderReader(Protocol):
    """An encoder of such a folder."""

    prompt: str
    """Put before every text."""
    tokenizer: Tokenizer

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """The vectors: [texts, dim]."""


def mark(folder: Path, **settings: str) -> None:
    """Marks the folder as an export, with what its reader asks for besides."""
    (folder / EXPORTED).write_text(json.dumps(settings), encoding="utf-8")


def is_export(folder: Path) -> bool:
    """Whether `export` wrote the folder. Raises `SpecError` if it cannot be read here."""
    if not (folder / EXPORTED).is_file():
        return False
    if is_graph(folder) and importlib.util.find_spec("onnxruntime") is None:
        raise SpecError(f"{folder} is a graph: {MISSING}")
    return True


def is_graph(folder: Path) -> bool:
    """Whether an exported folder is a graph, and not a table."""
    return (folder / GRAPH).is_file()


def reader_of(folder: Path, threads: int = 0) -> FolderReader | None:
    """The reader of an exported folder; None of any other. `threads` are a graph's: 0 is one for each core.

    Raises `SpecError` if it cannot be read here."""
    if not is_export(folder):
        return None
    try:
        json.loads((folder / EXPORTED).read_bytes())
        if is_graph(folder):
            from babeltune.promotion.onnx_encoder import OnnxEncoder

            return OnnxEncoder(str(folder), threads)
        from babeltune.promotion.small_encoder import SmallEncoder

        return SmallEncoder(str(folder))
    except Exception as error:  # tokenizers and onnxruntime have no narrower one for a file that they cannot read
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise SpecError(f"{folder} is damaged ({why[:200]}); export the model again") from error
