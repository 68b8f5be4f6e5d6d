"""The two rows of every leaderboard that no trial made: the untrained student and the raw teacher.

The driver hands these functions to workers and does not load transformers for it, which takes seconds."""

from __future__ import annotations

import torch

from babeltune.data.prepared import Prepared
from babeltune.evaluation.evaluate import evaluate
from babeltune.losses.gather import Ranks
from babeltune.records import Trial


def untrained_scores(trial: Trial, prepared: Prepared) -> dict[str, float]:
    """Dev metrics of the trial's student and layers before the first step."""
    from babeltune.training.dev_scores import dev_scores
    from babeltune.training.learner import make_method, make_student

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = make_student(trial, prepared).to(device)
    method = make_method(trial, prepared, encoder).to(device)
    return dev_scores(encoder, method, trial, prepared, Ranks(), device)


def teacher_scores(prepared: Prepared) -> dict[str, float]:
    """Dev metrics of the teacher's own vectors, in every language, known to it or not."""
    return evaluate(prepared.tasks, prepared.teacher_vectors, teacher=prepared.teacher_vectors)
