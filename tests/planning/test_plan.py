"""The plan: what it counts, what it prints, and that the spec it prints is the sweep."""

import io
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from babeltune.cli.plan_page import details, summary
from babeltune.errors import DataError
from babeltune.models.build import build_student
from babeltune.models.vocabulary import Vocabulary
from babeltune.planning.availability import student_parameters
from babeltune.planning.plan import CorpusSize, describe, make_plan
from babeltune.planning.preparation import read_corpus
from babeltune.planning.recorded import sweep_id
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.sweep_yaml import spec_yaml
from babeltune.planning.warnings import about_corpus, about_headers, about_strangers
from babeltune.schema.cluster import Cluster
from babeltune.schema.document import read_document, validate
from babeltune.schema.records import Parameter, Sweep, Teacher, Transformer
from babeltune.signals import StopSignal
from babeltune.sweep.driver.attempt import SweepRun
from babeltune.sweep.state.progress import SweepProgress
from babeltune.sweep.sync.driver import DriverSync
from made_sweeps import make_sweep

COUNTS = {"natural": {"rows": 300, "pairs": 1200, "distinct": 1190}, "templates": {"rows": 1487, "pairs": 5948}}
PAIRS = {"eng-fra": 1700, "eng-kor": 1600}


@pytest.fixture(scope="module")
def sweep():
    return read_sweep("search_spaces/quickstart.yaml", check=False)


def test_the_printed_spec_reads_back_as_the_same_sweep(sweep, tmp_path):
    path = tmp_path / "again.yaml"
    path.write_text(spec_yaml(sweep), encoding="utf-8")
    assert read_sweep(path, check=False) == sweep


@settings(deadline=None)
@given(st.sampled_from([None, 1, 0.5, True, "12e4", "null", "no", "1_0", ".5", "é: #"]))
def test_values_that_yaml_could_mistake_survive_printing(tmp_path_factory, value):
    text = "version: 1\nname: x\nmethod: m\nobjectives: []\ndata: {train: []}\n"
    path = tmp_path_factory.mktemp("plan") / "a.yaml"
    path.write_text(text, encoding="utf-8")
    first = validate(read_document(path), Sweep)
    given = replace(
        first,
        parameters={"p": Parameter(const=value, when={"q": "12e4"}), "q": Parameter(choice=(value, "other"))},
        config={"a": value},
        student=Transformer(revision="12e4", prompt="query: "),
        training=replace(first.training, clip=None),
    )
    path.write_text(spec_yaml(given), encoding="utf-8")
    assert validate(read_document(path), Sweep) == given


