"""Dev and test sets of every kind, from files to subsets, and what a sweep file may say of them."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from any_source import any_source
from babeltune.data.eval_sets import read_eval
from babeltune.data.prepared import tasks_from
from babeltune.errors import DataError
from babeltune.evaluation.evaluate import evaluate_texts
from babeltune.files import plain
from babeltune.planning.data_rules import data_problems
from babeltune.planning.goals import dev_metrics
from babeltune.planning.sweep_file import read_data
from babeltune.schema.records import Bitext, Clustering, Data, Mined, Mining, Sts, Sweep, Transfer, TsvSource
from corpora import read_tasks
from refusals import refusals

ENG = Data(train=(), anchor_priority=("eng",))


def write(folder, name, *rows):
    (folder / name).write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return name


def read(task, folder):
    return read_tasks([task], folder, ENG)


def encode(texts, languages):
    """A vector that depends on the text's digits alone."""
    seeds = [int("".join(filter(str.isdigit, text)) or 0) for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds]).astype(np.float32)


def sides(folder, first, rows):
    """A comparable corpus in BUCC's layout: ids and sentences without a header."""
    paths = {
        language: write(
            folder, f"{first}.{language}", *((f"{language}-{i}", f"{language} {i}") for i in rows[language])
        )
        for language in ("fra", "eng")
    }
    return TsvSource(name=first, paths=paths, header=False, id="0", column="1")


@pytest.fixture
def bucc(tmp_path):
    source = sides(tmp_path, "test", {"fra": range(6), "eng": range(3, 12)})
    gold = write(tmp_path, "test.gold", ("fra-3", "eng-3"), ("fra-5", "eng-5"))
    fit = Mined(
        source=sides(tmp_path, "fit", {"fra": range(20, 24), "eng": range(22, 30)}),
        gold=write(tmp_path, "fit.gold", ("fra-22", "eng-22")),
    )
    return Mining(name="bucc", source=source, gold=gold, fit=fit)


@pytest.mark.trap(29)
def test_the_sides_of_a_mining_set_are_read_apart_and_gold_by_its_ids(bucc, tmp_path):
    """D29: gold names ids, not rows."""
    (task,) = read(bucc, tmp_path)
    assert (task.subset, len(task.left), len(task.right)) == ("fra-eng", 6, 9)
    assert [(task.left[i], task.right[j]) for i, j in task.gold] == [("fra 3", "eng 3"), ("fra 5", "eng 5")]
    assert task.fit.gold == ((2, 0),)
    assert task.left_languages == ("fra",)
    (rows,) = read_eval([bucc], tmp_path)
    assert {"fra 1", "eng 11", "fra 23", "eng 29"} <= set(rows.texts())


def test_gold_of_an_unknown_id_names_its_line(bucc, tmp_path):
    write(tmp_path, "test.gold", ("fra-3", "eng-3"), ("fra-3", "eng-99"))
    with pytest.raises(DataError, match=r"test.gold:2: no row of 'eng' has the id 'eng-99'"):
        read(bucc, tmp_path)


def test_another_fit_is_another_digest(bucc, tmp_path):
    (before,) = read_eval([bucc], tmp_path)
    write(tmp_path, "fit.gold", ("fra-23", "eng-23"))
    (after,) = read_eval([bucc], tmp_path)
    assert before.digest != after.digest


def topics(folder):
    rows = [(i, "train" if i < 8 else "test", "ab"[i % 2], i) for i in range(12)]
    header = ("id", "sib_split", "category", "text")
    paths = {
        language: write(folder, f"{language}.tsv", header, *((i, s, c, f"{language} {t}") for i, s, c, t in rows))
        for language in ("eng", "zho")
    }
    source = TsvSource(name="sib", id="id", paths=paths)
    return Transfer(name="sib", source=source, label="category", split="sib_split", language="eng")


def test_a_head_learns_one_split_of_one_language_and_is_scored_on_all_others(tmp_path):
    eng, zho = read(topics(tmp_path), tmp_path)
    assert (eng.subset, zho.subset) == ("eng", "zho")
    assert zho.left == tuple(f"zho {i}" for i in range(8, 12))
    assert zho.labels == tuple("abab")
    assert zho.fit == eng.fit
    assert eng.fit.left == tuple(f"eng {i}" for i in range(8))
    limited = read(replace(topics(tmp_path), limit=2), tmp_path)[1]
    assert (len(limited.left), len(limited.fit.left)) == (2, 8)
    with pytest.raises(DataError, match=r"no row has 'tets' in column 'sib_split'; there are: test, train"):
        read(replace(topics(tmp_path), scored="tets"), tmp_path)


