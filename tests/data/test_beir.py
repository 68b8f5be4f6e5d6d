"""Search sets in BEIR's layout and of a bitext, from files to subsets, and what is refused."""

import bz2
import gzip
import json
import lzma
import re
from dataclasses import replace

import pandas as pd
import pytest

from any_source import any_source
from babeltune.data.corpus import build_corpus
from babeltune.data.eval_sets import read_eval
from babeltune.data.prepared import tasks_from
from babeltune.errors import DataError
from babeltune.files import plain
from babeltune.planning.availability import Hub
from babeltune.planning.availability import data_problems as unreachable
from babeltune.planning.goals import dev_metrics
from babeltune.planning.sweep_file import read_sweep
from babeltune.schema.records import Data, Retrieval, TsvSource
from corpora import read_tasks
from refusals import refusals

ENG = Data(train=(), anchor_priority=("eng",))
DOCUMENTS = (
    {"_id": "d1", "title": "Cats", "text": "They sleep a lot.", "language": "eng"},
    {"_id": "d10", "title": "", "text": "Les chiens courent.", "language": "fr"},
    {"_id": "d2", "text": "Birds sing.", "language": "eng"},
)
QUERIES = (
    {"_id": "q1", "text": "who sleeps", "language": "eng"},
    {"_id": "q2", "text": "who is never judged", "language": "eng"},
    {"_id": "q3", "text": "qui court", "language": "fra"},
    {"_id": "q4", "text": "who sings", "language": "en"},
)
TWO = {"eng": "eng", "fra": "fra"}
JUDGED = ("q1\td1\t2", "q1\td2\t0", "q3\td10\t1", "q4\td2\t1")


def lines(rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def folder(root, corpus=DOCUMENTS, queries=QUERIES, judged=JUDGED, split="test", name="set"):
    (root / name / "qrels").mkdir(parents=True, exist_ok=True)
    (root / name / "corpus.jsonl").write_text(lines(corpus), encoding="utf-8")
    (root / name / "queries.jsonl").write_text(lines(queries), encoding="utf-8")
    (root / name / "qrels" / f"{split}.tsv").write_text(lines(["query-id\tcorpus-id\tscore", *judged]))
    return root


def task(language="eng", source=None, **more):
    source = {"name": "set", "format": "beir", "path": "set", **(source or {})}
    return Retrieval(name="search", language=language, source=any_source(**source), **more)


def read(root, retrieval):
    return read_tasks([retrieval], root, ENG)


def bitext(root, rows, languages="eng fra", **more):
    codes = languages.split()
    text = "".join("\t".join(row) + "\n" for row in [codes, *rows])
    (root / "bitext.tsv").write_text(text, encoding="utf-8")
    source = TsvSource(name="bitext", path="bitext.tsv", columns={code: code for code in codes})
    return Retrieval(name="search", source=source, **more)


def relevant(search_set):
    grades = search_set.scores or (1,) * len(search_set.gold)
    return {
        (search_set.left[i], search_set.right[j])
        for (i, j), grade in zip(search_set.gold, grades, strict=True)
        if grade > 0
    }


def test_a_folder_becomes_judged_queries_and_documents_with_their_titles(tmp_path):
    (search_set,) = read(folder(tmp_path), task())
    assert search_set.left == ("who sleeps", "qui court", "who sings"), "those that are judged, in the file's order"
    assert search_set.right == ("Birds sing.", "Les chiens courent.", "Cats They sleep a lot."), "by descending id"
    assert dict(zip(search_set.gold, search_set.scores, strict=True)) == {(0, 2): 2, (0, 0): 0, (1, 1): 1, (2, 0): 1}
    assert (search_set.subset, search_set.k, search_set.mixed, search_set.own_documents) == ("eng", 100, False, ())
    assert tasks_from(json.loads(json.dumps([plain(search_set)]))) == (search_set,)


CARD = """---
configs:
- config_name: default
  data_files:
  - {split: test, path: qrels/test.parquet}
  - {split: dev, path: qrels/dev.parquet}
- config_name: corpus
  data_files:
  - {split: corpus, path: corpus.parquet}
- config_name: queries
  data_files:
  - {split: queries, path: queries.parquet}
---
"""


def data_set(root, judged=JUDGED, queries=QUERIES, id_name="_id"):
    """The same set as mteb keeps it on the hub; grades are floats, as some of them have."""
    place = root / "hub"
    (place / "qrels").mkdir(parents=True, exist_ok=True)
    (place / "README.md").write_text(CARD, encoding="utf-8")
    for name, rows in (("corpus", DOCUMENTS), ("queries", queries)):
        pd.DataFrame(
            [{id_name if key == "_id" else key: value for key, value in row.items()} for row in rows]
        ).to_parquet(place / f"{name}.parquet")
    table = pd.DataFrame([row.split("\t") for row in judged], columns=["query-id", "corpus-id", "score"])
    for split, rows in (("test", table), ("dev", table[:1])):
        rows.astype({"score": float}).to_parquet(place / "qrels" / f"{split}.parquet")
    return root


HUB = {"path": None, "dataset": "hub"}


@pytest.mark.parametrize("id_name", ["_id", "id"])
def test_a_data_set_of_the_hub_is_the_set_that_its_files_are(tmp_path, id_name):
    languages = {"language": None, "languages": ("eng", "fra")}
    expected = read(folder(tmp_path), task(**languages))
    sets = read(data_set(tmp_path, id_name=id_name), task(source=HUB, **languages))
    assert sets == expected
    (dev,) = read(tmp_path, task(source=HUB, qrels="dev"))
    assert dev.left == ("who sleeps",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"judged": ("q1\td7\t1",)}, r"hub\[qrels\]:1: unknown id: hub\[corpus\] has no `_id` 'd7'"),
        ({"judged": ("q1\td1\t0",)}, r"hub\[qrels\] names no relevant document"),
        ({"judged": ("q1\td1\t0.5",)}, r"hub\[qrels\]:1: not a grade: 'score' is '0.5'"),
        ({"queries": ({"_id": "q1", "text": " "},)}, r"hub\[queries\]:1: empty side: nothing in 'text'"),
        (
            {"queries": ({"_id": "q1", "words": "who"},)},
            r"data set 'hub\[queries\]': no column 'text'; columns: _id, words",
        ),
        ({"queries": ({"name": "q1", "text": "who"},)}, r"hub\[queries\]:1: empty side: nothing in '_id'"),
    ],
)
def test_what_a_data_set_of_the_hub_lacks_is_named(tmp_path, fields, words):
    with pytest.raises(DataError, match=words):
        read(data_set(tmp_path, **fields), task(source=HUB))


