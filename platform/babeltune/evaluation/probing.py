"""Zero-shot transfer: a linear head learns topics from one language's vectors and is scored on those of others.

The head is scikit-learn's logistic regression. Pure functions of arrays, in float64 on the CPU from a start at zero, so
that the same vectors score the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from babeltune.evaluation.knn import unit

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray

    from babeltune.evaluation.knn import Vectors

C = 1.0  # weight of the summed cross entropy beside half the squared weights (scikit-learn's default)
ROUNDS = 1000  # at most; it converges long before
TOLERANCE = 1e-8  # largest gradient at which the head counts as fitted: far below what changes a label


class Classifier(Protocol):
    """A classifier of scikit-learn that was fitted."""

    def predict(self, rows: NDArray[np.float64], /) -> NDArray[np.str_]: ...


@dataclass(frozen=True)
class LinearHead:
    """A linear head that says the likeliest label of a vector."""

    classifier: Classifier

    def __call__(self, vectors: Vectors) -> list[str]:
        """The likeliest label of each row of [n, d]."""
        return [str(label) for label in self.classifier.predict(_rows(vectors))]


def fit_head(vectors: Vectors, labels: Sequence[str]) -> LinearHead | None:
    """The logistic regression on the unit vectors of [n, d], as scikit-learn defines it; the bias is not penalised.

    None if a vector is not finite: no head can be fitted to it. A single label needs no regression."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression

    rows = _rows(vectors)
    if not len(rows) or not np.isfinite(rows).all():
        return None
    several = len(set(labels)) > 1
    head = LogisticRegression(C=C, max_iter=ROUNDS, tol=TOLERANCE) if several else DummyClassifier()
    return LinearHead(head.fit(rows, np.asarray(labels)))


def accuracy(truth: Sequence[str], predicted: Sequence[str]) -> float:
    """Share of equal labels."""
    return float(np.mean([a == b for a, b in zip(truth, predicted, strict=True)]))


def macro_f1(truth: Sequence[str], predicted: Sequence[str]) -> float:
    """The mean F1 of all labels that occur, true or found, each counting the same."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average="macro"))


def _rows(vectors: Vectors) -> Float[NDArray[np.float64], "n dim"]:
    rows: NDArray[np.float64] = unit(vectors).double().cpu().numpy()
    return rows
