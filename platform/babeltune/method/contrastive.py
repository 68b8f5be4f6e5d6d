"""The contrastive losses of the methods: their terms, and which candidates are negatives of a row.

With unit rows x_i and y_j, S_ij = x_i·y_j / tau, and soft labels w_ij (`soft_labels`), every term is a case of

    sum_i alpha_i lse_j S_ij + sum_j beta_j lse_i S_ij - sum_ij (r w_ij + c w_ji) S_ij.

`tiled_contrastive.py` finds its exact value and gradient in the memory of a few tiles. A repeated text is no negative:
`Duplicates` leaves it out of a row's log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from torch import Tensor

from babeltune.errors import TrainingError
from babeltune.method.contract import Batch, Gather
from babeltune.method.tiled_contrastive import TILE, CrossEntropy, Formula, Labels, TiledSide

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def occurrences(texts: Int[Tensor, "*shape"], among: Int[Tensor, "candidates"]) -> Int[Tensor, "*shape"]:
    """How many candidates have each of these texts."""
    ordered = among.sort().values
    return torch.searchsorted(ordered, texts, right=True) - torch.searchsorted(ordered, texts)


@dataclass(frozen=True)
class Duplicates:
    """Which candidates are left out of a row's denominator: those with the text of its own positive."""

    local: Int[Tensor, "local *several"]
    """Text ids of this rank's positives; with several a row, candidates with any of them are left out."""
    everyone: Int[Tensor, "global"]
    """Text ids of all candidates."""
    offset: int
    """Row i's positive is candidate offset + i."""
    positives: bool = False
    """Whether the positives themselves are left out too."""

    def others(self, masked: bool) -> Duplicates:
        """Leaves out each row's positive, which the loss counts apart, and (`masked`) its repeats."""
        if masked:
            return replace(self, positives=True)
        places = torch.arange(len(self.everyone), device=self.local.device)
        return Duplicates(places[self.offset : self.offset + len(self.local)], places, self.offset, positives=True)

    def count(self) -> Int[Tensor, ""]:
        """How many own positives have the text of another candidate."""
        return torch.sum(occurrences(self.local, self.everyone) > 1)

    def negatives(self) -> Int[Tensor, "local"]:
        """How many candidates each row keeps, its positive apart."""
        texts = self.local.unsqueeze(-1).flatten(1).sort(1).values  # [local, several]
        times = occurrences(texts, self.everyone)
        times[:, 1:].masked_fill_(texts[:, 1:] == texts[:, :-1], 0)  # the same text twice drops its candidates once
        return len(self.everyone) - times.sum(1)

    def drop(self, similarities: Tensor, i: slice, j: slice) -> None:
        same = self.local[i].unsqueeze(-1) == self.everyone[j]
        same = same if same.ndim == 2 else same.any(1)
        if not self.positives:
            same.diagonal(self.offset + i.start - j.start).fill_(False)
        similarities.masked_fill_(same, -torch.inf)


def everyone(
    x: Float[Tensor, "local dim"], y: Float[Tensor, "local dim"], batch: Batch, gather: Gather
) -> tuple[Float[Tensor, "global dim"], Float[Tensor, "global dim"], Duplicates, Duplicates]:
    """All ranks' vectors of the source side and of the target side, and which texts are repeated on each side."""
    all_x, all_y = gather(torch.cat([x, y], dim=1)).chunk(2, dim=1)
    all_source, all_target = gather(torch.stack([batch.source_ids, batch.target_ids], dim=1)).unbind(1)
    offset = gather.offset(len(x))
    sources, targets = (
        Duplicates(batch.source_ids, all_source, offset),
        Duplicates(batch.target_ids, all_target, offset),
    )
    return all_x, all_y, sources, targets


def check_negatives(total: int) -> None:
    """`TrainingError` for a global batch of one pair, which no other pair stands against."""
    if total < 2:
        raise TrainingError(f"a global batch of {total} pair has no negatives; raise training.global_batch")


def of_both_sides(first: Duplicates, second: Duplicates, masked: bool) -> Duplicates:
    """The candidates that a row leaves out if both sides are candidates, the first side's before the second's. These
    are its own pair and, if `masked`, the repeats of its two texts."""
    sides = [side.others(masked) for side in (first, second)]
    keys = torch.stack([side.local for side in sides], dim=1)
    return Duplicates(keys, torch.cat([side.everyone for side in sides]), first.offset, positives=True)


