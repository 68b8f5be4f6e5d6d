"""The best candidates of many sentences as sorted integers, so that partial results merge exactly, in any order.

A candidate is one int64: its cosine's bits in the upper half, made to sort like the number, and its index, inverted, in
the lower half. The larger key is the larger cosine and, of equal cosines, the lower index; no two candidates have the
same key. So the k largest keys are one definite answer, and merging is associative and commutative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int

EMPTY = -(2**63)  # no candidate: below the key of every cosine
LOW = 2**32 - 1  # the largest index


def pack(cosine: Float[Tensor, "*shape"], index: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The keys of candidates."""
    bits = (cosine.float() + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0, which equals it
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) | (LOW - index)


def cosine_of(keys: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The cosines, -inf if there is no candidate."""
    ordered = (keys >> 32).int()
    cosine = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return torch.where(keys == EMPTY, -torch.inf, cosine)


def index_of(keys: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The indices, -1 if there is no candidate."""
    return torch.where(keys == EMPTY, -1, LOW - (keys & LOW))


def empty(rows: int, k: int) -> Int[Tensor, "rows k"]:
    """Nothing found yet."""
    return torch.full((rows, k), EMPTY)


def merge(*keys: Int[Tensor, "rows _"], k: int) -> Int[Tensor, "rows k"]:
    """The k best of disjoint candidates of the same sentences, best first. Rows with fewer end in `EMPTY`."""
    together = torch.cat(keys, dim=1)
    if together.shape[1] < k:
        together = torch.cat([together, empty(len(together), k - together.shape[1]).to(together.device)], dim=1)
    return together.topk(k, dim=1).values
