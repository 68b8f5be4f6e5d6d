"""Texts with a zero vector: whatever is searched, scored or averaged equals what the other rows alone give."""

import itertools
import json

import numpy as np
import pytest
import torch

from babeltune.apps.mining import mine, retrieval, vectors
from babeltune.apps.mining.index import through_index
from babeltune.apps.mining.margin import pair_scores, retrieve
from babeltune.apps.mining.mine import Encoding, MiningSettings
from babeltune.apps.mining.vectors import EncodingModel
from babeltune.data.negatives import mine_negatives
from babeltune.data.prepared import EvalTask
from babeltune.errors import DataError
from babeltune.evaluation import knn, sts
from babeltune.evaluation.evaluate import evaluate
from babeltune.evaluation.mining_f1 import RETRIEVALS, candidates
from babeltune.files import json_text, plain
from searches import both_ways

MARGINS = ("ratio", "distance", "absolute")
ZEROS = {
    "few": ((0, 3, 7), (1, 2)),
    "nearly all": (tuple(range(2, 24)), tuple(range(3, 30))),
    "one side": ((), (0, 29)),
}


def sides(zeros=((0, 3, 7), (1, 2)), *, n=24, m=30, dim=6, shift=0.3, seed=0):
    """Two sides, these rows of them zero, and their other rows. Some cosines are below 0, which is a zero vector's."""
    generator = np.random.default_rng(seed)
    both = [(generator.normal(size=(count, dim)) + shift).astype(np.float32) for count in (n, m)]
    for side, rows in zip(both, zeros, strict=True):
        side[list(rows)] = 0
    return (*both, *(np.flatnonzero(side.any(axis=1)) for side in both))


