"""The N × N contrastive losses as tiles: exact value and gradient in the memory of a few tiles.

With unit rows x_i and y_j, S_ij = x_i·y_j / tau, and labels w_ij = softmax_j(a_i·a_j / tau') of teacher vectors a,
every term of the contrastive methods is a case of

    sum_i alpha_i lse_j S_ij + sum_j beta_j lse_i S_ij - sum_ij (r w_ij + c w_ji) S_ij.

One pass over tiles of S finds the log-sum-exps. A second adds up the value and, where it is asked for, the gradient:

    dS_ij = alpha_i softmax_j(S)_ij + beta_j softmax_i(S)_ij - r w_ij - c w_ji

is multiplied with the vectors at once and forgotten. Since a_i·a_j is symmetric, w_ji needs no other normaliser than
w_ij, and one tile of labels serves two tiles of S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from babeltune.method import Gather

if TYPE_CHECKING:
    from jaxtyping import Float, Int

TILE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of a tile."""


def _spans(count: int, tile: int) -> list[slice]:
    return [slice(start, min(start + tile, count)) for start in range(0, count, tile)]


class _LogSums:
    """log sum_k exp(v_k) of each of `count` lists whose values, none above `bound`, arrive in tiles.

    A bound of at most 50 leaves room in fp32 to sum exponentials as they are; above, they are taken less the maximum
    so far.
    """

    def __init__(self, count: int, like: Tensor, bound: float) -> None:
        self.plain = bound <= 50
        self.sums = like.new_zeros(count)
        self.most = like.new_full((count,), 0.0 if self.plain else -bound)

    def add(self, tile: Tensor, at: slice, across: slice | None = None, other: _LogSums | None = None) -> None:
        """Takes in the tile's rows at `at`, and gives its columns at `across` to `other`."""
        if self.plain:
            exponentials = tile.exp()
            self.sums[at] += exponentials.sum(1)
            if other is not None:
                other.sums[across] += exponentials.sum(0)
            return
        self._add_less_maximum(tile, at)
        if other is not None and across is not None:
            other._add_less_maximum(tile.T, across)

    def _add_less_maximum(self, tile: Tensor, at: slice) -> None:
        most = torch.maximum(self.most[at], tile.amax(1))
        self.sums[at] *= (self.most[at] - most).exp_()
        self.sums[at] += (tile - most.unsqueeze(1)).exp_().sum(1)
        self.most[at] = most

    def log(self) -> Tensor:
        return self.sums.log() + self.most


@dataclass(frozen=True)
class Labels:
    """Soft labels w_ij = softmax_j(a_i·a_j / tau') of this rank's rows i among all ranks' j, never written out."""

    own: Float[Tensor, "local dim"]
    """a_i / sqrt(tau') of this rank's rows."""
    everyone: Float[Tensor, "global dim"]
    own_log_z: Float[Tensor, "local"]
    """log sum_j exp(a_i·a_j / tau')."""
    log_z: Float[Tensor, "global"]

    def column_sums(self, tile: int | None = None) -> Float[Tensor, "local"]:
        """sum_i w_ij of this rank's columns j: one on average, and only there."""
        tile = tile or TILE[self.own.device.type]
        sums = torch.zeros_like(self.own_log_z)
        with torch.autocast(self.own.device.type, enabled=False):
            for j in _spans(len(self.own), tile):
                for i in _spans(len(self.everyone), tile):
                    sums[j] += (self.own[j] @ self.everyone[i].T).sub_(self.log_z[i]).exp_().sum(1)
        return sums


@torch.no_grad()
def soft_labels(
    anchors: Float[Tensor, "local dim"], gather: Gather, *, temperature: float, tile: int | None = None
) -> Labels:
    """The labels of these unit vectors, which gradients do not reach."""
    tile = tile or TILE[anchors.device.type]
    with torch.autocast(anchors.device.type, enabled=False):
        own = anchors.float() * temperature**-0.5
        everyone = gather(own)
        alone = len(own) == len(everyone)
        sums = _LogSums(len(own), own, 1 / temperature)
        for i in _spans(len(own), tile):
            for j in _spans(len(everyone), tile):
                if not alone or i.start <= j.start:
                    mirrored = alone and i.start < j.start
                    sums.add(own[i] @ everyone[j].T, i, j, sums if mirrored else None)
    log_z = sums.log()
    return Labels(own, everyone, log_z, gather(log_z.unsqueeze(1)).squeeze(1))


@dataclass
class _Side:
    """The rows or the columns of S, with what (*) says of them."""

    vectors: Tensor
    weights: Tensor | None
    """alpha or beta."""
    label_weight: float
    """r or c."""
    label_log_z: Tensor | None
    log_sums: Tensor | None = None
    gradient: Tensor | None = None


def _softmaxes(values: Tensor, *normalisers: tuple[Tensor | float | None, Tensor | None]) -> Tensor | None:
    """The sum of weight · exp(values - log), over (weight, log) shaped to broadcast; None where all are absent."""
    total: Tensor | None = None
    for weight, log in normalisers:
        if weight is None or log is None:
            continue
        term = (values - log).exp_().mul_(weight)
        total = term if total is None else total.add_(term)
    return total


@dataclass(frozen=True)
class _Problem:
    """One case of the formula, its temperature within `rows`."""

    rows: _Side
    columns: _Side
    labels: Labels | None
    texts: tuple[Tensor, Tensor] | None
    offset: int
    bound: float
    tile: int
