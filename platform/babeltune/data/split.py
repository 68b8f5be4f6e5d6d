"""Pairs by the sentences that they share: keys of sentences, and whole components of pairs held out for dev."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data import arrays
from babeltune.data.arrays import (
    BINS,
    end_to_end,
    first_places,
    is_first,
    leading,
    number_type,
    numbered,
    numbers,
    parts,
    repeated,
    rows_where,
    zeros,
)
from babeltune.data.texts import Texts
from babeltune.errors import DataError
from babeltune.schema.records import HELDOUT, Source, Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELDOUT_SHARE = 0.2  # a split takes at most this share of a language pair, so that a small one keeps its training text


@dataclass(frozen=True, kw_only=True)
class Block:
    """Pairs of one source in one language pair that cleaning has not removed, with the keys of their sentences."""

    source: Source
    group: tuple[str, str]
    anchors: Texts  # all texts of the source; `rows` picks
    others: Texts
    rows: NDArray[np.intp]
    keys: NDArray[np.uint64]  # [rows, 2] `sentence_keys` of anchor and other

    def keep(self, mask: NDArray[np.bool_]) -> Block:
        """The pairs where the mask is true."""
        return self if mask.all() else replace(self, rows=rows_where(self.rows, mask), keys=rows_where(self.keys, mask))

    @property
    def alone(self) -> bool:
        """Whether it is text of one language, each text a pair with itself."""
        return self.group[0] == self.group[1]

    def pair_keys(self, salt: int = 0) -> NDArray[np.uint64]:
        """[rows] one key per pair, which depends on its two sentences and the salt alone."""
        hashes = zeros(len(self.keys), np.uint64)
        for part in parts(len(hashes)):
            left, right = self.keys[part].T
            hashes[part] = mixed(mixed(left ^ np.uint64(salt)) + right)
        return hashes


# --- Keys ----------------------------------------------------------------------------------------------------------


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
    blocks: Sequence[Block], split: Split, seed: int, *, share: float = HELDOUT_SHARE, least: int = 0
) -> list[NDArray[np.bool_]]:
    """Which pairs of each block are held out: whole components of pairs that share sentences, over all language pairs.

    Components are tried in a seeded order, and one is taken when no language pair then has more than `split.pairs`
    held out, or more than `share` of its pairs. That share is at least `least` pairs, if they are at most a third. A
    component with a synthetic pair is never taken. Raises
    `DataError` when nothing can be held out."""
    keys = end_to_end([np.empty((0, 2), np.uint64), *[block.keys for block in blocks]])
    groups = {group: index for index, group in enumerate(dict.fromkeys(block.group for block in blocks))}
    sizes = [len(block.rows) for block in blocks]
    pair_group = repeated([groups[block.group] for block in blocks], sizes, np.int32)
    synthetic = repeated([block.source.synthetic or block.alone for block in blocks], sizes, np.bool_)
    totals = np.bincount([groups[block.group] for block in blocks], sizes, len(groups)).astype(np.int64)
    room = np.minimum(split.pairs, np.maximum((totals * share).astype(np.int64), np.minimum(least, totals // 3)))
    component = components(keys)
    open_to_all = zeros(len(keys), np.bool_)
    ranks = _ranks(keys, component, synthetic, int(room.sum()), salt_of(seed, HELDOUT), open_to_all)
    chosen = zeros(len(keys), np.bool_)
    for pairs in _by_rank(component, ranks, open_to_all):
        if not room.any():
            break
        quota = np.bincount(pair_group[pairs], minlength=len(groups))
        if (quota <= room).all():
            room -= quota
            chosen[pairs] = True
    if not chosen.any():
        raise DataError(
            f"data.split: none of {len(keys)} pairs can be held out: every component of pairs that share sentences has "
            f"a synthetic pair or is larger than {share:.0%} of a language pair; name a dev set instead"
        )
    return np.split(chosen, np.cumsum(sizes)[:-1])


def _ranks(
    keys: NDArray[np.uint64],
    component: NDArray[np.int64],
    synthetic: NDArray[np.bool_],
    most: int,
    salt: int,
    can: NDArray[np.bool_],
) -> NDArray[np.uint64]:
    """[pairs] the rank of each pair's component, which depends on its pairs and the salt. `can` [pairs] becomes true of
    components of at most `most` pairs, none of them synthetic."""
    names, sizes = zeros(len(keys), np.uint64), zeros(len(keys), number_type(len(keys) + 1))
    barred = zeros(len(keys), np.bool_)
    for part in parts(len(keys)):
        groups = component[part]
        np.bitwise_xor.at(names, groups, mixed(keys[part]).sum(axis=1, dtype=np.uint64))
        np.add.at(sizes, groups, 1)
        barred[groups[synthetic[part]]] = True
    ranks = zeros(len(keys), np.uint64)
    for part in parts(len(keys)):
        groups = component[part]
        ranks[part] = mixed(names[groups] ^ np.uint64(salt))
        can[part] = ~barred[groups] & (sizes[groups] <= most)
    return ranks


def _by_rank(
    component: NDArray[np.int64], ranks: NDArray[np.uint64], can: NDArray[np.bool_]
) -> Iterator[NDArray[np.int64]]:
    """The pairs of each component that can be taken, by its rank. About `PART` pairs are sorted at a time."""
    sizes = np.zeros(BINS, np.int64)
    for part in parts(len(ranks)):
        sizes += np.bincount(leading(ranks[part][can[part]]), minlength=BINS)
    turn = np.cumsum(sizes) // arrays.PART
    """[bins] the turn at which the ranks that begin so are sorted."""
    for number in np.unique(turn[sizes > 0]):
        places = [
            part.start + np.flatnonzero(can[part] & (turn[leading(ranks[part])] == number))
            for part in parts(len(ranks))
        ]
        pairs = np.concatenate(places)
        order = pairs[np.lexsort((component[pairs], ranks[pairs]))]
        edges = np.flatnonzero(np.diff(component[order], prepend=-1, append=-1))
        yield from (order[start:end] for start, end in itertools.pairwise(edges))


def components(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[pairs] the first pair of the component that each pair belongs to; pairs that share a sentence key are in one.

    Every sentence points at another of its component with a smaller number, and in the end at the smallest."""
    first = first_places(keys.reshape(-1))
    nodes = numbers(first, is_first(first)).reshape(keys.shape)
    count = max((int(nodes[part].max()) + 1 for part in parts(len(nodes))), default=0)
    points = numbered(count)
    apart = True
    while apart:
        apart = False
        for part in parts(len(nodes)):
            low, high = np.sort(points[nodes[part]], axis=1).T
            differ = low < high
            if differ.any():
                np.minimum.at(points, high[differ], low[differ])
                apart = True
        for part in parts(len(points)):  # every entry points at the end of its path
            while ((further := points[points[part]]) != points[part]).any():
                points[part] = further
    roots = zeros(len(nodes), np.uint64)
    for part in parts(len(nodes)):
        roots[part] = points[nodes[part, 0]]
    return first_places(roots)
