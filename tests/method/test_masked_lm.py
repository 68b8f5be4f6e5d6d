"""Masked language modelling: which tokens are masked, and the head's loss."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from babeltune.errors import TrainingError
from babeltune.method import Masked, Tokens
from babeltune.method.distributed import ProcessGroup
from babeltune.method.masked_lm import IGNORED, MaskedLanguageHead, Masking
from babeltune.training.sampler import lots

MASK, VOCABULARY = 4, 50
ORDINARY = np.setdiff1d(np.arange(VOCABULARY), [0, 1, 2, 3, MASK])


def masked(share, ids, step=0):
    places = np.repeat(np.arange(len(ids) // 10), 10)
    return Masking(share, MASK, ORDINARY)(ids, lots(1, step, 0, places, np.tile(np.arange(10), len(places) // 10)))


@pytest.mark.trap(42)
@pytest.mark.parametrize("share", [0.15, 0.4])
def test_of_the_chosen_tokens_80_percent_are_masked_10_random_and_10_unchanged(share):
    ids = np.random.default_rng(0).choice(np.arange(VOCABULARY), 200_000)
    before = ids.copy()
    tokens, labels = masked(share, ids)
    assert np.array_equal(ids, before), "the caller's tokens stay"
    chosen = labels != IGNORED
    ordinary = np.isin(ids, ORDINARY)
    assert not chosen[~ordinary].any(), "special tokens are never chosen"
    assert np.array_equal(tokens[~chosen], ids[~chosen])
    assert np.array_equal(labels[chosen], ids[chosen])
    assert chosen[ordinary].mean() == pytest.approx(share, abs=0.005)
    kinds = tokens[chosen]
    assert (kinds == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (kinds == ids[chosen]).mean() == pytest.approx(0.1 + 0.1 / len(ORDINARY), abs=0.01)
    drawn = kinds[(kinds != MASK) & (kinds != ids[chosen])]
    assert set(drawn.tolist()) == set(ORDINARY.tolist()), "any token but a special one"
    counts = np.bincount(drawn, minlength=VOCABULARY)[ORDINARY]
    assert counts.min() > 0.5 * counts.mean()


def test_masks_differ_from_step_to_step_and_depend_on_nothing_else():
    ids = np.full(2000, 9)
    assert np.array_equal(masked(0.15, ids)[1], masked(0.15, ids)[1])
    assert not np.array_equal(masked(0.15, ids)[1], masked(0.15, ids, step=1)[1])


class Embeddings:
    def __init__(self, width):
        self.word_embeddings = torch.randn(VOCABULARY, width, generator=torch.Generator().manual_seed(3))


def test_the_loss_is_the_mean_cross_entropy_of_berts_head():
    torch.manual_seed(0)
    head, encode = MaskedLanguageHead(6, VOCABULARY), Embeddings(6)
    torch.nn.init.normal_(head.bias)
    states = torch.randn(7, 12, requires_grad=True)
    labels = torch.tensor([-100, 8, -100, 30, 30, -100, 7])
    side = Masked(Tokens(torch.zeros(7, dtype=torch.long), torch.tensor([3, 0, 4])), labels)
    loss, guessed = head.loss(states, side, encode, ProcessGroup())
    expected, right = 0.0, 0
    for row, label in zip(states.detach().double(), labels.tolist(), strict=True):
        if label == -100:
            continue
        hidden = gelu(head.dense.weight.double() @ row[6:] + head.dense.bias.double())
        hidden = layer_norm(hidden, (6,), eps=1e-12)
        logits = (encode.word_embeddings.double() @ hidden + head.bias.double()).tolist()
        expected -= logits[label] - math.log(sum(map(math.exp, logits)))
        right += max(range(VOCABULARY), key=logits.__getitem__) == label
    assert loss.item() == pytest.approx(expected / 4, rel=1e-5)
    assert guessed.item() == pytest.approx(right / 4)
    loss.backward()
    assert not states.grad[:, :6].any(), "the last layer's states are read"
    assert states.grad[labels != -100, 6:].any(1).all()


def test_without_a_chosen_token_the_loss_is_0():
    head, states = MaskedLanguageHead(6, VOCABULARY), torch.randn(4, 12, requires_grad=True)
    side = Masked(Tokens(torch.arange(4), torch.tensor([4])), torch.full((4,), -100))
    loss, guessed = head.loss(states, side, Embeddings(6), ProcessGroup())
    loss.backward()
    assert loss.item() == guessed.item() == 0.0


def test_embeddings_of_another_width_cannot_decode():
    with pytest.raises(TrainingError, match="5 wide and its states 6"):
        MaskedLanguageHead(6, VOCABULARY)(torch.zeros(1, 6), torch.zeros(VOCABULARY, 5))
