import pytest
import torch
from torch.nn.functional import normalize

from babeltune.method.distributed import ProcessGroup
from babeltune.method.negative_queue import Filter, Queue, equal_m, log_sums


def unit(rows, dim=6, seed=0):
    return normalize(torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.trap(13)
def test_the_queue_keeps_the_latest_in_order_of_arrival():
    queue = Queue(7, 2)
    rows = torch.arange(40.0).view(20, 2)
    ids = torch.arange(20)
    assert len(queue) == 0
    for start, end in ((0, 3), (3, 4), (4, 9), (9, 20)):  # the last push is larger than the queue
        queue.push(rows[start:end], ids[start:end])
        vectors, numbers = queue.candidates()
        assert sorted(numbers.tolist()) == list(range(max(0, end - 7), end))
        assert torch.equal(vectors, rows[numbers])


@pytest.mark.trap(13)
def test_one_push_or_many_leave_the_same_queue():
    rows, ids = unit(23), torch.arange(23)
    one, many = Queue(8, 6), Queue(8, 6)
    one.push(rows[:5], ids[:5])
    one.push(rows[5:], ids[5:])
    for i in range(23):
        many.push(rows[i : i + 1], ids[i : i + 1])
    assert torch.equal(one.vectors, many.vectors)
    assert torch.equal(one.ids, many.ids)
    assert one.pushed == many.pushed


@pytest.mark.trap(11)
@pytest.mark.parametrize("temperature", [0.005, 0.05, 1.0])
@pytest.mark.parametrize("below", [None, 0.3])
@pytest.mark.parametrize("tile", [3, 1000])
def test_the_tiles_equal_the_plain_formula_in_value_and_gradient(temperature, below, tile):
    k, candidates = unit(5, seed=1), unit(17, seed=2)
    texts, ids = torch.tensor([3, -1, 5, 3, 9]), torch.arange(17) % 7
    queries, plain = (unit(5, seed=3).requires_grad_() for _ in range(2))
    sums, counts, similarity = log_sums(
        queries, candidates, ids, Filter(k, texts, below), temperature=temperature, tile=tile
    )
    mask = (texts[:, None] != ids) | (texts[:, None] == -1)
    if below is not None:
        mask &= k @ candidates.T < below
    expected = (plain.double() @ candidates.double().T / temperature).masked_fill(~mask, -torch.inf).logsumexp(1)
    weights = torch.arange(1.0, 6.0)
    (sums * weights).sum().backward()
    (expected * weights).sum().backward()
    assert counts.tolist() == mask.sum(1).tolist()
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(similarity, (k @ candidates.T).mean(1).sum(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(queries.grad, plain.grad, rtol=1e-4, atol=1e-5 * plain.grad.abs().max().item())


def test_a_row_without_negatives_has_no_sum_and_no_gradient():
    q = unit(2, seed=3).requires_grad_()
    sums, counts, _ = log_sums(
        q, unit(4), torch.tensor([1, 1, 1, 1]), Filter(unit(2), torch.tensor([1, 0])), temperature=0.05
    )
    assert (sums[0].item(), counts.tolist()) == (-torch.inf, [0, 4])
    torch.logaddexp(sums, torch.zeros(2)).sum().backward()
    assert not q.grad[0].any()
    assert q.grad[1].any()


def test_a_threshold_of_one_leaves_out_equal_texts_whatever_rounding_makes_of_them():
    k = unit(2000, dim=384, seed=5)
    negatives = Filter(k, torch.full((2000,), -1), 1.0)
    mask = negatives.keep(k @ k.T, torch.arange(2000), slice(None))
    assert not mask.diagonal().any()
    assert mask.sum() == 2000 * 1999


@pytest.mark.trap(14)
def test_equal_m_draws_the_same_whatever_else_is_in_the_batch():
    k, candidates, ids = unit(6, seed=1), unit(40, seed=2), torch.arange(40)
    rows = torch.arange(100, 106)
    whole = equal_m(Filter(k, rows, 0.2), candidates, ids, rows, ProcessGroup())
    assert whole.chosen.sum(1).unique().numel() == 1
    least = int(whole.chosen.sum(1)[0])
    mask = Filter(k, rows, 0.2).keep(k @ candidates.T, ids, slice(None))
    assert least == int(mask.sum(1).min())
    assert not (whole.chosen & ~mask).any()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    again = equal_m(Filter(k[order], rows[order], 0.2), candidates, ids, rows[order], ProcessGroup())
    assert torch.equal(again.chosen, whole.chosen[order])
    drawn = whole.chosen.float().mean(0)
    assert drawn.std() > 0  # not the first M of every row


def test_rows_whose_repeats_are_not_masked_draw_different_candidates():
    candidates, texts = unit(40, seed=2), torch.arange(6)
    near_all = normalize(candidates.sum(0, keepdim=True), dim=1)  # the filter leaves this row the fewest
    k = torch.cat([near_all, -near_all.expand(5, -1)])
    nobody = torch.full((6,), -1)
    chosen = equal_m(Filter(k, nobody, 0.1), candidates, torch.arange(40), texts, ProcessGroup()).chosen
    drawn = {tuple(row.nonzero().flatten().tolist()) for row in chosen[1:]}
    assert len(drawn) == 5
