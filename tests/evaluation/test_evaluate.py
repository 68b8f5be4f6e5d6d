import os
import subprocess
import sys

import numpy as np
import pytest

from babeltune.data.prepared import EvalTask
from babeltune.errors import DataError, TrainingError
from babeltune.evaluation import bitext, knn, sts
from babeltune.evaluation.evaluate import evaluate, evaluate_texts
from babeltune.evaluation.metric_names import each_once
from babeltune.schema.records import Bitext, Data, TsvSource
from bitexts import bitext_accuracy, bitext_f1, xsim_error
from corpora import DATA, needs_data, read_tasks

TABLE = np.random.default_rng(0).normal(size=(400, 12)).astype(np.float32)
TABLE[100:200] = TABLE[:100] + 0.9 * TABLE[200:300]


class Embed:
    """Looks vectors up, and counts what it was asked for."""

    def __init__(self, table=TABLE):
        self.table, self.asked = table, []

    def __call__(self, ids):
        self.asked.append(ids.tolist())
        return self.table[ids]


def bitext_task(name="ntrex", subset="fra-eng", left=range(100), right=range(100, 200), **more):
    return EvalTask(name=name, kind="bitext", subset=subset, left=tuple(left), right=tuple(right), **more)


def sts_task(scores=tuple(range(50)), **more):
    sides = {"left": tuple(range(50)), "right": tuple(range(100, 150))}
    return EvalTask(name="stsb", kind="sts", subset="eng", **sides, scores=scores, **more)


def test_a_mean_over_one_subset_is_left_out_where_each_score_is_shown_once():
    one = evaluate([sts_task()], Embed())
    assert {"dev/stsb/spearman", "dev/stsb/eng/spearman"} <= one.keys()
    assert each_once(one) == {name: value for name, value in one.items() if name.count("/") != 2}
    two = dict.fromkeys(("test/a/fra-eng/f1", "test/a/deu-eng/f1", "test/a/f1", "test/group/f1", "train/loss"), 0.5)
    assert each_once(two) == two


def test_every_text_is_encoded_once_over_all_tasks():
    embed, other = Embed(), bitext_task(subset="rus-eng", left=range(50, 150), right=range(100, 200))
    evaluate([bitext_task(), other, sts_task()], embed)
    assert embed.asked == [list(range(200))]
    assert evaluate([], embed) == {}


@pytest.mark.slow
@needs_data
def test_every_two_of_42_languages_are_861_pairs_of_42_encodings():
    """NTREX, multi-way: a language's sentences are encoded once, and made ready for the search once."""
    paths = {path.name.partition(".")[0]: f"ntrex/{path.name}" for path in sorted((DATA / "ntrex").glob("*.tsv.gz"))}
    source = TsvSource(name="ntrex", id="id", paths=paths, pairs="all")
    tasks = read_tasks([Bitext(name="ntrex", source=source, limit=4)], DATA, Data(train=(), anchor_priority=("eng",)))
    given, ready = [], []

    def encode(texts, languages):
        given.append(list(zip(texts, languages, strict=True)))
        return np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)

    side = knn.side
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "side", lambda rows: ready.append(type(rows)) or side(rows))
        scores = evaluate_texts(tasks, encode)
    assert len(paths) == 42
    assert len(tasks) == 861
    assert len([name for name in scores if name.count("/") == 3 and name.endswith("/accuracy")]) == 861 + 42
    of_rus = [scores[f"test/ntrex/{task.subset}/xsim_error"] for task in tasks if "rus" in task.subset.split("-")]
    assert len(of_rus) == 41
    assert scores["test/ntrex/rus/xsim_error"] == pytest.approx(np.mean(of_rus))
    assert len(given) == 1
    assert len(given[0]) == len(set(given[0])) == 42 * 4
    assert ready.count(np.ndarray) == 42


@pytest.mark.trap(30)
def test_metrics_say_task_subset_and_direction():
    scores = evaluate([bitext_task(), sts_task()], Embed())
    forward, backward = bitext_accuracy(TABLE[:100], TABLE[100:200])
    errors = xsim_error(TABLE[:100], TABLE[100:200])
    assert forward != backward
    assert scores["dev/ntrex/fra-eng/accuracy_forward"] == forward
    assert scores["dev/ntrex/fra-eng/accuracy_backward"] == backward
    assert scores["dev/ntrex/fra-eng/accuracy"] == (forward + backward) / 2
    assert scores["dev/ntrex/fra-eng/xsim_error"] == sum(errors) / 2
    assert scores["dev/ntrex/f1"] == bitext_f1(TABLE[:100], TABLE[100:200])[0], "mteb's direction"
    cosines = sts.paired_cosine(TABLE[:50], TABLE[100:150])
    assert scores["dev/stsb/eng/spearman"] == sts.spearman(range(50), cosines)


