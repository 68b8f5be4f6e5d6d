"""A noisy corpus in, nested subsets of its best pairs out, with the scores of the translation models they train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from babeltune.apps.filtering import select, translate
from babeltune.apps.mining import mine
from babeltune.apps.mining.margin import around
from babeltune.apps.mining.vectors import Model
from babeltune.errors import DataError, SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.apps.filtering.select import Columns, Pairs, Ranked
    from babeltune.apps.filtering.translate import Recipe

OnStep = Callable[[int, int, int, float], None]
"""Called while a translation model trains, with its subset's tokens, the step, the number of steps, and the loss."""


def filter_corpus(
    path: str,
    out: Path,
    sizes: Sequence[int],
    models: Callable[[], tuple[Model, Model]],
    settings: mine.Settings,
    storage: Path,
    progress: mine.Progress,
    *,
    columns: Columns | None = None,
    languages: Sequence[str] | None = None,
    drop: bool = False,
    recipe: Recipe | None = None,
    test: str | None = None,
    on_step: OnStep = lambda asked, step, of, loss: None,
) -> dict[str, Any]:
    """Writes the best pairs of a TSV in subsets of these target tokens, ascending, and `report.json`, which it returns.

    `models` score; they are loaded when the corpus is read. With a recipe, a translation model is trained on each
    subset and scored on the test file, whose sentences are in no subset. The report is written before the first and
    after each, so that a failure loses no score.

    Raises `SpecError` if `out` exists already, or if the recipe cannot be followed. Raises `DataError` if a file
    cannot be read, nothing is left of it, or a subset is too small to train on.
    """
    if out.exists():
        raise SpecError(f"--out {out} exists already; name a new folder, or remove it first")
    if recipe is not None:
        translate.scorers()  # before hours of encoding
    identify = select.language_identifier(languages)
    pairs = select.without_repetitions(select.read_pairs(path, columns, drop=drop))
    tests = select.read_pairs(test, columns) if test is not None else None
    if tests is not None:
        pairs = select.without_test(pairs, tests)
    pairs, found = select.without_english(pairs, identify)
    if not len(pairs):
        raise DataError(f"{path}: nothing is left of {pairs.read} pairs; dropped: {dict(pairs.dropped)}")
    both = models()
    ranked, pairs = select.rank(pairs, score_pairs(pairs, both, settings, storage, progress))
    out.mkdir(parents=True)
    report: dict[str, Any] = {
        "pairs": {"path": path, "sha256": pairs.digest, "read": pairs.read},
        "models": [asdict(model) for model in both],
        "margin": settings.margin,
        "k": settings.k,
        "dropped": dict(pairs.dropped),
        "source_languages": found,
        "kept": len(ranked.source),
        "token": "what stands between blanks in the target",
        "subsets": select.write_subsets(out, ranked, sizes),
    }
    if recipe is not None and tests is not None:
        report["translation"] = {
            "recipe": asdict(recipe),
            "test": {"path": test, "sha256": tests.digest, "pairs": len(tests)},
            "results": [],
        }
    _write(out, report)
    if recipe is not None and tests is not None:
        for result in translations(out, ranked, report["subsets"], recipe, tests, on_step):
            report["translation"]["results"].append(result)
            _write(out, report)
    return report


def _write(out: Path, report: dict[str, Any]) -> None:
    draft = out / ".report.json"
    draft.write_text(json.dumps(report, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    draft.replace(out / "report.json")


def score_pairs(
    pairs: Pairs, models: tuple[Model, Model], settings: mine.Settings, storage: Path, progress: mine.Progress
) -> NDArray[np.float32]:
    """[pairs] margins in which every distinct text stands once; NaN where a ratio's neighbourhoods are not positive."""
    texts, rows = [], []
    for side in (pairs.source, pairs.target):
        number: dict[str, int] = {}
        rows.append(np.array([number.setdefault(text, len(number)) for text in side]))
        texts.append(list(number))
    with mine.working(storage) as work:
        matches, scores = mine.margins(
            (texts[0], texts[1]), (rows[0], rows[1]), models, settings, storage, work, progress
        )
    if settings.margin == "ratio":
        left, right = map(torch.from_numpy, rows)
        scores[(around(matches, left, right) <= 0).numpy()] = np.nan
    return scores


def translations(
    folder: Path, ranked: Ranked, subsets: Sequence[dict[str, Any]], recipe: Recipe, test: Pairs, on_step: OnStep
) -> Iterator[dict[str, Any]]:
    """Trains a model on each subset, and scores it, one after the other."""
    most = subsets[-1]["pairs"]
    start = translate.starting_model(recipe, [*ranked.source[:most], *ranked.target[:most]], folder / "start")
    for row in subsets:
        asked, count, place = row["asked"], row["pairs"], folder / f"top-{row['asked']}"
        if not count:
            raise DataError(f"no pair fits in {asked} tokens, so there is nothing to train on; ask for more")

        def tell(step: int, of: int, loss: float, asked: int = asked) -> None:
            on_step(asked, step, of, loss)

        loss = translate.train(recipe, start, ranked.source[:count], ranked.target[:count], place, tell)
        scores = translate.score_model(recipe, place, test.source, test.target)
        yield {"asked": asked, "model": place.name, "loss": loss, **scores}
    shutil.rmtree(folder / "start", ignore_errors=True)
