"""Losses that others have written too: sentence-transformers' ranking losses and pytorch-metric-learning's."""

import pytest
import torch
from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss
from sentence_transformers.sentence_transformer.losses import (
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)
from torch import nn

from babeltune.method import load_method
from babeltune.method.distributed import ProcessGroup
from toy_batches import batch_of, gaussian, run

N, DIM = 6, 5


def ours(name, vectors, teacher=None, **config):
    method = load_method(name)
    instance = method(method.Config(**config), student_dim=DIM, teacher_dim=DIM)
    targets = {"teacher_source": teacher, "teacher_target": teacher} if teacher else {}
    return run(instance, vectors, batch_of(N, **targets))


def oracle(loss, vectors, positives=None):
    """The value and gradient of a loss of sentence-transformers, of sources against targets (or these positives)."""
    table = torch.tensor(vectors, requires_grad=True)
    left, right = (table[:N], table[N:]) if positives is None else (table[N:], torch.tensor(positives))
    value = loss.compute_loss_from_embeddings([left, right], None)
    value.backward()
    return value, table.grad


def assert_agree(ours, other, scale=1.0):
    (loss, gradient), (value, expected) = ours, other
    torch.testing.assert_close(loss.total, scale * value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, scale * expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize(
    ("direction", "loss"), [("forward", MultipleNegativesRankingLoss), ("both", MultipleNegativesSymmetricRankingLoss)]
)
def test_translation_ranking_is_sentence_transformers_ranking_loss(direction, loss, temperature):
    vectors = gaussian(2 * N, DIM, 0)
    result = ours("translation_ranking", vectors, temperature=temperature, direction=direction, hard_negatives=0)
    assert_agree(result, oracle(loss(nn.Identity(), scale=1 / temperature), vectors))


def test_soft_contrastive_with_hard_labels_is_sentence_transformers_symmetric_loss():
    vectors = gaussian(2 * N, DIM, 1)
    result = ours("soft_contrastive", vectors, labels="hard", tcm=False, temperature=0.05)
    assert_agree(result, oracle(MultipleNegativesSymmetricRankingLoss(nn.Identity(), scale=20.0), vectors), scale=2.0)


def test_lealla_without_margin_is_sentence_transformers_symmetric_loss():
    vectors = gaussian(2 * N, DIM, 2)
    result = ours("lealla", vectors, gaussian(N, DIM, 3), margin=0.0, scale=20.0, beta=0.0, gamma=0.0)
    assert_agree(result, oracle(MultipleNegativesSymmetricRankingLoss(nn.Identity(), scale=20.0), vectors), scale=2.0)


def test_laser3_co_in_the_batch_is_sentence_transformers_ranking_loss():
    vectors, teacher = gaussian(2 * N, DIM, 4), gaussian(N, DIM, 5)
    config = {"variant": "in_batch", "denominator": "alg1", "self_weight": 0.0, "temperature": 0.05}
    assert_agree(
        ours("laser3_co", vectors, teacher, **config),
        oracle(MultipleNegativesRankingLoss(nn.Identity(), scale=20.0), vectors, teacher),
    )


def theirs_of_layers(method, vectors):
    """Their symmetric loss of sources and targets through the method's layers, and those layers' gradients."""
    layers = list(method.layers().values())
    source, target = layers[0](torch.tensor(vectors[:N])), layers[-1](torch.tensor(vectors[N:]))
    value = MultipleNegativesSymmetricRankingLoss(nn.Identity(), scale=20.0).compute_loss_from_embeddings(
        [source, target], None
    )
    return value, torch.autograd.grad(value, list(method.parameters()))


@pytest.mark.parametrize(
    ("name", "config", "scale"),
    [
        ("dimension_reduction", {"dim": 3, "margin": 0.0, "scale": 20.0}, 2.0),
        *(("bilingual_aligner", {"depth": depth, "hidden": 7, "output": 4, "dropout": 0.0}, 1.0) for depth in (-1, 1)),
    ],
)
def test_layers_of_a_frozen_encoder_have_sentence_transformers_symmetric_loss(name, config, scale):
    method, vectors = load_method(name), gaussian(2 * N, DIM, 6)
    languages = {"languages": ["eng", "zho"]} if name == "bilingual_aligner" else {}
    torch.manual_seed(0)
    instance = method(method.Config(**config), student_dim=DIM, teacher_dim=DIM, **languages)
    loss, _ = run(instance, vectors, batch_of(N, languages=[[0, 1]] * N))
    result = loss, torch.cat([p.grad.flatten() for p in instance.parameters()])
    value, expected = theirs_of_layers(instance, vectors)
    assert_agree(result, (value, torch.cat([g.flatten() for g in expected])), scale)


def test_ml_ctls_infonce_of_sentences_is_metric_learnings_ntxent_over_both_sides():
    method, states = load_method("ml_ctl"), torch.tensor(gaussian(2 * N, 2 * DIM, 7), requires_grad=True)
    torch.manual_seed(0)
    config = method.Config(variant="info_snt", alpha=0.0, temperature=0.07)
    instance = method(config, student_dim=DIM, teacher_dim=DIM, width=DIM, vocabulary=2 * N)

    class Encode:
        def states(self, tokens, layers):
            return states[tokens.ids]

    batch = batch_of(N)
    loss = instance.loss(Encode(), batch, ProcessGroup())
    c = torch.cat([instance.contextual(states[side.ids], side, None) for side in (batch.source, batch.target)])
    value = NTXentLoss(temperature=0.07)(c, torch.arange(N).repeat(2))
    gradient, expected = (torch.autograd.grad(v, states)[0] for v in (loss.total, value))
    assert_agree((loss, gradient), (value, expected))


@pytest.mark.trap(13)
def test_laser3_cos_queue_is_metric_learnings_cross_batch_memory():
    """D13. That memory takes the batch in before the loss: with one pair at a time, all but one entry are earlier."""
    method = load_method("laser3_co")
    config = method.Config(variant="co", queue=5, denominator="alg1", self_weight=0.0, temperature=0.05)
    instance = method(config, student_dim=DIM, teacher_dim=DIM)
    memory = CrossBatchMemory(NTXentLoss(temperature=0.05), embedding_size=DIM, memory_size=6)
    earlier = torch.tensor(gaussian(2, DIM, 100))
    instance.warm_up(earlier, torch.tensor([1000, 1001]))
    memory(earlier, torch.tensor([1000, 1001]), enqueue_mask=torch.tensor([True, True]))
    for step in range(12):
        vectors, teacher = gaussian(2, DIM, step), gaussian(1, DIM, 50 + step)
        result, gradient = run(instance, vectors, batch_of(1, source_ids=[step], teacher_source=teacher))
        table = torch.tensor(vectors, requires_grad=True)
        both = torch.cat([table[1:], torch.tensor(teacher)])
        expected = memory(both, torch.tensor([step, step]), enqueue_mask=torch.tensor([False, True]))
        expected.backward()
        torch.testing.assert_close(result.total, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, table.grad, rtol=1e-4, atol=1e-6)
