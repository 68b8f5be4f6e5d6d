"""Where a static student's table begins: each token's mean teacher vector over the training text that contains it.

The teacher knows the anchors' language only. The two sides of a pair mean the same, so the tokens of both are given the
vector of its anchor. Khodak et al. 2018, section 3, make a rare word's vector so from its contexts. Their linear map on
top is left to training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from babeltune.data.arrays import parts
from babeltune.data.store import Contents, build, digest_of_array, digest_of_texts, facts_of
from babeltune.data.stored_arrays import open_matrix, open_ragged
from babeltune.data.teacher import build_teacher_store, token_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from babeltune.data.shards import RunShards
    from babeltune.data.stored_arrays import Matrix, Ragged
    from babeltune.schema.records import Teacher

FILE = "vectors.npy"
PAIRS = 16_384  # pairs whose tokens are added up at a time: 25 MB of vectors 384 wide
FREQUENT = 1e-3  # share of a text's tokens at which a token's vector has half its length (Arora et al.: 1e-3)
PRIOR = 1.0
"""Occurrences with the mean of all vectors that are added to a token's own, so that one seen once is no copy of it."""


def build_token_vectors(
    stores: Path,
    tokens: Path,
    teacher: Path,
    pairs: NDArray[np.integer],
    teacher_rows: NDArray[np.integer],
    *,
    size: int,
) -> Path:
    """The file of the tokens' mean vectors, fp32 [size, teacher_dim], in a store that is built unless it is there.

    `tokens` and `teacher` are the folders of stores. `pairs` [pairs, 2] are text ids, the anchor's first.
    `teacher_rows` [texts] has each text's row of the teacher's store. Raises `StoreError` if the disk refuses."""
    digests = {"pairs": digest_of_array(pairs), "teacher_rows": digest_of_array(teacher_rows)}
    description = {"tokens": tokens.name, "teacher": teacher.name, "size": size, "prior": PRIOR, **digests}

    def write(folder: Path) -> Contents:
        rows = teacher_rows[pairs[:, 0]]
        np.save(folder / FILE, mean_vectors(open_ragged(tokens), open_matrix(teacher), pairs, rows, size=size))
        return Contents()

    vector_bytes = 4 * size * int(facts_of(teacher)["dim"] or 0)
    return build(stores, "token-vectors", description, write, bytes_needed=vector_bytes) / FILE


def encode_tokens(
    stores: Path, tokens: Path, tokenizer: Any, teacher: Teacher, run_shards: RunShards, *, size: int
) -> Path:
    """The file of the teacher's vectors of single tokens, as `weighted` makes them. `tokens` is the texts' store."""
    texts = token_texts(tokenizer, range(size))
    distinct = list(dict.fromkeys(filter(None, texts)))
    encoded = build_teacher_store(stores, distinct, teacher, run_shards=run_shards)
    description = {"tokens": tokens.name, "encoded": encoded.name, "of": digest_of_texts(texts), "frequent": FREQUENT}

    def write(folder: Path) -> Contents:
        ragged, counts = open_ragged(tokens), np.zeros(size, np.int64)
        for part in parts(len(ragged)):
            counts += np.bincount(ragged.take(np.arange(part.start, part.stop))[0], minlength=size)
        places = {text: row for row, text in enumerate(distinct)}
        rows = np.array([places.get(text, -1) for text in texts])
        np.save(folder / FILE, weighted(open_matrix(encoded), rows, counts))
        return Contents()

    return build(stores, "token-vectors", description, write) / FILE


def weighted(encoded: Matrix, rows: NDArray[np.integer], counts: NDArray[np.integer]) -> NDArray[np.float32]:
    """[tokens, dim] a / (a + p) times each token's vector, less the mean of all; zeros if its row is -1.

    p is the token's share of the text, by the `counts`: the weights of Arora et al. 2017."""
    vectors = encoded.rows(np.arange(len(encoded))).astype(np.float32)
    vectors = np.vstack([vectors - vectors.mean(0), np.zeros_like(vectors[:1])])
    weights = FREQUENT / (FREQUENT + counts / max(1, counts.sum()))
    first: NDArray[np.float32] = (weights[:, None] * vectors[rows]).astype(np.float32)
    return first


def mean_vectors(
    tokens: Ragged[np.integer], teacher: Matrix, pairs: NDArray[np.integer], rows: NDArray[np.integer], *, size: int
) -> NDArray[np.float32]:
    """[size, teacher_dim] of each token the mean of the vectors of its pairs, less the mean of all pairs' vectors.

    `rows` [pairs] are the rows of the pairs' vectors in `teacher`. A token that occurs nowhere has zeros."""
    sums, counts = np.zeros((size, teacher.width), np.float32), np.zeros(size, np.int64)
    total = np.zeros(teacher.width, np.float64)
    for first in range(0, len(pairs), PAIRS):
        vectors = teacher.rows(rows[first : first + PAIRS]).astype(np.float32)
        total += vectors.sum(0, dtype=np.float64)
        values, lengths = tokens.take(pairs[first : first + PAIRS].ravel())
        pair_of = np.repeat(np.arange(2 * len(vectors)) // 2, lengths)
        order = np.argsort(values, kind="stable")
        token_ids, starts, times = np.unique(values[order], return_index=True, return_counts=True)
        sums[token_ids] += torch.nn.functional.embedding_bag(
            torch.from_numpy(pair_of[order]), torch.from_numpy(vectors), torch.from_numpy(starts), mode="sum"
        ).numpy()
        counts[token_ids] += times
    mean = (total / max(1, len(pairs))).astype(np.float32)
    means: NDArray[np.float32] = ((sums - counts[:, None] * mean) / (counts[:, None] + PRIOR)).astype(np.float32)
    return means