def test_a_split_that_a_data_set_does_not_have_is_named(tmp_path):
    with pytest.raises(DataError, match=r"data set 'hub' of source 'set' cannot be loaded: Unknown split \"train\""):
        read(data_set(tmp_path), task(source=HUB, qrels="train"))


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_packed_files_are_the_same_set_and_another_judgement_is_another_digest(tmp_path, ending, compress):
    (before,) = read_eval([task()], folder(tmp_path))
    for path in [*(tmp_path / "set").glob("*.jsonl"), tmp_path / "set" / "qrels" / "test.tsv"]:
        path.with_name(f"{path.name}.{ending}").write_bytes(compress(path.read_bytes()))
        path.unlink()
    (packed,) = read_eval([task()], tmp_path)
    assert (packed.columns, packed.gold, packed.digest) == (before.columns, before.gold, before.digest)
    (other,) = read_eval([task(source={"path": "other"})], folder(tmp_path, judged=JUDGED[:3], name="other"))
    assert other.digest != before.digest


def test_queries_of_each_language_are_a_subset_over_all_documents(tmp_path):
    eng, fra = read(folder(tmp_path), task(language=None, languages=("eng", "fra")))
    assert (eng.subset, eng.left, fra.left) == ("eng", ("who sleeps", "who sings"), ("qui court",))
    assert eng.right == fra.right
    assert eng.right_languages == ("eng", "fra", "eng"), "other spellings of one language are one"
    assert relevant(eng) == {("who sleeps", "Cats They sleep a lot."), ("who sings", "Birds sing.")}
    assert relevant(fra) == {("qui court", "Les chiens courent.")}
    assert (eng.mixed, fra.mixed) == (True, True)
    with pytest.raises(DataError, match=r"no judged query is in rus by its 'language'.*there are: eng, fra"):
        read(folder(tmp_path, judged=JUDGED[:3]), task(language=None, languages=("eng", "fra", "rus")))
    unjudged = [row.replace("q3\td10\t1", "q3\td10\t0") for row in JUDGED]
    with pytest.raises(DataError, match="no query in fra has a relevant document"):
        read(
            folder(tmp_path, judged=unjudged, name="zeros"),
            task(language=None, languages=("eng", "fra"), source={"path": "zeros"}),
        )
    with pytest.raises(DataError, match=r"queries.jsonl:3: unknown language: 'fra' of 'language'; .* has eng"):
        read(tmp_path, task(language=None, languages=("eng",)))