def test_a_row_without_a_label_or_a_split_moves_no_other_row(tmp_path):
    rows = [(f"text {i}", "ab"[i % 2], "train" if i < 8 else "test") for i in range(12)]
    rows[2], rows[5] = ("text 2", "", "train"), ("text 5", "b", "")
    write(tmp_path, "one.tsv", ("text", "category", "split"), *rows)
    source = TsvSource(name="one", path="one.tsv", columns={"eng": "text"}, on_error="drop", max_dropped=0.5)
    (task,) = read(Transfer(name="one", source=source, label="category", split="split", language="eng"), tmp_path)
    assert task.fit.left == tuple(f"text {i}" for i in (0, 1, 3, 4, 6, 7))
    assert task.fit.labels == tuple("abbaab")
    assert task.left == tuple(f"text {i}" for i in range(8, 12))


def test_changed_sentences_join_the_candidates_of_their_language(tmp_path):
    write(tmp_path, "t.tsv", ("fra", "eng"), ("fra 1", "eng 1"), ("fra 2", "eng 2"))
    write(tmp_path, "plus.tsv", ("id", "eng"), (0, "not 1"), (0, "eng 7"), (1, "eng 8"))
    plus = TsvSource(name="plus", path="plus.tsv", columns={"eng": "eng"}, id="id")
    source = TsvSource(name="t", path="t.tsv", columns={"fra": "fra", "eng": "eng"})
    task = Bitext(name="t", source=source, augmented=plus)
    (subset,) = read(task, tmp_path)
    assert subset.right == ("eng 1", "eng 2", "not 1", "eng 7", "eng 8")
    scores = evaluate_texts([subset], encode)
    assert scores["test/t/accuracy"] == 1.0
    assert scores["test/t/xsim_error"] == 0.0
    assert scores["test/t/xsimpp_error"] == 0.0, "of equal scores the translation is first"
    (rows,) = read_eval([task], tmp_path)
    assert "eng 8" in set(rows.texts()), "changed sentences are not trained on either"


def test_hub_names_of_mteb_are_read_from_saved_copies(tmp_path):
    """Tatoeba-112, BUCC.v2 and STS17 as mteb's repositories lay out a configuration's split."""
    datasets = pytest.importorskip("datasets")
    copy = {"sentence1": ["a 1", "a 2"], "sentence2": ["b 1", "b 2"]}
    for name, more in (("tatoeba", {"lang": ["sqi-eng"] * 2}), ("bucc", {}), ("sts", {"score": [4.5, 1.0]})):
        datasets.DatasetDict({"test": datasets.Dataset.from_dict({**copy, **more})}).save_to_disk(tmp_path / name)
    hub = {"format": "hub", "split": "test"}
    columns = {"sqi": "sentence1", "eng": "sentence2"}
    tasks = [
        Bitext(name="tatoeba", source=any_source(name="tatoeba", dataset="tatoeba", columns=columns, **hub)),
        Bitext(name="bucc", source=any_source(name="bucc", dataset="bucc", columns=columns, **hub)),
    ]
    graded = any_source(name="sts17", dataset="sts", **hub)
    tasks.append(Sts(name="sts17", language="fra", language2="eng", group="sts_fr", source=graded))
    tatoeba, bucc, sts = (subset for task in tasks for subset in read(task, tmp_path))
    assert tatoeba.subset == bucc.subset == "sqi-eng"
    assert tatoeba.left == bucc.left == sts.left == ("a 1", "a 2")
    assert (sts.scores, sts.subset, sts.group) == ((4.5, 1.0), "fra-eng", "sts_fr")
    assert (sts.left_languages, sts.right_languages) == (("fra",), ("eng",))


