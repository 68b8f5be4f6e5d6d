"""Any method's loss on the first numbers of each vector, for several dimensions at once.

Kusupati et al. 2022, section 3, "Matryoshka Representation Learning", NeurIPS. Vectors that are trained so can be cut
to any of the dimensions afterwards. As in sentence-transformers' `MatryoshkaLoss` the student encodes once,
its vectors are cut to each dimension and normalised again, and the losses are added up. There the weights may differ;
here they are all 1, as in the paper's experiments.

    L           sum_{m in M} c_m L_m,   c_m = 1
    M           the dimensions, the student's own width among them
    L_m         the method's loss on the first m numbers of each vector, of length 1 if the student normalises"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from babeltune.errors import TrainingError
from babeltune.method.contract import Batch, Cut, Encode, Gather, Loss, Method, Tokens
from babeltune.method.views import Shared, Views

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def cuts_below(dims: Sequence[int], width: int, unit: bool) -> tuple[Cut, ...]:
    """The cuts to those dimensions that are below the student's width, the smallest first.

    Raises:
        TrainingError: a dimension is above the width."""
    if above := [dim for dim in dims if dim > width]:
        raise TrainingError(
            f"training.matryoshka names {max(above)}, and the student's vectors are {width} wide; name no dimension "
            "above that"
        )
    return tuple(Cut(dim, unit) for dim in sorted(set(dims)) if dim < width)


class CutViews(Shared):
    """One dimension's `Encode` for one step: the shared views, cut."""

    def __init__(self, views: Views, cut: Cut) -> None:
        super().__init__(views)
        self.cut = cut

    def together(self, *sides: Tokens) -> list[Float[Tensor, "sentences dim"]]:
        """The next view of each side, cut."""
        return [self.cut(vectors) for vectors in super().together(*sides)]


def matryoshka_loss(method: Method, cuts: Sequence[Cut], encode: Encode, batch: Batch, gather: Gather) -> Loss:
    """sum_{m in M} L_m over the cuts and then the whole vectors, from one forward pass of each view.

    Terms and diagnostics are those of the whole vectors. The loss of each dimension is the term `dim128/loss`."""
    views = Views(encode)
    total: list[Tensor] = []
    dims: dict[str, Tensor] = {}
    for cut in (*cuts, Cut()):
        loss = method.loss(CutViews(views, cut), dataclasses.replace(batch, cut=cut), gather)
        total.append(loss.total)
        dims[f"dim{method.student_dim if cut.dim is None else cut.dim}/loss"] = loss.total.detach()
    return Loss(torch.stack(total).sum(), {**loss.terms, **dims}, loss.diagnostics)