def negative_shares(
    repeated: Int[Tensor, ""],
    positives: int,
    negatives: Sequence[Int[Tensor, "local"]],
    available: Sequence[Int[Tensor, "local"] | int],
    gather: Gather,
) -> dict[str, Tensor]:
    """This rank's shares of three diagnostics of a contrastive loss.

    `negatives` are the numbers of negatives of the rows, one tensor for each direction, and `available` those of the
    candidates that there were, the row's own positive apart.

    `duplicates` is the part of the global batch's `positives` that are `repeated`: another candidate has their text.
    `negatives_least` is the least that any row keeps. `filtered` is the part of all available candidates that their
    rows leave out, for whatever reason: repeats of the pair's texts, the pre-filter, or the draw of equal M."""
    offered = [torch.zeros_like(rows) + count for rows, count in zip(negatives, available, strict=True)]
    counts = gather(torch.stack([*negatives, *offered], dim=1)).reshape(-1, 2, len(negatives))
    remaining, whole = counts.sum((0, 2))
    shares = {"negatives_least": counts[:, 0].min(), "filtered": (whole - remaining) / whole.clamp(min=1)}
    return {"duplicates": repeated / positives, **{name: value / gather.world for name, value in shares.items()}}


class Terms(TypedDict, total=False):
    """Optional arguments of `tiled_cross_entropy`: the weights and labels of the formula at the top of this module."""

    row_weights: Float[Tensor, "rows"] | None
    """alpha: ones if neither it nor beta is given."""
    column_weights: Float[Tensor, "columns"] | None
    """beta."""
    labels: Labels | None
    """w. Rows i of x are the labels' own, and rows of y are everyone's."""
    label_rows: float
    """r, 0 if it is left out."""
    label_columns: float
    """c, 0 if it is left out."""
    repeats: Duplicates | None
    """Candidates that the rows' log-sum-exps leave out."""
    beside: Float[Tensor, "rows"] | None
    """[rows] one more value in each row's log-sum-exp: that of candidates that only this row has."""


def tiled_cross_entropy(
    x: Float[Tensor, "rows dim"],
    y: Float[Tensor, "columns dim"],
    *,
    temperature: float,
    tile: int | None = None,
    **terms: Unpack[Terms],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The formula above for unit vectors, differentiable once in `x`, `y` and `beside`.

    Also returns sum (r w_ij + c w_ji) a_i·a_j / tau', from which the labels' entropy follows."""
    row_weights, column_weights = terms.get("row_weights"), terms.get("column_weights")
    labels, beside = terms.get("labels"), terms.get("beside")
    if row_weights is None and column_weights is None:
        row_weights = torch.ones(len(x), device=x.device)
    tile = tile or TILE[x.device.type]
    if labels is not None:
        tile = labels.tile
    own_z, all_z = (None, None) if labels is None else (labels.own_log_z, labels.log_z)
    formula = Formula(
        TiledSide(x.detach().float().contiguous(), row_weights, terms.get("label_rows", 0.0), own_z),
        TiledSide(y.detach().float().contiguous(), column_weights, terms.get("label_columns", 0.0), all_z),
        labels,
        terms.get("repeats"),
        temperature,
        tile,
    )
    with_gradient = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in (x, y, beside))
    value, teacher = CrossEntropy.apply(x, y, beside, formula, with_gradient)  # type: ignore[no-untyped-call]
    return value, teacher


def additive_margin(
    a: Float[Tensor, "local dim"],
    b: Float[Tensor, "local dim"],
    candidates: Float[Tensor, "candidates dim"],
    others: Duplicates,
    *,
    scale: float,
    margin: float = 0.0,
) -> Float[Tensor, ""]:
    """sum_i -log( e^{s(a_i.b_i - m)} / ( e^{s(a_i.b_i - m)} + sum_c e^{s a_i.c} ) ) over the unit candidates c that
    `others` (`Duplicates.others`) leaves to row i."""
    positive = scale * ((a * b).sum(1) - margin)
    log_sums, _ = tiled_cross_entropy(a, candidates, temperature=1 / scale, repeats=others, beside=positive)
    return log_sums - positive.sum()
