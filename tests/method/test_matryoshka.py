"""Losses at several dimensions: the sum of each dimension's loss on cut vectors, from one encoding."""

import copy
import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.method import load_method, make_config
from babeltune.method.distributed import ProcessGroup
from babeltune.method.gradcache import CachedEncode
from babeltune.method.matryoshka import cuts_below, matryoshka_loss
from babeltune.planning.preparation import prepare
from babeltune.planning.recorded import sweep_id
from babeltune.planning.space import make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.promotion.candidate import dev_texts
from babeltune.promotion.export import export_trial
from babeltune.promotion.model_card import dimensions
from babeltune.schema.records import Report
from babeltune.training.build import make_method, make_student
from babeltune.training.dev_evaluation import dev_scores
from toy_batches import batch_of, gaussian

WIDTH, N, QUEUE = 6, 5, 7
BELOW = (4, 2)
COMPARED = {
    "mse_distillation": {"scale": 3.0},
    "laser3_co": {"variant": "co", "queue": QUEUE, "temperature": 0.2},
    "lealla": {"variant": "synchronized", "alpha": 0.0, "beta": 2.0, "gamma": 0.0},
}
"""These compare vectors with the teacher's number by number, so the teacher's are cut, too."""
OTHERS = {
    "soft_contrastive": {"temperature": 0.2, "labels": "average"},
    "translation_ranking": {"temperature": 0.3, "hard_negatives": 0},
    "combined": {
        "soft_contrastive": 0.5,
        "lealla": 2.0,
        "settings": {"lealla": {"beta": 0.0, "gamma": 1.0}, "soft_contrastive": {"temperature": 0.3}},
    },
}


def built(name, values, teacher, width=WIDTH):
    """The method with the queue that it has after its warm-up with these vectors, cut to `width`."""
    kind = load_method(name)
    method = kind(make_config(kind, values), student_dim=width, teacher_dim=width if name in COMPARED else WIDTH)
    method.warm_up(normalize(torch.tensor(teacher)[:, :width], dim=1), torch.arange(100, 100 + len(teacher)))
    return method


def by_hand(name, values, table, unit):
    """sum_m L_m, each from a method and a batch of its own, of vectors that were cut beforehand."""
    total = torch.zeros(())
    for dim in (*BELOW, WIDTH):
        rows = table[:, :dim]
        rows = normalize(rows, dim=1) if unit else rows
        teachers = {
            f"teacher_{side}": torch.tensor(gaussian(N, WIDTH, i)) for i, side in enumerate(("source", "target"))
        }
        if name in COMPARED:
            teachers = {side: vectors[:, :dim] for side, vectors in teachers.items()}
            if dim < WIDTH and unit:
                teachers = {side: normalize(vectors, dim=1) for side, vectors in teachers.items()}
        method = built(name, values, gaussian(QUEUE, WIDTH, 9), dim)
        total = (
            total
            + method.loss(lambda tokens, rows=rows: rows[tokens.ids], batch_of(N, **teachers), ProcessGroup()).total
        )
    return total


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(("name", "values"), [*COMPARED.items(), *OTHERS.items()])
def test_loss_and_gradient_are_the_sums_over_the_dimensions(name, values, unit, chunk):
    expected_table = torch.tensor(gaussian(2 * N, WIDTH, 3), requires_grad=True)
    expected = by_hand(name, values, expected_table, unit)
    expected.backward()

    table, ids = torch.tensor(gaussian(2 * N, WIDTH, 3), requires_grad=True), []

    def encode(tokens):
        ids.extend(tokens.ids.tolist())
        rows = table[tokens.ids]
        return normalize(rows, dim=1) if unit else rows

    cached = CachedEncode(encode, chunk) if chunk else None
    batch = batch_of(N, teacher_source=gaussian(N, WIDTH, 0), teacher_target=gaussian(N, WIDTH, 1))
    method = built(name, values, gaussian(QUEUE, WIDTH, 9))
    loss = matryoshka_loss(method, cuts_below((WIDTH, *BELOW), WIDTH, unit), cached or encode, batch, ProcessGroup())
    assert len(ids) == len(set(ids)), "every sentence is encoded once"
    loss.total.backward()
    if cached:
        cached.backward()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(table.grad, expected_table.grad, rtol=1e-4, atol=1e-6)
    parts = [loss.terms[f"dim{dim}/loss"].item() for dim in (2, 4, 6)]
    assert math.fsum(parts) == pytest.approx(expected.item(), rel=1e-5)


