"""Which pairs and words a trial leaves out: the thresholds of `data.sampling`, by scores that `pair_scores` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from babeltune.data.arrays import rows_at
from babeltune.schema.records import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Prepared

    ScoresOf = Callable[[str], NDArray[Any]]
    """The scores [pairs] for a threshold."""

WORD_SCORES = "word_scores.npy"
"""The file beside `spans.npy` and `words.npy` [samples, 2]: the cosine of each word and its translation, and about how
many pairs they share. Both are inf for words of a lexicon."""
MARGIN, MOST_PAIRS = "least_margin", "most_pairs"
THRESHOLDS = (
    *(MARGIN, "least_language", "least_length_ratio", "least_characters", "most_characters", "most_symbols"),
    *("least_distinct_words", "most_similarity", MOST_PAIRS),
)
"""Fields of `Sampling`. The first word says whether a score must reach the threshold or may not exceed it. The number
of pairs comes last: it counts those that the others leave."""
WORD_THRESHOLDS = ("least_word_cosine", "least_word_pairs")  # thresholds of words, in the order of a word's scores


def thresholds(sampling: Sampling, names: Sequence[str] = THRESHOLDS) -> dict[str, float]:
    """The thresholds that are set."""
    return {name: getattr(sampling, name) for name in names if getattr(sampling, name) != getattr(Sampling, name)}


def without_thresholds(sampling: Sampling) -> Sampling:
    """The same for all pairs and words."""
    names = (*THRESHOLDS, *WORD_THRESHOLDS)
    return replace(sampling, **{name: getattr(Sampling, name) for name in names})


def passing_words(words: Path, sampling: Sampling) -> NDArray[np.integer]:
    """The rows of `spans.npy` of these words that no threshold leaves out."""
    samples: NDArray[np.integer] = np.load(words, mmap_mode="r")
    if thresholds(sampling, WORD_THRESHOLDS):
        least = [getattr(sampling, name) for name in WORD_THRESHOLDS]
        samples = samples[(np.load(words.parent / WORD_SCORES, mmap_mode="r") >= least).all(axis=1)]
    return samples


def passing(prepared: Prepared, sampling: Sampling, only: NDArray[np.int64] | None = None) -> NDArray[np.int64] | None:
    """The pairs, of these, that no threshold leaves out; None if all take part."""
    folder = Path(prepared.folder)
    return within_limits(
        lambda name: np.load(score_file(folder, name), mmap_mode="r"),
        prepared.pair_groups(),
        thresholds(sampling),
        only,
    )


def within_limits(
    scores_of: ScoresOf, groups: NDArray[np.integer], limits: Mapping[str, float], only: NDArray[np.int64] | None = None
) -> NDArray[np.int64] | None:
    """The pairs, of these, that none of the limits leaves out; None if all take part. groups: [pairs] the language pair
    of each."""
    for name, threshold in limits.items():
        scores = scores_of(name)
        some = scores if only is None else rows_at(scores, only)
        if name == MOST_PAIRS:
            passed = _first_of_each(some, groups if only is None else rows_at(groups, only), int(threshold))
        else:
            passed = np.flatnonzero(some >= threshold if name.startswith("least") else some <= threshold)
        only = passed if only is None else only[passed]
    return only


def _first_of_each(ranks: NDArray[np.integer], groups: NDArray[np.integer], most: int) -> NDArray[np.int64]:
    """The places of the `most` least ranks of each group, ascending."""
    members = (np.flatnonzero(groups == group) for group in np.unique(groups))
    first = [some[np.argpartition(ranks[some], most - 1)[:most]] if len(some) > most else some for some in members]
    return np.sort(np.concatenate([np.empty(0, np.int64), *first]))


def score_file(folder: Path, name: str) -> Path:
    """The scores of the pairs for a threshold."""
    return folder / f"score-{name}.npy"


def of_passing_pairs(
    negatives: NDArray[np.integer], pairs: NDArray[np.integer], passed: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Mined negatives [pairs, k], with -1 for those that are targets of left-out pairs alone."""
    return np.where(np.isin(negatives, np.unique(pairs[passed, 1])), negatives, -1)
