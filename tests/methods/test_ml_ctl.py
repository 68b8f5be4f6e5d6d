import dataclasses
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data.alignment import word_counts
from babeltune.data.prepared import read_prepared, write_prepared
from babeltune.data.stored_arrays import open_ragged
from babeltune.data.thresholds import WORD_SCORES
from babeltune.errors import DataError, MethodError, TrainingError
from babeltune.files import plain as as_plain
from babeltune.method import Batch, Masked, Tokens, load_method, make_config
from babeltune.method.contract import FIRST_AND_LAST
from babeltune.method.contrastive import Duplicates
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.preparation import prepare
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.warnings import about_projection
from babeltune.schema.records import Sampling, Words
from babeltune.training.build import make_reader, make_train_step
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint
from babeltune.training.trainer import train
from babeltune_methods.ml_ctl import Config, MlCtl, anchor_losses

WIDTH, VOCABULARY, MIDDLE = 3, 12, 5
CPU = torch.device("cpu")


class Table:
    """A student whose states of a token are a row of a table: of the first, the last and the middle layer."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCABULARY, 3 * WIDTH, generator=generator, requires_grad=True)
        self.word_embeddings = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)

    def states(self, tokens, layers=FIRST_AND_LAST):
        first, last, middle = self.table[tokens.ids].chunk(3, dim=1)
        return torch.cat([{1: first, MIDDLE: middle, -1: last}[layer] for layer in layers], dim=1)


def masked_copy(tokens, draw):
    """Some tokens become token 0 and are to be predicted, at least the first."""
    chosen = torch.tensor([i == 0 or draw.random() < 0.4 for i in range(len(tokens.ids))])
    ids = tokens.ids.masked_fill(chosen, 0)
    return Masked(Tokens(ids, tokens.lengths), tokens.ids.masked_fill(~chosen, -100))


def batch_of(n, seed=0, source_ids=None, target_ids=None):
    draw = random.Random(seed)
    sides, spans = [], []
    for _ in range(2):
        sentences = [[draw.randrange(1, VOCABULARY) for _ in range(draw.randint(1, 4))] for _ in range(n)]
        first = [draw.randrange(len(s)) for s in sentences]
        spans.append([[f, draw.randint(f + 1, len(s))] for f, s in zip(first, sentences, strict=True)])
        lengths = torch.tensor([len(s) for s in sentences])
        sides.append(Tokens(torch.tensor([t for s in sentences for t in s]), lengths))
    return Batch(
        source=sides[0],
        target=sides[1],
        source_ids=torch.tensor(source_ids or list(range(n))),
        target_ids=torch.tensor(target_ids or list(range(100, 100 + n))),
        total=n,
        words=torch.tensor([a + b for a, b in zip(*spans, strict=True)]),
        masked_source=masked_copy(sides[0], draw),
        masked_target=masked_copy(sides[1], draw),
    )


def method_of(config):
    torch.manual_seed(1)
    return MlCtl(config, student_dim=5, teacher_dim=5, width=WIDTH, vocabulary=VOCABULARY)


# --- The equations, with loops --------------------------------------------------------------------------------------


def linear(layer, x):
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def contextual(method, table, tokens, spans, scale):
    """c of every sentence."""
    states, at, other = [], 0, WIDTH if method.config.layer is None else 2 * WIDTH
    for length, (first, end) in zip(tokens.lengths.tolist(), spans, strict=True):
        rows = [table[t] for t in tokens.ids[at : at + length].tolist()]
        layers = [[scale * (row[k] + row[other + k]) for k in range(WIDTH)] for row in rows]

        def mean(some):
            return [sum(row[k] for row in some) / len(some) for k in range(WIDTH)]

        read = mean(layers) + (mean(layers[first:end]) if method.config.words else [])
        states.append(linear(method.mlp[2], [max(0.0, v) for v in linear(method.mlp[0], read)]))
        at += length
    return states


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def guessing(method, table, embeddings, side):
    """The mean cross-entropy of the chosen tokens."""
    losses = []
    for token, label in zip(side.tokens.ids.tolist(), side.labels.tolist(), strict=True):
        if label == -100:
            continue
        hidden = [
            v * 0.5 * (1 + math.erf(v / math.sqrt(2)))
            for v in linear(method.head.dense, table[token][WIDTH : 2 * WIDTH])
        ]
        mean = sum(hidden) / WIDTH
        deviation = math.sqrt(sum((v - mean) ** 2 for v in hidden) / WIDTH + 1e-12)
        normed = [(v - mean) / deviation for v in hidden]
        logits = [sum(e * v for e, v in zip(row, normed, strict=True)) for row in embeddings]
        losses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    return sum(losses) / len(losses)


def printed(config, method, encode, batch):
    """L from the poster's equations."""
    scale = config.pool_scale or {"paper": 0.5, "authors_code": 1.0, "fixed": 0.5}[config.reading]
    both = config.reading != "authors_code" if config.both_directions is None else config.both_directions
    source = config.cl_input or ("masked" if config.reading == "authors_code" else "clean")
    table, embeddings = encode.table.tolist(), encode.word_embeddings.tolist()
    mlm = 0.0
    if config.alpha or config.variant == "mlm":
        sides = batch.masked_source, batch.masked_target
        mlm = sum(guessing(method, table, embeddings, side) for side in sides) / 2
    if config.variant == "mlm":
        return mlm
    read = (batch.source, batch.target)
    if source == "masked":
        read = (batch.masked_source.tokens, batch.masked_target.tokens)
    x = contextual(method, table, read[0], batch.words[:, :2].tolist(), scale)
    y = contextual(method, table, read[1], batch.words[:, 2:].tolist(), scale)
    ids = batch.source_ids.tolist() + batch.target_ids.tolist()
    n, total = len(x), 0.0
    for a, b in [(x, y), (y, x)] if both else [(x, y)]:
        for i in range(n):
            pair = (ids[i], ids[n + i])
            pool = [c for j, c in enumerate(x + y) if j % n != i and not (config.reading == "fixed" and ids[j] in pair)]
            above = math.exp(cosine(a[i], b[i]) / config.temperature)
            below = sum(math.exp(cosine(a[i], c) / config.temperature) for c in pool)
            if pool:
                total -= math.log(above / (below + (above if "info" in config.variant else 0)))
    return total / (n * (2 if both else 1)) + config.alpha * mlm


