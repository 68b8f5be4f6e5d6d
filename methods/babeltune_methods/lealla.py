"""Lightweight language-agnostic sentence embeddings by knowledge distillation (LEALLA).

Mao and Nakagawa 2023, "LEALLA: Learning Lightweight Language-agnostic Sentence Embeddings with Knowledge Distillation",
EACL; weights were released, no code. A thin, deep student learns three things at once. It ranks translations with an
additive margin (AMS). It learns the teacher's vectors through a head that only training has (FD), and the teacher's
similarities across the two languages (LD).

Two variants that the paper found worse (appendix C) have the student as wide as the teacher (`student.projection:
teacher`) and no head. In `distillation_first` FD is on these vectors, and D, which the exported model keeps, projects
them down to those of AMS and LD. In `synchronized` the teacher's vectors have the student's width from the start:
`teacher.model` is a promoted model of `dimension_reduction`, whose trained layer stays frozen.

    N             pairs in the global batch; n of them on this rank
    x, y          [n | N, dim]       unit vectors of source and target sentences, x^S and y^S
    g_x, g_y      [n | N, teacher]   the frozen teacher's unit vectors, x^T and y^T
    phi(a, b)     cos(a, b)
    F             a linear layer dim -> teacher
    D             a linear layer teacher -> embedding, of the distillation-first variant
    m, s          margin and scale of AMS
    T             temperature of LD"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import EVERY, Batch, Encode, Gather, Loss, Method, Needs, encode_sides
from babeltune.method.checks import above_zero, at_least, one_of
from babeltune.method.contrastive import additive_margin, check_negatives, everyone, negative_shares

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Config:
    """The paper's weights, with the scales under which they train; a weight of 0 leaves its term out."""

    variant: Literal["standard", "distillation_first", "synchronized"] = "standard"
    """`standard`: FD through a head that is dropped (equation 3). `distillation_first`: FD before a layer that projects
    down; `synchronized`: FD without either (appendix C)."""
    embedding: int = 128
    """Width of `distillation_first`'s embedding (table 1, d_h: 128, 192, 256)."""
    alpha: float = 1.0
    """Weight of AMS in equation 5 (appendix B: 1)."""
    beta: float = 1e3
    """Weight of FD in equation 5 (appendix B: 1e3 for small and base, 1e4 for large; table 5: 1e2 to 1e5)."""
    gamma: float = 1e-2
    """Weight of LD in equation 5 (appendix B: 1e-2; table 5: 1e-1 to 1e-3)."""
    margin: float = 0.3
    """m of equation 2, which has no printed value; 0.3 is LaBSE's."""
    scale: float = 20.0
    """s of AMS, ours: equation 2 has none. At 1 and N = 8192 a perfect student's loss is still 8.3 of at most 9.0."""
    reduction: Literal["mean", "sum"] = "mean"
    """How FD is reduced over the teacher's dimensions. Equation 3 prints the squared norm, a sum. The mean is ours:
    with it beta = 1e3 makes FD as large as AMS."""
    temperature: float = 100.0
    """T of equation 4 (appendix B: 100)."""
    temperature_mode: Literal["multiply", "divide"] = "multiply"
    """Equation 4 prints a division. It leaves gamma / T^2 = 1e-6 of LD, too little for what LD does in table 8; so the
    multiplication is ours."""
    head_input: Literal["normalized", "plain"] = "normalized"
    """The vectors that F, or FD without a head, reads: ours, as the paper does not say. With `student.normalize: false`
    they differ."""
    mask_duplicates: bool = True
    """Repeats of a row's positive are no negatives: ours. The paper does not mask."""

    def __post_init__(self) -> None:
        at_least(self, 0, "alpha", "beta", "gamma")
        at_least(self, 1, "embedding")
        if not self.alpha and not self.beta and not self.gamma:
            raise ValueError("alpha, beta and gamma are all 0; at least one term must have a weight")
        above_zero(self, "scale", "temperature")
        if not 0 <= self.margin < 2:
            raise ValueError(f"margin is {self.margin}; it is a difference of cosines, 0 up to 2")
        one_of(
            self,
            variant=("standard", "distillation_first", "synchronized"),
            reduction=("mean", "sum"),
            temperature_mode=("multiply", "divide"),
            head_input=("normalized", "plain"),
        )

    @classmethod
    def paper(cls) -> Config:
        """The equations as printed: no scale, squared norms, similarities divided by T, no mask."""
        return cls(scale=1.0, reduction="sum", temperature_mode="divide", mask_duplicates=False)


