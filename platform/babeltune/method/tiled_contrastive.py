"""The N × N contrastive losses as tiles: exact value and gradient in the memory of a few tiles.

With unit rows x_i and y_j, S_ij = x_i·y_j / tau, and labels w_ij = softmax_j(a_i·a_j / tau') of teacher vectors a:
every term of the contrastive methods is a case of

    sum_i alpha_i lse_j S_ij + sum_j beta_j lse_i S_ij - sum_ij (r w_ij + c w_ji) S_ij.

One pass over tiles of S finds the log-sum-exps. A second adds up the value and, if it is asked for, the gradient:

    dS_ij = alpha_i softmax_j(S)_ij + beta_j softmax_i(S)_ij - r w_ij - c w_ji

is multiplied with the vectors at once and forgotten. Since a_i·a_j is symmetric, w_ji needs no other normaliser than
w_ij, and one tile of labels serves two tiles of S."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from babeltune.method.contract import Gather
from babeltune.products import product

if TYPE_CHECKING:
    from jaxtyping import Float

TILE = {"cpu": 512, "cuda": 8192}
"""Rows and columns of a tile."""
KEPT = 1 << 22
"""Similarities of a global batch that are kept from the first pass to the second: 16 MB."""

PLAIN = 50.0
"""The largest |v| at which fp32 has room to sum e^v without a shift."""
ROOM = 80.0
"""The largest |v| at which fp32 has room for e^v itself."""


def _spans(count: int, tile: int) -> list[slice]:
    return [slice(start, min(start + tile, count)) for start in range(0, count, tile)]


class _LogSums:
    """log sum_k exp(v_k) of each of `count` lists whose values arrive in tiles, |v| <= bound.

    Up to `PLAIN` the exponentials are summed as they are; above, they are taken less the maximum so far."""

    def __init__(self, count: int, like: Tensor, bound: float) -> None:
        self.plain = bound <= PLAIN
        self.sums = like.new_zeros(count)
        self.most = like.new_full((count,), 0.0 if self.plain else -bound)

    def add(self, tile: Tensor, exponentials: Tensor | None, at: slice, dim: int) -> None:
        """Takes in the tile's values along `dim`; `exponentials` of them if they are plain."""
        if exponentials is not None:
            self.sums[at] += exponentials.sum(dim)
            return
        most = torch.maximum(self.most[at], tile.amax(dim))
        self.sums[at] *= (self.most[at] - most).exp_()
        self.sums[at] += (tile - most.unsqueeze(dim)).exp_().sum(dim)
        self.most[at] = most

    def log(self) -> Tensor:
        return self.sums.log() + self.most


def _add(tile: Tensor, rows: _LogSums | None, i: slice, columns: _LogSums | None, j: slice) -> None:
    """Takes a tile into the sums of its rows and of its columns."""
    some = rows or columns
    exponentials = tile.exp() if some is not None and some.plain else None
    if rows is not None:
        rows.add(tile, exponentials, i, 1)
    if columns is not None:
        columns.add(tile, exponentials, j, 0)


@dataclass(frozen=True)
class Labels:
    """Soft labels w_ij = softmax_j(a_i·a_j / tau') of this rank's rows i among all ranks' j, never written out."""

    local: Float[Tensor, "local dim"]
    """The rows a_i of this rank."""
    everyone: Float[Tensor, "global dim"]
    own_log_z: Float[Tensor, "local"]
    """The normalisers log sum_j exp(a_i·a_j / tau')."""
    log_z: Float[Tensor, "global"]
    temperature: float
    tile: int

    @property
    def plain(self) -> bool:
        """Whether e^(a_i·a_j / tau') has room in fp32."""
        return 1 / self.temperature <= PLAIN

    def similarities(self, i: slice, j: slice) -> Tensor:
        """A tile of a_i·a_j / tau'."""
        return product(self.local[i], self.everyone[j].T).div_(self.temperature)

    @cached_property
    @torch.no_grad()
    def column_sums(self) -> Float[Tensor, "local"]:
        """sum_i w_ij of this rank's columns j: one on average, and only there."""
        sums = torch.zeros_like(self.own_log_z)
        with torch.autocast(self.local.device.type, enabled=False):
            for j in _spans(len(self.local), self.tile):
                for i in _spans(len(self.everyone), self.tile):
                    sums[j] += self.similarities(j, i).sub_(self.log_z[i]).exp_().sum(1)
        return sums


