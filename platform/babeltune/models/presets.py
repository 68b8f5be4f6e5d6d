"""Shapes of students from scratch by name: `student.preset`.

Mao and Nakagawa 2023 (LEALLA), table 1 and section 3.2: thin and deep students of 24 layers. Table 7's grid has 3 to 24
layers of width 64 to 768, and feed-forward layers four times as wide or as wide as the layer (`-1x`, as in MobileBERT).
"""

from __future__ import annotations

from dataclasses import dataclass

LAYERS = (3, 6, 12, 24)
WIDTHS = (64, 128, 192, 256, 384, 512, 768)


@dataclass(frozen=True)
class Shape:
    """What a preset decides."""

    layers: int
    width: int
    heads: int
    feed_forward: int


def heads(width: int) -> int:
    """The paper prints 8 for widths 128 and 256, and 12 for 192; the other widths follow these."""
    return 12 if width % 12 == 0 else 8


PRESETS = {
    "lealla-small": Shape(24, 128, 8, 512),
    "lealla-base": Shape(24, 192, 12, 768),
    "lealla-large": Shape(24, 256, 8, 1024),
    **{
        f"thin-deep-{layers}-{width}{name}": Shape(layers, width, heads(width), times * width)
        for layers in LAYERS
        for width in WIDTHS
        for name, times in (("", 4), ("-1x", 1))
    },
}
FIELDS = ("layers", "width", "heads", "feed_forward")
"""The student's fields that a preset decides."""
