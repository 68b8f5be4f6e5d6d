import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toy_batches
from babeltune.errors import MethodError, TrainingError
from babeltune.method import EVERY, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune_methods.lealla import Config, Lealla, squared_differences
from toy_batches import gaussian

DIM, TEACHER = 4, 6
VARIANTS = ("standard", "distillation_first", "synchronized")


def batch_of(g_x, g_y, source_ids=None, target_ids=None):
    ids = {"source_ids": source_ids, "target_ids": target_ids}
    return toy_batches.batch_of(len(g_x), **ids, teacher_source=g_x, teacher_target=g_y)


def run(config, vectors, batch):
    """The loss, the vectors' gradient, and weight and bias of the head, or of the layer that projects down."""
    torch.manual_seed(0)
    method = Lealla(config, student_dim=len(vectors[0]), teacher_dim=TEACHER)
    layer = method.head or (method.down[0] if method.down else None)
    weights = (layer.weight.tolist(), layer.bias.tolist()) if layer else None
    return *toy_batches.run(method, vectors, batch), weights


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a):
    return [x / math.sqrt(dot(a, a)) for x in a]


def linear(weights, vector):
    return [dot(row, vector) + b for row, b in zip(*weights, strict=True)]


def printed(config, x, y, g_x, g_y, weights, source_ids, target_ids):
    """The three terms from the equations, with loops."""
    n = len(x)
    down = config.variant == "distillation_first"
    embedded = [[linear(weights, v) if down else v for v in side] for side in (x, y)]
    phi = [[dot(unit(a), unit(b)) for b in embedded[1]] for a in embedded[0]]
    teacher = [[dot(unit(a), unit(b)) for b in g_y] for a in g_x]

    def ranked(at, ids):
        total = 0.0
        for i in range(n):
            negatives = [j for j in range(n) if j != i and not (config.mask_duplicates and ids[j] == ids[i])]
            above = math.exp(config.scale * (at(i, i) - config.margin))
            total -= math.log(above / (above + sum(math.exp(config.scale * at(i, j)) for j in negatives)))
        return total / n

    ams = ranked(lambda i, j: phi[i][j], target_ids) + ranked(lambda i, j: phi[j][i], source_ids)
    fd = 0.0
    for vector, target in [*zip(x, g_x, strict=True), *zip(y, g_y, strict=True)]:
        if not config.beta:
            break
        head_input = unit(vector) if config.head_input == "normalized" else vector
        head_output = linear(weights, head_input) if config.variant == "standard" else head_input
        fd += sum((t - s) ** 2 for t, s in zip(unit(target), head_output, strict=True)) / n
    fd /= TEACHER if config.reduction == "mean" else 1
    times = config.temperature if config.temperature_mode == "multiply" else 1 / config.temperature
    ld = sum(((teacher[i][j] - phi[i][j]) * times) ** 2 for i in range(n) for j in range(n)) / n**2
    return {
        name: weight * value
        for name, weight, value in (("ams", config.alpha, ams), ("fd", config.beta, fd), ("ld", config.gamma, ld))
        if weight
    }


CONFIGS = st.builds(
    Config,
    alpha=st.sampled_from([0.0, 1.0]),
    beta=st.sampled_from([0.0, 10.0, 1e3]),
    gamma=st.sampled_from([1e-2, 1.0]),
    margin=st.sampled_from([0.0, 0.3]),
    scale=st.sampled_from([1.0, 20.0, 100.0]),
    reduction=st.sampled_from(["mean", "sum"]),
    temperature=st.sampled_from([1.0, 100.0]),
    temperature_mode=st.sampled_from(["multiply", "divide"]),
    head_input=st.sampled_from(["normalized", "plain"]),
    mask_duplicates=st.booleans(),
)