@torch.no_grad()
def soft_labels(
    anchors: Float[Tensor, "local dim"], gather: Gather, *, temperature: float, tile: int | None = None
) -> Labels:
    """The labels of these unit vectors, which gradients do not reach."""
    tile = tile or TILE[anchors.device.type]
    with torch.autocast(anchors.device.type, enabled=False):
        rows = anchors.float()
        everyone = gather(rows)
        alone = len(rows) == len(everyone)
        sums = _LogSums(len(rows), rows, 1 / temperature)
        for i in _spans(len(rows), tile):
            for j in _spans(len(everyone), tile):
                if not alone or i.start <= j.start:
                    similarities = product(rows[i], everyone[j].T).div_(temperature)
                    _add(similarities, sums, i, sums if alone and i.start < j.start else None, j)
    log_z = sums.log()
    return Labels(rows, everyone, log_z, gather(log_z.unsqueeze(1)).squeeze(1), temperature, tile)


class Repeats(Protocol):
    """Candidates that rows leave out of their log-sum-exps: `contrastive.Duplicates`."""

    def drop(self, similarities: Tensor, i: slice, j: slice) -> None:
        """Puts -inf in their places of this tile of S."""


@dataclass(eq=False)
class TiledSide:
    """The rows or the columns of S."""

    vectors: Tensor
    weights: Tensor | None
    """The weights alpha or beta; None for zeros."""
    label_weight: float
    """The weight r or c of the labels."""
    label_log_z: Tensor | None
    sums: Tensor | None = None
    """The log-sum-exps."""
    gradient: Tensor | None = None


@dataclass(eq=False)
class Formula:
    """One evaluation of the formula."""

    rows: TiledSide
    columns: TiledSide
    labels: Labels | None
    repeats: Repeats | None
    temperature: float
    tile: int
    tiles: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The tiles of S by first row and column, if S is one tile or small. Else the second pass makes them again."""

    def similarities(self, left: TiledSide, right: TiledSide, i: slice, j: slice) -> Tensor:
        """A tile of S (of S transposed when `left` is the columns)."""
        if (products := self.tiles.get((i.start, j.start) if left is self.rows else (j.start, i.start))) is not None:
            return products if left is self.rows else products.T
        tile = product(left.vectors[i], right.vectors[j].T).div_(self.temperature)
        if self.repeats is not None:
            self.repeats.drop(tile, i, j)
        whole = len(self.rows.vectors) * len(self.columns.vectors)
        if left is self.rows and (whole <= KEPT or whole == tile.numel()):
            self.tiles[i.start, j.start] = tile
        return tile

    def find_sums(self, beside: Tensor | None) -> None:
        """The first pass."""
        rows, columns = self.rows, self.columns
        row_sums, column_sums = (
            None if side.weights is None else _LogSums(len(side.vectors), side.vectors, 1 / self.temperature)
            for side in (rows, columns)
        )
        for i in _spans(len(rows.vectors), self.tile):
            for j in _spans(len(columns.vectors), self.tile):
                _add(self.similarities(rows, columns, i, j), row_sums, i, column_sums, j)
        rows.sums = row_sums.log() if row_sums else None
        columns.sums = column_sums.log() if column_sums else None
        if beside is not None and rows.sums is not None:
            rows.sums = torch.logaddexp(rows.sums, beside)

    def label_tiles(self) -> Iterator[tuple[TiledSide, TiledSide, slice, slice, Tensor | None, Tensor | None]]:
        """Every tile of S once, or of its transpose, with the tile a_i·a_j / tau' that fits, and its exponentials."""
        alone = self.labels is not None and len(self.labels.local) == len(self.labels.everyone)
        for i in _spans(len(self.rows.vectors), self.tile):
            for j in _spans(len(self.columns.vectors), self.tile):
                if alone and j.start < i.start:
                    continue
                teacher = self.labels.similarities(i, j) if self.labels is not None else None
                powers = teacher.exp() if teacher is not None and self.labels and self.labels.plain else None
                yield self.rows, self.columns, i, j, teacher, powers
                if alone and i.start < j.start:
                    yield self.columns, self.rows, i, j, teacher, powers

    def finish(self) -> tuple[Tensor, Tensor]:
        """The second pass: sums of (r w_ij + c w_ji) S_ij and of (r w_ij + c w_ji) a_i·a_j / tau', and gradients."""
        totals = self.rows.vectors.new_zeros(2, dtype=torch.float64)
        for left, right, i, j, teacher, powers in self.label_tiles():
            values = self.similarities(left, right, i, j)
            labels = None
            if teacher is not None:
                labels = _softmaxes(
                    teacher,
                    powers,
                    (left.label_weight, left.label_log_z, i),
                    (right.label_weight, right.label_log_z, j),
                )
                totals[0] += torch.dot(labels.view(-1), values.reshape(-1))
                totals[1] += torch.dot(labels.view(-1), teacher.view(-1))
            if left.gradient is not None and right.gradient is not None:
                powers = values.exp() if 1 / self.temperature <= PLAIN else None
                change = _softmaxes(values, powers, (left.weights, left.sums, i), (right.weights, right.sums, j))
                if labels is not None:
                    change -= labels
                left.gradient[i] += product(change, right.vectors[j])
                right.gradient[j] += product(change.T, left.vectors[i])
        return totals[0], totals[1]


