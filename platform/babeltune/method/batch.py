"""What a method receives: sentences as tokens, a batch of pairs, the encoder, and the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

if TYPE_CHECKING:
    from jaxtyping import Float, Int

LAST, FIRST_AND_LAST = (-1,), (1, -1)
"""Layers whose states are read."""


@dataclass(frozen=True)
class Tokens:
    """Sentences without padding: token ids end to end, and each sentence's length."""

    ids: Int[Tensor, "tokens"]
    lengths: Int[Tensor, "sentences"]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sentence(self) -> Int[Tensor, "tokens"]:
        """Which sentence each token is in."""
        places = torch.arange(len(self.lengths), device=self.lengths.device)
        return torch.repeat_interleave(places, self.lengths, output_size=len(self.ids))


@dataclass(frozen=True)
class Masked:
    """Sentences with some masked tokens, and what these were."""

    tokens: Tokens
    labels: Int[Tensor, "tokens"]
    """The id that a masked language model predicts for each token, -100 where it predicts none."""


class Encode(Protocol):
    """The student: one vector per sentence, as the exported model gives it (L2-normalised where it normalises).

    Each call draws its own dropout. Two calls with the same tokens give two views, as SimCSE needs them, and so does
    one call of `encode_together` that names a side twice. This also holds within `combined` and with `training.chunk`.
    To read one view twice, keep the vectors.
    """

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]: ...

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        """Each token's state in these layers, side by side. The first layer is 1, and the last one -1."""
        ...

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The embeddings of the token ids."""
        ...


class Gather(Protocol):
    """The rows of all ranks. See `gather.py`."""

    rank: int
    world: int

    def __call__(self, rows: Float[Tensor, "local dim"]) -> Float[Tensor, "global dim"]:
        """All ranks' rows in rank order, whatever their number per rank, with exact gradients."""
        ...

    def offset(self, local: int) -> int:
        """Where this rank's rows start among all ranks' rows."""
        ...


@dataclass(frozen=True)
class Cut:
    """What `training.matryoshka` makes of vectors: their first `dim` numbers. By default all of them, untouched."""

    dim: int | None = None
    unit: bool = False
    """Whether what is left gets length 1 again, as where the student normalises."""

    @property
    def whole(self) -> bool:
        """Whether nothing is cut off."""
        return self.dim is None

    def __call__(self, vectors: Float[Tensor, "rows width"]) -> Float[Tensor, "rows dim"]:
        """The first numbers of each vector, with their gradient."""
        if self.dim is None:
            return vectors
        first = vectors[:, : self.dim]
        return normalize(first, dim=1) if self.unit else first


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch of pairs. The source is the anchor side (`data.anchor_priority`)."""

    source: Tokens
    target: Tokens
    source_ids: Int[Tensor, "local"]
    """Text ids: equal ids mean the same sentence."""
    target_ids: Int[Tensor, "local"]
    total: int
    """Pairs in the global batch."""
    teacher_source: Float[Tensor, "local teacher_dim"] | None = None
    teacher_target: Float[Tensor, "local teacher_dim"] | None = None
    negatives: Tokens | None = None
    """`needs.hard_negatives` sentences per pair, pair by pair."""
    negatives_mask: Tensor | None = None
    """[local, needs.hard_negatives], False where fewer were found."""
    languages: Int[Tensor, "local 2"] | None = None
    """`needs.per_language`: the languages of source and target, by their place among those of the method."""
    words: Int[Tensor, "local 4"] | None = None
    """A word of each source and its translation in the target: first token, end, first token, end (`needs.words`).

    Counted within the sentence, special tokens included. At each visit of a pair one of its words is drawn; the pair
    is one row, so it never meets itself as a negative. (ML-CTL's code has a row for every word.)
    """
    masked_source: Masked | None = None
    """The source with `needs.masked` of its tokens chosen for prediction, in the same places as in `source`."""
    masked_target: Masked | None = None
    cut: Cut = Cut()
    """How many first dimensions the loss reads. With `training.matryoshka` the loss is asked for once a dimension,
    the whole vectors last, and `encode` gives vectors cut like this. A method with `Needs.same_dimension` cuts the
    teacher's vectors alike. A method with a queue changes it only if `cut.whole`. The teacher's vectors in the batch
    are whole."""


def joined(*sides: Tokens) -> Tokens:
    """The sentences of several sides, one side after the other."""
    return Tokens(torch.cat([side.ids for side in sides]), torch.cat([side.lengths for side in sides]))


def encode_together(encode: Encode, *sides: Tokens) -> list[Float[Tensor, "sentences dim"]]:
    """The vectors of several sides from one packed forward pass, which groups equal lengths best.

    An encoder that knows better, since several terms share it, has a `together` of its own.
    """
    if (together := getattr(encode, "together", None)) is not None:
        shared: list[Tensor] = together(*sides)
        return shared
    return list(torch.split(encode(joined(*sides)), [len(side) for side in sides]))


def states_together(
    encode: Encode, *sides: Tokens, layers: Sequence[int] = FIRST_AND_LAST
) -> list[Float[Tensor, "tokens states"]]:
    """The token states of several sides from one packed forward pass."""
    return list(torch.split(encode.states(joined(*sides), layers), [len(side.ids) for side in sides]))


def tokens_from(sentences: list[list[int]]) -> Tokens:
    """Tokens of these sentences, for tests and small inputs."""
    return Tokens(
        ids=torch.tensor([t for s in sentences for t in s], dtype=torch.long),
        lengths=torch.tensor([len(s) for s in sentences], dtype=torch.long),
    )
