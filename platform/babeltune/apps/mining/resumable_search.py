"""A search that goes on after an interruption: the grid's blocks one by one, what they found kept on disk."""

import contextlib
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import TILE, Candidates, Precision, blocks, check, nothing, scan, settle, settled
from babeltune.data.store import key_of
from babeltune.data.stored_arrays import open_matrix
from babeltune.errors import StoreError
from babeltune.evaluation.knn import Matches, Neighbours
from babeltune.files import draft_of
from babeltune.stages import Count, uncounted

EVERY = 60.0  # seconds of search that an interruption may cost, unless saving takes long
SHARE = 0.1  # the most of a search's time that goes into saving
SIZE = (4 * TILE[0], 8 * TILE[1])  # rows and columns of a block: some seconds of work


class ResumableSearch:
    """The candidates that a search has found, and which blocks are done, in a file until the search ends.

    The file's name stands for the shards of both sides, in order, and what else decides the result; a file that is
    damaged is as none. It holds 8 (k + 4) bytes for every sentence of either side, in bf16 8 (k + 28)."""

    def __init__(
        self,
        storage: Path,
        sides: tuple[Sequence[Path], Sequence[Path]],
        k: int,
        precision: Precision = "fp32",
        *,
        both: bool = True,
        size: tuple[int, int] = SIZE,
    ) -> None:
        self.left, self.right = (UnitRows(open_matrix(*side)) for side in sides)
        check(self.left, self.right, k)
        self.k, self.precision = k, precision
        self.candidates = nothing(len(self.left), len(self.right), k, precision, both=both)
        self.grid = list(blocks(len(self.left), len(self.right), size))
        self.done = np.zeros(len(self.grid), bool)
        self._across = -(-len(self.right) // size[1])
        shards = [[folder.name for folder in side] for side in sides]
        key = key_of({"shards": shards, "k": k, "precision": precision, "both": both, "size": size})
        self._file = storage / f"search-{key[:16]}.npz"
        self._saved, self._cost = time.monotonic(), 0.0
        self._read()
        self._cosines = sum(self.grid[number].cosines for number in np.flatnonzero(self.done))

    @property
    def waiting(self) -> list[int]:
        """The numbers of the blocks that are not done, row by row of the grid."""
        return [int(number) for number in np.flatnonzero(~self.done)]

    @property
    def cosines(self) -> tuple[int, int]:
        """How many of how many cosines are done."""
        return self._cosines, len(self.left) * len(self.right)

    def finish(self, number: int) -> None:
        """Notes that `found` holds what the block has; saves now and then, and with the last block of a row."""
        self.done[number] = True
        self._cosines += self.grid[number].cosines
        row = number - number % self._across
        since = time.monotonic() - self._saved
        if since >= self._cost / SHARE and (since >= EVERY or self.done[row : row + self._across].all()):
            self._save()

    def remove(self) -> None:
        """Deletes the file: the search has ended."""
        self._file.unlink(missing_ok=True)

    def _save(self) -> None:
        started = time.monotonic()
        draft = draft_of(self._file)
        try:
            with draft.open("wb") as file:
                np.savez(file, done=self.done, forward=self.candidates.forward, backward=self.candidates.backward)
            draft.replace(self._file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            why = f"{error.strerror or error}; free space and run again"
            raise StoreError(f"cannot keep the search's state in {self._file}: {why}") from error
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            with np.load(self._file) as file:
                done, *sides = (file[name] for name in ("done", "forward", "backward"))
            pairs = list(zip((self.candidates.forward, self.candidates.backward), sides, strict=True))
            if done.shape == self.done.shape and all(here.shape == stored.shape for here, stored in pairs):
                for here, stored in pairs:
                    here.copy_(torch.from_numpy(stored))
                self.done = done


def both_ways_resumable(search: ResumableSearch, progress: Count = uncounted) -> Matches:
    """The k (at most all) nearest neighbours by cosine of left in right and of right in left. Goes on from the blocks
    that the search has on disk.

    Tiles are multiplied and searched on a GPU if there is one. With `bf16` they are products in bf16, on a GPU or a CPU
    that has instructions for it. Elsewhere the vectors are rounded, and nothing is gained. All candidates that it keeps
    are computed again, on the CPU. A sentence that has more within its error than it keeps is searched once more in
    fp32. So the neighbours and their cosines are the same. If most vectors lie that close together, fp32 is faster."""
    scan_remaining(search, progress)
    matches = settle(search.left, search.right, search.candidates, search.k, search.precision)
    search.remove()
    return matches


def one_way_resumable(search: ResumableSearch, progress: Count = uncounted) -> Neighbours:
    """Nearest neighbours in one direction. Goes on from the blocks that the search has on disk."""
    scan_remaining(search, progress)
    neighbours = settled(search.left, search.right, search.candidates.forward, search.k, search.precision)
    search.remove()
    return neighbours


def scan_remaining(search: ResumableSearch, progress: Count = uncounted) -> None:
    """Searches the blocks that are not done, in this process."""
    for number in search.waiting:
        block = search.grid[number]
        before, total = search.cosines

        def tell(done: int, _: int, before: int = before, total: int = total) -> None:
            progress(before + done, total)

        part = Candidates(
            search.candidates.forward[slice(*block.rows)], search.candidates.backward[slice(*block.columns)]
        )
        scan(search.left, search.right, part, block, precision=search.precision, progress=tell)
        search.finish(number)
