"""Scores a model folder with plain sentence-transformers, in a process of its own.

    python -m babeltune.rescore REQUEST.json RESPONSE.json

Promotion trusts no number that this process does not reproduce: it shares no state with training, and knows the model
only by its exported folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import PromotionError, TeacherError
from babeltune.evaluate import evaluate_texts
from babeltune.prepared import TextTask, tasks_from
from babeltune.records import plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rescore(
    models: dict[str, str], tasks: Sequence[TextTask], prefix: str, prompt: str | None = None
) -> dict[str, dict[str, float]]:
    """The metrics of each model (name -> folder or hub id) on the tasks, computed in a fresh process.

    `prompt` is put before every sentence; without it, the model's own one is.

    Raises `PromotionError` with the process's last words when it fails.
    """
    with tempfile.TemporaryDirectory() as place:
        request, response = Path(place) / "request.json", Path(place) / "response.json"
        asked = {"models": models, "tasks": plain(list(tasks)), "prefix": prefix, "prompt": prompt}
        request.write_text(json.dumps(asked))
        command = [sys.executable, "-m", "babeltune.rescore", str(request), str(response)]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise PromotionError(f"the model could not be scored with sentence-transformers: {words[0]}")
        scores: dict[str, dict[str, float]] = json.loads(response.read_text())
        return scores


def score(model: str, tasks: Sequence[TextTask], prefix: str, prompt: str | None = None) -> dict[str, float]:
    """The metrics of a sentence-transformers model that is a folder or a hub id; `TeacherError` when it is neither."""
    from sentence_transformers import SentenceTransformer

    try:
        loaded = SentenceTransformer(model, trust_remote_code=False)  # on a GPU where there is one
    except (OSError, ValueError) as error:
        raise TeacherError(
            f"{model!r} cannot be loaded as a sentence-transformers model: {str(error).strip().splitlines()[0]}"
        ) from error

    def encode(texts: list[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = loaded.encode(texts, prompt=prompt, batch_size=64, show_progress_bar=False)
        return vectors

    return evaluate_texts(tasks, encode, prefix)


def main(request: str, response: str) -> None:
    """Answers one request file."""
    asked = json.loads(Path(request).read_text())
    tasks = tasks_from(asked["tasks"])
    scores = {name: score(model, tasks, asked["prefix"], asked["prompt"]) for name, model in asked["models"].items()}
    Path(response).write_text(json.dumps(scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
