"""What every method promises. The file is also the program of each process of a group of gloo ranks."""

import copy
import dataclasses
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Loss, Masked, Tokens, available, load_method, make_config, tokens_from
from babeltune.method.distributed import ProcessGroup
from babeltune.method.gradcache import CachedEncode
from babeltune.method.masked_lm import Masking
from babeltune.training.sampler import local_sizes, lots, own_rows
from toy_methods import TwoViews, combined_beside
from waiting import PATIENCE_S

DIM = 8
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
LANGUAGES = ("eng", "fra", "kor")
"""A text's is its number's remainder, so that batches mix them."""
WORLDS = (4, 2)
SIZES = [7, 3]
"""Global batches that 2 and 4 ranks cannot share evenly; with 3 pairs one of four ranks has none."""


class Student(nn.Module):
    """A small encoder: embeddings, two layers, the mean of each sentence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.layers = nn.Embedding(40, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, DIM))

    @property
    def word_embeddings(self):
        return self.words.weight

    def states(self, tokens):
        first = self.layers[:2](self.words(tokens.ids))
        return torch.cat([first, self.layers[2](first)], dim=1)

    def forward(self, tokens):
        states = self.layers(self.words(tokens.ids))
        which = torch.repeat_interleave(torch.arange(len(tokens)), tokens.lengths)
        return normalize(states.new_zeros(len(tokens), DIM).index_add(0, which, states), dim=1)


def global_batch(total, negatives):
    """Pairs of random sentences, some of them repeated, with teacher vectors and negatives."""
    generator = torch.Generator().manual_seed(total)
    texts = [torch.randint(40, (1 + i % 4,), generator=generator).tolist() for i in range(12)]
    vectors = torch.randn(12, DIM, generator=generator)
    ids = torch.randint(12, (2 + negatives, total), generator=generator)
    mask = torch.rand(total, negatives, generator=generator) < 0.8
    return texts, normalize(vectors, dim=1), ids, mask


def share(total, negatives, rank=0, world=1):
    """One rank's rows of that batch."""
    texts, vectors, ids, mask = global_batch(total, negatives)
    rows = own_rows(torch.arange(total), rank, world)
    source, target, *rest = ids[:, rows]
    sides = [tokens_from([texts[i] for i in side]) for side in (source, target)]
    chosen = torch.stack(rest, dim=1).reshape(-1) if negatives else None
    return Batch(
        source=sides[0],
        target=sides[1],
        source_ids=source,
        target_ids=target,
        total=total,
        teacher_source=vectors[source],
        teacher_target=vectors[target],
        negatives=tokens_from([texts[i] for i in chosen]) if negatives else None,
        negatives_mask=mask[rows] if negatives else None,
        languages=torch.stack([source, target], dim=1) % len(LANGUAGES),
        words=torch.cat([spans(side, rows) for side in sides], dim=1),
        masked_source=masked(sides[0], rows, 0),
        masked_target=masked(sides[1], rows, 1),
    )


