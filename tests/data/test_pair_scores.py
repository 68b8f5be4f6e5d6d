"""Scores of pairs, by which trials leave pairs out, and the thresholds of a search."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from babeltune.data import pair_scores
from babeltune.data.contamination import jaccard
from babeltune.data.pair_scores import NEIGHBOURS, distinct_words, margins, similarities, symbols, write_scores
from babeltune.data.prepared import read_prepared
from babeltune.data.shards import run_here
from babeltune.data.teacher import encode_shard
from babeltune.data.texts import Texts
from babeltune.data.thresholds import THRESHOLDS, passing, thresholds
from babeltune.errors import MethodError, TrainingError
from babeltune.method.distributed import ProcessGroup
from babeltune.planning.calibration import Machine
from babeltune.planning.plan import make_plan
from babeltune.planning.preparation import prepare
from babeltune.planning.space import default_params, make_trial
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Sampling
from babeltune.sweep.workers.standalone import standalone_assignment
from babeltune.training.own_share import fit_temperatures
from babeltune.training.trainer import TrialTrainer
from collecting import Collect

pytestmark = pytest.mark.usefixtures("one_thread", "offline")
FEW = "data.train=[{name: natural, path: natural_train.tsv, columns: {eng: eng, fra: fra, kor: kor}, cap: 300}]"
KNOWS = "teacher.languages=[eng, fra, kor]"
LEAST = dict(zip(THRESHOLDS, (1.0, 0.2, 0.5, 12, 60, 0.25, 0.8, 0.9, 250), strict=True))


def trained(trial, prepared, folder):
    """The reports of a trial that is trained here."""
    return TrialTrainer(trial, prepared, folder, Collect(), ProcessGroup(), torch.device("cpu")).train()


def margin(left, right, pair, group):
    """The ratio margin of a pair by loops over the distinct texts of its group."""

    def cosine(x, y):
        return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))

    def nearness(text, others):
        return np.mean(sorted((cosine(text, other) for other in others), reverse=True)[:NEIGHBOURS])

    here = [each for each, of in zip(*group, strict=True) if of == group[1][pair]]
    lefts, rights = ({each[side] for each in here} for side in (0, 1))
    x, y = left[group[0][pair][0]], right[group[0][pair][1]]
    around = nearness(x, [right[each] for each in rights]) / 2 + nearness(y, [left[each] for each in lefts]) / 2
    return cosine(x, y) / around if around > 0 else -np.inf


@pytest.mark.parametrize("tile", [7, pair_scores.TILE])
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=30))
def test_a_margin_is_the_printed_ratio_among_the_distinct_texts_of_both_languages(tile, drawn):
    vectors = np.random.default_rng(1).random((18, 6)).astype(np.float32)  # a ratio to nearly 0 could be any number
    pairs = np.array([(left, 9 + right) for left, right, _ in drawn])
    groups = np.array([group for _, _, group in drawn])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_scores, "TILE", tile)
        scores = margins(pairs, groups, lambda ids: vectors[ids])
    listed = [tuple(pair) for pair in pairs.tolist()], groups.tolist()
    expected = [margin(vectors, vectors, number, listed) for number in range(len(pairs))]
    assert scores == pytest.approx(expected, rel=1e-4)


def test_a_zero_vector_passes_no_margin_and_text_of_one_language_passes_each():
    vectors = np.eye(4, dtype=np.float32)
    vectors[3] = 0
    scores = margins(np.array([[0, 1], [2, 3], [2, 2]]), np.array([0, 0, 1]), lambda ids: vectors[ids])
    assert scores[1] <= 0
    assert scores[2] == np.inf
    assert margins(np.array([[0, 1]]), np.array([0]), lambda ids: np.array([[1, -1][i % 2] for i in ids])[:, None]) == [
        -np.inf
    ]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("rain", 0), ("a 1", 0.5), ("", 0), ("...", 1),
        ("हिन्दी", 0), ("日本語。", 0.25), ("☔ rain", 0.2), ("a b c d", 0),
    ],
)  # fmt: skip
def test_symbols_are_digits_punctuation_and_signs_among_what_is_no_blank(text, share):
    assert symbols(text) == pytest.approx(share)


@pytest.mark.parametrize(("text", "share"), [("a b a A", 0.5), ("日本語", 1), ("", 0), ("no", 1), ("no no no", 1 / 3)])
def test_distinct_words_are_a_share_of_all_words(text, share):
    assert distinct_words(text) == pytest.approx(share)


def test_a_pair_is_as_similar_as_its_nearest_earlier_pair_of_the_same_languages():
    left = [
        "It rains in the north today.",
        "A dog sleeps.",
        "it rains in the North today",
        "It rains in the south today.",
    ]
    right = ["Il pleut dans le nord.", "Un chien dort.", "Il pleut dans le nord!", "Il pleut dans le sud."]
    pairs = np.array([(i, 4 + i) for i in range(4)] + [(0, 4)])
    corpus = SimpleNamespace(texts=Texts.of(left + right), pairs=pairs, pair_groups=np.array([0, 0, 0, 0, 1]))
    scores = similarities(corpus)
    both = [f"{a} {b}" for a, b in zip(left, right, strict=True)]
    assert scores[:3].tolist() == [0, 0, 1]
    assert scores[3] == pytest.approx(jaccard(both[3], both[0])) or scores[3] == 0, "no band may be shared below .8"
    assert scores[4] == 0, "another pair of languages"


def test_among_many_alike_pairs_the_nearest_decides():
    sentences = [f"The train to the north leaves at {hour} from track {hour * 7 % 31}." for hour in range(60)]
    sentences.append("The train to the north leaves at 45 from track 5 .")
    ids = np.arange(len(sentences))
    corpus = SimpleNamespace(
        texts=Texts.of(sentences), pairs=np.stack([ids, ids], axis=1), pair_groups=np.zeros(len(sentences), np.int64)
    )
    assert similarities(corpus)[60] == 1, "it repeats the pair of 45, and many others are nearly equal to it"


def test_few_distinct_anchors_make_fewer_pools_than_pairs_would():
    pairs = np.array([(row % 2, 2 + row) for row in range(50)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_scores, "POOL", 5)
        vectors = np.random.default_rng(0).random((52, 4)).astype(np.float32)
        assert np.isfinite(margins(pairs, np.zeros(50, int), lambda ids: vectors[ids])).all()


@pytest.fixture(scope="module")
def scored(tiny_file, tiny_storage):
    """The tiny sweep with every threshold searched, and what is prepared for it. Its teacher is taken for a
    multilingual one."""
    ranges = [f"parameters.data.sampling.{name}={{choice: [{least}]}}" for name, least in LEAST.items()]
    sweep = read_sweep(tiny_file, assignments=[FEW, KNOWS, *ranges])
    return sweep, prepare(sweep, tiny_storage)


@pytest.mark.slow
def test_thresholds_leave_out_the_pairs_that_they_say(scored):
    _, prepared = scored
    texts = [prepared.texts_of(prepared.pairs()[:, side].astype(np.int64)) for side in (0, 1)]
    lengths = np.array([[len(text) for text in side] for side in texts]).T
    short = passing(prepared, Sampling(least_characters=12, most_characters=60))
    assert short.tolist() == np.flatnonzero((lengths.min(1) >= 12) & (lengths.max(1) <= 60)).tolist()
    ratios = lengths[:, 0] / lengths[:, 1]
    groups = prepared.pair_groups()
    for group in range(len(prepared.groups)):
        ratios[groups == group] /= np.median(ratios[groups == group])
    even = passing(prepared, Sampling(least_length_ratio=0.5))
    assert set(even.tolist()) == set(np.flatnonzero(np.minimum(ratios, 1 / ratios) >= 0.5).tolist())
    both = passing(prepared, Sampling(least_length_ratio=0.5, least_characters=12, most_characters=60))
    assert both.tolist() == np.intersect1d(short, even).tolist()
    few = passing(prepared, Sampling(most_pairs=40))
    assert np.bincount(groups[few]).tolist() == [40] * len(prepared.groups)
    assert set(few.tolist()) < set(passing(prepared, Sampling(most_pairs=41)).tolist())
    long = passing(prepared, Sampling(most_pairs=40, least_characters=12))
    counts = np.bincount(groups[long]), np.bincount(groups[passing(prepared, Sampling(least_characters=12))])
    assert counts[0].tolist() == np.minimum(40, counts[1]).tolist(), "of those that the others leave"
    plain = [max(map(symbols, texts)) for texts in zip(*texts, strict=True)]
    assert passing(prepared, Sampling(most_symbols=0.1)).tolist() == [i for i, x in enumerate(plain) if x <= 0.1]
    assert passing(prepared, Sampling()) is None
    assert 0 < len(passing(prepared, Sampling(least_margin=1.0))) < len(prepared.pairs())


@pytest.mark.slow
def test_a_hundred_thresholds_cost_one_pass_and_the_scores_are_stored_with_the_pairs(scored, tiny_file, tiny_storage):
    _, prepared = scored
    stores = set((tiny_storage / "stores").iterdir())
    others = [
        f"parameters.data.sampling.{name}={{choice: [{least}, 0.95]}}" for name, least in LEAST.items() if least < 2
    ]
    others += [f"data.sampling.{name}={least}" for name, least in LEAST.items() if least >= 2]
    assert prepare(read_sweep(tiny_file, assignments=[FEW, KNOWS, *others]), tiny_storage).digest == prepared.digest
    assert set((tiny_storage / "stores").iterdir()) == stores
    assert sorted(path.name for path in Path(prepared.folder).glob("score-*")) == sorted(
        f"score-{name}.npy" for name in THRESHOLDS
    )


@pytest.mark.slow
def test_a_hundred_margins_are_one_scoring_and_no_second_encoding_by_the_teacher(tiny_file, tmp_path, monkeypatch):
    scorings, encodings = [], []

    def scored_and_counted(*arguments):
        scorings.append(arguments)
        write_scores(*arguments)

    def encoded_and_counted(function, arguments, *, gpu=False):
        if function is encode_shard:
            encodings.extend(str(file) for _, file, *_ in arguments)
        return run_here(function, arguments, gpu=gpu)

    monkeypatch.setattr("babeltune.data.prepare.write_scores", scored_and_counted)
    tried = np.linspace(0.8, 1.4, 100).round(4)
    digests, encoded = set(), set()
    for part in np.split(tried, 4):
        searched = f"parameters.data.sampling.least_margin={{choice: {part.tolist()}}}"
        sweep = read_sweep(tiny_file, assignments=[FEW, KNOWS, searched])
        prepared = prepare(sweep, tmp_path, run_shards=encoded_and_counted)
        digests.add(prepared.digest)
        encoded.add(len(encodings))
    assert (len(digests), len(scorings)) == (1, 1)
    assert len(encoded) == 1, "the first sweep encodes, and no other"
    assert encodings
    counts = [len(passing(prepared, Sampling(least_margin=least))) for least in tried.tolist()]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 20, "each of many trials has pairs of its own"


@pytest.mark.slow
def test_a_trial_trains_on_the_pairs_that_pass_and_says_how_many_it_leaves_out(scored, tmp_path):
    sweep, prepared = scored
    params = {**default_params(sweep), **{f"data.sampling.{name}": least for name, least in LEAST.items()}}
    trial = make_trial(sweep, 0, params)
    assert thresholds(trial.sampling) == LEAST
    reports = trained(trial, prepared, tmp_path / "some")
    passed = passing(prepared, trial.sampling)
    assert reports[0].facts["pairs_left_out"] == len(prepared.pairs()) - len(passed) > 0
    plain = trained(replace(trial, sampling=Sampling()), prepared, tmp_path / "all")
    assert "pairs_left_out" not in plain[0].facts
    nothing = replace(trial, sampling=Sampling(least_margin=1e9))
    fitted = replace(nothing, config={**nothing.config, "teacher_temperature": "auto"})
    with pytest.raises(MethodError, match=r"data\.sampling leaves \(least_margin 1000000000\.0\); give other"):
        fit_temperatures(fitted, prepared)
    with pytest.raises(TrainingError, match=r"data\.sampling leaves \(least_margin 1000000000\.0\); give other"):
        trained(replace(trial, sampling=Sampling(least_margin=1e9)), prepared, tmp_path / "none")


@pytest.mark.slow
def test_a_trial_of_ray_tune_leaves_pairs_out_by_a_threshold_of_its_own(tiny_file, tmp_path):
    settings = {"sweep": str(tiny_file), "out": str(tmp_path), "data.sampling.most_pairs": 50}
    assignment, sweep = standalone_assignment("mse_distillation", settings)
    prepared = read_prepared(Path(assignment.prepared))
    assert len(passing(prepared, sweep.data.sampling)) == 50 * len(prepared.groups) < len(prepared.pairs())
    assert assignment.trial["sampling"]["most_pairs"] == 50


@pytest.mark.slow
def test_a_margin_that_random_vectors_never_reach_is_planned_as_any_other(tiny_file, tmp_path):
    sweep = read_sweep(tiny_file, assignments=[FEW, KNOWS, "data.sampling.least_margin=1.5"])
    report = make_plan(sweep, machine=Machine(groups=1, workers=1, threads=1, memory_bytes=8 * 2**30, storage=tmp_path))
    assert report.not_measured == ""
    assert report.estimate.trial_s > 0
