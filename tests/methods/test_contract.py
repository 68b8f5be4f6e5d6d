"""What every method promises: the checks of `babeltune.testing`, and what only the methods of this repository share."""

import copy
import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch.nn.functional import normalize

from babeltune import testing
from babeltune.method import available, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune.testing import DIM, VOCABULARY, WIDTH, Case, Rounded, Student, example_batch
from toy_methods import TwoViews, combined_beside

CASES = [
    *(
        ("soft_contrastive", {"labels": labels, "reading": reading, "temperature": 0.2})
        for labels in ("priority", "average", "hard")
        for reading in ("paper", "authors_code", "fixed")
    ),
    ("soft_contrastive", {"labels": "hard", "tcm": False, "temperature": 0.015}),
    ("soft_contrastive", {"temperature": 0.015}),
    ("mse_distillation", {}),
    ("translation_ranking", {"temperature": 0.2, "hard_negatives": 2}),
    ("translation_ranking", {"temperature": 0.2, "hard_negatives": 0, "direction": "forward"}),
    *(
        ("laser3_co", {"variant": variant, "temperature": 0.2, "sigma": 0.3, "queue": 10, "equal_m": equal})
        for variant in ("laser3", "co", "co_filter", "in_batch")
        for equal in (False, True)
    ),
    *(
        ("laser3_co", {"variant": "in_batch", "temperature": 0.2, "mask_duplicates": False, "equal_m": equal})
        for equal in (False, True)
    ),
    ("laser3_co", {"denominator": "eq1", "temperature": 0.015, "queue": 10, "self_weight": 0.0}),
    ("laser3_co", {"variant": "laser3", "mask_weight": 0.5}),
    *(("ml_ctl", {"variant": variant, "temperature": 0.2}) for variant in ("info_snt", "cz_snt", "ml_ctl_info", "mlm")),
    *(("ml_ctl", {"reading": reading, "temperature": 0.2}) for reading in ("paper", "authors_code", "fixed")),
    ("ml_ctl", {"temperature": 0.005, "alpha": 0.0}),
    ("ml_ctl", {"layer": 1, "temperature": 0.2}),
    ("lealla", {"beta": 10.0, "gamma": 1.0, "temperature": 1.0}),
    ("lealla", {"scale": 70.0, "beta": 0.0, "gamma": 0.0, "mask_duplicates": False}),
    ("combined", {"soft_contrastive": 0.5, "lealla": 2.0, "settings": {"lealla": {"beta": 10.0, "temperature": 1.0}}}),
    (
        "combined",
        {
            "mse_distillation": 1.0,
            "laser3_co": 0.3,
            "settings": {"laser3_co": {"variant": "co", "temperature": 0.2, "queue": 10}},
        },
    ),
    (
        "combined",
        {
            "translation_ranking": 1.0,
            "ml_ctl": 0.5,
            "settings": {
                "translation_ranking": {"hard_negatives": 0, "temperature": 0.2},
                "ml_ctl": {"temperature": 0.2},
            },
        },
    ),
    ("lealla", {"variant": "distillation_first", "embedding": 5, "beta": 10.0, "gamma": 1.0, "temperature": 1.0}),
    ("lealla", {"variant": "synchronized", "beta": 10.0, "gamma": 1.0, "temperature": 1.0}),
    ("dimension_reduction", {"dim": 5}),
    ("dimension_reduction", {"dim": 5, "scale": 70.0, "mask_duplicates": False}),
    *(
        (
            "bilingual_aligner",
            {"depth": depth, "hidden": 6, "output": 5, "dropout": 0.0, "temperature": 0.2, "intra": i},
        )
        for depth, i in ((-1, False), (0, True), (1, True), (2, False))
    ),
    ("bilingual_aligner", {"output": 5, "temperature": 0.015, "intra": True, "reading": "authors_code"}),
]
NAMES = ["-".join([name, *(str(v) for v in values.values())]) for name, values in CASES]
LAYERS = {"depth": -1, "output": 5}
REPEATS = [
    *(("soft_contrastive", {"labels": "hard", "tcm": tcm}, 5 / 14, 4) for tcm in (True, False)),
    ("soft_contrastive", {"labels": "hard", "reading": "paper"}, 5 / 14, 6),
    *(("soft_contrastive", {"labels": labels}, 5 / 14, 6) for labels in ("priority", "average")),
    ("translation_ranking", {"hard_negatives": 0}, 5 / 14, 4),
    ("translation_ranking", {"hard_negatives": 2}, 5 / 14, 4),
    ("translation_ranking", {"hard_negatives": 2, "direction": "forward"}, 5 / 14, 4),
    ("translation_ranking", {"hard_negatives": 2, "mask_duplicates": False}, 5 / 14, 6),
    ("laser3_co", {"variant": "in_batch"}, 2 / 7, 5),
    ("laser3_co", {"variant": "in_batch", "mask_duplicates": False}, 2 / 7, 6),
    ("laser3_co", {"variant": "in_batch", "equal_m": True}, 2 / 7, 5),
    ("laser3_co", {"variant": "co", "queue": 5}, 5 / 7, 4),
    ("laser3_co", {"variant": "co", "queue": 5, "mask_duplicates": False}, 5 / 7, 5),
    ("laser3_co", {"variant": "co", "queue": 5, "equal_m": True}, 5 / 7, 4),
    *(("laser3_co", {"variant": "co_filter", "queue": 5, "sigma": sigma}, 5 / 7, None) for sigma in (0.0, 0.2, 1.0)),
    ("laser3_co", {"variant": "co_filter", "queue": 5, "sigma": 0.2, "mask_duplicates": False}, 5 / 7, None),
    ("laser3_co", {"variant": "co_filter", "queue": 5, "sigma": 0.2, "equal_m": True}, 5 / 7, None),
    ("ml_ctl", {}, 5 / 14, 9),
    ("ml_ctl", {"variant": "info_snt"}, 5 / 14, 9),
    ("ml_ctl", {"reading": "authors_code"}, 5 / 14, 12),
    *((name, {}, 5 / 14, 4) for name in ("lealla", "dimension_reduction")),
    *((name, {"mask_duplicates": False}, 5 / 14, 6) for name in ("lealla", "dimension_reduction")),
    ("bilingual_aligner", LAYERS, 5 / 14, 4),
    ("bilingual_aligner", {**LAYERS, "intra": True}, 5 / 14, 9),
    ("bilingual_aligner", {**LAYERS, "reading": "paper"}, 5 / 14, 12),
    ("bilingual_aligner", {**LAYERS, "reading": "authors_code"}, 5 / 14, 6),
]
"""Of seven pairs in which one source comes twice and one target three times: the share of repeated texts, and the least
number of negatives of a row, where it does not depend on vectors. The queue holds texts 0 to 4."""


