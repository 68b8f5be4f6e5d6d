"""Words and their translations: by where they occur, and by lexicons."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import alignment
from babeltune.data.alignment import TOGETHER, build_spans, build_words, mutual, word_counts, word_samples
from babeltune.data.corpus import Corpus
from babeltune.data.store import facts_of
from babeltune.data.texts import Texts
from babeltune.data.thresholds import WORD_SCORES
from babeltune.data.tokens import load_tokenizer, train_tokenizer
from babeltune.data.word_segmentation import find_words
from babeltune.errors import DataError
from babeltune.schema.records import Transformer, TsvSource, Words

PAIRS = [
    ("The art of a party.", "L'art d'une fête"),
    ("A party without art", "Une fête sans ART"),
    ("He departs; the party ends.", "Il part; la fête finit."),
    ("Artful is the party, the party!", "La fête est artistique"),
    ("Nothing here", "Rien ici"),
]


def corpus_of(*groups):
    """Pairs of language pairs, each a tuple of two codes and a list of texts."""
    ids, rows, numbers = {}, [], []
    for number, (a, b, pairs) in enumerate(groups):
        for x, y in pairs:
            rows.append([ids.setdefault((a, x), len(ids)), ids.setdefault((b, y), len(ids))])
            numbers.append(number)
    return Corpus(
        texts=Texts.of([text for _, text in ids]),
        languages=Texts.of([language for language, _ in ids]),
        pairs=np.array(rows, np.int32),
        groups=tuple(f"{a}-{b}" for a, b, _ in groups),
        group_languages=tuple((a, b) for a, b, _ in groups),
        pair_groups=np.array(numbers, np.int16),
        weights=np.ones(len(rows), np.float32),
        tasks=(),
        counts={},
        overlap={},
        digests={},
    )


def in_words(corpus, samples):
    """Pair and both words of each sample."""
    sides = [[corpus.texts[i] for i in pair] for pair in corpus.pairs]
    return [(p, sides[p][0][a:b], sides[p][1][c:d]) for p, a, b, c, d in samples.tolist()]


def nearest(a, b, least, content):
    """Mutual nearest neighbours, from the definition; sentences are lists of words."""
    pairs = list(zip(a, b, strict=True))

    def is_usable(side, word):
        return word in content and sum(word in pair[side] for pair in pairs) >= TOGETHER

    def cosine(x, y):
        both = sum(x in s and y in t for s, t in pairs)
        n, m = sum(x in s for s, _ in pairs), sum(y in t for _, t in pairs)
        return both / math.sqrt(n * m) if both >= TOGETHER else 0.0

    rows = []
    for number, (s, t) in enumerate(pairs):
        some_s, some_t = ({w for w in side if is_usable(k, w)} for k, side in enumerate((s, t)))
        for x in some_s:
            for y in some_t:
                here = cosine(x, y)
                rivals = [cosine(x, o) for o in some_t - {y}] + [cosine(o, y) for o in some_s - {x}]
                if here >= least and here > max(rivals, default=0.0) and s.count(x) == t.count(y) == 1:
                    both = sum(x in s and y in t for s, t in pairs)
                    rows.append((number, s.index(x), t.index(y), pytest.approx(here), both))
    return sorted(rows, key=lambda sample: sample[:3])


def samples_of(*args, **keywords):
    """The samples of a corpus without their scores."""
    return word_samples(*args, **keywords)[0]


SENTENCES = st.lists(st.sampled_from("abcdefg"), max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.sampled_from(["abcdefg", "acdg"]),
    st.sampled_from([1, 20, 1 << 20]),
)
def test_mutual_nearest_neighbours_are_those_of_the_definition(pairs, least, content, block):
    a, b = ([list(side) for side in sides] for sides in zip(*pairs, strict=True))
    word_sets = [find_words([" ".join(side) for side in sides]) for sides in (a, b)]
    texts = np.tile(np.arange(len(pairs))[:, None], 2)
    masks = tuple(np.array([word in content for word in f.vocabulary], bool) for f in word_sets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "BLOCK", block)
        samples, scores = mutual(*word_sets, texts, masks, least)
    places = [(p, i - word_sets[0].first[p], j - word_sets[1].first[p]) for p, i, j in samples.tolist()]
    scored = sorted((*place, *pair) for place, pair in zip(places, scores.tolist(), strict=True))
    assert scored == nearest(a, b, least, content)


def test_a_large_corpus_is_counted_in_part(monkeypatch):
    """Every second pair is counted; the words of all are aligned."""
    monkeypatch.setattr(alignment, "COUNTED", 6)
    texts = [("dog runs", "chien court"), ("dog", "chien"), ("cat runs", "chat court"), ("cat", "chat")] * 3
    word_sets = [find_words([pair[side] for pair in texts]) for side in (0, 1)]
    masks = tuple(np.ones(len(f.vocabulary), bool) for f in word_sets)
    samples, _ = mutual(*word_sets, np.tile(np.arange(12)[:, None], 2), masks, 0.1)
    assert set(samples[:, 0].tolist()) == set(range(12))


def test_each_word_but_stop_words_is_aligned_where_it_is_whole_and_occurs_once(tmp_path):
    corpus = corpus_of(("eng", "fra", PAIRS))
    samples = samples_of(corpus, Words(stop_words=0, least=0.5), tmp_path, tmp_path, 0)
    words = in_words(corpus, samples)
    assert (0, "party", "fête") in words
    assert (2, "party", "fête") in words
    assert not any(pair == 3 for pair, word, _ in words if word == "party"), "it is there twice"
    assert not any(word.lower() in ("artful", "departs") for _, word, _ in words), "they occur once"
    assert samples[:, 0].tolist() == sorted(samples[:, 0])
    few = samples_of(corpus, Words(stop_words=3, least=0.5), tmp_path, tmp_path, 0)
    assert not any(other == "fête" for _, _, other in in_words(corpus, few))
    assert word_counts(samples, 5)["pairs"] + word_counts(samples, 5)["pairs without"] == 5


def lexicon_at(path, lines, **fields):
    path.write_text("\n".join(["lang\teng\tterm", *lines]) + "\n", encoding="utf-8")
    columns, where = {"eng": "eng", "fra": "term"}, {"lang": "fr"}
    source = TsvSource(name="terms", path=path.name, columns=columns, where=where, **fields)
    return Words(align="lexicon", stop_words=0, lexicon=(source,))


@pytest.mark.trap(41)
def test_a_lexicons_terms_are_found_once_whole_and_in_any_case(tmp_path):
    """D41: `art` is not in `party`, nor in `Artful`."""
    lines = [
        "fr\tart\tl'art",
        "fr\tArt\tart",
        "fr\tThe Party\tla fête",
        "fr\tparty\tfête",
        "de\tnothing\trien",
        "fr\t\tici",
    ]
    corpus = corpus_of(("eng", "fra", PAIRS))
    settings = lexicon_at(tmp_path / "l.tsv", lines, on_error="drop", max_dropped=0.2)
    words = in_words(corpus, samples_of(corpus, settings, tmp_path, tmp_path, 0))
    assert words == [
        (0, "art", "L'art"),
        (0, "party", "fête"),
        (1, "party", "fête"),
        (1, "art", "ART"),
        (2, "the party", "la fête"),
        (2, "party", "fête"),
    ]


def test_stop_words_of_a_lexicon_and_broken_lexicons(tmp_path):
    corpus = corpus_of(("eng", "fra", PAIRS))
    settings = replace(lexicon_at(tmp_path / "l.tsv", ["fr\tparty\tfête", "fr\tart\tART"]), stop_words=2)
    words = in_words(corpus, samples_of(corpus, settings, tmp_path, tmp_path, 0))
    assert {word for _, word, _ in words} == {"art"}, "party and the are the most frequent words"
    settings = lexicon_at(tmp_path / "l.tsv", ["fr\tparty"])
    with pytest.raises(DataError, match=r"l\.tsv:2: column count"):
        samples_of(corpus, settings, tmp_path, tmp_path, 0)


def test_a_languages_list_of_stop_words_takes_the_place_of_the_most_frequent(tmp_path):
    corpus = corpus_of(("eng", "fra", PAIRS))
    lexicon = lexicon_at(tmp_path / "l.tsv", ["fr\tparty\tfête", "fr\tart\tART"])
    (tmp_path / "stop.txt").write_text("Art\nof\n", encoding="utf-8")
    listed = replace(lexicon, stop_words=10**6, stop_list={"en": "stop.txt", "fra": "stop.txt"})
    words = in_words(corpus, samples_of(corpus, listed, tmp_path, tmp_path, 0))
    assert {word for _, word, _ in words} == {"party"}
    half = replace(lexicon, stop_words=10**6, stop_list={"eng": "stop.txt"})
    assert not len(samples_of(corpus, half, tmp_path, tmp_path, 0)), "French has no list"
    first = build_words(corpus, listed, tmp_path, tmp_path, 0)
    (tmp_path / "stop.txt").write_text("of\n", encoding="utf-8")
    assert build_words(corpus, listed, tmp_path, tmp_path, 0) != first, "the words of the list count, not its name"
    (tmp_path / "stop.txt").write_text("of\n\nart\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"stop\.txt:2: "):
        build_words(corpus, listed, tmp_path, tmp_path, 0)


def test_max_line_bytes_bounds_the_lines_of_a_lexicon(tmp_path):
    corpus = corpus_of(("eng", "fra", PAIRS))
    long = "fr\tlong\t" + 40 * "long "
    with pytest.raises(DataError, match=r"l\.tsv:2: too long: .* at most 100 \(data\.max_line_bytes\)"):
        build_words(corpus, lexicon_at(tmp_path / "l.tsv", [long]), tmp_path, tmp_path, 0, longest=100)
    dropping = lexicon_at(tmp_path / "l.tsv", [long, "fr\tparty\tfête"], on_error="drop", max_dropped=0.9)
    words = in_words(corpus, samples_of(corpus, dropping, tmp_path, tmp_path, 0, longest=100))
    assert {word for _, word, _ in words} == {"party"}


def test_language_pairs_do_not_share_statistics_and_text_without_blanks_is_cut(tmp_path):
    japanese = [
        ("red cats run", "赤い猫が走る"),
        ("red dogs sleep", "赤い犬が寝る"),
        ("cats sleep", "猫が寝る"),
        ("dogs run", "犬が走る"),
    ]
    corpus = corpus_of(("eng", "jpn", japanese * 2), ("eng", "fra", PAIRS))
    samples = samples_of(corpus, Words(stop_words=0, least=0.6), tmp_path, tmp_path, 0)
    assert {("cats", "猫"), ("dogs", "犬")} <= {(x, y) for _, x, y in in_words(corpus, samples)}
    alone = corpus_of(("eng", "fra", PAIRS))
    expected = samples_of(alone, Words(stop_words=0, least=0.6), tmp_path, tmp_path, 0)
    np.testing.assert_array_equal(samples[samples[:, 0] >= 8] - [8, 0, 0, 0, 0], expected)


def test_samples_are_stored_once_with_their_counts_and_each_tokenizers_spans(tmp_path, monkeypatch):
    corpus = corpus_of(("eng", "fra", PAIRS))
    settings = lexicon_at(tmp_path / "l.tsv", ["fr\tparty\tfête"])
    words = build_words(corpus, settings, tmp_path, tmp_path, 0)
    assert facts_of(words) == {"samples": 3, "pairs": 3, "pairs without": 2}
    tokenizer = load_tokenizer(Transformer(), train_tokenizer(corpus.texts, 90, folder=tmp_path / "tokenizer"))
    spans = build_spans(words, corpus, tokenizer, "", 64, tmp_path)
    assert facts_of(spans) == {"samples": 3, "cut off": 0}
    shorter = build_spans(words, corpus, tokenizer, "", 9, tmp_path)
    counts = facts_of(shorter)
    assert counts["samples"] + counts["cut off"] == 3
    assert counts["cut off"] > 0
    assert np.load(spans / WORD_SCORES).tolist() == [[math.inf, math.inf]] * 3, "words of a lexicon pass"
    assert len(np.load(shorter / WORD_SCORES)) == counts["samples"]
    for pair, a, b, c, d in np.load(spans / "spans.npy").tolist():
        for text, first, end, word in zip(corpus.pairs[pair], (a, c), (b, d), ("party", "fête"), strict=True):
            ids = tokenizer(corpus.texts[text])["input_ids"]
            assert tokenizer.decode(ids[first:end]).strip().startswith(word)
    monkeypatch.delattr(alignment, "word_samples")
    assert build_words(corpus, settings, tmp_path, tmp_path, 0) == words
    other = lexicon_at(tmp_path / "l.tsv", ["fr\tart\tART"])
    with pytest.raises(NameError):
        build_words(corpus, other, tmp_path, tmp_path, 0)


def test_a_pair_of_languages_without_pairs_has_no_words(tmp_path):
    corpus = corpus_of(("eng", "fra", PAIRS), ("eng", "rus", [("the cat", "кот")]))
    part = replace(corpus, pairs=corpus.pairs[:-1], pair_groups=corpus.pair_groups[:-1])
    settings = Words(stop_words=0, least=0.5)
    alone = samples_of(corpus_of(("eng", "fra", PAIRS)), settings, tmp_path, tmp_path, 0)
    assert len(alone)
    assert samples_of(part, settings, tmp_path, tmp_path, 0).tolist() == alone.tolist()
