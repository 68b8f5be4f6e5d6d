"""Neighbours of both directions, against plain loops in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.apps.mining import tiles
from babeltune.apps.mining.rows import UnitRows
from babeltune.apps.mining.tiles import Candidates, Tile, nothing, scan, settle
from babeltune.apps.mining.topk_keys import EMPTY, cosine_of, empty, index_of, merge, pack
from babeltune.data.stored_arrays import Matrix
from babeltune.errors import DataError
from babeltune.evaluation.knn import nearest_both_ways
from kernels import SeenKernels
from searches import both_ways

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors(rows, dim, seed, repeats=0):
    """Random vectors of any length, whose last `repeats` repeat earlier ones."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, dim)).astype(np.float32) * rng.uniform(0.5, 2, (rows, 1)).astype(np.float32)
    if repeats:
        x[-repeats:] = x[rng.integers(0, max(1, rows - repeats), repeats)]
    return x


def by_loops(queries, candidates, k):
    """Indices of the k nearest: float64 cosines of the unit rows, rounded to fp32, the lowest index first of equals."""
    x, y = (
        UnitRows(queries).block(0, len(queries)).double().numpy(),
        UnitRows(candidates).block(0, len(candidates)).numpy(),
    )
    indices = []
    for row in x:
        cosines = (row * y.astype(np.float64)).sum(1).astype(np.float32)
        indices.append(sorted(range(len(y)), key=lambda j: (-cosines[j], j))[:k])
    return torch.tensor(indices)


# Keys


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_keys_sort_like_cosines_and_then_by_the_lowest_index(values):
    cosine, index = torch.tensor(values), torch.arange(len(values))
    keys = pack(cosine, index).sort(descending=True).values
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert index_of(keys).tolist() == order
    assert torch.equal(cosine_of(keys), torch.tensor([values[i] for i in order]))


def test_an_empty_key_is_below_every_cosine_and_has_no_index():
    nobody = torch.tensor([EMPTY])
    assert pack(torch.tensor([-1.0]), torch.tensor([2**32 - 1])) > nobody
    assert index_of(nobody).tolist() == [-1]
    assert cosine_of(nobody).tolist() == [-np.inf]
    assert index_of(pack(torch.tensor([0.5]), torch.tensor([2**32 - 1]))).tolist() == [2**32 - 1]


@given(st.lists(st.integers(0, 2**40), unique=True, min_size=3, max_size=24), st.integers(1, 5), st.data())
def test_merging_is_associative_and_commutative(keys, k, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), min_size=2, max_size=2)))
    a, b, c = torch.tensor([keys]).tensor_split(cuts, dim=1)
    whole = merge(torch.tensor([keys]), k=k)
    for one, two, three in ((a, b, c), (c, a, b), (b, c, a)):
        assert torch.equal(merge(merge(one, two, k=k), three, k=k), whole)
        assert torch.equal(merge(one, merge(two, three, k=k), k=k), whole)


# Rows


@pytest.mark.trap(42)
def test_a_row_has_the_same_bits_in_every_block_and_list():
    x = vectors(70, 48, seed=0)
    before = x.copy()
    rows = UnitRows(x)
    whole = rows.block(0, 70)
    assert torch.equal(torch.cat([rows.block(i, i + 1) for i in range(70)]), whole)
    assert torch.equal(rows.take(torch.tensor([69, 3, 3])), whole[[69, 3, 3]])
    assert torch.allclose(torch.linalg.vector_norm(whole, dim=1), torch.ones(70))
    assert np.array_equal(x, before)


@pytest.mark.parametrize("kind", ["fp16 on disk", "read-only", "tensor bf16", "joined"])
def test_vectors_come_from_memory_disk_and_shards_in_any_precision(kind, tmp_path):
    x = vectors(40, 8, seed=1)
    if kind == "fp16 on disk":
        np.save(tmp_path / "x.npy", x.astype(np.float16))
        source, expected = np.load(tmp_path / "x.npy", mmap_mode="r"), x.astype(np.float16)
    elif kind == "read-only":
        source, expected = x.view(), x
        source.flags.writeable = False
    elif kind == "tensor bf16":
        source = torch.from_numpy(x).bfloat16()
        expected = source.float().numpy()
    else:
        source, expected = Matrix([x[:7], x[7:7], x[7:]], None), x
    reference = UnitRows(expected.astype(np.float32))
    assert torch.equal(UnitRows(source).block(3, 29), reference.block(3, 29))
    assert torch.equal(UnitRows(source).take(torch.tensor([39, 0, 7])), reference.take(torch.tensor([39, 0, 7])))