CONFIGS = st.builds(
    Config,
    variant=st.sampled_from(["info_snt", "cz_snt", "ml_ctl_info", "ml_ctl_cz", "mlm"]),
    reading=st.sampled_from(["paper", "authors_code", "fixed"]),
    pool_scale=st.sampled_from([None, None, 0.5, 1.0]),
    both_directions=st.sampled_from([None, None, True, False]),
    cl_input=st.sampled_from([None, None, "clean", "masked"]),
    layer=st.sampled_from([None, MIDDLE]),
    temperature=st.sampled_from([0.02, 0.07, 1.0]),
    alpha=st.sampled_from([0.0, 0.1, 2.0]),
    p=st.sampled_from([0.05, 0.15, 0.9]),
)


@settings(max_examples=80, deadline=None)
@given(CONFIGS, st.integers(2, 5), st.integers(0, 1000))
def test_the_loss_is_the_printed_equation(config, n, seed):
    draw = random.Random(seed)
    source_ids = [draw.randrange(4) for _ in range(n)]
    batch = batch_of(n, seed, source_ids, [100 + draw.randrange(4) for _ in range(n)])
    method, encode = method_of(config), Table(seed)
    loss = method.loss(encode, batch, ProcessGroup())
    assert loss.total.item() == pytest.approx(printed(config, method, encode, batch), rel=1e-4, abs=1e-4)
    assert sum(v.item() for v in loss.terms.values()) == pytest.approx(loss.total.item(), rel=1e-5, abs=1e-5)
    loss.total.backward()
    assert encode.table.grad.isfinite().all()
    reads_masks = "mlm" in loss.terms or config.resolved[2] == "masked"
    assert MlCtl.needs(config).masked == (config.p if reads_masks else 0.0)


