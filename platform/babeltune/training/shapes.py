"""Room for the tokens of a batch's sides, so that batches have few different shapes (`capture.py`).

Batches are packed, so their numbers of tokens differ. Each is filled up to the smallest of a few sizes that holds it.
Rows are never filled up: all batches but the last have the same number of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.training.batches import Reader
    from babeltune.training.sampler import Schedule

SIZES = 3  # different shapes at most. Each takes a graph.
SAMPLE = 64  # batches from all over the training that decide about sizes
MARGIN = 1.02  # room beyond the largest sampled batch, for those that were not looked at
UNIT = 64  # room is a multiple of this many tokens
FULL = 0.5  # a batch that would fill less of its room than this stays as it is


@dataclass(frozen=True)
class Shapes:
    """The shapes that batches may have."""

    longest: int  # tokens of a sentence at most
    rooms: tuple[tuple[int, ...], ...]  # [sizes, sides] tokens of each side, the smallest size first

    def room(self, tokens: Sequence[int], longest: int) -> tuple[int, ...] | None:
        """The room for a batch whose sides have these tokens, of sentences up to `longest`; None if none fits."""
        for room in self.rooms:
            if all(have <= space for have, space in zip(tokens, room, strict=True)):
                return room if longest <= self.longest and sum(tokens) >= FULL * sum(room) else None
        return None


def shapes_for(tokens: NDArray[np.int64], longest: int) -> Shapes:
    """Sizes that each hold a third of these batches, [batches, sides] their tokens."""
    ordered = tokens[np.argsort(tokens.sum(1), kind="stable")]
    most = np.maximum.accumulate(np.stack([part.max(0) for part in np.array_split(ordered, min(SIZES, len(ordered)))]))
    most[-1] = np.ceil(most[-1] * MARGIN)
    rooms = sorted({tuple((-(-row // UNIT) * UNIT).tolist()) for row in most}, key=sum)
    return Shapes(longest, tuple(rooms))


def sampled_shapes(reader: Reader, schedule: Schedule, longest: int) -> Shapes:
    """Those of a trial whose sentences have up to `longest` tokens."""
    steps = np.unique(np.linspace(0, len(schedule) - 1, SAMPLE).astype(int))
    return shapes_for(np.array([reader.token_counts(schedule.rows(int(step))) for step in steps]), longest)
