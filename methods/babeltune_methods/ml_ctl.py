"""Multi-level contrastive learning for cross-lingual alignment (ML-CTL).

Chen et al. 2023, "Multi-Level Contrastive Learning for Cross-Lingual Alignment"; the authors' code is Mckysse/ML-CTL.
What is aligned is a word in its sentence: the sentence's mean state beside the word's, through a small network that
only training has. The CZ-NCE loss leaves the positive out of the denominator, so that the gradient does not vanish
where a small batch is easy. Masked language modelling goes on beside it.

    N           pairs in the global batch; n of them on this rank
    H           [tokens, 2 width]        states of the first and of the last layer (or of `layer`), side by side
    c           [n, width | 2 width]     contextual embedding, MLP([sentence ; word]) or MLP(sentence)
    x, y        [n | N, width | 2 width] unit c of the sources and of the targets
    s(a, b)     cos(a, b) / t
    s+, s-      of an anchor: s with its positive; with its 2N - 2 negatives, {x_j, y_j : j != i}
    p           share of the tokens that are chosen for masked language modelling"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Masked, Method, Needs, Tokens, states_together
from babeltune.method.checks import above_zero, at_least, one_of
from babeltune.method.contract import FIRST_AND_LAST
from babeltune.method.contrastive import (
    Duplicates,
    check_negatives,
    everyone,
    negative_shares,
    of_both_sides,
    tiled_cross_entropy,
)
from babeltune.method.masked_lm import MaskedLanguageHead

if TYPE_CHECKING:
    from jaxtyping import Float, Int

VARIANTS = ("info_snt", "cz_snt", "ml_ctl_info", "ml_ctl_cz", "mlm")
READINGS: dict[str, tuple[float, bool, str]] = {
    "paper": (0.5, True, "clean"),
    "authors_code": (1.0, False, "masked"),
    "fixed": (0.5, True, "clean"),
}
"""The settings `pool_scale`, `both_directions` and `cl_input` of each reading."""


@dataclass(frozen=True)
class Config:
    """The poster's loss and the authors' code's numbers, which the poster does not print; repeats of a pair's own texts
    are no negatives (`reading: fixed`)."""

    variant: Literal["info_snt", "cz_snt", "ml_ctl_info", "ml_ctl_cz", "mlm"] = "ml_ctl_cz"
    """The loss, InfoNCE (equation 1) or CZ-NCE (equation 4), and what is aligned, sentences (`snt`) or words in their
    sentences. Table 1 has `info_snt`, `cz_snt` and `ml_ctl_cz`; `ml_ctl_info` is equation 3. `mlm` is ours: masked
    language modelling alone, which aligns nothing."""
    reading: Literal["paper", "authors_code", "fixed"] = "fixed"
    """Which side to take for the next three settings, unless they are given, if the poster and the authors' code
    differ. `fixed` is ours: the poster, and candidates with the text of either side of an anchor's pair are no
    negatives. Candidates with the text of its positive are left out elsewhere, too. Here both sides are candidates,
    so those with its own text are left out as well: it would be pushed off a copy of itself. (The code's decoder is
    not tied to the word embeddings; here it always is.)"""
    pool_scale: float | None = None
    """Factor of the sum of first and last state. 0.5 is the average of the section "Concatenated Contextual
    Embedding Encoder"; the sum of the authors' code is 1."""
    both_directions: bool | None = None
    """Equation 2: the mean over x and y as anchors; the authors' code has x alone."""
    cl_input: Literal["clean", "masked"] | None = None
    """The tokens that the contrastive loss reads. `clean` is ours, as the poster does not say. The authors' code masks
    tokens in place, so that it meets the masked sentence."""
    layer: int | None = None
    """The layer whose states the contrastive loss reads beside the first's, counted from 1; absent: the last
    ("Avg-first-last"). Masked language modelling always reads the last. The authors' code retrieves sentences by
    layer 7 of mBERT, and trains none but the last."""
    temperature: float = 0.07
    """t (the authors' code: 0.07; not printed)."""
    alpha: float = 0.1
    """alpha of equations 3 and 7, the weight of masked language modelling (the authors' code: 0.1; not printed); 0
    leaves it out."""
    p: float = 0.15
    """Share of the tokens that are chosen for it (the authors' code: 0.15; not printed)."""

    def __post_init__(self) -> None:
        one_of(self, variant=VARIANTS, reading=tuple(READINGS), cl_input=(None, "clean", "masked"))
        above_zero(self, "temperature", "pool_scale")
        at_least(self, 0, "alpha")
        at_least(self, 1, "layer")
        if not 0 < self.p < 1:
            raise ValueError(f"p is {self.p}; it is a share of the tokens, above 0 and below 1")

    @classmethod
    def paper(cls) -> Config:
        """The literal poster."""
        return cls(reading="paper")

    @classmethod
    def authors_code(cls) -> Config:
        """The released code."""
        return cls(reading="authors_code")

    @property
    def resolved(self) -> tuple[float, bool, str]:
        """`pool_scale`, `both_directions` and `cl_input`, as given or as the reading has them."""
        scale, both, source = READINGS[self.reading]
        return (
            scale if self.pool_scale is None else self.pool_scale,
            both if self.both_directions is None else self.both_directions,
            self.cl_input or source,
        )

    @property
    def contrasts(self) -> bool:
        return self.variant != "mlm"

    @property
    def words(self) -> bool:
        return self.variant.startswith("ml_ctl")

    @property
    def guesses(self) -> bool:
        """Whether masked language modelling is a term."""
        return self.alpha > 0 or not self.contrasts

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are read: those of the contrastive loss, and at the end the last."""
        return FIRST_AND_LAST if self.layer is None else (1, self.layer, -1)


def pooled(
    layers: Float[Tensor, "tokens width"], tokens: Tokens, spans: Int[Tensor, "sentences 2"] | None = None
) -> Float[Tensor, "sentences width"]:
    """The mean over each sentence's tokens, special ones included, or over those in its span."""
    sentence, nowhere = tokens.sentence, len(tokens)
    if spans is not None:
        first, end = (spans + (tokens.lengths.cumsum(0) - tokens.lengths).unsqueeze(1))[
            sentence.clamp(max=nowhere - 1)
        ].unbind(1)
        place = torch.arange(len(sentence), device=sentence.device)
        sentence = torch.where((first <= place) & (place < end), sentence, nowhere)
    sums = layers.new_zeros(nowhere + 1, layers.shape[1]).index_add(0, sentence, layers)
    counts = layers.new_zeros(nowhere + 1).index_add(0, sentence, layers.new_ones(len(sentence)))
    return sums[:-1] / counts[:-1].clamp(min=1).unsqueeze(1)


