"""Means of some rows of a table, whose gradient is a sum for each row and names it once.

Neither pass copies the rows. With the ids in order, a row's gradient is a sum over neighbours: nothing is written
twice, and the order of the sum is the batch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def mean_of_rows(
    table: Float[Tensor, "rows width"], ids: Int[Tensor, "ids"], counts: Int[Tensor, "means"], *, sparse: bool = True
) -> Float[Tensor, "means width"]:
    """Means of rows of the table: of the first `counts[0]` of `ids`, then of the next `counts[1]`, and so on.

    A mean of no rows is zero. With `sparse` the table's gradient is sparse. Otherwise it is dense, and every row must
    be among the `ids`."""
    means: Tensor = _MeanOfRows.apply(table, ids, counts, sparse)  # type: ignore[no-untyped-call]
    return means


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    saved_tensors: tuple[Tensor, Tensor]
    shape: torch.Size
    sparse: bool

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _MeanOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, table: Tensor, ids: Tensor, counts: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids, counts)
        ctx.shape, ctx.sparse = table.shape, sparse
        return embedding_bag(ids, table, counts.cumsum(0) - counts, mode="mean")

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ids, counts = ctx.saved_tensors
        shares = gradients[0] / counts.clamp(min=1).unsqueeze(1)
        ordered, places = ids.sort(stable=True)
        means = torch.arange(len(counts), device=ids.device).repeat_interleave(counts)[places]
        rows, repeats = torch.unique_consecutive(ordered, return_counts=True)
        sums = embedding_bag(means, shares, repeats.cumsum(0) - repeats, mode="sum")
        if ctx.sparse:
            sums = torch.sparse_coo_tensor(rows[None], sums, ctx.shape, is_coalesced=True, check_invariants=False)
        return sums, None, None, None
