"""Encodes a batch in chunks without giving up a negative: gradient caching.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (GradCache). Vectors are
computed chunk by chunk without a graph. The loss of the whole batch gives the gradient of each vector. Then every chunk
is encoded again with a graph, under the same randomness, and that gradient flows on to the parameters. The memory of a
pass grows with the chunk, not with the batch, and the gradient is that of the plain loss. Kept whole are the rows and
their gradients: one vector a sentence. If a loss reads token states, it is one row a token, so memory does grow with
the batch. The word embeddings, which a loss reads as they are, take their gradient at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from babeltune.method.contract import FIRST_AND_LAST, Encode, Tokens

if TYPE_CHECKING:
    from jaxtyping import Float


def chunks(tokens: Tokens, size: int) -> Iterator[Tokens]:
    """The sentences in order, `size` at a time; one empty chunk when there are none."""
    lengths = torch.split(tokens.lengths, size)
    ids = torch.split(tokens.ids, [int(part.sum()) for part in lengths])
    yield from map(Tokens, ids, lengths)


Run = Callable[[Tokens], Tensor]
"""Makes rows from sentences: their vectors, or their tokens' states."""


class CachedEncode:
    """An `Encode` for one step: call it in the loss, call `loss.backward()`, then call `backward()`.

    `encode` is run twice on `chunk` sentences at a time. Autocast belongs inside it, so that both runs use the same."""

    def __init__(self, encode: Encode, chunk: int) -> None:
        self.encode = encode
        self.chunk = chunk
        self.replays: list[tuple[Run, Tokens, RandomState, Tensor, slice]] = []

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        return self._rows(self.encode, tokens)

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        return self._rows(partial(self.encode.states, layers=layers), tokens)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        return self.encode.word_embeddings

    def _rows(self, run: Run, tokens: Tokens) -> Float[Tensor, "rows dim"]:
        """The outputs of `run` for all chunks, one below the other, as a leaf that remembers how it was made."""
        parts, states = [], []
        with torch.no_grad():
            for part in chunks(tokens, self.chunk):
                states.append(RandomState(tokens.ids.device))
                parts.append(run(part))
        rows = torch.cat(parts).requires_grad_()
        start = 0
        for part, state, part_rows in zip(chunks(tokens, self.chunk), states, parts, strict=True):
            self.replays.append((run, part, state, rows, slice(start, start + len(part_rows))))
            start += len(part_rows)
        return rows

    def backward(self) -> None:
        """Adds the loss's gradient to the parameters. The random stream goes on as after the first run."""
        if not self.replays:
            return
        after = RandomState(self.replays[0][3].device)
        for run, tokens, state, rows, at in self.replays:
            if rows.grad is None:
                continue
            state.restore()
            with torch.enable_grad():
                run(tokens).backward(rows.grad[at])  # type: ignore[no-untyped-call]
        after.restore()
        self.replays = []


class RandomState:
    """The state of the random generators that dropout on this device draws from."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu_state = torch.get_rng_state()
        self.cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu_state)
        if self.cuda_state is not None:
            torch.cuda.set_rng_state(self.cuda_state, self.device)
