"""Soft contrastive alignment.

Park et al. 2024, "Improving Multi-lingual Alignment Through Soft Contrastive Learning" (NAACL SRW), and the authors'
code YAI12xLinq-B/IMASCL. A frozen teacher says how alike the anchor sentences of a batch are; the student's
similarities across languages, and within each language, are pulled to that distribution instead of to 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Config:
    """The paper's numbers, with every cross-entropy a proper one (`reading: fixed`)."""

    temperature: float = 0.1
    """tau of the student's similarities (section 4.1: 0.1)."""
    teacher_temperature: float | None = None
    """tau of the labels; absent: the student's, as in the paper and the code."""
    labels: Literal["priority", "average", "hard"] = "priority"
    """Section 3.2: the anchor side's similarities, the mean of both sides' (needs a teacher that knows both), or 0 and 1."""
    reading: Literal["paper", "authors_code", "fixed"] = "fixed"
    """Where the printed equations and the released code differ. `paper`: the column term keeps labels that sum to one over
    rows. `authors_code`: proper cross-entropies, the monolingual terms twice and no `lambda_cross`; hard labels are
    softmax(identity / tau). `fixed`: proper cross-entropies once, with `lambda_cross`; hard labels mask repeated texts."""
    tcm: bool = True
    """Section 3.3: adds the monolingual terms of both languages."""
    lambda_cross: float = 0.1
    """Section 3.3, lambda: weight of the cross-lingual term beside the monolingual ones. Without `tcm`, and in the
    `authors_code` reading, there is none."""
