import pytest
import torch
from torch import nn

from babeltune.method import encode_together, states_together, tokens_from
from babeltune.method.contract import FIRST_AND_LAST
from babeltune.method.contrastive import tiled_cross_entropy
from babeltune.method.distributed import ProcessGroup
from babeltune.method.gradcache import CachedEncode, chunks


class Bag(nn.Module):
    """A small encoder: embeddings, dropout, a layer, the mean of each sentence."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer, self.dropout = nn.Embedding(30, 8), nn.Linear(8, 6), nn.Dropout(dropout)

    def forward(self, tokens):
        states = torch.tanh(self.layer(self.dropout(self.words(tokens.ids))))
        which = torch.repeat_interleave(torch.arange(len(tokens)), tokens.lengths)
        sums = states.new_zeros(len(tokens), 6).index_add(0, which, states)
        return nn.functional.normalize(sums / tokens.lengths.unsqueeze(1), dim=1)


def sentences(count: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count,), generator=generator).tolist()
    return tokens_from([torch.randint(30, (n,), generator=generator).tolist() for n in lengths])


def gradients(encoder, encode, cached=None):
    encoder.zero_grad()
    torch.manual_seed(7)
    x, y = encode_together(encode, sentences(5, 1), sentences(5, 2))
    more = encode(sentences(3, 3))
    value, _ = tiled_cross_entropy(x, y, temperature=0.1)
    loss = value - (x * y).sum() / 0.1 + more.sum()
    loss.backward()
    if cached:
        cached.backward()
    return loss.item(), [p.grad.clone() for p in encoder.parameters()]


@pytest.mark.trap(6)
@pytest.mark.parametrize("chunk", [1, 3, 10, 100])
def test_cached_gradients_equal_those_of_the_plain_loss(chunk):
    encoder = Bag(dropout=0.0)
    cached = CachedEncode(encoder, chunk)
    loss, expected = gradients(encoder, encoder)
    again, actual = gradients(encoder, cached, cached)
    assert again == pytest.approx(loss, rel=1e-6)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.trap(6)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_with_dropout_the_second_run_repeats_the_first(precision):
    encoder = Bag(dropout=0.4)

    def chunked(tokens):  # the same chunks with a graph: the plain loss under the same randomness
        with torch.autocast("cpu", dtype=precision, enabled=precision is torch.bfloat16):
            parts = [
                encoder(type(tokens)(ids, lengths)).float()
                for lengths, ids in zip(
                    tokens.lengths.split(3),
                    tokens.ids.split([int(part.sum()) for part in tokens.lengths.split(3)]),
                    strict=True,
                )
            ]
        return torch.cat(parts)

    def once(tokens):
        with torch.autocast("cpu", dtype=precision, enabled=precision is torch.bfloat16):
            return encoder(tokens).float()

    cached = CachedEncode(once, 3)
    loss, expected = gradients(encoder, chunked)
    after = torch.rand(1)
    again, actual = gradients(encoder, cached, cached)
    assert again == pytest.approx(loss, rel=1e-6)
    assert torch.equal(torch.rand(1), after)
    rounding = 1e-5 if precision is torch.float32 else 1e-2
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rounding, atol=rounding * b.abs().max().item())


def test_a_rank_without_sentences_takes_part():
    encoder = Bag(dropout=0.0)
    cached = CachedEncode(encoder, 4)
    vectors = cached(tokens_from([]))
    (ProcessGroup()(vectors).sum() * 2).backward()
    cached.backward()
    assert vectors.shape == (0, 6)
    assert all(p.grad is None or not p.grad.any() for p in encoder.parameters())


class Tagger(Bag):
    """Also gives a state for each token, and its embeddings."""

    def states(self, tokens, layers=FIRST_AND_LAST):
        first = torch.tanh(self.layer(self.dropout(self.words(tokens.ids))))
        second = self.dropout(first)
        return torch.cat([{1: first, -1: second}.get(layer, first * second) for layer in layers], dim=1)

    @property
    def word_embeddings(self):
        return self.words.weight


def state_gradients(encoder, encode, cached=None, layers=FIRST_AND_LAST):
    """Of a loss that reads vectors, states of two sides and the word embeddings."""
    encoder.zero_grad()
    torch.manual_seed(7)
    vectors = encode(sentences(5, 1))
    x, y = states_together(encode, sentences(5, 2), sentences(4, 3), layers=layers)
    logits = torch.cat([x[:, -8:], y[:, -8:]]) @ encode.word_embeddings.T
    loss = logits.logsumexp(1).sum() + (x.sum(0) * y.sum(0)).sum() + vectors[:, 0].sum()
    loss.backward()
    if cached:
        cached.backward()
    return loss.item(), [p.grad.clone() for p in encoder.parameters()], torch.rand(1)


@pytest.mark.parametrize("layers", [FIRST_AND_LAST, (1, 7, -1)])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_states_are_cached_like_vectors(chunk, layers):
    encoder = Tagger(dropout=0.0)
    cached = CachedEncode(encoder, chunk)
    loss, expected, _ = state_gradients(encoder, encoder, layers=layers)
    again, actual, _ = state_gradients(encoder, cached, cached, layers)
    assert again == pytest.approx(loss, rel=1e-6)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.trap(6)
def test_states_of_the_second_run_have_the_dropout_of_the_first():
    encoder = Tagger(dropout=0.4)

    class Chunked:
        """The same chunks with a graph: the plain loss under the same randomness."""

        word_embeddings = encoder.word_embeddings

        def __call__(self, tokens):
            return torch.cat([encoder(part) for part in chunks(tokens, 3)])

        def states(self, tokens, layers):
            return torch.cat([encoder.states(part, layers) for part in chunks(tokens, 3)])

    cached = CachedEncode(encoder, 3)
    loss, expected, after = state_gradients(encoder, Chunked())
    again, actual, then = state_gradients(encoder, cached, cached)
    assert again == pytest.approx(loss, rel=1e-6)
    assert torch.equal(then, after)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())
