"""The picture of a table's page: cosines of a few translations before and after training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from babeltune.errors import SweepError
from babeltune.sweep.state.examples import read_examples
from babeltune.sweep.state.folder import SweepFolder
from benchmarks.tables.drawing import panels

Maps = Mapping[str, Any]


def heat_maps_of(folder: SweepFolder) -> dict[str, Any]:
    """The maps of the best trial of a sweep, which has made them at its end."""
    examples = read_examples(folder)
    if not examples.similarities:
        raise SweepError(f"{folder.id} has no heat map: {examples.missing or 'no language has enough sentences'}")
    first = examples.similarities[0]
    return {
        "trial": f"{folder.id}/{examples.trial}",
        "languages": [first.left, first.right],
        "before": [list(line) for line in first.before],
        "after": [list(line) for line in first.after],
    }


def draw(maps: Maps, picture: Path) -> None:
    """Two panels, before and after training, one square for each two sentences."""
    with panels(picture, 2, 3.2) as (figure, axes):
        for panel, moment in zip(axes, ("before", "after"), strict=True):
            mesh = panel.pcolormesh(maps[moment], vmin=0, vmax=1, cmap="Blues")
            panel.set(
                title=f"{moment} training", ylabel=maps["languages"][0], xlabel=maps["languages"][1], aspect="equal"
            )
            panel.invert_yaxis()
            panel.set_xticks([])
            panel.set_yticks([])
        figure.colorbar(mesh, ax=axes, label="cosine")