def in_numpy(x, y, margin, k=4):
    """LASER's forward and backward candidates of sides without zero vectors, and their margins."""
    x, y = (side.astype(np.float64) / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
    cosine = x @ y.T
    means = [np.sort(each, axis=1)[:, -k:].mean(axis=1) for each in (cosine, cosine.T)]
    around = (means[0][:, None] + means[1]) / 2
    scores = {"ratio": cosine / around, "distance": cosine - around, "absolute": cosine}[margin]
    forward = {(i, max(np.argsort(-row)[:k], key=lambda j, i=i: scores[i, j])) for i, row in enumerate(cosine)}
    backward = {(max(np.argsort(-row)[:k], key=lambda i, j=j: scores[i, j]), j) for j, row in enumerate(cosine.T)}
    return scores, forward, backward


@pytest.mark.parametrize(("zeros", "margin"), itertools.product(ZEROS, MARGINS))
def test_candidates_and_their_margins_are_those_of_the_other_rows(zeros, margin):
    left, right, lefts, rights = sides(ZEROS[zeros])
    scores, forward, backward = in_numpy(left[lefts], right[rights], margin)
    expected = {"forward": forward, "backward": backward, "intersection": forward & backward}
    expected["union"] = forward | backward
    found, mined = candidates(left, right, 4, margin), both_ways(left, right, 4, tile=(8, 16))
    for how in RETRIEVALS:
        pairs = retrieve(mined, margin, how)
        by_search = dict(zip(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True), pairs.score, strict=True))
        for some in (found[how], by_search):
            assert how == "max" or some.keys() == {(lefts[i], rights[j]) for i, j in expected[how]}
            in_rows = [(np.searchsorted(lefts, i), np.searchsorted(rights, j)) for i, j in some]
            assert list(some.values()) == pytest.approx([scores[pair] for pair in in_rows], rel=1e-4)
    assert mined.alone == tuple(map(len, ZEROS[zeros]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_neighbours_of_a_search_and_of_dev_sets_are_those_of_the_other_rows(precision):
    left, right, lefts, rights = sides(n=60, m=70, dim=8)
    alone = knn.nearest_both_ways(left[lefts], right[rights], 5)
    for found in (knn.nearest_both_ways(left, right, 5), both_ways(left, right, 5, precision=precision, tile=(16, 16))):
        torch.testing.assert_close(found.forward.cosine[lefts], alone.forward.cosine)
        assert np.array_equal(found.forward.index[lefts], rights[alone.forward.index])
        assert np.array_equal(found.backward.index[rights], lefts[alone.backward.index])
        assert (found.forward.index[[0, 3, 7]] == -1).all()
        assert (found.forward.cosine[[0, 3, 7]] == knn.UNDEFINED).all()


def test_an_index_of_faiss_gives_no_zero_vector_a_neighbour():
    pytest.importorskip("faiss")
    left, right, lefts, rights = sides(n=300, m=320, dim=8)
    found, exact = through_index(left, right, 4, "hnsw"), both_ways(left, right, 4)
    assert found.alone == (3, 2)
    assert set(found.forward.index[lefts].unique().tolist()) <= set(rights.tolist())
    assert (found.forward.index == exact.forward.index).double().mean() > 0.95


def test_sides_of_zero_vectors_alone_have_no_pair_and_no_figure_that_breaks():
    nothing, something = np.zeros((5, 4), np.float32), np.eye(5, 4, dtype=np.float32) + 1
    for left, right in ((nothing, something), (something, nothing), (nothing, nothing)):
        assert not any(candidates(left, right).values())
        assert not len(retrieve(both_ways(left, right, 4)))
        assert knn.mean_cosine(nothing) == 0


def test_a_margin_to_a_mean_of_zero_is_no_candidate():
    x = np.array([[1, 0], [-1, 0]], np.float32)  # each sentence's two neighbours have the cosines 1 and -1
    matches = both_ways(x, x, 2)
    assert not len(retrieve(matches))
    row = torch.tensor([0])
    assert pair_scores(matches, row, row, torch.ones(1)) == knn.UNDEFINED
    assert not any(candidates(x, x, 2).values())


def task(kind, left, right, **more):
    return EvalTask(name=kind, kind=kind, subset="fra-eng", left=tuple(left), right=tuple(right), **more)


def scores_of(tasks, table):
    return evaluate(tasks, lambda ids: table[ids])


def test_mining_f1_is_that_of_the_other_rows_in_any_order_of_the_rows():
    left, right, lefts, rights = sides(n=24, m=24)
    gold = [(i, i) for i in range(24)]
    right[rights] = left[rights] + 0.2 * right[rights]
    right[[0, 3, 7]] = np.random.default_rng(5).normal(size=(3, 6))
    table = np.concatenate([left, right])
    names = [f"dev/mining/fra-eng/f1_{how}_oracle" for how in RETRIEVALS]
    seen = []
    for order in (np.arange(24), np.arange(24)[::-1], np.random.default_rng(1).permutation(24)):
        place = np.argsort(order)
        turned = [(int(place[i]), int(place[j])) for i, j in gold]
        scores = scores_of([task("mining", order.tolist(), (24 + order).tolist(), gold=tuple(turned))], table)
        assert scores["dev/zero_vectors"] == 5
        seen.append([scores[name] for name in names])
    assert seen[0] == seen[1] == seen[2]
    # The same search without the rows: what they have of the gold is missed.
    both = candidates(left[lefts], right[rights])
    threshold_free = {how: {(lefts[i], rights[j]): s for (i, j), s in pairs.items()} for how, pairs in both.items()}
    for how, f1 in zip(RETRIEVALS, seen[0], strict=True):
        hits = [pair in set(gold) for pair, _ in sorted(threshold_free[how].items(), key=lambda item: -item[1])]
        best = max(2 * sum(hits[:n]) / (n + len(gold)) for n in range(1, len(hits) + 1))
        assert f1 == pytest.approx(best)


def test_a_text_with_a_zero_vector_is_an_error_of_a_bitext_wherever_it_stands():
    left, _, _, _ = sides(((), ()))
    for row in (0, 11, 23):
        table = np.concatenate([left, left])
        table[row] = 0
        scores = scores_of([task("bitext", range(24), range(24, 48))], table)
        right = {name.rpartition("/")[2]: value for name, value in scores.items() if "fra-eng" in name}
        assert right["accuracy_forward"] == right["accuracy_backward"] == right["accuracy"] == pytest.approx(23 / 24)
        assert right["xsim_error"] == pytest.approx(1 / 24)
        assert right["f1"] == pytest.approx(23 / 24)
        others = np.delete(left, row, axis=0)
        assert scores["dev/mean_cosine"] == pytest.approx(knn.mean_cosine(np.concatenate([left, others])))


def test_a_graded_pair_with_a_zero_vector_is_left_out_of_the_correlation():
    left, right, _, _ = sides(((0, 3, 7), (1, 2)), n=24, m=24)
    grades = np.random.default_rng(3).uniform(size=24)
    scores = scores_of([task("sts", range(24), range(24, 48), scores=tuple(grades))], np.concatenate([left, right]))
    rest = np.array([row for row in range(24) if row not in (0, 1, 2, 3, 7)])
    cosines = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(left[rest], right[rest], strict=True)]
    assert scores["dev/sts/fra-eng/spearman"] == pytest.approx(sts.spearman(grades[rest], cosines))
    assert scores["dev/sts/fra-eng/pearson"] == pytest.approx(sts.pearson(grades[rest], cosines), abs=1e-6)


def test_a_document_with_a_zero_vector_is_retrieved_for_no_query():
    queries, documents, _, _ = sides(((0,), (1, 2)), n=6, m=30, shift=-0.3)
    documents[3:] = -np.abs(documents[3:])
    queries[1:] = np.abs(queries[1:])  # a zero vector's cosine of 0 would be the best of all
    gold = tuple((query, 1) for query in range(6))
    judged = task("retrieval", range(6), range(6, 36), gold=gold, scores=(1.0,) * 6, k=10)
    scores = scores_of([judged], np.concatenate([queries, documents]))
    assert scores["dev/retrieval/fra-eng/ndcg_at_10"] == scores["dev/retrieval/fra-eng/recall_at_10"] == 0


def test_an_anchor_with_a_zero_vector_has_no_hard_negatives_and_is_none():
    anchors, _, lefts, _ = sides(((0, 3), ()), n=12, m=1, shift=0)
    pairs = np.stack([np.arange(12), np.arange(12, 24)], axis=1)
    found = mine_negatives(anchors, pairs, np.zeros(12, np.int64), k=11)
    alone = mine_negatives(anchors[lefts], pairs[lefts], np.zeros(len(lefts), np.int64), k=11)
    assert np.array_equal(found[lefts], alone)
    assert (found[[0, 3]] == -1).all()


@pytest.fixture
def encoding(monkeypatch, tmp_path):
    """Words known to the model have a direction, others none: a static model without an unknown token."""

    def encode(self, texts):
        rows = [[hash_of(word, place) for place in range(16)] for word in ("nothing", *texts)]
        return np.array([[0.0] * 16 if "zzz" in text else row for text, row in zip(texts, rows[1:], strict=True)])

    def hash_of(text, place):
        return np.random.default_rng([place, *text.lower().encode()]).normal() + 0.5

    monkeypatch.setattr(EncodingModel, "encode", encode)
    monkeypatch.setattr(vectors, "SHARD", 8)
    model = EncodingModel("toy", "digest")
    return Encoding(models=(model, model), storage=tmp_path / "storage", progress=lambda *_: None)


@pytest.mark.usefixtures("one_thread")
def test_commands_leave_out_count_and_say_what_has_no_margin(encoding, tmp_path):
    (tmp_path / "a").write_text("".join(f"line {n}\n" for n in range(9)) + "zzz one\nzzz two\n")
    (tmp_path / "b").write_text("".join(f"LINE {n}\n" for n in range(9)) + "zzz three\n")
    (tmp_path / "pairs").write_text("".join(f"line {n}\tLINE {n}\n" for n in range(9)) + "zzz one\tLINE 0\n")
    out = tmp_path / "out"
    done = mine.mine(tmp_path / "a", tmp_path / "b", out, MiningSettings(), encoding)
    assert done.pairs == 9
    assert done.without_neighbours == (2, 1)
    assert any("2 sources and 1 targets have no neighbours" in words for words in mine.warnings_about(done))
    done = mine.score(tmp_path / "pairs", out, MiningSettings(), encoding)
    scores = [float(line.partition("\t")[0]) for line in out.read_text().splitlines()]
    assert done.pairs == len(scores) == 9
    assert done.undefined == 1
    assert done.mean == pytest.approx(np.mean(scores), abs=1e-6)
    assert json.loads(json_text(done)) == json.loads(json.dumps(plain(done)))
    assert any("1 pairs have no defined margin" in words for words in mine.warnings_about(done))
    done = retrieval.retrieve(tmp_path / "a", tmp_path / "b", out, encoding, k=2)
    assert done.without_neighbours == 2
    assert "zzz" not in out.read_text()


def test_encode_counts_zero_vectors_and_names_the_line_of_one_that_is_not_finite(encoding, tmp_path, monkeypatch):
    model = encoding.models[0]
    lines = (tmp_path / "lines").write_text("one\nzzz\ntwo\n") and tmp_path / "lines"
    with lines.open("rb") as file:
        assert mine.encode(file, model, tmp_path / "v.npy", lambda *_: None).zero_vectors == 1
    monkeypatch.setattr(
        EncodingModel, "encode", lambda self, texts: np.array([[1.0, np.nan if text == "two" else 0] for text in texts])
    )
    with lines.open("rb") as file, pytest.raises(DataError, match="line 3: its vector is not finite"):
        mine.encode(file, model, tmp_path / "w.npy", lambda *_: None)
    assert not (tmp_path / "w.npy").exists()


def test_json_has_no_number_that_json_does_not_know():
    value = {"mean": float("nan"), "scores": [float("inf"), -float("inf"), 1.5]}
    assert json.loads(json_text(value), parse_constant=pytest.fail) == {"mean": None, "scores": [None, None, 1.5]}
