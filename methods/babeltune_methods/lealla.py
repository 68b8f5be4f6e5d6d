"""Lightweight language-agnostic sentence embeddings by knowledge distillation (LEALLA).

Mao and Nakagawa 2023, "LEALLA: Learning Lightweight Language-agnostic Sentence Embeddings with Knowledge
Distillation", EACL; weights were released, no code. A thin, deep student learns three things at once: to rank
translations with an additive margin (AMS), the teacher's vectors through a head that only training has (FD), and the
teacher's similarities across the two languages (LD).

    N             pairs in the global batch; n of them on this rank
    x, y          [n | N, dim]       unit vectors of source and target sentences, x^S and y^S
    g_x, g_y      [n | N, teacher]   the frozen teacher's unit vectors, x^T and y^T
    phi(a, b)     cos(a, b)
    F             a linear layer dim -> teacher
    m, s          margin and scale of AMS
    T             temperature of LD
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, encode_together
from babeltune.soft_loss import Repeats, tiled_cross_entropy

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Config:
    """The paper's weights, with the scales under which they train; a weight of 0 leaves its term out."""

    alpha: float = 1.0
    """Weight of AMS (section 3.3: 1)."""
    beta: float = 1e3
    """Weight of FD (section 3.3: 1e3 for small and base, 1e4 for large; searched 1e2 to 1e5)."""
    gamma: float = 1e-2
    """Weight of LD (section 3.3: 1e-2; searched 1e-1 to 1e-3)."""
    margin: float = 0.3
    """m of AMS. LEALLA does not print it; 0.3 is LaBSE's."""
    scale: float = 20.0
    """s of AMS. None is printed: at 1 and N = 8192 a perfect student's loss is still 8.3 of at most 9.0."""
    reduction: Literal["mean", "sum"] = "mean"
    """Of FD over the teacher's dimensions. Printed is the squared norm, a sum; with the mean beta = 1e3 is of AMS's
    size."""
    temperature: float = 100.0
    """T of LD (section 3.3: 100)."""
    temperature_mode: Literal["multiply", "divide"] = "multiply"
    """Printed is a division, which leaves gamma / T^2 = 1e-6 of LD, too little for what the paper's ablation shows."""
    head_input: Literal["normalized", "plain"] = "normalized"
    """What F reads. The paper does not say; they differ with `student.normalize: false` only."""
    mask_duplicates: bool = True
    """Repeats of a row's positive are no negatives. The paper does not mask."""

    def __post_init__(self) -> None:
        for field in ("alpha", "beta", "gamma"):
            value = getattr(self, field)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{field} is {value}; it must be 0 or more")
        if not self.alpha and not self.beta and not self.gamma:
            raise ValueError("alpha, beta and gamma are all 0; at least one term must have a weight")
        for field in ("scale", "temperature"):
            value = getattr(self, field)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field} is {value}; it must be above 0")
        if not 0 <= self.margin < 2:
            raise ValueError(f"margin is {self.margin}; it is a difference of cosines, 0 up to 2")
        for field, allowed in (
            ("reduction", ("mean", "sum")),
            ("temperature_mode", ("multiply", "divide")),
            ("head_input", ("normalized", "plain")),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} is {getattr(self, field)!r}; allowed: {', '.join(allowed)}")

    @classmethod
    def paper(cls) -> Config:
        """The equations as printed: no scale, squared norms, similarities divided by T, no mask."""
        return cls(scale=1.0, reduction="sum", temperature_mode="divide", mask_duplicates=False)


def ams(
    a: Float[Tensor, "local dim"],
    b: Float[Tensor, "local dim"],
    all_b: Float[Tensor, "global dim"],
    others: Repeats,
    margin: float,
    scale: float,
) -> Float[Tensor, ""]:
    """sum_i l(a_i, b_i), l = -log e^{s(phi_ii - m)} / ( e^{s(phi_ii - m)} + sum_{n != i} e^{s phi_in} )."""
    positive = scale * ((a * b).sum(1) - margin)
    log_sums, _ = tiled_cross_entropy(a, all_b, temperature=1 / scale, repeats=others, beside=positive)
    return log_sums - positive.sum()


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
        self.head = nn.Linear(student_dim, teacher_dim) if config.beta else None

    @classmethod
    def needs(cls, config: Any) -> Needs:
        distilled = config.beta > 0 or config.gamma > 0
        return Needs(
            teacher=frozenset({"source", "target"}) if distilled else frozenset(), in_batch_negatives=config.alpha > 0
        )

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        config: Config = self.config
        total = batch.total
        if config.alpha and total < 2:
            raise TrainingError(f"a global batch of {total} pair has no negatives; raise training.global_batch")
        plain = [side.float() for side in encode_together(encode, batch.source, batch.target)]
        x, y = (normalize(side, dim=1) for side in plain)
        all_x, all_y = gather(torch.cat([x, y], dim=1)).chunk(2, dim=1)
        all_source, all_target = gather(torch.stack([batch.source_ids, batch.target_ids], dim=1)).unbind(1)
        offset = gather.offset(len(x))
        sources = Repeats(batch.source_ids, all_source, offset)
        targets = Repeats(batch.target_ids, all_target, offset)
        terms: list[tuple[str, Tensor]] = []
        if config.alpha:
            forward = ams(x, y, all_y, targets.others(config.mask_duplicates), config.margin, config.scale)
            backward = ams(y, x, all_x, sources.others(config.mask_duplicates), config.margin, config.scale)
            terms.append(("ams", config.alpha * (forward + backward) / total))
        if config.beta or config.gamma:
            g_x, g_y = self.teachers(batch)
            if config.beta:
                terms.append(("fd", config.beta * self.feature_distance(plain, (x, y), (g_x, g_y)) / total))
            if config.gamma:
                times = config.temperature if config.temperature_mode == "multiply" else 1 / config.temperature
                distance = squared_differences(g_x, gather(g_y), x, all_y)
                terms.append(("ld", (config.gamma * times**2 * distance / total**2).float()))
        diagnostics = {
            "duplicates": (sources.count() + targets.count()) / (2 * total),
            "cosine": (x * y).sum().detach() / total,
        }
        loss = torch.stack([term for _, term in terms]).sum()
        return Loss(loss, {name: term.detach() for name, term in terms}, diagnostics)

    def teachers(self, batch: Batch) -> tuple[Float[Tensor, "local teacher"], Float[Tensor, "local teacher"]]:
        """The teacher's unit vectors of both sides."""
        if batch.teacher_source is None or batch.teacher_target is None:
            raise TrainingError("lealla needs the teacher's vectors of both sides")
        g_x, g_y = (normalize(side.detach().float(), dim=1) for side in (batch.teacher_source, batch.teacher_target))
        return g_x, g_y

    def feature_distance(
        self, plain: list[Tensor], unit: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor]
    ) -> Float[Tensor, ""]:
        """sum_i ||x_i^T - F(x_i^S)||^2 + ||y_i^T - F(y_i^S)||^2, or the same of means over dimensions."""
        assert self.head is not None
        seen = torch.cat(plain if self.config.head_input == "plain" else unit)
        distance: Tensor = (torch.cat(teacher) - self.head(seen)).square().sum()
        return distance / self.teacher_dim if self.config.reduction == "mean" else distance