@pytest.mark.trap(8)
@settings(max_examples=100, deadline=None)
@given(CONFIGS, st.sampled_from(VARIANTS), st.integers(2, 6), st.integers(0, 1000))
def test_the_terms_are_the_printed_equations(config, variant, n, seed):
    config = dataclasses.replace(config, variant=variant, embedding=3)
    generator = random.Random(seed)
    source_ids, target_ids = ([generator.randrange(n) for _ in range(n)] for _ in range(2))
    width = DIM if variant == "standard" else TEACHER
    vectors, g_x, g_y = gaussian(2 * n, width, seed), gaussian(n, TEACHER, seed + 1), gaussian(n, TEACHER, seed + 2)
    loss, gradient, weights = run(config, vectors, batch_of(g_x, g_y, source_ids, target_ids))
    expected = printed(config, vectors[:n], vectors[n:], g_x, g_y, weights, source_ids, target_ids)
    assert loss.terms.keys() == expected.keys()
    tolerance = {"rel": 2e-5, "abs": 1e-6 * config.scale}  # fp32, where a small loss is left of large logits
    for name, value in expected.items():
        assert loss.terms[name].item() == pytest.approx(value, **tolerance)
    assert loss.total.item() == pytest.approx(sum(expected.values()), **tolerance)
    assert gradient.isfinite().all()


@settings(max_examples=30, deadline=None)
@given(CONFIGS, st.integers(0, 1000))
def test_the_gradient_is_that_of_the_plain_formula(config, seed):
    n = 5
    vectors, g_x, g_y = gaussian(2 * n, DIM, seed), gaussian(n, TEACHER, seed + 1), gaussian(n, TEACHER, seed + 2)
    _, gradient, head = run(config, vectors, batch_of(g_x, g_y))
    unit_rows = torch.nn.functional.normalize
    table = torch.tensor(vectors, dtype=torch.float64, requires_grad=True)
    x, y = unit_rows(table, dim=1).chunk(2)
    t_x, t_y = (unit_rows(torch.tensor(g, dtype=torch.float64), dim=1) for g in (g_x, g_y))
    phi, total = x @ y.T, table.sum() * 0
    if config.alpha:
        logits, labels = config.scale * (phi - config.margin * torch.eye(n)), torch.arange(n)
        entropy = torch.nn.functional.cross_entropy
        total = total + config.alpha * (entropy(logits, labels) + entropy(logits.T, labels))
    if config.beta:
        weight, bias = (torch.tensor(part, dtype=torch.float64) for part in head)
        rows = table if config.head_input == "plain" else torch.cat([x, y])
        squares = (torch.cat([t_x, t_y]) - rows @ weight.T - bias).square().sum() / n
        total = total + config.beta * squares / (TEACHER if config.reduction == "mean" else 1)
    times = config.temperature if config.temperature_mode == "multiply" else 1 / config.temperature
    total = total + config.gamma * (times * (t_x @ t_y.T - phi)).square().mean()
    total.backward()
    torch.testing.assert_close(
        gradient.double(), table.grad, rtol=2e-4, atol=1e-5 * table.grad.abs().max().item() + 1e-7
    )


@pytest.mark.trap(17)
def test_without_margin_ams_is_infonce_both_ways():
    """D17: the sum of the directions."""
    n, config = 6, Config(beta=0, gamma=0, margin=0.0)
    vectors = gaussian(2 * n, DIM, 3)
    loss, _, head = run(config, vectors, batch_of(gaussian(n, TEACHER, 1), gaussian(n, TEACHER, 2)))
    x, y = torch.nn.functional.normalize(torch.tensor(vectors), dim=1).chunk(2)
    logits, labels = config.scale * x @ y.T, torch.arange(n)
    entropy = torch.nn.functional.cross_entropy
    assert loss.total.item() == pytest.approx((entropy(logits, labels) + entropy(logits.T, labels)).item(), rel=1e-5)
    assert head is None


@pytest.mark.trap(17)
def test_the_margin_is_taken_from_the_diagonal_alone_before_the_scale():
    """D17: one pair and one negative, both ways, by hand."""
    config = Config(beta=0, gamma=0, margin=0.3, scale=10.0)
    vectors = [[1.0, 0, 0, 0], [0, 1.0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]]
    loss, _, _ = run(config, vectors, batch_of(gaussian(2, TEACHER, 1), gaussian(2, TEACHER, 2)))
    assert loss.total.item() == pytest.approx(2 * math.log1p(math.exp(-7.0)), abs=2e-6)


def test_a_perfect_students_printed_loss_is_nearly_flat():
    """METHODS A2 (a): why the default has a scale."""
    n = 8192
    at_best = -math.log(math.exp(0.7) / (math.exp(0.7) + (n - 1)))
    assert at_best > 0.9 * math.log(n)
    assert Config.paper().scale == 1.0 < Config().scale


