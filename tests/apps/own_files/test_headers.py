"""A first row that names columns is a header, and one that looks like the rows below it is text."""

import random
import re

import pytest

from babeltune.apps.own_files.headers import SURE, header_evidence
from babeltune.apps.own_files.languages import codes_in
from corpora import bundled


@pytest.fixture(scope="module")
def text():
    return bundled(150, "eng", "fra", "rus", "kor")


def bare(sentence):
    return re.sub(r"[^\w\s']", "", sentence).strip()


@pytest.mark.parametrize(
    ("left", "header"),
    [
        ("fra", ("French text", "English text")), ("rus", ("Russisch", "Englisch")),
        ("rus", ("Русский", "Английский")), ("kor", ("한국어", "영어")), ("kor", ("日本語", "英語")),
        ("fra", ("Phrase (FR)", "Phrase (EN)")), ("fra", ("Texto", "Texto en inglés")),
        ("fra", ("Segment source", "Segment cible")), ("rus", ("Kolonne A", "Kolonne B")),
        ("fra", ("originalText", "translatedText")), ("fra", ("col1", "col2")), ("fra", ("L1", "L2")),
        ("fra", ("zdanie", "tłumaczenie")), ("fra", ("fra_Latn", "eng_Latn")),
    ],
)  # fmt: skip
def test_names_in_many_languages_are_a_header(text, left, header):
    rows = list(zip(text[left], text["eng"], strict=True))
    assert header_evidence([header, *rows]).header
    numbered = [(i, *row, "ja", "") for i, row in enumerate(rows)]
    cells = [tuple(map(str, row)) for row in numbered]
    assert header_evidence([("Nr.", *header, "Freigabe", ""), *cells]).header


def test_names_over_text_without_punctuation_are_a_header(text):
    rows = [(bare(a).lower(), bare(b).lower()) for a, b in zip(text["fra"], text["eng"], strict=True)]
    for header in (("fr", "en"), ("Ausgangstext", "Zieltext"), ("source_text", "target_text")):
        assert header_evidence([header, *rows]).header


@pytest.mark.parametrize("language", ["fra", "rus", "kor"])
def test_a_first_row_of_text_is_never_eaten(text, language):
    rows = list(zip(text[language], text["eng"], strict=True))
    variants = {
        "as it is": rows,
        "with ids": [(str(i), *row) for i, row in enumerate(rows)],
        "sorted": sorted(rows, key=lambda row: len(row[1])),
        "bare": [(bare(a), bare(b)) for a, b in rows],
        "words": [(bare(a).split()[0], bare(b).split()[0]) for a, b in rows],
        "with labels": [(*row, f"CC-BY 2.0 #{i}") for i, row in enumerate(rows)],
    }
    for name, table in variants.items():
        for first in [table[0], *random.Random(0).sample(table, 25)] if name != "sorted" else table[:1]:
            assert not header_evidence([first, *table]).header, (name, first)
            others = [row for row in table if row is not first]
            assert not header_evidence([first, *others]).header, (name, first)


BY_CHANCE = [("hi", "salut"), ("no", "non"), ("go", "va"), ("it is", "c'est ça")]  # codes of languages among them
SHORT = [("Hi.", "Salut."), ("Go!", "Va !"), ("He's 5.", "Il a 5 ans."), ("2019", "2019 bis")]
GUESSES = [("Hello", "Bonjour"), ("Thank you", "Merci"), ("The Little Prince", "Le Petit Prince")]


@pytest.mark.parametrize("first", [*SHORT, *GUESSES, *BY_CHANCE])
def test_a_short_first_row_is_text_and_without_an_end_a_guess(text, first):
    rows = list(zip(text["eng"], text["fra"], strict=True))
    evidence = header_evidence(
        [first, *([(bare(a).lower(), bare(b).lower()) for a, b in rows] if first in BY_CHANCE else rows)]
    )
    assert evidence.header == (first in GUESSES)
    assert not (evidence.header and evidence.sure)


def test_a_first_row_like_all_others_is_text_although_its_words_name_columns():
    assert header_evidence([(f"line {n}", f"LINE {n}") for n in range(9)]).score <= -SURE


def test_a_dictionary_has_a_header_if_its_words_say_so():
    rows = [(f"{a}{b}", f"{b}o{a}") for a in ("ta", "mel", "kor", "vin", "sul") for b in ("ra", "pim", "lo", "dek")]
    assert header_evidence([("Wort", "Übersetzung"), *rows]).header
    assert not header_evidence([("abandon", "verlassen"), *rows]).header


@pytest.mark.parametrize(
    ("row", "header"),
    [
        (("Si", "no."), False), (("Si", "no"), False), (("Set", "type."), False), (("it", "is"), False),
        (("fra", "eng"), True), (("source", "target"), True), (("id", "en", "fr", "text"), True),
    ],
)  # fmt: skip
def test_a_lone_row_is_text_unless_a_name_is_surely_one(row, header):
    assert header_evidence([row]).header is header


def test_names_that_stand_twice_are_a_header(text):
    rows = [["en", "en", "fr"], *([a, a, b] for a, b in zip(text["eng"], text["fra"], strict=True))]
    assert header_evidence(rows).sure
    assert header_evidence(rows).header
    assert not header_evidence([["Oui.", "Oui.", "Yes."], *rows[1:]]).header


def test_a_few_rows_have_a_header_if_all_its_names_are_known():
    assert header_evidence([("fra", "eng")]).header
    assert header_evidence([("source", "target"), ("Oui, c'est vrai.", "Yes, it is true.")]).header
    assert not header_evidence([("Oui, c'est vrai.", "Yes, it is true.")]).header


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ("fr", ["fr"]), ("en-fr", ["en", "fr"]), ("eng_fra", ["eng", "fra"]), ("pt-BR", ["pt-BR"]),
        ("zh_Hans", ["zh_Hans"]), ("German", ["deu"]), ("en → de", ["en", "de"]),
        ("", []), ("Hello", []), ("de la", []), ("12", []),
    ],
)  # fmt: skip
def test_the_values_of_language_columns(value, codes):
    assert codes_in(value) == codes
