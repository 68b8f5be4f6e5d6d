"""Opens the pictures of the tables' pages, which are the same bytes whenever they are drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def panels(picture: Path, count: int, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with `count` panels side by side, 7 inches wide. It is written at the end."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "table", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(7, height), layout="constrained", squeeze=False)
    yield figure, list(axes[0])
    figure.savefig(picture, metadata={"Date": None})
    pyplot.close(figure)
