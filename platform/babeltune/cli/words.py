"""How the command line writes numbers, times, settings and curves: short, and never folded inside a number."""

from collections.abc import Mapping, Sequence

from babeltune.schema.base import number

BLOCKS = "▁▂▃▄▅▆▇█"  # heights of a sparkline, the lowest first
ELLIPSIS = "…"


def duration(seconds: float) -> str:
    """A time as people say it: `12 s`, `4 min`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole >= 2 else f"{seconds:.1f} s"
    minute = round(whole / 60)
    return f"{minute} min" if minute < 60 else f"{minute // 60:,} h {minute % 60:02d} min"


def weights(count: float) -> str:
    """A model's size."""
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,.0f}"


def sparkline(values: Sequence[float], width: int = 8) -> str:
    """A curve as block characters, its lowest value at the bottom. A long one keeps its first and last value."""
    if len(values) > width:
        places = [round(index * (len(values) - 1) / (width - 1)) for index in range(width)]
        values = [values[place] for place in places]
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[3] * len(values)
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((value - low) / (high - low) * top)] for value in values)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each setting's last part, such as `learning_rate`. Settings that share it keep their whole names."""
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def settings_words(
    params: Mapping[str, object], width: int | None = None, names: Mapping[str, str] | None = None
) -> str:
    """Settings as `key=value`, as many as fit in `width` columns. A value is shown whole or not at all.

    `names` gives shorter names. What is left out shows as `…`."""
    titles = names or {}
    pieces = [f"{titles.get(key, key)}={number(value)}" for key, value in params.items()]
    whole = " ".join(pieces)
    if width is None or len(whole) <= width:
        return whole
    shown = ""
    for piece in pieces:
        longer = f"{shown} {piece}".strip()
        if len(longer) + 2 > width:
            break
        shown = longer
    return f"{shown} {ELLIPSIS}".strip()
