"""Synthetic pairs: English sentences with a translation word by word, by a translator that is trained on the few pairs.

The translator is IBM model 1 (Brown et al. 1993): each word of the other language comes from one English word of its
sentence, or from none, at a probability that expectation maximization finds. Words are drawn from these probabilities.
A static student reads a sentence as a bag of tokens, so that the order of words costs it nothing."""

import gzip
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

WORD = re.compile(r"\w+(?:['’-]\w+)*")
ROUNDS = 8  # rounds of expectation maximization
SENTENCES = 5000  # English sentences that are translated into each language
LONGEST = 40  # words of a sentence that is translated
NEWS = ("deu", "fra", "rus", "spa")  # languages whose news in `wmt_news` give English sentences
PAIRS = {
    "hau": ("tico19/hau-eng.tsv.gz",),
    "kin": ("tico19/kin-eng.tsv.gz",),
    "swh": ("tico19/swa-eng.tsv.gz", "bible/swh-eng.tsv.gz"),
    "zul": ("tico19/zul-eng.tsv.gz", "bible/zul-eng.tsv.gz"),
}
"""Language -> the files that its translator learns from; their columns are id, the language, English."""


@dataclass(frozen=True)
class Translator:
    """English words, and for each the other language's words with their probabilities."""

    words: dict[str, tuple[list[str], list[float]]]

    def translate(self, sentence: str, draw: random.Random) -> str:
        """Each word in its place; what was never seen, such as a name, stays as it is."""
        choices = [self.words.get(word.lower(), ([word], [1.0])) for word in WORD.findall(sentence)]
        return " ".join(draw.choices(*choice)[0] for choice in choices)


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def train(pairs: Sequence[tuple[str, str]], rounds: int = ROUNDS) -> Translator:
    """Learns from pairs of a sentence and its English translation."""
    others, english = ([_words(text) for text in side] for side in zip(*pairs, strict=True))
    other_id = {word: i for i, word in enumerate(dict.fromkeys(word for one in others for word in one))}
    english_id = {word: i for i, word in enumerate(dict.fromkeys(["", *(word for one in english for word in one)]))}
    cells, places, count = [], [], 0
    for other, its in zip(others, english, strict=True):
        sources = np.array([english_id[word] for word in ["", *its]])
        targets = np.array([other_id[word] for word in other], dtype=np.int64)
        cells.append((sources[None, :] * len(other_id) + targets[:, None]).ravel())
        places.append(np.repeat(np.arange(count, count + len(targets)), len(sources)))
        count += len(targets)
    distinct, cell = np.unique(np.concatenate(cells), return_inverse=True)
    place = np.concatenate(places)
    source = distinct // len(other_id)
    share = np.ones(len(distinct))
    for _ in range(rounds):
        weight = share[cell]
        expected = np.bincount(cell, weight / np.bincount(place, weight)[place])
        share = expected / np.bincount(source, expected)[source]
    names, english_names = list(other_id), list(english_id)
    words: dict[str, tuple[list[str], list[float]]] = {}
    for number, probability in zip(distinct.tolist(), share.tolist(), strict=True):
        choices, weights = words.setdefault(english_names[number // len(names)], ([], []))
        choices.append(names[number % len(names)])
        weights.append(probability)
    return Translator(words)


def rows(path: Path) -> Iterator[list[str]]:
    """The rows of a file of pairs, without its header."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n").split("\t") for line in islice(file, 1, None))


def news(data: Path) -> list[str]:
    """English sentences of news, each once."""
    texts = dict.fromkeys(row[2] for language in NEWS for row in rows(data / "wmt_news" / f"{language}-eng.tsv.gz"))
    return [text for text in texts if len(WORD.findall(text)) <= LONGEST]


def write_translations(data: Path, folder: Path) -> None:
    """Writes `LANGUAGE-eng.tsv` for each language, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = news(data)
    for language, files in PAIRS.items():
        target = folder / f"{language}-eng.tsv"
        if target.exists():
            continue
        translator = train([(row[1], row[2]) for file in files for row in rows(data / file)])
        draw = random.Random(zlib.crc32(language.encode()))
        originals = draw.sample(sentences, SENTENCES)
        lines = [f"{i}\t{translator.translate(text, draw)}\t{text}\n" for i, text in enumerate(originals)]
        part = target.with_suffix(".part")
        part.write_text("".join([f"id\t{language}\teng\n", *lines]), encoding="utf-8")
        part.replace(target)
