"""The linear head by its equation, and beside scikit-learn's logistic regression."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

from babeltune.data.prepared import EvalTask
from babeltune.errors import TrainingError
from babeltune.evaluation import probing
from babeltune.evaluation.evaluate import evaluate
from corpora import needs_data, sib200


def topics(rows=150, dim=12, labels=5, spread=1.2, seed=0):
    generator = np.random.default_rng(seed)
    truth = generator.integers(labels, size=rows)
    centres = np.random.default_rng(99).normal(size=(labels, dim))
    return (centres[truth] + spread * generator.normal(size=(rows, dim))).astype(np.float32), [f"t{i}" for i in truth]


def test_the_head_has_the_least_loss_of_the_printed_equation():
    """C · Σ cross entropy + |weight|² / 2 on unit vectors: its gradient is zero at the head's weights."""
    x, labels = topics()
    unit = torch.from_numpy(x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True))
    fitted = probing.fit_head(x, labels).classifier
    weight, bias = (torch.from_numpy(values).requires_grad_() for values in (fitted.coef_, fitted.intercept_))
    truth = torch.from_numpy(np.searchsorted(fitted.classes_, labels))
    loss = probing.C * cross_entropy(unit @ weight.T + bias, truth, reduction="sum") + weight.square().sum() / 2
    assert all(bool((g.abs() < 1e-4).all()) for g in torch.autograd.grad(loss, (weight, bias)))


@needs_data
def test_the_head_on_real_text_says_what_scikit_learns_says():
    vectors, topics, splits = sib200("eng_Latn")
    learnt, scored = ([row for row, split in enumerate(splits) if split == name] for name in ("train", "test"))
    labels, truth = ([topics[row] for row in rows] for rows in (learnt, scored))
    reference = LogisticRegression(C=probing.C, max_iter=1000, tol=1e-8).fit(vectors[learnt], labels)
    said = probing.fit_head(vectors[learnt], labels)(vectors[scored])
    expected = reference.predict(vectors[scored]).tolist()
    assert said == expected
    assert probing.accuracy(truth, said) == reference.score(vectors[scored], truth) > 1 / 7


@pytest.mark.parametrize(("count", "least"), [(1, 1.0), (2, 0.7)])
def test_one_and_two_topics_have_a_head_too(count, least):
    x, labels = topics(labels=count)
    found = probing.fit_head(x, labels)(x)
    assert probing.accuracy(labels, found) >= least


def test_the_same_vectors_give_the_same_head():
    x, labels = topics()
    before = x.copy()
    a, b = probing.fit_head(x, labels), probing.fit_head(x, labels)
    assert (a.classifier.coef_ == b.classifier.coef_).all()
    assert (x == before).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=20))
def test_macro_f1_is_the_mean_of_each_labels_f1(pairs):
    truth, found = zip(*pairs, strict=True)
    each = []
    for label in {*truth, *found}:
        right = sum(a == b == label for a, b in pairs)
        each.append(2 * right / (truth.count(label) + found.count(label)))
    assert probing.macro_f1(truth, found) == pytest.approx(sum(each) / len(each), abs=1e-12)


def test_a_head_learns_one_language_and_is_scored_on_each(monkeypatch):
    table, labels = topics(300)
    rotated = np.roll(table[150:200], 1, axis=1)
    table[200:250] = rotated

    def scored(language, rows):
        fit = EvalTask(name="sib", kind="transfer", subset="eng", left=tuple(range(150)), labels=tuple(labels[:150]))
        chosen = tuple(labels[i] for i in range(150, 200))
        return EvalTask(name="sib", kind="transfer", subset=language, left=tuple(rows), labels=chosen, fit=fit)

    fitted, fit_head = [], probing.fit_head
    monkeypatch.setattr(probing, "fit_head", lambda *given: fitted.append(1) or fit_head(*given))
    tasks = [scored("eng", range(150, 200)), scored("zho", range(200, 250))]
    scores = evaluate(tasks, lambda ids: table[ids])
    head = fit_head(table[:150], labels[:150])
    truth = labels[150:200]
    for task in tasks:
        found = head(table[list(task.left)])
        assert scores[f"dev/sib/{task.subset}/accuracy"] == probing.accuracy(truth, found)
        assert scores[f"dev/sib/{task.subset}/macro_f1"] == probing.macro_f1(truth, found)
    assert scores["dev/sib/eng/accuracy"] > scores["dev/sib/zho/accuracy"]
    assert scores["dev/sib/accuracy"] == (scores["dev/sib/eng/accuracy"] + scores["dev/sib/zho/accuracy"]) / 2
    assert len(fitted) == 1
    for broken in (3, 160):
        bad = table.copy()
        bad[broken] = math.nan
        with pytest.raises(TrainingError, match="not finite"):
            evaluate(tasks, lambda ids, bad=bad: bad[ids])
