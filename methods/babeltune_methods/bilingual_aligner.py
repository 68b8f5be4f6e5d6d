"""A contrastive aligner of bilingual text embeddings.

Li, "Contrastive Bilingual Text Embedding Alignment: A Technical Report", with the author's code. The encoder is
frozen and need not be aligned: it has read both languages, but never saw which sentences are translations. Each
language has a small network on top of it, and the two are trained to put translations in one place.

    N           pairs in the global batch; n of them on this rank
    e, z        [n, D_i]       the frozen encoder's vectors of source and target sentences
    A_l         D_i -> D_o     the aligner of language l, with N_l inner layers of width D_h
    x, y        [n | N, D_o]   unit vectors of A(e) and A(z)
    tau         temperature    S_ij = x_i . y_j / tau"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, encode_together
from babeltune.method.checks import above_zero, at_least, one_of
from babeltune.method.contrastive import (
    Duplicates,
    additive_margin,
    check_negatives,
    everyone,
    negative_shares,
    of_both_sides,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True)
class Config:
    """The authors' code's numbers, which the report does not print, at the depth that the report found best. The code's
    learning rate of 0.1 is a setting of training."""

    depth: int = -1
    """N_l of section 5.4; table 2 compares all four. -1: one linear layer. 0: two. 1 and 2: one or two inner layers
    between these two. As in the authors' code, only inner layers have ReLU and dropout."""
    hidden: int = 1024
    """D_h of section 5.4 (the authors' code: 1024). Not used at depth -1."""
    output: int = 768
    """D_o of section 5.4 (the authors' code: 768, and 512 by its class's default)."""
    dropout: float = 0.5
    """Dropout after each inner layer (the authors' code: 0.5)."""
    temperature: float = 0.05
    """tau of section 5.1 (the authors' code: 0.05)."""
    reading: Literal["paper", "authors_code", "fixed"] = "fixed"
    """Which side to take if section 5.1 and the authors' code differ. `paper`: NT-Xent, with `intra`;
    `authors_code`: no `intra`. `fixed` is ours: no `intra`, and candidates with the text of a row's positive are no
    negatives. With `intra`, a row's own side is among the candidates; those with the row's own text, which would be
    pushed off a copy of itself, are no negatives either."""
    intra: bool | None = None
    """Whether the other sentences of a row's own side are negatives too; absent: as the reading has it. Section 5.1
    names NT-Xent, which has them; the authors' code has not."""

    def __post_init__(self) -> None:
        one_of(self, depth=(-1, 0, 1, 2))
        at_least(self, 1, "hidden", "output")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        above_zero(self, "temperature")
        one_of(self, reading=("paper", "authors_code", "fixed"))

    @classmethod
    def paper(cls) -> Config:
        """The report: NT-Xent with the negatives that its name stands for, nothing masked."""
        return cls(reading="paper")

    @property
    def both_sides(self) -> bool:
        """`intra`, as given or as the reading has it."""
        return self.reading == "paper" if self.intra is None else self.intra


def aligner(config: Config, width: int) -> nn.Sequential:
    """N_l = -1: Linear(D_i, D_o). Else Linear(D_i, D_h), [Linear(D_h, D_h), ReLU, Dropout] x N_l, Linear(D_h, D_o)."""
    if config.depth == -1:
        return nn.Sequential(nn.Linear(width, config.output))
    inner: list[nn.Module] = []
    for _ in range(config.depth):
        inner += [nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Dropout(config.dropout)]
    return nn.Sequential(nn.Linear(width, config.hidden), *inner, nn.Linear(config.hidden, config.output))


class BilingualAligner(Method):
    name = "bilingual_aligner"
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int, languages: Sequence[str]) -> None:
        super().__init__(config, student_dim=student_dim, teacher_dim=teacher_dim)
        self.languages = tuple(languages)
        self.aligners = nn.ModuleList(aligner(config, student_dim) for _ in languages)

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(frozen=True, per_language=True, in_batch_negatives=True)

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        return (2 if config.both_sides else 1) * (global_batch - 1)

    def layers(self) -> Mapping[str, nn.Sequential]:
        return dict(zip(self.languages, cast("Iterable[nn.Sequential]", self.aligners), strict=True))

    def aligned(
        self, vectors: Float[Tensor, "local width"], languages: Int[Tensor, "local"]
    ) -> Float[Tensor, "local dim"]:
        """Unit vectors A_l(e) of each row's language l. An aligner without a row runs, too: its gradient is zero."""
        outputs = vectors.new_zeros(len(vectors), self.config.output)
        for number, one in enumerate(self.aligners):
            rows = languages == number
            outputs[rows] = one(vectors[rows])
        return normalize(outputs, dim=1)

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """(CE(S, diagonal) + CE(S^T, diagonal)) / 2, with x_i . x_j and y_i . y_j in the denominators if `intra`."""
        config: Config = self.config
        total = batch.total
        check_negatives(total)
        if batch.languages is None:
            raise TrainingError("bilingual_aligner needs the language of each sentence")
        e, z = (side.float() for side in encode_together(encode, batch.source, batch.target))
        x, y = self.aligned(e, batch.languages[:, 0]), self.aligned(z, batch.languages[:, 1])
        all_x, all_y, sources, targets = everyone(x, y, batch, gather)

        masked = config.reading == "fixed"
        left_out = [
            of_both_sides(positives, rows, masked) if config.both_sides else positives.others(masked)
            for positives, rows in ((targets, sources), (sources, targets))
        ]

        def cross_entropy(a: Tensor, b: Tensor, all_a: Tensor, all_b: Tensor, dropped: Duplicates) -> Tensor:
            """-sum_i log( e^(a_i.b_i/tau) / sum_j e^(a_i.b_j/tau) ), and over the other a_j too if `intra`."""
            candidates = torch.cat([all_b, all_a]) if config.both_sides else all_b
            return additive_margin(a, b, candidates, dropped, scale=1 / config.temperature)

        forward = cross_entropy(x, y, all_x, all_y, left_out[0]) / total
        backward = cross_entropy(y, x, all_y, all_x, left_out[1]) / total
        diagnostics = {
            **negative_shares(
                sources.count() + targets.count(),
                2 * total,
                [side.negatives() for side in left_out],
                [self.negatives(config, total)] * 2,
                gather,
            ),
            "cosine": (x * y).sum().detach() / total,
        }
        terms = {"forward": forward.detach(), "backward": backward.detach()}
        return Loss((forward + backward) / 2, terms, diagnostics)
