"""A noisy corpus in, nested subsets of its best pairs out, with the scores of the translation models they train."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from babeltune.apps.filtering import select, translate
from babeltune.apps.mining import mine
from babeltune.apps.mining.margin import around
from babeltune.apps.mining.vectors import EncodingModel
from babeltune.errors import DataError, SpecError, plural
from babeltune.files import json_text, make_place, write_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.apps.filtering.select import CandidatePairs, Ranked, Subset
    from babeltune.apps.filtering.translate import Recipe
    from babeltune.apps.pair_files import Columns

OnStep = Callable[[int, int, int, float], None]
"""Called while a translation model trains, with its subset's tokens, the step, the number of steps, and the loss."""


@dataclass(frozen=True)
class NoisyCorpus:
    """The pairs to choose from."""

    path: str  # a file of any format that `pair_rows` reads
    columns: Columns | None = None
    languages: Sequence[str] | None = None
    """The only languages that a source can be in, by ISO 639-1; None: all that py3langid knows."""
    drop: bool = False  # whether broken rows are counted instead of refused
    codec: str | None = None  # code page of this file and of the test's; None: they are in Unicode


@dataclass(frozen=True)
class TranslationTest:
    """The translation models that judge the subsets."""

    recipe: Recipe
    test: str  # the pairs that they are scored on. No sentence of them is in a subset.
    on_step: OnStep = lambda limit, step, of, loss: None


@dataclass(frozen=True, kw_only=True)
class TranslationResults:
    """The translation models that the subsets trained."""

    recipe: translate.Recipe
    test: dict[str, str | int]
    """The file, its SHA-256 and its pairs."""
    results: tuple[translate.Scores, ...]
    """The scores of each model, the smallest subset first."""


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """`report.json`: what was kept of a corpus."""

    pairs: dict[str, str | int]
    """The file, its SHA-256 and how many pairs it has."""
    models: tuple[EncodingModel, ...]
    margin: str
    k: int
    dropped: dict[str, int]
    """Reason -> pairs."""
    source_languages: dict[str, int]
    ranked: int
    token: str = "what stands between blanks in the target"
    subsets: tuple[select.Subset, ...]
    translation: TranslationResults | None = None


def filter_corpus(
    corpus: NoisyCorpus,
    out: Path,
    sizes: Sequence[int],
    encoding: Callable[[], mine.Encoding],
    settings: mine.MiningSettings,
    translation: TranslationTest | None = None,
) -> Filtered:
    """Writes the best pairs of a corpus in subsets of these target tokens, ascending, and `report.json`, which it
    returns.

    The models of `encoding` score; it is called when the corpus is read. With `translation` a model is trained on each
    subset and scored. The report is written before the first and after each, so that a failure loses no score.

    Raises `SpecError` if `out` exists already, or if the recipe cannot be followed. Raises `DataError` if a file
    cannot be read, nothing is left of it, or a subset is too small to train on."""
    if os.path.lexists(out):
        raise SpecError(f"--out {out} exists already; name a new folder, or remove it first")
    make_place(out)
    if translation is not None:
        translate.scorers()  # before hours of encoding
    test = None if translation is None else select.read_pairs(translation.test, corpus.columns, codec=corpus.codec)
    pairs, languages = candidates(corpus, test)
    loaded = encoding()
    ranked, pairs = select.rank(pairs, score_pairs(pairs, settings, loaded))
    out.mkdir(parents=True)
    subsets = select.write_subsets(out, ranked, sizes)
    report = Filtered(
        pairs={"path": corpus.path, "sha256": pairs.digest, "read": pairs.read},
        models=loaded.models,
        margin=settings.margin,
        k=settings.k,
        dropped=dict(pairs.dropped),
        source_languages=languages,
        ranked=len(ranked.source),
        subsets=tuple(subsets),
    )
    _write(out, report)
    if translation is not None and test is not None:
        tested: dict[str, str | int] = {"path": translation.test, "sha256": test.digest, "pairs": len(test)}
        judged = TranslationResults(recipe=translation.recipe, test=tested, results=())
        _write(out, report := replace(report, translation=judged))
        for result in translations(out, ranked, subsets, translation, test):
            judged = replace(judged, results=(*judged.results, result))
            _write(out, report := replace(report, translation=judged))
    return report


def candidates(corpus: NoisyCorpus, test: CandidatePairs | None) -> tuple[CandidatePairs, dict[str, int]]:
    """The pairs that may be kept, and how many sources were in each language. Raises `DataError` if none is left."""
    among = select.checked_languages(corpus.languages)
    read = select.read_pairs(corpus.path, corpus.columns, drop=corpus.drop, codec=corpus.codec)
    pairs = select.without_repetitions(read)
    if test is not None:
        pairs = select.without_test(pairs, test)
    pairs, languages = select.without_english(pairs, among)
    if not len(pairs):
        words = f"nothing is left of {plural(pairs.read, 'pair')}; dropped: {dict(pairs.dropped)}"
        raise DataError(f"{corpus.path}: {words}")
    return pairs, languages


def _write(out: Path, report: Filtered) -> None:
    write_out(out / "report.json", (json_text(report, indent=2) + "\n").encode())


def score_pairs(pairs: CandidatePairs, settings: mine.MiningSettings, encoding: mine.Encoding) -> NDArray[np.float32]:
    """[pairs] margins in which every distinct text stands once; NaN if undefined, or if a ratio has neighbourhoods that
    are not positive."""
    texts, rows = [], []
    for side in (pairs.source, pairs.target):
        number: dict[str, int] = {}
        rows.append(np.array([number.setdefault(text, len(number)) for text in side]))
        texts.append(list(number))
    with mine.working(encoding.storage) as work:
        matches, scores = mine.margins((texts[0], texts[1]), (rows[0], rows[1]), settings, encoding, work)
    scores[~np.isfinite(scores)] = np.nan
    if settings.margin == "ratio":
        left, right = map(torch.from_numpy, rows)
        scores[(around(matches, left, right) <= 0).numpy()] = np.nan
    return scores


def translations(
    folder: Path, ranked: Ranked, subsets: Sequence[Subset], translation: TranslationTest, test: CandidatePairs
) -> Iterator[translate.Scores]:
    """Trains a model on each subset, and scores it, one after the other."""
    recipe = translation.recipe
    most = subsets[-1].pairs
    start = translate.starting_model(recipe, [*ranked.source[:most], *ranked.target[:most]], folder / "start")
    for row in subsets:
        limit, count, place = row.limit, row.pairs, folder / f"top-{row.limit}"
        if not count:
            raise DataError(f"no pair fits in {plural(limit, 'token')}, so there is nothing to train on; ask for more")

        def tell(step: int, of: int, loss: float, limit: int = limit) -> None:
            translation.on_step(limit, step, of, loss)

        loss = translate.train(recipe, start, ranked.source[:count], ranked.target[:count], place, tell)
        scores = translate.score_model(recipe, place, test.source, test.target)
        yield {"limit": limit, "model": place.name, "loss": loss, **scores}
    shutil.rmtree(folder / "start", ignore_errors=True)
