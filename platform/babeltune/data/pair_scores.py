"""Scores of each training pair, by which trials leave pairs out: one for each threshold of `data.sampling`.

They are computed once, when a sweep is prepared. So any number of thresholds costs one pass over the text, and a margin
no encoding besides that of the teacher's store."""

from __future__ import annotations

import heapq
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rensa import RMinHash, RMinHashLSH  # type: ignore[import-untyped]

from babeltune.data.arrays import parts, zeros
from babeltune.data.contamination import BANDS, BLOCK, ROWS, THRESHOLD, jaccard, signatures
from babeltune.data.language_id import leads
from babeltune.data.negatives import pools
from babeltune.data.thresholds import MARGIN, MOST_PAIRS, score_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.corpus import Corpus
    from babeltune.stages import Count

    Vectors = Callable[[NDArray[np.integer]], NDArray[np.generic]]
    """The teacher's vectors [texts, dim] of text ids."""

NEIGHBOURS = 4  # nearest neighbours of a margin, as in Artetxe and Schwenk 2019
POOL = 16_384
"""Pairs among which the neighbours are searched; a larger language pair is cut into random pools of about this size."""
TILE = 1 << 23  # cosines held at a time
COMPARED = 20
"""Earlier pairs with which a pair is compared: the nearest by their signatures. Of text from a template, each has
thousands that are alike."""
RULES = (NEIGHBOURS, POOL, COMPARED, BANDS, ROWS, THRESHOLD, version("py3langid"))
"""Numbers that scores depend on: others make them anew."""


def write_scores(folder: Path, names: Sequence[str], corpus: Corpus, vectors: Vectors, progress: Count) -> None:
    """Writes [pairs] the scores for each of these thresholds."""
    for number, name in enumerate(names):
        progress(number, len(names))
        scored = margins(corpus.pairs, corpus.pair_groups, vectors) if name == MARGIN else SCORES[name](corpus)
        np.save(score_file(folder, name), scored)


def margins(pairs: NDArray[np.integer], groups: NDArray[np.integer], vectors: Vectors) -> NDArray[np.float32]:
    """[pairs] the ratio margin: the cosine of a pair over the mean cosine of both texts to their `NEIGHBOURS` nearest
    texts of the other side (Artetxe and Schwenk 2019, section 3.2). -inf if a ratio means nothing, as of a zero
    vector; inf for text of one language alone."""
    result: NDArray[np.float32] = zeros(len(pairs), np.float32)
    for members in pools(pairs[:, 0], groups, POOL, np.random.default_rng(0)):
        ids, places = zip(*(np.unique(pairs[members, side], return_inverse=True) for side in (0, 1)), strict=True)
        left, right = (torch.nn.functional.normalize(torch.from_numpy(vectors(side)).float(), dim=1) for side in ids)
        around = (_nearness(left, right)[places[0]] + _nearness(right, left)[places[1]]) / 2
        cosines = torch.cat(
            [(left[places[0][part]] * right[places[1][part]]).sum(1) for part in parts(len(members), POOL)]
        )
        result[members] = torch.where(around > 0, cosines / around, -torch.inf).numpy()
    result[pairs[:, 0] == pairs[:, 1]] = np.inf
    return result


