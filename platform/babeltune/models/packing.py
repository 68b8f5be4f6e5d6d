"""Runs an encoder without padding: a batch is one row of tokens, and attention looks within each sentence only.

At real lengths most of a padded batch is padding. Here the sentences are laid end to end, sorted by length, so that
linear layers see real tokens only. Attention is one dense call per distinct length, or on a GPU in half precision one
call of torch's FlashAttention. It needs no change to a model: transformers lets a model's attention be replaced by a
registered function, which receives the `Packing` of the batch through the model's keyword arguments. Models that do not
pass it on are found when loaded, by comparing the packed output with the padded one, and run on padded batches instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from babeltune.method import Tokens
from babeltune.method.contract import LAST

if TYPE_CHECKING:
    from jaxtyping import Float, Int

NAME = "babeltune_packed"
TOLERANCE = 1e-4
FLASH_WIDTH = 256  # widest head that FlashAttention takes


@dataclass(frozen=True)
class Packing:
    """How the sentences of one batch lie in its row of tokens: shortest first, equal lengths side by side. If shapes
    are fixed, they lie as they come, and the spare tokens behind them are cut into more sentences."""

    ids: Int[Tensor, "tokens"]  # token ids in that order
    positions: Int[Tensor, "tokens"]  # the position of each token in its sentence, from 0
    token_index: Int[Tensor, "tokens"]  # the index of each token in the batch
    rank: Int[Tensor, "sentences"]  # the new index of the i-th sentence of the batch
    lengths: Int[Tensor, "sentences"]  # in that order
    groups: tuple[tuple[int, int], ...]  # (sentences, length) of each distinct length; empty if shapes are fixed
    most: int = 0  # tokens of a sentence at most, if shapes are fixed; else 0

    @property
    def sizes(self) -> list[int]:
        """Tokens of each group."""
        return [count * length for count, length in self.groups]

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence."""
        return self.groups[-1][1] if self.groups else self.most

    @cached_property
    def starts(self) -> Int[Tensor, "sentences+1"]:
        """The place of each sentence's first token, and the number of tokens, as FlashAttention asks for them."""
        return torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0)).int()


def pack(tokens: Tokens) -> Packing:
    """The packing of these sentences, on the device of their ids. Sentences without a token are allowed."""
    if tokens.longest:
        return _as_they_come(tokens)
    lengths = tokens.lengths.to(tokens.ids.device)
    ordered, order = torch.sort(lengths, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    first = (lengths.cumsum(0) - lengths)[order]
    positions = torch.arange(len(tokens.ids), device=order.device)
    positions = positions - torch.repeat_interleave(ordered.cumsum(0) - ordered, ordered, output_size=len(tokens.ids))
    places = torch.repeat_interleave(first, ordered, output_size=len(tokens.ids)) + positions
    groups = tuple((len(list(same)), length) for length, same in groupby(ordered.tolist()))
    return Packing(tokens.ids[places], positions, places, rank, ordered, groups)


def _as_they_come(tokens: Tokens) -> Packing:
    """A packing whose shapes and kernels do not depend on the lengths, so that a CUDA graph can hold it.

    Spare tokens become sentences of `tokens.longest` tokens: a single long one would cost attention more than all
    others, and FlashAttention's grid would not reach its end. Their number is that of a row of spare tokens alone."""
    count, most, device = len(tokens.ids), tokens.longest, tokens.ids.device
    places = torch.arange(count, device=device)
    spare_starts = tokens.lengths.sum() + most * torch.arange(-(-count // most), device=device)
    ends = torch.cat([tokens.lengths.cumsum(0), (spare_starts + most).clamp(max=count)])
    lengths = ends.diff(prepend=ends.new_zeros(1))
    sentence = torch.searchsorted(ends, places, right=True)
    positions = places - (ends - lengths).index_select(0, sentence)
    rank = torch.arange(len(tokens), device=device)
    return Packing(tokens.ids, positions, places, rank, lengths, (), most)


class Options(TypedDict, total=False):
    """Settings of an encoder's attention."""

    scaling: float | None
    dropout: float
    sliding_window: int | None  # a token sees those at a distance below it


def packed_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "1 heads tokens width"],
    key: Float[Tensor, "1 heads tokens width"],
    value: Float[Tensor, "1 heads tokens width"],
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "1 tokens heads width"], None]:
    """Attention within each sentence, in the shape that transformers asks of a registered function. Other options than
    those named are passed over.

    On CPU the work is done in fp32 under autocast too: half-precision kernels for short sentences are slower there."""
    dtype = query.dtype
    if flash_suits(query, key, packing, options):
        q, k, v = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        starts, longest = packing.starts, packing.longest
        attended = varlen_attn(q, k, v, starts, starts, longest, longest)
        assert isinstance(attended, Tensor)  # and nothing beside it, which was not asked for
        return attended.unsqueeze(0), None
    dense = _by_place if packing.most else _by_length
    if query.device.type == "cpu" and dtype != torch.float32:
        with torch.autocast("cpu", enabled=False):
            attended = dense(query.float(), key.float(), value.float(), packing, options)
    else:
        attended = dense(query, key, value, packing, options)
    return attended.to(dtype).unsqueeze(0), None