def test_tatoebas_112_languages_and_bucc_are_read_by_their_hub_names(tmp_path, monkeypatch):
    """From folders that are laid out as the repositories are: a file for each configuration, named by the card."""
    monkeypatch.setenv("BABELTUNE_DATA", str(tmp_path))
    saved = {"tatoeba-bitext-mining": ("fra-eng", "sqi-eng", "yid-eng"), "bucc-bitext-mining": ("zh-en",)}
    for name, subsets in saved.items():
        folder = tmp_path / "mteb" / name
        (folder / "test").mkdir(parents=True)
        card = ["---", "configs:"]
        for subset in subsets:
            card += [
                f"- config_name: {subset}",
                "  data_files:",
                "  - split: test",
                f"    path: test/{subset}.jsonl.gz",
            ]
            rows = [json.dumps({"sentence1": f"{subset} {i}", "sentence2": f"english {i}"}) for i in range(3)]
            (folder / "test" / f"{subset}.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
        (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    data, root = read_data("search_spaces/evaluation/mteb_bitext.yaml")
    assert [[task.name for task in data.dev].count(name) for name in ("tatoeba", "bucc")] == [112, 4]
    assert len({(task.name, task.source.subset) for task in data.dev}) == 116
    some = [task for task in data.dev if task.source.subset in ("fra-eng", "sqi-eng", "yid-eng", "zh-en")]
    tasks = read_tasks(some, root, data)
    assert [task.subset for task in tasks] == ["fra-eng", "sqi-eng", "yid-eng", "zh-en"]
    assert tasks[1].left == ("sqi-eng 0", "sqi-eng 1", "sqi-eng 2")
    assert tasks[3].right == ("english 0", "english 1", "english 2")
    scores = evaluate_texts(tasks, encode, "dev")
    assert {"dev/tatoeba/f1", "dev/tatoeba/sqi-eng/f1", "dev/bucc/zh-en/accuracy"} <= set(scores)


def test_tasks_survive_being_written(bucc, tmp_path):
    tasks = (*read(bucc, tmp_path), *read(topics(tmp_path), tmp_path))
    assert tasks_from(plain(list(tasks))) == tasks


def sweep_of(*dev):
    source = TsvSource(name="s", path="s.tsv", columns={"fra": "fra", "eng": "eng"})
    return Sweep(name="x", method="m", objectives=(), data=Data(train=(source,), dev=dev))


def test_the_metrics_that_a_sweep_may_seek_are_those_that_evaluation_gives(bucc, tmp_path):
    write(tmp_path, "t.tsv", ("fra", "eng"), *((f"fra {i}", f"eng {i}") for i in range(9)))
    write(tmp_path, "g.tsv", ("sentence1", "sentence2", "score"), *((f"a {i}", f"b {i * i}", i) for i in range(5)))
    source = TsvSource(name="t", path="t.tsv", columns={"fra": "fra", "eng": "eng"})
    plus = TsvSource(name="plus", path="t.tsv", columns={"eng": "eng"})
    dev = (
        Bitext(name="plain", source=source),
        Bitext(name="plus", source=source, augmented=plus),
        Sts(name="graded", path="g.tsv", language="eng", group="all_sts"),
        bucc,
        replace(bucc, name="oracle", fit=None),
        topics(tmp_path),
        Clustering(name="found", source=topics(tmp_path).source, label="category"),
    )
    scores = evaluate_texts([subset for task in dev for subset in read(task, tmp_path)], encode, "dev")
    extra = {name for name in scores if name.endswith(("_sd", "xsim_flipped", "mean_cosine"))}
    assert set(dev_metrics(sweep_of(*dev))) == set(scores) - extra
    assert not list(data_problems(sweep_of(*dev).data))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gold": None}, "dev.0.gold: this key is missing"),
        ({"limit": 5}, "5 is for task 'bitext'"),
        ({"language2": "eng"}, "is for task 'sts', and this one is 'mining'"),
        ({"compare": "index"}, "is for task 'bitext'"),
        ({"group": "bucc"}, "'bucc' is the name of a task"),
        ({"source": {"name": "s", "path": "p", "columns": {"fra": "a", "eng": "b"}}},
         "must have `paths` of two languages"),
        ({"task": "transfer", "gold": None, "fit": None, "language": "deu"},
         "'deu' is not a language of 'test', to learn from"),
    ],
)  # fmt: skip
def test_what_a_task_cannot_have_is_refused(bucc, changes, words):
    task = {name: value for name, value in {**plain(bucc), **changes}.items() if value is not None}
    problems = refusals(dev=[task])
    assert any(words in problem for problem in problems), problems


def test_the_fit_holds_the_same_two_languages(bucc):
    turned = replace(bucc.fit.source, paths=dict(reversed(bucc.fit.source.paths.items())))
    task = replace(bucc, fit=replace(bucc.fit, source=turned))
    assert any("fra and eng in this order" in problem for _, problem in data_problems(sweep_of(task).data))