def test_a_line_without_its_language_names_how_languages_are_given(tmp_path):
    folder(tmp_path, queries=[{"_id": "q1", "text": "who sleeps"}, *QUERIES[1:]])
    with pytest.raises(DataError, match=r"queries.jsonl:1: missing column: no key 'language'") as caught:
        read(tmp_path, task(language=None, languages=("eng", "fra")))
    assert "in the key that `language_field` names" in str(caught.value)
    assert "give `language` and no `languages`" in str(caught.value)


def test_the_limit_is_of_queries_and_never_of_documents(tmp_path):
    (search_set,) = read(folder(tmp_path), task(limit=2))
    assert (len(search_set.left), len(search_set.right), {query for query, _ in search_set.gold}) == (2, 3, {0, 1})


def test_a_document_of_the_querys_own_id_can_be_left_out(tmp_path):
    queries = [{"_id": "d2", "text": "birds", "language": "eng"}, *QUERIES]
    folder(tmp_path, queries=queries, judged=[*JUDGED, "d2\td1\t1"])
    (search_set,) = read(tmp_path, task(same_id="drop"))
    assert (search_set.left, search_set.own_documents) == (
        ("birds", "who sleeps", "qui court", "who sings"),
        (0, -1, -1, -1),
    )
    assert search_set.right[0] == "Birds sing."


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"judged": ["q1\td1\t1", "q9\td1\t1"]}, r"test.tsv:3: unknown id: .*queries.jsonl has no `_id` 'q9'"),
        ({"judged": ["q1\td99\t1"]}, r"test.tsv:2: unknown id: .*corpus.jsonl has no `_id` 'd99'"),
        ({"judged": ["q1\td1\tgood"]}, r"test.tsv:2: not a grade: 'score' is 'good'"),
        ({"judged": ["q1\td1\t1", "q1\td1\t0"]}, r"test.tsv:3: duplicate id: .*judge each pair once"),
        ({"judged": ["q1\td1\t0"]}, r"'search': .*test.tsv names no relevant document of any query"),
        ({"judged": []}, r"test.tsv.* has no rows"),
        ({"corpus": []}, r"corpus.jsonl.* has no rows"),
        ({"queries": []}, r"queries.jsonl.* has no rows"),
        ({"corpus": [*DOCUMENTS, "no JSON"]}, r"corpus.jsonl:4: not JSON: 'no JSON'"),
        ({"corpus": [*DOCUMENTS, {"text": "Anonymous"}]}, r"corpus.jsonl:4: missing column: no key '_id'"),
        ({"corpus": [*DOCUMENTS, {"_id": "d3"}]}, r"corpus.jsonl:4: missing column: no key 'text'"),
        ({"corpus": [*DOCUMENTS, {"_id": "d3", "text": " "}]}, r"corpus.jsonl:4: empty side: nothing in 'text'"),
        ({"corpus": [*DOCUMENTS, {"_id": "d3", "text": 7}]}, r"corpus.jsonl:4: not text: 'text' is '7'"),
        ({"corpus": [*DOCUMENTS, {"_id": "d1", "text": "x"}]}, r"corpus.jsonl:4: duplicate id: 'd1' names an earlier"),
        ({"queries": [*QUERIES, QUERIES[0]]}, r"queries.jsonl:5: duplicate id: 'q1'"),
    ],
)
def test_a_broken_set_is_one_line(tmp_path, changed, words):
    with pytest.raises(DataError, match=words) as caught:
        read(folder(tmp_path, **changed), task())
    assert "\n" not in str(caught.value)


