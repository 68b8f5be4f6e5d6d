"""Zero-shot transfer: a linear head learns topics from one language's vectors and is scored on those of others.

Pure functions of arrays, in float64 on the CPU from a start at zero, so that the same vectors score the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from babeltune.evaluation.knn import unit

if TYPE_CHECKING:
    from jaxtyping import Float

    from babeltune.evaluation.knn import Vectors

C = 1.0
"""Weight of the summed cross entropy beside half the squared weights (scikit-learn's default)."""
ROUNDS = 1000
"""At most; it converges long before."""


@dataclass(frozen=True)
class Head:
    """A multinomial logistic regression."""

    labels: tuple[str, ...]
    weight: Float[Tensor, "labels dim"]
    bias: Float[Tensor, "labels"]

    def __call__(self, vectors: Vectors) -> list[str]:
        """The likeliest label of each row of [n, d]."""
        best = (_rows(vectors) @ self.weight.T + self.bias).argmax(dim=1)
        return [self.labels[i] for i in best.tolist()]


def fit_head(vectors: Vectors, labels: Sequence[str]) -> Head | None:
    """The head of least C · Σ cross entropy + |weight|² / 2 on the unit vectors of [n, d]; the bias is not penalised.

    None where a vector is not finite, which no head can be fitted to.
    """
    names, truth = np.unique(np.asarray(labels), return_inverse=True)
    x, y = _rows(vectors), torch.from_numpy(truth)
    if not len(x) or not bool(x.isfinite().all()):
        return None
    weight = torch.zeros(len(names), x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(names), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=ROUNDS, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = C * cross_entropy(x @ weight.T + bias, y, reduction="sum") + weight.square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return Head(tuple(names.tolist()), weight.detach(), bias.detach())


def accuracy(truth: Sequence[str], found: Sequence[str]) -> float:
    """Share of equal labels."""
    return float(np.mean([a == b for a, b in zip(truth, found, strict=True)]))


def macro_f1(truth: Sequence[str], found: Sequence[str]) -> float:
    """The mean F1 of all labels that occur, true or found, each counting the same."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, found, average="macro"))


def _rows(vectors: Vectors) -> Float[Tensor, "n dim"]:
    return unit(vectors).double().cpu()
