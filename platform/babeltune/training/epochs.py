"""The order of a language pair's rows: epoch after epoch, each a permutation or the rows in a given order.

Up to `COMPUTED_ABOVE` pairs an epoch is an array that NumPy has shuffled. Above, its order is a function, so that a
worker's memory does not depend on the corpus."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from babeltune.data.arrays import Grouped, numbered, parts, rows_at, rows_where, zeros
from babeltune.data.split import mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMPUTED_ABOVE = 1 << 22
"""Pairs of a trial above which the order of its epochs is computed. An array of this many takes about 130 MB."""
LONGEST_EPOCH = 16
"""An epoch's rows, over those of its language pair. Larger weights are all made smaller by one factor."""
BLOCK = 1 << 14  # rows whose order is computed at a time
ROUNDS = 8
"""Four are enough to look random for large halves (Luby and Rackoff). Few bits need more, and a round is cheap."""


class Permutation:
    """The numbers from 0 to `size` - 1 in an order that the seed decides, as a function.

    A Feistel network over the bits of a number is a permutation of a power of two (Luby and Rackoff 1988). Numbers
    beyond the last go through it again, until one is below `size` (cycle walking: Black and Rogaway 2002). The power is
    less than twice `size`, so less than two rounds through it are needed on average."""

    def __init__(self, size: int, seed: tuple[int, ...]) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low = np.uint64(bits // 2)
        """Bits of the right half."""
        self._masks = [np.uint64((1 << half) - 1) for half in (bits - bits // 2, bits // 2)]
        self._keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)

    def __len__(self) -> int:
        return self.size

    def __call__(self, places: NDArray[np.integer]) -> NDArray[np.int64]:
        """[places] the number at each place; all places are below `size`."""
        numbers = self._once(places.astype(np.uint64))
        while len(beyond := np.flatnonzero(numbers >= np.uint64(self.size))):
            numbers[beyond] = self._once(numbers[beyond])
        return numbers.astype(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The network: each round scrambles one half by the other, so that it can be undone."""
        halves = [numbers >> self._low, numbers & self._masks[1]]
        for turn, key in enumerate(self._keys):
            one, other = turn % 2, 1 - turn % 2
            halves[one] = halves[one] ^ (mixed(halves[other] + key) & self._masks[one])
        return (halves[0] << self._low) | halves[1]


class Epoch(Protocol):
    """The rows of an epoch in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class DrawnPairs:
    """The training pairs that batches are drawn from."""

    groups: NDArray[np.int16]  # [pairs] the number of each pair's languages
    weights: NDArray[np.float32]  # [pairs] how often each pair occurs in an epoch
    order: NDArray[np.int64] | None = None  # [pairs] what sorts every epoch; None: a fresh permutation each
    only: NDArray[np.int64] | None = None  # the pairs that take part; None: all do

    def __len__(self) -> int:
        return len(self.groups if self.only is None else self.only)

    def facts(self, place: slice) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """The groups and weights of a part of the pairs that take part."""
        where = place if self.only is None else self.only[place]
        return self.groups[where], self.weights[where]


@dataclass(frozen=True)
class Span:
    """Places in a row, among the pairs that take part, of pairs of one group and one weight: those of a source."""

    start: int
    stop: int
    weight: float

    def __len__(self) -> int:
        return self.stop - self.start


class Stream(ABC):
    """One language pair's rows, epoch after epoch. A row of weight w occurs w times per epoch on average, or fewer if
    an epoch would hold more than `LONGEST_EPOCH` times its rows. Only the ratio of two weights counts."""

    def __init__(self, rows: int, seed: tuple[int, ...]) -> None:
        self.size = rows
        self.seed = seed
        self.ends = [0]
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    @abstractmethod
    def _epoch(self, number: int) -> Epoch: ...

    def take(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at stream positions `start` to `start + count`."""
        while self.ends[-1] < start + count:
            self.ends.append(self.ends[-1] + len(self.epoch(len(self.ends) - 1)))
        taken_rows = [np.empty(0, np.int64)]
        number = int(np.searchsorted(self.ends, start, side="right")) - 1
        while count:
            place = start - self.ends[number]
            epoch = self.epoch(number)[place : place + count]
            taken_rows.append(epoch)
            start, count, number = start + len(epoch), count - len(epoch), number + 1
        return np.concatenate(taken_rows)


def _bounded(mean: float) -> np.float32:
    """The factor of all weights of this mean."""
    return np.float32(1 if mean <= LONGEST_EPOCH else LONGEST_EPOCH / mean)


class DrawnStream(Stream):
    """Epochs as arrays. `order` [pairs] sorts every epoch, if there is one; rows of equal order stay in the file's."""

    def __init__(
        self,
        rows: NDArray[np.int64],
        weights: NDArray[np.float32],
        seed: tuple[int, ...],
        order: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(len(rows), seed)
        self.rows = rows
        self.order = order
        self.weights = weights
        self.factor = _bounded(float(weights.mean()))
        self.even = self.factor == 1 and all(bool((weights[part] == 1).all()) for part in parts(len(weights)))

    def _epoch(self, number: int) -> NDArray[np.int64]:
        generator = np.random.default_rng((*self.seed, number))
        drawn = self.rows if self.even else self._repeated(generator)
        if self.order is None:
            return generator.permutation(drawn)
        return rows_at(drawn, Grouped(rows_at(self.order, drawn)).places)

    def _repeated(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """The rows, each as often as its weight and a draw say."""
        times: NDArray[np.int64] = zeros(len(self.rows), np.int64)
        for part in parts(len(times)):
            weights = self.weights[part] * self.factor
            times[part] = np.floor(weights + generator.random(len(weights)))
        total = int(times.sum())
        if not total:
            return self.rows
        out: NDArray[np.int64] = zeros(total, np.int64)
        end = 0
        for part in parts(len(times)):
            some = np.repeat(self.rows[part], times[part])
            out[end : end + len(some)] = some
            end += len(some)
        return out


class ComputedStream(Stream):
    """Epochs as functions. A row of weight 2.3 occurs twice, and three of ten such rows once more."""

    def __init__(self, spans: Sequence[Span], seed: tuple[int, ...], only: NDArray[np.int64] | None = None) -> None:
        super().__init__(sum(len(span) for span in spans), seed)
        self.only = only
        self.starts = np.array([span.start for span in spans])
        self.sizes = np.array([len(span) for span in spans])
        weights = np.array([span.weight for span in spans], np.float64)
        self.weights = weights * _bounded(float(np.average(weights, weights=self.sizes)))

    def _epoch(self, number: int) -> ComputedEpoch:
        return ComputedEpoch(self, number)

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these places among those that take part."""
        return places if self.only is None else self.only[places]


class ComputedEpoch:
    """One epoch of a computed stream."""

    def __init__(self, stream: ComputedStream, number: int) -> None:
        self.stream = stream
        seed = (*stream.seed, number)
        whole = np.floor(stream.weights)
        drawn = np.random.default_rng(seed).random(len(whole))
        extra = np.floor((stream.weights - whole) * stream.sizes + drawn).astype(np.int64)
        self.whole = stream.sizes * whole.astype(np.int64)
        """[spans] places that each span fills with all of its rows, once or more often."""
        if not (self.whole + extra).any():
            self.whole = stream.sizes
        self.ends = np.cumsum(self.whole + extra)
        self.begins = self.ends - self.whole - extra
        self.order = Permutation(int(self.ends[-1]), seed)
        self.within = [Permutation(int(size), (*seed, span)) for span, size in enumerate(stream.sizes)]
        """[spans] which rows occur once more."""
        self.block = lru_cache(maxsize=2)(self._block)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: slice) -> NDArray[np.int64]:
        start, stop, _ = place.indices(len(self))
        first = start // BLOCK
        blocks = [self.block(number) for number in range(first, -(-stop // BLOCK))]
        rows = np.concatenate([np.empty(0, np.int64), *blocks])
        return rows[start - first * BLOCK : stop - first * BLOCK]

    def _block(self, number: int) -> NDArray[np.int64]:
        """Many rows at once: a few take as long."""
        drawn = self.order(np.arange(number * BLOCK, min(len(self), (number + 1) * BLOCK)))
        span = np.searchsorted(self.ends, drawn, side="right")
        within = drawn - self.begins[span]
        extra = within >= self.whole[span]
        for stream in np.unique(span[extra]):
            some = np.flatnonzero(extra & (span == stream))
            within[some] = self.within[stream](within[some] - self.whole[stream])
        return self.stream.rows(self.stream.starts[span] + within % self.stream.sizes[span])


def streams_of(drawn: DrawnPairs, groups: Sequence[int], seed: int) -> list[Stream]:
    """A stream for each of these groups."""
    if drawn.order is not None or len(drawn) <= COMPUTED_ABOVE:
        return list(_drawn_streams(drawn, groups, seed))
    spans = _spans(drawn)
    return [ComputedStream(spans[group], (seed, 7, group), drawn.only) for group in groups]


def _drawn_streams(drawn: DrawnPairs, groups: Sequence[int], seed: int) -> Iterator[Stream]:
    pairs = numbered(len(drawn.groups)) if drawn.only is None else drawn.only
    of_pairs = rows_at(drawn.groups, pairs)
    for group in groups:
        where = zeros(len(pairs), np.bool_)
        for part in parts(len(pairs)):
            where[part] = of_pairs[part] == group
        rows = rows_where(pairs, where)
        yield DrawnStream(rows, rows_at(drawn.weights, rows), (seed, 7, group), drawn.order)


def _spans(drawn: DrawnPairs) -> dict[int, list[Span]]:
    """The spans of each group."""
    spans: dict[int, list[Span]] = {}
    for part in parts(len(drawn)):
        groups, weights = drawn.facts(part)
        changes = np.flatnonzero((np.diff(groups) != 0) | (np.diff(weights) != 0)) + 1
        for start, stop in itertools.pairwise([0, *changes.tolist(), len(groups)]):
            of_group = spans.setdefault(int(groups[start]), [])
            span = Span(part.start + start, part.start + stop, float(weights[start]))
            if of_group and (of_group[-1].stop, of_group[-1].weight) == (span.start, span.weight):
                span = Span(of_group.pop().start, span.stop, span.weight)
            of_group.append(span)
    return spans
