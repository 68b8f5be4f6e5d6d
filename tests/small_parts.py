"""Bounds on memory that are so small that a test reaches them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from babeltune.data import arrays, contamination, texts


@contextmanager
def tiny_parts() -> Iterator[None]:
    """Seven values in a part, and every array in a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PART", 7)
        patch.setattr(arrays, "LARGE_ARRAY_BYTES", 0)
        patch.setattr(arrays, "SEGMENT", 4096)
        patch.setattr(texts, "LARGE_TEXTS_BYTES", 0)
        patch.setattr(texts, "BATCH", 5)
        patch.setattr(contamination, "ASKED", 30)
        yield
