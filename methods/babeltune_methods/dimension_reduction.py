"""Dimension reduction of a frozen sentence encoder.

Mao and Nakagawa 2023, "LEALLA: Learning Lightweight Language-agnostic Sentence Embeddings with Knowledge
Distillation", EACL, section 3.2. One dense layer on top of the frozen encoder is trained to rank translations with an
additive margin, as LaBSE was: how few dimensions do its vectors need? The trained layer also makes the teacher of
LEALLA's synchronized variant.

    N           pairs in the global batch; n of them on this rank
    e_x, e_y    [n, width]   the frozen encoder's vectors of source and target sentences
    W           a linear layer width -> dim
    x, y        [n | N, dim] unit vectors of W e_x and W e_y
    phi(a, b)   cos(a, b)
    m, s        margin and scale"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.functional import normalize

from babeltune.method import EVERY, Batch, Encode, Gather, Loss, Method, Needs, encode_together
from babeltune.method.checks import above_zero, at_least
from babeltune.method.contrastive import additive_margin, check_negatives, everyone, negative_shares


@dataclass(frozen=True)
class Config:
    """A width that costs LaBSE hardly anything, and LEALLA's margin and scale."""

    dim: int = 128
    """Section 3.2 and table 6: 512, 384, 256, 192, 128, 64, 32. At 128 Tatoeba has fallen from 83.7 to 83.1."""
    margin: float = 0.3
    """m of equation 2, which has no printed value; 0.3 is LaBSE's."""
    scale: float = 20.0
    """s, ours: equation 2 has none."""
    mask_duplicates: bool = True
    """Repeats of a row's positive are no negatives: ours. The paper does not mask."""

    def __post_init__(self) -> None:
        at_least(self, 1, "dim")
        above_zero(self, "scale")
        if not 0 <= self.margin < 2:
            raise ValueError(f"margin is {self.margin}; it is a difference of cosines, 0 up to 2")

    @classmethod
    def paper(cls) -> Config:
        """As printed: no scale, no mask."""
        return cls(scale=1.0, mask_duplicates=False)


class DimensionReduction(Method):
    name = "dimension_reduction"
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int) -> None:
        super().__init__(config, student_dim=student_dim, teacher_dim=teacher_dim)
        self.dense = nn.Sequential(nn.Linear(student_dim, config.dim))

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(frozen=True, in_batch_negatives=True)

    def layers(self) -> Mapping[str, nn.Sequential]:
        return {EVERY: self.dense}

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """(1/N) sum_i [ l(x_i, y_i) + l(y_i, x_i) ], l(x_i, y_i) = -log e^{s(phi_ii - m)} / ( e^{s(phi_ii - m)} +
        sum_{n != i} e^{s phi_in} )."""
        config: Config = self.config
        total = batch.total
        check_negatives(total)
        x, y = (normalize(self.dense(e.float()), dim=1) for e in encode_together(encode, batch.source, batch.target))
        all_x, all_y, sources, targets = everyone(x, y, batch, gather)
        settings = {"scale": config.scale, "margin": config.margin}
        left_out = [side.others(config.mask_duplicates) for side in (targets, sources)]
        forward = additive_margin(x, y, all_y, left_out[0], **settings) / total
        backward = additive_margin(y, x, all_x, left_out[1], **settings) / total
        diagnostics = {
            **negative_shares(
                sources.count() + targets.count(),
                2 * total,
                [side.negatives() for side in left_out],
                [total - 1] * 2,
                gather,
            ),
            "cosine": (x * y).sum().detach() / total,
        }
        terms = {"forward": forward.detach(), "backward": backward.detach()}
        return Loss(forward + backward, terms, diagnostics)
