"""The vocabulary of a student: the tokens that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a student reads."""

    size: int
    pad: int  # the id of the token that fills a batch
    table_rows: NDArray[np.int64] | None = None
    """[size] rows of a named model's token table that a trimmed tokenizer reads; None: all."""
    tokenizer: Tokenizer | None = None  # the tokenizer itself, for `student.ngrams`
