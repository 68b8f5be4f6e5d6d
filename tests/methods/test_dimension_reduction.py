import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toy_batches
from babeltune.errors import MethodError
from babeltune.method import EVERY, load_method, make_config
from babeltune_methods.dimension_reduction import Config, DimensionReduction
from toy_batches import gaussian

WIDTH = 5


def reduction(config):
    torch.manual_seed(0)
    return DimensionReduction(config, student_dim=WIDTH, teacher_dim=WIDTH)


def unit(a):
    return [v / math.sqrt(sum(w * w for w in a)) for v in a]


def printed(config, weights, e_x, e_y, source_ids, target_ids):
    """The two directions from the equation, with loops."""
    n, reduce = len(e_x), lambda e: [sum(w * v for w, v in zip(row, e, strict=True)) + b for row, b in weights]
    x, y = ([unit(reduce(e)) for e in side] for side in (e_x, e_y))
    phi = [[sum(p * q for p, q in zip(a, b, strict=True)) for b in y] for a in x]

    def ranked(at, ids):
        total = 0.0
        for i in range(n):
            above = math.exp(config.scale * (at(i, i) - config.margin))
            others = [j for j in range(n) if j != i and not (config.mask_duplicates and ids[j] == ids[i])]
            total -= math.log(above / (above + sum(math.exp(config.scale * at(i, j)) for j in others)))
        return total / n

    return ranked(lambda i, j: phi[i][j], target_ids), ranked(lambda i, j: phi[j][i], source_ids)


CONFIGS = st.builds(
    Config,
    dim=st.integers(1, 6),
    margin=st.sampled_from([0.0, 0.3]),
    scale=st.sampled_from([1.0, 20.0, 60.0]),
    mask_duplicates=st.booleans(),
)


@pytest.mark.trap(17)
@settings(max_examples=60, deadline=None)
@given(CONFIGS, st.integers(2, 6), st.integers(0, 1000))
def test_the_loss_is_the_printed_equation(config, n, seed):
    generator = random.Random(seed)
    source_ids, target_ids = ([generator.randrange(n) for _ in range(n)] for _ in range(2))
    method, vectors = reduction(config), gaussian(2 * n, WIDTH, seed)
    batch = toy_batches.batch_of(n, source_ids=source_ids, target_ids=target_ids)
    loss, _ = toy_batches.run(method, vectors, batch)
    weights = list(zip(method.dense[0].weight.tolist(), method.dense[0].bias.tolist(), strict=True))
    forward, backward = printed(config, weights, vectors[:n], vectors[n:], source_ids, target_ids)
    near = {"rel": 2e-5, "abs": 1e-6 * config.scale}  # cosines are fp32, and the scale multiplies their rounding
    assert loss.terms["forward"].item() == pytest.approx(forward, **near)
    assert loss.terms["backward"].item() == pytest.approx(backward, **near)
    assert loss.total.item() == pytest.approx(forward + backward, **near)


@pytest.mark.trap(17)
def test_without_margin_it_is_infonce_both_ways():
    """D17."""
    n, config = 5, Config(dim=3, margin=0.0)
    method, vectors = reduction(config), gaussian(2 * n, WIDTH, 1)
    loss, _ = toy_batches.run(method, vectors, toy_batches.batch_of(n))
    x, y = torch.nn.functional.normalize(method.dense(torch.tensor(vectors)), dim=1).chunk(2)
    logits, labels = config.scale * x @ y.T, torch.arange(n)
    entropy = torch.nn.functional.cross_entropy
    assert loss.total.item() == pytest.approx((entropy(logits, labels) + entropy(logits.T, labels)).item(), rel=1e-5)


def test_the_layer_is_what_the_exported_model_keeps():
    method = reduction(Config(dim=3))
    assert method.layers() == {EVERY: method.dense}
    vectors = torch.randn(4, WIDTH)
    expected = torch.nn.functional.normalize(method.dense(vectors), dim=1)
    torch.testing.assert_close(method.finish(vectors, ["eng", "fra", "eng", "kor"]), expected.detach())
    needs = DimensionReduction.needs(Config())
    assert (needs.frozen, needs.per_language, needs.teacher) == (True, False, frozenset())


@pytest.mark.parametrize(
    ("values", "words"),
    [({"dim": 0}, "at least 1"), ({"scale": 0.0}, "above 0"), ({"margin": -0.1}, "difference of cosines")],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("dimension_reduction"), values)
