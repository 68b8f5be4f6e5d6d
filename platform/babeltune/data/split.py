"""Pairs by the sentences that they share: keys of sentences, and whole components of pairs held out for dev."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.sources import text_key
from babeltune.errors import DataError
from babeltune.schema.records import Source, Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELDOUT = "heldout"
HELDOUT_SHARE = 0.2
"""A split takes at most this share of a language pair, so that a small one keeps its training text."""


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
        return replace(self, rows=self.rows[mask], keys=self.keys[mask])

    def pair_keys(self, salt: int = 0) -> NDArray[np.uint64]:
        """[rows] one key per pair, which depends on its two sentences and the salt alone."""
        left, right = self.keys.T
        return mixed(mixed(left ^ np.uint64(salt)) + right)


# --- Keys ----------------------------------------------------------------------------------------------------------


def sentence_keys(texts: Iterable[str]) -> NDArray[np.uint64]:
    """[texts] 64 bits of a digest of each text's `text_key`: equal where texts differ in case, punctuation, blanks or
    Unicode form only. A million sentences share a key by accident once in 30 million corpora."""
    digests = b"".join(hashlib.blake2b(text_key(text).encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys scrambled one to one (the finalizer of SplitMix64: Steele, Lea and Flood 2014, figure 16)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def salt_of(seed: int, *names: str) -> int:
    """64 bits that stand for a seed and what is drawn with it."""
    return int.from_bytes(hashlib.blake2b("\0".join([str(seed), *names]).encode(), digest_size=8).digest(), "little")


# --- Split ---------------------------------------------------------------------------------------------------------


def hold_out(
    blocks: Sequence[Block], split: Split, seed: int, *, share: float = HELDOUT_SHARE
) -> list[NDArray[np.bool_]]:
    """Which pairs of each block are held out: whole components of pairs that share sentences, over all language pairs.

    Components are tried in a seeded order, and one is taken when no language pair then has more than `split.pairs`
    held out, or more than `share` of its pairs. A component with a synthetic pair is never taken. Raises
    `DataError` when nothing can be held out.
    """
    keys = np.concatenate([np.empty((0, 2), np.uint64), *[block.keys for block in blocks]])
    groups = {group: index for index, group in enumerate(dict.fromkeys(block.group for block in blocks))}
    sizes = [len(block.rows) for block in blocks]
    pair_group = np.repeat([groups[block.group] for block in blocks], sizes).astype(np.int64)
    synthetic = np.repeat([block.source.synthetic for block in blocks], sizes).astype(bool)
    component = components(keys)
    barred = np.zeros(len(keys), bool)
    barred[component[synthetic]] = True
    totals = np.bincount(pair_group, minlength=len(groups))
    room = np.minimum(split.pairs, (totals * share).astype(np.int64))
    names = np.zeros(len(keys), np.uint64)
    np.bitwise_xor.at(names, component, mixed(keys).sum(axis=1, dtype=np.uint64))
    order = np.lexsort((component, mixed(names ^ np.uint64(salt_of(seed, HELDOUT)))[component]))
    chosen = np.zeros(len(keys), bool)
    starts = np.flatnonzero(np.r_[True, np.diff(component[order]) != 0]) if len(order) else np.empty(0, np.intp)
    for pairs in np.split(order, starts[1:]):
        if not len(pairs) or barred[component[pairs[0]]]:
            continue
        if not room.any():
            break
        wanted = np.bincount(pair_group[pairs], minlength=len(groups))
        if (wanted <= room).all():
            room -= wanted
            chosen[pairs] = True
    if not chosen.any():
        raise DataError(
            f"data.split: none of {len(keys)} pairs can be held out: every component of pairs that share sentences has "
            f"a synthetic pair or is larger than {share:.0%} of a language pair; name a dev set instead"
        )
    return np.split(chosen, np.cumsum(sizes)[:-1])


def components(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[pairs] the first pair of the component that each pair belongs to; pairs that share a sentence key are in one."""
    _, nodes = np.unique(keys, return_inverse=True)
    nodes = nodes.reshape(keys.shape)
    left: list[int] = nodes[:, 0].tolist()
    right: list[int] = nodes[:, 1].tolist()
    parent = list(range(int(nodes.max(initial=-1)) + 1))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for a, b in zip(left, right, strict=True):
        parent[root(a)] = root(b)
    roots = np.array([root(node) for node in left], np.int64)
    _, first, inverse = np.unique(roots, return_index=True, return_inverse=True)
    return first[inverse]