def squared_differences(
    g_x: Float[Tensor, "local teacher"],
    all_g_y: Float[Tensor, "global teacher"],
    x: Float[Tensor, "local dim"],
    all_y: Float[Tensor, "global dim"],
) -> Float[Tensor, ""]:
    """sum_ij (g_x_i . g_y_j - x_i . y_j)^2, from products of dimensions, so that no local x global matrix exists."""
    a, b, c, d = (side.double() for side in (g_x, all_g_y, x, all_y))
    return ((a.T @ a) * (b.T @ b)).sum() - 2 * ((a.T @ c) * (b.T @ d)).sum() + ((c.T @ c) * (d.T @ d)).sum()


class Lealla(Method):
    name = "lealla"
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int) -> None:
        super().__init__(config, student_dim=student_dim, teacher_dim=teacher_dim)
        standard = config.variant == "standard"
        self.head = nn.Linear(student_dim, teacher_dim) if standard and config.beta else None
        self.down = (
            nn.Sequential(nn.Linear(student_dim, config.embedding)) if config.variant == "distillation_first" else None
        )

    @classmethod
    def needs(cls, config: Any) -> Needs:
        distilled = config.beta > 0 or config.gamma > 0
        return Needs(
            teacher=frozenset({"source", "target"}) if distilled else frozenset(),
            in_batch_negatives=config.alpha > 0,
            translations=not distilled,
            same_dimension=config.variant != "standard" and config.beta > 0,
            fixed_width=config.variant == "distillation_first" or (config.variant == "standard" and config.beta > 0),
        )

    def layers(self) -> Mapping[str, nn.Sequential]:
        return {} if self.down is None else {EVERY: self.down}

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        config: Config = self.config
        total = batch.total
        ams_weight = 0.0 if batch.alone else config.alpha  # without translations there is nothing to rank
        if ams_weight:
            check_negatives(total)
        plain = [side.float() for side in encode_sides(encode, batch)]
        x, y = (normalize(side if self.down is None else self.down(side), dim=1) for side in plain)
        all_x, all_y, sources, targets = everyone(x, y, batch, gather)
        terms: list[tuple[str, Tensor]] = []
        diagnostics = {"cosine": (x * y).sum().detach() / total}
        if ams_weight:
            ams = functools.partial(additive_margin, scale=config.scale, margin=config.margin)
            left_out = [side.others(config.mask_duplicates) for side in (targets, sources)]
            forward, backward = ams(x, y, all_y, left_out[0]), ams(y, x, all_x, left_out[1])
            terms.append(("ams", config.alpha * (forward + backward) / total))
            repeated = sources.count() + targets.count()
            negatives = [side.negatives() for side in left_out]
            diagnostics |= negative_shares(repeated, 2 * total, negatives, [total - 1] * 2, gather)
        if config.beta or config.gamma:
            g_x, g_y = self.teachers(batch)
            if config.beta:
                unit = config.head_input == "normalized"
                cut = replace(batch.cut, unit=batch.cut.unit or unit)
                terms.append(("fd", config.beta * self.feature_distance(plain, (cut(g_x), cut(g_y))) / total))
            if config.gamma:
                times = config.temperature if config.temperature_mode == "multiply" else 1 / config.temperature
                distance = squared_differences(g_x, gather(g_y), x, all_y)
                terms.append(("ld", (config.gamma * times**2 * distance / total**2).float()))
        loss = torch.stack([term for _, term in terms]).sum()
        return Loss(loss, {name: term.detach() for name, term in terms}, diagnostics)

    def teachers(self, batch: Batch) -> tuple[Float[Tensor, "local teacher"], Float[Tensor, "local teacher"]]:
        """The teacher's unit vectors of both sides."""
        if batch.teacher_source is None or batch.teacher_target is None:
            raise TrainingError("lealla needs the teacher's vectors of both sides")
        g_x, g_y = (normalize(side.detach().float(), dim=1) for side in (batch.teacher_source, batch.teacher_target))
        return g_x, g_y

    def feature_distance(self, plain: list[Tensor], teacher: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
        """sum_i ||x_i^T - F(x_i^S)||^2 + ||y_i^T - F(y_i^S)||^2, or the same of means over dimensions; F is the
        identity if there is no head."""
        student_vectors = torch.cat(plain)
        student_vectors = student_vectors if self.config.head_input == "plain" else normalize(student_vectors, dim=1)
        features = student_vectors if self.head is None else self.head(student_vectors)
        width = teacher[0].shape[1]
        if features.shape[1] != width:
            raise TrainingError(
                f"the student has {features.shape[1]} dimensions and the teacher {width}; set student.projection: "
                "teacher"
            )
        distance: Tensor = (torch.cat(teacher) - features).square().sum()
        return distance / width if self.config.reduction == "mean" else distance