def test_the_readings_are_those_of_the_poster_and_of_the_code():
    assert Config.paper().resolved == Config().resolved == (0.5, True, "clean")
    assert Config.authors_code().resolved == (1.0, False, "masked")
    assert dataclasses.replace(Config.authors_code(), cl_input="clean").resolved == (1.0, False, "clean")


# --- Identities -----------------------------------------------------------------------------------------------------


def row_by_row(a, b, candidates, left_out, temperature, **settings):
    """The loss of each anchor alone."""
    singles = left_out.local.split(1)
    parts = [dataclasses.replace(left_out, local=one) for one in singles]
    rows = zip(a.split(1), b.split(1), parts, strict=True)
    return torch.stack([anchor_losses(*row, candidates, part, temperature, **settings) for *row, part in rows])


def losses(n, positive_below, seed=0, temperature=0.07):
    """Anchor losses and the gradient of their mean; every row keeps all but its own candidates."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.nn.functional.normalize(torch.randn(n, 4, generator=generator), dim=1) for _ in range(2))
    a.requires_grad_()
    places = torch.arange(n)
    left_out = Duplicates(places, places.repeat(2), 0, positives=True)
    rows = row_by_row(a, b, torch.cat([a, b]).detach(), left_out, temperature, positive_below=positive_below)
    rows.mean().backward()
    return rows.detach(), a.grad, a.detach(), b, ~torch.eye(n, dtype=torch.bool).repeat(1, 2)


@pytest.mark.trap(15)
@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.integers(0, 1000))
def test_infonce_is_log_1_plus_e_to_the_cz_nce_and_their_gradients_are_proportional(n, seed):
    """D15; METHODS A4: grad L_CZ = grad L_info · (1 + phi) / phi."""
    info, of_info, *_ = losses(n, True, seed)
    cz, of_cz, *_ = losses(n, False, seed)
    torch.testing.assert_close(info, torch.log1p(cz.exp()), rtol=1e-4, atol=1e-5)
    phi = cz.exp().unsqueeze(1)
    torch.testing.assert_close(of_cz * phi / (1 + phi), of_info, rtol=1e-3, atol=1e-4)


@pytest.mark.trap(16)
@settings(max_examples=30, deadline=None)
@given(st.integers(2, 7), st.integers(0, 1000))
def test_the_gradient_of_cz_nce_is_that_of_phi_over_its_own_value(n, seed):
    """D16: the code's trick, and d/ds+ = -1/n always."""
    _, gradient, a, b, mask = losses(n, False, seed)
    again = a.clone().requires_grad_()
    positive = (again * b).sum(1) / 0.07
    positive.retain_grad()
    negatives = again @ torch.cat([a, b]).T / 0.07
    phi = ((negatives - positive.unsqueeze(1)).exp() * mask).sum(1)
    (phi / phi.detach()).mean().backward()
    torch.testing.assert_close(again.grad, gradient, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(positive.grad, torch.full((n,), -1 / n))


@pytest.mark.trap(16)
def test_a_single_pair_has_no_negatives():
    """D16."""
    for variant in ("info_snt", "ml_ctl_cz"):
        with pytest.raises(TrainingError, match="no negatives"):
            method_of(Config(variant=variant)).loss(Table(), batch_of(1), ProcessGroup())
    assert method_of(Config(variant="mlm")).loss(Table(), batch_of(1), ProcessGroup()).total.isfinite()


def test_a_pair_whose_others_are_all_repeats_counts_nothing():
    batch = batch_of(3, source_ids=[5, 5, 5], target_ids=[105, 105, 105])
    encode = Table()
    loss = method_of(Config(alpha=0.0)).loss(encode, batch, ProcessGroup())
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert not encode.table.grad.any()


@pytest.mark.trap(8)
@pytest.mark.parametrize("variant", ["info_snt", "cz_snt", "ml_ctl_info", "ml_ctl_cz"])
def test_a_repeated_pair_is_as_if_it_were_there_once(variant):
    """D8: rows of a repeated pair equal those of the batch without repeats, and no other row hears of it twice less."""

    def per_row(ids):
        batch = batch_of(5, seed=3)
        keep = torch.tensor(ids)
        tokens = [[side.ids.split(side.lengths.tolist())[i] for i in ids] for side in (batch.source, batch.target)]
        sides = [Tokens(torch.cat(s), torch.tensor([len(t) for t in s])) for s in tokens]
        batch = Batch(*sides, batch.source_ids[keep], batch.target_ids[keep], len(ids), words=batch.words[keep])
        method, rows = method_of(Config(variant=variant, alpha=0.0)), []

        def spy(*arguments, **settings):
            rows.append(row_by_row(*arguments, **settings))
            return rows[-1].sum()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("babeltune_methods.ml_ctl.anchor_losses", spy)
            method.loss(Table(), batch, ProcessGroup())
        return torch.stack(rows)

    once, twice = per_row([0, 1, 2, 3]), per_row([0, 1, 2, 3, 1])
    torch.testing.assert_close(twice[:, [1]], once[:, [1]])
    torch.testing.assert_close(twice[:, 4], twice[:, 1])
    assert not torch.isclose(twice[:, 0], once[:, 0]).any(), "for other rows it is there twice"


@pytest.mark.trap(41)
def test_masks_reach_the_contrastive_input_only_where_that_is_asked_for():
    """D41."""
    batch = batch_of(4)
    other = dataclasses.replace(batch, masked_source=masked_copy(batch.source, random.Random(9)))
    for cl_input, same in (("clean", True), ("masked", False)):
        method = method_of(Config(cl_input=cl_input))
        terms = [method.loss(Table(), b, ProcessGroup()).terms["contrast"] for b in (batch, other)]
        assert torch.equal(*terms) == same


def test_a_layer_takes_the_place_of_the_last_in_the_contrast_alone():
    batch = batch_of(4)
    losses = [method_of(Config(layer=layer)).loss(Table(), batch, ProcessGroup()).terms for layer in (None, MIDDLE)]
    assert not torch.isclose(losses[0]["contrast"], losses[1]["contrast"])
    assert torch.equal(losses[0]["mlm"], losses[1]["mlm"])


def test_the_last_layer_is_read_where_none_is_named_and_one_too_deep_is_refused(prepared):
    sweep = dataclasses.replace(prepared[0], student=dataclasses.replace(prepared[0].student, layers=2))
    trials = {
        layer: make_trial(dataclasses.replace(sweep, config={"layer": layer}), 0, {}) for layer in (None, 1, 2, 3)
    }

    def loss(layer):
        train_step = make_train_step(trials[layer], prepared[1], ProcessGroup(), CPU)
        reader = make_reader(trials[layer], prepared[1], CPU)
        return float(train_step.backward(reader.batch(reader.usable()[:16], 16))["loss"])

    assert loss(None) == loss(2) != loss(1)
    with pytest.raises(TrainingError, match="'ml_ctl' reads layer 3 of a student that has 2; name a layer"):
        loss(3)


@pytest.mark.trap(11)
@pytest.mark.parametrize("variant", ["info_snt", "ml_ctl_cz"])
def test_a_temperature_of_5_thousandths_is_finite(variant):
    """D11."""
    encode = Table()
    loss = method_of(Config(variant=variant, temperature=0.005)).loss(encode, batch_of(5), ProcessGroup())
    loss.total.backward()
    assert loss.total.isfinite()
    assert encode.table.grad.isfinite().all()


def test_needs_follow_the_variant():
    needs = {v: MlCtl.needs(Config(variant=v)) for v in ("cz_snt", "ml_ctl_cz", "mlm")}
    assert [needs[v].words for v in needs] == [False, True, False]
    assert [needs[v].in_batch_negatives for v in needs] == [True, True, False]
    assert {n.masked for n in needs.values()} == {0.15}
    assert all(n.states and not n.teacher for n in needs.values())
    assert MlCtl.needs(Config(alpha=0.0)).masked == 0.0
    assert MlCtl.needs(Config(alpha=0.0, cl_input="masked")).masked == 0.15
    assert MlCtl.negatives(Config(), 64) == 126
    assert MlCtl.negatives(Config(variant="mlm"), 64) == 0
    assert method_of(Config(alpha=0.0)).head is None
    assert method_of(Config(variant="mlm")).mlp is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"variant": "cz"}, "allowed: info_snt"),
        ({"reading": "poster"}, "allowed: paper"),
        ({"cl_input": "both"}, "allowed: clean, masked"),
        ({"temperature": 0.0}, "above 0"),
        ({"pool_scale": -1.0}, "above 0"),
        ({"alpha": -0.1}, "0 or more"),
        ({"p": 1.0}, "below 1"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("ml_ctl"), values)


