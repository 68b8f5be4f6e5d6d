"""Words by their characters, and the tokens that they are."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from babeltune.data import word_segmentation
from babeltune.data.tokens import bare_tokenizer, load_tokenizer, train_tokenizer
from babeltune.data.word_segmentation import find_words, lower, pieces, token_spans, unspaced
from babeltune.schema.records import Transformer

TEXTS = ["The art of a party.", "An artful party starts with art!", "Art, party; ARTISTS' art.", ""]


def found_in(text, cut=None):
    words = find_words([text], cut)
    return [text[a:b] for a, b in words.spans.tolist()]


@pytest.mark.trap(41)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The party's art, in Party-art_art.", ["The", "party's", "art", "in", "Party", "art", "art"]),
        ("l’art 'quoted' d' it''s", ["l’art", "quoted", "d", "it", "s"]),
        ("H1N1 is 2019's COVID-19", ["H1N1", "is", "2019's", "COVID", "19"]),
        ("हिन्दी में लिखो", ["हिन्दी", "में", "लिखो"]),  # signs of vowels are marks, not letters
        ("cafe\u0301 naïve", ["cafe\u0301", "naïve"]),
        ("می\u200cروم", ["می\u200cروم"]),
        ("東京タワーへ行く。", ["東京", "タワー", "へ", "行", "く"]),
        ("GDPは3％増", ["GDP", "は", "3", "増"]),
        ("ខ្ញុំ\u200bទៅ", ["ខ្ញុំ", "ទៅ"]),
        ("", []),
        ("… 😀 \ufe0f", ["\ufe0f"]),
    ],
)
def test_words_are_whole_runs_of_letters_marks_and_digits(text, expected):
    assert found_in(text) == expected


def plain_words(text):
    """The rule character by character, for scripts with blanks."""
    kinds = ["w" if unicodedata.category(c)[0] in "LMN" else "j" if c in "'’" else " " for c in text]
    padded = [" ", *kinds, " "]
    inside = [k == "w" or (k == "j" and padded[i] == "w" and padded[i + 2] == "w") for i, k in enumerate(kinds)]
    parts = "".join(c if into else "\0" for c, into in zip(text, inside, strict=True)).split("\0")
    return [part for part in parts if part]


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("aÉßb'’ -1.\u0301ж한İ\n😀"), max_size=30))
def test_words_are_those_of_the_rule_read_character_by_character(text):
    assert found_in(text) == plain_words(text)
    assert len(lower(text)) == len(text)


def test_words_are_numbered_in_lower_case_over_all_texts(monkeypatch):
    whole = find_words(TEXTS)
    monkeypatch.setattr(word_segmentation, "CHUNK", 1)
    words = find_words(TEXTS)
    for name in ("first", "words", "spans"):
        np.testing.assert_array_equal(getattr(words, name), getattr(whole, name))
    assert words.first.tolist() == [0, 5, 11, 15, 15]
    assert [words.vocabulary[i] for i in words.words[:5]] == ["the", "art", "of", "a", "party"]
    assert words.words.tolist().count(words.vocabulary.index("art")) == 4
    assert [w for w, c in zip(words.vocabulary, words.content(2), strict=True) if not c] == ["art", "party"]


def test_numbers_are_never_content():
    words = find_words(["1 in 10 of 2019", "H1N1 in 10"])
    assert [w for w, c in zip(words.vocabulary, words.content(0), strict=True) if c] == ["in", "of", "h1n1"]


def test_without_blanks_words_are_pieces_of_a_tokenizer_of_that_text(tmp_path):
    texts = ["東京大学へ行く。", "京都大学の人。", "大学へ東京から。", "東京と京都。", "東京大学と京都大学。"] * 4
    assert unspaced(texts)
    assert not unspaced(["Tokyo", "I went to 東京", "Kyoto"])
    cut = pieces(tmp_path, texts, 0)
    assert found_in("「東京」へ", lambda _: iter([[0, 1, 2]])) == ["東", "京", "へ"]
    whole = found_in(texts[0], cut)
    assert "".join(whole) == "東京大学へ行く"
    assert found_in("Tokyoへ", lambda _: iter([[0, 2, 5]])) == ["Tokyo", "へ"], "words between blanks stay whole"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = train_tokenizer([*TEXTS[:3], "東京大学へ行く"] * 3, 150, folder=tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(Transformer(), folder)


@pytest.mark.trap(41)
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_a_span_is_the_tokens_that_reach_into_the_word(tokenizer, prompt, monkeypatch):
    monkeypatch.setattr(word_segmentation, "CHUNK", 2)
    backend = bare_tokenizer(tokenizer)
    words = find_words(TEXTS)
    ids = np.repeat(np.arange(4), np.diff(words.first))
    order = np.random.default_rng(0).permutation(len(ids))
    spans = token_spans(TEXTS, ids[order], words.spans[order], backend, prompt)
    for text, (start, end), (first, last) in zip(ids[order], words.spans[order], spans, strict=True):
        encoding = tokenizer(prompt + TEXTS[text], return_offsets_mapping=True)
        within = [
            i
            for i, (a, b) in enumerate(encoding["offset_mapping"])
            if a < b and a < end + len(prompt) and start + len(prompt) < b
        ]
        assert list(range(first, last)) == within
        word = tokenizer.decode(encoding["input_ids"][first:last]).strip()
        assert word.startswith(TEXTS[text][start:end])
        assert not set(encoding["input_ids"][first:last]) & set(tokenizer.all_special_ids)


@pytest.mark.trap(41)
def test_a_word_that_is_cut_off_has_no_span(tokenizer):
    backend = bare_tokenizer(tokenizer)
    text = TEXTS[1]
    words = find_words([text])
    whole = token_spans([text], np.zeros(6, np.int64), words.spans, backend, "")
    for longest in range(3, 20):
        backend.enable_truncation(longest)
        spans = token_spans([text], np.zeros(6, np.int64), words.spans, backend, "")
        fits = whole[:, 1] <= longest - 1  # the last place is the closing token's
        np.testing.assert_array_equal(spans[fits], whole[fits])
        assert (spans[~fits] == -1).all()
