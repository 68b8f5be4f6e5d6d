"""Graded pairs beside the pairs (`data.graded`): what a batch of them is, and their loss.

The loss is CoSENT's (Su 2022; sentence-transformers' `CoSENTLoss`): of two pairs of a batch, the one of the higher
grade shall have the higher cosine. It reads the order of the grades alone, so a student whose cosines all lie near 1
needs no other scale. Method, queue and negatives see nothing of these pairs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from babeltune.method.contract import Graded
from babeltune.training.sampler import local_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from babeltune.data.prepared import GradedPairs
    from babeltune.method import Encode
    from babeltune.method.distributed import ProcessGroup

SCALE = 20.0  # of the cosines, as in sentence-transformers
USE = 10  # keeps what is drawn here apart from other draws of the trial's seed


@dataclass(frozen=True)
class GradedSteps:
    """The graded pairs of every step: a pure function of the seed and the step."""

    pairs: GradedPairs
    batch: int  # graded pairs of a step over all workers
    seed: int

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a step, each once, of one set; a smaller set is whole."""
        sets, generator = self.pairs.pairs[:, 0], np.random.default_rng((self.seed, step, USE))
        chosen = sets[generator.integers(len(sets))]
        first, end = np.searchsorted(sets, (chosen, chosen + 1))
        rows: NDArray[np.int64] = first + generator.choice(end - first, min(self.batch, end - first), replace=False)
        return rows


def sizes_of(graded: int, total: int, world: int) -> list[int]:
    """Every rank's number of graded pairs, for a global batch of `total` pairs."""
    ends = (end * graded // total for end in accumulate(local_sizes(total, world), initial=0))
    return [end - start for start, end in pairwise(ends)]


def graded_loss(encode: Encode, graded: Graded, ranks: ProcessGroup) -> Tensor:
    """This rank's share of log(1 + sum exp(20 (cos_i - cos_j))), over all pairs i, j of a step with grade_i < grade_j.

    `ranks` knows how many graded pairs each rank has. Summed over the ranks the shares are the loss."""
    vectors = (functional.normalize(encode(side), dim=1) for side in (graded.left, graded.right))
    cosines = ranks(torch.linalg.vecdot(*vectors))
    grades = ranks(graded.grades)
    higher = grades[:, None] < grades[None, :]
    wrong = (SCALE * (cosines[:, None] - cosines[None, :]))[higher]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0) / ranks.world