# --- From text to a trained student ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tiny_file, tmp_path_factory):
    """The tiny sweep for ml_ctl, and what is prepared for it."""
    sweep = dataclasses.replace(read_sweep(tiny_file, check=False), method="ml_ctl", parameters={})
    dev = (dataclasses.replace(sweep.data.dev[0], limit=10),)
    data = dataclasses.replace(sweep.data, words=Words(stop_words=10), dev=dev)
    sweep = dataclasses.replace(sweep, data=data)
    return sweep, prepare(sweep, tmp_path_factory.mktemp("words"))


def run(sweep, prepared, folder, most=100, dropout=0.0, **training):
    """Reports and last weights of a training that may be interrupted."""
    trial = make_trial(sweep, 0, {})
    trial = dataclasses.replace(
        trial,
        training=dataclasses.replace(trial.training, **training),
        student=dataclasses.replace(trial.student, dropout=dropout),
    )
    reports = []

    class Collect:
        def report(self, report):
            reports.append(as_plain(report))
            return len(reports) < most

        def stopped(self):
            return False

    train(trial, prepared, folder, Collect(), ProcessGroup(), CPU)
    return reports, load_checkpoint(checkpoint_folder(folder, reports[-1]["index"]))[0]


@pytest.mark.slow
def test_any_number_of_ranks_draws_the_same_words_and_masks(prepared, tmp_path):
    sweep, record = prepared
    write_prepared(record, tmp_path / "prepared.json")
    assert read_prepared(tmp_path / "prepared.json") == record
    reader = make_reader(make_trial(sweep, 0, {}), record, CPU)
    rows = reader.usable()[:20]
    whole = reader.batch(rows, 20, step=3)
    samples = {tuple(sample) for sample in reader.words.tolist()}
    assert all((row, *word) in samples for row, word in zip(rows.tolist(), whole.words.tolist(), strict=True))
    assert len({tuple(reader.batch(rows, 20, step=s).words[1].tolist()) for s in range(30)}) > 1
    part = reader.batch(rows[7:], 20, step=3, first=7)
    assert torch.equal(part.words, whole.words[7:])
    for side in ("source", "target"):
        plain, masked, second_rank = (
            getattr(b, n) for b, n in ((whole, side), (whole, f"masked_{side}"), (part, f"masked_{side}"))
        )
        assert torch.equal(masked.tokens.lengths, plain.lengths)
        assert torch.equal(second_rank.tokens.ids, masked.tokens.ids[-len(second_rank.labels) :])
        assert torch.equal(second_rank.labels, masked.labels[-len(second_rank.labels) :])
        unmasked = masked.labels == -100
        assert torch.equal(masked.tokens.ids[unmasked], plain.ids[unmasked])
        assert torch.equal(masked.labels[~unmasked], plain.ids[~unmasked])
        assert not set(masked.labels.tolist()) & set(next(iter(record.tokens.values())).special)
        assert 0.08 < (~unmasked).float().mean() < 0.25