def anchor_losses(
    a: Float[Tensor, "local dim"],
    b: Float[Tensor, "local dim"],
    candidates: Float[Tensor, "candidates dim"],
    left_out: Duplicates,
    temperature: float,
    *,
    positive_below: bool,
) -> Float[Tensor, ""]:
    """The sum of the anchors' losses over the candidates that `left_out` leaves them; an anchor without any has none.

    With the positive below, in the denominator, InfoNCE: -log e^{s+} / (e^{s+} + sum e^{s-}). Without it CZ-NCE:
    -log e^{s+} / sum e^{s-} = log phi, phi = sum e^{s- - s+}. Its gradient is that of phi / sg(phi), as the code has
    it, and its value can be watched."""
    some = left_out.negatives() > 0
    a, b, left_out = a[some], b[some], replace(left_out, local=left_out.local[some])
    positive = (a * b).sum(1) / temperature
    beside = positive if positive_below else None
    log_sums, _ = tiled_cross_entropy(a, candidates, temperature=temperature, repeats=left_out, beside=beside)
    return log_sums - positive.sum()


class MlCtl(Method):
    name = "ml_ctl"
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int, width: int, vocabulary: int) -> None:
        super().__init__(config, student_dim=student_dim, teacher_dim=teacher_dim, width=width, vocabulary=vocabulary)
        size = 2 * width if config.words else width
        self.mlp = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)) if config.contrasts else None
        self.head = MaskedLanguageHead(width, vocabulary) if config.guesses else None

    @classmethod
    def needs(cls, config: Any) -> Needs:
        masked = config.p if config.guesses or config.resolved[2] == "masked" else 0.0
        return Needs(
            in_batch_negatives=config.contrasts,
            states=True,
            layer=config.layer or 0,
            vectors=False,
            words=config.words,
            masked=masked,
        )

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        return 2 * global_batch - 2 if config.contrasts else 0

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """L_CZ + alpha · L_MLM, L_MLM alone, or L_info in place of L_CZ."""
        config: Config = self.config
        if config.contrasts:
            check_negatives(batch.total)
        masked = [side for side in (batch.masked_source, batch.masked_target) if side is not None]
        clean = [batch.source, batch.target] if config.contrasts and config.resolved[2] == "clean" else []
        states = states_together(encode, *clean, *(side.tokens for side in masked), layers=config.layers)
        terms: list[tuple[str, Tensor]] = []
        diagnostics: dict[str, Tensor] = {}
        if config.contrasts:
            contrast, diagnostics = self.contrast(states[:2], batch, gather)
            terms.append(("contrast", contrast))
        if self.head is not None:
            guess, diagnostics["masked_accuracy"] = self.guess(states[-2:], masked, encode, gather)
            terms.append(("mlm", guess * (config.alpha if config.contrasts else 1.0)))
        loss = torch.stack([term for _, term in terms]).sum()
        return Loss(loss, {name: term.detach() for name, term in terms}, diagnostics)

    def contextual(
        self, states: Float[Tensor, "tokens states"], tokens: Tokens, spans: Int[Tensor, "sentences 2"] | None
    ) -> Float[Tensor, "sentences dim"]:
        """c of each sentence, or of its word."""
        assert self.mlp is not None
        first, last, *_ = torch.split(states, self.width, dim=1)
        layers = self.config.resolved[0] * (first + last)
        parts = [pooled(layers, tokens)]
        if self.config.words:
            if spans is None:
                raise TrainingError("ml_ctl needs the words of a batch")
            parts.append(pooled(layers, tokens, spans))
        c: Tensor = self.mlp(torch.cat(parts, dim=1))
        return c

    def contrast(
        self, states: list[Tensor], batch: Batch, gather: Gather
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """This rank's share of the mean over all anchors."""
        config: Config = self.config
        spans = (None, None) if batch.words is None else torch.split(batch.words, 2, dim=1)
        x, y = (
            normalize(self.contextual(*side), dim=1)
            for side in zip(states, (batch.source, batch.target), spans, strict=True)
        )
        all_x, all_y, sources, targets = everyone(x, y, batch, gather)
        left_out = of_both_sides(sources, targets, config.reading == "fixed")
        anchors = [(x, y), (y, x)] if config.resolved[1] else [(x, y)]
        info, candidates = "info" in config.variant, torch.cat([all_x, all_y])
        sums = [anchor_losses(a, b, candidates, left_out, config.temperature, positive_below=info) for a, b in anchors]
        repeated, negatives = sources.count() + targets.count(), [left_out.negatives()]
        diagnostics = {
            **negative_shares(repeated, 2 * batch.total, negatives, [2 * batch.total - 2], gather),
            "cosine": (x * y).sum().detach() / batch.total,
        }
        return torch.stack(sums).sum() / (len(anchors) * batch.total), diagnostics

    def guess(
        self, states: list[Tensor], masked: list[Masked], encode: Encode, gather: Gather
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """This rank's shares of L_MLM, the mean of both languages' losses, and of how many tokens are guessed."""
        assert self.head is not None
        if len(masked) < 2:
            raise TrainingError("masked language modelling needs the masked sentences of a batch")
        shares = [self.head.loss(*side, encode, gather) for side in zip(states, masked, strict=True)]
        loss, guessed = (torch.stack(values).mean() for values in zip(*shares, strict=True))
        return loss, guessed