def spans(side, rows):
    """Some tokens of each sentence, which depend on its place in the global batch alone."""
    first = rows % side.lengths
    return torch.stack([first, first + 1 + (rows // 2) % (side.lengths - first)], dim=1)


def masked(side, rows, use):
    """The sentences with two of five tokens masked, which depend on their places alone."""
    position = torch.cat([torch.arange(n) for n in side.lengths]) if len(rows) else side.ids
    drawn = lots(5, 0, use, rows[side.sentence].numpy(), position.numpy())
    ids, labels = map(torch.from_numpy, Masking(0.4, 39, np.arange(39))(side.ids.numpy(), drawn))
    return Masked(Tokens(ids, side.lengths), labels)


def build(name, values):
    method = load_method(name)
    config = make_config(method, values)
    torch.manual_seed(4)
    needs = method.needs(config)
    sizes = {"languages": LANGUAGES} if needs.per_language else {}
    sizes |= {"width": 8, "vocabulary": 40} if needs.states else {}
    built = method(config, student_dim=DIM, teacher_dim=DIM, **sizes)
    vectors = normalize(torch.randn(12, DIM, generator=torch.Generator().manual_seed(8)), dim=1)
    built.warm_up(vectors[: needs.warm_up], torch.arange(12)[: needs.warm_up])
    return built, needs


def gradients(name, values, total, ranks):
    """The loss and the gradient of every parameter of the student, of the method with a term that is not gathered."""
    method, needs = build(name, values)
    student = Student()
    ranks.set_sizes(local_sizes(total, ranks.world))
    batch = share(total, needs.hard_negatives, ranks.rank, ranks.world)
    loss = method.loss(student, batch, ranks)
    local = (student(batch.target) * torch.arange(DIM)).sum() / batch.total
    (loss.total + 0.3 * local).backward()
    trained = nn.ModuleDict({"student": student, "method": method})
    ranks.sum_gradients(trained.parameters())
    values = ranks.sum_scalars({"loss": loss.total, **loss.terms, **loss.diagnostics})
    found = {key: torch.tensor(value) for key, value in values.items()}
    buffers = {key: value.double() for key, value in method.named_buffers()}
    return found | {key: p.grad for key, p in trained.named_parameters()} | buffers


def everything(ranks):
    return {
        f"{case}/{total}/{key}": value
        for case, (name, values) in zip(NAMES, CASES, strict=True)
        for total in SIZES
        for key, value in gradients(name, values, total, ranks).items()
    }


@pytest.fixture(scope="module")
def one_rank():
    return everything(ProcessGroup())


@pytest.fixture(scope="module")
def several_ranks(tmp_path_factory):
    """What every rank found in a group of four, and then in a group of two."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [[sys.executable, __file__, str(rank), str(folder)] for rank in range(max(WORLDS))]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * len(commands)
    return {f"{world}-{rank}": load_file(folder / f"{world}-{rank}") for world in WORLDS for rank in range(world)}


@pytest.mark.trap(1, 3, 4, 8, 13, 18)
def test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient(one_rank, several_ranks):
    for who, found in several_ranks.items():
        assert found.keys() == one_rank.keys()
        for key, expected in one_rank.items():
            scale = expected.abs().max().item()
            torch.testing.assert_close(
                found[key],
                expected,
                rtol=1e-5,
                atol=1e-5 * scale + 1e-6,
                msg=lambda text, at=f"{who} {key}": f"{at}: {text}",
            )


def test_every_installed_method_of_ours_is_in_this_contract():
    ours = {name for name, place in available().items() if place.startswith("babeltune_methods.")}
    assert ours == {name for name, _ in CASES}


@pytest.mark.trap(9)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_gradients_reach_the_student_and_neither_the_teacher_nor_the_terms(name, values):
    method, needs = build(name, values)
    student, batch = Student(), share(7, needs.hard_negatives)
    vectors = [side.clone().requires_grad_() for side in (batch.teacher_source, batch.teacher_target)]
    batch = dataclasses.replace(batch, teacher_source=vectors[0], teacher_target=vectors[1])
    loss = method.loss(student, batch, ProcessGroup())
    loss.total.backward()
    assert isinstance(loss, Loss)
    assert all(p.grad is not None and p.grad.any() for p in student.layers.parameters())
    if "mse_distillation" not in (
        name,
        *values,
    ):  # plain tensors there: the platform's teacher vectors never ask for a gradient
        assert all(side.grad is None for side in vectors)
    assert not any(value.requires_grad for value in (*loss.terms.values(), *loss.diagnostics.values()))


@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_few_steps_lower_the_loss(name, values):
    method, needs = build(name, values)
    student, batch = Student(), share(7, needs.hard_negatives)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    losses, before = [], copy.deepcopy(method.state_dict())
    for _ in range(5):
        method.load_state_dict(before)  # a queue that has grown is another loss
        optimizer.zero_grad()
        loss = method.loss(student, batch, ProcessGroup())
        loss.total.backward()
        optimizer.step()
        losses.append(loss.total.item())
    assert losses[-1] < losses[0]


@pytest.mark.trap(6)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_gradient_caching_changes_nothing(name, values):
    found = []
    for chunk in (None, 3):
        method, needs = build(name, values)
        student, batch = Student(), share(7, needs.hard_negatives)
        cached = CachedEncode(student, chunk) if chunk else None
        method.loss(cached or student, batch, ProcessGroup()).total.backward()
        if cached:
            cached.backward()
        found.append([p.grad for p in student.parameters()])
    for plain, cached in zip(*found, strict=True):
        torch.testing.assert_close(cached, plain, rtol=1e-5, atol=1e-5 * plain.abs().max().item())


@pytest.mark.trap(13)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_saved_method_continues_bit_for_bit(name, values, tmp_path):
    method, needs = build(name, values)
    batch = share(7, needs.hard_negatives)
    method.loss(Student(), batch, ProcessGroup())
    save_file(dict(method.state_dict()), tmp_path / "method.safetensors")
    again, _ = build(name, values)
    again.load_state_dict(load_file(tmp_path / "method.safetensors"))
    losses = [m.loss(Student(), batch, ProcessGroup()).total for m in (method, again)]
    assert torch.equal(*losses)


@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_nan_is_never_hidden(name, values):
    method, needs = build(name, values)
    student, batch = Student(), share(7, needs.hard_negatives)
    nn.init.constant_(student.layers[0].bias, torch.nan)
    assert method.loss(student, batch, ProcessGroup()).total.isnan()
    batch.teacher_source[2, 3] = torch.nan
    assert method.loss(Student(), batch, ProcessGroup()).total.isnan() == bool(needs.teacher)


def tensors_of(batch):
    """Every tensor of a batch, by its path."""
    found, rest = {}, [("batch", batch)]
    while rest:
        at, value = rest.pop()
        if isinstance(value, torch.Tensor):
            found[at] = value
        elif dataclasses.is_dataclass(value):
            rest += [(f"{at}.{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    return found


@pytest.mark.trap(42)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_a_loss_leaves_its_batch_as_it_was(name, values):
    """D42: teacher vectors of another length would be normalised in place unseen if they came as unit vectors."""
    method, needs = build(name, values)
    batch = share(7, needs.hard_negatives)
    batch = dataclasses.replace(batch, teacher_source=3 * batch.teacher_source, teacher_target=2 * batch.teacher_target)
    before = copy.deepcopy(tensors_of(batch))
    method.loss(Student(), batch, ProcessGroup()).total.backward()
    after = tensors_of(batch)
    assert after.keys() == before.keys() >= {"batch.source.ids", "batch.teacher_source", "batch.masked_source.labels"}
    assert all(torch.equal(after[at], value) for at, value in before.items())


class Numbered(Student):
    """A student whose views of some tokens are numbered: the first call gives the first, the second call the second."""

    def __init__(self):
        super().__init__()
        self.views, self.kept = Counter(), []

    def forward(self, tokens):
        self.views[id(tokens)] += 1
        self.kept.append(tokens)  # or another object could get its identity
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
    method = combined(config, student_dim=DIM, teacher_dim=DIM, width=8, vocabulary=40)
    method.methods[name].load_state_dict(alone.state_dict())
    batch = share(7, needs.hard_negatives)
    views = TwoViews(make_config(TwoViews, {}), student_dim=DIM, teacher_dim=DIM)
    expected, gradient, figures = weighted([(0.5, alone), (2.0, views)], batch)
    student = Numbered()
    loss = method.loss(student, batch, ProcessGroup())
    loss.total.backward()
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    for found, one in zip(student.parameters(), gradient, strict=True):
        torch.testing.assert_close(found.grad, one, rtol=1e-5, atol=1e-5 * one.abs().max().item() + 1e-7)
    for found, one in zip(method.methods[name].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad, one.grad, rtol=1e-5, atol=1e-6)
    assert loss.diagnostics["two_views/apart"].item() == pytest.approx(figures["apart"].item(), rel=1e-5)
    assert figures["apart"] > 0.01
    assert student.views[id(batch.source)] == 2, "first views are shared"


def kept_negatives(name, config, batch, queue):
    """Of every row, in each direction, which of its candidates it keeps as negatives; its own positive is none."""
    texts, n = (batch.source_ids.tolist(), batch.target_ids.tolist()), batch.total
    masked = getattr(config, "mask_duplicates", getattr(config, "reading", "") == "fixed")
    if name == "laser3_co":
        anchors, own = batch.teacher_source.tolist(), texts[0]
        entries = [[(own[j], anchors[j]) for j in range(n) if j != i] for i in range(n)]
        if queue is not None:
            entries = [list(zip(queue.ids.tolist(), queue.vectors.tolist(), strict=True))] * n
        below = config.sigma if config.variant == "co_filter" else math.inf
        rows = [
            [not (masked and text == own[i]) and cosine(anchors[i], vector) < below for text, vector in entries[i]]
            for i in range(n)
        ]
        if config.equal_m:
            least = min(map(sum, rows))
            rows = [[place < least for place in range(len(row))] for row in rows]
        return rows
    masked = masked and getattr(config, "labels", "hard") == "hard"
    both_sides = name == "ml_ctl" or (name == "bilingual_aligner" and config.both_sides)
    rows = []
    for own, other in ((0, 1), (1, 0))[: 1 if getattr(config, "direction", "both") == "forward" else 2]:
        for i in range(n):
            said = {texts[other][i], *([texts[own][i]] if both_sides else [])} if masked else set()
            sides = (other, own) if both_sides else (other,)
            rows.append([texts[side][j] not in said for side in sides for j in range(n) if j != i])
            if name == "translation_ranking" and own == 0 and config.hard_negatives:
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
    batch = dataclasses.replace(share(7, needs.hard_negatives), **ids)
    if needs.hard_negatives:  # row 0 found none: most candidates are its repeats
        batch = dataclasses.replace(batch, negatives_mask=torch.tensor([[0, 0], [1, 0], *[[1, 1]] * 5]).bool())
    kept = kept_negatives(name, method.config, batch, copy.deepcopy(getattr(method, "queue", None)))
    student = Student()
    found = method.loss(student, batch, ProcessGroup()).diagnostics
    assert found["duplicates"].item() == pytest.approx(duplicates)
    assert found["negatives_least"].item() == min(map(sum, kept))
    assert least in (None, min(map(sum, kept)))
    assert found["filtered"].item() == pytest.approx(1 - sum(map(sum, kept)) / sum(map(len, kept)), abs=1e-6)
    pairs = zip(*(side.tolist() for side in compared(name, method, student, batch)), strict=True)
    assert found["cosine"].item() == pytest.approx(sum(cosine(a, b) for a, b in pairs) / 7, abs=1e-5)
    assert ("label_entropy" in found) == (name == "soft_contrastive")


def test_every_contrastive_method_is_among_those():
    """All but distillation and the sum of others."""
    assert {name for name, *_ in REPEATS} == {name for name, _ in CASES} - {"mse_distillation", "combined"}


@pytest.mark.trap(5)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_no_method_learns_its_temperature_scale_or_margin(name, values):
    """D5: such a number is a setting, and a parameter has at least a dimension of the network."""
    method, _ = build(name, values)
    assert all(p.ndim and p.numel() > 1 for p in method.parameters())


def sharp(name, values):
    """These settings at the temperature or the scale of similarities that are multiplied by 200."""
    fields = {field.name for field in dataclasses.fields(load_method(name).Config)}
    return {**values, "scale": 200.0} if "scale" in fields else {**values, "temperature": 0.005}


SHARP = [(name, sharp(name, values)) for name, values in CASES if name not in ("mse_distillation", "combined")]


class Rounded(Student):
    """Computes in bf16 and answers in fp32, as `train_step.AutocastEncode` does."""

    def states(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().states(tokens).float()

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens).float()


@pytest.mark.trap(11)
@pytest.mark.parametrize("student", [Student, Rounded])
@pytest.mark.parametrize(("name", "values"), SHARP)
def test_a_temperature_of_5_thousandths_is_finite(name, values, student):
    """D11."""
    (method, needs), encode = build(name, values), student()
    loss = method.loss(encode, share(7, needs.hard_negatives), ProcessGroup())
    loss.total.backward()
    assert all(value.isfinite() for value in (loss.total, *loss.terms.values()))
    trained = [*encode.layers.parameters(), *(p for p in method.parameters() if p.grad is not None)]
    assert all(p.grad.isfinite().all() for p in trained)
    assert any(p.grad.any() for p in encode.layers.parameters())


@pytest.mark.trap(16)
@pytest.mark.parametrize(("name", "values"), CASES, ids=NAMES)
def test_negatives_are_required_where_they_are_the_method(name, values):
    method, needs = build(name, values)
    batch = share(1, needs.hard_negatives)
    if not needs.in_batch_negatives or needs.hard_negatives:
        assert method.loss(Student(), batch, ProcessGroup()).total.isfinite()
    if needs.hard_negatives:
        batch = dataclasses.replace(batch, negatives_mask=torch.zeros_like(batch.negatives_mask))
    if needs.in_batch_negatives:
        with pytest.raises(TrainingError, match="no negatives"):
            method.loss(Student(), batch, ProcessGroup())


if __name__ == "__main__":
    own_rank, place = int(sys.argv[1]), Path(sys.argv[2])
    for size in WORLDS:
        if own_rank < size:
            store = f"file://{place}/store-{size}"
            dist.init_process_group("gloo", init_method=store, rank=own_rank, world_size=size)
            result = everything(ProcessGroup())
            save_file({key: value.contiguous() for key, value in result.items()}, place / f"{size}-{own_rank}")
            dist.destroy_process_group()