def test_broken_lines_are_counted_where_the_source_drops_them(tmp_path):
    corpus = [*DOCUMENTS, "no JSON", {"text": "Anonymous"}, {"_id": "d1", "text": "again"}]
    folder(tmp_path, corpus=corpus, judged=[*JUDGED, "q1\td99\t1"])
    (search_set,) = read_eval([task(source={"on_error": "drop", "max_dropped": 0.5})], tmp_path)
    assert search_set.dropped == {"not JSON": 1, "missing column": 1, "duplicate id": 1, "unknown id": 1}
    assert len(search_set.columns["documents"]) == 3
    with pytest.raises(DataError, match=r"3 of 6 rows of .*corpus.jsonl are broken .* more than max_dropped 0.05"):
        read_eval([task(source={"on_error": "drop"})], tmp_path)


def test_each_text_of_a_bitext_is_one_query_or_document_and_equal_texts_are_relevant(tmp_path):
    rows = [("Hi", "Salut"), ("Hi", "Coucou"), ("Hello", "Salut"), ("Bye", "Adieu")]
    (search_set,) = read(tmp_path, bitext(tmp_path, rows))
    assert (search_set.subset, search_set.left, search_set.right) == (
        "fra-eng",
        ("Salut", "Coucou", "Adieu"),
        ("Hi", "Hello", "Bye"),
    )
    assert relevant(search_set) == {("Salut", "Hi"), ("Salut", "Hello"), ("Coucou", "Hi"), ("Adieu", "Bye")}
    assert (search_set.left_languages, search_set.right_languages, search_set.mixed, search_set.own_documents) == (
        ("fra",),
        ("eng",),
        False,
        (),
    )


def test_a_mixed_corpus_holds_all_languages_and_a_query_never_finds_itself(tmp_path):
    rows = [("Hi", "Salut", "Hallo"), ("Taxi", "Taxi", "Taxi")]
    tasks = read(tmp_path, bitext(tmp_path, rows, "eng fra deu", corpus="mixed"))
    assert [search_set.subset for search_set in tasks] == ["eng", "fra", "deu"]
    _, fra, _ = tasks
    assert fra.right == ("Hi", "Taxi", "Salut", "Taxi", "Hallo", "Taxi")
    assert fra.right_languages == ("eng", "eng", "fra", "fra", "deu", "deu")
    assert fra.gold == ((0, 0), (1, 1), (0, 4), (1, 5)), "the translations into the other languages"
    assert fra.own_documents == (2, 3)


def test_queries_and_documents_are_kept_out_of_training_and_near_ones_are_counted(tmp_path):
    rows = [
        ("eng", "fra"),
        ("WHO SLEEPS!", "Qui dort ?"),
        ("Some dogs run.", "Les chiens courent"),
        ("Cats: they sleep a lot", "Les chats dorment"),
        ("cats they sleep a lot now", "Les chats dorment maintenant."),
        ("who is never judged", "Qui n'est pas jugé."),
        ("Kept.", "Gardé."),
    ]
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    train = TsvSource(name="s", path="train.tsv", columns={"eng": "eng", "fra": "fra"})
    corpus = build_corpus(Data(train=(train,), dev=(task(),), overlap="near"), folder(tmp_path), seed=0)
    texts = {corpus.texts[number] for number in corpus.pairs[:, 0]}
    assert texts == {"who is never judged", "Kept."}, "a query that is not judged is not read"
    assert corpus.overlap["s"]["dev/search"] >= 3
    assert corpus.digests["dev/search"]
    (search_set,) = corpus.tasks
    assert [corpus.languages[number] for number in search_set.left] == ["eng"] * 3


def test_dev_and_test_queries_over_one_corpus_do_not_spoil_the_test(tmp_path):
    (tmp_path / "train.tsv").write_text("eng\tfra\nKept.\tGardé.\n", encoding="utf-8")
    train = TsvSource(name="s", path="train.tsv", columns={"eng": "eng", "fra": "fra"})
    folder(tmp_path, judged=["q1\td1\t1"], split="dev")
    folder(tmp_path, judged=["q3\td10\t1", "q4\td2\t1"])

    def overlap(dev):
        data = Data(train=(train,), dev=(task(qrels=dev),), test=(task(),))
        return build_corpus(data, tmp_path, seed=0).contamination.seen

    assert overlap("dev") == {}, "documents are shared, queries are not"
    folder(tmp_path, judged=["q1\td1\t1", "q3\td10\t1"], split="both")
    assert overlap("both")["test/search"] == {"texts": 2, "dev": 1, "share": 0.5}