def flash_suits(query: Tensor, key: Tensor, packing: Packing, options: Options) -> bool:
    """Whether torch's FlashAttention computes this attention: on a GPU, in half precision, without dropout, a shorter
    window, shared keys or a scale of its own."""
    width, window, scaling = query.shape[-1], options.get("sliding_window"), options.get("scaling")
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and width % 8 == 0
        and width <= FLASH_WIDTH
        and not options.get("dropout", 0.0)
        and query.shape[1] == key.shape[1]
        and (window is None or window >= packing.longest)
        and (scaling is None or math.isclose(scaling, width**-0.5))
    )


def _by_length(query: Tensor, key: Tensor, value: Tensor, packing: Packing, options: Options) -> Tensor:
    """One dense attention per length. `split`, because the backward of a slice writes zeros of the full size."""
    sizes, window = packing.sizes, options.get("sliding_window")
    scaling, dropout = options.get("scaling"), options.get("dropout", 0.0)
    rows = [torch.split(states.squeeze(0).transpose(0, 1), sizes) for states in (query, key, value)]
    parts = []
    for (count, length), *states in zip(packing.groups, *rows, strict=True):
        if length == 0:
            parts.append(states[-1])
            continue
        q, k, v = (s.unflatten(0, (count, length)).transpose(1, 2) for s in states)
        mask = None if window is None or length <= window else _near(length, window, q.device)
        grouped = q.shape[1] != k.shape[1]
        out = scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling, enable_gqa=grouped)
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def _near(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length] which places see one another within a window."""
    at = torch.arange(length, device=device)
    return (at[:, None] - at).abs() < window


def _by_place(query: Tensor, key: Tensor, value: Tensor, packing: Packing, options: Options) -> Tensor:
    """One dense attention of all sentences, each padded to `packing.most` tokens. It costs what a padded batch does."""
    window, most = options.get("sliding_window"), packing.most
    at = torch.arange(most, device=query.device)
    inside = at < packing.lengths.unsqueeze(1)
    starts = packing.lengths.cumsum(0) - packing.lengths
    places = torch.where(inside, starts.unsqueeze(1) + at, 0)
    q, k, v = (states.squeeze(0).transpose(0, 1)[places].transpose(1, 2) for states in (query, key, value))
    # A sentence without tokens sees its first place, or its states and gradients would be NaN.
    mask = (at < packing.lengths.clamp(min=1).unsqueeze(1))[:, None, None]
    if window is not None and most > window:
        mask = mask & _near(most, window, query.device)
    grouped = q.shape[1] != k.shape[1]
    scaling, dropout = options.get("scaling"), options.get("dropout", 0.0)
    out = scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling, enable_gqa=grouped)
    sentence = torch.searchsorted(packing.lengths.cumsum(0), packing.token_index, right=True)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, sentence * most + packing.positions)


AttentionInterface.register(NAME, packed_attention)


def run_packed(
    model: PreTrainedModel, packing: Packing, offset: int, layers: Sequence[int] = LAST
) -> Float[Tensor, "tokens states"]:
    """Hidden states of a model whose attention is `packed_attention`, in the packing's order.

    `offset` is added to the position of each token: `pad_token_id + 1` for XLM-R and its kin, else 0. The states of
    several `layers` stand side by side; 1 is the first layer and -1 the last."""
    out = model(
        input_ids=packing.ids.unsqueeze(0),
        position_ids=(packing.positions + offset).unsqueeze(0),
        packing=packing,
        **_hidden_states_option(layers),
    )
    return _states(out, layers).squeeze(0)


class _Output(Protocol):
    """The part of a model's output that is read."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


