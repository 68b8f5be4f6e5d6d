import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from babeltune.method.contrastive import Duplicates, tiled_cross_entropy
from babeltune.method.distributed import ProcessGroup
from babeltune.method.tiled_contrastive import soft_labels


def unit(rows, columns, seed, dtype=torch.float32):
    return normalize(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=1)


def plain(x, y, a, tau, label_tau, alpha, beta, r, c, same=None, beside=None):
    """The formula with whole matrices."""
    similarities = x @ y.T / tau
    masked = similarities if same is None else similarities.masked_fill(same, -math.inf)
    lists = masked if beside is None else torch.cat([masked, beside.unsqueeze(1)], dim=1)
    value = (alpha * lists.logsumexp(1)).sum()
    if beta is not None:
        value = value + (beta * masked.logsumexp(0)).sum()
    if a is not None:
        w = (a @ a.T / label_tau).softmax(1)
        value = value - ((r * w + c * w.T) * similarities).sum()
    return value


CASES = st.fixed_dictionaries(
    {
        "count": st.integers(1, 23),
        "tile": st.sampled_from([1, 3, 7, 16, 64]),
        "tau": st.sampled_from([0.005, 0.019, 0.02, 0.1, 1.0]),
        "label_tau": st.sampled_from([0.005, 0.05, 0.1]),
        "r": st.sampled_from([0.0, 1.0, 2.0]),
        "c": st.sampled_from([0.0, 1.0]),
        "columns": st.booleans(),
        "seed": st.integers(0, 1000),
    }
)


@pytest.mark.trap(11)
@settings(max_examples=60, deadline=None)
@given(CASES)
def test_tiles_equal_the_formula_in_value_and_gradient(case):
    n, tau = case["count"], case["tau"]
    x, y = (unit(n, 6, case["seed"] + k).requires_grad_() for k in (0, 1))
    a = unit(n, 4, case["seed"] + 2)
    alpha, beta = torch.rand(n) + 0.5, torch.rand(n) + 0.5 if case["columns"] else None
    labels = soft_labels(a, ProcessGroup(), temperature=case["label_tau"], tile=case["tile"])
    weights = {"row_weights": alpha, "column_weights": beta}
    shares = {"label_rows": case["r"], "label_columns": case["c"]}
    value, _ = tiled_cross_entropy(x, y, temperature=tau, labels=labels, **weights, **shares)
    value.backward()
    long = [v.detach().double().requires_grad_() for v in (x, y)]
    weights = [v.double() if v is not None else None for v in (alpha, beta)]
    expected = plain(*long, a.double(), tau, case["label_tau"], *weights, case["r"], case["c"])
    expected.backward()
    scale = n / tau
    assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5 * scale)
    for single, double in zip((x, y), long, strict=True):
        torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-4, atol=3e-5 / tau)


@pytest.mark.parametrize("labelled", [True, False])
def test_similarities_that_are_kept_give_what_those_made_again_give(labelled, monkeypatch):
    def values():
        x, y = (unit(40, 6, seed).requires_grad_() for seed in (0, 1))
        texts = torch.arange(40) % 30
        labels = soft_labels(unit(40, 4, 2), ProcessGroup(), temperature=0.1, tile=16) if labelled else None
        options = {"label_rows": 1.0} if labelled else {"label_rows": 0.0, "repeats": Duplicates(texts, texts, 0)}
        value, _ = tiled_cross_entropy(x, y, temperature=0.1, labels=labels, tile=16, **options)
        value.backward()
        return value.detach(), x.grad, y.grad

    first = values()
    monkeypatch.setattr("babeltune.method.tiled_contrastive.KEPT", 0)
    for actual, expected in zip(first, values(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.trap(8)
@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 9), st.integers(0, 6), st.sampled_from([2, 5, 32]), st.sampled_from([0.005, 0.1]), st.integers(0, 99)
)
def test_a_rank_with_some_rows_sees_all_columns_masks_and_its_own_candidates(rows, before, tile, tau, seed):
    total = before + rows + 3
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randint(0, 5, (total,), generator=generator)
    x, y = unit(rows, 6, seed).requires_grad_(), unit(total, 6, seed + 1).requires_grad_()
    beside = (torch.rand(rows, generator=generator) / tau).requires_grad_()
    repeats = Duplicates(texts[before : before + rows], texts, before)
    value, _ = tiled_cross_entropy(x, y, temperature=tau, repeats=repeats, beside=beside, tile=tile)
    value.backward()
    same = repeats.local.unsqueeze(1) == texts
    same[torch.arange(rows), torch.arange(rows) + before] = False
    long = [v.detach().double().requires_grad_() for v in (x, y, beside)]
    expected = plain(long[0], long[1], None, tau, 1.0, 1.0, None, 0, 0, same, long[2])
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5 / tau)
    for single, double in zip((x, y, beside), long, strict=True):
        torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-4, atol=3e-5 / tau)
    assert repeats.count() == sum((texts == text).sum() > 1 for text in repeats.local)
    counts = [total - 1 - int(row.sum()) for row in same]
    assert repeats.negatives().tolist() == repeats.others(True).negatives().tolist() == counts
    assert repeats.others(False).negatives().tolist() == [total - 1] * rows


