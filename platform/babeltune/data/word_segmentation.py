"""Words by place: where they are in a text, and which tokens of a student they are.

Words are found by character offsets, so that a word inside another one never matches. Where a script is written without
blanks, a word is a piece of a tokenizer trained on that language's text, cut where the script changes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from babeltune.data.tokens import build_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPACED, JOINER, SCRIPTS = 1, 2, 3
"""The roles of a character: it is a part of a word between blanks, or it may join two such parts. From 3 on it
belongs to a script that is written without blanks."""
JOINERS = "'’\u200c\u200d"
UNSPACED: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),  # Han
    ((0x3041, 0x309F),),  # Hiragana
    ((0x30A0, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),  # Katakana
    ((0x0E00, 0x0E7F),),  # Thai
    ((0x0E80, 0x0EFF),),  # Lao
    ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),  # Burmese
    ((0x1780, 0x17FF),),  # Khmer
)
PIECES = 32_000  # vocabulary of the tokenizer whose pieces are the words of a language that is written without blanks
CHUNK = 16_384
APART = 1 << 32  # keeps the characters of one text from those of the next

Cut = Callable[[Sequence[str]], Iterator[list[int]]]
"""Gives the characters of each text at which a piece of a tokenizer starts."""


@dataclass(frozen=True)
class WordsOf:
    """The words of some texts of one language, one text after another."""

    first: NDArray[np.int64]  # [texts + 1] each text's first word
    words: NDArray[np.int64]  # [words] their places in the vocabulary
    spans: NDArray[np.int32]  # [words, 2] first character and end
    vocabulary: list[str]  # every word once, in lower case

    def content(self, stop_words: int | Container[str]) -> NDArray[np.bool_]:
        """[vocabulary] which are words to learn: with a letter, and not among the `stop_words`. These are listed in
        lower case, or a number of the most frequent words."""
        letters = np.array([any(map(str.isalpha, word)) for word in self.vocabulary], bool)
        if not isinstance(stop_words, int):
            letters[[word in stop_words for word in self.vocabulary]] = False
            return letters
        letters[np.argsort(-np.bincount(self.words, minlength=len(letters)), kind="stable")[:stop_words]] = False
        return letters


@cache
def kinds() -> NDArray[np.uint8]:
    """[code points] what each character is to a word; 0 for what separates words."""
    table = np.zeros(0x110000, np.uint8)
    # Letters, their marks and digits make words, so that neither `H` is a word in `H1N1` nor a vowel sign an end.
    table[: 1 << 18] = [unicodedata.category(chr(point))[0] in "LMN" for point in range(1 << 18)]
    for number, ranges in enumerate(UNSPACED):
        for low, high in ranges:
            table[low : high + 1] *= SCRIPTS + number
    table[0xE0100:0xE01F0] = SCRIPTS  # variants of Han characters
    table[[ord(character) for character in JOINERS]] = JOINER
    return table


def find_words(texts: Sequence[str], cut: Cut | None = None) -> WordsOf:
    """The words of texts of one language; `cut` divides runs of a script without blanks, which else are one word."""
    numbers: dict[str, int] = {}
    words, spans, counts = [np.empty(0, np.int64)], [np.empty((0, 2), np.int32)], [np.zeros(1, np.int64)]
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        begins = np.cumsum([0, *(len(text) + 1 for text in chunk)])
        text = "\n".join(map(lower, chunk))
        edges = word_edges(text, begins, cut and cut(chunk))
        which = np.searchsorted(begins, edges[:, 0], side="right") - 1
        ids = (numbers.setdefault(text[a:b], len(numbers)) for a, b in zip(*edges.T.tolist(), strict=True))
        words.append(np.fromiter(ids, np.int64, len(edges)))
        spans.append((edges - begins[which, None]).astype(np.int32))
        counts.append(np.bincount(which, minlength=len(chunk)))
    return WordsOf(np.cumsum(np.concatenate(counts)), np.concatenate(words), np.concatenate(spans), list(numbers))


def lower(text: str) -> str:
    """The text in lower case, character by character if that would change its length."""
    whole = text.lower()
    return whole if len(whole) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def word_edges(text: str, begins: NDArray[np.int64], cuts: Iterable[list[int]] | None) -> NDArray[np.int64]:
    """[words, 2] first character and end of every word of texts that lie `begins` [texts + 1] characters apart."""
    kind = np.zeros(len(text) + 2, np.uint8)  # nothing before and after
    kind[1:-1] = kinds()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]
    joins = np.flatnonzero(kind == JOINER)
    kind[joins] = (kind[joins - 1] == SPACED) & (kind[joins + 1] == SPACED)
    edge = kind[1:] != kind[:-1]
    for begin, places in zip(begins.tolist(), cuts or (), strict=False):
        at = np.array(places, np.int64) + begin
        edge[at] |= kind[at + 1] >= SCRIPTS
    starts = np.flatnonzero(edge & (kind[1:] > 0))
    ends = np.flatnonzero(edge & (kind[:-1] > 0))
    return np.stack([starts, ends], axis=1)


def unspaced(texts: Sequence[str]) -> bool:
    """Whether at least half of the texts hold a script that is written without blanks."""
    some = texts[:: max(1, len(texts) // 1000)]
    points = (np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4") for text in some)
    return 2 * sum(bool((kinds()[p] >= SCRIPTS).any()) for p in points) >= max(1, len(some))


def pieces(root: Path, texts: Sequence[str], seed: int) -> Cut:
    """Where the pieces start that a tokenizer, trained on these texts into a store, makes of texts."""
    tokenizer = Tokenizer.from_file(str(build_tokenizer(root, texts, PIECES, seed=seed) / "tokenizer.json"))

    def cut(chunk: Sequence[str]) -> Iterator[list[int]]:
        for encoding in tokenizer.encode_batch(list(chunk), add_special_tokens=False):
            yield [start for start, end in encoding.offsets if start < end]

    return cut


def token_spans(
    texts: Sequence[str], ids: NDArray[np.int64], spans: NDArray[np.int32], tokenizer: Tokenizer, prompt: str
) -> NDArray[np.int64]:
    """[spans, 2] the first token and the end of characters of the texts `ids` [spans]; -1 if they are cut off.

    A token that reaches into a word belongs to it. Tokens are counted with the prompt's and the special ones."""
    result = np.full((len(ids), 2), -1)
    order = np.argsort(ids, kind="stable")
    distinct, first = np.unique(ids[order], return_index=True)
    first = np.append(first, len(order))
    for start in range(0, len(distinct), CHUNK):
        chunk = distinct[start : start + CHUNK]
        encodings = tokenizer.encode_batch([prompt + texts[i] for i in chunk])
        lengths = np.array([len(encoding) for encoding in encodings])
        offsets = np.array([pair for encoding in encodings for pair in encoding.offsets], np.int64).reshape(-1, 2)
        text = np.repeat(np.arange(len(chunk)), lengths)
        token = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        real = offsets[:, 0] < offsets[:, 1]
        token, places = token[real], offsets[real] + text[real, None] * APART
        members = order[first[start] : first[start + len(chunk)]]
        sought = spans[members] + len(prompt) + np.searchsorted(chunk, ids[members])[:, None] * APART
        begin = np.searchsorted(places[:, 1], sought[:, 0], side="right")
        last = np.searchsorted(places[:, 0], sought[:, 1], side="left") - 1
        whole = (begin <= last) & (places[last, 1] >= sought[:, 1])
        result[members[whole]] = np.stack([token[begin[whole]], token[last[whole]] + 1], axis=1)
    return result
