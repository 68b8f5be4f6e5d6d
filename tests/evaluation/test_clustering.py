"""k-means beside mteb's, and both scores by their formulas."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.metrics import adjusted_rand_score, v_measure_score
from threadpoolctl import threadpool_limits

from babeltune.evaluation import clustering
from babeltune.evaluation.clustering import SEEDS, STARTS, agreement, kmeans
from corpora import needs_data, sib200

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


def scored(truth, clusters, monkeypatch):
    """The scores of labels and a clustering that is given."""
    monkeypatch.setattr(clustering, "kmeans", lambda rows, k, *, seed: np.asarray(clusters))
    return agreement(np.eye(len(truth), dtype=np.float32), [f"topic {label}" for label in truth])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(LABELS)
def test_both_scores_are_those_of_the_printed_formulas(pairs):
    """Hubert & Arabie 1985 over pairs of rows; Rosenberg & Hirschberg 2007 over entropies."""
    truth, found = zip(*pairs, strict=True)
    with pytest.MonkeyPatch.context() as patch:
        scores = scored(truth, found, patch)
    both = list(itertools.combinations(range(len(pairs)), 2))
    alike = [(truth[i] == truth[j], found[i] == found[j]) for i, j in both]
    a, b, together = sum(x for x, _ in alike), sum(y for _, y in alike), sum(x and y for x, y in alike)
    expected = a * b / len(both) if both else 0.0
    rand = 1.0 if together == a == b else (together - expected) / ((a + b) / 2 - expected)
    assert scores["ari"] == pytest.approx(rand, abs=1e-12)
    in_truth, in_found, joint = (
        -sum(n / len(pairs) * math.log(n / len(pairs)) for n in Counter(rows).values())
        for rows in (truth, found, pairs)
    )
    shared = in_truth + in_found - joint
    h = shared / in_truth if in_truth else 1.0
    c = shared / in_found if in_found else 1.0
    assert scores["v_measure"] == pytest.approx(2 * h * c / (h + c) if h + c > 1e-9 else 0.0, abs=1e-9)
    assert scores["ari_sd"] == pytest.approx(0, abs=1e-12)


@pytest.mark.trap(33)
def test_it_may_be_negative(monkeypatch):
    """D33: worse than chance is a score too."""
    assert scored([0, 0, 1, 1], [0, 1, 0, 1], monkeypatch)["ari"] == pytest.approx(-0.5)


def blobs(rows, clusters, dim, spread, seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(clusters, size=rows)
    return generator.normal(size=(clusters, dim))[truth] + spread * generator.normal(size=(rows, dim)), truth


@pytest.mark.parametrize(("clusters", "spread"), [(3, 0.2), (7, 1.0), (7, 3.0)])
def test_the_best_of_several_starts_is_taken(clusters, spread):
    rows, _ = blobs(200, clusters, 16, spread, seed=clusters)
    single = KMeans(clusters, n_init=1, random_state=0).fit(rows)
    which = kmeans(rows, clusters, seed=0)
    means = np.stack([rows[which == k].mean(0) for k in range(clusters)])
    assert ((rows - means[which]) ** 2).sum() <= 1.001 * single.inertia_


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("language", ["eng_Latn", "fra_Latn"])
def test_topics_of_real_text_are_found_as_well_as_by_mteb(language):
    """mteb clusters drawn rows in small batches; over all rows and several seeds that has the same mean."""
    vectors, topics, _ = sib200(language)
    found = agreement(vectors, topics)
    settings = {"n_clusters": len(set(topics)), "batch_size": 512, "init": "k-means++", "n_init": 1}
    theirs = [MiniBatchKMeans(**settings, random_state=seed).fit_predict(vectors) for seed in range(20)]
    measured = [v_measure_score(topics, clusters) for clusters in theirs]
    assert found["v_measure"] == pytest.approx(np.mean(measured), abs=2 * np.std(measured))


def test_the_clusters_do_not_depend_on_the_number_of_threads():
    rows, _ = blobs(3000, 6, 16, 3.0, seed=5)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(kmeans(rows, 6, seed=0))
    assert np.array_equal(*found)


def test_well_separated_topics_are_found_by_every_seed():
    rows, truth = blobs(120, 4, 8, 0.05, seed=1)
    scores = agreement(rows * np.linspace(0.1, 9, len(rows))[:, None], [f"topic {t}" for t in truth])
    assert scores == pytest.approx({"ari": 1, "v_measure": 1, "ari_sd": 0, "v_measure_sd": 0})


@pytest.mark.trap(33)
def test_the_mean_and_spread_are_over_several_seeds_of_several_starts():
    """D33: one initialisation of one seed is noise."""
    assert len(SEEDS) > 1
    assert STARTS >= 10
    rows, truth = blobs(150, 6, 8, 2.0, seed=2)
    unit = rows.astype(np.float32) / np.linalg.norm(rows.astype(np.float32), axis=1, keepdims=True)
    clusters = [kmeans(unit.astype(np.float64), 6, seed=seed) for seed in SEEDS]
    scores = agreement(rows.astype(np.float32), truth.astype(str))
    for metric, reference in (("ari", adjusted_rand_score), ("v_measure", v_measure_score)):
        found = [reference(truth, which) for which in clusters]
        assert scores[metric] == pytest.approx(np.mean(found), abs=0.02)
        assert 0 < scores[f"{metric}_sd"] < 0.2


@pytest.mark.trap(42)
def test_the_same_vectors_score_the_same():
    rows, truth = blobs(100, 5, 8, 2.0, seed=3)
    before = rows.copy()
    assert agreement(rows, truth.astype(str)) == agreement(before.copy(), truth.astype(str))
    assert np.array_equal(rows, before), "the caller's vectors stay"


def test_vectors_that_are_all_alike_have_no_topics_and_broken_ones_no_score():
    labels = ["a", "b", "a", "b"]
    assert agreement(np.ones((4, 3), np.float32), labels)["ari"] <= 0
    assert all(map(math.isnan, agreement(np.array([[1.0, np.nan]] * 4, np.float32), labels).values()))
