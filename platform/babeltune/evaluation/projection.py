"""The vectors of translations, in numbers that a chart can show: cosines, and positions in a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from babeltune.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float32]

PERPLEXITY = 12.0  # about how many neighbours of a point t-SNE keeps near. Small, because a chart has few points.
ITERATIONS = 400  # steps of t-SNE. 150 points hardly move after them, and they take half a second.
FEWEST = 5  # points below which there is nothing to project


def cosines(left: Rows, right: Rows) -> Rows:
    """[left, right] the cosine of every row of one side with every row of the other."""
    return unit_rows(left) @ unit_rows(right).T


def in_plane(vectors: Rows, *, seed: int = 0) -> Rows:
    """[vectors, 2] positions by t-SNE (van der Maaten and Hinton 2008): near where cosines are high.

    Raises `DataError` for too few vectors and for vectors that are all alike."""
    if len(vectors) < FEWEST:
        raise DataError(f"{len(vectors)} sentences are too few to be projected; {FEWEST} are needed")
    unit = unit_rows(vectors)
    if not np.isfinite(unit).all() or np.ptp(unit, axis=0).max() < 1e-6:
        raise DataError("all vectors are alike, so they have no positions")
    from sklearn.manifold import TSNE

    projection = TSNE(
        n_components=2,
        init="pca",
        method="exact",  # faster than the approximation up to some hundred points
        perplexity=min(PERPLEXITY, (len(vectors) - 1) / 3),
        max_iter=ITERATIONS,
        random_state=seed,
    )
    positions: Rows = projection.fit_transform(unit).astype(np.float32)
    return positions


def unit_rows(vectors: Rows) -> Rows:
    """The rows with length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Rows = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32, copy=False)
    return scaled
