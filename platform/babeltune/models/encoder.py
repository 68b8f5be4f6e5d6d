"""The Transformer student: an encoder, pooling, an optional projection, an optional L2 norm. `build.py` builds it.

It reads packed sentences (`method.Tokens`) and gives one vector each, the same that the exported model gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from babeltune.method import Tokens
from babeltune.method.contract import FIRST_AND_LAST, LAST
from babeltune.models.hub import Pooling
from babeltune.models.packing import Packing, enable_packing, pack, run_packed, run_padded
from babeltune.models.static import StaticEncoder
from babeltune.products import use_onednn

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from numpy.typing import NDArray


class Encoder(nn.Module):
    """A backbone and what turns its token states into sentence vectors.

    Runs packed if the backbone allows it (`packs`), else on padded batches; the vectors are the same."""

    def __init__(
        self,
        backbone: PreTrainedModel,
        *,
        pooling: Pooling = "mean",
        projection: nn.Linear | None = None,
        tanh: bool = False,
        normalize: bool = True,
        pad_token_id: int = 0,
    ) -> None:
        """`tanh` follows the projection: with `cls` pooling they are a pooler such as LaBSE's."""
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.pooling = pooling
        self.tanh = tanh
        self.normalize = normalize
        self.pad_token_id = pad_token_id
        use_onednn(self)
        self.offset = enable_packing(backbone, pad_token_id)

    @property
    def packs(self) -> bool:
        """Whether sentences run without padding."""
        return self.offset is not None

    @property
    def dim(self) -> int:
        """Width of a sentence vector."""
        return int(self.projection.out_features if self.projection else self.backbone.config.hidden_size)

    @property
    def width(self) -> int:
        """Width of a token's state."""
        return int(self.backbone.config.hidden_size)

    @property
    def layers(self) -> int:
        """How many layers of attention it has."""
        return int(self.backbone.config.num_hidden_layers)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The embeddings of the token ids, part of the weights."""
        weight: Tensor = self.backbone.get_input_embeddings().weight
        return weight

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        """One fp32 vector per sentence, in order; it does not depend on the other sentences of the batch."""
        vectors = self._pooled(tokens)
        with torch.autocast(vectors.device.type, enabled=False):
            if self.projection is not None:
                vectors = self.projection(vectors)
                vectors = vectors.tanh() if self.tanh else vectors
            return normalize(vectors, dim=-1) if self.normalize else vectors

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        """Each token's states in these layers side by side, in the order of `tokens.ids`."""
        if len(tokens.ids) == 0:
            return self._nothing().reshape(0, len(layers) * self.width)
        packing = pack(tokens)
        if packing.most:
            return self._run(packing, layers).float()
        place = torch.empty_like(packing.token_index)
        place[packing.token_index] = torch.arange(len(place), device=place.device)
        return self._run(packing, layers)[place].float()

    def _pooled(self, tokens: Tokens) -> Float[Tensor, "sentences width"]:
        if len(tokens.ids) == 0:
            return self._nothing().reshape(len(tokens), 0, self.width).sum(1)
        packing = pack(tokens)
        return pool(self._run(packing), packing, self.pooling).index_select(0, packing.rank)

    def _run(self, packing: Packing, layers: Sequence[int] = LAST) -> Float[Tensor, "tokens states"]:
        if self.offset is None:
            return run_padded(self.backbone, packing, self.pad_token_id, layers)
        return run_packed(self.backbone, packing, self.offset, layers)

    def _nothing(self) -> Float[Tensor, "0"]:
        """No number, from the weights, so that a loss without sentences has a gradient."""
        nothing: Tensor = next(self.backbone.parameters()).flatten()[:0]
        return nothing


class VectorTable(Protocol):
    """Read access to vectors by row number. The teacher store implements it."""

    width: int

    def rows(self, ids: NDArray[np.integer]) -> NDArray[np.generic]:
        """[len(ids), width] in the order of `ids`."""


