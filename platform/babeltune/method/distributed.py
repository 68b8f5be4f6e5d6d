"""Joins the ranks of a training process group: rows with exact gradients, parameter gradients, and the log's scalars.

A method computes its share of the global loss from its own rows and everybody's. The gradient of a gathered row is
the sum of what every rank's share says about it, so nothing is multiplied by the number of ranks. If there is no
process group, or one rank, everything here is the identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from babeltune.errors import TrainingError

if TYPE_CHECKING:
    from jaxtyping import Shaped

BUCKET = 1 << 22
"""Gradients are summed in pieces of about this many elements."""


def _collective(name: str, before: str) -> Callable[[Tensor, Tensor], object]:
    """An operation of all ranks by its name since torch 2.13, which warns of the one from before."""
    operation: Callable[[Tensor, Tensor], object] = getattr(dist, name, None) or getattr(dist, before)
    return operation


def _pad(rows: Tensor, count: int) -> Tensor:
    """The rows and, below them, zeros up to `count` rows."""
    if len(rows) == count:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])])


def _all_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """All ranks' rows in rank order."""
    most = max(sizes)
    received = rows.new_empty(len(sizes) * most, *rows.shape[1:])
    _collective("all_gather_single", "all_gather_into_tensor")(received, _pad(rows, most))
    if min(sizes) == most:
        return received
    return torch.cat([received[r * most : r * most + size] for r, size in enumerate(sizes)])


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    sizes: list[int]
    rank: int


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, rows: Tensor, sizes: list[int], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        return _all_rows(rows, sizes)

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor, None, None]:
        most = max(ctx.sizes)
        blocks = torch.cat([_pad(block, most) for block in torch.split(gradients[0], ctx.sizes)])
        part = blocks.new_empty(most, *blocks.shape[1:])
        _collective("reduce_scatter_single", "reduce_scatter_tensor")(part, blocks)
        return part[: ctx.sizes[ctx.rank]], None, None


class ProcessGroup:
    """This process among the ranks of the default process group; alone when there is none. Implements `Gather`."""

    def __init__(self) -> None:
        in_group = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if in_group else 0
        """The global rank, whichever machine it is on."""
        self.world = dist.get_world_size() if in_group else 1
        self.backend: str = dist.get_backend() if in_group else "none"
        self.sizes: list[int] | None = None

    @classmethod
    def alone(cls) -> ProcessGroup:
        """This process without the others, whatever group it is in."""
        group = cls()
        group.rank, group.world, group.backend = 0, 1, "none"
        return group

    def set_sizes(self, sizes: Sequence[int]) -> None:
        """Says how many rows each rank will hand to the following gathers; without it every gather asks first."""
        if len(sizes) != self.world:
            raise TrainingError(f"{len(sizes)} sizes for {self.world} ranks; give one number of rows per rank")
        self.sizes = list(sizes)

    def _sizes(self, rows: Tensor) -> list[int]:
        if self.sizes is None:
            size_here = torch.tensor([len(rows)], device=rows.device)
            return [int(size) for size in _all_rows(size_here, [1] * self.world).tolist()]
        if self.sizes[self.rank] != len(rows):
            raise TrainingError(
                f"rank {self.rank} gathers {len(rows)} rows where {self.sizes[self.rank]} were announced; "
                "gather tensors with one row per pair"
            )
        return self.sizes

    def __call__(self, rows: Shaped[Tensor, "local *columns"]) -> Shaped[Tensor, "global *columns"]:
        """All ranks' rows in rank order; gradients come back summed over the ranks."""
        if self.world == 1:
            return rows
        gathered: Tensor = _Gathered.apply(rows, self._sizes(rows), self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def offset(self, local: int) -> int:
        """Where this rank's `local` rows start among all ranks' rows."""
        if self.world == 1:
            return 0
        sizes = self.sizes if self.sizes is not None else self._sizes(torch.empty(local))
        return list(accumulate(sizes, initial=0))[self.rank]

    def of_first(self, value: int, device: torch.device | str) -> int:
        """Rank 0's value, a signed 64-bit number, on every rank."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], device=device)
        dist.broadcast(shared, 0)
        return int(shared.item())

    def sum_gradients(self, parameters: Iterable[nn.Parameter], by_row: Iterable[nn.Parameter] = ()) -> None:
        """Replaces every gradient by its sum over the ranks; a missing one counts as zeros, on one rank too.

        The gradients of `by_row` are sparse: rows, each once, in order."""
        rows = {id(parameter) for parameter in by_row}
        bucket: list[Tensor] = []
        for parameter in parameters:
            if id(parameter) in rows:
                parameter.grad = self._sum_rows(parameter)
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.world == 1:
                continue
            if bucket and (
                bucket[0].dtype != parameter.dtype or sum(g.numel() for g in bucket) + parameter.numel() > BUCKET
            ):
                _sum_together(bucket)
                bucket = []
            bucket.append(parameter.grad)
        if bucket:
            _sum_together(bucket)

    def _sum_rows(self, parameter: nn.Parameter) -> Tensor:
        """The sum over the ranks of a sparse gradient."""
        gradient = parameter.grad
        if gradient is None:
            nothing = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
            gradient = _sparse(nothing, parameter.new_empty(0, *parameter.shape[1:]), parameter)
        gradient = _each_once(gradient)
        if self.world == 1:
            return gradient
        count = torch.tensor([gradient.indices().shape[1]], device=parameter.device)
        sizes = [int(size) for size in _all_rows(count, [1] * self.world).tolist()]
        rows, values = _all_rows(gradient.indices()[0], sizes), _all_rows(gradient.values(), sizes)
        return _sparse(rows[None], values, parameter).coalesce()

    def sum_scalars(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum of each value over the ranks, in fp64 and on its device. Every rank gives the same names."""
        names = sorted(values)
        if not names:
            return {}
        together = torch.stack([values[name].detach().double() for name in names])
        if self.world > 1:
            dist.all_reduce(together)
        sums = dict(zip(names, together.unbind(), strict=True))
        return {name: sums[name] for name in values}


def numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The values of scalars, read from their device at once: a program waits there for all that a GPU was given."""
    if not values:
        return {}
    read: list[float] = torch.stack([value.double() for value in values.values()]).tolist()
    return dict(zip(values, read, strict=True))


def _sparse(rows: Tensor, values: Tensor, like: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows, values, like.shape, check_invariants=False)


def _each_once(gradient: Tensor) -> Tensor:
    """A sparse gradient with each row once, in order. That of a single encoding is so already, which torch cannot
    know."""
    rows = gradient._indices()[0]
    if bool((rows[1:] > rows[:-1]).all()):
        return gradient._coalesced_(True)
    return gradient.coalesce()


def _sum_together(gradients: Sequence[Tensor]) -> None:
    """Sums these gradients over the ranks in one collective, in place."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
