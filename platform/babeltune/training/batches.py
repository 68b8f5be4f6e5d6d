"""From the rows of the prepared pairs to a batch on a device: tokens, teacher vectors, mined negatives, words, masks.

What is drawn anew at each visit is a function of the seed, the step and the pair's place in the global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from babeltune.data.arrays import parts, places, zeros
from babeltune.data.stored_arrays import Matrix, Ragged
from babeltune.method import Batch, Masked, Needs, Tokens
from babeltune.method.contract import Graded
from babeltune.method.masked_lm import IGNORED, Masking
from babeltune.models.encoder import TextIds
from babeltune.training.epochs import COMPUTED_ABOVE, Permutation
from babeltune.training.graded import GradedSteps
from babeltune.training.sampler import lots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Prepared
    from babeltune.training.sampler import Schedule

Taken = tuple["NDArray[np.integer]", "NDArray[np.integer]"]
"""Token ids of some texts, end to end, and the length of each text."""
SIZES = 3  # different shapes at most. Each takes a graph.
SAMPLE = 64  # batches from all over the training that decide about sizes
MARGIN = 1.02  # room beyond the largest sampled batch, for those that were not looked at
UNIT = 64  # room is a multiple of this many tokens
FULL = 0.5  # a batch that would fill less of its room than this stays as it is


@dataclass(frozen=True)
class Shapes:
    """The shapes that batches may have, if there are few of them (`capture.py`).

    Batches are packed, so their numbers of tokens differ. Each is filled up to the smallest of a few sizes that holds
    it. Rows are never filled up: all batches but the last have the same number of pairs."""

    longest: int  # tokens of a sentence at most
    rooms: tuple[tuple[int, ...], ...]  # [sizes, sides] tokens of each side, the smallest size first

    def room(self, tokens: Sequence[int], longest: int) -> tuple[int, ...] | None:
        """The room for a batch whose sides have these tokens, of sentences up to `longest`; None if none fits."""
        for room in self.rooms:
            if all(have <= space for have, space in zip(tokens, room, strict=True)):
                return room if longest <= self.longest and sum(tokens) >= FULL * sum(room) else None
        return None


def shapes_for(tokens: NDArray[np.int64], longest: int) -> Shapes:
    """Sizes that each hold a third of these batches, [batches, sides] their tokens."""
    ordered = tokens[np.argsort(tokens.sum(1), kind="stable")]
    most = np.maximum.accumulate(np.stack([part.max(0) for part in np.array_split(ordered, min(SIZES, len(ordered)))]))
    most[-1] = np.ceil(most[-1] * MARGIN)
    rooms = sorted({tuple((-(-row // UNIT) * UNIT).tolist()) for row in most}, key=sum)
    return Shapes(longest, tuple(rooms))


def sampled_shapes(reader: BatchReader, schedule: Schedule, longest: int) -> Shapes:
    """Those of a trial whose sentences have up to `longest` tokens."""
    steps = np.unique(np.linspace(0, len(schedule) - 1, SAMPLE).astype(int))
    return shapes_for(np.array([reader.token_counts(schedule.rows(int(step))) for step in steps]), longest)


def texts_of(sides: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """The texts of each side (`BatchReader.sides`), in place of a missing negative the target of its pair."""
    source, target, *mined = sides
    return [source, target, *(np.where(ids < 0, target[:, None], ids).reshape(-1) for ids in mined)]


@dataclass
class BatchReader:
    """Turns rows of the prepared pairs into batches on a device."""

    prepared: Prepared
    tokens: Ragged[np.integer] | TextIds
    teacher: Matrix | None
    device: torch.device
    needs: Needs
    negatives: NDArray[np.integer] | None = None
    words: NDArray[np.integer] | None = None  # [samples, 5] as `TokenSet.words` has them
    masking: Masking | None = None
    seed: int = 0
    graded: GradedSteps | None = None  # graded pairs beside the pairs
    shapes: Shapes | None = None  # the shapes of batches, if there are few; None: each batch is as long as its tokens

    def __post_init__(self) -> None:
        self.pairs = self.prepared.pairs()
        self.teacher_rows = self.prepared.teacher_rows()
        self.languages = self.prepared.text_languages()
        if self.words is not None:
            self.first_word = zeros(len(self.pairs) + 1, np.int64)
            for part in parts(len(self.first_word)):
                self.first_word[part] = np.searchsorted(self.words[:, 0], np.arange(part.start, part.stop))

    def usable(self) -> NDArray[np.int64] | None:
        """The pairs with a word and its translation, if a trial can train on these alone; else None."""
        if self.words is None:
            return None
        has_words: NDArray[np.bool_] = zeros(len(self.pairs), np.bool_)
        for part in parts(len(self.pairs)):
            has_words[part] = np.diff(self.first_word[part.start : part.stop + 1]) > 0
        return places(has_words)

    def sides(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The text ids of the sources, of the targets, and of the mined negatives if there are some; a negative that
        was not found is -1."""
        ids = [np.asarray(self.pairs[rows, side], dtype=np.int64) for side in (0, 1)]
        return ids if self.negatives is None else [*ids, np.asarray(self.negatives[rows], dtype=np.int64)]

    def token_counts(self, rows: NDArray[np.int64]) -> list[int]:
        """Tokens of each side of these pairs."""
        assert isinstance(self.tokens, Ragged)
        return [int(self.tokens.lengths(ids).sum()) for ids in texts_of(self.sides(rows))]

    def sentences(self, values: NDArray[np.integer], lengths: NDArray[np.integer], room: int = 0) -> Tokens:
        """Tokens on the device, filled up to `room`."""
        assert not room or self.shapes
        return Tokens(
            self.filled(values, room),
            torch.from_numpy(lengths.astype(np.int64)).to(self.device),
            self.shapes.longest if room and self.shapes else 0,
        )

    def filled(self, values: NDArray[np.integer], room: int, with_: int = 0) -> Tensor:
        """The values on the device and, up to `room`, others behind them."""
        whole = np.full(max(room, len(values)), with_, np.int64)
        whole[: len(values)] = values
        return torch.from_numpy(whole).to(self.device)

    def masked(self, tokens: Taken, room: int, places: NDArray[np.int64], step: int, side: int) -> Masked | None:
        """The texts with some of their tokens masked; `places` are their pairs' in the global batch."""
        if self.masking is None:
            return None
        values, lengths = tokens
        position = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        drawn = lots(self.seed, step, side, np.repeat(places, lengths), position)
        masked, labels = self.masking(values.astype(np.int64), drawn)
        return Masked(self.sentences(masked, lengths, room), self.filled(labels, room, IGNORED))

    def drawn_words(self, rows: NDArray[np.int64], places: NDArray[np.int64], step: int) -> Tensor | None:
        """[rows, 4] one of each pair's words and its translation."""
        if self.words is None:
            return None
        first, end = self.first_word[rows], self.first_word[rows + 1]
        chosen = first + (lots(self.seed, step, 2, places) * (end - first)).astype(np.int64)
        return torch.from_numpy(self.words[chosen, 1:].astype(np.int64)).to(self.device)

    def vectors(self, ids: NDArray[np.int64]) -> Tensor:
        assert self.teacher is not None
        rows = self.teacher.rows(self.teacher_rows[ids])
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)

    def target_lengths(self) -> NDArray[np.int64]:
        """[pairs] the number of tokens of each pair's target."""
        assert isinstance(self.tokens, Ragged)
        lengths: NDArray[np.int64] = zeros(len(self.pairs), np.int64)
        for part in parts(len(self.pairs)):
            lengths[part] = self.tokens.lengths(self.pairs[part, 1])
        return lengths

    def anchors(self, count: int, seed: int, only: NDArray[np.int64] | None = None) -> tuple[Tensor, Tensor]:
        """The teacher's vectors and the text ids of `count` distinct anchors drawn at random, or of all there are.
        `only`: of these pairs."""
        if only is not None:
            anchors = np.unique(self.pairs[only, 0].astype(np.int64))
            drawn = np.random.default_rng((seed, 9)).permutation(anchors)[:count]
        elif len(self.pairs) > COMPUTED_ABOVE:
            drawn = self._anchors_of_many(count, Permutation(len(self.pairs), (seed, 9)))
        else:
            drawn = np.random.default_rng((seed, 9)).permutation(self.prepared.distinct_anchors())[:count]
        return self.vectors(drawn), torch.from_numpy(drawn).to(self.device)

    def _anchors_of_many(self, count: int, order: Permutation) -> NDArray[np.int64]:
        """Distinct anchors of pairs in this order: `count`, or all there are."""
        drawn = np.empty(0, np.int64)
        for part in parts(len(order)):
            rows = order(np.arange(part.start, part.stop))
            drawn = np.concatenate([drawn, self.pairs[rows, 0].astype(np.int64)])
            drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])][:count]
            if len(drawn) == count:
                break
        return drawn

    def batch(
        self, rows: NDArray[np.int64], total: int, *, step: int = 0, first: int = 0, alone: bool = False
    ) -> Batch:
        """This rank's rows, from place `first` on, of global batch `step` of `total` pairs."""
        places = np.arange(first, first + len(rows))
        sides = self.needs.teacher
        ids = self.sides(rows)
        source, target, *mined = ids
        tokens = [self.tokens.take(side) for side in texts_of(ids)]
        counts = [len(values) for values, _ in tokens]
        longest = max((int(lengths.max(initial=0)) for _, lengths in tokens), default=0)
        rooms = (self.shapes and self.shapes.room(counts, longest)) or [0] * len(tokens)
        texts = [self.sentences(*side, room) for side, room in zip(tokens, rooms, strict=True)]
        anchor = source if self.prepared.copy_anchor else target
        mask = torch.from_numpy(mined[0] >= 0).to(self.device) if mined else None
        return Batch(
            source=texts[0],
            target=texts[1],
            source_ids=torch.from_numpy(source).to(self.device),
            target_ids=torch.from_numpy(target).to(self.device),
            total=total,
            alone=alone,
            teacher_source=self.vectors(source) if "source" in sides else None,
            teacher_target=self.vectors(anchor) if "target" in sides else None,
            negatives=texts[2] if mined else None,
            negatives_mask=mask,
            languages=self.batch_languages(source, target),
            words=self.drawn_words(rows, places, step),
            masked_source=self.masked(tokens[0], rooms[0], places, step, 0),
            masked_target=self.masked(tokens[1], rooms[1], places, step, 1),
            graded=self.graded_pairs(step, first, len(rows), total),
        )

    def graded_pairs(self, step: int, first: int, count: int, total: int) -> Graded | None:
        """This rank's share of the step's graded pairs, as large as its share of the global batch."""
        if self.graded is None:
            return None
        rows = self.graded.rows(step)
        here = rows[first * len(rows) // total : (first + count) * len(rows) // total]
        left, right = (self.sentences(*self.tokens.take(ids)) for ids in self.graded.pairs.pairs[here, 1:].T)
        grades = torch.from_numpy(self.graded.pairs.grades[here]).float().to(self.device)
        return Graded(left, right, grades, len(rows))

    def alone(self, rows: NDArray[np.int64]) -> bool:
        """Whether a global batch of these rows is text of one language alone; other batches have no such row."""
        source, target = self.pairs[rows[0]]
        return bool(source == target)

    def batch_languages(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Tensor | None:
        """[rows, 2] the languages of both sides, by their place in `prepared.languages`."""
        if not self.needs.per_language:
            return None
        languages = np.stack([self.languages[source], self.languages[target]], axis=1)
        return torch.from_numpy(languages.astype(np.int64)).to(self.device)
