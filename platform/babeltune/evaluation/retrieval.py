"""Scores of ranked documents against graded judgements: nDCG, recall and reciprocal rank, as trec_eval defines them.

Pure functions of arrays. A ranking is [queries, depth], the best document first; -1 is no document. A document is
relevant if its grade is above 0. A query without a relevant document scores 0, as trec_eval has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from numpy import ndarray

    Gains = Float[ndarray, "queries depth"]
    """The grades of the ranked documents, 0 of those that are not relevant."""
    Scores = Float[ndarray, "queries"]

Judgements = Sequence[dict[int, float]]  # for each query, the grades of its relevant documents, all above 0
TOP = 10  # the depth of nDCG, of the reciprocal rank and of the same-language bias


def judgements(queries: int, pairs: Sequence[tuple[int, int]], grades: Sequence[float]) -> Judgements:
    """The relevant documents of each query, from judged pairs (query, document); without `grades`, all are 1."""
    grade_of: list[dict[int, float]] = [{} for _ in range(queries)]
    for (query, document), grade in zip(pairs, grades or [1.0] * len(pairs), strict=True):
        if grade > 0:
            grade_of[query][document] = grade
    return grade_of


def gains(ranking: Int[ndarray, "queries depth"], judged: Judgements) -> Gains:
    """The grade of every ranked document."""
    rows = [
        [grades.get(document, 0.0) for document in row] for row, grades in zip(ranking.tolist(), judged, strict=True)
    ]
    return np.array(rows, np.float64).reshape(len(judged), -1)


def ndcg(gained: Gains, judged: Judgements, k: int = TOP) -> Scores:
    """Of each query, the discounted gain of its k first documents, over that of the best possible ranking.

    Järvelin and Kekäläinen 2002, with the grade as gain and the discount log2(rank + 1): `ndcg_cut` of trec_eval."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.zeros((len(judged), k))
    for row, grades in zip(ideal, judged, strict=True):
        best = sorted(grades.values(), reverse=True)[:k]
        row[: len(best)] = best
    top = gained[:, :k]
    return _share(top @ discount[: top.shape[1]], ideal @ discount)


def recall(gained: Gains, judged: Judgements, k: int) -> Scores:
    """Of each query, the share of its relevant documents that are among the k first: `recall` of trec_eval."""
    hits = (gained[:, :k] > 0).sum(axis=1)
    return _share(hits.astype(np.float64), np.array([len(grades) for grades in judged], np.float64))


def reciprocal_rank(gained: Gains) -> Scores:
    """Of each query, 1 / rank of the first relevant document, 0 if it is not among the `TOP` first."""
    hit = gained[:, :TOP] > 0
    return np.where(hit.any(axis=1), 1 / (hit.argmax(axis=1) + 1), 0.0)


def same_language_bias(
    ranking: Int[ndarray, "queries depth"], judged: Judgements, same_language: Bool[ndarray, "documents"], k: int = TOP
) -> float:
    """How much more often the k first documents are in the query's language than the relevant ones are.

    For each query it is the share of its k first documents that are in its own language, minus that share of its
    relevant documents. The result is the mean over queries with a relevant document. `same_language` marks the
    documents in the language of the queries, which is one. 0: the language plays no part. Above 0: documents are found
    for their language. A ranking is shorter if it has -1."""
    first = [same_language[row[row >= 0]] for row in ranking[:, :k]]
    excess = [
        languages.mean() - same_language[list(grades)].mean()
        for languages, grades in zip(first, judged, strict=True)
        if grades and len(languages)
    ]  # a query without relevant documents has no share to compare with
    return float(np.mean(excess)) if excess else 0.0


def _share(part: Scores, whole: Scores) -> Scores:
    shares: Scores = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    return shares
