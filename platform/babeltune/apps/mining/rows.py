"""Sentence vectors in memory or on disk, read in blocks, at length 1: the only place where mining normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from babeltune.errors import DataError

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray

    from babeltune.data.stored_arrays import Matrix

    Vectors = NDArray[np.generic] | Tensor | Matrix

UNIT = 1e-6  # a row whose length is this near to 1 is taken as it is


class UnitRows:
    """Vectors [n, dim] of any floating type as fp32 rows of length 1 (a zero row stays zero). The source never changes.

    A row comes out with the same bits whichever block or list it is read in."""

    def __init__(self, vectors: Vectors) -> None:
        self._source = vectors
        if isinstance(vectors, (np.ndarray, Tensor)):
            if vectors.ndim != 2:
                raise DataError(f"vectors of shape {tuple(vectors.shape)}; sentence vectors are [n, dim]")
            self.dim = int(vectors.shape[1])
        else:
            self.dim = vectors.width

    def __len__(self) -> int:
        return len(self._source)

    def block(self, start: int, stop: int) -> Float[Tensor, "rows dim"]:
        """Rows `start` to `stop`, in order."""
        if isinstance(self._source, (np.ndarray, Tensor)):
            return _unit(_fp32(self._source[start:stop]), start)
        return _unit(_fp32(self._source.rows(np.arange(start, stop))), start)

    def take(self, ids: Tensor) -> Float[Tensor, "ids dim"]:
        """The rows of these numbers, in the order of `ids`."""
        if isinstance(self._source, Tensor):
            return _unit(self._source[ids.to(self._source.device)].float().cpu())
        places = ids.numpy()
        block = self._source[places] if isinstance(self._source, np.ndarray) else self._source.rows(places)
        return _unit(_fp32(block))


def _fp32(block: NDArray[np.generic] | Tensor) -> Tensor:
    if isinstance(block, Tensor):
        return block.detach().float().cpu()
    writable = block.dtype == np.float32 and block.flags.writeable and not isinstance(block, np.memmap)
    return torch.from_numpy(np.ascontiguousarray(block) if writable else np.array(block, np.float32))


def _unit(rows: Tensor, start: int = 0) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not bool(length.isfinite().all()):
        row = int((~length.isfinite()).nonzero()[0, 0])
        raise DataError(f"vector {start + row} is not finite; the model that made it is broken")
    far = (length - 1).abs() > UNIT
    if not bool(far.any()):
        return rows
    return rows / torch.where(far & (length > 0), length, 1)
