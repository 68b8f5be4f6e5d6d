import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import normalize

from babeltune.cli.render import method_document
from babeltune.errors import MethodError, SpecError
from babeltune.method import Needs, available, encode_together, load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune.method.gradcache import CachedEncode, chunks
from babeltune.planning.space import default_params, make_trial, possible_needs, sample
from babeltune.planning.sweep_file import read_sweep
from babeltune_methods.combined import METHODS, Combined, Shared, Views, union
from toy_batches import batch_of, gaussian, run
from toy_methods import First, TwoViews, combined_beside

DIM, N = 4, 5
SETTINGS = {
    "soft_contrastive": {"temperature": 0.2, "labels": "average"},
    "mse_distillation": {"scale": 3.0},
    "translation_ranking": {"temperature": 0.3, "hard_negatives": 0},
    "laser3_co": {"variant": "co", "temperature": 0.1, "queue": 6},
    "lealla": {"beta": 2.0, "gamma": 1.0, "temperature": 1.0},
}


def batch(seed=0):
    sides = {f"teacher_{side}": gaussian(N, DIM, seed + i) for i, side in enumerate(("source", "target"))}
    return batch_of(N, **sides)


def built(weights, seed=0, settings=SETTINGS):
    config = make_config(Combined, {**weights, "settings": settings})
    torch.manual_seed(seed)
    method = Combined(config, student_dim=DIM, teacher_dim=DIM)
    vectors = torch.tensor(gaussian(9, DIM, seed + 7))
    count = Combined.needs(config).warm_up
    method.warm_up(vectors[:count], torch.arange(100, 109)[:count])
    return method


def test_text_of_one_language_takes_part_in_the_terms_that_need_no_translation():
    """AMS and ranking are left out; distillation and soft labels compare a text with the others of its language."""
    settings = {
        "lealla": {"beta": 1.0, "gamma": 1.0},
        "translation_ranking": {"hard_negatives": 0},
        "laser3_co": {"variant": "in_batch"},
    }
    method = built(dict.fromkeys(("soft_contrastive", "mse_distillation", *settings), 1.0), settings=settings)
    assert not method.needs(method.config).translations
    assert load_method("translation_ranking").needs(make_config(load_method("translation_ranking"), {})).translations
    alone = batch()
    alone = dataclasses.replace(
        alone, target=alone.source, target_ids=alone.source_ids, teacher_target=alone.teacher_source, alone=True
    )
    loss, gradient = run(method, gaussian(N, DIM, 3), alone)
    assert {"lealla/fd", "lealla/ld", "mse_distillation/source", "soft_contrastive/cross"} <= loss.terms.keys()
    assert not [name for name in loss.terms if name.startswith(("translation_ranking", "lealla/ams"))]
    assert gradient.abs().sum(1).min() > 0


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.floats(0.1, 3), min_size=1), st.integers(0, 500))
def test_loss_and_gradient_are_the_weighted_sums_of_the_single_ones(weights, seed):
    method, vectors = built(weights, seed), gaussian(2 * N, DIM, seed + 3)
    singles = {name: run(single, vectors, batch(seed)) for name, single in built(weights, seed).methods.items()}
    loss, gradient = run(method, vectors, batch(seed))
    expected = sum(weights[name] * part.total.item() for name, (part, _) in singles.items())
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    summed = sum(weights[name] * each for name, (_, each) in singles.items())
    torch.testing.assert_close(gradient, summed, rtol=1e-5, atol=1e-5 * float(summed.abs().max()))
    for name, (part, _) in singles.items():
        assert loss.terms[f"{name}/loss"].item() == pytest.approx(part.total.item(), rel=1e-6)
        for key, value in {**part.terms, **part.diagnostics}.items():
            torch.testing.assert_close({**loss.terms, **loss.diagnostics}[f"{name}/{key}"], value)


@pytest.mark.parametrize("chunk", [None, 2])
def test_the_student_encodes_every_sentence_once(chunk):
    ids, table = [], torch.tensor(gaussian(2 * N, DIM, 3), requires_grad=True)

    def encode(tokens):
        ids.extend(tokens.ids.tolist())
        return table[tokens.ids]

    cached = CachedEncode(encode, chunk) if chunk else None
    built(dict.fromkeys(SETTINGS, 1.0)).loss(cached or encode, batch(), ProcessGroup()).total.backward()
    assert sorted(ids) == list(range(2 * N))
    if cached:
        cached.backward()
        torch.testing.assert_close(table.grad, run(built(dict.fromkeys(SETTINGS, 1.0)), table.tolist(), batch())[1])


class Dropping(nn.Module):
    """A student with dropout: a word embedding and a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(2 * N, 32), nn.Linear(32, DIM)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens):
        return normalize(self.layer(self.dropout(self.words(tokens.ids))), dim=1)


class Chunked:
    """The same chunks as a cached encoder's, with a graph."""

    def __init__(self, encode, size):
        self.encode, self.size = encode, size

    def __call__(self, tokens):
        return torch.cat([self.encode(part) for part in chunks(tokens, self.size)])


