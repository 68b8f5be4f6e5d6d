import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import toy_batches
from babeltune.errors import MethodError, TrainingError
from babeltune.method import load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune_methods.bilingual_aligner import BilingualAligner, Config, aligner
from toy_batches import gaussian

WIDTH, LANGUAGES = 5, ("eng", "zho", "fra")


def build(config):
    torch.manual_seed(0)
    return BilingualAligner(config, student_dim=WIDTH, teacher_dim=WIDTH, languages=LANGUAGES)


def kinds(depth):
    layers = aligner(Config(depth=depth, hidden=7, output=3), WIDTH)
    return [
        (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else type(layer).__name__
        for layer in layers
    ]


def test_the_layers_of_each_depth_are_the_codes():
    """METHODS A3: no nonlinearity at -1 and 0; then ReLU and dropout after inner layers alone."""
    assert kinds(-1) == [(5, 3)]
    assert kinds(0) == [(5, 7), (7, 3)]
    assert kinds(1) == [(5, 7), (7, 7), "ReLU", "Dropout", (7, 3)]
    assert kinds(2) == [(5, 7), (7, 7), "ReLU", "Dropout", (7, 7), "ReLU", "Dropout", (7, 3)]


def through(layers, vector):
    """One vector through linear layers and ReLUs, with loops."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            vector = [sum(w * v for w, v in zip(row, vector, strict=True)) + b for row, b in rows]
        elif isinstance(layer, nn.ReLU):
            vector = [max(0.0, v) for v in vector]
    return [v / math.sqrt(sum(w * w for w in vector)) for v in vector]


def printed(config, x, y, source_ids, target_ids):
    """-sum_i log e^S_ii / sum_j e^S_ij, its mirror image, and with `intra` the own side's others below the line."""
    n, masked = len(x), config.reading == "fixed"
    intra = config.reading == "paper" if config.intra is None else config.intra

    def ranked(a, b, ids, other):
        total = 0.0
        for i in range(n):
            at = [math.exp(sum(p * q for p, q in zip(a[i], c, strict=True)) / config.temperature) for c in [*b, *a]]
            # A candidate that says what the positive says (or the row, where its own side is there too) is no negative.
            repeats = {other[i], *([ids[i]] if intra else [])} if masked else set()
            below = at[i] + sum(at[j] for j in range(n) if j != i and other[j] not in repeats)
            if intra:
                below += sum(at[n + j] for j in range(n) if j != i and ids[j] not in repeats)
            total -= math.log(at[i] / below)
        return total / n

    return ranked(x, y, source_ids, target_ids), ranked(y, x, target_ids, source_ids)


CONFIGS = st.builds(
    Config,
    depth=st.sampled_from([-1, 0, 1, 2]),
    hidden=st.just(6),
    output=st.just(4),
    dropout=st.just(0.0),
    temperature=st.sampled_from([0.015, 0.05, 0.5]),
    intra=st.sampled_from([None, True, False]),
    reading=st.sampled_from(["paper", "authors_code", "fixed"]),
)


def batch_of(n, seed):
    """Pairs with repeated texts; a text may stand on both sides. A text's language is its number's remainder."""
    generator = random.Random(seed)
    source_ids, target_ids = ([generator.randrange(n + 2) for _ in range(n)] for _ in range(2))
    languages = [[a % len(LANGUAGES), b % len(LANGUAGES)] for a, b in zip(source_ids, target_ids, strict=True)]
    return toy_batches.batch_of(n, source_ids=source_ids, target_ids=target_ids, languages=languages)


@settings(max_examples=100, deadline=None)
@given(CONFIGS, st.integers(2, 6), st.integers(0, 1000))
def test_the_loss_is_the_printed_equation(config, n, seed):
    batch, vectors, method = batch_of(n, seed), gaussian(2 * n, WIDTH, seed), build(config)
    loss, _ = toy_batches.run(method, vectors, batch)
    x, y = (
        [through(method.aligners[k], vector) for k, vector in zip(languages.tolist(), side, strict=True)]
        for languages, side in zip(batch.languages.T, (vectors[:n], vectors[n:]), strict=True)
    )
    forward, backward = printed(config, x, y, batch.source_ids.tolist(), batch.target_ids.tolist())
    assert loss.terms["forward"].item() == pytest.approx(forward, rel=1e-4, abs=2e-5)
    assert loss.terms["backward"].item() == pytest.approx(backward, rel=1e-4, abs=2e-5)
    assert loss.total.item() == pytest.approx((forward + backward) / 2, rel=1e-4, abs=2e-5)


@settings(max_examples=30, deadline=None)
@given(CONFIGS, st.integers(0, 1000))
def test_the_gradient_is_that_of_the_plain_formula(config, seed):
    n = 5
    ids = {"languages": [[0, 1 + i % 2] for i in range(n)]}
    batch, vectors, method = (toy_batches.batch_of(n, **ids), torch.tensor(gaussian(2 * n, WIDTH, seed)), build(config))
    method.loss(lambda tokens: vectors[tokens.ids], batch, ProcessGroup()).total.backward()
    twin = build(config).double()
    parts = [twin.aligned(side, k) for side, k in zip(vectors.double().chunk(2), batch.languages.T, strict=True)]
    total, labels = 0.0, torch.arange(n)
    for a, b in (parts, parts[::-1]):
        logits = a @ b.T / config.temperature
        if config.both_sides:
            logits = torch.cat([logits, (a @ a.T / config.temperature).fill_diagonal_(-torch.inf)], dim=1)
        total = total + nn.functional.cross_entropy(logits, labels) / 2
    total.backward()
    for parameter, expected in zip(method.parameters(), twin.parameters(), strict=True):
        scale = expected.grad.abs().max().item()
        torch.testing.assert_close(parameter.grad.double(), expected.grad, rtol=1e-3, atol=1e-4 * scale + 1e-6)


@pytest.mark.trap(8)
def test_repeats_of_a_text_are_no_negatives():
    """D8: with a row's pair twice in the batch, both rows lose what the row lost alone."""
    config = Config(output=4, intra=True)
    ids, languages, vectors = [0, 1, 2], [[0, 1]] * 3, gaussian(6, WIDTH, 3)
    once = toy_batches.batch_of(3, source_ids=ids, target_ids=[5, 6, 7], languages=languages)
    ids = {"source_ids": [*ids, 0], "target_ids": [5, 6, 7, 5], "languages": [*languages, [0, 1]]}
    twice = toy_batches.batch_of(4, **ids)
    repeated = [*vectors[:3], vectors[0], *vectors[3:], vectors[3]]

    def summed(reading, vectors, batch):
        method = build(dataclasses.replace(config, reading=reading))
        return toy_batches.run(method, vectors, batch)[0].total.item() * batch.total

    # The others meet the repeated text twice; the row and its repeat do not meet one another.
    assert summed("fixed", vectors, once) == pytest.approx(summed("paper", vectors, once))
    assert summed("fixed", repeated, twice) < summed("paper", repeated, twice) - 2 * math.log(1.5)


def test_every_language_has_layers_of_its_own_and_dropout_is_for_training():
    method = build(Config(depth=1, hidden=6, output=4))
    vectors = torch.randn(3, WIDTH)
    finished = method.finish(vectors, ["fra", "eng", "deu"])
    for row, language in enumerate(("fra", "eng", "eng")):  # a language without layers takes the first one's
        expected = through(method.layers()[language], vectors[row].tolist())
        assert finished[row].tolist() == pytest.approx(expected, abs=1e-6)
    assert method.training
    assert method.finish(vectors[:0], []).shape == (0, 4)


def test_an_aligner_of_no_row_has_a_gradient_of_zero():
    """Else its optimizer state would depend on the number of ranks."""
    method, batch = build(Config(output=4)), toy_batches.batch_of(3, languages=[[0, 1]] * 3)
    toy_batches.run(method, gaussian(6, WIDTH, 0), batch)
    assert [bool(p.grad.any()) for p in method.parameters()] == [True, True, True, True, False, False]


def test_the_paper_has_the_negatives_of_its_losss_name_and_needs_the_languages():
    assert Config.paper() == Config(reading="paper")
    assert Config(reading="paper").both_sides
    assert not any(Config(reading=reading).both_sides for reading in ("authors_code", "fixed"))
    assert not Config(reading="paper", intra=False).both_sides
    assert BilingualAligner.negatives(Config.paper(), 64) == 126
    assert BilingualAligner.negatives(Config(), 64) == 63
    assert BilingualAligner.negatives(Config(intra=True), 64) == 126
    with pytest.raises(TrainingError, match="language of each sentence"):
        toy_batches.run(build(Config()), gaussian(4, WIDTH, 0), toy_batches.batch_of(2))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"depth": 3}, "allowed: -1, 0, 1, 2"),
        ({"hidden": 0}, "at least 1"),
        ({"dropout": 1.0}, "below 1"),
        ({"temperature": 0.0}, "above 0"),
        ({"reading": "code"}, "allowed: paper, authors_code, fixed"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("bilingual_aligner"), values)
