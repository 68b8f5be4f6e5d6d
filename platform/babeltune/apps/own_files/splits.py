"""Train, dev and sealed test rows of a user's files: rows that share a text on either side never stand in two splits.

Whole connected components are drawn, over all files and languages together, as `data.split` does it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.apps.own_files.rows import TableRows
from babeltune.data.split import Block, hold_out
from babeltune.data.text_keys import sentence_keys, text_key
from babeltune.data.texts import Texts
from babeltune.errors import DataError, plural
from babeltune.schema.records import Split, TsvSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE = 0.1  # dev and the sealed test take this share of each language pair, at least `LEAST` and at most `MOST` rows
MOST = 1_000
LEAST = 20  # rows of a dev or test set below which a score tells nothing
LEAST_ROWS = 5 * LEAST
SEEDS = {"test": 1, "dev": 2}
"""Drawn in this order, each with its own seed, so that the same files give the same splits."""


@dataclass(frozen=True, kw_only=True)
class LanguageSet:
    """All rows of one set of languages, from whichever files."""

    texts: dict[str, list[str]]
    splits: dict[str, NDArray[np.bool_]]  # `train`, `dev` and `test` -> which rows

    @property
    def name(self) -> str:
        return "-".join(self.texts)

    def rows(self, split: str) -> dict[str, list[str]]:
        """Language -> the texts of a split."""
        chosen = np.flatnonzero(self.splits[split])
        return {language: [column[i] for i in chosen] for language, column in self.texts.items()}

    def size(self, split: str) -> int:
        return int(self.splits[split].sum())


def texts_by_languages(tables: Sequence[TableRows]) -> tuple[list[dict[str, list[str]]], int]:
    """The texts by set of languages, and how many rows were left out since an earlier file has them too."""
    groups: dict[frozenset[str], dict[str, list[str]]] = {}
    seen: dict[frozenset[str], set[tuple[str, ...]]] = {}
    repeated = 0
    for table in tables:
        languages = frozenset(table.languages)
        into = groups.setdefault(languages, {language: [] for language in table.languages})
        keys_seen = seen.setdefault(languages, set())
        for row in zip(*(table.texts[language] for language in into), strict=True):
            keys = tuple(map(text_key, row))
            if keys in keys_seen:
                repeated += 1
                continue
            keys_seen.add(keys)
            for language, text in zip(into, row, strict=True):
                into[language].append(text)
    return list(groups.values()), repeated


def large_enough(groups: Sequence[dict[str, list[str]]], notes: list[str]) -> list[dict[str, list[str]]]:
    """The groups of at least `LEAST_ROWS` rows; a note for each other one. Raises `DataError` if none is left."""
    sizes = {"-".join(texts): len(next(iter(texts.values()))) for texts in groups}
    rule = f"train, dev and a sealed test need at least {LEAST_ROWS:,}"
    few = {name: plural(size, "different row") for name, size in sizes.items() if size < LEAST_ROWS}
    small = [f"{name}: {rows}; {rule}" for name, rows in few.items()]
    if len(small) == len(groups):
        raise DataError(f"{'; '.join(small[:3])}: add text, or leave these files out")
    notes += [f"{words}: this pair was left out" for words in small]
    return [texts for texts in groups if sizes["-".join(texts)] >= LEAST_ROWS]


def split(groups: Sequence[dict[str, list[str]]]) -> list[LanguageSet]:
    """The splits of each group. Raises `DataError` for one whose rows nearly all share texts."""
    blocks = [pairs for number, texts in enumerate(groups) for pairs in _blocks(number, texts)]
    owner = [number for number, texts in enumerate(groups) for _ in range(len(texts) - 1)]
    held_out = [np.zeros(len(block.rows), bool) for block in blocks]
    chosen: dict[str, list[NDArray[np.bool_]]] = {}
    for name, seed in SEEDS.items():
        free = [block.keep(~mask) for block, mask in zip(blocks, held_out, strict=True)]
        try:
            parts = hold_out(free, Split(pairs=MOST), seed, share=SHARE, least=LEAST)
        except DataError as error:
            why = "nearly all rows share a text with one another, directly or through other rows"
            todo = "add text that repeats less, or leave out the file whose texts repeat"
            raise DataError(f"no row can be held out as {name}: {why}; {todo}") from error
        chosen[name] = []
        for block, mask, part in zip(free, held_out, parts, strict=True):
            whole = np.zeros(len(mask), bool)
            whole[block.rows[part]] = True
            chosen[name].append(whole)
            mask |= whole
    by_languages = list[LanguageSet]()
    for number, texts in enumerate(groups):
        first = owner.index(number)
        splits = {"train": ~held_out[first], "dev": chosen["dev"][first], "test": chosen["test"][first]}
        by_languages.append(LanguageSet(texts=texts, splits=splits))
    for group, name in itertools.product(by_languages, SEEDS):
        if group.size(name) < LEAST:
            held = f"only {plural(group.size(name), 'row')} can be held out as {name}"
            why = (
                f"since most rows share texts with one another; at least {LEAST} are needed: add text that repeats less"
            )
            raise DataError(f"{group.name}: {held}, {why}")
    return by_languages


def _blocks(number: int, texts: Mapping[str, list[str]]) -> list[Block]:
    """A block for the first language with each other one: a row's texts are joined through the first."""
    first, *others = texts
    anchors = sentence_keys(texts[first])
    every = np.arange(len(anchors))
    source = TsvSource(name=f"group {number}")
    return [
        Block(
            source=source,
            group=(f"{number} {first}", other),
            anchors=Texts.of(texts[first]),
            others=Texts.of(texts[other]),
            rows=every,
            keys=np.stack([anchors, sentence_keys(texts[other])], axis=1),
        )
        for other in others
    ]


def write(groups: Sequence[LanguageSet], folder: Path) -> None:
    """Writes each split as a TSV with a header, such as `train.fra-eng.tsv`; tabs and line breaks become blanks."""
    for group, name in itertools.product(groups, ("train", "dev", "test")):
        rows = group.rows(name)
        lines = ["\t".join(rows)]
        lines += ("\t".join(" ".join(text.split()) for text in row) for row in zip(*rows.values(), strict=True))
        (folder / f"{name}.{group.name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
