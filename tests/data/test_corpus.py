"""The corpus holds what its sources say, once, and shares no sentence with what it is measured on."""

import contextlib
import gc
import gzip
import hashlib
import itertools
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_source import any_source
from babeltune.data import arrays, texts
from babeltune.data.contamination import find_near_anew
from babeltune.data.corpus import Corpus, build_corpus
from babeltune.data.prepare import Requirements, asked_of_teacher
from babeltune.data.split import components
from babeltune.data.store import digest_of_texts
from babeltune.data.text_keys import sentence_keys, text_key
from babeltune.data.translation import StandIn
from babeltune.errors import DataError
from babeltune.planning.availability import data_files
from babeltune.planning.sweep_file import data_root, read_data, read_sweep
from babeltune.schema.records import (
    Bitext,
    Clean,
    Clustering,
    Data,
    PivotSource,
    Source,
    Split,
    Sts,
    TranslateSource,
    TsvSource,
)
from babeltune.schema.text import Translation
from corpora import DATA, needs_data, read_tasks
from small_parts import tiny_parts

REPOSITORY = Path(__file__).resolve().parents[2]
Table = list[tuple[str, ...]]
MOST_SPILLED = 6.0  # times the bytes of the corpus's files; docs/limits.md has what was measured


def source(root: Path, name: str, languages: str, rows: Table, **settings: object) -> Source:
    codes = languages.split()
    lines = ["\t".join(["id", *codes]), *("\t".join([str(i), *row]) for i, row in enumerate(rows))]
    (root / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = {code: code for code in codes}
    return any_source(**{"name": name, "path": f"{name}.tsv", "id": "id", "columns": columns, **settings})


def numbered(prefix: str, count: int) -> Table:
    return [(f"{prefix} English {i}", f"{prefix} français {i}") for i in range(count)]


def pairs(corpus: Corpus, group: str | None = None) -> list[tuple[str, str]]:
    chosen = corpus.pairs if group is None else corpus.pairs[corpus.pair_groups == corpus.groups.index(group)]
    return [(corpus.texts[a], corpus.texts[b]) for a, b in chosen]


def test_text_of_one_language_is_each_text_with_itself_and_shares_none_with_a_set(tmp_path):
    both = source(tmp_path, "both", "eng fra", numbered("both", 12))
    alone = source(tmp_path, "alone", "fra", [*((f"seul français {i}",) for i in range(30)), ("dev français 0",)])
    dev = Bitext(name="dev", source=source(tmp_path, "dev", "eng fra", numbered("dev", 2)))
    corpus = build_corpus(Data(train=(both, alone), dev=(dev,), split=Split(pairs=2)), tmp_path, 0)
    assert corpus.groups == ("eng-fra", "fra-fra")
    assert sorted(pairs(corpus, "fra-fra")) == sorted((f"seul français {i}",) * 2 for i in range(30))
    rows = corpus.pairs[corpus.pair_groups == 1]
    assert (rows[:, 0] == rows[:, 1]).all()
    assert not sides(corpus, "heldout") & {f"seul français {i}" for i in range(30)}


def sides(corpus: Corpus, name: str) -> set[str]:
    ids = itertools.chain.from_iterable((*t.left, *t.right) for t in corpus.tasks if t.name == name)
    return {corpus.texts[i] for i in ids}


def build(root: Path, *train: Source, seed: int = 0, **settings: object) -> Corpus:
    return build_corpus(Data(train=train, **settings), root, seed)


def test_reading_counts_the_bytes_of_the_files_and_cleaning_the_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("babeltune.data.read_progress.BUFFER", 1000)
    plain_text, packed, table = (source(tmp_path, name, "fra eng", numbered(name, 300)) for name in "abc")
    (tmp_path / "b.tsv").write_bytes(gzip.compress((tmp_path / "b.tsv").read_bytes()))
    rows = [dict(zip(("id", "fra", "eng"), row, strict=True)) for row in zip("12", "ab", "cd", strict=True)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    table = any_source(name=table.name, format="parquet", path="c.parquet", id="id", columns=table.columns)
    dev = Bitext(name="d", source=source(tmp_path, "d", "fra eng", [("Merci.", "Thanks.")]))
    noticed: dict[str, list[tuple[int, int]]] = {}
    data = Data(train=(plain_text, packed, table), dev=(dev,))
    build_corpus(data, tmp_path, 0, progress=lambda stage, *far: noticed.setdefault(stage, []).append(far))
    assert [*noticed] == ["reading the corpus", "cleaning the corpus"]
    size = sum((tmp_path / name).stat().st_size for name in ("a.tsv", "b.tsv", "c.parquet", "d.tsv"))
    read, cleaned = noticed.values()
    assert read[0] == (0, size)
    assert read[-1] == (size, size)
    assert [done for done, _ in read] == sorted(done for done, _ in read)
    assert len({done for done, _ in read}) > 10, "a large file counts while it is read"
    assert cleaned == [(0, 602), (300, 602), (600, 602), (602, 602)]


# --- shape ---------------------------------------------------------------------------------------------------------


def test_pairs_are_numbered_by_first_appearance_with_the_anchor_first(tmp_path):
    first = source(tmp_path, "first", "fra eng", [("Oui.", "Yes."), ("Non.", "No.")], weight=2)
    second = source(tmp_path, "second", "kor eng", [("네.", "Yes.")])
    dev = Bitext(name="d", source=source(tmp_path, "d", "fra eng", [("Merci.", "Thanks.")]))
    corpus = build(tmp_path, first, second, dev=(dev,))
    assert corpus.texts == ["Yes.", "No.", "Oui.", "Non.", "네.", "Merci.", "Thanks."]
    assert corpus.languages == ["eng", "eng", "fra", "fra", "kor", "fra", "eng"]
    assert corpus.pairs.tolist() == [[0, 2], [1, 3], [0, 4]]
    assert corpus.groups == ("eng-fra", "eng-kor")
    assert corpus.pair_groups.tolist() == [0, 0, 1]
    assert corpus.weights.tolist() == [2, 2, 1]
    dtypes = [a.dtype for a in (corpus.pairs, corpus.pair_groups, corpus.weights)]
    assert dtypes == [np.int32, np.int16, np.float32]
    (task,) = corpus.tasks
    assert (task.name, task.kind, task.subset, task.left, task.right) == ("d", "bitext", "fra-eng", (5,), (6,))
    assert set(corpus.digests) == {"first", "second", "dev/d"}


def test_a_text_that_two_languages_share_has_two_numbers(tmp_path):
    many = source(tmp_path, "s", "eng fra spa", [("No way", "Bien non", "No"), ("No", "Non", "Que no")])
    corpus = build(tmp_path, many)
    assert sorted(zip(corpus.languages, corpus.texts, strict=True)).count(("spa", "No")) == 1
    assert ("eng", "No") in zip(corpus.languages, corpus.texts, strict=True)


def test_a_source_of_several_languages_gives_the_pairs_that_it_names(tmp_path):
    rows = [("Yes", "Oui", "네")]
    all_pairs = ("eng-fra", "eng-kor", "fra-kor")
    for options, groups in (
        ({}, all_pairs[:2]),
        ({"pairs": "all"}, all_pairs),
        ({"pairs": ("kor-fra",)}, all_pairs[2:]),
    ):
        assert build(tmp_path, source(tmp_path, "s", "eng fra kor", rows, **options)).groups == groups


def test_pairs_without_english_come_through_a_pivot_wherever_it_stands(tmp_path):
    fra = source(tmp_path, "a", "fra eng", [("Oui", "Yes"), ("Non", "No")], train=False)
    kor = source(tmp_path, "b", "kor eng", [("아니", "no!")])
    pivot = PivotSource(name="p", format="pivot", left="a", right="b", join="eng", pairs=("fra-kor",))
    for order in itertools.permutations([fra, kor, pivot]):
        corpus = build(tmp_path, *order)
        assert pairs(corpus, "fra-kor") == [("Non", "아니")]
        assert set(corpus.groups) == {"fra-kor", "eng-kor"}
        assert set(corpus.counts) == {"b", "p"}


def test_the_corpus_is_the_same_in_every_process_with_the_same_seed(tmp_path):
    rows = source(tmp_path, "s", "eng fra", numbered("x", 100), cap=20)
    first, second, other = (build(tmp_path, rows, seed=seed) for seed in (3, 3, 4))
    assert pairs(first) == pairs(second) != pairs(other)


# --- cleaning ------------------------------------------------------------------------------------------------------


def test_every_step_is_counted(tmp_path):
    rows = [
        ("Good morning.", "Bonjour."),
        ("Good morning!", "BONJOUR"),  # a repetition
        ("Tom.", "TOM"),  # both sides say the same
        ("long " * 10, "longue"),
        ("In the dev set.", "Unique."),
        *numbered("n", 5),
    ]
    train = source(tmp_path, "s", "eng fra", rows, cap=4)
    train = replace(train, on_error="drop", max_dropped=0.1)
    with (tmp_path / "s.tsv").open("a") as file:
        file.write("broken\n")
    dev = Bitext(name="d", source=source(tmp_path, "d", "eng fra", [("in the DEV set", "Autre.")]))
    corpus = build(tmp_path, train, dev=(dev,), max_characters=40)
    steps = {"dropped: column count": 1, "rows": 10, "pairs": 10, "max_characters": 9, "sides_differ": 8, "distinct": 7}
    assert corpus.counts == {"s": {**steps, "no_overlap": 6, "cap": 4, "heldout": 0, "train": 4}}
    assert corpus.overlap == {"s": {"dev/d": 1}}
    assert len(corpus.pairs) == 4


def test_the_first_source_wins_a_repeated_pair_of_the_same_languages_only(tmp_path):
    first = source(tmp_path, "a", "eng fra", [("Yes", "Oui")])
    second = source(tmp_path, "b", "fra eng", [("oui!", "YES"), ("Ouais", "Yes")])
    third = source(tmp_path, "c", "eng spa", [("Yes", "Oui")])
    corpus = build(tmp_path, first, second, third)
    assert pairs(corpus) == [("Yes", "Oui"), ("Yes", "Ouais"), ("Yes", "Oui")]
    assert [corpus.counts[name]["distinct"] for name in "abc"] == [1, 1, 1]


def test_a_cap_holds_per_language_pair_and_its_draw_ignores_other_sources(tmp_path):
    rows = [(f"English {i}", f"français {i}", f"한국어 {i}") for i in range(60)]
    capped = source(tmp_path, "s", "eng fra kor", rows, cap=10)
    alone = build(tmp_path, capped)
    assert [len(pairs(alone, group)) for group in alone.groups] == [10, 10]
    assert [a for a, _ in pairs(alone, "eng-fra")] != [a for a, _ in pairs(alone, "eng-kor")]
    beside = build(tmp_path, source(tmp_path, "t", "eng fra", numbered("t", 30)), capped)
    assert set(pairs(alone, "eng-kor")) == set(pairs(beside, "eng-kor"))
    drawn = set(pairs(alone, "eng-fra"))
    shorter = build(tmp_path, source(tmp_path, "s", "eng fra kor", [r for r in rows if r[:2] != min(drawn)], cap=10))
    assert len(drawn - set(pairs(shorter, "eng-fra"))) == 1, "one row less must not change the rest of the draw"


def test_an_empty_corpus_is_an_error_that_says_which_step_removed_what(tmp_path):
    train = source(tmp_path, "s", "eng fra", [("Yes", "Oui"), ("Tom", "Tom")])
    dev = Bitext(name="d", source=source(tmp_path, "d", "eng fra", [("Yes", "Si")]))
    for split in (None, Split(pairs=5)):
        with pytest.raises(DataError, match=r"no pairs are left to train on; s: .*sides_differ 1.*no_overlap 0"):
            build(tmp_path, train, dev=(dev,), split=split)


TEXTS = st.sampled_from(["Yes", "yes!", "ＹＥＳ", "No", "no .", "Tom", "A", "a?", "が", "が", "...", "?"])


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_repeating_rows_and_sources_adds_nothing(rows, times):
    with TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            once = build(root, source(root, "a", "eng fra", rows))
        except DataError:
            assert all(text_key(a) == text_key(b) for a, b in rows)
            return
        turned = source(root, "b", "fra eng", [(b, a) for a, b in rows])
        again = build(root, source(root, "a", "eng fra", rows * times), turned)
    assert pairs(again) == pairs(once)
    keys = [(text_key(a), text_key(b)) for a, b in pairs(once)]
    different = {(text_key(a), text_key(b)) for a, b in rows if text_key(a) != text_key(b)}
    assert sorted(set(keys)) == sorted(keys) == sorted(different)


# --- overlap (D35) -------------------------------------------------------------------------------------------------


@pytest.mark.trap(35)
@pytest.mark.parametrize(("kind", "place"), [("dev", "eng"), ("dev", "fra"), ("test", "eng"), ("test", "fra")])
def test_a_training_pair_goes_when_either_side_is_in_a_dev_or_test_set(tmp_path, kind, place):
    row = {"eng": ("IS it  sealed", "Autre chose."), "fra": ("Something else.", "est-ce scellé")}[place]
    train = source(tmp_path, "s", "eng fra", [row, ("Kept.", "Gardé.")])
    task = Bitext(name="t", source=source(tmp_path, "t", "fra eng", [("Est-ce scellé ?", "Is it sealed?")]))
    corpus = build(tmp_path, train, **{kind: (task,)})
    assert pairs(corpus) == [("Kept.", "Gardé.")]
    assert corpus.overlap == {"s": {f"{kind}/t": 1}}


@pytest.mark.trap(35)
def test_english_as_the_second_language_is_filtered_too(tmp_path):
    """METHODS D35: neither the order of columns nor the anchor priority decides which side is compared."""
    train = source(tmp_path, "s", "fra eng", [("Autre.", "is it sealed"), ("Gardé.", "Kept.")])
    test = Bitext(name="t", source=source(tmp_path, "t", "kor eng", [("봉인되었나요?", "Is it sealed?")]))
    corpus = build(tmp_path, train, test=(test,), anchor_priority=("fra", "eng"))
    assert corpus.groups == ("fra-eng",)
    assert pairs(corpus) == [("Gardé.", "Kept.")]


@pytest.mark.trap(35)
def test_the_english_through_which_a_pivot_joined_is_filtered_in_its_own_pairs(tmp_path):
    a = source(tmp_path, "a", "fra eng", [("Oui", "Yes"), ("Non", "No")], train=False)
    b = source(tmp_path, "b", "kor eng", [("네", "Yes"), ("아니", "No")], train=False)
    pivot = PivotSource(name="p", format="pivot", left="a", right="b", join="eng", pairs="all")
    test = Bitext(name="t", source=source(tmp_path, "t", "spa eng", [("Sí", "Yes")]))
    corpus = build(tmp_path, a, b, pivot, test=(test,))
    assert pairs(corpus, "eng-fra") == [("No", "Non")]
    assert pairs(corpus, "eng-kor") == [("No", "아니")]
    assert pairs(corpus, "fra-kor") == [("Non", "아니")], "its English is sealed"


@pytest.mark.trap(35)
def test_sentences_of_graded_pairs_and_of_rows_beyond_a_limit_are_sealed_too(tmp_path):
    (tmp_path / "sts.tsv").write_text("sentence1\tsentence2\tscore\nFirst one.\tSecond one.\t3\n")
    sts = Sts(name="sts", path="sts.tsv", language="eng")
    long = Bitext(name="long", source=source(tmp_path, "l", "eng fra", numbered("eval", 9)), limit=2)
    rows = [("second ONE", "Le second."), ("eval English 8", "Le huitième."), ("Kept.", "Gardé.")]
    corpus = build(tmp_path, source(tmp_path, "s", "eng fra", rows), dev=(sts,), test=(long,))
    assert pairs(corpus) == [("Kept.", "Gardé.")]
    assert corpus.overlap["s"] == {"dev/sts": 1, "test/long": 1}


def test_sealed_test_texts_are_not_in_the_corpus(tmp_path):
    test = Bitext(name="t", source=source(tmp_path, "t", "eng fra", [("Sealed.", "Scellé.")]))
    corpus = build(tmp_path, source(tmp_path, "s", "eng fra", [("Kept.", "Gardé.")]), test=(test,))
    assert corpus.texts == ["Kept.", "Gardé."]
    assert corpus.tasks == ()
    assert "test/t" in corpus.digests


# --- languages -----------------------------------------------------------------------------------------------------


MIXED: Table = [
    ("Where is the nearest station?", "Où est la gare la plus proche ?"),
    ("Je ne sais pas ce qu'il veut dire.", "I do not know what he means."),
    ("She reads a book every evening.", "She reads a book in the evening."),
    ("Er hat gestern den ganzen Tag gearbeitet.", "Il a travaillé toute la journée d'hier."),
    ("Tom.", "Thomas."),
    ("We will be late tomorrow.", "Nous serons en retard demain."),
]
STRANGERS = {"swapped": 1, "not in fra": 1, "not in eng": 1}


def test_pairs_in_other_languages_are_counted_or_dropped_by_reason(tmp_path):
    train = source(tmp_path, "s", "eng fra", MIXED)
    plain = build(tmp_path, train)
    counting = build(tmp_path, train, clean=Clean(language="count"))
    assert STRANGERS.items() <= counting.counts["s"].items()
    assert pairs(counting) == pairs(plain) == MIXED
    dropping = build(tmp_path, train, clean=Clean(language="drop"))
    assert STRANGERS.items() <= dropping.counts["s"].items()
    assert dropping.counts["s"]["language"] == 3
    assert pairs(dropping) == [MIXED[0], MIXED[4], MIXED[5]]
    assert not STRANGERS.keys() & plain.counts["s"].keys()


def test_a_pair_that_is_wrong_on_both_sides_counts_once(tmp_path):
    rows = [*MIXED, ("Wir kommen morgen leider zu spät nach Hause.", "Llegaremos tarde a casa mañana por la noche.")]
    counts = build(tmp_path, source(tmp_path, "s", "eng fra", rows), clean=Clean(language="count")).counts["s"]
    assert {**STRANGERS, "not in eng nor fra": 1}.items() <= counts.items()


def test_a_cap_is_drawn_of_pairs_in_their_languages(tmp_path):
    corpus = build(tmp_path, source(tmp_path, "s", "eng fra", MIXED, cap=3), clean=Clean(language="drop"))
    assert pairs(corpus) == [MIXED[0], MIXED[4], MIXED[5]]


def test_a_language_that_nobody_knows_is_not_judged(tmp_path):
    corpus = build(tmp_path, source(tmp_path, "s", "eng kzj", MIXED), clean=Clean(language="drop"))
    assert corpus.counts["s"]["not in eng"] == 2
    assert "not in kzj" not in corpus.counts["s"]


def test_originals_in_another_language_are_not_translated(tmp_path):
    """Tan et al. 2023, section 3.1: language identification comes before back-translation."""
    how = Translation(text="s", original="fra", into="eng", model="none")
    train = (
        source(tmp_path, "s", "fra eng", [row[::-1] for row in MIXED]),
        TranslateSource(name="back", format="translate", translation=how),
    )
    originals: list[str] = []

    def translate(source, texts):
        originals.extend(texts)
        return StandIn(0)(source, texts)

    def cleaned(mode):
        originals.clear()
        return build_corpus(Data(train=train, clean=Clean(language=mode)), tmp_path, 0, translate).counts["back"]

    assert cleaned("drop")["dropped: not in fra"] == 2
    assert len(originals) == 4
    assert cleaned("count")["not in fra"] == 2
    assert len(originals) == 6


# --- split (D36) ---------------------------------------------------------------------------------------------------


def heldout_share(corpus: Corpus) -> dict[str, int]:
    return {task.subset: len(task.left) for task in corpus.tasks if task.name == "heldout"}


@pytest.mark.trap(36)
def test_a_split_holds_out_rows_of_every_language_pair_without_sharing_a_sentence(tmp_path):
    """METHODS D36: the same English stands in eng-fra and eng-kor, so it is held out in both or in neither."""
    fra = source(tmp_path, "a", "eng fra", [(f"English {i}", f"français {i}") for i in range(400)])
    kor = source(tmp_path, "b", "kor eng", [(f"한국어 {i}", f"english {i}!") for i in range(200, 600)])
    corpus = build(tmp_path, fra, kor, split=Split(pairs=50))
    assert heldout_share(corpus) == {"fra-eng": 50, "kor-eng": 50}
    trained = {text_key(text) for pair in pairs(corpus) for text in pair}
    assert not trained & {text_key(text) for text in sides(corpus, "heldout")}
    assert len(corpus.pairs) == 700
    assert [corpus.counts[name]["heldout"] for name in "ab"] == [50, 50]
    assert [corpus.counts[name]["train"] for name in "ab"] == [350, 350]


def test_a_split_is_the_same_under_its_seed_and_another_under_another(tmp_path):
    rows = source(tmp_path, "a", "eng fra", numbered("x", 200))
    first, second, other = (build(tmp_path, rows, seed=seed, split=Split(pairs=20)) for seed in (1, 1, 2))
    assert sides(first, "heldout") == sides(second, "heldout") != sides(other, "heldout")


def test_synthetic_rows_and_what_shares_sentences_with_them_are_never_held_out(tmp_path):
    natural = source(tmp_path, "a", "eng fra", numbered("x", 100))
    rows = [(f"x English {i}", f"synthétique {i}") for i in range(80)]
    synthetic = source(tmp_path, "b", "eng fra", rows, synthetic=True)
    corpus = build(tmp_path, natural, synthetic, split=Split(pairs=50))
    allowed = {text for i in range(80, 100) for text in (f"x English {i}", f"x français {i}")}
    assert sides(corpus, "heldout")
    assert sides(corpus, "heldout") <= allowed


def test_a_small_language_pair_keeps_most_of_its_training_text(tmp_path):
    corpus = build(tmp_path, source(tmp_path, "a", "eng fra", numbered("x", 100)), split=Split(pairs=500))
    assert heldout_share(corpus) == {"fra-eng": 20}


def test_a_split_that_can_hold_nothing_out_is_an_error(tmp_path):
    one_component = source(tmp_path, "a", "eng fra", [("Yes", f"Oui {i}") for i in range(50)])
    with pytest.raises(DataError, match="none of 50 pairs can be held out"):
        build(tmp_path, one_component, split=Split(pairs=5))


NODES = st.integers(0, 12)


@pytest.mark.trap(36)
@given(st.lists(st.tuples(NODES, NODES), max_size=30))
@settings(max_examples=150, deadline=None)
def test_components_are_those_of_plain_search(edges):
    keys = np.array(edges, np.uint64).reshape(-1, 2) * np.uint64(2**59 + 7)
    smallest = components(keys)
    linked = [{i} for i in range(len(edges))]
    for i, j in itertools.product(range(len(edges)), repeat=2):
        if set(edges[i]) & set(edges[j]):
            linked[i].add(j)
    for i in range(len(edges)):
        reached, frontier = {i}, [i]
        while frontier:
            fresh = linked[frontier.pop()] - reached
            reached |= fresh
            frontier += fresh
        assert smallest[i] == min(reached)


@pytest.mark.slow
@pytest.mark.trap(36)
@given(st.lists(st.tuples(NODES, NODES, st.sampled_from(["fra", "kor"])), min_size=1, max_size=40), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_split_never_shares_a_sentence_with_training(rows, seed):
    spread = [(f"w{i} English {i // 2}", f"mot {i // 2}") for i in range(60)]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        sources = [source(root, "base", "eng fra", spread)]
        for code in ("fra", "kor"):
            chosen = [(f"English {a}", f"{code} {b}") for a, b, language in rows if language == code]
            sources += [source(root, code, f"eng {code}", chosen)] if chosen else []
        corpus = build(root, *sources, split=Split(pairs=8), seed=seed)
    trained = {text_key(text) for pair in pairs(corpus) for text in pair}
    assert not trained & {text_key(text) for text in sides(corpus, "heldout")}
    assert all(size <= 8 for size in heldout_share(corpus).values())


# --- tasks ---------------------------------------------------------------------------------------------------------


def test_tasks_are_read_as_texts_with_the_anchor_on_the_right(tmp_path):
    rows = [("Yes", "Oui", "네"), ("No", "Non", "아니"), ("Thanks", "Merci", "고마워")]
    bitext = Bitext(name="b", source=source(tmp_path, "b", "eng fra kor", rows), limit=2, k=3)
    (tmp_path / "sts.tsv").write_text("id\tsentence1\tsentence2\tscore\n1\tA\tB\t3.5\n2\tC\tD\t0\n")
    sts = Sts(name="g", path="sts.tsv", language="eng", limit=1)
    fra, kor, graded = read_tasks([bitext, sts], tmp_path, Data(train=()))
    assert (fra.name, fra.kind, fra.subset, fra.k) == ("b", "bitext", "fra-eng", 3)
    assert (fra.left, fra.right) == (("Oui", "Non"), ("Yes", "No"))
    assert (kor.subset, kor.left) == ("kor-eng", ("네", "아니"))
    assert (graded.kind, graded.subset) == ("sts", "eng")
    assert (graded.left, graded.right, graded.scores) == (("A",), ("B",), (3.5,))


def topics(root: Path, name: str, rows: list[tuple[str, str, str]]) -> str:
    lines = ["id\tcategory\ttext", *("\t".join(row) for row in rows)]
    (root / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{name}.tsv"


def test_topics_are_read_in_each_language_and_mixed(tmp_path):
    rows = [(str(i), "travel" if i % 3 else "health", f"English {i}") for i in range(40)]
    paths = {
        "eng": topics(tmp_path, "eng", rows),
        "zho": topics(tmp_path, "zho", [(i, c, f"中文 {i}") for i, c, _ in reversed(rows)]),
    }
    task = Clustering(name="sib", source=TsvSource(name="sib", id="id", paths=paths), label="category")
    eng, zho, mixed = read_tasks([task], tmp_path, Data(train=()))
    assert [t.subset for t in (eng, zho, mixed)] == ["eng", "zho", "mixed"]
    assert (eng.kind, eng.left[1], zho.left[1], zho.left_languages) == ("clustering", "English 1", "中文 1", ("zho",))
    assert eng.labels == zho.labels == mixed.labels == tuple(category for _, category, _ in rows)
    for *both, text, language in zip(eng.left, zho.left, mixed.left, mixed.left_languages, strict=True):
        assert text == both[("eng", "zho").index(language)]
    assert 10 < mixed.left_languages.count("eng") < 30, "each row in one language, drawn"
    assert read_tasks([task], tmp_path, Data(train=()))[2] == mixed
    first = read_tasks([replace(task, limit=7)], tmp_path, Data(train=()))[2]
    assert (first.left, first.labels) == (mixed.left[:7], mixed.labels[:7])


def test_topics_of_one_table_and_one_language_have_no_mixture(tmp_path):
    path = topics(tmp_path, "one", [("1", "a", "First."), ("2", "b", "Second.")])
    task = Clustering(name="t", source=TsvSource(name="t", path=path, columns={"eng": "text"}), label="category")
    (eng,) = read_tasks([task], tmp_path, Data(train=()))
    assert (eng.left, eng.labels, eng.right) == (("First.", "Second."), ("a", "b"), ())


def test_topic_texts_are_kept_out_of_training_in_every_language(tmp_path):
    paths = {code: topics(tmp_path, code, [("1", "a", f"{code} one"), ("2", "b", "two")]) for code in ("eng", "fra")}
    task = Clustering(name="t", source=TsvSource(name="t", id="id", paths=paths), label="category")
    rows = [("ENG one!", "Autre."), ("Other.", "fra one"), ("Kept.", "Gardé.")]
    corpus = build(tmp_path, source(tmp_path, "s", "eng fra", rows), dev=(task,))
    assert pairs(corpus) == [("Kept.", "Gardé.")]
    assert corpus.overlap["s"] == {"dev/t": 2}
    assert {t.subset for t in corpus.tasks} == {"eng", "fra", "mixed"}


def test_topics_that_differ_between_languages_are_refused(tmp_path):
    paths = {"eng": topics(tmp_path, "eng", [("1", "a", "One")]), "fra": topics(tmp_path, "fra", [("1", "b", "Un")])}
    task = Clustering(name="t", source=TsvSource(name="t", id="id", paths=paths), label="category")
    with pytest.raises(DataError, match=r"row '1' needs one label in column 'category', .* it has a, b"):
        read_tasks([task], tmp_path, Data(train=()))


def test_repeated_sentences_of_a_task_stay(tmp_path):
    dev = Bitext(name="d", source=source(tmp_path, "d", "eng fra", [("Hi", "Salut"), ("Hi", "Coucou")]))
    corpus = build(tmp_path, source(tmp_path, "s", "eng fra", [("Yes", "Oui")]), dev=(dev,))
    (task,) = corpus.tasks
    assert task.right[0] == task.right[1]


def test_keys_are_equal_exactly_where_text_keys_are():
    texts = ["Yes.", "yes", "No", "ＮＯ!", "...", "?"]
    keys = sentence_keys(texts)
    assert keys.dtype == np.uint64
    for (a, x), (b, y) in itertools.product(zip(texts, keys, strict=True), repeat=2):
        assert (x == y) == (text_key(a) == text_key(b))
    assert sentence_keys([]).shape == (0,)


# --- the same text in parts, and as ever ---------------------------------------------------------------------------


def facts(corpus: Corpus) -> dict[str, object]:
    """All that a corpus holds, its arrays and texts by their digests."""
    names = ("pairs", "pair_groups", "weights")
    digests = {name: hashlib.sha256(getattr(corpus, name).tobytes()).hexdigest()[:16] for name in names}
    digests["texts"] = digest_of_texts([*corpus.texts, *corpus.languages])[:16]
    others = ("groups", "tasks", "counts", "overlap", "digests")
    return digests | {name: getattr(corpus, name) for name in others} | corpus.contamination.plain()


def test_a_corpus_in_tiny_parts_is_the_one_that_is_cleaned_at_once(tmp_path):
    first = source(tmp_path, "first", "eng fra", [(f"English {i % 60}", f"français {i % 45}") for i in range(90)])
    synthetic = replace(
        source(tmp_path, "made", "kor eng", [(f"한국어 {i}", f"english {i}!") for i in range(70)]), cap=40
    )
    joined = PivotSource(name="joined", format="pivot", left="first", right="made", join="eng", pairs=("fra-kor",))
    dev = Bitext(
        name="d", source=source(tmp_path, "d", "fra eng", [("français 3", "Something else"), ("x", "English 7")])
    )
    near = "a sentence of the test that is rather long and has many words"
    test = Bitext(name="t", source=source(tmp_path, "t", "fra eng", [("y", near)]))
    copies = source(tmp_path, "copies", "eng fra", [(f"{near}s", "z"), ("same", "Same"), ("English 1", "français 1")])
    settings = {"dev": (dev,), "test": (test,), "overlap": "near", "split": Split(pairs=3)}
    whole = build(tmp_path, first, synthetic, joined, copies, **settings)
    with tiny_parts():
        parts = build(tmp_path, first, synthetic, joined, copies, **settings)
    assert facts(parts) == facts(whole)
    assert whole.counts["copies"]["no_near_overlap"] < whole.counts["copies"]["no_overlap"]
    assert heldout_share(whole)


def test_the_bundled_corpus_is_cleaned_to_the_bytes_of_earlier_versions():
    sweep = read_sweep(REPOSITORY / "search_spaces/quickstart.yaml")
    corpus = build_corpus(sweep.data, data_root(sweep), sweep.seed, near=find_near_anew)
    digests = facts(corpus)
    assert {name: digests[name] for name in ("texts", "pairs", "pair_groups", "weights")} == {
        "texts": "c44362e64fccc7a5",
        "pairs": "d62c26f153ebc51e",
        "pair_groups": "22055acc25289562",
        "weights": "493b9ace14b9ee99",
    }
    anchors, rows = asked_of_teacher(corpus, Requirements(frozenset({"source", "target"}), ()), copy_anchor=False)
    assert digest_of_texts(anchors)[:16] == "8e54c03003554411"
    assert hashlib.sha256(rows.tobytes()).hexdigest()[:16] == "55362bb0956844ae"


# --- real data -----------------------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("name", ["en_fra_rus_jpn_kor", "en_fra_rus_jpn_kor_capped"])
def test_the_benchmark_overlay_names_files_and_columns_that_exist(name):
    data, root = read_data(REPOSITORY / f"benchmarks/data/{name}.yaml")
    tasks = read_tasks([*data.dev, *data.test], root, data)
    codes = ("fra", "rus", "jpn", "kor")
    assert {task.subset for task in tasks} == {"eng", *codes, *(f"{code}-eng" for code in codes)}
    for train in data.train:
        columns = set((train.columns or {}).values()) or {train.column}
        for path in (train.paths or {"": train.path or ""}).values():
            with gzip.open(root / path, "rt", encoding="utf-8") as file:
                header = set(file.readline().rstrip("\n").split("\t"))
            assert columns | {"id"} == header if train.path else columns | {"id"} < header


@needs_data
@pytest.mark.parametrize("name", ["en_fra_rus_jpn_kor_fewer", "graded_sts", "plus_swahili"])
def test_an_overlay_that_goes_with_another_names_files_that_exist(name):
    texts = [f"benchmarks/data/{each}.yaml" for each in ("en_fra_rus_jpn_kor_capped", name)]
    sweep = read_sweep(REPOSITORY / "search_spaces/pretrained.yaml", overlays=[REPOSITORY / text for text in texts])
    files = [path for _, path in data_files(sweep)]
    assert len(files) > 20
    assert [path for path in files if not (DATA / path).exists()] == []


@pytest.mark.slow
@needs_data
@pytest.mark.long
def test_a_real_corpus_is_cleaned_to_the_bytes_of_earlier_versions():
    """Digests of the pairs are those of the code that held a corpus as lists of Python strings. Dev sets were added."""
    data, root = read_data(REPOSITORY / "benchmarks/data/en_fra_rus_jpn_kor_capped.yaml")
    names = {"tatoeba_challenge_jpn", "tatoeba_challenge_kor", "python_docs_fra", "python_docs_kor", "tico19_fra"}
    names |= {"tico19_rus", "korean_parallel", "korean_parallel_fra", "bible_kor", "tanaka_enja"}
    sources = tuple(source for source in data.train if source.name in names)
    corpus = build_corpus(replace(data, train=sources, overlap="near"), root, 0, near=find_near_anew)

    def digest(values):
        return hashlib.sha256(np.asarray(values, np.int64).tobytes()).hexdigest()[:16]

    assert (len(corpus.pairs), digest(corpus.pairs)) == (70_820, "dee633c74be6193b")
    assert digest(corpus.pair_groups) == "9aaa583c9d01ec46"
    texts = hashlib.sha256(b"".join(text.encode() + b"\0" for text in corpus.texts)).hexdigest()[:16]
    assert (len(corpus.texts), texts) == (144_940, "3e248de052310a9b")


@needs_data
def test_a_real_corpus_is_cleaned_and_overlaps_with_no_real_eval_set():
    def pair(folder: str, code: str, suffix: str = ".tsv.gz") -> Source:
        path = f"{folder}/{code}-eng{suffix}"
        return TsvSource(name=f"{folder}_{code}", path=path, id="id", columns={code: code, "eng": "eng"})

    multiway = TsvSource(name="n", id="id", paths={code: f"ntrex/{code}.tsv.gz" for code in ("eng", "kor", "jpn")})
    data = Data(
        train=(pair("tatoeba_challenge", "kor"), replace(pair("sts_parallel", "kor"), cap=2000)),
        dev=(
            Bitext(name="ntrex", source=multiway, limit=1000),
            Sts(name="stsb", path="stsb/eng.dev.tsv", language="eng"),
        ),
        test=(Bitext(name="tatoeba_kor", source=pair("tatoeba", "kor", ".tsv")),),
        split=Split(pairs=100),
    )
    corpus = build_corpus(data, DATA, 0)
    assert corpus.counts["tatoeba_challenge_kor"]["rows"] == 1467
    assert corpus.counts["sts_parallel_kor"]["cap"] == 2000
    sizes = {f"{task.name} {task.subset}": len(task.left) for task in corpus.tasks}
    assert sizes == {"ntrex kor-eng": 1000, "ntrex jpn-eng": 1000, "stsb eng": 1500, "heldout kor-eng": 100}
    sealed = read_tasks(data.test, DATA, data)
    evals = {text_key(text) for task in sealed for text in (*task.left, *task.right)}
    evals |= {text_key(corpus.texts[i]) for task in corpus.tasks for i in (*task.left, *task.right)}
    assert not evals & {text_key(text) for pair in pairs(corpus) for text in pair}


@needs_data
def test_real_topics_are_in_two_languages_and_mixed():
    paths = {"eng": "sib200/eng_Latn.tsv.gz", "zho": "sib200/zho_Hans.tsv.gz"}
    source = TsvSource(name="sib200", id="id", paths=paths)
    eng, zho, mixed = read_tasks([Clustering(name="sib200", source=source, label="category")], DATA, Data(train=()))
    assert [len(task.left) for task in (eng, zho, mixed)] == [510, 510, 510]
    assert len(set(mixed.labels)) == 7
    assert 200 < mixed.left_languages.count("zho") < 310


def spilled(folder: Path) -> int:
    """Bytes of the nameless files of a folder that this process has mapped or open."""
    files = {}
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if handle.readlink().is_relative_to(folder) and handle.stat().st_nlink == 0:
                files[handle.stat().st_ino] = handle.stat().st_size
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *name = line.split(maxsplit=5)
        if name and name[0].startswith(str(folder)):
            begin, end = (int(each, 16) for each in span.split("-"))
            files[int(inode)] = end - begin
    return sum(files.values())


def test_what_a_corpus_spills_is_bounded_by_its_text_and_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGE_ARRAY_BYTES", 1 << 10)
    monkeypatch.setattr(arrays, "SEGMENT", 1 << 16)
    monkeypatch.setattr(texts, "LARGE_TEXTS_BYTES", 1 << 10)
    rows = source(tmp_path, "a", "eng fra", numbered("a sentence of a usual length, with some words more", 4000))
    size = (tmp_path / "a.tsv").stat().st_size
    peak, mapped = 0, arrays.ScratchFile.mapped

    def watched(self, *more):
        nonlocal peak
        array = mapped(self, *more)
        peak = max(peak, spilled(tmp_path))
        return array

    monkeypatch.setattr(arrays.ScratchFile, "mapped", watched)
    with arrays.scratch_in(tmp_path):
        corpus = build(tmp_path, rows)
    assert size < peak < MOST_SPILLED * size, peak / size
    assert len(corpus.pairs) == 4000
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"], "a kill leaves nothing: no file has a name"
    del corpus
    gc.collect()
    assert spilled(tmp_path) == 0
