"""A FIFO queue of frozen vectors as negatives, and the log-sum-exps over it that a contrastive loss needs.

The queue holds what the teacher made of earlier batches (Tan et al. 2023, Algorithm 1), so no gradient reaches it and
nothing in it grows old. The loss visits it a tile at a time. Similarities, filter, sums and the gradient of a tile come
from one product with its vectors. Nothing of batch x queue is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from babeltune.method.contract import Gather
from babeltune.method.tiled_contrastive import PLAIN
from babeltune.products import product

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

TILE = {"cpu": 1024, "cuda": 16_384}
"""Candidates of a tile."""


class Queue(nn.Module):
    """The latest `capacity` vectors and their text ids. Buffers, so a checkpoint holds them and a resume goes on."""

    vectors: Tensor
    ids: Tensor
    pushed: Tensor

    def __init__(self, capacity: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(capacity, dim))
        self.register_buffer("ids", torch.full((capacity,), -1))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long))
        self.full = False
        """Whether it is known to be full, and so stays."""

    def __len__(self) -> int:
        if not self.full:  # a full one stays full, and a GPU need not be waited for
            self.full = int(self.pushed) >= len(self.vectors)
        return len(self.vectors) if self.full else int(self.pushed)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.full = False

    @torch.no_grad()
    def push(self, vectors: Float[Tensor, "rows dim"], ids: Int[Tensor, "rows"]) -> None:
        """Takes in these rows, oldest first, in place of the oldest. All ranks push all ranks' rows in rank order."""
        capacity = len(self.vectors)
        self.pushed += len(ids)
        vectors, ids = vectors[-capacity:], ids[-capacity:]
        places = (self.pushed - len(ids) + torch.arange(len(ids), device=ids.device)) % capacity
        self.vectors[places] = vectors.to(self.vectors.dtype)
        self.ids[places] = ids

    def candidates(self) -> tuple[Float[Tensor, "entries dim"], Int[Tensor, "entries"]]:
        """The queue's vectors and their text ids. Both are views, so a later push changes them."""
        return self.vectors[: len(self)], self.ids[: len(self)]


NOWHERE = -2
"""A text id that no candidate has; an empty entry of the queue has -1."""
EQUAL = 1e-6
"""How far below 1 rounding leaves the fp32 product of a unit vector with itself."""


@dataclass(frozen=True)
class Filter:
    """Which candidates c are negatives of row i: S_i = {c : k_i . c < below, and c is not the text of row i}."""

    positives: Float[Tensor, "rows dim"]
    """k_i, the unit vectors that candidates are compared with."""
    ids: Int[Tensor, "rows"]
    """The rows' own texts; -1 leaves none out."""
    below: float | None = None
    """None lets every similarity pass; 1 all but that of an equal text, which rounding may leave a little below it."""
    chosen: Bool[Tensor, "rows candidates"] | None = None
    """Only these, if they were chosen beforehand (`equal_m`)."""

    def keep(
        self, similarities: Float[Tensor, "rows tile"] | None, ids: Int[Tensor, "tile"], at: slice
    ) -> Bool[Tensor, "rows tile"]:
        """Which candidates of the tile `at` are negatives of each row (S_i). `below` needs `similarities`."""
        if self.chosen is not None:
            return self.chosen[:, at]
        mask = self.ids.where(self.ids >= 0, NOWHERE).unsqueeze(1) != ids
        if similarities is not None and self.below is not None:
            mask &= similarities < min(self.below, 1 - EQUAL)
        return mask