@pytest.mark.trap(31)
def test_a_task_has_its_macro_mean_even_with_one_subset():
    easy = bitext_task(subset="deu-eng", left=range(10), right=range(10))
    one = evaluate([bitext_task()], Embed())
    both = evaluate([bitext_task(), easy, sts_task()], Embed())
    for metric in ("accuracy", "xsim_error"):
        mine, other = (both[f"dev/ntrex/{subset}/{metric}"] for subset in ("fra-eng", "deu-eng"))
        assert one[f"dev/ntrex/{metric}"] == one[f"dev/ntrex/fra-eng/{metric}"] == mine
        assert both[f"dev/ntrex/{metric}"] == pytest.approx((mine + other) / 2)
        assert mine != other
    assert both["dev/stsb/spearman"] == both["dev/stsb/eng/spearman"]


@pytest.mark.trap(31)
def test_pooled_errors_count_rows_and_macro_means_count_subsets():
    small = bitext_task(subset="deu-eng", left=range(10), right=range(100, 110))
    scores = evaluate([bitext_task(), small], Embed())
    large, few = (scores[f"dev/ntrex/{subset}/xsim_error"] for subset in ("fra-eng", "deu-eng"))
    assert scores["dev/ntrex/xsim_error"] == pytest.approx((large + few) / 2)
    assert scores["dev/ntrex/xsim_error_pooled"] == pytest.approx((100 * large + 10 * few) / 110)
    assert large != few


def test_a_group_is_the_mean_over_the_subsets_of_its_tasks():
    other = EvalTask(**{**vars(sts_task(group="sts_en")), "name": "sts12", "left": tuple(range(50, 100))})
    scores = evaluate([sts_task(group="sts_en"), other, bitext_task()], Embed())
    for metric in ("spearman", "pearson"):
        both = [scores[f"dev/{name}/{metric}"] for name in ("stsb", "sts12")]
        assert scores[f"dev/sts_en/{metric}"] == pytest.approx(sum(both) / 2)


def test_the_margin_and_what_is_compared_are_the_tasks():
    twice = {"left": [*range(50), *range(50)], "right": [*range(50), *range(50)]}
    assert evaluate([bitext_task(compare="index", **twice)], Embed())["dev/ntrex/xsim_error"] == 0.5
    for margin in ("ratio", "distance", "absolute"):
        expected = sum(xsim_error(TABLE[:100], TABLE[100:200], margin=margin)) / 2
        assert evaluate([bitext_task(margin=margin)], Embed())["dev/ntrex/xsim_error"] == expected
    every = sum(xsim_error(TABLE[:100], TABLE[100:200], 1, candidates="all")) / 2
    assert evaluate([bitext_task(k=1, candidates="all")], Embed())["dev/ntrex/xsim_error"] == every
    errors = {evaluate([bitext_task(k=k)], Embed())["dev/ntrex/xsim_error"] for k in (1, 4, 50)}
    assert len(errors) > 1, "k is the task's, too"


def test_changed_sentences_are_candidates_of_xsimpp_alone():
    harder = evaluate([bitext_task(right=range(100, 300))], Embed())
    plain = evaluate([bitext_task()], Embed())
    among = bitext.knn.nearest_both_ways(TABLE[:100], TABLE[100:300])
    assert harder["dev/ntrex/xsimpp_error"] == bitext.xsim(among) > plain["dev/ntrex/xsim_error"]
    for metric in ("accuracy", "f1", "xsim_error"):
        assert harder[f"dev/ntrex/{metric}"] == plain[f"dev/ntrex/{metric}"]


@pytest.mark.trap(25)
def test_an_equal_text_is_no_xsim_error_in_either_direction():
    twice = bitext_task(left=[*range(50), *range(50)], right=[*range(50), *range(50)])
    scores = evaluate([twice], Embed())
    assert scores["dev/ntrex/xsim_error"] == 0
    assert scores["dev/ntrex/accuracy"] == 0.5


@pytest.mark.trap(32)
def test_a_constant_encoder_fails_the_trial_and_names_the_metric():
    with pytest.raises(TrainingError, match=r"'dev/stsb/eng/spearman' is NaN: .* alike"):
        evaluate([sts_task()], Embed(np.ones((400, 4), dtype=np.float32)))