def with_dropout(method, encode, student, cached=None):
    """Loss, gradients and the next random number of one step from a given state of the generator."""
    student.zero_grad()
    torch.manual_seed(11)
    loss = method.loss(encode, batch(), ProcessGroup())
    loss.total.backward()
    if cached:
        cached.backward()
    return loss, [p.grad.clone() for p in student.parameters()], torch.rand(1)


@pytest.mark.parametrize("chunk", [None, 2, 100])
def test_a_method_that_encodes_twice_gets_two_dropout_masks_in_combined(chunk, monkeypatch):
    """The others share its first view; the gradient is the weighted sum of the separate ones under the same masks."""
    combined = combined_beside(monkeypatch, TwoViews, First)
    student = Dropping()
    plain = Chunked(student, chunk) if chunk else student
    weights = {"first": 0.7, "two_views": 1.5}
    config = make_config(combined, weights)
    method = combined(config, student_dim=DIM, teacher_dim=DIM)
    separate = {name: with_dropout(one, plain, student) for name, one in method.methods.items()}
    cached = CachedEncode(student, chunk) if chunk else None
    loss, gradients, after = with_dropout(method, cached or plain, student, cached)
    assert loss.diagnostics["two_views/apart"] > 0.1
    expected = sum(weights[name] * one.total.item() for name, (one, _, _) in separate.items())
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    summed = [sum(weights[name] * each[1][i] for name, each in separate.items()) for i in range(len(gradients))]
    for one, both in zip(gradients, summed, strict=True):
        torch.testing.assert_close(one, both, rtol=1e-5, atol=1e-5 * both.abs().max().item())
    assert torch.equal(after, separate["two_views"][2]), "no other random number is drawn"


@pytest.mark.parametrize("chunk", [None, 2])
def test_a_side_that_is_named_twice_in_one_call_has_two_views(chunk, monkeypatch):
    student = Dropping()
    for wrap in (lambda encode: encode, lambda encode: Shared(Views(encode))):
        encode = wrap(CachedEncode(student, chunk) if chunk else student)
        side = batch().source
        one, two = encode_together(encode, side, side)
        three = encode(side)
        assert not torch.equal(one, two)
        assert not torch.equal(two, three)
        student.eval()
        assert torch.equal(encode(side), encode(side)), "without dropout they are equal"
        student.train()


def test_methods_with_and_without_token_states_are_built_together():
    config = make_config(Combined, {"lealla": 1.0, "ml_ctl": 1.0})
    method = Combined(config, student_dim=DIM, teacher_dim=DIM, width=8, vocabulary=40)
    assert set(method.methods) == {"lealla", "ml_ctl"}


def test_heads_queues_and_warm_up_are_each_methods_own():
    method = built({"laser3_co": 1.0, "lealla": 1.0})
    assert {"methods.laser3_co.queue.vectors", "methods.lealla.head.weight"} <= set(method.state_dict())
    assert len(method.methods["laser3_co"].queue) == 6
    assert [Combined.negatives(method.config, batch) for batch in (4, 64)] == [6, 63]


def test_needs_are_united_where_they_agree():
    config = make_config(Combined, {"soft_contrastive": 1.0, "lealla": 1.0, "laser3_co": 1.0, "settings": SETTINGS})
    needs = Combined.needs(config)
    assert needs.teacher == {"source", "target"}
    assert (needs.same_dimension, needs.in_batch_negatives, needs.warm_up) == (True, True, 6)
    mined = Needs(hard_negatives=2, hard_negatives_below=0.5)
    assert union({"a": Needs(), "b": mined, "c": Needs()}) == mined
    assert union({"a": Needs()}) == Needs()


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            Needs(hard_negatives=2),
            Needs(hard_negatives=3),
            "one and other cannot .* disagree on hard_negatives, 2 and 3",
        ),
        (Needs(order="length"), Needs(), "disagree on order, 'length' and 'shuffled'"),
        (
            Needs(hard_negatives=2, hard_negatives_below=0.5),
            Needs(hard_negatives=2),
            "disagree on hard_negatives_below, 0.5 and 1.0",
        ),
    ],
)
def test_needs_that_cannot_both_be_had_are_named(one, other, words):
    with pytest.raises(MethodError, match=words):
        union({"first": Needs(hard_negatives=0, order=one.order), "one": one, "other": other})