def _nearness(queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """[queries] the mean cosine of each to its nearest candidates."""
    size = max(1, TILE // len(candidates))
    nearest = (queries[part] @ candidates.T for part in parts(len(queries), size))
    return torch.cat([cosines.topk(min(NEIGHBOURS, len(candidates))).values.mean(1) for cosines in nearest])


def language_confidence(corpus: Corpus) -> NDArray[np.float32]:
    """[pairs] how sure py3langid is that both texts are in their languages: the lower one of the two texts."""
    sides = [zeros(len(corpus.pairs), np.float32) for _ in range(2)]
    for group, names in enumerate(corpus.group_languages):
        members = np.flatnonzero(corpus.pair_groups == group)
        for side, language in enumerate(names):
            lead = leads(corpus.texts.at(corpus.pairs[members, side]), language)
            sides[side][members] = 1 / (1 + np.exp(-np.clip(lead, -80, 80)))
    return np.minimum(*sides)


def length_ratios(corpus: Corpus) -> NDArray[np.float32]:
    """[pairs] the characters of the shorter text over those of the longer one, once the median ratio of the language
    pair is divided out."""
    logs = np.log(np.maximum(1, _characters(corpus)))
    differences: NDArray[np.float32] = (logs[:, 0] - logs[:, 1]).astype(np.float32)
    for group in np.unique(corpus.pair_groups):
        members = corpus.pair_groups == group
        differences[members] -= np.median(differences[members])
    return np.exp(-np.abs(differences))


class Symbols(dict[int, int | None]):
    """A translation table that deletes digits, punctuation and other symbols."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "NPS" else code
        return self[code]


SYMBOLS = Symbols()


def symbols(text: str) -> float:
    """The share of symbols among the characters of a text that are no blanks."""
    characters = "".join(text.split())
    return 1 - len(characters.translate(SYMBOLS)) / len(characters) if characters else 0.0


def distinct_words(text: str) -> float:
    """The share of distinct words among the words of a text, whatever their case."""
    words = text.lower().split()
    return len(set(words)) / max(1, len(words))


def _by_text(score: Callable[[str], float], corpus: Corpus) -> NDArray[np.float32]:
    """[pairs, 2] the scores of both texts."""
    scores: NDArray[np.float32] = np.fromiter(map(score, corpus.texts), np.float32, len(corpus.texts))[corpus.pairs]
    return scores


def similarities(corpus: Corpus) -> NDArray[np.float32]:
    """[pairs] the greatest Jaccard similarity to an earlier pair of the same languages: of the trigrams of both texts.
    0 if no earlier pair shares a band of signatures."""
    result: NDArray[np.float32] = zeros(len(corpus.pairs), np.float32)
    for group in np.unique(corpus.pair_groups):
        members = np.flatnonzero(corpus.pair_groups == group)
        sides = (corpus.texts.at(corpus.pairs[members, side]) for side in (0, 1))
        texts = [f"{left} {right}" for left, right in zip(*sides, strict=True)]
        bands, signed = RMinHashLSH(THRESHOLD, BANDS * ROWS, BANDS), list[RMinHash]()
        for part in parts(len(texts), BLOCK):
            signed += signatures(texts[part])
            bands.insert_pairs(enumerate(signed[part], part.start))
            for place, others in enumerate(bands.query_all(signed[part]), part.start):
                earlier = [other for other in others if other < place]
                if len(earlier) > COMPARED:
                    nearness = {other: signed[place].jaccard(signed[other]) for other in earlier}
                    earlier = heapq.nlargest(COMPARED, earlier, key=nearness.__getitem__)
                result[members[place]] = max((jaccard(texts[place], texts[other]) for other in earlier), default=0)
    return result


def ranks(corpus: Corpus) -> NDArray[np.int64]:
    """[pairs] the place of each pair in a random order of those of its languages, from 1."""
    result: NDArray[np.int64] = zeros(len(corpus.pairs), np.int64)
    for group in np.unique(corpus.pair_groups):
        members = np.flatnonzero(corpus.pair_groups == group)
        result[members] = 1 + np.random.default_rng(0).permutation(len(members))
    return result


def _characters(corpus: Corpus) -> NDArray[np.int64]:
    """[pairs, 2] the characters of both texts."""
    characters: NDArray[np.int64] = corpus.texts.lengths()[corpus.pairs]
    return characters


SCORES: Mapping[str, Callable[[Corpus], NDArray[np.generic]]] = {
    "least_language": language_confidence,
    "least_length_ratio": length_ratios,
    "least_characters": lambda corpus: _characters(corpus).min(axis=1),
    "most_characters": lambda corpus: _characters(corpus).max(axis=1),
    "most_symbols": lambda corpus: _by_text(symbols, corpus).max(axis=1),
    "least_distinct_words": lambda corpus: _by_text(distinct_words, corpus).min(axis=1),
    "most_similarity": similarities,
    MOST_PAIRS: ranks,
}