@torch.no_grad()
def equal_m(
    whole: Filter,
    candidates: Float[Tensor, "candidates dim"],
    ids: Int[Tensor, "candidates"],
    texts: Int[Tensor, "rows"],
    gather: Gather,
) -> Filter:
    """The filter that leaves every row of the global batch M = min_i |S_i| negatives, drawn at random from its own.

    Tan et al. 2023, appendix A. The draw is a hash of the row's text (`texts`), the candidate's and its position. So
    it is the same at any number of ranks and after a resume, and differs between rows and candidates."""
    mask = whole.keep(whole.positives @ candidates.T, ids, slice(None))
    least = int(gather(mask.sum(1, keepdim=True)).min())
    places = torch.arange(len(ids), device=ids.device)
    lot = (texts.unsqueeze(1) * 0x9E3779B1 + ids * 0x27D4EB2F + places * 0x85EBCA77) & 0x7FFFFFFF
    lot = ((lot ^ (lot >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    lot = (lot ^ (lot >> 12)).masked_fill(~mask, 1 << 31)
    drawn = torch.zeros_like(mask).scatter_(1, lot.argsort(dim=1, stable=True)[:, :least], True)
    return replace(whole, chosen=mask & drawn)


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    mean: Tensor
    """The gradient of the rows. Gone after a backward pass."""
    needs_input_grad: tuple[bool, ...]

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, q: Tensor, candidates: Tensor, ids: Tensor, negatives: Filter, temperature: float, tile: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, plain, with_gradient = len(q), 1 / temperature <= PLAIN, ctx.needs_input_grad[0]
        filtered = negatives.below is not None and negatives.chosen is None
        queries = torch.cat([q, negatives.positives]) if filtered else q
        most = q.new_full((rows, 1), 0.0 if plain else -1 / temperature)
        sums, means = q.new_zeros(rows, 1), torch.zeros_like(q)
        counts = torch.zeros(rows, dtype=torch.long, device=q.device)
        similarity = q.new_zeros(())
        with torch.autocast(q.device.type, enabled=False):
            for start in range(0, len(candidates), tile):
                at = slice(start, start + tile)
                products = product(queries, candidates[at].T)
                mask = negatives.keep(products[rows:] if filtered else None, ids[at], at)
                values = products[:rows].div_(temperature).masked_fill_(~mask, -torch.inf)
                counts += mask.sum(1)
                if filtered:
                    similarity += products[rows:].sum()
                if not plain:
                    higher = torch.maximum(most, values.amax(1, keepdim=True))
                    shrink = (most - higher).exp_()
                    sums, means, most = sums * shrink, means * shrink, higher
                    values -= most
                values.exp_()
                sums += values.sum(1, keepdim=True)
                if with_gradient:
                    means += product(values, candidates[at])
        if with_gradient:
            ctx.mean = means.div_(sums * temperature).masked_fill_(sums == 0, 0.0)
        if not filtered:
            similarity = negatives.positives.sum(0) @ candidates.sum(0)
        similarity /= max(1, len(candidates))
        ctx.mark_non_differentiable(counts, similarity)
        return (sums.log() + most).squeeze(1), counts, similarity

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mean = ctx.mean
        del ctx.mean  # it is scaled in place: a second backward finds nothing
        return mean.mul_(gradients[0].unsqueeze(1)), None, None, None, None, None


def log_sums(
    q: Float[Tensor, "rows dim"],
    candidates: Float[Tensor, "candidates dim"],
    ids: Int[Tensor, "candidates"],
    negatives: Filter,
    *,
    temperature: float,
    tile: int | None = None,
) -> tuple[Float[Tensor, "rows"], Int[Tensor, "rows"], Float[Tensor, ""]]:
    """log sum_{c in S_i} e^(q_i . c / temperature) of unit vectors, |S_i|, and sum_i mean_c k_i . c.

    The first is -inf if S_i is empty, and differentiable once in `q` alone. The last is the similarity of all
    candidates to the positives, before the filter. Needs memory for one tile of rows x `tile`."""
    rows = q.float() if torch.is_grad_enabled() else q.detach().float()
    sums: tuple[Tensor, Tensor, Tensor] = _LogSums.apply(  # type: ignore[no-untyped-call]
        rows, candidates, ids, negatives, temperature, tile or TILE[q.device.type]
    )
    return sums