def test_a_candidate_with_two_texts_of_a_row_is_left_out_once():
    repeats = Duplicates(torch.tensor([[1, 2], [3, 3], [4, 9]]), torch.tensor([1, 3, 4, 2, 3, 1]), 0)
    assert repeats.negatives().tolist() == [3, 4, 5]
    assert Duplicates(torch.empty(0, 2, dtype=torch.long), torch.tensor([1, 2]), 0).negatives().tolist() == []


@pytest.mark.trap(11)
def test_bf16_vectors_under_autocast_are_multiplied_in_fp32():
    x, y = unit(20, 16, 0).bfloat16().requires_grad_(), unit(20, 16, 1).bfloat16().requires_grad_()
    labels = soft_labels(unit(20, 8, 2), ProcessGroup(), temperature=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = tiled_cross_entropy(x, y, temperature=0.005, labels=labels, label_rows=1.0, tile=8)
    value.backward()
    long = [v.detach().double().requires_grad_() for v in (x, y)]
    expected = plain(*long, labels.local.double(), 0.005, 0.01, 1.0, None, 1.0, 0.0)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert x.grad.dtype == torch.bfloat16
    torch.testing.assert_close(x.grad.double(), long[0].grad, rtol=1e-2, atol=1e-2)


@pytest.mark.trap(11)
def test_at_a_tiny_temperature_identical_and_opposite_vectors_stay_finite():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    labels = soft_labels(x.detach(), ProcessGroup(), temperature=0.005, tile=2)
    value, _ = tiled_cross_entropy(x, -x.detach(), temperature=0.005, labels=labels, label_rows=1.0)
    value.backward()
    assert math.isfinite(value.item())
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("beside", [-90.0, -200.0, 0.0])
def test_rows_without_candidates_have_no_gradient_whatever_stands_beside(beside):
    """An additive margin may put it far below every cosine."""
    x, ids = unit(2, 4, 0).requires_grad_(), torch.tensor([7, 7])
    repeats = Duplicates(ids, ids, 0, positives=True)
    value, _ = tiled_cross_entropy(x, unit(2, 4, 1), temperature=0.02, repeats=repeats, beside=torch.full((2,), beside))
    value.backward()
    assert value.item() == pytest.approx(2 * beside)
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.trap(9)
def test_labels_are_rows_that_sum_to_one_and_know_their_entropy_and_column_sums():
    a, y = unit(19, 5, 0), unit(19, 5, 1)
    labels = soft_labels(a, ProcessGroup(), temperature=0.1, tile=4)
    w = (a @ a.T / 0.1).softmax(1)
    torch.testing.assert_close(labels.column_sums, w.sum(0))
    value, similarity = tiled_cross_entropy(a, y, temperature=1.0, labels=labels, label_rows=1.0)
    torch.testing.assert_close(labels.own_log_z.sum() - similarity, -(w * w.log()).sum())
    # If all student similarities are one constant, every cross-entropy is log N whenever the labels sum to one.
    same = torch.ones(19, 1)
    value, _ = tiled_cross_entropy(same, same, temperature=0.1, labels=labels, label_rows=1.0)
    assert value.item() == pytest.approx(19 * math.log(19), rel=1e-5)


@pytest.mark.trap(9)
def test_gradients_do_not_reach_the_teacher():
    a, x = unit(6, 3, 0).requires_grad_(), unit(6, 3, 1).requires_grad_()
    labels = soft_labels(a, ProcessGroup(), temperature=0.1)
    tiled_cross_entropy(x, x, temperature=0.1, labels=labels, label_rows=1.0)[0].backward()
    assert a.grad is None
    assert x.grad is not None


@pytest.mark.parametrize("where", ["student", "teacher"])
@pytest.mark.parametrize("tau", [0.005, 0.1])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_never_hidden(where, tau, wrong):
    x, a = unit(9, 3, 0), unit(9, 3, 1)
    (x if where == "student" else a)[4, 1] = wrong
    labels = soft_labels(a, ProcessGroup(), temperature=tau, tile=4)
    value, _ = tiled_cross_entropy(x, unit(9, 3, 2), temperature=tau, labels=labels, label_rows=1.0)
    assert not math.isfinite(value.item())


def test_without_gradients_only_the_value_is_computed():
    x = unit(5, 3, 0).requires_grad_()
    with torch.no_grad():
        value, _ = tiled_cross_entropy(x, x, temperature=0.1)
    assert not value.requires_grad
    assert value.item() == pytest.approx((x @ x.T / 0.1).logsumexp(1).sum().item(), rel=1e-5)