class FrozenEncoder(nn.Module):
    """The teacher in a student's place. The one token of a sentence is its text id; its vector lies in the store."""

    packs = False

    def __init__(self, vectors: VectorTable, rows: NDArray[np.integer]) -> None:
        """`rows` [texts] are the store's rows of all texts."""
        super().__init__()
        self.vectors, self.rows = vectors, rows

    @property
    def dim(self) -> int:
        """Width of a sentence vector."""
        return self.vectors.width

    def forward(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        rows = self.vectors.rows(self.rows[tokens.ids.cpu().numpy()])
        return torch.from_numpy(rows.astype(np.float32)).to(tokens.ids.device)


StudentEncoder = Encoder | StaticEncoder | FrozenEncoder  # encoders that a trial may train, or leave as they are


class TextIds:
    """In place of the token store, for a `FrozenEncoder`: the one token of a sentence is its text id."""

    def take(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        return np.asarray(ids), np.ones(len(ids), np.int64)


def pool(states: Float[Tensor, "tokens width"], packing: Packing, how: Pooling) -> Float[Tensor, "sentences width"]:
    """Each sentence's states as one fp32 vector, in the packing's order; zeros for a sentence without a token."""
    if states.is_cuda or packing.most:
        return pool_by_segment(states, packing, how)
    parts = []
    for (count, length), flat in zip(packing.groups, torch.split(states, packing.sizes), strict=True):
        group = flat.view(count, length, states.shape[1])
        if length == 0:
            parts.append(states.new_zeros(count, states.shape[1], dtype=torch.float32))
        elif how == "mean":
            parts.append(group.mean(1, dtype=torch.float32))
        elif how == "cls":
            parts.append(group.select(1, 0).float())
        else:
            parts.append(group.max(1).values.float())
    return torch.cat(parts)


def pool_by_segment(
    states: Float[Tensor, "tokens width"], packing: Packing, how: Pooling
) -> Float[Tensor, "sentences width"]:
    """The same in one kernel, not several for each length: small kernels keep a GPU waiting for its CPU."""
    lengths, states = packing.lengths, states.float()
    if how == "cls":
        pooled = states.index_select(0, packing.starts[:-1].clamp(max=len(states) - 1))
    else:
        initial = 0.0 if how == "mean" else -torch.inf
        pooled = torch.segment_reduce(states, how, lengths=lengths, unsafe=True, initial=initial)
    return pooled.masked_fill((lengths == 0).unsqueeze(1), 0.0)


def encode_all(
    encoder: StudentEncoder,
    ragged_take: Callable[[NDArray[np.integer]], tuple[NDArray[np.integer], NDArray[np.integer]]],
    ids: Int[Tensor, "texts"] | NDArray[np.integer],
    *,
    batch_tokens: int | None = None,
    device: torch.device | str,
) -> NDArray[np.float32]:
    """[texts, dim] vectors of these texts, in order: fp32, evaluation mode, about `batch_tokens` tokens at a time.

    Left out, it is 4,096 on a CPU, where a small student is 10-25 % faster than at 16,384, which other devices get.

    `ragged_take` gives the token ids of texts end to end, and their lengths. The encoder, which is on `device`, keeps
    its training flag."""
    batch_tokens = batch_tokens or (4_096 if torch.device(device).type == "cpu" else 16_384)
    values, lengths = ragged_take(np.asarray(ids))
    whole = pack(Tokens(torch.from_numpy(values.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64))))
    vectors = torch.empty(len(lengths), encoder.dim)
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad(), torch.autocast(torch.device(device).type, enabled=False):
            at = texts = 0
            for count in _batches(whole.lengths, batch_tokens):
                part = whole.lengths[at : at + count]
                end = texts + int(part.sum())
                batch = Tokens(whole.ids[texts:end].to(device), part.to(device))
                vectors[at : at + count] = encoder(batch).cpu()
                at, texts = at + count, end
    finally:
        encoder.train(training)
    ordered: NDArray[np.float32] = vectors[whole.rank].numpy()
    return ordered


def _batches(lengths: Tensor, batch_tokens: int) -> list[int]:
    """Sentences per batch: each batch is closed by the sentence that reaches the next multiple of `batch_tokens`."""
    batch = (lengths.cumsum(0) - 1).clamp(min=0) // batch_tokens
    counts: list[int] = torch.unique_consecutive(batch, return_counts=True)[1].tolist()
    return counts
