"""A batch in parts is as many batches that do not see each other."""

import pytest
import torch
from torch.testing import assert_close

from babeltune import testing
from babeltune.method import available
from babeltune.method.distributed import ProcessGroup
from babeltune.training.parts import loss_in_parts, rows_of
from toy_batches import batch_of, gaussian
from toy_batches import run as run_whole

HARD = testing.Case("soft_contrastive", {"labels": "hard", "tcm": False})
CASES = [
    *(testing.Case(name) for name in sorted(available()) if name != "combined"),
    testing.Case("laser3_co", {"mask_weight": 0.1}),
]


def run(method, vectors, batch, parts):
    """The loss of a student whose vector of text i is row i, and its gradient."""
    table = torch.tensor(vectors, requires_grad=True)
    loss = loss_in_parts(
        lambda part: method.loss(lambda tokens: table[tokens.ids], part, ProcessGroup()), batch, parts, ProcessGroup()
    )
    loss.total.backward()
    return loss, table.grad


def test_a_pairs_negatives_are_those_of_its_own_part():
    method, vectors = HARD.build()[0], gaussian(14, testing.DIM, 0)
    found, gradient = run(method, vectors, batch_of(7), 3)
    total, expected = 0.0, torch.zeros(14, testing.DIM)
    for rows in ([0, 1], [2, 3], [4, 5, 6]):
        texts = [*rows, *(7 + row for row in rows)]
        loss, own = run_whole(method, [vectors[text] for text in texts], batch_of(len(rows)))
        total += len(rows) / 7 * loss.total.item()
        expected[texts] = len(rows) / 7 * own
    assert found.total.item() == pytest.approx(total, rel=1e-5)
    assert_close(gradient, expected)
    assert found.terms["cross"].item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("parts", [1, 4])
def test_one_part_is_the_whole_batch_and_no_part_has_fewer_than_two_pairs(parts):
    method, vectors, batch = HARD.build()[0], gaussian(6, testing.DIM, 0), batch_of(3)
    (found, gradient), (whole, expected) = run(method, vectors, batch, parts), run_whole(method, vectors, batch)
    assert_close(found.total, whole.total)
    assert_close(gradient, expected)
    for name, value in whole.diagnostics.items():
        assert_close(found.diagnostics[name], value.to(found.diagnostics[name].dtype), msg=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rows_of_two_ranks_are_the_batch_of_one(case):
    """What `rows_of` cuts out is what a rank of two would have, whatever the method needs."""
    needs = case.build()[1]
    whole, parts = testing.example_batch(needs), [testing.example_batch(needs, rank=rank, world=2) for rank in (0, 1)]
    start = 0
    for part in parts:
        rows = slice(start, start + len(part.source))
        cut = dict(testing.tensors_of(rows_of(whole, rows, whole.total)))
        expected = dict(testing.tensors_of(part))
        assert cut.keys() == expected.keys()
        for name, tensor in expected.items():
            assert_close(cut[name], tensor, msg=name)
        start = rows.stop
