"""Masked language modelling, as a term beside others or alone: which tokens are masked, and the head that guesses them.

Devlin et al. 2019, "BERT", section 3.1: of the tokens a share p is chosen; 80 % of these become the mask token, 10 % a
random one, 10 % stay. The head is BERT's; its decoder is the student's own word embeddings. It serves training only:
an export holds the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from babeltune.errors import TrainingError
from babeltune.method.contract import Encode, Gather, Masked

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray

IGNORED = -100
"""The label of a token that counts in no loss: torch's `cross_entropy` leaves it out."""
MASKED, RANDOM = 0.8, 0.9
"""Thresholds of a random number for each chosen token: below the first it is masked, below the second replaced by a
random token, else kept."""


@dataclass(frozen=True)
class Masking:
    """Which tokens are chosen, and what is put in their place."""

    share: float
    """p."""
    mask: int
    """The mask token's id."""
    ordinary: NDArray[np.int64]
    """Ids that are no special tokens, in order: what may be chosen, and what a random token is drawn from."""

    def __call__(
        self, ids: NDArray[np.int64], lots: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A masked copy of the token ids, and the labels; `lots` [tokens] are drawn from [0, 1).

        One lot decides about a token: below p it is chosen, and lot / p, uniform again, says what becomes of it."""
        place = np.searchsorted(self.ordinary, ids).clip(max=len(self.ordinary) - 1)
        chosen = (lots < self.share) & (self.ordinary[place] == ids)
        within = lots / self.share
        drawn = ((within - MASKED) / (RANDOM - MASKED) * len(self.ordinary)).astype(np.int64)
        other = np.where(within < MASKED, self.mask, self.ordinary[drawn.clip(0, len(self.ordinary) - 1)])
        return np.where(chosen & (within < RANDOM), other, ids), np.where(chosen, ids, IGNORED)


class MaskedLanguageHead(nn.Module):
    """Linear, GELU, LayerNorm, and a decoder tied to the word embeddings, with a bias for each token."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(
        self, states: Float[Tensor, "tokens width"], word_embeddings: Float[Tensor, "vocabulary width"]
    ) -> Float[Tensor, "tokens vocabulary"]:
        """The logits of every token id."""
        if word_embeddings.shape[1] != states.shape[1]:
            raise TrainingError(
                f"the student's word embeddings are {word_embeddings.shape[1]} wide and its states {states.shape[1]}, "
                "so they cannot decode one another; name a student whose widths agree"
            )
        logits: Tensor = self.norm(gelu(self.dense(states))) @ word_embeddings.T + self.bias
        return logits

    def loss(
        self, states: Float[Tensor, "tokens states"], masked: Masked, encode: Encode, gather: Gather
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """This rank's share of two means over the chosen tokens of all ranks: the cross-entropy and the accuracy.

        `states` belong to `masked.tokens`; the last layer's stand last. Both are 0 if no token was chosen."""
        chosen = masked.labels != IGNORED
        logits = self(states[chosen, -self.dense.in_features :], encode.word_embeddings)
        labels = masked.labels[chosen]
        counts = chosen.new_zeros(len(masked.tokens) + 1, dtype=torch.long)  # the last is that of spare tokens
        counts = counts.index_add(0, masked.tokens.sentence, chosen.long())[:-1]
        total = gather(counts.unsqueeze(1)).sum().clamp(min=1)
        guessed = (logits.detach().argmax(1) == labels).sum()
        return cross_entropy(logits, labels, reduction="sum") / total, guessed / total