def test_ld_of_wide_vectors_near_the_teacher_keeps_its_digits():
    """A student that almost agrees: the difference of large sums must not lose it."""
    generator = torch.Generator().manual_seed(0)
    g_x, g_y = (torch.nn.functional.normalize(torch.randn(300, 384, generator=generator), dim=1) for _ in range(2))
    x, y = (
        torch.nn.functional.normalize(g + 1e-4 * torch.randn(300, 384, generator=generator), dim=1) for g in (g_x, g_y)
    )
    plain = (g_x.double() @ g_y.double().T - x.double() @ y.double().T).square().sum()
    assert squared_differences(g_x, g_y, x, y).item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.trap(18)
def test_the_head_is_the_methods_and_not_the_students():
    """D18: it is trained and saved with the method; an export holds the encoder alone."""
    method = Lealla(Config(), student_dim=DIM, teacher_dim=TEACHER)
    assert {name for name, _ in method.named_parameters()} == {"head.weight", "head.bias"}
    n = 4
    table = torch.tensor(gaussian(2 * n, DIM, 0))
    batch = batch_of(gaussian(n, TEACHER, 1), gaussian(n, TEACHER, 2))
    method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup()).total.backward()
    assert all(p.grad is not None and p.grad.any() for p in method.parameters())


@pytest.mark.trap(18)
def test_the_variants_without_a_head_keep_what_their_export_needs():
    """D18: distillation-first exports the layer that projects down; the student is as wide as the teacher."""
    first = Lealla(Config(variant="distillation_first", embedding=3), student_dim=TEACHER, teacher_dim=TEACHER)
    assert {name for name, _ in first.named_parameters()} == {"down.0.weight", "down.0.bias"}
    assert first.layers()[EVERY] is first.down
    assert first.finish(torch.randn(2, TEACHER), ["eng", "fra"]).shape == (2, 3)
    together = Lealla(Config(variant="synchronized"), student_dim=TEACHER, teacher_dim=TEACHER)
    assert not list(together.parameters())
    assert not together.layers()
    for variant in VARIANTS:
        assert Lealla.needs(Config(variant=variant)).same_dimension == (variant != "standard")
    with pytest.raises(TrainingError, match="the student has 4 dimensions and the teacher 6"):
        run(
            Config(variant="synchronized"),
            gaussian(4, DIM, 0),
            batch_of(gaussian(2, TEACHER, 1), gaussian(2, TEACHER, 2)),
        )


@pytest.mark.trap(11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_of_200_is_finite(dtype):
    """D11: temperature 0.005."""
    n = 5
    table = torch.tensor(gaussian(2 * n, DIM, 0)).to(dtype).requires_grad_()
    batch = batch_of(gaussian(n, TEACHER, 1), gaussian(n, TEACHER, 2))
    batch = dataclasses.replace(
        batch, teacher_source=batch.teacher_source.to(dtype), teacher_target=batch.teacher_target.to(dtype)
    )
    method = Lealla(Config(scale=200.0), student_dim=DIM, teacher_dim=TEACHER)
    loss = method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup()).total
    loss.backward()
    assert loss.isfinite()
    assert table.grad.isfinite().all()


def test_one_pair_has_no_negatives_for_ams():
    batch = batch_of(gaussian(1, TEACHER, 1), gaussian(1, TEACHER, 2))
    with pytest.raises(TrainingError, match="no negatives"):
        run(Config(), gaussian(2, DIM, 0), batch)
    assert run(Config(alpha=0), gaussian(2, DIM, 0), batch)[0].total.isfinite()


def test_only_distillation_asks_for_the_teacher():
    assert Lealla.needs(Config()).teacher == {"source", "target"}
    assert Lealla.needs(Config(beta=0, gamma=0)).teacher == frozenset()
    assert Lealla.negatives(Config(), 64) == 63
    assert Lealla.negatives(Config(alpha=0), 64) == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"alpha": -1.0}, "0 or more"),
        ({"alpha": 0.0, "beta": 0.0, "gamma": 0.0}, "at least one"),
        ({"scale": 0.0}, "above 0"),
        ({"margin": 2.5}, "cosines"),
        ({"reduction": "max"}, "allowed: mean, sum"),
        ({"temperature_mode": "times"}, "allowed: multiply, divide"),
        ({"head_input": "raw"}, "allowed: normalized, plain"),
        ({"variant": "second"}, "allowed: standard, distillation_first, synchronized"),
        ({"embedding": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("lealla"), values)
