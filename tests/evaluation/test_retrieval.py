"""Search scores equal trec_eval's and a brute force, and the search never makes a whole matrix."""

import numpy as np
import pytest
import pytrec_eval
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from babeltune.data.prepared import EvalTask
from babeltune.errors import TrainingError
from babeltune.evaluation import knn, retrieval
from babeltune.evaluation.evaluate import Lookup, evaluate, score_vectors
from babeltune.evaluation.knn import TILE, nearest

RANDOM = np.random.default_rng(0)


def search(vectors, queries, documents, gold, scores=(), **more):
    given = {"left": queries, "right": documents, "gold": gold, "scores": scores}
    fields = {"k": 100, **{name: tuple(values) for name, values in given.items()}, **more}
    return EvalTask(name="search", kind="retrieval", subset="eng", **fields)


def scored(vectors, *tasks):
    found = evaluate(list(tasks), lambda ids: vectors[ids])
    return {name.removeprefix("dev/search/"): value for name, value in found.items()}


def cosines(queries, documents):
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, documents))
    return (x.astype(np.float64) @ y.astype(np.float64).T).astype(np.float32)


@pytest.mark.parametrize("k", [1, 20, 100])
def test_scores_are_those_of_trec_eval(k):
    """Graded judgements, negative grades, queries without a relevant document, and equal documents, whose order is
    trec_eval's: the larger id first."""
    count, documents = 60, 400
    vectors = RANDOM.normal(size=(count + documents, 8)).astype(np.float32)
    vectors[count + 100 : count + 200] = vectors[count : count + 100]
    names = sorted((f"d{number}" for number in range(documents)), reverse=True)
    gold = [(q, int(d)) for q in range(count) for d in RANDOM.choice(documents, RANDOM.integers(1, 30), replace=False)]
    near = cosines(vectors[:count], vectors[count:])
    gold = list(dict.fromkeys([*gold, *((q, int(near[q].argmax())) for q in range(0, count, 2))]))
    grades = [0 if q % 10 == 3 else int(RANDOM.integers(-1, 4)) for q, _ in gold]
    qrels, run = {}, {}
    for (query, document), grade in zip(gold, grades, strict=True):
        qrels.setdefault(f"q{query}", {})[names[document]] = grade
    for query in range(count):
        run[f"q{query}"] = {names[j]: float(near[query, j]) for j in range(documents)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", f"recall.{k}"}).evaluate(run)
    top = {
        query: dict(sorted(row.items(), key=lambda item: (item[1], item[0]), reverse=True)[:10])
        for query, row in run.items()
    }
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(top)
    assert len(theirs) == len(ranks) == count, "those without a relevant document count too"
    everything = range(count, count + documents)
    ours = scored(vectors, search(vectors, range(count), everything, gold, grades, k=k))
    for name, values in (("ndcg_cut_10", theirs), (f"recall_{k}", theirs), ("recip_rank", ranks)):
        mine = {"ndcg_cut_10": "ndcg_at_10", "recip_rank": "mrr_at_10"}.get(name, f"recall_at_{k}")
        expected = np.mean([row[name] for row in values.values()])
        assert 0 < expected < 1
        assert ours[mine] == ours[f"eng/{mine}"] == pytest.approx(expected, abs=1e-6)


def test_the_search_is_that_of_all_cosines_and_equal_vectors_keep_their_order():
    table = RANDOM.normal(size=(500, 6)).astype(np.float32)
    table[250:] = table[:250] * 2.0
    rows = RANDOM.permutation(500)
    queries = RANDOM.normal(size=(70, 6)).astype(np.float32)
    whole = cosines(queries, table[rows])
    for tile in ((16, 33), (7, 400), TILE):
        found = nearest(queries, table, rows, 9, tile)
        assert found.index.shape == (70, 9)
        np.testing.assert_allclose(found.cosine, -np.sort(-whole, axis=1)[:, :9], atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(whole, found.index.numpy(), 1), found.cosine, atol=1e-6)
        tied = found.cosine[:, :-1] == found.cosine[:, 1:]
        assert tied.sum() > 70 * 3
        assert (found.index[:, :-1] < found.index[:, 1:])[tied].all()
    assert nearest(queries, table, rows[:3], 9).index.shape == (70, 3)


class Largest(TorchDispatchMode):
    """Remembers the most numbers that a tensor had."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.most = max(self.most, tensor.numel())
        return made


def test_a_large_corpus_never_makes_a_matrix_of_all_queries_and_documents():
    count, documents, dim = 1500, 30_000, 4
    table = RANDOM.normal(size=(count + documents, dim)).astype(np.float32)
    gold = [(query, query) for query in range(count)]
    task = search(table, range(count), range(count, count + documents), gold, k=10)
    lookup = Lookup(np.arange(len(table)), table)
    with Largest() as seen:
        score_vectors([task], lookup, "dev")
    assert seen.most <= TILE[0] * TILE[1] == knn.BLOCK < count * documents / 10


def test_a_query_that_is_a_document_too_never_finds_itself():
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 1, 2]] + np.float32(0.01)
    kept = search(vectors, (0, 1), (0, 1, 2, 3, 4), [(0, 2), (1, 3)], k=1)
    assert scored(vectors, kept)["recall_at_1"] == 0, "itself comes first"
    alone = search(vectors, (0, 1), (0, 1, 2, 3, 4), [(0, 2), (1, 3)], k=1, own_documents=(0, 1))
    assert scored(vectors, alone)["recall_at_1"] == scored(vectors, alone)["ndcg_at_10"] == 1
    some = search(vectors, (0, 1), (0, 1, 2, 3, 4), [(0, 2), (1, 3)], k=1, own_documents=(0, -1))
    assert scored(vectors, some)["recall_at_1"] == 0.5


def test_same_language_bias_is_the_own_share_beyond_that_of_relevant_documents():
    ranked = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]])
    own = np.array([True, True, False, False])
    judged = retrieval.judgements(3, [(0, 0), (0, 2), (1, 0)], [])
    assert retrieval.same_language_bias(ranked, judged, own, k=2) == pytest.approx(((1 - 0.5) + (0 - 1)) / 2)
    assert retrieval.same_language_bias(ranked, judged, own, k=4) == pytest.approx(((0.5 - 0.5) + (0.5 - 1)) / 2)


def test_vectors_of_the_language_alone_are_biased_and_vectors_of_meaning_are_not():
    meaning, language = RANDOM.normal(size=(30, 8)), RANDOM.normal(size=(2, 8))
    both = {"left": range(30), "right": range(60), "gold": [(i, 30 + i) for i in range(30)], "own": tuple(range(30))}
    more = {"left_languages": ("eng",), "right_languages": ("eng",) * 30 + ("fra",) * 30, "mixed": True}

    def bias(weight):
        rows = np.concatenate([meaning + weight * code for code in language]).astype(np.float32)
        found = scored(rows, search(rows, both["left"], both["right"], both["gold"], own_documents=both["own"], **more))
        return found["same_language_bias"], found["ndcg_at_10"], found["eng/same_language_bias"]

    strong, weak = bias(50.0), bias(0.0)
    assert strong[0] == strong[2] == pytest.approx(1)
    assert weak[1] == 1 > strong[1]
    assert 0.3 < weak[0] < 0.7, "of ten documents the translation and about half of the others"


def test_broken_vectors_have_no_search_score():
    vectors = RANDOM.normal(size=(30, 4)).astype(np.float32)
    vectors[20] = np.nan
    with pytest.raises(TrainingError, match="ndcg_at_10' is NaN: some sentence vectors are not finite"):
        scored(vectors, search(vectors, range(10), range(10, 30), [(i, i) for i in range(10)]))
