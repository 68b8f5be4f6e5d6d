"""Languages of texts, as py3langid's own code tells them, and which texts are surely in another one than named."""

import unicodedata

import numpy as np
import pytest

from babeltune.data.language_id import labels_of, likeliest, model, strangers
from babeltune.data.texts import Texts
from corpora import bundled

CODES = {"eng": "en", "fra": "fr", "rus": "ru", "kor": "ko"}


@pytest.fixture(scope="module")
def text():
    return bundled(300, *CODES)


def test_a_batch_has_the_languages_that_py3langid_finds_text_by_text(text):
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    texts = [each for language in text for each in text[language][:60]]
    texts += ["", "12 + 4", "TOUT EN MAJUSCULES", unicodedata.normalize("NFD", "déjà vu à l'été"), "\ud800", "x" * 150]
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    assert likeliest(texts) == [identifier.classify(each)[0] for each in texts]
    identifier.set_languages(["en", "ru"])
    assert likeliest(texts, ["en", "ru"]) == [identifier.classify(each)[0] for each in texts]


@pytest.mark.parametrize("language", list(CODES))
def test_text_in_its_language_is_no_stranger_and_text_in_another_is(text, language):
    assert np.mean(strangers(Texts.of(text[language]), language) >= 0) < 0.01
    for other in CODES.keys() - {language}:
        labels = strangers(Texts.of(text[other]), language)
        assert np.mean(np.isin(labels, labels_of(other))) > 0.9


def test_nobody_calls_short_text_or_an_unknown_language_a_stranger(text):
    short = Texts.of(["Tom.", "OK", "2019", "", "ha ha", "A. B.", "www.example.org"])
    assert (strangers(short, "fra") < 0).all()
    for unknown in ("kzj", "hin_Latn", "tat_Latn", "qzz"):
        assert (strangers(Texts.of(text["rus"][:50]), unknown) < 0).all()


@pytest.mark.parametrize(
    ("language", "same"),
    [("nob", "nno"), ("zho_Hant", "yue"), ("arb", "arz"), ("srp_Latn", "hrv"), ("tgl", "fil"), ("lvs", "lv")],
)
def test_close_languages_share_a_label(language, same):
    assert set(labels_of(language)) & set(labels_of(same))


def test_every_language_that_is_close_to_others_is_one_of_the_model():
    assert {name for name in model().labels if name in ("sr", "hr", "wuu", "arz", "sdh", "ltg", "uzs")} == {
        "sr", "hr", "wuu", "arz", "sdh", "ltg", "uzs",
    }  # fmt: skip