def test_a_zero_vector_stays_zero_and_one_that_is_not_finite_is_named():
    x = vectors(9, 4, seed=2)
    x[4] = 0
    assert not UnitRows(x).block(4, 5).any()
    x[6] = np.nan
    with pytest.raises(DataError, match="vector 6 is not finite"):
        UnitRows(x).block(5, 9)


# Neighbours


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 7), st.integers(0, 12), st.integers(0, 99), st.data())
def test_both_directions_are_those_of_plain_loops(n, m, k, repeats, seed, data):
    x, y = vectors(n, 6, seed, min(repeats, n - 1)), vectors(m, 6, seed + 1, min(repeats, m - 1))
    tile = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)))
    before = x.copy(), y.copy()
    matches = both_ways(x, y, k, tile=tile)
    assert torch.equal(matches.forward.index, by_loops(x, y, k))
    assert torch.equal(matches.backward.index, by_loops(y, x, k))
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])


@pytest.mark.trap(27)
@settings(max_examples=25)
@given(st.integers(2, 50), st.integers(2, 50), st.integers(0, 99), st.randoms(use_true_random=False))
def test_any_split_into_blocks_in_any_order_gives_the_same_as_the_whole(n, m, seed, random):
    x, y = vectors(n, 6, seed, n // 2), vectors(m, 6, seed + 1, m // 2)
    k = 3
    rows = sorted({0, n, random.randrange(n), random.randrange(n)})
    columns = sorted({0, m, random.randrange(m), random.randrange(m)})
    parts = [Tile(r, c) for r in itertools.pairwise(rows) for c in itertools.pairwise(columns)]
    random.shuffle(parts)
    totals = [nothing(n, m, k), nothing(n, m, k)]
    for block in parts:
        part = Candidates(
            empty(block.rows[1] - block.rows[0], totals[0].forward.shape[1]),
            empty(block.columns[1] - block.columns[0], totals[0].backward.shape[1]),
        )
        scan(UnitRows(x), UnitRows(y), part, block, tile=(8, 16))
        totals[random.randrange(2)].add(part, block)
    totals[0].add(totals[1], Tile((0, n), (0, m)))
    matches, whole = settle(UnitRows(x), UnitRows(y), totals[0], k), both_ways(x, y, k)
    for one, other in ((matches.forward, whole.forward), (matches.backward, whole.backward)):
        assert torch.equal(one.index, other.index)
        assert torch.allclose(one.cosine, other.cosine, atol=1e-6)


@pytest.mark.trap(26)
def test_k_beyond_the_candidates_is_all_of_them():
    matches = both_ways(vectors(3, 4, 0), vectors(5, 4, 1), 9)
    assert matches.forward.index.shape == (3, 5)
    assert matches.backward.index.shape == (5, 3)


def test_of_many_equal_vectors_the_lowest_indices_win_in_every_tile_shape():
    x = np.tile(vectors(1, 64, 0), (300, 1))
    for tile in ((7, 13), (64, 300)):
        matches = both_ways(x, x, 4, tile=tile)
        assert matches.forward.index.tolist() == [[0, 1, 2, 3]] * 300
        assert matches.backward.index.tolist() == [[0, 1, 2, 3]] * 300


def test_neighbours_nearer_than_rounding_are_ordered_exactly():
    rng = np.random.default_rng(3)
    base = rng.normal(size=(1, 256))
    y = (base + 1e-6 * rng.normal(size=(400, 256))).astype(np.float32)
    neighbours = both_ways(y[:20], y, 4, tile=(16, 64)).forward
    assert torch.equal(neighbours.index, by_loops(y[:20], y, 4))


def same(matches, expected):
    """The neighbours are the same in both directions, and the forward cosines close."""
    assert torch.equal(matches.forward.index, expected.forward.index)
    assert torch.equal(matches.backward.index, expected.backward.index)
    assert torch.allclose(matches.forward.cosine, expected.forward.cosine, atol=1e-6)


def test_neighbours_are_those_in_memory_and_of_bf16_tiles_with_exact_scores():
    x, y = vectors(300, 32, 5), vectors(500, 32, 6)
    same(both_ways(x, y, 4), nearest_both_ways(x, y, 4))
    x, y = vectors(200, 128, 7), vectors(900, 128, 8)
    same(both_ways(x, y, 4, precision="bf16"), both_ways(x, y, 4))


@pytest.mark.parametrize("noise", [0.02, 1.0])
@pytest.mark.parametrize("k", [1, 4])
def test_bf16_gives_the_neighbours_of_fp32_even_if_all_vectors_are_close(noise, k):
    """With little noise all cosines are near 1, as those of some models are, and thousands within bf16's rounding."""
    rng = np.random.default_rng(9)
    base = rng.normal(size=(1, 64))
    x, y = ((base + noise * rng.normal(size=(count, 64))).astype(np.float32) for count in (64, 3_000))
    half, full = both_ways(x, y, k, precision="bf16"), both_ways(x, y, k)
    for ours, exact in ((half.forward, full.forward), (half.backward, full.backward)):
        assert torch.equal(ours.index, exact.index)
        assert torch.allclose(ours.cosine, exact.cosine, rtol=0, atol=1e-6)
    assert torch.equal(half.forward.index, by_loops(x, y, k))


def test_bf16_multiplies_bf16_where_there_are_instructions_for_it(monkeypatch):
    """The product, too, then comes out in bf16; what is found is the same."""
    x, y = vectors(40, 32, 7), vectors(300, 32, 8)
    full = both_ways(x, y, 4)
    monkeypatch.setattr(tiles, "emulates_bf16", lambda: False)
    with SeenKernels("aten::matmul") as seen:
        half = both_ways(x, y, 4, precision="bf16")
    assert seen.calls[0][0].dtype == torch.bfloat16
    for ours, exact in ((half.forward, full.forward), (half.backward, full.backward)):
        assert torch.equal(ours.index, exact.index)
        assert torch.allclose(ours.cosine, exact.cosine, rtol=0, atol=1e-6)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("noise", [0.02, 1.0])
def test_a_gpu_finds_what_loops_find_whatever_the_caller_trains_with(precision, noise):
    """TF32 would move a cosine by more than the vectors are apart where there is little noise."""
    rng = np.random.default_rng(9)
    base = rng.normal(size=(1, 64))
    x, y = ((base + noise * rng.normal(size=(count, 64))).astype(np.float32) for count in (64, 3_000))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16), SeenKernels("aten::matmul") as seen:
            matches = both_ways(x, y, 4, precision=precision)
    finally:
        torch.set_float32_matmul_precision(before)
    factors = {(first.device.type, first.dtype) for first, *_ in seen.calls}
    assert ("cuda", torch.bfloat16 if precision == "bf16" else torch.float32) in factors
    assert torch.equal(matches.forward.index, by_loops(x, y, 4))
    assert torch.equal(matches.backward.index, by_loops(y, x, 4))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="4 and of 5 dimensions"):
        both_ways(vectors(2, 4, 0), vectors(2, 5, 0), 1)
    with pytest.raises(DataError, match="0 sentences on the left"):
        both_ways(vectors(0, 4, 0), vectors(2, 4, 0), 1)
    with pytest.raises(DataError, match="k is 0"):
        both_ways(vectors(2, 4, 0), vectors(2, 4, 0), 0)
    with pytest.raises(DataError, match="shape"):
        UnitRows(np.zeros(4))


def test_progress_counts_every_cosine():
    noted = []
    both_ways(vectors(30, 4, 0), vectors(20, 4, 1), 2, tile=(16, 16), progress=lambda *a: noted.append(a))
    assert noted[-1] == (600, 600)
    assert len(noted) == 4


def test_the_tiles_bound_what_is_read_at_a_time(monkeypatch):
    most = []
    block = UnitRows.block
    monkeypatch.setattr(UnitRows, "block", lambda self, a, b: most.append(b - a) or block(self, a, b))
    both_ways(vectors(100, 4, 0), vectors(90, 4, 1), 2, tile=(16, 32))
    assert max(most) == 32
    assert tiles.TILE[0] * tiles.TILE[1] * 4 < 70e6