Normaliser = tuple["Tensor | float | None", "Tensor | None", slice]


def _softmaxes(values: Tensor, powers: Tensor | None, rows: Normaliser, columns: Normaliser) -> Tensor:
    """weight · exp(values - log) of the rows' weights and logarithms, plus the same of the columns'.

    With `powers`, the exponentials of the values, both terms come from them: exponentials are what a tile costs most.
    """
    total = None
    for (weight, log, at), dim in ((rows, 1), (columns, 0)):
        if log is None or weight is None or (isinstance(weight, float) and not weight):
            continue
        share = weight[at] if isinstance(weight, Tensor) else weight
        if powers is not None:
            # A list of masked values alone may have any logarithm; its powers are 0.
            term = ((-log[at]).clamp_(max=ROOM).exp_() * share).unsqueeze(dim)
        else:
            term = (values - log[at].unsqueeze(dim)).exp_()
            term *= share.unsqueeze(dim) if isinstance(share, Tensor) else share
        total = term if total is None else total + term
    if total is None:
        return torch.zeros_like(values)
    return total if powers is None else powers * total


class _Context(Protocol):
    """The tensors that torch keeps between forward and backward pass."""

    gradients: tuple[Tensor, Tensor, Tensor | None]
    """The gradients of the rows, of the columns, and of what stands beside. Gone after a backward pass."""
    temperature: float
    dtypes: tuple[torch.dtype, torch.dtype]

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class CrossEntropy(torch.autograd.Function):
    """The value and gradient of a formula, for torch."""

    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, y: Tensor, beside: Tensor | None, formula: Formula, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        rows, columns = formula.rows, formula.columns
        with torch.autocast(x.device.type, enabled=False):
            formula.find_sums(beside)
            if gradients:
                rows.gradient, columns.gradient = torch.zeros_like(rows.vectors), torch.zeros_like(columns.vectors)
            labelled, teacher = formula.finish() if gradients or formula.labels is not None else (x.new_zeros(()),) * 2
        value = -labelled
        for side in (rows, columns):
            if side.weights is not None and side.sums is not None:
                value = value + torch.dot(side.weights.double(), side.sums.double())
        if rows.gradient is not None and columns.gradient is not None:
            share = None
            if beside is not None and rows.weights is not None and rows.sums is not None:
                share = rows.weights * (beside - rows.sums).exp()
            ctx.gradients = rows.gradient, columns.gradient, share
            ctx.temperature, ctx.dtypes = formula.temperature, (x.dtype, y.dtype)
        teacher = teacher.float()
        ctx.mark_non_differentiable(teacher)
        return value.float(), teacher

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        x, y, beside = ctx.gradients
        del ctx.gradients  # they are scaled in place: a second backward finds nothing
        return (
            x.mul_(scale / ctx.temperature).to(ctx.dtypes[0]),
            y.mul_(scale / ctx.temperature).to(ctx.dtypes[1]),
            None if beside is None else beside * scale,
            None,
            None,
        )
