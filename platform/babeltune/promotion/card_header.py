"""The header of a model card, which the Hugging Face hub reads: languages, origin, and every sealed figure.

The licence is missing until somebody chooses one, which `push` asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.evaluation.metric_names import each_once
from babeltune.method import needs_of
from babeltune.models.hub import BUNDLED, split_revision
from babeltune.schema.languages import meaning

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from babeltune.promotion.gates import Scores
    from babeltune.schema.records import Sweep, Trial

TASK = "sentence-similarity"  # the hub's name of what the model is for


def header(sweep: Sweep, trial: Trial, languages: Iterable[str], test: Scores) -> str:
    """The header in YAML, between lines of three hyphens."""
    from huggingface_hub import ModelCardData

    datasets = [source.dataset for source in sweep.data.train if source.dataset and hub_id(source.dataset)]
    data = ModelCardData(
        language=sorted({meaning(language).language for language in languages}),
        library_name="sentence-transformers",
        pipeline_tag=TASK,
        tags=["sentence-transformers", "feature-extraction", "babeltune", trial.method],
        base_model=base_model(sweep, trial),
        datasets=list(dict.fromkeys(datasets)) or None,
        model_name=sweep.promotion.name or sweep.name,
        eval_results=sealed_results(test) or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def base_model(sweep: Sweep, trial: Trial) -> str | None:
    """The hub's model that training began with, or on whose vectors layers were trained; None for one from scratch."""
    if needs_of(trial.method, trial.config).frozen:
        return hub_id(sweep.teacher.model)
    student = trial.student
    names = (student.start, student.model, student.embeddings_from)
    return next((model for name in names if name is not None and (model := hub_id(name)) is not None), None)


def hub_id(name: str) -> str | None:
    """The id of a model or data set of the hub, without its revision; None for a folder and for other names."""
    if name == BUNDLED:
        return "sentence-transformers/all-MiniLM-L6-v2"
    plain_name = split_revision(name)[0]
    return plain_name if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", plain_name) and not Path(name).exists() else None


def sealed_results(test: Scores) -> list[EvalResult]:
    """The figures `test/NAME/SUBSET/METRIC`, `test/NAME/METRIC` and `test/METRIC`, each once, as the hub lists them."""
    from huggingface_hub import EvalResult

    results = []
    for name, value in each_once(test).items():
        _, *parts, metric = name.split("/")
        results.append(
            EvalResult(
                task_type=TASK,
                dataset_type=parts[0] if parts else "all",
                dataset_name=" ".join(parts) or "all sealed tests",
                dataset_config=parts[1] if len(parts) > 1 else None,
                dataset_split="test",
                metric_type=metric,
                metric_value=round(value, 4),
            )
        )
    return results
