"""Temperatures that fit a teacher: the one at which a row's own pair has a stated share of the label weight.

A method says what its `auto` settings ask for (`Method.fits`), and `training/own_share.py` measures them on batches of
the training text. Cosines of one teacher lie in .7 to .9 and of another around 0, so no fixed number suits both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn.functional import normalize

from babeltune.errors import MethodError, TrainingError
from babeltune.method.checks import above_zero

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

AUTO: Literal["auto"] = "auto"
"""Stands for a temperature that is measured before the first trial."""
LOWEST, HIGHEST = 1e-3, 1e3
"""Temperatures between which is searched. Below, the loss of a tile loses digits."""
SAME_TEXT = 1 - 1e-6
"""`OwnShare.below` that leaves out candidates with a row's own text."""
HALVINGS = 48
"""Halvings of that range, after which a temperature is known to twelve digits."""
ROUNDING = 1e-6
"""A share this near to the least or the most that any temperature gives is not looked for."""
DIGITS = 4
"""Digits of a temperature that are kept: more would depend on the order in which a machine adds."""


@dataclass(frozen=True)
class OwnShare:
    """The goal of an `auto` temperature t: the mean over rows i of exp(cos_ii / t) / sum_j exp(cos_ij / t), with
    the teacher's cosines of the pairs of a batch."""

    share: float
    sides: tuple[Literal["source", "target"], ...] = ("source",)
    """The sides whose teacher vectors are compared. With both, a cosine is the mean of theirs."""
    below: float = math.inf
    """Candidates with a cosine from here on are left out, as a filter does."""
    queue: int = 0
    """Candidates beside a row's own pair that come from a queue; 0: those of the batch."""


def check_auto(config: object, *fields: str, own_share: float) -> None:
    """Raises `ValueError` unless each field is a finite number above 0, `auto` or None, and `own_share` a share."""
    above_zero(config, *(field for field in fields if getattr(config, field) != AUTO))
    if not 0 < own_share < 1:
        raise ValueError(f"own_share is {own_share}; it must be above 0 and below 1")


def number(temperature: float | str) -> float:
    """The temperature. Raises `TrainingError` for one that nobody has measured."""
    if isinstance(temperature, str):
        raise TrainingError(
            f"a temperature is {temperature!r}, and was not measured; train it with `babeltune submit`, "
            "`python -m babeltune.train`, or give a number"
        )
    return temperature


def compared(sides: Sequence[Float[Tensor, "pairs teacher"]]) -> Float[Tensor, "pairs teachers"]:
    """Unit vectors whose cosines are the mean of the sides' cosines."""
    return torch.cat([normalize(side.float(), dim=1) for side in sides], dim=1) / math.sqrt(len(sides))


def label_shape(g: Float[Tensor, "pairs teacher"], temperature: float) -> tuple[float, float]:
    """Mean weight of a row's own pair, and the labels' mean entropy as a share of log N."""
    w = (g @ g.T / temperature).log_softmax(dim=1)
    entropy = -(w.exp() * w).sum(1).mean() / math.log(len(g))
    return w.diagonal().exp().mean().item(), entropy.item()


def fitted_temperature(own_share: OwnShare, batches: Iterable[Float[Tensor, "pairs teacher"]], rows: int) -> float:
    """The temperature that gives the share, over all rows of the batches' unit vectors; of each batch at most `rows`
    are looked at. Raises `MethodError` for a share that no temperature gives."""
    distances = [_distances(g, own_share.below, rows) for g in batches]
    size = max(d.shape[1] for d in distances)

    def share(temperature: float) -> float:
        parts = torch.cat([1 / (d / temperature).exp().sum(1) for d in distances])
        return parts.mean().item()

    flattest, hardest = share(HIGHEST), share(LOWEST)
    if not flattest * (1 + ROUNDING) < own_share.share < hardest * (1 - ROUNDING):
        raise MethodError(
            f"own_share {own_share.share:g} cannot be had: in batches of {size} the own pair has {flattest:.3g} to "
            f"{hardest:.3g} of a label, whatever the temperature; give a share between these"
            + (", or text whose anchors differ" if own_share.share >= hardest else ", or larger batches")
        )
    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share(math.exp(middle)) > own_share.share else (low, middle)
    return float(f"{math.exp(low):.{DIGITS}g}")


def _distances(g: Float[Tensor, "pairs teacher"], below: float, rows: int) -> Float[Tensor, "rows pairs"]:
    """cos_ij - cos_ii of rows at equal distances; minus infinity for what the filter leaves out."""
    g = normalize(g.double(), dim=1)
    chosen = torch.linspace(0, len(g) - 1, min(rows, len(g))).long()
    cosines = g[chosen] @ g.T
    own_cosines = cosines[torch.arange(len(chosen)), chosen].unsqueeze(1)
    left_out = cosines >= below
    left_out[torch.arange(len(chosen)), chosen] = False
    return (cosines - own_cosines).masked_fill(left_out, -math.inf)