def test_a_need_that_is_not_known_here_must_be_equal():
    values = {field.name: getattr(Needs(), field.name) for field in dataclasses.fields(Needs)}
    wider = dataclasses.make_dataclass("Wider", [("other", bool, False)], bases=(Needs,), frozen=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("babeltune_methods.combined.Needs", wider)
        with pytest.raises(MethodError, match="a and b cannot be combined: they disagree on other, True and False"):
            union({"a": wider(**values, other=True), "b": wider(**values)})


def test_layers_of_a_term_are_kept_and_frozen_encoder_methods_are_refused():
    settings = {"lealla": {"variant": "distillation_first", "embedding": 3}}
    method = built({"lealla": 1.0, "mse_distillation": 1.0}, settings=settings)
    assert method.layers().keys() == method.methods["lealla"].layers().keys() != set()
    assert not built({"lealla": 1.0}).layers()
    for name in ("dimension_reduction", "bilingual_aligner"):
        config = make_config(Combined, {name: 1.0, "lealla": 1.0})
        with pytest.raises(MethodError, match=f"{name} trains layers on a frozen encoder"):
            Combined.needs(config)


def test_warnings_are_joined_by_name():
    assert "soft_contrastive: labels are nearly flat" in Combined.warning({"soft_contrastive/label_entropy": 0.99})
    assert Combined.warning({"soft_contrastive/label_entropy": 0.5, "lealla/cosine": 1.0, "loss": 1.0}) == ""
    for name, expected in (("soft_contrastive", "soft_contrastive: labels are nearly hard"), ("lealla", "")):
        config = make_config(Combined, {name: 1.0})
        assert Combined.label_warning(config, lambda: (torch.eye(8), None))[: len(expected) or None] == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lealla": -1.0}, "lealla is -1.0; a weight is 0 or more"),
        ({"settings": {"lealla": 3}}, "settings of 'lealla' are 3"),
        ({"settings": {"leala": {}}}, "no method to combine; .*did you mean 'lealla'"),
        ({"settings": {"combined": {}}}, "no method to combine"),
        ({"settings": {"lealla": {"margn": 1}}}, "has no setting 'margn'.*did you mean 'margin'"),
        ({"settings": {"lealla": {"margin": 5.0}}}, "margin is 5.0"),
        ({"leala": 1.0}, "has no setting 'leala'.*did you mean 'lealla'"),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with pytest.raises(MethodError, match=words):
        make_config(load_method("combined"), values)


def test_every_other_method_has_a_weight_that_says_what_it_is():
    assert set(METHODS) == set(available()) - {"combined"}
    settings = {setting.name: setting for setting in method_document("combined").settings}
    assert settings["lealla"].source == "Weight of lealla's loss: ours."
    assert settings["lealla"].default == 0.0
    assert "its own `Config`" in settings["settings"].source


FILE = "search_spaces/combined.yaml"


def refused(*assignments):
    with pytest.raises(SpecError) as caught:
        read_sweep(FILE, assignments=assignments)
    return str(caught.value)


def test_a_sweep_without_any_weight_is_refused():
    message = refused("parameters={training.learning_rate: {log_float: [1e-4, 1e-3]}}", "config={}")
    assert "no weight is above 0" in message
    both = "parameters={lealla: {choice: [0.0, 1.0]}, mse_distillation: {choice: [0.0, 1.0]}}"
    assert "no weight is above 0" in refused(both, "config={}")


def test_a_sweep_whose_methods_disagree_is_refused_with_the_key():
    message = refused(
        "parameters={lealla: {log_float: [0.1, 1]}}",
        "config={laser3_co: 1.0, settings: {laser3_co: {variant: co_filter}}}",
    )
    assert "parameters.lealla: laser3_co and lealla cannot be combined: they disagree on order" in message
    fixed = refused("parameters={}", "config={laser3_co: 1.0, lealla: 1.0}")
    assert "config.laser3_co: laser3_co and lealla cannot be combined" in fixed


def test_the_default_of_a_searched_weight_is_one_that_a_trial_can_have():
    sweep = read_sweep(FILE)
    params = default_params(sweep)
    assert params["soft_contrastive"] > 0
    assert {name for name, _, _ in possible_needs(sweep)} == {"combined"}


SUM = (
    "method=combined",
    "config={laser3_co: 1, lealla: 1, settings: {laser3_co: {variant: in_batch}, lealla: {beta: 0, gamma: 0}}}",
)


def test_a_setting_of_a_combined_method_can_be_searched(tiny_file):
    searched = "parameters={settings.lealla.margin: {float: [0.1, 0.5]}, settings.laser3_co.temperature: {const: 0.08}}"
    sweep = read_sweep(tiny_file, assignments=[*SUM, searched])
    assert default_params(sweep) == {"settings.lealla.margin": 0.3, "settings.laser3_co.temperature": 0.08}
    trials = [make_trial(sweep, number, sample(sweep, number)) for number in range(5)]
    for trial in trials:
        margin = trial.params["settings.lealla.margin"]
        assert trial.config["settings"]["lealla"] == {"beta": 0, "gamma": 0, "margin": margin}
        assert trial.config["settings"]["laser3_co"] == {"variant": "in_batch", "temperature": 0.08}
    assert len({trial.params["settings.lealla.margin"] for trial in trials}) == 5
    assert sweep.fixed["settings"]["lealla"] == {"beta": 0, "gamma": 0}, "the sweep keeps its own"
