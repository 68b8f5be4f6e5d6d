"""A random order of any number of rows as a function: it keeps nothing, so its memory does not depend on the rows.

A Feistel network over the bits of a row's number is a permutation of a power of two (Luby and Rackoff 1988). Numbers
beyond the rows go through it again, until one is a row (cycle walking: Black and Rogaway 2002). The power is less than
twice the rows, so less than two rounds through it are needed on average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.split import mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUNDS = 8
"""Four are enough to look random for large halves (Luby and Rackoff). Few bits need more, and a round is cheap."""


class Permutation:
    """The numbers from 0 to `size` - 1 in an order that the seed decides."""

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
