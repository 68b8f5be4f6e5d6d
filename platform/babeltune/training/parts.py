"""A global batch in parts that do not see each other: contrastive losses take negatives from a pair's own part.

So it is on accelerators that gather nothing (Park et al. 2024, table 13, "in-batch"; LaBSE gathers, and so do we with
one part). Parts belong to the batch and not to workers, so a trial is the same on any number of them. The training step
calls this; a method does not know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from babeltune.method import Batch, Loss, Masked, Tokens
from babeltune.method.distributed import ProcessGroup
from babeltune.training.sampler import local_sizes

if TYPE_CHECKING:
    from torch import Tensor

FEWEST = 2  # pairs of a part; a batch that is too small for its parts has fewer of them


def loss_in_parts(loss: Callable[[Batch], Loss], batch: Batch, parts: int, ranks: ProcessGroup) -> Loss:
    """The mean of the parts' losses, by their pairs; terms and diagnostics alike.

    All ranks go through all parts together. A rank without a pair of a part gives it no rows."""
    of_ranks = local_sizes(batch.total, ranks.world)
    ends = list(accumulate(of_ranks, initial=0))
    losses: list[tuple[float, Loss]] = []
    start = 0
    for size in local_sizes(batch.total, max(1, min(parts, batch.total // FEWEST))):
        cut = [min(max(end, start), start + size) for end in ends]
        ranks.set_sizes([last - first for first, last in pairwise(cut)])
        first, last = (place - ends[ranks.rank] for place in cut[ranks.rank : ranks.rank + 2])
        rows = slice(first, last) if first < last else slice(0, 0)
        losses.append((size / batch.total, loss(rows_of(batch, rows, size))))
        start += size
    ranks.set_sizes(of_ranks)
    return Loss(
        torch.stack([share * each.total for share, each in losses]).sum(),
        _mean([(share, each.terms) for share, each in losses]),
        _mean([(share, each.diagnostics) for share, each in losses]),
    )


def rows_of(batch: Batch, rows: slice, total: int) -> Batch:
    """Some of this rank's rows, as those of a global batch of `total` pairs."""
    each = len(batch.negatives) // max(1, len(batch.source)) if batch.negatives is not None else 0
    hard = slice(rows.start * each, rows.stop * each)
    return replace(
        batch,
        source=_sentences(batch.source, rows),
        target=_sentences(batch.target, rows),
        source_ids=batch.source_ids[rows],
        target_ids=batch.target_ids[rows],
        total=total,
        teacher_source=_rows(batch.teacher_source, rows),
        teacher_target=_rows(batch.teacher_target, rows),
        negatives=None if batch.negatives is None else _sentences(batch.negatives, hard),
        negatives_mask=_rows(batch.negatives_mask, rows),
        languages=_rows(batch.languages, rows),
        words=_rows(batch.words, rows),
        masked_source=_masked(batch.masked_source, rows),
        masked_target=_masked(batch.masked_target, rows),
    )


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]


def _tokens_of(tokens: Tokens, rows: slice) -> slice:
    """Where the tokens of these sentences are."""
    before = int(tokens.lengths[: rows.start].sum())
    return slice(before, before + int(tokens.lengths[rows].sum()))


def _sentences(tokens: Tokens, rows: slice) -> Tokens:
    return Tokens(tokens.ids[_tokens_of(tokens, rows)], tokens.lengths[rows])


def _masked(masked: Masked | None, rows: slice) -> Masked | None:
    if masked is None:
        return None
    return Masked(_sentences(masked.tokens, rows), masked.labels[_tokens_of(masked.tokens, rows)])


def _mean(parts: Sequence[tuple[float, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """The weighted sum of each figure."""
    return {name: torch.stack([share * each[name] for share, each in parts]).sum() for name in parts[0][1]}
