"""Which pairs each step sees: a pure function of the seed and the step, the same on every rank.

Each language pair has an endless stream of epochs (`epochs.py`). A step takes the next rows of one stream (`one_pair`)
or of all streams (`mixed`). Streams are random access, so a trial resumes from its step number alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.arrays import histogram, rows_at
from babeltune.data.thresholds import thresholds
from babeltune.errors import TrainingError
from babeltune.training.epochs import DrawnPairs, streams_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.schema.records import Sampling


BLOCK = 1 << 14  # steps that are drawn at a time
MORE_ROWS = "give data.train more rows"


def with_negatives(rows: Sequence[int], of: str = "", todo: str = MORE_ROWS) -> list[int]:
    """The groups of at least two rows, by the rows of each. `TrainingError` if no group has two."""
    present = [group for group, count in enumerate(rows) if count > 1]
    if not present:
        raise TrainingError(f"no language pair has two training pairs{of}; {todo}")
    return present


def batch_counts(
    rows: Sequence[int], sampling: Sampling, *, global_batch: int, total_pairs: int, seed: int
) -> NDArray[np.int64]:
    """[steps, groups] the pairs of each group in each global batch, for groups of these sizes.

    A group smaller than `global_batch` gives smaller batches. The last batch is cut to end at `total_pairs`, and left
    out if only one pair would remain of it."""
    mass = np.array([float(count) for count in rows]) ** (1.0 / sampling.temperature)
    share = mass / mass.sum()
    # No batch is larger than its group, so that none repeats a pair of weight 1 within an epoch.
    sizes = np.array([min(global_batch, count) for count in rows])
    generator = np.random.default_rng((seed, 8))
    blocks: list[NDArray[np.int64]] = []
    drawn = 0
    while drawn < total_pairs or not blocks:  # the same numbers as if all were drawn at once
        if sampling.batches == "one_pair":
            chosen = generator.choice(len(share), size=BLOCK, p=share)
            block = np.zeros((BLOCK, len(share)), dtype=np.int64)
            block[np.arange(BLOCK), chosen] = sizes[chosen]
        else:
            block = generator.multinomial(global_batch, share, size=BLOCK)
        last = int(np.searchsorted(np.cumsum(block.sum(axis=1)), total_pairs - drawn)) + 1
        blocks.append(block[:last])
        drawn += int(blocks[-1].sum())
    counts = np.concatenate(blocks)
    seen = np.cumsum(counts.sum(axis=1))
    steps = int(np.searchsorted(seen, total_pairs)) + 1
    counts = counts[:steps]
    overshoot = int(seen[steps - 1] - total_pairs)
    for group in range(len(share)):
        cut = min(overshoot, int(counts[-1, group]))
        counts[-1, group] -= cut
        overshoot -= cut
    return counts[:-1] if steps > 1 and counts[-1].sum() == 1 else counts  # one pair has no negatives


class Schedule:
    """All global batches of a trial that sees `total_pairs` pairs.

    A language pair of one row has no negatives and is left out."""

    def __init__(
        self, pairs: DrawnPairs, sampling: Sampling, *, global_batch: int, total_pairs: int, seed: int
    ) -> None:
        limits = ", ".join(f"{name} {limit}" for name, limit in thresholds(sampling).items())
        of = " that the method can use" if pairs.only is not None else ""
        of, todo = (f"{of} and data.sampling leaves ({limits})", "give other thresholds") if limits else (of, MORE_ROWS)
        groups = pairs.groups if pairs.only is None else rows_at(pairs.groups, pairs.only)
        self.streams = streams_of(pairs, with_negatives(histogram(groups).tolist(), of, todo), seed)
        batch = min(global_batch, len(pairs))
        rows = [stream.size for stream in self.streams]
        self.counts = batch_counts(rows, sampling, global_batch=batch, total_pairs=total_pairs, seed=seed)
        self.steps = len(self.counts)
        self.seen: NDArray[np.int64] = np.cumsum(self.counts.sum(axis=1))
        """[steps] pairs seen after each step."""
        self.starts = np.cumsum(self.counts, axis=0) - self.counts

    def __len__(self) -> int:
        return self.steps

    def rows(self, step: int) -> NDArray[np.int64]:
        """The pairs of global batch `step`, counted from 0."""
        rows = [
            stream.take(int(start), int(count))
            for stream, start, count in zip(self.streams, self.starts[step], self.counts[step], strict=True)
            if count
        ]
        return np.concatenate(rows)

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

    A function of all arguments, so that any number of ranks draws the same; `use` keeps what is drawn for apart."""
    start = np.random.SeedSequence((seed, step, use)).generate_state(1, np.uint64)
    z = start + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.asarray(positions, np.uint64) * np.uint64(0xD1B54A32D192ED03)
    for shift, times in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(times)
    numbers: NDArray[np.float64] = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return numbers
