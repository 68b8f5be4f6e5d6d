"""Margins and retrieval, against plain loops over the printed definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.apps.mining.margin import flipped, pair_scores, precision_at_1, retrieve
from babeltune.apps.mining.rows import UnitRows
from babeltune.evaluation.knn import Matches, Neighbours
from searches import both_ways

pytestmark = pytest.mark.usefixtures("one_thread")


def bitext(n, m, seed, noise=0.6):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 8)), rng.normal(size=(m, 8))
    both = min(n, m)
    y[:both] = x[:both] + noise * rng.normal(size=(both, 8))
    return x.astype(np.float32), y.astype(np.float32)


def margin_by_loops(matches, margin):
    """LASER's score_candidates, both directions: dicts (left, right) -> score."""
    means = [[float(row.mean()) for row in side.cosine] for side in (matches.forward, matches.backward)]
    scores = {"forward": [], "backward": []}
    for name, side, near, other in (("forward", matches.forward, *means), ("backward", matches.backward, *means[::-1])):
        for i, (cosines, indices) in enumerate(zip(side.cosine.tolist(), side.index.tolist(), strict=True)):
            row = []
            for a, j in zip(cosines, indices, strict=True):
                b = (near[i] + other[j]) / 2
                row.append((a if margin == "absolute" else a / b if margin == "ratio" else a - b, j))
            scores[name].append(row)
    return scores


def retrieve_by_loops(matches, margin, retrieval, threshold):
    """LASER's mine_bitexts with `seen` sets, and stopes' union and intersection without repeats."""
    scores = margin_by_loops(matches, margin)
    best = {name: [max(row, key=lambda pair: pair[0]) for row in rows] for name, rows in scores.items()}
    forward = [(score, i, j) for i, (score, j) in enumerate(best["forward"])]
    backward = [(score, i, j) for j, (score, i) in enumerate(best["backward"])]
    chosen = {"forward": forward, "backward": backward}.get(retrieval, forward + backward)
    chosen = [c for c in chosen if threshold is None or c[0] > threshold]
    chosen.sort(key=lambda c: -c[0])
    if retrieval in ("union", "intersection"):
        sides = [{(i, j) for _, i, j in side} for side in (forward, backward)]
        wanted = sides[0] | sides[1] if retrieval == "union" else sides[0] & sides[1]
        return {(i, j) for _, i, j in chosen} & wanted
    if retrieval != "max":
        return {(i, j) for _, i, j in chosen}
    left, right, pairs = set(), set(), set()
    for _, i, j in chosen:
        if i not in left and j not in right:
            left.add(i)
            right.add(j)
            pairs.add((i, j))
    return pairs


@settings(max_examples=40)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 5),
    st.sampled_from(["ratio", "distance", "absolute"]),
    st.sampled_from(["max", "forward", "backward", "intersection", "union"]),
    st.sampled_from([None, 0.0, 1.02]),
    st.integers(0, 99),
)
def test_retrieval_is_that_of_plain_loops(n, m, k, margin, retrieval, threshold, seed):
    matches = both_ways(*bitext(n, m, seed), k)
    pairs = retrieve(matches, margin, retrieval, threshold)
    retrieved = list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
    assert set(retrieved) == retrieve_by_loops(matches, margin, retrieval, threshold)
    assert len(set(retrieved)) == len(retrieved), "each pair once"
    assert (np.diff(pairs.score) <= 0).all()
    expected = {}
    for name, rows in margin_by_loops(matches, margin).items():
        for i, row in enumerate(rows):
            for score, j in row:
                expected[(i, j) if name == "forward" else (j, i)] = score
    assert [expected[pair] for pair in retrieved] == pytest.approx(pairs.score.tolist(), rel=1e-4, abs=1e-4)


def test_max_gives_each_sentence_at_most_one_partner_and_the_threshold_is_strict():
    near = Neighbours(torch.tensor([[1.0], [0.9]]), torch.tensor([[0], [0]]))
    back = Neighbours(torch.tensor([[1.0]]), torch.tensor([[0]]))
    matches = Matches(near, back)
    assert list(retrieve(matches, "absolute", "max").left) == [0]
    assert list(retrieve(matches, "absolute", "forward").left) == [0, 1]
    assert len(retrieve(matches, "absolute", "max", threshold=1.0)) == 0
    assert list(retrieve(matches, "absolute", "forward", threshold=0.9).left) == [0]


def test_lasers_steps_in_the_benchmark_take_the_same_pairs():
    pytest.importorskip("faiss")
    from benchmarks.mining import by_laser

    x, y = (UnitRows(side).block(0, len(side)).numpy() for side in bitext(60, 80, 3))
    pairs = retrieve(both_ways(x, y, 4), "ratio", "max")
    assert set(by_laser(x, y, 4)) == set(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))


def test_a_chain_of_better_offers_is_resolved_greedily():
    """0-0 takes 0 from 1, whose second choice nobody proposed; 2 keeps its own."""
    forward = Neighbours(torch.tensor([[0.9], [0.8], [0.7]]), torch.tensor([[0], [0], [1]]))
    backward = Neighbours(torch.tensor([[0.9], [0.75]]), torch.tensor([[0], [1]]))
    pairs = retrieve(Matches(forward, backward), "absolute", "max")
    assert list(zip(pairs.left, pairs.right, strict=True)) == [(0, 0), (1, 1)]


def test_given_pairs_score_as_candidates_do_and_others_by_their_own_cosine():
    x, y = bitext(20, 30, 1)
    matches = both_ways(x, y, 4)
    left = torch.arange(20)
    best = retrieve(matches, "ratio", "forward")
    sides = list(zip(x[best.left], y[best.right], strict=True))
    cosines = torch.tensor([float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in sides])
    again = pair_scores(matches, torch.from_numpy(best.left), torch.from_numpy(best.right), cosines)
    assert again.tolist() == pytest.approx(best.score.tolist(), rel=1e-5)
    far = pair_scores(matches, left, torch.zeros(20, dtype=torch.long), torch.full((20,), -0.5))
    assert (far < 0).all()


@pytest.mark.trap(24)
def test_neighbourhoods_of_negative_mean_are_noticed_for_ratio_alone():
    x = np.array([[1, 0], [0.9, 0.1]], np.float32)
    matches = both_ways(x, -x, 2)
    assert flipped(matches, "ratio") == 1.0
    assert flipped(matches, "distance") == 0.0
    assert flipped(both_ways(x, x, 2), "ratio") == 0.0


def test_precision_at_1_against_candidates_on_disk(tmp_path):
    rng = np.random.default_rng(0)
    stored = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float32, (5000, 16))
    stored[:] = rng.normal(size=stored.shape)
    stored.flush()
    gold = rng.permutation(5000)[:200]
    queries = stored[gold] + 0.01 * rng.normal(size=(200, 16)).astype(np.float32)
    queries[:20] = -queries[:20]
    candidates = np.load(tmp_path / "c.npy", mmap_mode="r")
    assert precision_at_1(both_ways(queries, candidates, 1, tile=(64, 512)).forward, gold) == 0.9
    with pytest.raises(ValueError, match="200 queries and 3 gold"):
        precision_at_1(both_ways(queries, candidates, 1).forward, gold[:3])