@pytest.mark.trap(41)
def test_every_span_lies_within_its_sentence_and_every_pair_without_one_is_left_out(prepared, tmp_path):
    sweep, record = prepared
    (tokens,) = record.tokens.values()
    samples = np.load(tokens.words)
    lengths = open_ragged(Path(tokens.train)).lengths()
    pairs = record.pairs()[samples[:, 0]]
    for side, (first, end) in enumerate((samples[:, 1:3].T, samples[:, 3:].T)):
        assert (first >= 1).all()
        assert (first < end).all()
        assert (end < lengths[pairs[:, side]]).all()
    count = word_counts(samples, len(record.pairs()))["pairs without"]
    reports, _ = run(sweep, record, tmp_path, pairs=64, reports=1)
    assert reports[0]["facts"]["pairs_without_words"] == count > 0
    assert reports[0]["facts"]["word_samples"] == len(samples)
    assert record.counts["words"]["samples"] >= len(samples)


def test_a_trial_learns_the_words_that_reach_its_thresholds(prepared):
    sweep, record = prepared
    (tokens,) = record.tokens.values()
    samples, scores = np.load(tokens.words), np.load(Path(tokens.words).parent / WORD_SCORES)
    cosine, pairs = (float(np.median(scores[:, column])) for column in (0, 1))
    sampling = Sampling(least_word_cosine=cosine, least_word_pairs=int(pairs))
    trial = dataclasses.replace(make_trial(sweep, 0, {}), sampling=sampling)
    reader = make_reader(trial, record, CPU)
    expected = samples[(scores[:, 0] >= cosine) & (scores[:, 1] >= int(pairs))]
    assert reader.words.tolist() == expected.tolist()
    assert 0 < len(expected) < len(samples)
    assert reader.usable().tolist() == sorted(set(expected[:, 0].tolist()))


