"""Cleans the sources of a sweep into one corpus: numbered texts, pairs of them, and dev tasks.

The steps, in order and each counted per source: rows are read, long texts, pairs with equal sides and repeated pairs
go, then every pair that shares a sentence with a dev or test set, then what is above a source's cap; last, some
components of pairs that share sentences are held out. Sealed test texts are read for the comparison only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from babeltune.errors import DataError
from babeltune.prepared import EvalTask
from babeltune.records import Data, Source, Split, Task
from babeltune.sources import Rows, language_pairs, read_scored, read_source, text_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELDOUT = "heldout"
HELDOUT_SHARE = 0.2
"""A split takes at most this share of a language pair, so that a small one keeps its training text."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training pairs and dev tasks in text ids; an id numbers `texts`, one for every distinct (language, text)."""

    texts: list[str]
    languages: list[str]
    """[texts] language code of each text."""
    pairs: NDArray[np.int32]
    """[pairs, 2] text ids, the anchor's first."""
    groups: tuple[str, ...]
    """Language pairs `anchor-other`, by first appearance."""
    pair_groups: NDArray[np.int16]
    """[pairs] index into `groups`."""
    pair_sources: NDArray[np.int16]
    """[pairs] index into `source_names`."""
    source_names: tuple[str, ...]
    weights: NDArray[np.float32]
    """[pairs] weight of the pair's source."""
    tasks: tuple[EvalTask, ...]
    """The dev sets, and `heldout` where the data are split."""
    counts: dict[str, dict[str, int]]
    """Per training source: `rows` read, `dropped: <reason>`, and pairs left after each step (`pairs`,
    `max_characters`, `sides_differ`, `distinct`, `no_overlap`, `cap`, `train`), and pairs in `heldout`."""
    overlap: dict[str, dict[str, int]]
    """Per training source, the pairs removed for each eval set `dev/<task>` or `test/<task>`; a pair may count twice."""
    digests: dict[str, str]
    """SHA-256 of what was read: sources by name, tasks as `dev/<task>` and `test/<task>`."""

    def unique_anchor_texts(self) -> int:
        """How many distinct anchor sentences a teacher has to encode for the training pairs."""
        return int(np.unique(self.pairs[:, 0]).size)


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """One subset of a dev or test set, in texts: `left[i]` translates `right[i]`, or `scores[i]` grades the pair."""

    name: str
    kind: Literal["bitext", "sts"]
    subset: str
    """`fra-eng` (left language, then the anchor), or `eng`."""
    languages: tuple[str, str]
    left: list[str]
    right: list[str]
    scores: tuple[float, ...] = ()
    k: int = 4
    digest: str
    """SHA-256 of the file or files."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The pairs of one source in one language pair that are still in, with the keys of their sentences."""

    source: Source
    group: tuple[str, str]
    anchors: Sequence[str]
    """All texts of the source; `rows` picks."""
    others: Sequence[str]
    rows: NDArray[np.intp]
    keys: NDArray[np.uint64]
    """[rows, 2] `sentence_keys` of anchor and other."""

    def keep(self, mask: NDArray[np.bool_]) -> Block:
        """The pairs where the mask is true."""
        return Block(
            source=self.source,
            group=self.group,
            anchors=self.anchors,
            others=self.others,
            rows=self.rows[mask],
            keys=self.keys[mask],
        )

    def pair_keys(self, salt: int = 0) -> NDArray[np.uint64]:
        """[rows] one key per pair, which depends on its two sentences and the salt alone."""
        left, right = self.keys.T
        return mixed(mixed(left ^ np.uint64(salt)) + right)


def build_corpus(data: Data, root: Path, seed: int) -> Corpus:
    """Reads and cleans all training sources and dev sets; relative paths start at `root`.

    The result depends on the data, the records and the seed only. Raises `DataError` for text that cannot be read as
    its source says, and when no pair is left, saying which step removed what.
    """
    dev, test = read_tasks(data.dev, root, data), read_content(data.test, root)
    ...
