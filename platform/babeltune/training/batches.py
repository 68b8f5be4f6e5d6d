"""From the rows of the prepared pairs to a batch on a device: tokens, teacher vectors, mined negatives, words, masks.

What is drawn anew at each visit is a function of the seed, the step and the pair's place in the global batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from babeltune.data.arrays import parts, places, zeros
from babeltune.data.stored_arrays import Matrix, Ragged
from babeltune.method import Batch, Masked, Needs, Tokens
from babeltune.method.masked_lm import Masking
from babeltune.models.encoder import TextIds
from babeltune.training.epochs import COMPUTED_ABOVE
from babeltune.training.permutation import Permutation
from babeltune.training.sampler import lots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.prepared import Prepared


@dataclass
class Reader:
    """Turns rows of the prepared pairs into batches on a device."""

    prepared: Prepared
    tokens: Ragged[np.integer] | TextIds
    teacher: Matrix | None
    device: torch.device
    needs: Needs
    negatives: NDArray[np.integer] | None = None
    words: NDArray[np.integer] | None = None
    """[samples, 5] as `TokenSet.words` has them."""
    masking: Masking | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.pairs = self.prepared.pairs()
        self.teacher_rows = self.prepared.teacher_rows()
        self.languages = self.prepared.text_languages()
        if self.words is not None:
            self.first_word = zeros(len(self.pairs) + 1, np.int64)
            for part in parts(len(self.first_word)):
                self.first_word[part] = np.searchsorted(self.words[:, 0], np.arange(part.start, part.stop))

    def usable(self) -> NDArray[np.int64] | None:
        """The pairs that a trial can train on, where not all: those with a word and its translation."""
        if self.words is None:
            return None
        has_words: NDArray[np.bool_] = zeros(len(self.pairs), np.bool_)
        for part in parts(len(self.pairs)):
            has_words[part] = np.diff(self.first_word[part.start : part.stop + 1]) > 0
        return places(has_words)

    def sentences(self, ids: NDArray[np.int64]) -> Tokens:
        values, lengths = self.tokens.take(ids)
        return Tokens(
            torch.from_numpy(values.astype(np.int64)).to(self.device),
            torch.from_numpy(lengths.astype(np.int64)).to(self.device),
        )

    def masked(self, ids: NDArray[np.int64], places: NDArray[np.int64], step: int, side: int) -> Masked | None:
        """The texts with some of their tokens masked; `places` are their pairs' in the global batch."""
        if self.masking is None:
            return None
        values, lengths = self.tokens.take(ids)
        position = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        drawn = lots(self.seed, step, side, np.repeat(places, lengths), position)
        masked, labels = (torch.from_numpy(a).to(self.device) for a in self.masking(values.astype(np.int64), drawn))
        return Masked(Tokens(masked, torch.from_numpy(lengths.astype(np.int64)).to(self.device)), labels)

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

    def anchors(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """The teacher's vectors and the text ids of `count` distinct anchors drawn at random, or of all there are."""
        if len(self.pairs) > COMPUTED_ABOVE:
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
        source, target = (np.asarray(self.pairs[rows, side], dtype=np.int64) for side in (0, 1))
        negatives = mask = None
        if self.negatives is not None:
            chosen = np.asarray(self.negatives[rows], dtype=np.int64)
            mask = torch.from_numpy(chosen >= 0).to(self.device)
            negatives = self.sentences(np.where(chosen < 0, target[:, None], chosen).reshape(-1))
        return Batch(
            source=self.sentences(source),
            target=self.sentences(target),
            source_ids=torch.from_numpy(source).to(self.device),
            target_ids=torch.from_numpy(target).to(self.device),
            total=total,
            alone=alone,
            teacher_source=self.vectors(source) if "source" in sides else None,
            teacher_target=self.vectors(source if self.prepared.copy_anchor else target) if "target" in sides else None,
            negatives=negatives,
            negatives_mask=mask,
            languages=self.batch_languages(source, target) if self.needs.per_language else None,
            words=self.drawn_words(rows, places, step),
            masked_source=self.masked(source, places, step, 0),
            masked_target=self.masked(target, places, step, 1),
        )

    def alone(self, rows: NDArray[np.int64]) -> bool:
        """Whether a global batch of these rows is text of one language alone; other batches have no such row."""
        source, target = self.pairs[rows[0]]
        return bool(source == target)

    def batch_languages(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Tensor:
        """[rows, 2] the languages of both sides, by their place in `prepared.languages`."""
        languages = np.stack([self.languages[source], self.languages[target]], axis=1)
        return torch.from_numpy(languages.astype(np.int64)).to(self.device)