def search(**changes):
    """A task that searches a folder, as a sweep file has it."""
    source = {"name": "set", "format": "beir", "path": "set", **changes.pop("source", {})}
    fields = {"name": "search", "task": "retrieval", "language": "eng", "source": source, **changes}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("retrieval", "words"),
    [
        ({"name": "x", "task": "retrieval"}, "dev.0.source: this key is missing"),
        (search(language=None), "needs `language`, if all texts are in one, or `languages`.*it has neither"),
        (search(languages=["eng"]), "it has both"),
        (search(language=None, languages=["eng", "en"]), "en and eng are one language"),
        (search(k=10), "dev.0.k: 10 is for task 'bitext' or 'mining'"),
        (search(same_id="drop", source={"format": "tsv", "path": "a", "columns": TWO}), "same_id: is f"),
        (search(corpus="mixed"), "dev.0.corpus: is for a bitext"),
        (search(cutoff=0), "dev.0.cutoff: 0 must be from 1 to 10,000"),
        (search(qrels="../test"), "dev.0.qrels"),
        (search(right_model="teacher"), "dev.0.right_model: 'teacher' is for task 'bitext' or 'mining'"),
        (search(source={"columns": {"eng": "eng"}}), "columns: a mapping with 'eng' is for .* and this one is 'beir'"),
        (search(source={"path": "../set"}), "leaves data.root"),
        ({"name": "x", "source": {"name": "s", "format": "beir", "path": "set"}},
         "'beir' is for tasks of kind retrieval"),
        ({"name": "x", "task": "sts", "path": "a", "language": "eng", "cutoff": 5},
         "dev.0.cutoff: 5 is for task 'retr"),
    ],
)  # fmt: skip
def test_what_a_search_task_may_say_is_checked(retrieval, words):
    problems = refusals(dev=[retrieval])
    assert any(re.search(words, line) for line in problems), problems


def test_a_set_that_is_not_there_is_found_before_anything_starts(tiny_file, tmp_path):
    folder(tmp_path, split="dev")

    def unread(retrieval):
        sweep = read_sweep(tiny_file)
        sweep = replace(sweep, data=replace(sweep.data, train=(), dev=(retrieval,), test=()))
        return [words for key, words in unreachable(sweep, tmp_path, Hub({"HF_HUB_OFFLINE": "1"})) if "dev" in key]

    assert unread(task(qrels="dev")) == []
    assert "allowed for `qrels`: dev" in unread(task())[0]
    assert "is no folder" in unread(task(source={"path": "nowhere"}))[0]
    (tmp_path / "set" / "queries.jsonl").unlink()
    assert "holds no 'queries.jsonl'" in unread(task(qrels="dev"))[0]


def test_metrics_are_named_by_the_cutoff_and_each_subset(tiny_file, tmp_path):
    sweep = read_sweep(tiny_file)

    def metrics_of(retrieval):
        return dev_metrics(replace(sweep, data=replace(sweep.data, dev=(retrieval,), split=None)))

    names = ("ndcg_at_10", "mrr_at_10", "recall_at_20")
    means = tuple(f"dev/search/{name}" for name in names)
    of = {code: tuple(f"dev/search/{code}/{name}" for name in names) for code in ("eng", "fra", "fra-eng")}
    assert metrics_of(task(cutoff=20)) == (*means, *of["eng"])
    assert metrics_of(task(language=None, languages=("eng", "fra"), cutoff=20)) == (*means, *of["eng"], *of["fra"])
    rows = [("Hi", "Salut")]
    assert metrics_of(bitext(tmp_path, rows, cutoff=20)) == (*means, *of["fra-eng"])
    assert metrics_of(bitext(tmp_path, rows, cutoff=20, corpus="mixed")) == (*means, *of["eng"], *of["fra"])