def test_the_plan_says_id_trials_pairs_and_work(sweep):
    counted = CorpusSize(counts=COUNTS, pairs=PAIRS, dev={"everyday/fra-eng": 30}, anchors=1700, teacher_sentences=1234)
    report = describe(sweep, counted)
    assert report.id == sweep_id(sweep)
    assert len(report.trials) == 3
    assert report.total_pairs == 3300
    assert report.budget_pairs == sweep.budget.trials * sweep.training.pairs
    assert report.default.steps == -(-sweep.training.pairs // sweep.training.global_batch)
    assert report == describe(sweep, counted)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(details(report))
    text = console.export_text()
    counts = ("rows 300 · pairs 1,200 · distinct 1,190", "eng-fra 1,700", "1,234 sentences", "of 1,700 anchors")
    assert [words for words in (report.id, "sample 2", *counts) if words not in text] == []
    assert yaml.safe_load(report.spec)["name"] == sweep.name
    assert "aligned words" not in text
    report = replace(report, words={"samples": 12345, "pairs": 3000, "pairs without": 300})
    console.print(details(report))
    assert "samples 12,345 · pairs 3,000 · pairs without 300" in console.export_text()


def test_the_plan_says_which_pairs_are_in_other_languages(tiny_file, tmp_path):
    lines = "".join(f"Where is the station {i}?\tWhere was the train {i}?\n" for i in range(9))
    text = corpus_file(tmp_path, 20, 10)
    (tmp_path / "train.tsv").write_text(f"eng\tfra\n{lines}", encoding="utf-8")
    sweep = read_sweep(tiny_file, assignments=[*text, "data.clean.language=count"])
    report = make_plan(sweep, samples=0)
    assert dict(summary(report, sweep, None))["language"] == "a: 9 not in fra; counted, and trained on"
    (words,) = about_strangers(sweep, report.counts)
    assert words == "source 'a': 9 not in fra of 9 pairs; check its columns' languages"
    left = {"a": {"pairs": 600, "no_overlap": 300, "dropped: swapped": 90}}  # half stand in a dev set
    (words,) = about_strangers(sweep, left)
    assert words.startswith("source 'a': 90 swapped of 300 pairs; check its columns' languages, or leave them out with")
    unjudged = read_sweep(tiny_file, assignments=text)
    assert "language" not in dict(summary(report, unjudged, None))
    (words,) = make_plan(unjudged, samples=0).warnings
    assert words.startswith("eng-fra: 9 of 9 pairs that were looked at have a text in another language; check the")
    folder, cluster = make_sweep(tmp_path, unjudged), Cluster(storage=str(tmp_path))
    progress, sync = SweepProgress(unjudged, folder), DriverSync(cluster, folder)
    SweepRun(unjudged, cluster, folder, progress, sync, StopSignal(), accept=False)._read(None)
    assert progress.messages == [f"warning: {words}"], "a driver says the same"
    exchanged = "".join(f"Où est donc la vieille gare {i} ?\tWhere is the old station {i}?\n" for i in range(9))
    (tmp_path / "train.tsv").write_text(f"eng\tfra\n{exchanged}", encoding="utf-8")
    words, *_ = make_plan(unjudged, samples=0).warnings
    assert words.endswith("in another language, 9 of them each in that of the other; exchange the columns")
    (tmp_path / "train.tsv").write_text(f"eng\tfra\n{lines}", encoding="utf-8")
    with pytest.raises(DataError, match=r"no pairs are left to train on; a: .*not in fra 9, language 0"):
        make_plan(read_sweep(tiny_file, assignments=[*text, "data.clean.language=drop"]))


@pytest.mark.parametrize("header", ["eng\tfra", "English\tfrançais", "en\tfr"])
def test_a_header_that_is_read_as_text_is_said(tiny_file, tmp_path, header):
    text = corpus_file(tmp_path, 20, 10)
    (tmp_path / "train.tsv").write_text(f"{header}\nThe house.\tLa maison.\n", encoding="utf-8")
    numbered = "data.train=[{name: a, path: train.tsv, header: false, columns: {eng: 0, fra: 1}}]"
    (words,) = about_headers(read_sweep(tiny_file, assignments=[*text, numbered]))
    assert words.startswith(f"source 'a': {tmp_path}/train.tsv:1 is read as text ({header.replace(chr(9), ', ')})")
    (tmp_path / "train.tsv").write_text("The house.\tLa maison.\n", encoding="utf-8")
    assert not list(about_headers(read_sweep(tiny_file, assignments=[*text, numbered])))
    counted = numbered.replace("header: false, ", "")
    with pytest.raises(DataError, match=r"no column '0'.*or with `header: false` they are numbered from 0"):
        make_plan(read_sweep(tiny_file, assignments=[*text, counted]))


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_a_student_from_scratch_has_about_the_weights_that_the_plan_says(pooling):
    student = Transformer(layers=2, width=64, heads=4, feed_forward=128, vocabulary=500, max_tokens=64, pooling=pooling)
    built = build_student(student, Vocabulary(500, 0), teacher_dim=None, seed=0)
    real = sum(parameter.numel() for parameter in built.parameters())
    assert student_parameters(student, Teacher()) == pytest.approx(real, rel=0.005)
    assert student_parameters(Transformer(model="some/model"), Teacher()) is None


def corpus_file(tmp_path, train, dev):
    """The tiny sweep's text, with these numbers of training rows and dev rows, and a dev set that a score can be of."""
    for name, rows in (("train", train), ("dev", dev)):
        lines = "".join(f"{name} water {i}\t{name} eau {i}\n" for i in range(rows))
        (tmp_path / f"{name}.tsv").write_text(f"eng\tfra\n{lines}", encoding="utf-8")
    columns = "columns: {eng: eng, fra: fra}"
    return [
        f"data.root={tmp_path}",
        f"data.train=[{{name: a, path: train.tsv, {columns}}}]",
        f"data.dev=[{{name: everyday, source: {{name: d, path: dev.tsv, {columns}}}}}]",
        "data.test=[]",
    ]


def test_the_plan_counts_the_steps_that_the_sampler_makes(tiny_file, tmp_path):
    text = corpus_file(tmp_path, 100, 10)
    sweep = read_sweep(
        tiny_file, assignments=[*text, "training.pairs=2000", "training.global_batch=1000000", "training.reports=1"]
    )
    report = make_plan(sweep)
    assert report.default.steps == 20
    (words,) = about_corpus(sweep, report.pairs, report.dev)
    assert words.startswith("training.global_batch 1,000,000 is more than the 100 pairs")
    again = read_sweep(tiny_file, assignments=[*text, "training.global_batch=100"])
    assert not list(about_corpus(again, report.pairs, report.dev))


@pytest.mark.slow
def test_pairs_that_a_text_can_never_give_are_said_or_refused(tiny_file, tmp_path):
    text = corpus_file(tmp_path, 100, 10)
    sweep = read_sweep(tiny_file, assignments=[*text, "training.pairs=1000000"])
    report = make_plan(sweep, samples=0)
    (words,) = about_corpus(sweep, report.pairs, report.dev)
    assert words.startswith("training.pairs 1,000,000 is each of the 100 pairs 10,000 times")


def test_a_dev_set_of_one_row_is_refused_and_a_subset_of_one_row_said(tiny_file, tmp_path):
    sweep = read_sweep(tiny_file, assignments=corpus_file(tmp_path, 100, 1))
    with pytest.raises(DataError, match="dev set 'everyday' has one row, and a score over one row says nothing"):
        make_plan(sweep)
    with pytest.raises(DataError, match="dev set 'everyday' has one row"):
        read_corpus(sweep, tmp_path / "storage")
    assert [words[:25] for words in about_corpus(sweep, {"eng-fra": 900}, {"a/fra-eng": 1, "a/deu-eng": 2})] == [
        "a/fra-eng: one row, whose"
    ]


def test_a_broken_search_set_is_one_line_of_the_plan(tiny_file, tmp_path):
    (tmp_path / "set" / "qrels").mkdir(parents=True)
    (tmp_path / "set" / "corpus.jsonl").write_text('{"_id": "d", "text": "Water."}\n')
    (tmp_path / "set" / "queries.jsonl").write_text('{"_id": "q", "text": "eau"}\n{"_id": "r", "text": "mer"}\n')
    qrels = tmp_path / "set" / "qrels" / "test.tsv"
    text = corpus_file(tmp_path, 100, 10)
    text[2] = "data.dev=[{name: s, task: retrieval, language: fra, source: {name: set, format: beir, path: set}}]"
    sweep = read_sweep(tiny_file, assignments=[*text, "objectives=[{metric: dev/s/ndcg_at_10}]"])
    qrels.write_text("query-id\tcorpus-id\tscore\nq\td\t1\nr\td\t1\n")
    assert make_plan(sweep).dev == {"s/fra": 2}
    qrels.write_text("query-id\tcorpus-id\tscore\nq\td\t1\nr\te\t1\n")
    words = r"test\.tsv:3: unknown id: .*corpus\.jsonl has no `_id` 'e'; correct it, or"
    with pytest.raises(DataError, match=words) as e:
        make_plan(sweep)
    assert "\n" not in str(e.value)


def test_a_corpus_of_one_pair_has_no_negatives_and_is_refused(tiny_file, tmp_path):
    sweep = read_sweep(tiny_file, assignments=corpus_file(tmp_path, 1, 10))
    for reads in (make_plan, lambda sweep: read_corpus(sweep, tmp_path / "storage")):
        with pytest.raises(DataError, match="no batch of it has a negative; give data"):
            reads(sweep)
