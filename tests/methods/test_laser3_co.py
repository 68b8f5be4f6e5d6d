import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_embedding_loss

import toy_batches
from babeltune.errors import MethodError, TrainingError
from babeltune.method import Masked, Tokens, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune.method.negative_queue import equal_m
from babeltune_methods.laser3_co import Config, Laser3Co
from toy_batches import gaussian, run

DIM = 4


def batch_of(g, source_ids=None):
    return toy_batches.batch_of(len(g), source_ids=source_ids, teacher_source=torch.tensor(g))


def method_of(config, queued=(), ids=None):
    """A method whose queue holds these vectors."""
    method = Laser3Co(config, student_dim=DIM, teacher_dim=DIM)
    if queued:
        method.warm_up(torch.tensor(queued), torch.tensor(ids or [1000 + i for i in range(len(queued))]))
    return method


def cos(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def printed(config, q, k, y, entries, entry_ids, source_ids):
    """The loss from the equations, with loops; `own` is what the student makes of y."""
    n, total = len(q), 0.0
    for i in range(n):
        if config.variant == "laser3":
            total += 1 - cos(q[i], k[i])
            continue
        among = (
            [(e, e_id) for e, e_id in zip(entries, entry_ids, strict=True)]
            if config.variant != "in_batch"
            else [(k[j], source_ids[j]) for j in range(n) if j != i]
        )
        negatives = [
            e
            for e, e_id in among
            if not (config.mask_duplicates and e_id == source_ids[i])
            and not (config.variant == "co_filter" and not cos(k[i], e) < config.sigma)
        ]
        below = sum(math.exp(cos(q[i], e) / config.temperature) for e in negatives)
        above = math.exp(cos(q[i], k[i]) / config.temperature)
        if config.denominator == "alg1":
            total -= math.log(above / (above + below))
        elif negatives:
            total -= math.log(above / below)
    total += config.self_weight * sum(1 - cos(y[i], k[i]) for i in range(n))
    return total / n


CONFIGS = st.builds(
    Config,
    variant=st.sampled_from(["laser3", "co", "co_filter", "in_batch"]),
    temperature=st.sampled_from([0.01, 0.05, 1.0]),
    sigma=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    denominator=st.sampled_from(["alg1", "eq1"]),
    self_weight=st.sampled_from([0.0, 1.0, 0.3]),
    mask_duplicates=st.booleans(),
    queue=st.just(6),
)


@pytest.mark.trap(8, 43)
@settings(max_examples=120, deadline=None)
@given(CONFIGS, st.integers(2, 5), st.integers(1, 6), st.integers(0, 1000))
def test_the_loss_is_the_printed_equation(config, n, filled, seed):
    generator = random.Random(seed)
    source_ids = [generator.randrange(6) for _ in range(n)]
    entry_ids = [generator.randrange(9) for _ in range(filled)]
    entries, vectors, k = gaussian(filled, DIM, seed + 1), gaussian(2 * n, DIM, seed), gaussian(n, DIM, seed + 2)
    method = method_of(config, entries, entry_ids)
    loss, gradient = run(method, vectors, batch_of(k, source_ids))
    expected = printed(config, vectors[n:], k, vectors[:n], entries, entry_ids, source_ids)
    assert loss.total.item() == pytest.approx(expected, rel=2e-5, abs=1e-5)
    assert sum(v.item() for v in loss.terms.values()) == pytest.approx(expected, rel=2e-5, abs=1e-5)
    assert gradient.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.integers(0, 1000))
