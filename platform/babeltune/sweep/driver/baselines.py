"""The rows of a leaderboard that no trial made: the untrained student, the raw teacher, and models to buy instead.

The driver hands some of these functions to workers and does not load transformers for it, which takes seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray
import torch

from babeltune.data.prepared import Prepared
from babeltune.data.shards import Progress, no_progress
from babeltune.evaluation.evaluate import PARAMETERS, SPEED, evaluate
from babeltune.method.distributed import ProcessGroup
from babeltune.models.hub import baseline_row
from babeltune.planning.space import default_params, make_trial
from babeltune.schema.records import Sweep, Trial
from babeltune.schema.storage_location import StorageLocation
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.sync.worker import with_prepared
from babeltune.sweep.workers.tasks import fetched

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def score_baselines(
    sweep: Sweep,
    prepared: Prepared,
    folder: SweepFolder,
    progress: Progress = no_progress,
    poll: Callable[[], None] = lambda: None,
    *,
    gpus: float = 0.0,
    where: StorageLocation | None = None,
) -> None:
    """Scores the untrained student of the default configuration, the raw teacher and the sweep's `baselines`, once;
    `where` the storage is, if it is behind a URI."""
    known = folder.read("baselines.json") or {}
    scores = known["scores"] if known.get("data") == prepared.digest else {}
    missing = {baseline_row(name): name for name in sweep.baselines if baseline_row(name) not in scores}
    task, there = ray.remote(with_prepared), (where, f"sweeps/{folder.id}/{folder.prepared.name}")
    if not scores:
        scores = _score_own(sweep, prepared, task, there, progress, poll, gpus)
    elif not missing:
        return
    for number, (row, name) in enumerate(missing.items()):
        progress("scoring the baselines", number, len(missing))
        scores[row] = fetched(task.options(num_cpus=1).remote(*there, bought_scores, name, prepared), poll)
    folder.write("baselines.json", {"data": prepared.digest, "scores": scores})


def _score_own(
    sweep: Sweep,
    prepared: Prepared,
    task: Any,
    there: tuple[StorageLocation | None, str],
    progress: Progress,
    poll: Callable[[], None],
    gpus: float,
) -> dict[str, dict[str, float]]:
    """The scores of the untrained student and the raw teacher."""
    stage = "scoring the untrained student and the teacher"
    progress(stage, 0, 2)
    trial = make_trial(sweep, 0, default_params(sweep))
    untrained = task.options(num_cpus=1, num_gpus=gpus).remote(*there, untrained_scores, trial, prepared)
    teacher = task.options(num_cpus=1).remote(*there, teacher_scores, prepared)
    scores = {"untrained": fetched(untrained, poll)}
    progress(stage, 1, 2)
    scores["teacher"] = fetched(teacher, poll)
    progress(stage, 2, 2)
    return scores


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