def test_the_mean_squared_error_is_that_of_the_printed_sum():
    table, teacher = gaussian(2 * N, WIDTH, 3), gaussian(N, WIDTH, 0)

    def unit(vector):
        norm = math.sqrt(sum(number**2 for number in vector))
        return [number / norm for number in vector]

    expected = 0.0
    for dim in (2, 4, 6):
        for i in range(N):
            g = unit(teacher[i][:dim]) if dim < WIDTH else teacher[i]
            for f in (unit(table[i][:dim]), unit(table[N + i][:dim])):
                expected += sum((a - b) ** 2 for a, b in zip(f, g, strict=True)) / dim / N
    batch, rows = batch_of(N, teacher_source=teacher), normalize(torch.tensor(table), dim=1)
    method = built("mse_distillation", {}, teacher)
    loss = matryoshka_loss(
        method, cuts_below(BELOW, WIDTH, True), lambda tokens: rows[tokens.ids], batch, ProcessGroup()
    )
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)


def test_a_queue_takes_a_batch_once_and_whole():
    method = built("laser3_co", COMPARED["laser3_co"], gaussian(QUEUE, WIDTH, 9))
    plain = copy.deepcopy(method)
    rows = torch.tensor(gaussian(2 * N, WIDTH, 3))
    batch = batch_of(N, teacher_source=gaussian(N, WIDTH, 0))
    plain.loss(lambda tokens: rows[tokens.ids], batch, ProcessGroup())
    matryoshka_loss(method, cuts_below(BELOW, WIDTH, True), lambda tokens: rows[tokens.ids], batch, ProcessGroup())
    assert torch.equal(method.queue.vectors, plain.queue.vectors)
    assert int(method.queue.pushed) == int(plain.queue.pushed) == QUEUE + N


STATIC = "student={kind: static, width: 32, projection: 24, vocabulary: 500, max_tokens: 32}"
DIMS = "training.matryoshka=[24, 12, 6]"


@pytest.mark.parametrize("student", [STATIC, "student.projection=24"])
def test_dev_sets_are_scored_at_each_dimension_and_the_export_can_be_cut_there(
    student, tiny, tiny_file, tiny_storage, tmp_path
):
    sweep = read_sweep(tiny_file, assignments=[student, DIMS, "objectives=[{metric: dim6/dev/everyday/accuracy}]"])
    prepared = prepare(sweep, tiny_storage)
    trial = make_trial(sweep, 0, {})
    encoder = make_student(trial, prepared)
    method = make_method(trial, prepared, encoder)
    scores = dev_scores(encoder, method, trial, prepared, ProcessGroup(), torch.device("cpu"))
    whole = {name for name in scores if name.startswith("dev/")}
    assert {f"dim{dim}/{name}" for dim in (12, 6) for name in whole} == {n for n in scores if n.startswith("dim")}

    export_trial(sweep, trial, prepared, encoder, method, tmp_path / "model")
    for dim in (12, 6):
        cut = SentenceTransformer(str(tmp_path / "model"), truncate_dim=dim)
        cut_scores = evaluate_texts(dev_texts(prepared), lambda texts, _, cut=cut: cut.encode(texts), f"dim{dim}/dev")
        assert {name: scores[name] for name in cut_scores} == pytest.approx(cut_scores, abs=0.02)
    assert SentenceTransformer(str(tmp_path / "model")).truncate_dim is None

    report = Report(index=1, step=1, pairs=1, seconds=1.0, metrics=scores)
    card = "\n".join(dimensions(trial, report))
    row = [scores[f"{begin}dev/everyday/accuracy"] for begin in ("", "dim12/", "dim6/")]
    assert "| dev/everyday/accuracy | " + " | ".join(f"{value:.4f}" for value in row) + " |" in card
    assert "truncate_dim=12" in card
    assert not dimensions(make_trial(tiny[0], 0, {}), report)


def test_a_width_that_only_the_model_knows_is_checked_when_it_is_built():
    with pytest.raises(TrainingError, match="names 9, and the student's vectors are 6 wide"):
        cuts_below((9, 4), WIDTH, True)


def test_a_sweep_without_it_keeps_its_id(tiny_file):
    plain, empty, cut = (
        read_sweep(tiny_file, assignments=assignments)
        for assignments in ([], ["training.matryoshka=[]"], ["training.matryoshka=[64]"])
    )
    assert sweep_id(plain) == sweep_id(empty) != sweep_id(cut)
