"""Refuses a sweep whose thresholds leave no trial enough pairs, before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from babeltune.data.thresholds import THRESHOLDS, thresholds, within_limits
from babeltune.errors import SpecError
from babeltune.planning.parameters import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from babeltune.data.thresholds import ScoresOf
    from babeltune.schema.records import Sampling, Sweep


def mildest(sweep: Sweep) -> Sampling:
    """The sampling section with each threshold at the value, of those that a trial can have, that leaves out least."""
    sampling = sweep.data.sampling
    values: dict[str, Any] = {}
    for name in THRESHOLDS:
        if parameter := sweep.parameters.get(f"data.sampling.{name}"):
            reachable: list[Any] = [*values_of(parameter, 0), *values_of(parameter, 1)]
            reachable += [getattr(sampling, name)] if parameter.when else []  # where it is not searched
            values[name] = (min if name.startswith("least") else max)(reachable)
    return replace(sampling, **values)


def pairs_left(
    sweep: Sweep, groups: NDArray[np.integer], scores_of: ScoresOf, names: Sequence[str] = THRESHOLDS
) -> int:
    """How many training pairs the mildest of these thresholds leave, from the language pair [pairs] of each.

    Raises:
        SpecError: no language pair is left two pairs."""
    import numpy as np

    limits, left = thresholds(mildest(sweep), names), None
    for count, (name, limit) in enumerate(limits.items(), 1):
        left = within_limits(scores_of, groups, {name: limit}, left)
        if np.bincount(groups[left], minlength=1).max() < 2:
            applied = list(limits.items())[:count]
            words = ", ".join(f"{each} {value}" for each, value in applied)
            searched = any(f"data.sampling.{each}" in sweep.parameters for each, _ in applied)
            raise SpecError(
                f"data.sampling: {words} leave{'s' * (count == 1)} {len(groups[left]):,} of {len(groups):,} pairs"
                f"{', at the mildest that is searched' * searched}, and a batch needs two of one language pair; "
                f"give {'another value' if count == 1 else 'other values'}"
            )
    return len(groups) if left is None else len(left)
