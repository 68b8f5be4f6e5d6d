"""The rows of a leaderboard that no trial made: the untrained student, the raw teacher, and models to buy instead.

The driver hands these functions to workers and does not load transformers for it, which takes seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from babeltune.data.prepared import Prepared
from babeltune.evaluation.evaluate import PARAMETERS, SPEED, evaluate
from babeltune.method.distributed import ProcessGroup
from babeltune.schema.records import Trial

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def untrained_scores(trial: Trial, prepared: Prepared) -> dict[str, float]:
    """Dev metrics of the trial's student and layers before the first step."""
    from babeltune.training.dev_evaluation import dev_scores
    from babeltune.training.step import make_method, make_student

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = make_student(trial, prepared).to(device)
    method = make_method(trial, prepared, encoder).to(device)
    return dev_scores(encoder, method, trial, prepared, ProcessGroup(), device)


def teacher_scores(prepared: Prepared) -> dict[str, float]:
    """Dev metrics of the teacher's own vectors, in every language, known to it or not."""
    return evaluate(prepared.tasks, prepared.teacher_vectors, teacher=prepared.teacher_vectors)


def bought_scores(name: str, prepared: Prepared) -> dict[str, float]:
    """Dev metrics of an off-the-shelf model (`baselines` of a sweep file) with its own prompt, its size and speed.

    Raises:
        TeacherError: it cannot be reached, is not in safetensors, or sentence-transformers does not load it.
    """
    from babeltune.models.hub import model_folder, open_model, split_revision

    model = open_model(str(model_folder(*split_revision(name), setting="baselines")))
    texts = prepared.all_texts()
    speeds: list[float] = []

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        started = time.perf_counter()
        vectors: NDArray[np.float32] = model.encode(texts.at(ids)[:], batch_size=64, show_progress_bar=False)
        speeds.append(len(ids) / (time.perf_counter() - started))
        return vectors

    own = [task for task in prepared.tasks if task.right_model != "teacher"]
    scores = evaluate(own, embed)
    size = sum(parameter.numel() for parameter in model.parameters())
    return scores | {PARAMETERS: float(size)} | ({SPEED: speeds[0]} if speeds else {})