def test_the_gradient_is_that_of_the_plain_formula(config, seed):
    n, entries = 4, gaussian(6, DIM, seed + 1)
    k, vectors = gaussian(n, DIM, seed + 2), gaussian(2 * n, DIM, seed)
    gradient = run(method_of(config, entries), vectors, batch_of(k))[1]
    table = torch.tensor(vectors, dtype=torch.float64, requires_grad=True)
    unit = torch.nn.functional.normalize
    q, students = unit(table[n:], dim=1), unit(table[:n], dim=1)
    g, queue = (unit(torch.tensor(v, dtype=torch.float64), dim=1) for v in (k, entries))
    positive = (q * g).sum(1) / config.temperature
    if config.variant == "laser3":
        rows = 1 - (q * g).sum(1)
    else:
        among = g if config.variant == "in_batch" else queue
        out = torch.eye(n, dtype=torch.bool) if config.variant == "in_batch" else torch.zeros(n, 6, dtype=torch.bool)
        out |= (g @ among.T >= config.sigma) & (config.variant == "co_filter")
        logits = (q @ among.T / config.temperature).masked_fill(out, -torch.inf)
        some = ~out.all(1)
        if config.denominator == "alg1":
            rows = torch.cat([positive[:, None], logits], dim=1).logsumexp(1) - positive
        else:
            rows = (logits[some].logsumexp(1) - positive[some]) if some.any() else positive * 0
    total = rows.sum() / n + config.self_weight * (1 - (students * g).sum(1)).sum() / n
    total.backward()
    torch.testing.assert_close(
        gradient.double(), table.grad, rtol=2e-4, atol=1e-5 * table.grad.abs().max().item() + 1e-6
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 1000))
def test_target_similarity_is_the_mean_cosine_of_positives_and_queue(n, filled, seed):
    k, entries = gaussian(n, DIM, seed), gaussian(filled, DIM, seed + 1)
    method = method_of(Config(variant="co", queue=6), entries)
    similarity = run(method, gaussian(2 * n, DIM, seed + 2), batch_of(k))[0].diagnostics["target_similarity"]
    among = entries[-6:]
    expected = sum(cos(a, b) for a in k for b in among) / (n * len(among))
    assert similarity.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert (
        "target_similarity"
        not in run(method_of(Config(variant="in_batch")), gaussian(4, DIM, 0), batch_of(k[:1] * 2))[0].diagnostics
    )


def test_the_log_has_percentiles_of_a_batchs_average_similarities():
    k, entries = gaussian(20, DIM, 0), gaussian(6, DIM, 1)
    diagnostics = run(method_of(Config(variant="co", queue=6), entries), gaussian(40, DIM, 2), batch_of(k))[
        0
    ].diagnostics
    averages = [sum(cos(a, b) for b in entries) / len(entries) for a in k]
    for share in (10, 50, 90):
        expected = np.percentile(averages, share)
        assert diagnostics[f"target_similarity_p{share}"].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_log_has_the_share_of_rows_for_which_an_entry_was_left_out():
    k, entries = gaussian(20, DIM, 0), gaussian(6, DIM, 1)
    config = Config(variant="co_filter", queue=6, sigma=0.4)
    share = run(method_of(config, entries), gaussian(40, DIM, 2), batch_of(k))[0].diagnostics["filtered_rows"]
    affected = [any(cos(a, b) >= config.sigma for b in entries) for a in k]
    assert 0 < sum(affected) < len(k)
    assert share.item() == pytest.approx(sum(affected) / len(k))


def test_stage_one_is_torchs_cosine_loss():
    vectors, k = gaussian(8, DIM, 0), gaussian(4, DIM, 1)
    loss, _ = run(method_of(Config(variant="laser3", self_weight=0.0)), vectors, batch_of(k))
    expected = cosine_embedding_loss(torch.tensor(vectors[4:]), torch.tensor(k), torch.ones(4))
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.sampled_from([0.09, 2.0]), st.integers(2, 5), st.integers(0, 1000))
def test_the_mask_task_is_masked_language_modelling_of_the_target(config, weight, n, seed):
    """fairseq's third task, beside any of the others: its weight times the mean over the target's chosen tokens."""
    draw, (width, vocabulary) = random.Random(seed), (3, 8)
    vectors, k, entries = gaussian(2 * n, DIM, seed), gaussian(n, DIM, seed + 1), gaussian(6, DIM, seed + 2)
    states, embeddings = gaussian(vocabulary, 2 * width, seed + 3), gaussian(vocabulary, width, seed + 4)
    lengths = [draw.randint(1, 3) for _ in range(n)]
    ids = [draw.randrange(vocabulary) for _ in range(sum(lengths))]
    labels = [draw.choice([-100, draw.randrange(vocabulary)]) for _ in ids]
    labels[draw.randrange(len(labels))] = 5

    class Encode:
        word_embeddings = torch.tensor(embeddings)

        def __call__(self, tokens):
            return torch.tensor(vectors)[tokens.ids]

        def states(self, tokens):
            return torch.tensor(states)[tokens.ids]

    masked = Masked(Tokens(torch.tensor(ids), torch.tensor(lengths)), torch.tensor(labels))
    batch = dataclasses.replace(batch_of(k), masked_target=masked)
    config = dataclasses.replace(config, mask_weight=weight)
    method = Laser3Co(config, student_dim=DIM, teacher_dim=DIM, width=width, vocabulary=vocabulary)
    method.warm_up(torch.tensor(entries), torch.arange(1000, 1006))
    loss = method.loss(Encode(), batch, ProcessGroup())
    guesses = []
    for token, label in zip(ids, labels, strict=True):
        if label != -100:
            logits = method.head(torch.tensor([states[token][width:]]), Encode.word_embeddings)[0].tolist()
            guesses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    guess = weight * sum(guesses) / len(guesses)
    contrast = printed(config, vectors[n:], k, vectors[:n], entries, range(1000, 1006), range(n))
    assert loss.terms["mask"].item() == pytest.approx(guess, rel=1e-5, abs=1e-6)
    assert loss.total.item() == pytest.approx(contrast + guess, rel=2e-5, abs=1e-5)
    assert Laser3Co.needs(config).masked == 0.15
    assert Laser3Co.needs(config).states


