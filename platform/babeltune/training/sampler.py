"""Which pairs each step sees: a pure function of the seed and the step, the same on every rank.

Each language pair has an endless stream of epochs, every epoch a fresh permutation or the rows in a given order. A step
takes the next rows of one stream (`one_pair`) or of all streams (`mixed`). Streams are random access, so a trial
resumes from its step number alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from babeltune.errors import TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.schema.records import Sampling


LONGEST_EPOCH = 16
"""An epoch's rows, over those of its language pair. Larger weights are all made smaller by one factor."""
BLOCK = 1 << 14
"""Steps that are drawn at a time."""


class Stream:
    """One language pair's rows, epoch after epoch. A row of weight w occurs w times per epoch on average, or fewer if
    an epoch would hold more than `LONGEST_EPOCH` times its rows. Only the ratio of two weights counts.

    `order` [pairs], where given, sorts every epoch; rows of equal order stay in the file's.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        weights: NDArray[np.float32],
        seed: tuple[int, ...],
        order: NDArray[np.int64] | None = None,
    ) -> None:
        self.rows = rows
        self.order = order
        mean = float(weights.mean())
        self.weights = weights if mean <= LONGEST_EPOCH else weights * np.float32(LONGEST_EPOCH / mean)
        self.seed = seed
        self.even = bool((self.weights == 1).all())
        self.ends = [0]
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def _epoch(self, number: int) -> NDArray[np.int64]:
        generator = np.random.default_rng((*self.seed, number))
        drawn = self.rows
        if not self.even:
            times = np.floor(self.weights + generator.random(len(self.rows))).astype(np.int64)
            drawn = np.repeat(self.rows, times) if times.any() else self.rows
        if self.order is not None:
            return drawn[np.argsort(self.order[drawn], kind="stable")]
        return generator.permutation(drawn)

    def take(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at stream positions `start` to `start + count`."""
        while self.ends[-1] < start + count:
            self.ends.append(self.ends[-1] + len(self.epoch(len(self.ends) - 1)))
        parts = []
        number = int(np.searchsorted(self.ends, start, side="right")) - 1
        while count:
            epoch = self.epoch(number)[start - self.ends[number] :][:count]
            parts.append(epoch)
            start, count, number = start + len(epoch), count - len(epoch), number + 1
        return np.concatenate(parts) if parts else self.rows[:0]


@dataclass(frozen=True)
class DrawnPairs:
    """The training pairs that batches are drawn from."""

    groups: NDArray[np.int16]
    """[pairs] the number of each pair's languages."""
    weights: NDArray[np.float32]
    """[pairs] how often each pair occurs in an epoch."""
    order: NDArray[np.int64] | None = None
    """[pairs] what sorts every epoch; None: a fresh permutation each."""
    only: NDArray[np.int64] | None = None
    """The pairs that take part; None: all do."""

    def __len__(self) -> int:
        return len(self.groups if self.only is None else self.only)


def _streams(drawn: DrawnPairs, seed: int) -> list[Stream]:
    """A stream for each pair of languages that has at least two pairs. `TrainingError` where none has."""
    pairs = np.arange(len(drawn.groups)) if drawn.only is None else drawn.only
    groups, weights = drawn.groups[pairs], drawn.weights[pairs]
    present = [group for group, rows in enumerate(np.bincount(groups)) if rows > 1]
    if not present:
        raise TrainingError(
            "no language pair has two training pairs"
            + (" that have an aligned word" if drawn.only is not None else "")
            + "; give data.train sources with more rows"
        )
    return [
        Stream(pairs[groups == group], weights[groups == group], (seed, 7, int(group)), drawn.order)
        for group in present
    ]


class Schedule:
    """All global batches of a trial that sees `total_pairs` pairs.

    A language pair of one row has no negatives and is left out. One smaller than `global_batch` gives smaller batches,
    so that none repeats a pair of weight 1 within an epoch. The last batch is cut to end at `total_pairs`, and left out
    if only one pair would remain of it."""

    def __init__(
        self, pairs: DrawnPairs, sampling: Sampling, *, global_batch: int, total_pairs: int, seed: int
    ) -> None:
        self.streams = _streams(pairs, seed)
        mass = np.array([float(len(s.rows)) for s in self.streams]) ** (1.0 / sampling.temperature)
        share = mass / mass.sum()
        sizes = np.array([min(global_batch, len(s.rows)) for s in self.streams])
        generator = np.random.default_rng((seed, 8))
        blocks: list[NDArray[np.int64]] = []
        drawn = 0
        while drawn < total_pairs or not blocks:  # the same numbers as if all were drawn at once
            if sampling.batches == "one_pair":
                chosen = generator.choice(len(share), size=BLOCK, p=share)
                block = np.zeros((BLOCK, len(share)), dtype=np.int64)
                block[np.arange(BLOCK), chosen] = sizes[chosen]
            else:
                block = generator.multinomial(min(global_batch, len(pairs)), share, size=BLOCK)
            last = int(np.searchsorted(np.cumsum(block.sum(axis=1)), total_pairs - drawn)) + 1
            blocks.append(block[:last])
            drawn += int(blocks[-1].sum())
        counts = np.concatenate(blocks)
        seen = np.cumsum(counts.sum(axis=1))
        self.steps = int(np.searchsorted(seen, total_pairs)) + 1
        self.counts = counts[: self.steps]
        overshoot = int(seen[self.steps - 1] - total_pairs)
        for group in range(len(share)):
            cut = min(overshoot, int(self.counts[-1, group]))
            self.counts[-1, group] -= cut
            overshoot -= cut
        if self.steps > 1 and self.counts[-1].sum() == 1:  # one pair has no negatives
            self.counts, self.steps = self.counts[:-1], self.steps - 1
        self.seen: NDArray[np.int64] = np.cumsum(self.counts.sum(axis=1))
        """[steps] pairs seen after each step."""
        self.starts = np.cumsum(self.counts, axis=0) - self.counts

    def __len__(self) -> int:
        return self.steps

    def rows(self, step: int) -> NDArray[np.int64]:
        """The pairs of global batch `step`, counted from 0."""
        parts = [
            stream.take(int(start), int(count))
            for stream, start, count in zip(self.streams, self.starts[step], self.counts[step], strict=True)
            if count
        ]
        return np.concatenate(parts)

    def milestones(self, reports: int) -> list[int]:
        """The number of steps done at each of `reports` equal shares of the pairs."""
        total = int(self.seen[-1])
        targets = [total * (i + 1) // reports for i in range(reports)]
        return [int(np.searchsorted(self.seen, target)) + 1 for target in targets]


def own_rows(rows: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """This rank's part of a global batch: rows rank*N//W to (rank+1)*N//W."""
    return rows[rank * len(rows) // world : (rank + 1) * len(rows) // world]


def local_sizes(total: int, world: int) -> list[int]:
    """Every rank's number of rows of a global batch of `total`."""
    return [(r + 1) * total // world - r * total // world for r in range(world)]


def lots(
    seed: int, step: int, use: int, places: NDArray[np.int64], positions: NDArray[np.int64] | int = 0
) -> NDArray[np.float64]:
    """Numbers drawn from [0, 1), one for each place in the global batch and position there (SplitMix64).

    A function of all arguments, so that any number of ranks draws the same; `use` keeps what is drawn for apart.
    """
    start = np.random.SeedSequence((seed, step, use)).generate_state(1, np.uint64)
    z = start + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.asarray(positions, np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, times in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(times)
    numbers: NDArray[np.float64] = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return numbers
