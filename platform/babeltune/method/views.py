"""One encoding of a batch for several losses.

Losses that encode the same tokens share views, so all add to the gradient of one forward pass for each view. The terms
of `combined` share them, and so do the dimensions of `training.matryoshka`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from babeltune.method.contract import FIRST_AND_LAST, Encode, Tokens, encode_together

if TYPE_CHECKING:
    from jaxtyping import Float


class Views:
    """The vectors that the student has given in one step: of each `Tokens` object its first view, its second, and on.

    Methods that encode the same tokens share views, so all add to the gradient of one forward pass for each view."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.of_tokens: dict[int, tuple[Tokens, list[Tensor]]] = {}
        """Views by the identity of the tokens. The tokens are kept, so that no other object gets their identity."""

    def of(self, requests: Sequence[tuple[Tokens, int]]) -> list[Float[Tensor, "sentences dim"]]:
        """The view of each side with this number, from 0; those that are new come from one packed forward pass."""
        entries = [self.of_tokens.setdefault(id(side), (side, []))[1] for side, _ in requests]
        new = [place for place, (_, view) in enumerate(requests) if view >= len(entries[place])]
        if new:
            for place, vectors in zip(new, encode_together(self.encode, *(requests[i][0] for i in new)), strict=True):
                entries[place].append(vectors)
        return [views[view] for views, (_, view) in zip(entries, requests, strict=True)]


class Shared:
    """One method's `Encode` for one step. Its first call with some tokens gives their first view, its second call
    their second view, each with its own dropout, as if the method had the student for itself."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.calls: Counter[int] = Counter()
        """How often the method has encoded each `Tokens` object, by identity."""

    def __call__(self, tokens: Tokens) -> Float[Tensor, "sentences dim"]:
        return self.together(tokens)[0]

    def together(self, *sides: Tokens) -> list[Float[Tensor, "sentences dim"]]:
        """The next view of each side."""
        requests = []
        for side in sides:
            requests.append((side, self.calls[id(side)]))
            self.calls[id(side)] += 1
        return self.views.of(requests)

    def states(self, tokens: Tokens, layers: Sequence[int] = FIRST_AND_LAST) -> Float[Tensor, "tokens states"]:
        """The student's token states."""
        return self.views.encode.states(tokens, layers)

    @property
    def word_embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """The student's embeddings of token ids."""
        return self.views.encode.word_embeddings