def test_without_the_mask_task_no_states_are_read():
    assert not Laser3Co.needs(Config()).states
    assert method_of(Config()).head is None


@pytest.mark.trap(15)
def test_algorithm_1_is_log_one_plus_the_exponential_of_equation_1():
    """D15."""
    vectors, k, entries = gaussian(2, DIM, 0), gaussian(1, DIM, 1), gaussian(5, DIM, 2)
    one, other = (
        run(method_of(Config(variant="co", self_weight=0, denominator=d), entries), vectors, batch_of(k))[0].total
        for d in ("eq1", "alg1")
    )
    assert other.item() == pytest.approx(math.log1p(math.exp(one.item())), rel=1e-5)


@pytest.mark.trap(43)
def test_the_positive_logit_is_the_row_wise_product():
    """D43: Algorithm 1 as printed would make the first row everyone's positive."""
    k = gaussian(3, DIM, 1)
    right = [*gaussian(3, DIM, 0), *k]
    wrong = [*gaussian(3, DIM, 0), k[0], k[0], k[0]]
    method = method_of(Config(variant="co", self_weight=0), gaussian(5, DIM, 2))
    losses = [
        run(method_of(method.config, gaussian(5, DIM, 2)), v, batch_of(k))[0].total.item() for v in (right, wrong)
    ]
    assert losses[0] < losses[1]


@pytest.mark.trap(14)
def test_the_filter_reads_the_teachers_similarity_strictly():
    """D14: an entry at exactly sigma is out, one just below is in."""
    k = [[1.0, 0.0, 0.0, 0.0]]
    entries = [[0.5, math.sqrt(0.75), 0.0, 0.0], [0.49, math.sqrt(1 - 0.49**2), 0.0, 0.0]]
    method = method_of(Config(sigma=0.5, self_weight=0), entries)
    assert run(method, gaussian(2, DIM, 0), batch_of(k))[0].diagnostics["negatives"].item() == 1


@pytest.mark.trap(14)
def test_equal_m_keeps_the_least_number_and_equals_the_mask_when_all_have_it():
    """D14."""
    k, entries, vectors = gaussian(4, DIM, 1), gaussian(12, DIM, 2), gaussian(8, DIM, 0)
    masked = run(method_of(Config(sigma=0.6, self_weight=0), entries), vectors, batch_of(k))[0]
    equal = run(method_of(Config(sigma=0.6, self_weight=0, equal_m=True), entries), vectors, batch_of(k))[0]
    least = masked.diagnostics["negatives_least"].item()
    assert masked.diagnostics["negatives"].item() > least
    assert equal.diagnostics["negatives"].item() == equal.diagnostics["negatives_least"].item() == least
    assert equal.total < masked.total
    plain, same = (
        run(method_of(Config(variant="co", self_weight=0, equal_m=e), entries), vectors, batch_of(k))[0].total
        for e in (False, True)
    )
    assert torch.equal(plain, same)


@pytest.mark.trap(14)
@settings(max_examples=40, deadline=None)
@given(CONFIGS, st.integers(2, 5), st.integers(0, 1000))
def test_equal_m_is_the_printed_equation_over_the_negatives_that_were_drawn(config, n, seed):
    """D14: M of each row's own; where all rows have as many, over all of them."""
    config = dataclasses.replace(config, equal_m=True, variant=config.variant.replace("laser3", "co"))
    draw, masks = random.Random(seed), []
    source_ids, entry_ids = [draw.randrange(6) for _ in range(n)], [draw.randrange(9) for _ in range(6)]
    entries, vectors, k = gaussian(6, DIM, seed + 1), gaussian(2 * n, DIM, seed), gaussian(n, DIM, seed + 2)

    def spy(*arguments):
        result = equal_m(*arguments)
        masks.append(result.chosen.tolist())
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("babeltune_methods.laser3_co.equal_m", spy)
        loss, _ = run(method_of(config, entries, entry_ids), vectors, batch_of(k, source_ids))
    among, ids = (entries, entry_ids) if config.variant != "in_batch" else (k, source_ids)
    candidates = [
        {
            j
            for j in range(len(among))
            if not (config.variant == "in_batch" and j == i)
            and not (config.mask_duplicates and ids[j] == source_ids[i])
            and not (config.variant == "co_filter" and not cos(k[i], among[j]) < config.sigma)
        }
        for i in range(n)
    ]
    chosen = [{j for j, flag in enumerate(row) if flag} for row in masks[0]]
    least = min(map(len, candidates))
    assert all(row <= whole and len(row) == least for row, whole in zip(chosen, candidates, strict=True))
    total = config.self_weight * sum(1 - cos(vectors[i], k[i]) for i in range(n))
    for i, row in enumerate(chosen):
        below = sum(math.exp(cos(vectors[n + i], among[j]) / config.temperature) for j in row)
        above = math.exp(cos(vectors[n + i], k[i]) / config.temperature)
        if config.denominator == "alg1" or row:
            total -= math.log(above / (below + (above if config.denominator == "alg1" else 0)))
    assert loss.total.item() == pytest.approx(total / n, rel=2e-5, abs=1e-5)
    if all(len(whole) == least for whole in candidates):
        whole = printed(config, vectors[n:], k, vectors[:n], entries, entry_ids, source_ids)
        assert loss.total.item() == pytest.approx(whole, rel=2e-5, abs=1e-5)


