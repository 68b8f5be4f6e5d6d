"""The rows of a leaderboard that no trial made: the untrained student, the raw teacher, and models to buy instead.

The driver hands some of these functions to workers and does not load transformers for it, which takes seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch

from babeltune.data.prepared import Prepared
from babeltune.data.teacher import folder_digest
from babeltune.errors import TeacherError
from babeltune.evaluation.evaluate import evaluate
from babeltune.evaluation.metric_names import PARAMETERS, SPEED, SPREAD
from babeltune.memory import uncollected
from babeltune.method.distributed import ProcessGroup
from babeltune.models.hub import baseline_row, model_folder, open_model, split_revision
from babeltune.planning.space import default_params, make_trial, shapes
from babeltune.schema.records import TEACHER, UNTRAINED, Sweep, Trial
from babeltune.schema.storage_location import StorageLocation
from babeltune.stages import Count, Progress, no_progress, uncounted
from babeltune.sweep.driver.assignment import with_speed
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.workers.tasks import followed, with_progress

if TYPE_CHECKING:
    from numpy.typing import NDArray


BATCH = 64  # sentences that a bought model encodes at a time
OWN = (UNTRAINED, TEACHER)  # rows that every sweep has


def score_baselines(
    sweep: Sweep,
    prepared: Prepared,
    folder: SweepFolder,
    progress: Progress = no_progress,
    follow: Callable[[Any, Count], Any] = followed,
    *,
    gpus: float = 0.0,
    where: StorageLocation | None = None,
) -> None:
    """Scores the untrained student of the default configuration, the raw teacher and the sweep's `baselines`, once, and
    measures the speed of every shape of students while no trial trains. A baseline whose files have changed is scored
    again. `where` is the storage behind a URI. `follow` gives a task's result and tells its progress, as `followed`."""
    recorded = folder.read("baselines.json") or {}
    if recorded.get("data") != prepared.digest:
        recorded = {}
    scores, models, speeds = recorded.get("scores", {}), recorded.get("models", {}), recorded.get("speeds", {})
    digests = {row: _digest(name, models.get(row)) for name in sweep.baselines for row in (baseline_row(name),)}
    missing = {row: name for name in sweep.baselines if models.get(row := baseline_row(name)) != digests[row]}
    remote = ray.remote(with_progress).options(num_cpus=1, num_gpus=gpus).remote

    def result(stage: str, total: int, function: Callable[..., Any], *arguments: Any) -> Any:
        progress(stage, 0, total)
        task = remote(where, f"sweeps/{folder.id}/{folder.prepared.name}", function, *arguments, prepared)
        value = follow(task, partial(progress, stage))
        progress(stage, total, total)
        return value

    sentences = len({text for task in prepared.tasks for text in task.texts_of("student")})
    trial_of = shapes(sweep) if prepared.tasks else {}
    if new := {shape: trial for shape, trial in trial_of.items() if shape not in speeds}:
        speeds |= result("measuring the speed of students", len(new), shape_speeds, new)
        folder.write("baselines.json", {**recorded, "data": prepared.digest, "speeds": speeds})
    if not scores:
        trial = with_speed(folder, make_trial(sweep, 0, default_params(sweep)))
        scores = result("scoring the untrained student and the teacher", sentences, own_scores, trial)
    elif not missing and scores.keys() <= {*OWN, *digests}:
        return
    bought = {row: digest for row, digest in models.items() if row in digests and row not in missing}
    scores = {row: each for row, each in scores.items() if row in OWN or row in bought}
    facts = {"data": prepared.digest, "speeds": speeds, "scores": scores, "models": bought}
    folder.write("baselines.json", facts)
    for row, name in missing.items():
        try:
            scores[row] = result(f"scoring {row}", sentences, bought_scores, name)
        except TeacherError as error:  # the trials need none of them
            folder.note(f"not scored: {error}")
            continue
        bought[row] = digests[row]
        folder.write("baselines.json", facts)


def _digest(name: str, digest: str | None) -> str:
    """That of the baseline's files; the known one if they are gone since it was scored."""
    try:
        return folder_digest(baseline_folder(name))
    except TeacherError:
        if digest is None:
            raise
        return digest


def baseline_folder(name: str) -> Path:
    """The folder of a baseline's model. Raises `TeacherError` if it cannot be had."""
    return model_folder(*split_revision(name), setting="baselines")


def own_scores(trial: Trial, prepared: Prepared, tell: Count = uncounted) -> dict[str, dict[str, float]]:
    """The scores of both rows of `OWN`, one after the other. A second process would import for seconds."""
    return dict(zip(OWN, (untrained_scores(trial, prepared, tell), teacher_scores(prepared)), strict=True))


def untrained_scores(trial: Trial, prepared: Prepared, tell: Count = uncounted) -> dict[str, float]:
    """Dev metrics of the trial's student and layers before the first step."""
    with uncollected():
        from babeltune.training.build import make_student_and_method
        from babeltune.training.dev_evaluation import dev_scores

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder, method = make_student_and_method(trial, prepared)
    return dev_scores(encoder.to(device), method.to(device), trial, prepared, ProcessGroup(), device, tell)


def shape_speeds(
    trials: Mapping[str, Trial], prepared: Prepared, tell: Count = uncounted
) -> dict[str, tuple[float, float]]:
    """The speed of each shape's student and its spread, one after the other. `tell` counts the shapes."""
    with uncollected():
        from babeltune.training.build import make_student
        from babeltune.training.dev_evaluation import speed_of

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    speeds = {}
    for shape, trial in trials.items():
        speeds[shape] = speed_of(make_student(trial, prepared).to(device), trial, prepared, device)
        tell(len(speeds), len(trials))
    return speeds


def teacher_scores(prepared: Prepared) -> dict[str, float]:
    """Dev metrics of the teacher's own vectors, in every language, known to it or not."""
    return evaluate(prepared.tasks, prepared.teacher_vectors, teacher=prepared.teacher_vectors)


def bought_scores(name: str, prepared: Prepared, tell: Count = uncounted) -> dict[str, float]:
    """Dev metrics of an off-the-shelf model (`baselines` of a sweep file) with its own prompt, its size and speed.
    `tell` counts the sentences.

    Raises:
        TeacherError: it cannot be reached, is not in safetensors, or sentence-transformers does not load it."""
    from babeltune.training.speed import bought_sentences_per_second

    model = open_model(str(baseline_folder(name)))
    texts = prepared.all_texts()

    def embed(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        done = itertools.count(0, BATCH)
        with model[0].register_forward_pre_hook(lambda *_: tell(next(done), len(ids))):
            vectors: NDArray[np.float32] = model.encode(texts.at(ids)[:], batch_size=BATCH, show_progress_bar=False)
        return vectors

    scores = evaluate([task for task in prepared.tasks if task.right_model != "teacher"], embed)
    size = sum(parameter.numel() for parameter in model.parameters())
    ids = sorted({text for task in prepared.tasks for text in task.texts()})
    speed = bought_sentences_per_second(model, texts.at(np.array(ids))[:]) if ids else ()
    return scores | {PARAMETERS: float(size)} | dict(zip((SPEED, SPREAD), speed, strict=False))
