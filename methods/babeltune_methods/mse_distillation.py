"""Distillation by mean squared error.

Reimers & Gurevych 2020, "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation", EMNLP; the
MSE baseline of Park et al. 2024 (section 5.2). The teacher's vector of the anchor sentence is the target for both
sentences of a pair, so the student learns the teacher's space and puts translations in the same place.

    N           pairs in the global batch; n of them on this rank
    f_s, f_t    [n, dim]   the student's vectors of source (anchor) and target sentences
    g_s         [n, dim]   the frozen teacher's vectors of the source sentences"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, encode_sides
from babeltune.method.checks import above_zero, one_of

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Config:
    """The paper has no setting; the mean over dimensions is that of sentence-transformers' `MSELoss`."""

    scale: float = 1.0
    """Factor on the loss: ours, and 1 leaves it as printed. Unit vectors give small values, which gradient clipping may
    never see."""

    targets: Literal["anchor", "own"] = "anchor"
    """The target sentence is pulled to its anchor's teacher vector, or to its own, from a teacher that knows its
    language. `own` is ours."""

    def __post_init__(self) -> None:
        above_zero(self, "scale")
        one_of(self, targets=("anchor", "own"))

    @classmethod
    def paper(cls) -> Config:
        return cls()


def squared_distance(f: Float[Tensor, "local dim"], g: Float[Tensor, "local dim"]) -> Float[Tensor, ""]:
    """sum_i ||g_i - f_i||^2, its mean over dimensions."""
    return (g - f).square().sum() / g.shape[1]


class MseDistillation(Method):
    name = "mse_distillation"
    Config = Config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        both = config.targets == "own"
        sides: frozenset[Literal["source", "target"]] = frozenset({"source", "target"} if both else {"source"})
        return Needs(teacher=sides, same_dimension=True, translations=False)

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """(1/N) sum_i ( ||g(s_i) - f(s_i)||^2 + ||g(s_i) - f(t_i)||^2 ); with own targets, g(t_i) in the second."""
        if batch.teacher_source is None:
            raise TrainingError("mse_distillation needs the teacher's vectors of the source side")
        f_s, f_t = encode_sides(encode, batch)
        g_s = batch.cut(batch.teacher_source.float())
        g_t = (
            g_s
            if batch.teacher_target is None or self.config.targets == "anchor"
            else batch.cut(batch.teacher_target.float())
        )
        if f_s.shape[1] != g_s.shape[1]:
            raise TrainingError(
                f"the student has {f_s.shape[1]} dimensions and the teacher {g_s.shape[1]}; "
                "set student.projection: teacher"
            )
        source = self.config.scale * squared_distance(f_s.float(), g_s) / batch.total
        target = self.config.scale * squared_distance(f_t.float(), g_t) / batch.total
        with torch.no_grad():
            cosine = cosine_similarity(f_s.float(), f_t.float()).sum() / batch.total
        return Loss(source + target, {"source": source.detach(), "target": target.detach()}, {"cosine": cosine})
