"""Translation ranking with hard negatives.

Yang et al. 2020, "Multilingual Universal Sentence Encoder for Semantic Retrieval" (mUSE); the mUSE baseline of Park et
al. 2024 (section 5.2). The translation of a sentence must rank above the other targets of the batch and above a few
hard negatives. These are sentences that a teacher finds close to the translation and that are not it.

    N           pairs in the global batch; n of them on this rank
    s, t        [n | N, dim]   unit vectors of source and target sentences
    h           [n, k, dim]    hard negatives of each target; `below` in the miner keeps out near-copies
    phi(a, b)   cos(a, b) / temperature"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, encode_together
from babeltune.method.checks import above_zero, at_least, one_of
from babeltune.method.contrastive import Duplicates, everyone, negative_shares, tiled_cross_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Config:
    """Neither paper prints the scale, the direction or the miner, so these are settings."""

    temperature: float = 0.05
    """phi = cos / temperature. Not printed; 0.05 is the scale of 20 of sentence-transformers."""
    direction: Literal["forward", "both"] = "both"
    """Which side is ranked; not printed. `forward` ranks targets for each source; `both`, ours, is the mean with its
    mirror image."""
    hard_negatives: int = 3
    """Per pair (section 5.2 of Park et al.: three). They stand in the forward direction's denominator, of their own row
    only."""
    hard_negatives_below: float = 0.9
    """The miner, ours, takes candidates whose teacher cosine to the pair's text is below this. Not printed."""
    mask_duplicates: bool = True
    """Repeats of a row's positive are no negatives: ours. The papers do not mask."""

    def __post_init__(self) -> None:
        above_zero(self, "temperature")
        one_of(self, direction=("forward", "both"))
        at_least(self, 0, "hard_negatives")
        if not -1 < self.hard_negatives_below <= 1:
            raise ValueError(
                f"hard_negatives_below is {self.hard_negatives_below}; it is a cosine, above -1 and up to 1"
            )

    @classmethod
    def paper(cls) -> Config:
        """No scale, one direction, no mask: what is left if nothing else is printed."""
        return cls(temperature=1.0, direction="forward", mask_duplicates=False)


def hard_log_sum(
    s: Float[Tensor, "local dim"], h: Float[Tensor, "local k dim"], present: Bool[Tensor, "local k"], temperature: float
) -> Float[Tensor, "local"]:
    """log sum_k e^phi(s_i, h_ik) over the negatives that were found; lowest finite if none was."""
    phi = torch.einsum("nd,nkd->nk", s, h) / temperature
    return phi.masked_fill(~present, torch.finfo(phi.dtype).min).logsumexp(1)


def ranking(
    s: Float[Tensor, "local dim"],
    t: Float[Tensor, "local dim"],
    all_t: Float[Tensor, "global dim"],
    temperature: float,
    repeats: Duplicates | None,
    hard: Float[Tensor, "local"] | None = None,
) -> Float[Tensor, ""]:
    """-sum_i log( e^phi(s_i, t_i) / ( sum_j e^phi(s_i, t_j) + sum_k e^phi(s_i, h_ik) ) )."""
    log_sums, _ = tiled_cross_entropy(s, all_t, temperature=temperature, repeats=repeats, beside=hard)
    return log_sums - (s * t).sum() / temperature


class TranslationRanking(Method):
    name = "translation_ranking"
    Config = Config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(
            hard_negatives=config.hard_negatives,
            hard_negatives_below=config.hard_negatives_below,
            in_batch_negatives=True,
        )

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        return global_batch - 1 + int(config.hard_negatives)

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        config: Config = self.config
        total, k = batch.total, config.hard_negatives
        sides, present = [batch.source, batch.target], batch.negatives_mask if k else None
        if k:
            if batch.negatives is None or present is None:
                raise TrainingError(f"hard_negatives is {k}, and the batch has none; prepare mines them")
            sides.append(batch.negatives)
        if total < 2 and (present is None or not gather(present.sum(1, keepdim=True)).any()):
            mined = " and no hard negative was found for it" if k else ""
            raise TrainingError(f"a global batch of {total} pair has no negatives{mined}; raise training.global_batch")
        s, t, *h = (normalize(side.float(), dim=1) for side in encode_together(encode, *sides))
        all_s, all_t, sources, targets = everyone(s, t, batch, gather)
        masked = config.mask_duplicates

        hard = None
        if present is not None:
            hard = hard_log_sum(s, h[0].view(len(s), k, s.shape[1]), present, config.temperature)
        hard_count = present.sum(1) if present is not None else 0
        negatives, available = [targets.others(masked).negatives() + hard_count], [total - 1 + hard_count]
        forward = ranking(s, t, all_t, config.temperature, targets if masked else None, hard) / total
        loss, terms = forward, {"forward": forward.detach()}
        if config.direction == "both":
            backward = ranking(t, s, all_s, config.temperature, sources if masked else None) / total
            loss, terms["backward"] = (forward + backward) / 2, backward.detach()
            negatives.append(sources.others(masked).negatives())
            available.append(total - 1)
        diagnostics = {
            **negative_shares(sources.count() + targets.count(), 2 * total, negatives, available, gather),
            "cosine": (s * t).sum().detach() / total,
        }
        return Loss(loss, terms, diagnostics)
