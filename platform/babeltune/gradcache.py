"""Encodes a batch in chunks without giving up a negative: gradient caching.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (GradCache). Vectors are
computed chunk by chunk without a graph; the loss of the whole batch gives the gradient of each vector; then every
chunk is encoded again with a graph, under the same randomness, and that gradient is carried on to the parameters.
Memory grows with the chunk, not with the batch, and the gradient is that of the plain loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from babeltune.method import Encode, Tokens

if TYPE_CHECKING:
    from jaxtyping import Float


def chunks(tokens: Tokens, size: int) -> Iterator[Tokens]:
    """The sentences in order, `size` at a time; one empty chunk when there are none."""
    lengths = torch.split(tokens.lengths, size)
    ids = torch.split(tokens.ids, [int(part.sum()) for part in lengths])
    yield from map(Tokens, ids, lengths)


class CachedEncode:
    """An `Encode` for one step: call it in the loss, call `loss.backward()`, then call `backward()`.

    `encode` is run twice on `chunk` sentences at a time. Autocast belongs inside it, so that both runs use the same.
    """

    def __init__(self, encode: Encode, chunk: int) -> None:
        self.encode = encode
        self.chunk = chunk
        self.replays: list[tuple[Tokens, RandomState, Tensor, slice]] = []

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        parts, states = [], []
        with torch.no_grad():
            for part in chunks(tokens, self.chunk):
                states.append(RandomState(tokens.ids.device))
                parts.append(self.encode(part))
        vectors = torch.cat(parts).requires_grad_()
        start = 0
        for part, state in zip(chunks(tokens, self.chunk), states, strict=True):
            self.replays.append((part, state, vectors, slice(start, start + len(part))))
            start += len(part)
        return vectors

    def backward(self) -> None:
        """Adds the loss's gradient to the parameters. The random stream goes on as after the first run."""
        if not self.replays:
            return
        after = RandomState(self.replays[0][2].device)
        for tokens, state, vectors, rows in self.replays:
            if vectors.grad is None:
                continue
            state.restore()
            with torch.enable_grad():
                self.encode(tokens).backward(vectors.grad[rows])  # type: ignore[no-untyped-call]
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
