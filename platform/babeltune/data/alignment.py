"""Word-positioned samples: a word of a sentence and its translation in the other sentence, by place.

Chen et al. 2023 (ML-CTL) train on (sentence, word span) pairs. A word's translation is the one that occurs where it
does (`mutual`), or the one that a lexicon names. Each student's tokenizer then says which tokens they are."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.arrays import number_type
from babeltune.data.file_readers import MAX_LINE_BYTES
from babeltune.data.sources import Rows, read_source
from babeltune.data.store import Contents, build, digest_of_texts, key_of
from babeltune.data.stored_arrays import Ragged
from babeltune.data.thresholds import WORD_SCORES
from babeltune.data.tokens import bare_tokenizer
from babeltune.data.word_segmentation import PIECES, WordsOf, find_words, lower, pieces, token_spans, unspaced
from babeltune.errors import DataError
from babeltune.files import plain
from babeltune.schema.languages import same_variety
from babeltune.schema.records import MosesSource, Words

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast

    from babeltune.data.corpus import Corpus

TOGETHER = 2
"""A word and its translation share at least this many pairs: two words that occur but once share theirs by chance."""
COUNTED = 200_000  # occurrences are counted in at most this many pairs of a language pair, evenly spread
BLOCK = 1 << 20  # word pairs that are compared at a time

Span = tuple[int, int]


@dataclass(frozen=True)
class AlignedSide:
    """One side of some pairs: the distinct words of each sentence that may be aligned."""

    first: NDArray[np.int64]  # [pairs + 1] each sentence's first entry
    words: NDArray[np.int64]  # [entries] place in the vocabulary
    at: NDArray[np.int64]  # [entries] the word's first occurrence in `WordsOf`
    once: NDArray[np.bool_]  # [entries] whether it is the only one in its sentence

    @classmethod
    def of(cls, word_occurrences: WordsOf, texts: NDArray[np.int64]) -> AlignedSide:
        """The words of these texts, one text for each pair."""
        at, lengths = Ragged((np.arange(len(word_occurrences.words)), word_occurrences.first)).take(texts)
        pair = np.repeat(np.arange(len(texts)), lengths)
        keys = pair * len(word_occurrences.vocabulary) + word_occurrences.words[at]
        _, places, times = np.unique(keys, return_index=True, return_counts=True)
        first = np.searchsorted(pair[places], np.arange(len(texts) + 1))
        return cls(first, word_occurrences.words[at[places]], at[places], times == 1)

    def only(self, mask: NDArray[np.bool_]) -> AlignedSide:
        """Without the words of the vocabulary that are not wanted."""
        is_wanted = mask[self.words]
        first = np.concatenate([[0], np.cumsum(is_wanted)])[self.first]
        return AlignedSide(first, self.words[is_wanted], self.at[is_wanted], self.once[is_wanted])

    def every(self, step: int) -> AlignedSide:
        """Every `step`-th pair, from the first."""
        places, lengths = Ragged((np.arange(len(self.words)), self.first)).take(np.arange(0, len(self.first) - 1, step))
        first = np.concatenate([[0], np.cumsum(lengths)])
        return AlignedSide(first, self.words[places], self.at[places], self.once[places])


def word_pairs(
    a: AlignedSide, b: AlignedSide
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yields each combination of a word and a word of the sentence's translation, about `BLOCK` at a time. These are
    arrays of the pair, the entry in `a` and the entry in `b`."""
    widths = np.diff(b.first)
    many = np.diff(a.first) * widths
    for pairs in np.array_split(np.arange(len(many)), max(1, -(-int(many.sum()) // BLOCK))):
        pair = np.repeat(pairs, many[pairs])
        place = np.arange(len(pair)) - np.repeat(np.cumsum(many[pairs]) - many[pairs], many[pairs])
        yield pair, a.first[pair] + place // widths[pair], b.first[pair] + place % widths[pair]


def mutual(
    a: WordsOf, b: WordsOf, texts: NDArray[np.int64], content: tuple[NDArray[np.bool_], NDArray[np.bool_]], least: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """[samples, 3] pair and the two occurrences of words that are each other's nearest of their sentence pair, and
    [samples, 2] their scores, as `WORD_SCORES` has them.

    Near is a high cosine of the words' occurrences over the pairs: those with both, over the root of those with the one
    times those with the other. Ties are left out, and so are words that their sentence has twice, though these keep
    others from taking their place. `texts` [pairs, 2] are rows of `a` and `b`; `content` says which words take part."""
    step = max(1, -(-len(texts) // COUNTED))
    x, y = (AlignedSide.of(side, texts[:, n]).only(content[n]) for n, side in enumerate((a, b)))
    in_x, in_y = (np.bincount(s.every(step).words, minlength=len(c)) for s, c in zip((x, y), content, strict=True))
    x, y = x.only(in_x >= TOGETHER), y.only(in_y >= TOGETHER)
    size = len(b.vocabulary)
    some_x, some_y = x.every(step), y.every(step)
    keys = np.concatenate([some_x.words[i] * size + some_y.words[j] for _, i, j in word_pairs(some_x, some_y)])
    keys.sort()
    edges = np.flatnonzero(np.diff(keys, prepend=-1))
    keys, together = np.append(keys[edges], -1), np.append(np.diff(edges, append=len(keys)), 0)
    chosen, scores = [np.empty((0, 3), np.int64)], [np.empty((0, 2), np.float32)]
    for pair, i, j in word_pairs(x, y):
        key = x.words[i] * size + y.words[j]
        order = key.argsort()
        place = np.empty_like(order)
        place[order] = np.searchsorted(keys[:-1], key[order])  # in order, for the sake of the cache
        both = np.where(keys[place] == key, together[place], 0)
        cosine = np.where(both >= TOGETHER, both / np.sqrt(in_x[x.words[i]] * in_y[y.words[j]]), 0)
        best = (cosine >= least) & (cosine > 0) & alone_at_top(cosine, i) & alone_at_top(cosine, j)
        best &= x.once[i] & y.once[j]
        chosen.append(np.stack([pair[best], x.at[i[best]], y.at[j[best]]], axis=1))
        scores.append(np.stack([cosine[best], step * both[best]], axis=1).astype(np.float32))
    return np.concatenate(chosen), np.concatenate(scores)


def alone_at_top(values: NDArray[np.float64], of: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which values are greater than all others with the same `of`."""
    if not len(of):
        return np.zeros(0, bool)
    of = of - of.min()
    most = np.zeros(of.max() + 1)
    np.maximum.at(most, of, values)
    top = values == most[of]
    alone: NDArray[np.bool_] = top & (np.bincount(of[top], minlength=len(most))[of] == 1)
    return alone


def aligned_terms(
    hits: tuple[Sequence[Mapping[str, Span]], Sequence[Mapping[str, Span]]],
    texts: NDArray[np.int64],
    terms: Mapping[str, Iterable[str]],
) -> Iterator[tuple[int, ...]]:
    """Pair and both spans of every term and its translation that are each once in their sentence."""
    for pair, (row, other) in enumerate(texts.tolist()):
        left, right = hits[0][row], hits[1][other]
        spans = {(*left[term], *right[into]) for term in left for into in terms[term] if into in right}
        yield from ((pair, *four) for four in sorted(spans))


def once(words: WordsOf, texts: Sequence[str], terms: Collection[str]) -> list[dict[str, Span]]:
    """Of each text the terms that it has exactly once, and where; a term begins and ends where words do."""
    longest = max(map(len, terms), default=0)
    hits: list[dict[str, Span]] = []
    for row, text in enumerate(texts):
        spans = words.spans[words.first[row] : words.first[row + 1]].tolist()
        whole, places = lower(text), dict[str, list[Span]]()
        for number, (start, _) in enumerate(spans):
            for _, end in spans[number:]:
                if end - start > longest:
                    break
                if whole[start:end] in terms:
                    places.setdefault(whole[start:end], []).append((start, end))
        hits.append({term: spans[0] for term, spans in places.items() if len(spans) == 1})
    return hits


def terms_of(texts: Sequence[str]) -> list[str]:
    """Each text in lower case from its first word to its last; empty if it has none."""
    words = find_words(texts)
    ends = zip(words.first[:-1].tolist(), words.first[1:].tolist(), texts, strict=True)
    return [lower(t)[words.spans[i, 0] : words.spans[j - 1, 1]] if i < j else "" for i, j, t in ends]


# --- A corpus ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Language:
    """The training texts of one language and their words."""

    ids: NDArray[np.int64]  # text ids, in order
    texts: list[str]
    occurrences: WordsOf
    content: NDArray[np.bool_]


def word_samples(
    corpus: Corpus, settings: Words, root: Path, stores: Path, seed: int, *, longest: int = MAX_LINE_BYTES
) -> tuple[NDArray[np.integer], NDArray[np.float32]]:
    """[samples, 5] pair, first character and end of a word, the same of its translation; ordered by pair. And
    [samples, 2] their scores, as `WORD_SCORES` has them.

    Lexicons lie under `root`, and a line of theirs has at most `longest` bytes. Tokenizers for languages without blanks
    are trained into `stores`."""
    lexicons = [read_source(source, root, others={}, longest=longest) for source in settings.lexicon]
    languages = np.array(corpus.languages)[corpus.pairs]
    lists = [(code, set(map(lower, rows.columns[code]))) for code, rows in stop_lists(settings, root, longest)]
    by_name = {}
    for name in np.unique(languages):
        listed = [words for code, words in lists if same_variety(code, name)]
        stop_words = set().union(*listed) if listed else settings.stop_words
        by_name[name] = language(corpus, corpus.pairs[languages == name], stop_words, stores, seed)
    samples, scores = [np.empty((0, 5), np.int64)], [np.empty((0, 2), np.float32)]
    for group in np.unique(corpus.pair_groups):
        pairs = np.flatnonzero(corpus.pair_groups == group)
        a, b = (by_name[name] for name in languages[pairs[0]])
        texts = np.stack([np.searchsorted(side.ids, corpus.pairs[pairs, n]) for n, side in enumerate((a, b))], axis=1)
        if settings.align == "mutual":
            chosen, scored = mutual(a.occurrences, b.occurrences, texts, (a.content, b.content), settings.least)
            pair, i, j = chosen.T
            word_pairs = np.concatenate([pair[:, None], a.occurrences.spans[i], b.occurrences.spans[j]], axis=1)
        else:
            terms = lexicon_of(lexicons, languages[pairs[0]].tolist(), (a, b))
            hits = once(a.occurrences, a.texts, terms), once(b.occurrences, b.texts, set().union(*terms.values()))
            word_pairs = np.array(list(aligned_terms(hits, texts, terms)), np.int64).reshape(-1, 5)
            scored = np.full((len(word_pairs), 2), np.inf, np.float32)
        word_pairs[:, 0] = pairs[word_pairs[:, 0]]
        samples.append(word_pairs)
        scores.append(scored)
    together = np.concatenate(samples)
    order = np.lexsort(together.T[::-1])
    return together[order].astype(number_type(len(corpus.pairs))), np.concatenate(scores)[order]


def stop_lists(settings: Words, root: Path, longest: int) -> list[tuple[str, Rows]]:
    """The files of stop words that lie under `root`, with their languages."""
    sources = [(code, MosesSource(name="stop_list", paths={code: path})) for code, path in settings.stop_list.items()]
    return [(code, read_source(source, root, others={}, longest=longest)) for code, source in sources]


def language(
    corpus: Corpus, ids: NDArray[np.integer], stop_words: int | Container[str], stores: Path, seed: int
) -> Language:
    """These texts of one language and their words."""
    unique = np.unique(ids).astype(np.int64)
    texts = corpus.texts.at(unique)[:]
    words = find_words(texts, pieces(stores, texts, seed) if unspaced(texts) else None)
    return Language(unique, texts, words, words.content(stop_words))


def lexicon_of(lexicons: Sequence[Rows], names: Sequence[str], sides: Sequence[Language]) -> dict[str, set[str]]:
    """Every term of the first language and its translations into the second; stop words are none."""
    stop = [{w for w, c in zip(s.occurrences.vocabulary, s.content, strict=True) if not c} | {""} for s in sides]
    terms: dict[str, set[str]] = {}
    for rows in lexicons:
        if set(names) <= set(rows.columns):
            for term, into in zip(*(terms_of(rows.columns[name]) for name in names), strict=True):
                if term not in stop[0] and into not in stop[1]:
                    terms.setdefault(term, set()).add(into)
    return terms


def check_words(samples: NDArray[np.integer], pairs: int, settings: Words) -> None:
    """Raises `DataError` if fewer than two pairs have a sample."""
    some = len(np.unique(samples[:, 0]))
    if some < 2:
        raise DataError(
            f"{some} of {pairs:,} training pairs have a word with its translation, so there is nothing to learn from "
            f"words; lower data.words.stop_words ({settings.stop_words}) or data.words.least ({settings.least:g}), "
            "give more text, or a lexicon that fits it"
        )


def word_counts(samples: NDArray[np.integer], pairs: int) -> dict[str, int]:
    """How many samples there are, and how many pairs have one or none."""
    some = len(np.unique(samples[:, 0]))
    return {"samples": len(samples), "pairs": some, "pairs without": pairs - some}


def build_words(
    corpus: Corpus, settings: Words, root: Path, stores: Path, seed: int, *, longest: int = MAX_LINE_BYTES
) -> Path:
    """The folder of `words.npy` and `WORD_SCORES`, what `word_samples` finds; its facts are their `word_counts`."""
    description = {
        "texts": digest_of_texts(itertools.chain(corpus.texts, corpus.languages)),
        "pairs": [hashlib.sha256(array.tobytes()).hexdigest() for array in (corpus.pairs, corpus.pair_groups)],
        "settings": plain(settings),
        "lexicons": [read_source(source, root, others={}, longest=longest).digest for source in settings.lexicon],
        "stop lists": [rows.digest for _, rows in stop_lists(settings, root, longest)],
        "seed": seed,
        "rules": [PIECES, TOGETHER, COUNTED, WORD_SCORES],
    }

    def write(folder: Path) -> Contents:
        samples, scores = word_samples(corpus, settings, root, stores, seed, longest=longest)
        check_words(samples, len(corpus.pairs), settings)
        np.save(folder / "words.npy", samples)
        np.save(folder / WORD_SCORES, scores)
        return Contents(facts=dict(word_counts(samples, len(corpus.pairs))))

    return build(stores, "words", description, write)


def build_spans(
    words: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, prompt: str, max_tokens: int, stores: Path
) -> Path:
    """The folder of `WORD_SCORES` and `spans.npy` [samples, 5]: pair, first token and end of a word, the same of its
    translation.

    Samples with a word that is cut off at `max_tokens` are left out; the fact `cut off` counts them."""
    backend = bare_tokenizer(tokenizer)
    description = {
        "words": words.name,
        "tokenizer": key_of({"json": backend.to_str()}),
        "prompt": prompt,
        "max": max_tokens,
    }
    backend.enable_truncation(max_tokens)

    def write(folder: Path) -> Contents:
        samples = np.load(words / "words.npy")
        ids = corpus.pairs[samples[:, 0]].reshape(-1).astype(np.int64)
        tokens = token_spans(corpus.texts, ids, samples[:, 1:].reshape(-1, 2), backend, prompt).reshape(-1, 4)
        whole = (tokens >= 0).all(axis=1)
        np.save(folder / "spans.npy", np.concatenate([samples[:, :1], tokens], axis=1)[whole].astype(samples.dtype))
        np.save(folder / WORD_SCORES, np.load(words / WORD_SCORES)[whole])
        return Contents(facts={"samples": int(whole.sum()), "cut off": int((~whole).sum())})

    return build(stores, "spans", description, write)