def _hidden_states_option(layers: Sequence[int]) -> dict[str, bool]:
    return {} if tuple(layers) == LAST else {"output_hidden_states": True}


def _states(out: _Output, layers: Sequence[int]) -> Tensor:
    states = [out.last_hidden_state if layer == -1 else out.hidden_states[layer] for layer in layers]
    return states[0] if len(states) == 1 else torch.cat(states, dim=-1)


def run_padded(
    model: PreTrainedModel, packing: Packing, pad_token_id: int, layers: Sequence[int] = LAST
) -> Float[Tensor, "tokens states"]:
    """The same from a model with its own attention, by way of a padded batch."""
    width = max(packing.longest, 1)
    at = torch.arange(width, device=packing.ids.device)
    mask = at < packing.lengths[:, None]
    padded = torch.full(mask.shape, pad_token_id, dtype=torch.long, device=mask.device)
    padded[mask] = packing.ids
    seen = at < packing.lengths.clamp(min=1)[:, None]  # a row that sees nothing would be NaN, and so its gradient
    return _states(model(input_ids=padded, attention_mask=seen.long(), **_hidden_states_option(layers)), layers)[mask]


def enable_packing(model: PreTrainedModel, pad_token_id: int) -> int | None:
    """Switches a model to packed attention, if its packed and padded outputs agree; else leaves it as it was.

    Returns the position offset for `run_packed`, or None if the model must run padded. Sentences of mixed lengths,
    longer than a local attention window if the model has one, are compared once, in evaluation mode, to 1e-4."""
    training = model.training
    if model.config._attn_implementation == NAME:
        model.set_attn_implementation("sdpa")
    attention = model.config._attn_implementation
    probe = _probe(model, pad_token_id)
    model.eval()
    try:
        with torch.no_grad():
            expected = run_padded(model, probe, pad_token_id)
            model.set_attn_implementation(NAME)
            for offset in (0, pad_token_id + 1):
                if _agrees(model, probe, offset, expected):
                    return offset
        model.set_attn_implementation(attention)
        return None
    finally:
        model.train(training)


def _probe(model: PreTrainedModel, pad_token_id: int) -> Packing:
    config = model.config
    longest = 24
    window = getattr(config, "sliding_window", None) or 0
    if window:
        longest = window + 24
    limit = getattr(config, "max_position_embeddings", None) or longest
    token = pad_token_id + 1 if pad_token_id + 1 < limit else 0  # XLM-R numbers its positions after the padding's
    longest = max(2, min(longest, limit - token))
    lengths = torch.tensor([longest, 2, min(9, longest), 2, min(5, longest)])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size - 1, (int(lengths.sum()),), generator=generator)
    ids = ids + (ids >= pad_token_id)
    return pack(Tokens(ids.to(model.device), lengths.to(model.device)))


def _agrees(model: PreTrainedModel, probe: Packing, offset: int, expected: Tensor) -> bool:
    try:
        packed = run_packed(model, probe, offset)
    except (TypeError, ValueError, IndexError, RuntimeError):
        # A model that takes no positions, does not pass keywords on, or builds masks of its own.
        return False
    return packed.shape == expected.shape and bool((packed - expected).abs().max() <= TOLERANCE)