def test_vectors_that_are_not_finite_fail_the_trial():
    table = TABLE.copy()
    table[120, 3] = np.inf
    with pytest.raises(TrainingError, match=r"'dev/ntrex/fra-eng/accuracy' is NaN: .* not finite"):
        evaluate([bitext_task()], Embed(table))


@pytest.mark.trap(31)
def test_vectors_missing_for_some_texts_are_refused():
    with pytest.raises(TrainingError, match="3 vectors came back for 200 texts"):
        evaluate([bitext_task()], lambda ids: TABLE[:3])


@pytest.mark.trap(31)
def test_two_tasks_of_one_name_are_refused_rather_than_averaged():
    with pytest.raises(DataError, match="'ntrex/fra-eng'"):
        evaluate([bitext_task(), bitext_task(k=2)], Embed())


@pytest.mark.trap(24)
def test_a_margin_that_means_nothing_is_reported():
    assert "dev/ntrex/fra-eng/xsim_flipped" not in evaluate([bitext_task()], Embed())
    centred = np.array([[1, 0], [-1, 0.01], [-1, 0], [1, -0.01]], dtype=np.float32)
    scores = evaluate([bitext_task(left=(0, 1), right=(2, 3))], Embed(centred))
    assert scores["dev/ntrex/fra-eng/xsim_flipped"] > 0


def test_texts_score_as_their_ids_do():
    asked = []

    def encode(texts, languages):
        asked.append(texts)
        assert len(languages) == len(texts)
        return TABLE[[int(text) for text in texts]]

    tasks = [bitext_task(right=[*range(100, 199), 100]), sts_task()]
    scores = evaluate_texts([task.mapped(lambda text, _: str(text)) for task in tasks], encode)
    assert scores == evaluate(tasks, Embed(), prefix="test")
    assert len(asked) == 1
    assert len(set(asked[0])) == len(asked[0]) == 199


@pytest.mark.slow
def test_it_imports_no_large_dependency():
    code = (
        "import sys, babeltune.evaluation.evaluate\n"
        "bad = {'ray', 'mlflow', 'optuna', 'pydantic', 'scipy', 'pandas', 'sentence_transformers'} & set(sys.modules)\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def topics(subset="eng", left=range(100), labels=None, **more):
    labels = tuple(labels or (str(i % 4) for i in left))
    return EvalTask(name="sib", kind="clustering", subset=subset, left=tuple(left), labels=labels, **more)


@pytest.mark.trap(33)
def test_clustering_scores_have_a_mean_a_spread_and_the_mean_over_subsets():
    table = np.eye(12, dtype=np.float32)[np.arange(400) % 4] + 0.1 * TABLE
    scores = evaluate([topics(), topics("mixed", range(100, 200), left_languages=("eng", "zho") * 50)], Embed(table))
    assert scores["dev/sib/eng/ari"] == 1.0
    assert scores["dev/sib/eng/ari_sd"] == 0.0
    assert scores["dev/sib/ari"] == (scores["dev/sib/eng/ari"] + scores["dev/sib/mixed/ari"]) / 2


@pytest.mark.trap(33)
def test_a_clustering_score_may_be_negative_but_not_missing():
    scores = evaluate([topics(labels=[str(i // 50) for i in range(100)])], Embed())
    assert -0.5 < scores["dev/sib/ari"] < 0.2
    table = TABLE.copy()
    table[3, 0] = np.nan
    with pytest.raises(TrainingError, match=r"'dev/sib/eng/ari' is NaN: .* not finite"):
        evaluate([topics()], Embed(table))


@pytest.mark.trap(34)
def test_contrastive_accuracy_is_that_of_a_fixed_pool():
    """D34: of a batch of 64 it would depend on the batch."""
    small, large = (evaluate([bitext_task(left=range(n), right=range(100, 100 + n))], Embed()) for n in (10, 100))
    assert small["dev/ntrex/accuracy"] > large["dev/ntrex/accuracy"]


def test_the_encoder_of_texts_gets_their_languages():
    said = {}

    def encode(texts, languages):
        said.update(zip(texts, languages, strict=True))
        return TABLE[[int(text) for text in texts]]

    tasks = [
        topics("mixed", range(3), labels="aba", left_languages=("eng", "zho", "eng")),
        bitext_task(left=(10, 11), right=(20, 21), left_languages=("fra",), right_languages=("eng",)),
    ]
    evaluate_texts([task.mapped(lambda text, _: str(text)) for task in tasks], encode)
    assert said == {"0": "eng", "1": "zho", "2": "eng", "10": "fra", "11": "fra", "20": "eng", "21": "eng"}