def case_of(name, values):
    """The case; plain tensors come to `mse_distillation`, and the platform's never ask for a gradient."""
    return Case(name, values, detaches_teacher="mse_distillation" not in (name, *values))


def build(name, values):
    return case_of(name, values).build()


@pytest.mark.slow
@pytest.mark.trap(1, 3, 4, 8, 13, 18)
def test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient(tmp_path):
    testing.check_ranks([case_of(*case) for case in CASES], tmp_path)


def test_every_installed_method_of_ours_is_in_this_contract():
    ours = {name for name, place in available().items() if place.startswith("babeltune_methods.")}
    assert ours == {name for name, _ in CASES}


@pytest.mark.trap(9)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_gradients_reach_the_student_and_neither_the_teacher_nor_the_terms(name, values):
    testing.check_gradients(case_of(name, values))


@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_few_steps_lower_the_loss(name, values):
    testing.check_learns(case_of(name, values))


@pytest.mark.trap(6)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_gradient_caching_changes_nothing(name, values):
    testing.check_gradient_caching(case_of(name, values))


@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_batches_of_a_fixed_shape_give_the_loss_and_gradient_of_packed_ones(name, values):
    testing.check_spare_tokens(case_of(name, values))


@pytest.mark.trap(13)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_saved_method_continues_bit_for_bit(name, values):
    testing.check_saved_continues(case_of(name, values))


@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_nan_is_never_hidden(name, values):
    testing.check_nan_shows(case_of(name, values))


@pytest.mark.trap(42)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_loss_leaves_its_batch_as_it_was(name, values):
    """D42: teacher vectors of another length would be normalised in place unseen if they came as unit vectors."""
    testing.check_batch_unchanged(case_of(name, values))


