import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.errors import MethodError, TrainingError
from babeltune.method import load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune_methods.mse_distillation import Config, MseDistillation
from toy_batches import batch_of


def loss_of(table, batch, config=None):
    method = MseDistillation(config or Config(), student_dim=table.shape[1], teacher_dim=table.shape[1])
    return method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 7), st.sampled_from([0.01, 1.0, 100.0]), st.integers(0, 1000))
def test_both_sides_are_drawn_to_the_anchors_teacher_vector(n, dim, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(2 * n, dim, generator=generator, requires_grad=True)
    teacher = torch.randn(n, dim, generator=generator)
    loss = loss_of(table, batch_of(n, teacher_source=teacher), Config(scale))
    loss.total.backward()
    sums = [0.0, 0.0]
    for i in range(n):
        for side in (0, 1):
            distance = sum((teacher[i][d].item() - table[side * n + i][d].item()) ** 2 for d in range(dim))
            sums[side] += scale * distance / dim
    assert loss.total.item() == pytest.approx(sum(sums) / n, rel=1e-5)
    assert loss.terms["source"].item() == pytest.approx(sums[0] / n, rel=1e-5)
    assert loss.terms["target"].item() == pytest.approx(sums[1] / n, rel=1e-5)
    torch.testing.assert_close(table.grad, scale * 2 * (table.detach() - torch.cat([teacher, teacher])) / dim / n)


def test_each_side_can_have_the_teachers_vector_of_its_own_text():
    table, g_s, g_t = torch.randn(6, 4), torch.randn(3, 4), torch.randn(3, 4)
    batch = batch_of(3, teacher_source=g_s, teacher_target=g_t)
    mse = torch.nn.functional.mse_loss
    f_s, f_t = table.split(3)
    torch.testing.assert_close(loss_of(table, batch, Config(targets="own")).total, mse(f_s, g_s) + mse(f_t, g_t))
    torch.testing.assert_close(loss_of(table, batch).total, mse(f_s, g_s) + mse(f_t, g_s))
    assert MseDistillation.needs(Config(targets="own")).teacher == {"source", "target"}


def test_it_is_sentence_transformers_mse_of_both_sides():
    table, teacher = torch.randn(6, 4), torch.randn(3, 4)
    expected = sum(torch.nn.functional.mse_loss(side, teacher) for side in table.split(3))
    torch.testing.assert_close(loss_of(table, batch_of(3, teacher_source=teacher)).total, expected)


def test_the_share_of_a_rank_is_divided_by_the_global_batch():
    table, teacher = torch.randn(6, 4), torch.randn(3, 4)
    half = loss_of(table, batch_of(3, teacher_source=teacher, total=6)).total
    torch.testing.assert_close(half * 2, loss_of(table, batch_of(3, teacher_source=teacher)).total)


def test_scale_multiplies_the_loss():
    table, teacher = torch.randn(6, 4), torch.randn(3, 4)
    scaled = loss_of(table, batch_of(3, teacher_source=teacher), Config(scale=100.0)).total
    torch.testing.assert_close(scaled, 100 * loss_of(table, batch_of(3, teacher_source=teacher)).total)


def test_a_teacher_of_another_width_is_refused_with_the_setting_to_change():
    with pytest.raises(TrainingError, match=r"student\.projection"):
        loss_of(torch.randn(6, 4), batch_of(3, teacher_source=torch.randn(3, 5)))


def test_it_needs_the_anchors_teacher_vectors_and_no_negatives():
    method = load_method("mse_distillation")
    needs = method.needs(Config.paper())
    assert needs.teacher == {"source"}
    assert needs.same_dimension
    assert method.negatives(Config(), 64) == 0
    with pytest.raises(MethodError, match="scale is 0"):
        make_config(method, {"scale": 0})
