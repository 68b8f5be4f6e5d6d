"""The contamination ledger: near-duplicates against brute force, and what is counted, kept and shown."""

import json
import random

import numpy as np
import pytest

from babeltune.data import contamination
from babeltune.data.contamination import CONTAMINATED, THRESHOLD, EvalIndex, contaminated, find_near_once, jaccard
from babeltune.data.corpus import build_corpus
from babeltune.data.text_keys import text_key
from babeltune.planning.sweep_file import data_root, read_sweep
from babeltune.promotion.gates import judge
from babeltune.schema.records import Gate
from babeltune.sweep.driver.recorder import contamination_words

WORDS = (
    *("the", "old", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "seven", "dogs", "that", "were", "asleep"),
    *("beside", "their", "warm", "yellow", "house"),
)


def sentences(n, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(6, 14))) for _ in range(n)]


def edited(text, seed):
    """The text with a letter or a word changed, or in capitals."""
    draw = random.Random(seed)
    place = draw.randrange(len(text))
    words = text.split()
    words[draw.randrange(len(words))] = draw.choice(WORDS)
    return draw.choice([text[:place] + "q" + text[place + 1 :], " ".join(words), text.upper() + "!"])


def grams(text):
    key = text_key(text)
    return {key[i : i + 3] for i in range(max(1, len(key) - 2))}


def test_similarity_is_that_of_the_sets_of_trigrams():
    for a, b in zip(sentences(50), (edited(text, i) for i, text in enumerate(sentences(50))), strict=True):
        assert jaccard(a, b) == pytest.approx(len(grams(a) & grams(b)) / len(grams(a) | grams(b)))
    assert jaccard("ab", "A b!") == 1
    assert jaccard("ab", "abc") == 0


@pytest.mark.trap(35)
def test_near_duplicates_are_those_of_brute_force():
    indexed = [*sentences(150), "猫は窓のそばで静かに眠っている", "hm"]
    others = ["猫は窓のそばで静かに眠っていた", "hm", "h", indexed[0]]
    queries = [*(edited(text, i) for i, text in enumerate(indexed[:150])), *others]
    index = EvalIndex({"dev/a": indexed})
    near = index.near(queries)
    pairs = {(row, index.texts[text]) for row, text in zip(near.rows.tolist(), near.texts.tolist(), strict=True)}
    expected = {
        (row, other)
        for row, text in enumerate(queries)
        for other in index.texts
        if jaccard(text, other) >= THRESHOLD and text_key(text) != text_key(other)
    }
    assert pairs <= expected
    assert len(pairs) >= 0.99 * len(expected)
    assert len(expected) > 50
    assert any("猫" in other for _, other in pairs)
    assert (np.diff(near.rows) >= 0).all()


def test_blocks_of_texts_give_what_one_gives(monkeypatch):
    indexed = [*sentences(50), "", "a", "ab"]
    queries = [edited(text, i) for i, text in enumerate(indexed[:50])] + ["", "A!"]
    whole = EvalIndex({"dev/a": indexed}).near(queries)
    monkeypatch.setattr(contamination, "BLOCK", 7)
    blocks = EvalIndex({"dev/a": indexed}).near(queries)
    assert len(whole.rows)
    assert np.array_equal(whole.rows, blocks.rows)
    assert np.array_equal(whole.texts, blocks.texts)


DATA = """
version: 1
name: near
method: soft_contrastive
objectives: [{metric: dev/seen/accuracy}]
data:
  root: ROOT
  train:
    - {name: plain, path: plain.tsv, columns: {eng: eng, fra: fra}}
    - {name: left, path: left.tsv, columns: {eng: eng, kor: kor}, train: false}
    - {name: joined, format: pivot, left: plain, right: left, join: eng, pairs: [fra-kor]}
  dev: [{name: seen, source: {name: seen, path: seen.tsv, columns: {eng: eng, fra: fra}}}]
  test: [{name: sealed, source: {name: sealed, path: sealed.tsv, columns: {eng: eng, fra: fra}}}]
teacher: {languages: [eng, fra, kor]}
student: {layers: 1, width: 32, heads: 2, projection: teacher}
"""
NEAR = "seven old dogs slept beside the yellow house today"
SEALED = "seven old dogs slept beside the yellow houses today"