def test_a_projection_without_effect_and_text_without_words_are_named(prepared, tmp_path):
    sweep = dataclasses.replace(prepared[0], student=dataclasses.replace(prepared[0].student, projection=7))
    assert "student.projection has no effect on ml_ctl" in next(about_projection(sweep))
    assert not list(about_projection(dataclasses.replace(sweep, method="lealla", config={}, parameters={})))
    data = dataclasses.replace(sweep.data, words=Words(stop_words=10**6))
    with pytest.raises(DataError, match=r"0 of [\d,]+ training pairs have a word .* lower data\.words\.stop_words"):
        prepare(dataclasses.replace(sweep, data=data), tmp_path)


def test_a_projection_that_nothing_would_train_is_left_out(prepared, tmp_path):
    sweep = dataclasses.replace(prepared[0], student=dataclasses.replace(prepared[0].student, projection=7))
    reports, tensors = run(sweep, prepared[1], tmp_path, reports=1, pairs=64)
    assert len(reports) == 1
    assert not [name for name in tensors["student"] if name.startswith("projection")]


@pytest.mark.slow
@pytest.mark.trap(18)
@pytest.mark.parametrize("variant", ["ml_ctl_cz", "mlm"])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(prepared, tmp_path, variant):
    sweep, record = prepared
    sweep = dataclasses.replace(sweep, config={"variant": variant})
    options = {"dropout": 0.1, "pairs": 320, "reports": 2}
    reports, whole = run(sweep, record, tmp_path / "whole", **options)
    run(sweep, record, tmp_path / "cut", most=1, **options)
    _, resumed = run(sweep, record, tmp_path / "cut", **options)
    assert all(torch.equal(whole[n][k], resumed[n][k]) for n in whole for k in whole[n])
    assert {"head.dense.weight", "head.norm.bias", "head.bias"} <= set(whole["method"])
    assert not any("head" in name or "mlp" in name for name in whole["student"]), "an export holds the encoder alone"
    points = [point["values"] for report in reports for point in report["points"]]
    assert points[-1]["train/mlm"] < points[0]["train/mlm"]


@pytest.mark.slow
def test_training_aligns_words_and_a_chunked_step_is_the_whole_one(prepared, tmp_path):
    sweep, record = prepared
    sweep = dataclasses.replace(sweep, config={"alpha": 0.5})
    reports, _ = run(sweep, record, tmp_path, pairs=960, reports=2)
    points = [point["values"] for report in reports for point in report["points"]]
    assert points[-1]["train/contrast"] < points[0]["train/contrast"]
    assert reports[0]["facts"]["effective_negatives"] == 62
    trial = make_trial(sweep, 0, {})
    results = []
    for chunk in (None, 5):
        chosen = dataclasses.replace(trial, training=dataclasses.replace(trial.training, chunk=chunk))
        train_step, reader = make_train_step(chosen, record, ProcessGroup(), CPU), make_reader(chosen, record, CPU)
        values = train_step.backward(reader.batch(reader.usable()[:16], 16))
        results.append(
            (float(values["loss"]), torch.cat([p.grad.flatten() for p in train_step.parameters if p.grad is not None]))
        )
    (loss, whole), (again, cached) = results
    assert again == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())