class Numbered(Student):
    """A student whose views of some tokens are numbered: the first call gives the first, the second call the second."""

    def __init__(self):
        super().__init__()
        self.views, self.batches = Counter(), []

    def forward(self, tokens):
        self.views[id(tokens)] += 1
        self.batches.append(tokens)  # or another object could get its identity
        return normalize(super().forward(tokens) + torch.sin(self.views[id(tokens)] * torch.arange(DIM)), dim=1)

    def together(self, *sides):
        return [self(side) for side in sides]


def weighted(terms, batch):
    """The weighted sum of these methods' losses, the gradients of student and methods, and each loss's figures."""
    total, student, figures = 0.0, None, {}
    for weight, method in terms:
        one = Numbered()
        loss = method.loss(one, batch, ProcessGroup())
        (weight * loss.total).backward()
        total += weight * loss.total.item()
        figures |= loss.diagnostics
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in one.parameters()]
        student = grads if student is None else [a + b for a, b in zip(student, grads, strict=True)]
    return total, student, figures


COMBINED = [
    (name, values)
    for name, values in CASES
    if name not in ("combined", "dimension_reduction", "bilingual_aligner")
    and (name, values.get("variant")) != ("ml_ctl", "mlm")
]
"""Those that may be combined and read sentence vectors."""


@pytest.mark.parametrize(("name", "values"), COMBINED)
def test_combined_gives_every_method_the_views_that_it_gets_alone(name, values, monkeypatch):
    combined = combined_beside(monkeypatch, TwoViews)
    config = make_config(combined, {name: 0.5, "two_views": 2.0, "settings": {name: values}})
    alone, needs = build(name, values)
    method = combined(config, student_dim=DIM, teacher_dim=DIM, width=WIDTH, vocabulary=VOCABULARY)
    method.methods[name].load_state_dict(alone.state_dict())
    batch = example_batch(needs)
    views = TwoViews(make_config(TwoViews, {}), student_dim=DIM, teacher_dim=DIM)
    expected, gradient, figures = weighted([(0.5, alone), (2.0, views)], batch)
    student = Numbered()
    loss = method.loss(student, batch, ProcessGroup())
    loss.total.backward()
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    for parameter, one in zip(student.parameters(), gradient, strict=True):
        torch.testing.assert_close(parameter.grad, one, rtol=1e-5, atol=1e-5 * one.abs().max().item() + 1e-7)
    for parameter, one in zip(method.methods[name].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, one.grad, rtol=1e-5, atol=1e-6)
    assert loss.diagnostics["two_views/apart"].item() == pytest.approx(figures["apart"].item(), rel=1e-5)
    assert figures["apart"] > 0.01
    assert student.views[id(batch.source)] == 2, "first views are shared"


def kept_negatives(name, config, batch, queue):
    """Which candidates each row keeps as negatives, in each direction; its own positive is no negative."""
    texts, n = (batch.source_ids.tolist(), batch.target_ids.tolist()), batch.total
    masked = getattr(config, "mask_duplicates", getattr(config, "reading", "") == "fixed")
    if name == "laser3_co":
        anchors, sources = batch.teacher_source.tolist(), texts[0]
        entries = [[(sources[j], anchors[j]) for j in range(n) if j != i] for i in range(n)]
        if queue is not None:
            entries = [list(zip(queue.ids.tolist(), queue.vectors.tolist(), strict=True))] * n
        below = config.sigma if config.variant == "co_filter" else math.inf
        rows = [
            [not (masked and text == sources[i]) and cosine(anchors[i], vector) < below for text, vector in entries[i]]
            for i in range(n)
        ]
        if config.equal_m:
            least = min(map(sum, rows))
            rows = [[place < least for place in range(len(row))] for row in rows]
        return rows
    masked = masked and getattr(config, "labels", "hard") == "hard"
    both_sides = name == "ml_ctl" or (name == "bilingual_aligner" and config.both_sides)
    rows = []
    for anchor, other in ((0, 1), (1, 0))[: 1 if getattr(config, "direction", "both") == "forward" else 2]:
        for i in range(n):
            repeats = {texts[other][i], *([texts[anchor][i]] if both_sides else [])} if masked else set()
            sides = (other, anchor) if both_sides else (other,)
            rows.append([texts[side][j] not in repeats for side in sides for j in range(n) if j != i])
            if name == "translation_ranking" and anchor == 0 and config.hard_negatives:
                rows[-1] += [True] * sum(batch.negatives_mask[i].tolist())
    return rows


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@torch.no_grad()
def compared(name, method, student, batch):
    """The vectors of each pair whose cosine the log has."""
    source, target = student(batch.source), student(batch.target)
    if name == "laser3_co":
        return batch.teacher_source, target
    if name == "dimension_reduction":
        return method.dense(source), method.dense(target)
    if name == "bilingual_aligner":
        return tuple(map(method.aligned, (source, target), batch.languages.T))
    if name == "ml_ctl":
        read = batch.source, batch.target
        if method.config.resolved[2] == "masked":
            read = batch.masked_source.tokens, batch.masked_target.tokens
        spans = batch.words.split(2, dim=1)
        return tuple(method.contextual(student.states(side), side, at) for side, at in zip(read, spans, strict=True))
    return source, target


