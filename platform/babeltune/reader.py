"""From the rows of the prepared pairs to a batch on a device: tokens, teacher vectors and mined negatives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from babeltune.encoder import TextIds
from babeltune.method import Batch, Needs, Tokens, needs_of
from babeltune.store import Matrix, Ragged, open_matrix, open_ragged
from babeltune.tokens import tokenizer_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.prepared import Prepared, TokenSet
    from babeltune.records import Trial


@dataclass
class Reader:
    """Turns rows of the prepared pairs into batches on a device."""

    prepared: Prepared
    tokens: Ragged | TextIds
    teacher: Matrix | None
    device: torch.device
    needs: Needs
    negatives: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        self.pairs = self.prepared.pairs()
        self.teacher_rows = self.prepared.teacher_rows()
        self.languages = self.prepared.text_languages()

    def sentences(self, ids: NDArray[np.int64]) -> Tokens:
        values, lengths = self.tokens.take(ids)
        return Tokens(
            torch.from_numpy(values.astype(np.int64)).to(self.device),
            torch.from_numpy(lengths.astype(np.int64)).to(self.device),
        )

    def vectors(self, ids: NDArray[np.int64]) -> Tensor:
        assert self.teacher is not None
        rows = self.teacher.rows(self.teacher_rows[ids])
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)

    def target_lengths(self) -> NDArray[np.int64]:
        """[pairs] the number of tokens of each pair's target."""
        assert isinstance(self.tokens, Ragged)
        lengths: NDArray[np.int64] = self.tokens.lengths()[np.asarray(self.pairs[:, 1])]
        return lengths

    def anchors(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """The teacher's vectors and the text ids of `count` distinct anchors drawn at random, or of all there are."""
        ids = np.unique(np.asarray(self.pairs[:, 0], dtype=np.int64))
        drawn = np.random.default_rng((seed, 9)).permutation(ids)[:count]
        return self.vectors(drawn), torch.from_numpy(drawn).to(self.device)

    def batch(self, rows: NDArray[np.int64], total: int) -> Batch:
        """This rank's rows of a global batch of `total` pairs."""
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
            teacher_source=self.vectors(source) if "source" in sides else None,
            teacher_target=self.vectors(source if self.prepared.copy_anchor else target) if "target" in sides else None,
            negatives=negatives,
            negatives_mask=mask,
            languages=self.batch_languages(source, target) if self.needs.per_language else None,
        )

    def batch_languages(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Tensor:
        """[rows, 2] the languages of both sides, by their place in `prepared.languages`."""
        languages = np.stack([self.languages[source], self.languages[target]], axis=1)
        return torch.from_numpy(languages.astype(np.int64)).to(self.device)


def token_set(trial: Trial, prepared: Prepared) -> TokenSet:
    """The tokenizer and token stores of a trial's student."""
    return prepared.tokens[tokenizer_key(trial.student, prepared.text_digest)]


def make_reader(trial: Trial, prepared: Prepared, device: torch.device) -> Reader:
    """The reader of a trial's batches."""
    needs = needs_of(trial.method, trial.config)
    mined = prepared.negatives[needs.negatives_key] if needs.hard_negatives else None
    return Reader(
        prepared,
        TextIds() if needs.frozen else open_ragged(Path(token_set(trial, prepared).train)),
        open_matrix(Path(prepared.teacher)) if prepared.teacher else None,
        device,
        needs,
        np.load(mined, mmap_mode="r") if mined else None,
    )
