"""Vectors of random sentences spread over the sphere: a term beside any method's loss.

Zhang et al. 2017, "Learning Spread-out Local Feature Descriptors" (GOR), push the mean and the second moment of the
cosines of random pairs to those of random directions. EmbeddingGemma (2025) keeps the second moment, of both sides, and
its batch is the sample. Every method that trains a student's vectors can have it (`training.spread_out`).

    L_S         1/(N(N-1)) sum_{i != j} (x_i . x_j)^2 + 1/(N(N-1)) sum_{i != j} (y_i . y_j)^2
    x, y        [N, dim]    unit vectors of the source and the target sentences of the global batch

A text that stands in a batch twice adds a constant: equal vectors have the largest cosine, whose gradient is zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import normalize

from babeltune.method.contract import Batch, Encode, Gather, Loss, Method, encode_sides
from babeltune.method.views import Shared, Views

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def second_moment(x: Float[Tensor, "local dim"], gather: Gather, total: int) -> Float[Tensor, ""]:
    """This rank's share of 1/(N(N-1)) sum_{i != j} (x_i . x_j)^2, from products of rows, or of dimensions if those are
    fewer: both have the same sum of squares."""
    everyone = gather(x)
    if len(everyone) <= x.shape[1]:
        squares = (x @ everyone.T).square().sum()
    else:
        products = everyone.T @ everyone
        squares = ((products if everyone is x else x.T @ x) * products).sum()
    return (squares - (x * x).sum(1).square().sum()) / max(1, total * (total - 1))


def spread_loss(method: Method, weight: float, encode: Encode, batch: Batch, gather: Gather) -> Loss:
    """L + weight * L_S, from one encoding; L alone for a weight of 0."""
    if not weight:
        return method.loss(encode, batch, gather)
    views = Views(encode)
    loss = method.loss(Shared(views), batch, gather)
    sides = encode_sides(Shared(views), batch)
    x, y = (second_moment(normalize(side.float(), dim=1), gather, batch.total) for side in sides)
    return Loss(loss.total + weight * (x + y), {**loss.terms, "spread_out": (x + y).detach()}, loss.diagnostics)