@pytest.mark.trap(14)
@pytest.mark.parametrize("denominator", ["alg1", "eq1"])
@pytest.mark.parametrize("equal", [True, False])
def test_a_boilerplate_target_leaves_no_negative_and_no_loss(denominator, equal):
    """D14, M = 0: every entry is a near-copy of one row's positive."""
    k = [[1.0, 0.0, 0.0, 0.0]]
    config = Config(sigma=0.9, self_weight=0, equal_m=equal, denominator=denominator)
    loss, gradient = run(method_of(config, k * 5), gaussian(2, DIM, 0), batch_of(k))
    assert loss.total.item() == 0
    assert not gradient.any()


@pytest.mark.trap(13)
def test_the_positive_enters_the_queue_after_the_loss_and_the_oldest_leave():
    """D13: wraparound with a queue that a batch does not divide."""
    method = method_of(Config(variant="co", queue=5, self_weight=0), gaussian(2, DIM, 9), [70, 71])
    for step in range(4):
        ids = [3 * step + i for i in range(3)]
        loss, _ = run(method, gaussian(6, DIM, step), batch_of(gaussian(3, DIM, 50 + step), ids))
        assert loss.diagnostics["negatives"].item() == (2 if step == 0 else 5)
        assert set(ids) <= set(method.queue.candidates()[1].tolist())
    assert sorted(method.queue.candidates()[1].tolist()) == [7, 8, 9, 10, 11]


@pytest.mark.trap(13)
def test_an_empty_queue_is_refused():
    with pytest.raises(TrainingError, match="queue is empty"):
        run(method_of(Config()), gaussian(4, DIM, 0), batch_of(gaussian(2, DIM, 1)))


@pytest.mark.trap(11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["co", "co_filter", "in_batch"])
def test_a_temperature_of_0_005_is_finite(dtype, variant):
    """D11."""
    method = method_of(Config(variant=variant, temperature=0.005), gaussian(20, DIM, 2))
    table = torch.tensor(gaussian(8, DIM, 0)).to(dtype).requires_grad_()
    batch = batch_of(gaussian(4, DIM, 1))
    batch = dataclasses.replace(batch, teacher_source=batch.teacher_source.to(dtype))
    method.loss(lambda tokens: table[tokens.ids], batch, ProcessGroup()).total.backward()
    assert table.grad.isfinite().all()
    assert table.grad.any()


def test_defaults_and_the_literal_paper():
    assert (Config().temperature, Config().queue, Config().sigma) == (0.05, 4096, 0.9)
    paper = Config.paper()
    assert (paper.denominator, paper.equal_m, paper.self_weight, paper.variant) == ("eq1", True, 0.0, "co_filter")
    assert Laser3Co.needs(Config()).order == "length"
    assert Laser3Co.needs(Config(variant="co")).order == "shuffled"
    assert Laser3Co.negatives(Config(), 32) == 4096
    assert Laser3Co.negatives(Config(variant="in_batch"), 32) == 31


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"variant": "queue"}, "allowed: laser3, co, co_filter, in_batch"),
        ({"queue": 0}, "1 to 65536"),
        ({"queue": 70_000}, "1 to 65536"),
        ({"sigma": 1.5}, "cosine"),
        ({"temperature": 0.0}, "above 0"),
        ({"self_weight": -1.0}, "0 or more"),
        ({"denominator": "eq2"}, "allowed: alg1, eq1"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("laser3_co"), values)