@pytest.mark.parametrize(("name", "values", "duplicates", "least"), REPEATS)
def test_every_contrastive_method_reports_repeats_negatives_and_the_mean_cosine(name, values, duplicates, least):
    method, needs = build(name, values)
    ids = {"source_ids": torch.tensor([0, 1, 0, 2, 3, 11, 12]), "target_ids": torch.tensor([7, 8, 9, 6, 7, 7, 5])}
    batch = dataclasses.replace(example_batch(needs), **ids)
    if needs.hard_negatives:  # row 0 found none: most candidates are its repeats
        batch = dataclasses.replace(batch, negatives_mask=torch.tensor([[0, 0], [1, 0], *[[1, 1]] * 5]).bool())
    masks = kept_negatives(name, method.config, batch, copy.deepcopy(getattr(method, "queue", None)))
    student = Student()
    diagnostics = method.loss(student, batch, ProcessGroup()).diagnostics
    assert diagnostics["duplicates"].item() == pytest.approx(duplicates)
    assert diagnostics["negatives_least"].item() == min(map(sum, masks))
    assert least in (None, min(map(sum, masks)))
    assert diagnostics["filtered"].item() == pytest.approx(1 - sum(map(sum, masks)) / sum(map(len, masks)), abs=1e-6)
    pairs = zip(*(side.tolist() for side in compared(name, method, student, batch)), strict=True)
    assert diagnostics["cosine"].item() == pytest.approx(sum(cosine(a, b) for a, b in pairs) / 7, abs=1e-5)
    assert ("label_entropy" in diagnostics) == (name == "soft_contrastive")


def test_every_contrastive_method_is_among_those():
    """All but distillation and the sum of others."""
    assert {name for name, *_ in REPEATS} == {name for name, _ in CASES} - {"mse_distillation", "combined"}


@pytest.mark.trap(5)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_no_method_learns_its_temperature_scale_or_margin(name, values):
    """D5: such a number is a setting, and a parameter has at least a dimension of the network."""
    testing.check_no_scalar_parameter(case_of(name, values))


def sharp(name, values):
    """These settings at the temperature or the scale of similarities that are multiplied by 200."""
    fields = {field.name for field in dataclasses.fields(load_method(name).Config)}
    return {**values, "scale": 200.0} if "scale" in fields else {**values, "temperature": 0.005}


SHARP = [(name, sharp(name, values)) for name, values in CASES if name not in ("mse_distillation", "combined")]


@pytest.mark.trap(11)
@pytest.mark.parametrize("student", [Student, Rounded])
@pytest.mark.parametrize(("name", "values"), SHARP)
def test_a_temperature_of_5_thousandths_is_finite(name, values, student):
    """D11."""
    (method, needs), encode = build(name, values), student()
    loss = method.loss(encode, example_batch(needs), ProcessGroup())
    loss.total.backward()
    assert all(value.isfinite() for value in (loss.total, *loss.terms.values()))
    trained = [*encode.layers.parameters(), *(p for p in method.parameters() if p.grad is not None)]
    assert all(p.grad.isfinite().all() for p in trained)
    assert any(p.grad.any() for p in encode.layers.parameters())


@pytest.mark.trap(16)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_negatives_are_required_where_they_are_the_method(name, values):
    testing.check_single_pair(case_of(name, values))