@pytest.fixture
def sweep(tmp_path):
    english, french, korean = sentences(40, 1), sentences(40, 2), sentences(40, 3)
    english[0] = NEAR
    tables = {
        "plain": ("eng\tfra", zip(english, french, strict=True)),
        "left": ("eng\tkor", zip(english, korean, strict=True)),
        "seen": ("eng\tfra", [(english[1].upper(), "unlike anything"), ("completely different words", "rien de tel")]),
        "sealed": ("eng\tfra", [(SEALED, "encore autre chose")]),
    }
    for name, (header, rows) in tables.items():
        lines = [header, *("\t".join(row) for row in rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = tmp_path / "near.yaml"
    path.write_text(DATA.replace("ROOT", str(tmp_path)), encoding="utf-8")
    return path


def corpus_of(sweep, tmp_path, *assignments, **more):
    read = read_sweep(sweep, assignments=assignments)
    return build_corpus(read.data, data_root(read), read.seed, **more)


@pytest.mark.trap(35)
def test_every_side_is_counted_the_pivots_english_too_and_a_sealed_text_is_not_shown(sweep, tmp_path):
    near = lambda digests: find_near_once(tmp_path / "stores", digests)  # noqa: E731
    corpus = corpus_of(sweep, tmp_path, near=near)
    ledger = corpus.contamination
    for source in ("plain", "joined"):
        assert ledger.sources[source]["test/sealed"]["eng"] == {"near": 1}
        assert ledger.sources[source]["dev/seen"]["eng"]["exact"] == 1
    assert ledger.sets["test/sealed"] == {"texts": 2, "near": 1, "share": 0.5}
    noted = json.dumps(ledger.plain())
    assert NEAR in noted
    assert SEALED not in noted
    assert (NEAR, 0) in {(e["text"], e["row"]) for e in ledger.examples}
    counts = {"contamination": ledger.plain()}
    assert list(contaminated(counts)) == ["sealed"]
    words = contamination_words(counts)
    assert [*words] == ["test.sealed"]
    assert "1 of its 2 texts (50.0%" in words["test.sealed"]


def test_what_was_found_is_kept_for_the_next_time(sweep, tmp_path, monkeypatch):
    near = lambda digests: find_near_once(tmp_path / "stores", digests)  # noqa: E731
    first = corpus_of(sweep, tmp_path, near=near).contamination.plain()
    monkeypatch.setattr(EvalIndex, "near", lambda *_: pytest.fail("looked again"))
    assert corpus_of(sweep, tmp_path, near=near).contamination.plain() == first


def test_near_duplicates_go_where_the_data_say_so(sweep, tmp_path):
    corpus, cleaned = corpus_of(sweep, tmp_path), corpus_of(sweep, tmp_path, "data.overlap=near")
    assert NEAR in corpus.texts
    assert NEAR not in cleaned.texts
    assert cleaned.contamination.sets["test/sealed"]["near"] == 0
    for source in ("plain", "joined"):
        assert cleaned.counts[source]["no_near_overlap"] < cleaned.counts[source]["no_overlap"]
        assert "no_near_overlap" not in corpus.counts[source]


def test_a_contaminated_dev_set_is_named_apart():
    facts = {"texts": 100, "near": 90, "share": 0.9}
    counts = {"contamination": {"sets": {"dev/everyday": facts, "test/sealed": facts}}}
    assert list(contaminated(counts)) == ["sealed"]
    assert list(contaminated(counts, "dev")) == ["everyday"]
    assert contamination_words(counts).keys() == {"dev.everyday", "test.sealed"}


def test_a_test_set_whose_texts_are_in_a_dev_set_cannot_gate(sweep, tmp_path):
    more = (tmp_path / "sealed.tsv").read_text(encoding="utf-8").splitlines()
    dev = (tmp_path / "seen.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "seen.tsv").write_text("\n".join([*dev, more[1]]) + "\n", encoding="utf-8")
    ledger = corpus_of(sweep, tmp_path).contamination
    facts = ledger.seen["test/sealed"]
    assert facts["dev"] > 0
    assert facts["share"] == facts["dev"] / facts["texts"] > CONTAMINATED
    dirty = contaminated({"contamination": ledger.plain()})
    assert "are in dev sets, which select" in dirty["sealed"]


def test_a_contaminated_set_cannot_gate():
    facts = {"texts": 100, "near": 6, "share": CONTAMINATED + 0.01}
    dirty = contaminated({"contamination": {"sets": {"test/t": facts}}})
    scores, chance = {"test/t/fra-eng/accuracy": 1.0}, {"test/t/fra-eng/accuracy": 0.1}
    assert judge({}, {}, [Gate(test="t", times_chance=1)], scores, {}, chance)[0] == "promote"
    verdict, reasons = judge({}, {}, [Gate(test="t", times_chance=1)], scores, {}, chance, dirty)
    assert verdict == "refuse"
    assert "gate t cannot be judged: test/t is contaminated: 6 of its 100 texts (6.0%" in reasons[0]
    assert not contaminated({"contamination": {"sets": {"dev/t": {"texts": 1, "near": 1, "share": 1.0}}}})
    assert not contaminated({})
