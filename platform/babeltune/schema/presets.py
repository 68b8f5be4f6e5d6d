"""Shapes of students from scratch by name: `student.preset`.

Mao and Nakagawa 2023 (LEALLA), table 1: thin and deep students of 24 layers. Table 7 has rows of 3 to 24 layers and of
width 64 to 768, and feed-forward layers four times as wide, or as wide as the layer (`-1x`, as in MobileBERT)."""

from dataclasses import dataclass

LAYERS = (3, 6, 12, 24)
WIDTHS = (64, 128, 192, 256, 384, 512, 768)


@dataclass(frozen=True)
class Shape:
    """The fields that a preset decides."""

    layers: int
    width: int
    heads: int
    feed_forward: int


def heads(width: int, times: int) -> int:
    """Attention heads as table 7 prints them. Widths 192, 384 and 768 have 12, and 64, 128 and 256 have 8. Where the
    feed-forward layers are as wide as the layer there are 4. The rows that it does not print follow these."""
    if times == 1:
        return 4
    return 12 if width % 12 == 0 else 8


PRESETS = {
    "lealla-small": Shape(24, 128, 8, 512),
    "lealla-base": Shape(24, 192, 12, 768),
    "lealla-large": Shape(24, 256, 8, 1024),
    **{
        f"thin-deep-{layers}-{width}{name}": Shape(layers, width, heads(width, times), times * width)
        for layers in LAYERS
        for width in WIDTHS
        for name, times in (("", 4), ("-1x", 1))
    },
}
FIELDS = ("layers", "width", "heads", "feed_forward")
"""The student's fields that a preset decides, unless they are given beside it."""
NO_PRESET = Shape(2, 256, 4, 1024)
"""The shape of a student from scratch without a preset."""
